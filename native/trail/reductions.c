/* reductions.c - reduces tensors: with the same bits in every run, independent of the framework and its threads, of
 * the processor, and of the tensor's alignment.
 *
 * Each sum has LANES partial sums in double precision: lane n adds the numbers n, n + LANES, ... in order, and the
 * lanes are added in order at the end. */
#include <math.h>
#include <string.h>

#include "recorder/compiler.h"
#include "trail/trail.h"

#define LANES  16
#define WIDTH  4   /* lanes of a vector, which compilers split for narrower processors */
#define BLOCK  512 /* numbers that are in the first cache while all kinds of sums are added; a multiple of LANES */
#define INLINE __attribute__((always_inline)) static inline

#define WANTS(reduction) (1u << (reduction))
#define ANY_EXTREME      (WANTS(RKT_MIN) | WANTS(RKT_MAX))
#define ANY_VARIANCE     (WANTS(RKT_VARIANCE) | WANTS(RKT_STD))
#define ANY_SUM          (WANTS(RKT_SUM) | WANTS(RKT_MEAN))
#define ALL              (WANTS(RKT_EACH) - 1)
#define SQUARED_ERROR    WANTS(RKT_EACH) /* of the second pass */

typedef double numbers __attribute__((vector_size(8 * WIDTH)));
typedef float singles __attribute__((vector_size(4 * WIDTH)));
typedef int64_t masks __attribute__((vector_size(8 * WIDTH)));

/* The partial results of all lanes. */
struct lanes {
    numbers of[LANES / WIDTH];
};

struct sums {
    struct lanes sum, size, square, product, least, most, squared_error;
    numbers mean;
};

struct block {
    const void *data;
    uint64_t count;
};

/* Lane by lane, as compilers split conversions and choices of whole vectors before they know the processor. */
INLINE numbers lesser(numbers x, numbers y) {
    for (int n = 0; n < WIDTH; n++) x[n] = x[n] < y[n] ? x[n] : y[n];
    return x;
}

INLINE numbers greater(numbers x, numbers y) {
    for (int n = 0; n < WIDTH; n++) x[n] = x[n] > y[n] ? x[n] : y[n];
    return x;
}

INLINE numbers absolute_values(numbers x) { return (numbers)((masks)x & INT64_MAX); }

/* Reads WIDTH numbers from i on, without their signs if `mask` lacks that bit. */
INLINE numbers numbers_at(const void *data, uint64_t i, bool is_double, int64_t mask) {
    numbers doubles;
    singles floats;
    if (is_double) {
        memcpy(&doubles, (const uint8_t *)data + i * sizeof(double), sizeof(doubles));
    } else {
        memcpy(&floats, (const uint8_t *)data + i * sizeof(float), sizeof(floats));
        for (int n = 0; n < WIDTH; n++) doubles[n] = (double)floats[n];
    }
    return (numbers)((masks)doubles & mask);
}

/* Combines the numbers x of a block with the partial results `total`, lane by lane. */
#define FOR_EACH_LANE(block, partial, expression)                                         \
    do {                                                                                  \
        struct lanes totals = *(partial);                                                 \
        for (uint64_t i = 0; i < (block)->count; i += LANES)                              \
            for (int part = 0; part < LANES / WIDTH; part++) {                            \
                numbers x = numbers_at((block)->data, i + WIDTH * part, is_double, mask); \
                numbers total = totals.of[part];                                          \
                totals.of[part] = (expression);                                           \
            }                                                                             \
        *(partial) = totals;                                                              \
    } while (0)

/* Adds numbers, whose count is a multiple of LANES. */
INLINE void add_block(const struct block *block, bool is_double, int64_t mask, uint32_t wanted, struct sums *sums) {
    if (wanted & ANY_SUM) FOR_EACH_LANE(block, &sums->sum, total + x);
    if (wanted & WANTS(RKT_L1)) FOR_EACH_LANE(block, &sums->size, total + absolute_values(x));
    if (wanted & WANTS(RKT_L2)) FOR_EACH_LANE(block, &sums->square, total + x * x);
    if (wanted & WANTS(RKT_PROD)) FOR_EACH_LANE(block, &sums->product, total * x);
    if (wanted & ANY_EXTREME) FOR_EACH_LANE(block, &sums->least, lesser(x, total));
    if (wanted & ANY_EXTREME) FOR_EACH_LANE(block, &sums->most, greater(x, total));
    if (wanted & SQUARED_ERROR) FOR_EACH_LANE(block, &sums->squared_error, total + (x - sums->mean) * (x - sums->mean));
}

/* Reads a number, which may lie anywhere. */
INLINE double number_at(const void *data, uint64_t i, bool is_double) {
    double number;
    float single;
    if (is_double) return *(double *)memcpy(&number, (const uint8_t *)data + i * sizeof(number), sizeof(number));
    return (double)*(float *)memcpy(&single, (const uint8_t *)data + i * sizeof(single), sizeof(single));
}

