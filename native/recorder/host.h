/* host.h - what the recorder needs of its host.
 *
 * A host is the shim, which records its own process, or the supervisor, which records others: it sets these variables
 * and answers these calls for the program and the thread that it serves. The recorder uses nothing else of a host
 * (tests/native/test_structure.py). This is the only way in which a file uses one that stands above it. */
#ifndef REPROKIT_RECORDER_HOST_H
#define REPROKIT_RECORDER_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/compiler.h"
#include "recorder/state.h"

/* Hidden: whoever uses one of these is in the same library, and needs no global offset table to reach it. */
#pragma GCC visibility push(hidden)

/* Whether this process belongs to a run: enum rk_state. A supervisor's always does. */
enum rk_state { RK_STATE_UNKNOWN = 0, RK_STATE_OFF = 1, RK_STATE_ON = 2 };
extern int rk_state;

/* Finds that out, if nobody has yet; returns whether it does. */
bool rk_start(void);

static inline bool rk_active(void) {
    int state = __atomic_load_n(&rk_state, __ATOMIC_ACQUIRE);
    return RK_LIKELY(state != RK_STATE_UNKNOWN) ? state == RK_STATE_ON : rk_start();
}

/* The state of the process that is recorded. */
extern struct rk_process *rk_process;

/* The identity of that process. */
extern char rk_identity[RK_IDENTITY];

/* Called before each use of these: gives a forked child a state and an identity of its own. */
void rk_process_check(void);

/* Returns the state of the thread that makes the request. */
struct rk_thread *rk_thread_check(void);

/* Returns the module that contains an address of that process ("" if none) and the address's offset in it. */
const char *rk_module(const void *address, uint64_t *offset);

/* Returns whether its program is written in Go. */
bool rk_is_go(void);

/* Repairs what the thread was told of the time, after a siglongjmp out of a request. */
void rk_calendar_repair(struct rk_thread *thread);

/* Ends the process that makes the request: a strict replay. */
__attribute__((noreturn)) void rk_end(int status);

#pragma GCC visibility pop

#endif
