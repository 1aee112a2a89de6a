/* syscalls.h - which system calls syscall() leaves to the shim. */
#ifndef REPROKIT_SYSCALLS_H
#define REPROKIT_SYSCALLS_H

#define RK_DIVERTED 512 /* syscall() looks up numbers below this */

#endif
