/* check.c - a fast 64-bit check that finds damage in entropy files. Specified in docs/format.md. */
#include <string.h>

#include "internal.h"

#define K1 UINT64_C(0x9E3779B97F4A7C15)
#define K2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define K3 UINT64_C(0x165667B19E3779F9)

static inline uint64_t word(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return value;
}

/* For a given word a bijection of the hash, for a given hash one of the word: a difference in one
 * word never cancels out. */
static inline uint64_t step(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * K1;
    return hash ^ (hash >> 32);
}

uint64_t rk_check(const void *data, uint64_t n, uint64_t seed) {
    const uint8_t *at = data;
    uint64_t hash = seed ^ (n * K2);
    if (n >= 32) { /* four lanes, so that large events run at memory speed */
        uint64_t lanes[4] = {seed + K1, seed + K2, seed + K3, seed};
        for (; n >= 32; n -= 32, at += 32)
            for (int i = 0; i < 4; i++) lanes[i] = step(lanes[i], word(at + 8 * i));
        for (int i = 0; i < 4; i++) hash = step(hash, lanes[i]);
    }
    for (; n >= 8; n -= 8, at += 8) hash = step(hash, word(at));
    if (n > 0) {
        uint64_t rest = 0;
        memcpy(&rest, at, n);
        hash = step(hash, rest);
    }
    hash = (hash ^ (hash >> 29)) * K3;
    return hash ^ (hash >> 32);
}

RK_EXPORT uint64_t reprokit_check(const void *data, uint64_t n, uint64_t seed) { return rk_check(data, n, seed); }
