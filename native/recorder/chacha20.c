/* chacha20.c - ChaCha20 (D. J. Bernstein's original: 64-bit nonce and counter; with the upper half of
 * both zero it gives the blocks of RFC 8439), four blocks at a time. */
#include <string.h>

#include "recorder/chacha20.h"

typedef uint32_t lanes __attribute__((vector_size(16))); /* one word of each of four blocks */

static inline lanes rotate(lanes value, int bits) { return (value << bits) | (value >> (32 - bits)); }

static inline void quarter(lanes *a, lanes *b, lanes *c, lanes *d) {
    *a += *b, *d = rotate(*d ^ *a, 16);
    *c += *d, *b = rotate(*b ^ *c, 12);
    *a += *b, *d = rotate(*d ^ *a, 8);
    *c += *d, *b = rotate(*b ^ *c, 7);
}

static void begin(lanes state[16], const uint8_t key[32], uint64_t nonce, uint64_t counter) {
    uint32_t words[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574}; /* "expand 32-byte k" */
    memcpy(words + 4, key, 32);
    memcpy(words + 14, &nonce, 8);
    for (int i = 0; i < 16; i++) state[i] = (lanes){0} + words[i];
    for (uint64_t block = 0; block < 4; block++) {
        state[12][block] = (uint32_t)(counter + block);
        state[13][block] = (uint32_t)((counter + block) >> 32);
    }
}

void rk_chacha20_blocks(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t blocks[RK_BLOCKS]) {
    lanes in[16], x[16];
    begin(in, key, nonce, counter);
    memcpy(x, in, sizeof(x));
    for (int round = 0; round < 10; round++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) quarter(x + i, x + 4 + i, x + 8 + i, x + 12 + i);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) quarter(x + i, x + 4 + (i + 1) % 4, x + 8 + (i + 2) % 4, x + 12 + (i + 3) % 4);
    }
    for (int i = 0; i < 16; i++) {
        x[i] += in[i];
        for (int block = 0; block < 4; block++) {
            uint32_t word = x[i][block];
            memcpy(blocks + 64 * block + 4 * i, &word, sizeof(word));
        }
    }
}

void rk_chacha20(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t block[64]) {
    uint8_t blocks[RK_BLOCKS];
    rk_chacha20_blocks(key, nonce, counter, blocks);
    memcpy(block, blocks, 64);
}
