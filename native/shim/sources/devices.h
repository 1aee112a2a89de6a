/* devices.h - /dev/urandom, however it is opened and read. */
#ifndef REPROKIT_SOURCES_DEVICES_H
#define REPROKIT_SOURCES_DEVICES_H

#include <stdbool.h>

void rk_devices_start(void);
bool rk_is_of_libc(void *function);
/* open, openat, read and pread */
long rk_syscall_device(long number, long a, long b, long c, long d, long e, long f, const void *caller);

#endif
