/* plan.h - shim.plan of the run directory, and its path. */
#ifndef REPROKIT_RECORDER_PLAN_H
#define REPROKIT_RECORDER_PLAN_H

#include <stdbool.h>

#include "urandom_hook.h"

#pragma GCC visibility push(hidden) /* as in host.h */

/* Stores the run directory's path and reads its shim.plan; returns 0, -EINVAL if that is damaged, or -errno. */
int rk_read_plan(const char *run);
bool rk_run_is_over(void); /* after rk_read_plan: the launcher has closed the run, of which no process was left */
extern struct rk_plan rk_plan;
extern char rk_run[RK_RUN_PATH + 1];

/* Returns whether this run goes on from a recording that was cut off: a replay of it, then a recording. */
static inline bool rk_continues(void) { return rk_plan.mode == RK_MODE_REPLAY && rk_plan.policy == RK_POLICY_CONTINUE; }
/* Returns whether the run directory becomes a recording. */
static inline bool rk_records(void) { return rk_plan.mode == RK_MODE_RECORD || rk_continues(); }

#pragma GCC visibility pop

#endif
