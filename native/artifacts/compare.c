/*
 * compare.c - compares two arrays of numbers bit for bit, and measures the distances of elements that differ.
 *
 * All functions work on the caller's memory: no allocation, no files, no globals. Equal bytes cost a memcmp; only
 * elements that differ are decoded. Elements need not be aligned.
 */
#include "artifacts/compare.h"

#include <math.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define BLOCK  4096 /* bytes that are compared by one memcmp */

struct number {
    uint64_t code;
    uint64_t magnitude; /* for floats the code without its sign, so that neighbors differ by one */
    double value;
    int negative, nan, infinite;
};

EXPORT int rka_abi(void) { return RKA_ABI; }

static uint64_t load(const unsigned char *at, uint32_t size, int big_endian) {
    uint64_t code = 0;
    switch (size) {
    case 1:
        return *at;
    case 2: {
        uint16_t half;
        memcpy(&half, at, 2);
        return big_endian ? __builtin_bswap16(half) : half;
    }
    case 4: {
        uint32_t word;
        memcpy(&word, at, 4);
        return big_endian ? __builtin_bswap32(word) : word;
    }
    default:
        memcpy(&code, at, 8);
        return big_endian ? __builtin_bswap64(code) : code;
    }
}

static double decode_float(const struct rka_format *format, uint64_t magnitude) {
    if (format->bits == 64) {
        double value;
        memcpy(&value, &magnitude, 8);
        return value;
    }
    if (format->bits == 32) {
        uint32_t word = (uint32_t)magnitude;
        float value;
        memcpy(&value, &word, 4);
        return value;
    }
    uint64_t mantissa = magnitude & ((UINT64_C(1) << format->mantissa_bits) - 1);
    int exponent = (int)(magnitude >> format->mantissa_bits);
    if (format->exponents_only) return ldexp(1.0, exponent - format->bias);
    if (exponent == 0) return ldexp((double)mantissa, 1 - format->bias - (int)format->mantissa_bits);
    mantissa |= UINT64_C(1) << format->mantissa_bits;
    return ldexp((double)mantissa, exponent - format->bias - (int)format->mantissa_bits);
}

static void find_specials(const struct rka_format *format, struct number *number) {
    uint64_t mantissa_end = UINT64_C(1) << format->mantissa_bits;
    uint64_t all_exponents = ((UINT64_C(1) << format->exponent_bits) - 1) << format->mantissa_bits;
    switch (format->specials) {
    case RKA_IEEE:
        number->nan = number->magnitude > all_exponents;
        number->infinite = number->magnitude == all_exponents;
        break;
    case RKA_FINITE:
        number->nan = number->magnitude == (all_exponents | (mantissa_end - 1));
        break;
    case RKA_UNSIGNED_ZERO:
        number->nan = number->negative && number->magnitude == 0;
        break;
    default:
        break;
    }
}

static struct number float_number(const struct rka_format *format, uint64_t code) {
    struct number number = {.code = code, .magnitude = code};
    if (!format->exponents_only) {
        uint64_t sign = UINT64_C(1) << (format->bits - 1);
        number.negative = (code & sign) != 0;
        number.magnitude = code & (sign - 1);
    }
    find_specials(format, &number);
    number.value = number.infinite ? INFINITY : number.nan ? NAN : decode_float(format, number.magnitude);
    if (number.negative) number.value = -number.value;
    return number;
}

static struct number integer_number(const struct rka_format *format, uint64_t code) {
    struct number number = {.code = code, .magnitude = code, .value = (double)code};
    if (format->kind == RKA_SIGNED) {
        uint32_t unused = 64 - format->bits;
        int64_t value = (int64_t)(code << unused) >> unused;
        number.negative = value < 0;
        number.magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
        number.value = (double)value;
    }
    return number;
}

static struct number decode(const struct rka_format *format, uint64_t code) {
    if (format->bits < 64) code &= (UINT64_C(1) << format->bits) - 1;
    return format->kind == RKA_FLOAT ? float_number(format, code) : integer_number(format, code);
}

EXPORT double rka_decode(const struct rka_format *format, uint64_t code) { return decode(format, code).value; }

/* Updates a maximum with a distance; of equal ones the first stays. */
static void update_extreme(struct rka_extreme *extreme, double value, uint64_t whole, uint64_t at, uint64_t seen) {
    if (seen == 0 || value > extreme->value || (value == extreme->value && whole > extreme->whole)) {
        extreme->value = value;
        extreme->whole = whole;
        extreme->at = at;
    }
}

static int bucket(uint64_t distance) { return distance <= 1 ? 0 : 64 - __builtin_clzll(distance - 1); }

struct distances {
    double absolute, relative;
    uint64_t ulp;
};

static struct distances measure_distances(const struct rka_format *format, struct number left, struct number right) {
    struct distances distances;
    uint64_t high = left.magnitude > right.magnitude ? left.magnitude : right.magnitude;
    uint64_t low = left.magnitude > right.magnitude ? right.magnitude : left.magnitude;
    distances.ulp = left.negative == right.negative ? high - low : high + low;
    distances.absolute = format->kind == RKA_FLOAT ? fabs(left.value - right.value) : (double)distances.ulp;
    double largest = fmax(fabs(left.value), fabs(right.value));
    distances.relative = largest > 0 ? distances.absolute / largest : 0;
    if (isinf(distances.absolute)) /* the difference of two doubles may overflow */
        distances.relative = fabs(left.value / largest - right.value / largest);
    return distances;
}

static int is_within_tolerance(const struct rka_tolerance *tolerance, struct number right, struct distances distances) {
    return distances.ulp <= tolerance->ulp ||
           distances.absolute <= tolerance->absolute + tolerance->relative * fabs(right.value);
}

