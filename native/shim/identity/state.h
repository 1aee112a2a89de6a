/* state.h - this process and its threads, and the names that are made from them. */
#ifndef REPROKIT_IDENTITY_STATE_H
#define REPROKIT_IDENTITY_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "recorder/state.h"

#pragma GCC visibility push(hidden) /* as in recorder/host.h */

extern uint32_t rk_generation;
extern __thread struct rk_thread rk_thread __attribute__((tls_model("initial-exec")));

void rk_child_identity(char *text, const struct rk_thread *thread, uint32_t number);
void rk_thread_name(char *text, const char *creator, uint32_t number);
bool rk_is_another_process(void);

#pragma GCC visibility pop

#endif
