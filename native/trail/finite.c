/* finite.c - tests in place whether numbers are all finite, by their bits.
 *
 * It uses no arithmetic, so that rounding, flushing to zero and exception masks do not matter. Compilers can vectorize
 * the loops, which then run at memory speed. */
#include "recorder/compiler.h"
#include "trail/digest.h"
#include "trail/trail.h"

/* A number is not finite if its bits under the mask are `bits`. */
struct format {
    uint32_t size;
    uint64_t mask, bits;
};

static const struct format formats[RKT_FORMATS] = {
    [RKT_FLOAT16] = {2, 0x7C00, 0x7C00},
    [RKT_BFLOAT16] = {2, 0x7F80, 0x7F80},
    [RKT_FLOAT32] = {4, 0x7F800000, 0x7F800000},
    [RKT_FLOAT64] = {8, UINT64_C(0x7FF) << 52, UINT64_C(0x7FF) << 52},
    [RKT_FLOAT8_E4M3FN] = {1, 0x7F, 0x7F}, /* has no infinities */
    [RKT_FLOAT8_E5M2] = {1, 0x7C, 0x7C},
    [RKT_FLOAT8_FNUZ] = {1, 0xFF, 0x80}, /* its one NaN is what would be -0 */
    [RKT_FLOAT8_E8M0] = {1, 0xFF, 0xFF},
};

/* Returns nonzero if any of the numbers is not finite. */
#define DEFINE_ANY(name, attributes, type)                                                       \
    attributes static bool name(const void *data, uint64_t count, const struct format *format) { \
        typedef type __attribute__((aligned(1), may_alias)) number;                              \
        const number *numbers = data;                                                            \
        const type mask = (type)format->mask, bits = (type)format->bits;                         \
        type any = 0;                                                                            \
        for (uint64_t i = 0; i < count; i++) any |= (numbers[i] & mask) == bits ? ~(type)0 : 0;  \
        return any;                                                                              \
    }

#define DEFINE_ALL(suffix, attributes)                                                                   \
    DEFINE_ANY(any8_##suffix, attributes, uint8_t)                                                       \
    DEFINE_ANY(any16_##suffix, attributes, uint16_t)                                                     \
    DEFINE_ANY(any32_##suffix, attributes, uint32_t)                                                     \
    DEFINE_ANY(any64_##suffix, attributes, uint64_t)                                                     \
    attributes static bool any_##suffix(const void *data, uint64_t bytes, const struct format *format) { \
        switch (format->size) {                                                                          \
        case 1:                                                                                          \
            return any8_##suffix(data, bytes, format);                                                   \
        case 2:                                                                                          \
            return any16_##suffix(data, bytes / 2, format);                                              \
        case 4:                                                                                          \
            return any32_##suffix(data, bytes / 4, format);                                              \
        case 8:                                                                                          \
            return any64_##suffix(data, bytes / 8, format);                                              \
        default:                                                                                         \
            return false;                                                                                \
        }                                                                                                \
    }

DEFINE_ALL(plain, )
#if defined(__x86_64__)
DEFINE_ALL(avx2, __attribute__((target("avx2"))))
#else
#define any_avx2 any_plain
#endif

static bool any_not_finite(const void *data, uint64_t bytes, const struct format *format) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return any_avx2(data, bytes, format);
#endif
    return any_plain(data, bytes, format);
}

static const struct format *format_of(uint64_t kind) { return &formats[kind < RKT_FORMATS ? kind : RKT_OTHER]; }

/* Returns the index of the first tensor with a number that is not finite, or count. */
RK_EXPORT uint64_t reprokit_trail_finite(const uint64_t *addresses, const struct rkt_numbers *numbers, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        const void *data = (const void *)(uintptr_t)addresses[i];
        if (data && any_not_finite(data, numbers[i].bytes, format_of(numbers[i].format))) return i;
    }
    return count;
}

/* Returns how many numbers are not finite; *first is the index of the first one. */
RK_EXPORT uint64_t reprokit_trail_not_finite(const void *data, uint64_t bytes, uint64_t kind, uint64_t *first) {
    const struct format *format = format_of(kind);
    uint64_t bad_count = 0, size = format->size;
    for (uint64_t i = 0; size && i < bytes / size; i++) {
        if ((rkt_word((const uint8_t *)data + i * size, size) & format->mask) != format->bits) continue;
        if (!bad_count++) *first = i;
    }
    return bad_count;
}
