/* profile.h - the recorded file of this process. */
#ifndef REPROKIT_RECORDER_PROFILE_H
#define REPROKIT_RECORDER_PROFILE_H

#include <stdint.h>

#define RK_STREAMS_MOST (1u << 20) /* entries of the table of positions; a power of two */
void rk_profile_open(void);
/* Opens the file that holds the byte at *offset of the recording and sets *offset to its position there; or returns a
 * negative error. */
int rk_recorded_open(uint64_t *offset);

#endif