/* Adds the last numbers, padded by what changes no result. */
INLINE void add_rest(const struct block *rest, bool is_double, int64_t mask, uint32_t wanted, double padding,
                     struct sums *sums) {
    double padded[LANES];
    for (uint64_t i = 0; i < LANES; i++) padded[i] = i < rest->count ? number_at(rest->data, i, is_double) : padding;
    add_block(&(struct block){padded, LANES}, true, mask, wanted, sums);
}

INLINE void add_all(const struct rkt_array *array, bool is_double, int64_t mask, uint32_t wanted, struct sums *sums) {
    const uint8_t *data = (const uint8_t *)(uintptr_t)array->address;
    uint64_t size = is_double ? sizeof(double) : sizeof(float), whole = array->count / LANES * LANES;
    for (uint64_t i = 0; i < whole; i += BLOCK)
        add_block(&(struct block){data + i * size, whole - i < BLOCK ? whole - i : BLOCK}, is_double, mask, wanted,
                  sums);
    struct block rest = {data + whole * size, array->count - whole};
    if (!rest.count) return;
    add_rest(&rest, is_double, mask, wanted & (ANY_SUM | WANTS(RKT_L1) | WANTS(RKT_L2)), 0, sums);
    add_rest(&rest, is_double, mask, wanted & WANTS(RKT_PROD), 1, sums);
    add_rest(&rest, is_double, mask, wanted & ANY_EXTREME, number_at(rest.data, 0, is_double), sums);
    add_rest(&rest, is_double, mask, wanted & SQUARED_ERROR, sums->mean[0], sums);
}

INLINE double lane(const struct lanes *lanes, int number) { return lanes->of[number / WIDTH][number % WIDTH]; }

INLINE double sum_of_lanes(const struct lanes *lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += lane(lanes, i);
    return sum;
}

/* Computes all results but the variance. Minimum and maximum are NaN if any number is. */
INLINE void finish(const struct sums *sums, uint64_t count, double *result) {
    double product = 1, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < LANES; i++) {
        product *= lane(&sums->product, i);
        least = lane(&sums->least, i) < least ? lane(&sums->least, i) : least;
        most = lane(&sums->most, i) > most ? lane(&sums->most, i) : most;
    }
    result[RKT_SUM] = sum_of_lanes(&sums->sum);
    result[RKT_L1] = sum_of_lanes(&sums->size);
    result[RKT_L2] = __builtin_sqrt(sum_of_lanes(&sums->square));
    result[RKT_PROD] = product;
    result[RKT_MEAN] = result[RKT_SUM] / (double)count;
    bool is_number = result[RKT_L1] == result[RKT_L1]; /* sizes have no infinities of two signs */
    result[RKT_MIN] = is_number ? least : NAN;
    result[RKT_MAX] = is_number ? most : NAN;
}

INLINE void reduce(const struct rkt_array *array, bool is_double, bool of_sizes, uint32_t wanted, double *result) {
    struct sums sums;
    memset(&sums, 0, sizeof(sums));
    for (int part = 0; part < LANES / WIDTH; part++) {
        sums.product.of[part] += 1;
        sums.least.of[part] += INFINITY;
        sums.most.of[part] -= INFINITY;
    }
    int64_t mask = of_sizes ? INT64_MAX : -1;
    if (wanted & ANY_EXTREME) wanted |= WANTS(RKT_L1);
    if (wanted & ANY_VARIANCE) wanted |= WANTS(RKT_MEAN);
    add_all(array, is_double, mask, wanted, &sums);
    finish(&sums, array->count, result);
    if (!(wanted & ANY_VARIANCE)) return;
    sums.mean += result[RKT_MEAN];
    add_all(array, is_double, mask, SQUARED_ERROR, &sums);
    result[RKT_VARIANCE] = sum_of_lanes(&sums.squared_error) / (double)array->count;
    result[RKT_STD] = __builtin_sqrt(result[RKT_VARIANCE]);
}

/* Reduces the numbers, then their absolute values. */
INLINE void reduce_each(const struct rkt_array *arrays, uint64_t count, uint32_t wanted, double *results) {
    for (uint64_t i = 0; i < 2 * count; i++) {
        uint32_t of_kind = i % 2 ? wanted >> RKT_EACH : wanted & ALL;
        if (!of_kind || !arrays[i / 2].count) continue;
        if (arrays[i / 2].is_double)
            reduce(&arrays[i / 2], true, i % 2, of_kind, results + i * RKT_EACH);
        else
            reduce(&arrays[i / 2], false, i % 2, of_kind, results + i * RKT_EACH);
    }
}

#if defined(__x86_64__)
/* The same operations in the same order, four at a time. */
__attribute__((target("avx2"))) static void reduce_by_avx2(const struct rkt_array *arrays, uint64_t count,
                                                           uint32_t wanted, double *results) {
    reduce_each(arrays, count, wanted, results);
}
#endif

/* Reduces arrays. Bit n of `wanted` asks for reduction n, bit RKT_EACH + n for that of absolute values; each array has
 * 2 * RKT_EACH results, and only those asked for are meaningful. */
RK_EXPORT void reprokit_trail_reduce(const struct rkt_array *arrays, uint64_t count, uint32_t wanted, double *results) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        reduce_by_avx2(arrays, count, wanted, results);
        return;
    }
#endif
    reduce_each(arrays, count, wanted, results);
}
