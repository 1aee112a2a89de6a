/* place.h - places that read the clock. */
#ifndef REPROKIT_SOURCES_PLACE_H
#define REPROKIT_SOURCES_PLACE_H

#include <stdint.h>

#define RK_PLACE_REAL    (1u << 16) /* it is told the real time in a replay */
#define RK_PLACE_FOREIGN (1u << 17) /* of a thread that Python does not know, in a program of Python */

void rk_place_start(void);
uint32_t rk_place(const void *caller); /* the place's number, which is not 0, and flags */

#endif
