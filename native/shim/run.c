/* run.c - finds out whether this process belongs to a run. */
#include <errno.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/host.h"
#include "recorder/lost.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "shim/identity/identity.h"

int rk_state;

static bool belongs_to_a_run(void) {
    if (getauxval(AT_SECURE)) return false;
    const char *run = getenv("REPROKIT_RUN");
    const char *identity = getenv("REPROKIT_ID");
    int error = run ? rk_read_plan(run) : -ENOENT;
    if (error == -EINVAL)
        rk_say("warning: shim.plan is damaged or of another ABI number: this process runs without the shim");
    else if (error && *rk_run)
        rk_tell_lost(RK_LOST_PLAN, identity ? identity : "0");
    if (!error && rk_run_is_over()) {
        unsetenv("REPROKIT_RUN"); /* nor do the agent and its children belong to it */
        return false;
    }
    return !error && rk_identity_start(identity ? identity : "0");
}

/* Called by the constructor, or earlier by the first hook that another library's constructor calls. The process has one
 * thread then. */
bool rk_start(void) {
    static int begun;
    if (!environ || __atomic_exchange_n(&begun, 1, __ATOMIC_ACQ_REL))
        return __atomic_load_n(&rk_state, __ATOMIC_ACQUIRE) == RK_STATE_ON;
    bool on = belongs_to_a_run();
    __atomic_store_n(&rk_state, on ? RK_STATE_ON : RK_STATE_OFF, __ATOMIC_RELEASE);
    return on;
}

void rk_end(int status) {
    for (;;) rk_call(SYS_exit_group, status, 0, 0, 0, 0, 0);
}
