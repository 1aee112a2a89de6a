/* reductions.c - reduces a tensor: with the same bits in every run, independent of the framework and its threads. */
#include <math.h>
#include <string.h>

#include "trail.h"

#define LANES  4 /* parallel partial sums, which are added in order at the end */
#define INLINE __attribute__((always_inline)) static inline
#pragma GCC diagnostic ignored "-Wpsabi" /* no vector leaves this file */

enum rkt_reduction { RKT_MIN, RKT_MAX, RKT_SUM, RKT_MEAN, RKT_VARIANCE, RKT_STD, RKT_PROD, RKT_L1, RKT_L2, RKT_EACH };

typedef double numbers __attribute__((vector_size(8 * LANES)));
typedef float singles __attribute__((vector_size(4 * LANES)));
typedef int64_t masks __attribute__((vector_size(8 * LANES)));

struct sums {
    numbers sum, size, square, product, least, most;
};

/* Loads LANES numbers from i on, padded with `rest`. */
INLINE numbers numbers_at(const void *data, uint64_t i, uint64_t count, bool is_double, double rest) {
    if (i + LANES > count) {
        numbers last;
        for (uint64_t lane = 0; lane < LANES; lane++)
            last[lane] = i + lane >= count ? rest
                         : is_double       ? ((const double *)data)[i + lane]
                                           : (double)((const float *)data)[i + lane];
        return last;
    }
    numbers doubles;
    singles floats;
    if (is_double) {
        memcpy(&doubles, (const double *)data + i, sizeof(doubles));
        return doubles;
    }
    memcpy(&floats, (const float *)data + i, sizeof(floats));
    return __builtin_convertvector(floats, numbers);
}

INLINE numbers choose(masks mask, numbers yes, numbers no) {
    return (numbers)(((masks)yes & mask) | ((masks)no & ~mask));
}

INLINE numbers absolute_values(numbers x) { return (numbers)((masks)x & INT64_MAX); }

INLINE double sum_of_lanes(numbers lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

/* Computes all results but the variance. Minimum and maximum are NaN if any number is. */
INLINE void finish(const struct sums *sums, uint64_t count, double *result) {
    double product = 1, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < LANES; i++) {
        product *= sums->product[i];
        least = sums->least[i] < least ? sums->least[i] : least;
        most = sums->most[i] > most ? sums->most[i] : most;
    }
    result[RKT_SUM] = sum_of_lanes(sums->sum);
    result[RKT_L1] = sum_of_lanes(sums->size);
    result[RKT_L2] = __builtin_sqrt(sum_of_lanes(sums->square));
    result[RKT_PROD] = product;
    result[RKT_MEAN] = result[RKT_SUM] / (double)count;
    bool is_number = result[RKT_L1] == result[RKT_L1]; /* sizes have no infinities of two signs */
    result[RKT_MIN] = is_number ? least : NAN;
    result[RKT_MAX] = is_number ? most : NAN;
}

/* Reduces all numbers. Padding is zero, one for the product, and the first number for minimum and maximum. */
INLINE void reduce(const void *data, uint64_t count, bool is_double, bool of_sizes, bool second, double *result) {
    double first = is_double ? *(const double *)data : (double)*(const float *)data;
    numbers zeros = {0}, ones = zeros + 1;
    struct sums sums = {zeros, zeros, zeros, ones, ones * INFINITY, ones * -INFINITY};
    for (uint64_t i = 0; i < count; i += LANES) {
        numbers x = numbers_at(data, i, count, is_double, 0), size = absolute_values(x), other = x;
        x = of_sizes ? size : x;
        sums.sum += x;
        sums.size += size;
        sums.square += x * x;
        bool is_cut = i + LANES > count;
        other = is_cut ? numbers_at(data, i, count, is_double, 1) : other;
        sums.product *= of_sizes ? absolute_values(other) : other;
        other = is_cut ? numbers_at(data, i, count, is_double, first) : other;
        other = of_sizes ? absolute_values(other) : other;
        sums.least = choose(other < sums.least, other, sums.least);
        sums.most = choose(other > sums.most, other, sums.most);
    }
    finish(&sums, count, result);
    numbers squares = zeros, mean = zeros + result[RKT_MEAN];
    for (uint64_t i = 0; second && i < count; i += LANES) {
        numbers x = numbers_at(data, i, count, is_double, result[RKT_MEAN]);
        x = (of_sizes ? absolute_values(x) : x) - mean;
        squares += x * x;
    }
    result[RKT_VARIANCE] = sum_of_lanes(squares) / (double)count;
    result[RKT_STD] = __builtin_sqrt(result[RKT_VARIANCE]);
}

INLINE void reduce_either(const void *data, uint64_t count, bool is_double, bool of_sizes, bool second,
                          double *result) {
    if (is_double)
        reduce(data, count, true, of_sizes, second, result);
    else
        reduce(data, count, false, of_sizes, second, result);
}

#if defined(__x86_64__)
/* The same operations in the same order, four at a time. */
__attribute__((target("avx2"))) static void reduce_by_avx2(const void *data, uint64_t count, bool is_double,
                                                           bool of_sizes, bool second, double *result) {
    reduce_either(data, count, is_double, of_sizes, second, result);
}
#endif

/* Reduces at least one number, or their absolute values; with `second` also what needs a second pass. */
RK_EXPORT void reprokit_trail_reduce(const void *data, uint64_t count, uint32_t is_double, uint32_t of_sizes,
                                     uint32_t second, double *result) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        reduce_by_avx2(data, count, is_double, of_sizes, second, result);
        return;
    }
#endif
    reduce_either(data, count, is_double, of_sizes, second, result);
}
