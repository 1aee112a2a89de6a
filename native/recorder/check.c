/* check.c - a fast 64-bit check that finds damage in entropy files. Specified in docs/format.md. */
#include <string.h>

#include "recorder/check.h"
#include "recorder/compiler.h"
#include "urandom_hook.h"

#define K1    UINT64_C(0x9E3779B97F4A7C15)
#define K2    UINT64_C(0xC2B2AE3D27D4EB4F)
#define K3    UINT64_C(0x165667B19E3779F9)
#define BLOCK 32

static inline uint64_t word(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

/* The end of a step, and its own inverse. */
static inline uint64_t folded(uint64_t product) { return product ^ (product >> 32); }

/* For a given word a bijection of the hash, for a given hash one of the word: a difference in one
 * word never cancels out. */
static inline uint64_t step(uint64_t hash, uint64_t value) { return folded((hash ^ value) * K1); }

/* A step between products that are not folded yet, so that only the shift depends on the multiplication. */
static inline uint64_t next_product(uint64_t product, uint64_t value) {
    return ((product ^ value) ^ (product >> 32)) * K1;
}

/* Hashes blocks by four lanes, at memory speed for large events. The lanes are local variables to stay in registers. */
static const uint8_t *blocks(uint64_t lanes[4], const uint8_t *at, uint64_t count) {
    uint64_t a = folded(lanes[0]), b = folded(lanes[1]), c = folded(lanes[2]), d = folded(lanes[3]);
#pragma GCC unroll 2
    for (; count > 0; count--, at += BLOCK) {
        a = next_product(a, word(at));
        b = next_product(b, word(at + 8));
        c = next_product(c, word(at + 16));
        d = next_product(d, word(at + 24));
    }
    lanes[0] = folded(a), lanes[1] = folded(b), lanes[2] = folded(c), lanes[3] = folded(d);
    return at;
}

static uint64_t finish(uint64_t hash, const uint8_t *at, uint64_t n) {
    for (; n >= 8; n -= 8, at += 8) hash = step(hash, word(at));
    if (n > 0) {
        uint64_t rest = 0;
        memcpy(&rest, at, n);
        hash = step(hash, rest);
    }
    hash = (hash ^ (hash >> 29)) * K3;
    return hash ^ (hash >> 32);
}

static uint64_t fold(const uint64_t lanes[4], uint64_t hash) {
    for (int i = 0; i < 4; i++) hash = step(hash, lanes[i]);
    return hash;
}

uint64_t rk_check(const void *data, uint64_t n, uint64_t seed) {
    const uint8_t *at = data;
    uint64_t hash = seed ^ (n * K2);
    if (n < BLOCK) return finish(hash, at, n);
    uint64_t lanes[4] = {seed + K1, seed + K2, seed + K3, seed};
    at = blocks(lanes, at, n / BLOCK);
    return finish(fold(lanes, hash), at, n % BLOCK);
}

uint64_t rk_check_word(uint64_t word, uint64_t n, uint64_t seed) {
    uint64_t hash = step(seed ^ (n * K2), word);
    hash = (hash ^ (hash >> 29)) * K3;
    return hash ^ (hash >> 32);
}

uint64_t rk_check_copied(const void *data, uint64_t n, uint64_t seed, const uint8_t *copy, uint64_t from) {
    if (n < 2 * BLOCK || from > BLOCK) return rk_check(data, n, seed);
    uint64_t lanes[4] = {seed + K1, seed + K2, seed + K3, seed};
    blocks(lanes, data, 1);
    copy = blocks(lanes, copy + (BLOCK - from), n / BLOCK - 1);
    return finish(fold(lanes, seed ^ (n * K2)), copy, n % BLOCK);
}

/* Of records that begin with the low half of the check of their rest, seeded with their number, and 1 where that is 0.
 */
RK_EXPORT uint64_t reprokit_first_wrong(const void *records, uint64_t count, uint64_t size, uint64_t first) {
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *record = (const uint8_t *)records + i * size;
        uint32_t expected = (uint32_t)rk_check(record + 4, size - 4, first + i), check = 0;
        memcpy(&check, record, sizeof(check));
        if (check != (expected ? expected : 1)) return i;
    }
    return count;
}

RK_EXPORT uint64_t reprokit_check(const void *data, uint64_t n, uint64_t seed) { return rk_check(data, n, seed); }
