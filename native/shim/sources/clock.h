/* clock.h - the time of day by syscall(). */
#ifndef REPROKIT_SOURCES_CLOCK_H
#define REPROKIT_SOURCES_CLOCK_H

struct timespec;
/* Converts a deadline of the program to the kernel's clock; moved: room for it. */
const struct timespec *rk_deadline(const struct timespec *given, struct timespec *moved, const void *caller);
/* Replaces what a system call has told of the time of day, and its result. */
long rk_syscall_time(long number, long a, long b, long result, const void *caller);

#endif
