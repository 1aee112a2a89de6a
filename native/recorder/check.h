/* check.h - a 64-bit check of bytes. */
#ifndef REPROKIT_RECORDER_CHECK_H
#define REPROKIT_RECORDER_CHECK_H

#include <stdint.h>

uint64_t rk_check(const void *data, uint64_t n, uint64_t seed);
/* The same of n < 8 bytes, which are the low ones of a word; the others are 0. */
uint64_t rk_check_word(uint64_t word, uint64_t n, uint64_t seed);
/* Like rk_check, but everything after the first `from` bytes is read from a copy. */
uint64_t rk_check_copied(const void *data, uint64_t n, uint64_t seed, const uint8_t *copy, uint64_t from);

#endif
