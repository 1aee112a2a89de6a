/* reductions.c - what numbers of a tensor come to: always the same bits, whatever the framework and its threads. */
#include <math.h>
#include <string.h>

#include "trail.h"

#define LANES  4 /* sums that are made beside each other, and added in order at the end */
#define INLINE __attribute__((always_inline)) static inline
#pragma GCC diagnostic ignored "-Wpsabi" /* no vector leaves this file */

enum rkt_reduction { RKT_MIN, RKT_MAX, RKT_SUM, RKT_MEAN, RKT_VARIANCE, RKT_STD, RKT_PROD, RKT_L1, RKT_L2, RKT_EACH };

typedef double numbers __attribute__((vector_size(8 * LANES)));
typedef float singles __attribute__((vector_size(4 * LANES)));
typedef int64_t masks __attribute__((vector_size(8 * LANES)));

struct sums {
    numbers sum, size, square, product, least, most;
};

/* So many numbers from i on; behind the last one there is `rest`. */
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

INLINE numbers chosen(masks mask, numbers yes, numbers no) {
    return (numbers)(((masks)yes & mask) | ((masks)no & ~mask));
}

INLINE numbers sizes_of(numbers x) { return (numbers)((masks)x & INT64_MAX); }

INLINE double added(numbers lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

/* All but the variance. NaN is what a smallest or largest number is of which one is NaN. */
INLINE void finish(const struct sums *sums, uint64_t count, double *result) {
    double product = 1, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < LANES; i++) {
        product *= sums->product[i];
        least = sums->least[i] < least ? sums->least[i] : least;
        most = sums->most[i] > most ? sums->most[i] : most;
    }
    result[RKT_SUM] = added(sums->sum);
    result[RKT_L1] = added(sums->size);
    result[RKT_L2] = __builtin_sqrt(added(sums->square));
    result[RKT_PROD] = product;
    result[RKT_MEAN] = result[RKT_SUM] / (double)count;
    bool is_number = result[RKT_L1] == result[RKT_L1]; /* sizes have no infinities of two signs */
    result[RKT_MIN] = is_number ? least : NAN;
    result[RKT_MAX] = is_number ? most : NAN;
}

/* Numbers that are not there are zeros, or for a product ones, or repeat the first. */
INLINE void reduce(const void *data, uint64_t count, bool is_double, bool of_sizes, bool second, double *result) {
    double first = is_double ? *(const double *)data : (double)*(const float *)data;
    numbers zeros = {0}, ones = zeros + 1;
    struct sums sums = {zeros, zeros, zeros, ones, ones * INFINITY, ones * -INFINITY};
    for (uint64_t i = 0; i < count; i += LANES) {
        numbers x = numbers_at(data, i, count, is_double, 0), size = sizes_of(x), other = x;
        x = of_sizes ? size : x;
        sums.sum += x;
        sums.size += size;
        sums.square += x * x;
        bool is_cut = i + LANES > count;
        other = is_cut ? numbers_at(data, i, count, is_double, 1) : other;
        sums.product *= of_sizes ? sizes_of(other) : other;
        other = is_cut ? numbers_at(data, i, count, is_double, first) : other;
        other = of_sizes ? sizes_of(other) : other;
        sums.least = chosen(other < sums.least, other, sums.least);
        sums.most = chosen(other > sums.most, other, sums.most);
    }
    finish(&sums, count, result);
    numbers squares = zeros, mean = zeros + result[RKT_MEAN];
    for (uint64_t i = 0; second && i < count; i += LANES) {
        numbers x = numbers_at(data, i, count, is_double, result[RKT_MEAN]);
        x = (of_sizes ? sizes_of(x) : x) - mean;
        squares += x * x;
    }
    result[RKT_VARIANCE] = added(squares) / (double)count;
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
__attribute__((target("avx2"))) static void by_avx2(const void *data, uint64_t count, bool is_double, bool of_sizes,
                                                    bool second, double *result) {
    reduce_either(data, count, is_double, of_sizes, second, result);
}
#endif

/* What of at least one number, or of their sizes; where `second` also what needs a second pass. */
RK_EXPORT void reprokit_trail_reduce(const void *data, uint64_t count, uint32_t is_double, uint32_t of_sizes,
                                     uint32_t second, double *result) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        by_avx2(data, count, is_double, of_sizes, second, result);
        return;
    }
#endif
    reduce_either(data, count, is_double, of_sizes, second, result);
}