/* Counts a pair of components that differ; returns whether it is within the tolerances. */
static int measure(const struct rka_format *format, const struct rka_tolerance *tolerance, uint64_t left_code,
                   uint64_t right_code, uint64_t at, struct rka_measured *measured) {
    struct number left = decode(format, left_code), right = decode(format, right_code);
    if (left.code == right.code) /* they differ only in unused bits, as of a float4 in a byte */
        return 0;
    if (left.nan || right.nan) {
        measured->nan_payload += left.nan && right.nan;
        measured->nan += !(left.nan && right.nan);
        return left.nan && right.nan;
    }
    if (left.infinite || right.infinite) {
        measured->infinite++;
        return 0;
    }
    struct distances distances = measure_distances(format, left, right);
    if (format->kind == RKA_FLOAT && left.value == 0 && right.value == 0)
        measured->zero_sign++;
    else if (format->kind == RKA_FLOAT && left.negative != right.negative && left.value != 0 && right.value != 0)
        measured->sign_change++;
    else
        measured->histogram[bucket(distances.ulp)]++;
    update_extreme(&measured->absolute, distances.absolute, format->kind == RKA_FLOAT ? 0 : distances.ulp, at,
                   measured->finite);
    update_extreme(&measured->relative, distances.relative, 0, at, measured->finite);
    update_extreme(&measured->ulp, (double)distances.ulp, distances.ulp, at, measured->finite);
    measured->finite++;
    return is_within_tolerance(tolerance, right, distances);
}

static void count_element(uint64_t at, int accepted, struct rka_measured *measured) {
    if (measured->differing++ == 0) measured->first = at;
    if (!accepted && measured->beyond++ == 0) measured->first_beyond = at;
}

static void compare_raw(uint32_t size, const unsigned char *left, const unsigned char *right, uint64_t count,
                        uint64_t base, struct rka_measured *measured) {
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(left + i * size, right + i * size, size) != 0) count_element(base + i, 0, measured);
}

static void compare_numbers(const struct rka_format *format, const struct rka_tolerance *tolerance,
                            const unsigned char *left, int left_big, const unsigned char *right, int right_big,
                            uint64_t count, uint64_t base, struct rka_measured *measured) {
    uint32_t size = format->size;
    for (uint64_t i = 0; i < count; i++) {
        int differs = 0, accepted = 1;
        for (uint32_t part = 0; part < format->parts; part++, left += size, right += size) {
            uint64_t left_code = load(left, size, left_big), right_code = load(right, size, right_big);
            if (left_code == right_code) continue;
            differs = 1;
            accepted &= measure(format, tolerance, left_code, right_code, base + i, measured);
        }
        if (differs) count_element(base + i, accepted, measured);
    }
}

EXPORT void rka_compare(const struct rka_format *format, const struct rka_tolerance *tolerance, const void *left,
                        int left_big_endian, const void *right, int right_big_endian, uint64_t count, uint64_t base,
                        struct rka_measured *measured) {
    const unsigned char *left_at = left, *right_at = right;
    uint64_t size = (uint64_t)format->size * (format->kind == RKA_RAW ? 1 : format->parts);
    uint64_t step = size < BLOCK ? BLOCK / size : 1;
    measured->compared += count;
    for (uint64_t done = 0; done < count; done += step, left_at += step * size, right_at += step * size) {
        uint64_t block = count - done < step ? count - done : step;
        if (left_big_endian == right_big_endian && memcmp(left_at, right_at, block * size) == 0) continue;
        if (format->kind == RKA_RAW)
            compare_raw(format->size, left_at, right_at, block, base + done, measured);
        else
            compare_numbers(format, tolerance, left_at, left_big_endian, right_at, right_big_endian, block, base + done,
                            measured);
    }
}

/* Unpacks codes of less than a byte, lowest bits first, to a byte each; first: the index of the first code. */
EXPORT void rka_unpack(uint32_t bits, uint64_t first, uint64_t count, const void *packed, void *codes) {
    const unsigned char *from = packed;
    unsigned char *to = codes;
    uint64_t at = first * bits;
    for (uint64_t i = 0; i < count; i++, at += bits) {
        unsigned code = from[at / 8] >> (at % 8);
        if (at % 8 + bits > 8) code |= (unsigned)from[at / 8 + 1] << (8 - at % 8);
        to[i] = (unsigned char)(code & ((1u << bits) - 1));
    }
}

/* Copies a box of elements from one layout to another, given by their strides in elements. */
EXPORT void rka_gather(uint32_t size, uint32_t rank, const uint64_t *shape, const int64_t *from_strides,
                       const int64_t *to_strides, const void *from, void *to) {
    if (rank == 0) {
        memcpy(to, from, size);
        return;
    }
    for (uint64_t i = 0; i < shape[0]; i++) {
        const char *source = (const char *)from + (int64_t)i * from_strides[0] * (int64_t)size;
        char *target = (char *)to + (int64_t)i * to_strides[0] * (int64_t)size;
        rka_gather(size, rank - 1, shape + 1, from_strides + 1, to_strides + 1, source, target);
    }
}

EXPORT uint64_t rka_first_other(const void *left, const void *right, uint64_t size) {
    const unsigned char *left_bytes = left, *right_bytes = right;
    uint64_t at = 0;
    while (at + BLOCK <= size && memcmp(left_bytes + at, right_bytes + at, BLOCK) == 0) at += BLOCK;
    while (at < size && left_bytes[at] == right_bytes[at]) at++;
    return at;
}

EXPORT uint64_t rka_count_other(const void *left, const void *right, uint64_t size) {
    const unsigned char *left_bytes = left, *right_bytes = right;
    uint64_t count = 0;
    for (uint64_t i = 0; i < size; i++) count += left_bytes[i] != right_bytes[i];
    return count;
}
