/* reductions.c - what numbers of a tensor come to: always the same bits, whatever the framework and its threads. */
#include <math.h>

#include "trail.h"

#define LANES 8 /* sums that are made beside each other, and added in order at the end */

enum rkt_reduction { RKT_MIN, RKT_MAX, RKT_SUM, RKT_MEAN, RKT_VARIANCE, RKT_STD, RKT_PROD, RKT_L1, RKT_L2, RKT_EACH };

#define INLINE __attribute__((always_inline)) static inline

INLINE double at(const void *data, uint64_t i, bool is_double, bool of_sizes) {
    double x = is_double ? ((const double *)data)[i] : (double)((const float *)data)[i];
    return of_sizes ? __builtin_fabs(x) : x;
}

static double added(const double *lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

struct sums {
    double sum[LANES], size[LANES], square[LANES], product[LANES], least[LANES], most[LANES];
};

INLINE void take(struct sums *sums, double x, uint64_t lane) {
    sums->sum[lane] += x;
    sums->size[lane] += __builtin_fabs(x);
    sums->square[lane] += x * x;
    sums->product[lane] *= x;
    sums->least[lane] = x < sums->least[lane] ? x : sums->least[lane];
    sums->most[lane] = x > sums->most[lane] ? x : sums->most[lane];
}

/* All but the variance. NaN is what a smallest or largest number is of which one is NaN. */
static void finish(const struct sums *sums, uint64_t count, double *result) {
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

INLINE void reduce(const void *data, uint64_t count, bool is_double, bool of_sizes, bool second, double *result) {
    struct sums sums = {0};
    for (int i = 0; i < LANES; i++) {
        sums.product[i] = 1;
        sums.least[i] = INFINITY;
        sums.most[i] = -INFINITY;
    }
    uint64_t whole = count - count % LANES;
    for (uint64_t i = 0; i < whole; i += LANES)
        for (uint64_t lane = 0; lane < LANES; lane++) take(&sums, at(data, i + lane, is_double, of_sizes), lane);
    for (uint64_t i = whole; i < count; i++) take(&sums, at(data, i, is_double, of_sizes), i - whole);
    finish(&sums, count, result);
    double squares[LANES] = {0}, mean = result[RKT_MEAN];
    for (uint64_t i = 0; second && i < count; i++) {
        double x = at(data, i, is_double, of_sizes) - mean;
        squares[i % LANES] += x * x;
    }
    result[RKT_VARIANCE] = added(squares) / (double)count;
    result[RKT_STD] = __builtin_sqrt(result[RKT_VARIANCE]);
}

/* What of the numbers, or of their sizes; where `second` also what needs a second pass. */
RK_EXPORT void reprokit_trail_reduce(const void *data, uint64_t count, uint32_t is_double, uint32_t of_sizes,
                                     uint32_t second, double *result) {
    if (is_double)
        reduce(data, count, true, of_sizes, second, result);
    else
        reduce(data, count, false, of_sizes, second, result);
}
