/* calendar.h - the time of day that each thread is told. */
#ifndef REPROKIT_SOURCES_CALENDAR_H
#define REPROKIT_SOURCES_CALENDAR_H

#include <stdint.h>

int64_t rk_clock_now(int id);                     /* nanoseconds of the kernel's clock */
int64_t rk_calendar_read(int id, uint16_t place); /* the time of day, in nanoseconds since 1970 */
int64_t rk_calendar_smooth(int id);               /* the same for threads whose reads are not recorded */
int64_t rk_calendar_expected(void);               /* what the calling thread would be told if it read now */
int64_t rk_calendar_passed(void);                 /* the same, or a little before: what has surely come */

/* Returns what a program is shown of a file's time, both in nanoseconds since 1970. */
int64_t rk_calendar_of_file(int64_t time);

#endif
