/* chacha20.h - the cipher that derives bytes from a key. */
#ifndef REPROKIT_RECORDER_CHACHA20_H
#define REPROKIT_RECORDER_CHACHA20_H

#include <stdint.h>

#define RK_BLOCKS 256 /* bytes of output per call of rk_chacha20_blocks */

void rk_chacha20(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t block[64]);
void rk_chacha20_blocks(const uint8_t key[32], uint64_t nonce, uint64_t counter, uint8_t blocks[RK_BLOCKS]);

#endif
