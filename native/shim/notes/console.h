/* console.h - what this process prints. */
#ifndef REPROKIT_NOTES_CONSOLE_H
#define REPROKIT_NOTES_CONSOLE_H

#include <stdint.h>

#include "recorder/compiler.h"

extern uint8_t rk_printing[2];
/* The descriptor may refer to another file from now on. */
static inline void rk_descriptor_changed(int fd) {
    if (RK_UNLIKELY(fd == 1 || fd == 2)) __atomic_store_n(&rk_printing[fd - 1], 0, __ATOMIC_RELAXED);
}
void rk_console_before_fork(void);
void rk_console_end(void); /* at the end of this process */

#endif
