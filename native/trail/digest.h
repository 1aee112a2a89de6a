/* digest.h - the digest of a tensor's bytes; docs/format.md defines it. Compiled as C, as C++ and by NVRTC.
 *
 * A sum over words, each mixed with its index by a bijection. The order of additions and the split over threads do not
 * matter, and a change of a single word always changes the digest. */
#ifndef REPROKIT_TRAIL_DIGEST_H
#define REPROKIT_TRAIL_DIGEST_H

#ifdef __CUDACC_RTC__
typedef unsigned long long uint64_t;
typedef unsigned int uint32_t;
typedef unsigned char uint8_t;
#else
#include <stdint.h>
#endif

#ifdef __CUDACC_RTC__
#define RKT_INLINE      __device__ static inline
#define RKT_WORDS_OF(n) struct __align__(8 * n)
#define RKT_UNROLL      _Pragma("unroll 4")
#else
#define RKT_INLINE      static inline
#define RKT_WORDS_OF(n) struct __attribute__((aligned(8 * n), may_alias))
#define RKT_UNROLL      _Pragma("GCC unroll 4")
#endif

#define RKT_STEP  0x9E3779B97F4A7C15ull
#define RKT_MUL_1 0xBF58476D1CE4E5B9ull
#define RKT_MUL_2 0x94D049BB133111EBull

/* Multipliers for words, of MurmurHash3's 32-bit finalizer: vector units need half the time for 32 bits. */
#define RKT_WORD_MUL_1 0x85EBCA6Bull
#define RKT_WORD_MUL_2 0xC2B2AE35ull

/* The finalizer of SplitMix64: https://prng.di.unimi.it/splitmix64.c */
RKT_INLINE uint64_t rkt_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * RKT_MUL_1;
    x = (x ^ (x >> 27)) * RKT_MUL_2;
    return x ^ (x >> 31);
}

/* Returns what the word at an index adds to the sum. */
RKT_INLINE uint64_t rkt_term(uint64_t word, uint64_t place) {
    uint64_t x = word + (place + 1) * RKT_STEP;
    x = (x ^ (x >> 30)) * RKT_WORD_MUL_1;
    x = (x ^ (x >> 27)) * RKT_WORD_MUL_2;
    return x ^ (x >> 31);
}

/* Loads up to 8 bytes as a little-endian word, padded with zeros. */
RKT_INLINE uint64_t rkt_word(const uint8_t *bytes, uint64_t count) {
    uint64_t word = 0;
    for (uint64_t i = 0; i < count && i < 8; i++) word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

/* Returns the share of one of `stride` workers for the words from first to end: every stride-th one from first + lane
 * on. Reads 16 bytes at once if they are aligned. */
RKT_INLINE uint64_t rkt_share(const uint8_t *bytes, uint64_t size, uint64_t first, uint64_t end, uint64_t lane,
                              uint64_t stride) {
    typedef RKT_WORDS_OF(2) { uint64_t low, high; }
    pair;
    uint64_t sum = 0, whole = size / 8 < end ? size / 8 : end, place = first + lane;
    if (((uint64_t)bytes & 15) == 0 && first % 2 == 0) {
        const pair *pairs = (const pair *)bytes;
        uint64_t half = whole / 2;
        RKT_UNROLL for (uint64_t i = first / 2 + lane; i < half; i += stride) {
            pair words = pairs[i];
            sum += rkt_term(words.low, 2 * i) + rkt_term(words.high, 2 * i + 1);
        }
        place = (2 * half > first ? 2 * half : first) + lane;
    }
    for (; place < whole; place += stride) sum += rkt_term(rkt_word(bytes + 8 * place, 8), place);
    /* The last, incomplete word. */
    if (lane == 0 && size % 8 && size / 8 >= first && size / 8 < end)
        sum += rkt_term(rkt_word(bytes + 8 * (size / 8), size % 8), size / 8);
    return sum;
}

#endif
