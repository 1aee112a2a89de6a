/* vdso.h - the code of getrandom in a vDSO. */
#ifndef REPROKIT_RECORDER_VDSO_H
#define REPROKIT_RECORDER_VDSO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RK_VDSO_CODE 40 /* bytes, at most */

/* Finds the offset of getrandom in an image of a vDSO, from its first byte; false if it has none. */
bool rk_vdso_find(const uint8_t *image, size_t size, uint64_t *offset);
/* Write replacement code and return its size: one makes the system call, the other jumps to a function. */
size_t rk_vdso_call(uint8_t code[RK_VDSO_CODE]);
size_t rk_vdso_jump(uint8_t code[RK_VDSO_CODE], const void *target);

#endif
