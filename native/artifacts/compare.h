/* compare.h - what C and Python share for comparing artifacts: formats of numbers, and measurements. */
#ifndef REPROKIT_ARTIFACTS_COMPARE_H
#define REPROKIT_ARTIFACTS_COMPARE_H

#include <stdint.h>

/* reprokit: begin of what cffi reads */
#define RKA_ABI     4
#define RKA_BUCKETS 64
#define RKA_HEAD    12 /* bytes of a TFRecord before its data: their number, and the sum of that */
#define RKA_FOOT    4  /* bytes behind it: its sum */

enum rka_kind { RKA_RAW, RKA_UNSIGNED, RKA_SIGNED, RKA_FLOAT };

/* Meanings of the codes with all exponent bits set, and of the code of minus zero. */
enum rka_specials {
    RKA_NO_SPECIALS,  /* all codes are numbers */
    RKA_IEEE,         /* infinities and NaNs */
    RKA_FINITE,       /* no infinity; NaN where all bits but the sign are set */
    RKA_UNSIGNED_ZERO /* no infinity; NaN instead of minus zero */
};

/* The type of elements. */
struct rka_format {
    uint32_t kind;
    uint32_t size;  /* bytes of a component in memory; of RKA_RAW of an element */
    uint32_t bits;  /* significant bits of a component: a float4 uses a byte */
    uint32_t parts; /* components of an element: 2 of complex numbers */
    uint32_t exponent_bits, mantissa_bits;
    int32_t bias;
    uint32_t specials;
    uint32_t exponents_only; /* float8_e8m0fnu: no sign, no zero, a NaN */
};

/* A distance and the first element that has it. */
struct rka_extreme {
    double value;
    uint64_t whole; /* the exact distance of integers, or in units in the last place */
    uint64_t at;
};

/* The result of comparing so far. Fill with zeros before the first call. */
struct rka_measured {
    uint64_t compared, differing, first;
    uint64_t beyond, first_beyond; /* differing elements outside of the tolerances */
    uint64_t finite;               /* components that differ and have a distance */
    struct rka_extreme absolute, relative, ulp;
    uint64_t histogram[RKA_BUCKETS + 1]; /* distances of 1, 2, 3-4, 5-8, ... units in the last place */
    uint64_t sign_change;                /* not in the histogram; nor are those that follow */
    uint64_t zero_sign, nan_payload, nan, infinite;
};

/* Accepts absolute + relative * the right magnitude, or a distance of `ulp` units in the last place. */
struct rka_tolerance {
    double absolute, relative;
    uint64_t ulp;
};

/* TFRecords that come piece by piece. Fill with zeros before the first piece. */
struct rka_tfrecords {
    uint64_t good;   /* records that this piece completed */
    uint64_t begun;  /* bytes so far of the last record, which is bad or not complete */
    uint64_t length; /* bytes of its data, once its head is there */
    uint32_t crc;
    uint32_t wrong; /* the last sum that was reached is not that of its bytes */
    unsigned char bytes[RKA_HEAD];
};

int rka_abi(void);
void rka_compare(const struct rka_format *format, const struct rka_tolerance *tolerance, const void *left,
                 int left_big_endian, const void *right, int right_big_endian, uint64_t count, uint64_t base,
                 struct rka_measured *measured);
double rka_decode(const struct rka_format *format, uint64_t code);
void rka_unpack(uint32_t bits, uint64_t first, uint64_t count, const void *packed, void *codes);
void rka_gather(uint32_t size, uint32_t rank, const uint64_t *shape, const int64_t *from_strides,
                const int64_t *to_strides, const void *from, void *to);
uint64_t rka_first_other(const void *left, const void *right, uint64_t size);
uint64_t rka_count_other(const void *left, const void *right, uint64_t size);
uint32_t rka_crc32c(uint32_t crc, const void *data, uint64_t size);
uint32_t rka_crc32c_by_tables(uint32_t crc, const void *data, uint64_t size);
uint64_t rka_tfrecords(struct rka_tfrecords *state, const void *data, uint64_t size);
/* reprokit: end of what cffi reads */

#endif
