/* placed.h - files that get or lose a name. */
#ifndef REPROKIT_NOTES_PLACED_H
#define REPROKIT_NOTES_PLACED_H

void rk_placed_start(void);
long rk_syscall_placed(long number, long a, long b, long c, long d, long e); /* gives a file a name */

#endif
