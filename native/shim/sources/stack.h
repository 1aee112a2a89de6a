/* stack.h - what the kernel gives a program at its start. */
#ifndef REPROKIT_SOURCES_STACK_H
#define REPROKIT_SOURCES_STACK_H

void rk_stack_start(void);

#endif
