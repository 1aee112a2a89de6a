/* chacha20.c - one block of ChaCha20 (D. J. Bernstein's original: 64-bit nonce and counter; with the
 * upper half of both zero it gives the blocks of RFC 8439). */
#include <string.h>

#include "internal.h"

static inline uint32_t rotate(uint32_t value, int bits) { return (value << bits) | (value >> (32 - bits)); }

static inline void quarter(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d) {
    *a += *b, *d = rotate(*d ^ *a, 16);
    *c += *d, *b = rotate(*b ^ *c, 12);
    *a += *b, *d = rotate(*d ^ *a, 8);
    *c += *d, *b = rotate(*b ^ *c, 7);
}

void rk_chacha20(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t block[64]) {
    uint32_t in[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}; /* "expand 32-byte k" */
    memcpy(in + 4, key, 32);
    memcpy(in + 12, &counter, 8);
    memcpy(in + 14, &nonce, 8);
    uint32_t x[16];
    memcpy(x, in, sizeof(x));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 4; i++) quarter(x + i, x + 4 + i, x + 8 + i, x + 12 + i);
        for (int i = 0; i < 4; i++) quarter(x + i, x + 4 + (i + 1) % 4, x + 8 + (i + 2) % 4, x + 12 + (i + 3) % 4);
    }
    for (int i = 0; i < 16; i++) x[i] += in[i];
    memcpy(block, x, sizeof(x));
}
