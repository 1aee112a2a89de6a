/* start.c - finds out whether this process belongs to a run, and starts the parts of the shim. */
#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/internal.h"

_Static_assert(sizeof(struct rk_file) == RK_HEAD, "the layout of an entropy file's head");
_Static_assert(sizeof(struct rk_chunk) == RK_CHUNK, "the layout of a chunk's head");

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

/* Returns whether this is the command's own process, whose file shows that the shim was loaded, even without requests.
 */
static bool is_root(void) { return !strpbrk(rk_identity, "/+"); }

__attribute__((constructor)) static void constructor(void) {
    rk_resolve();
    if (!rk_active()) return;
    const char *given = getenv("REPROKIT_ID"), *ranks = getenv("REPROKIT_RANK");
    /* A rank: the agent and its children read the variables. */
    if (given && strcmp(given, rk_identity) != 0) setenv("REPROKIT_ID", rk_identity, 1);
    bool is_rank = strcmp(ranks ? ranks : "", rk_ranks) != 0;
    if (given && is_rank) setenv("REPROKIT_RANK", rk_ranks, 1);
    rk_modules_start();
    rk_stack_start();
    rk_children_start();
    rk_devices_start();
    rk_written_start();
    rk_placed_start();
    rk_pids_start();
    rk_place_start();
    rk_cpuid_start();
    rk_look_for_supervisor(is_rank);
    if (is_root()) rk_file_ready();
}

void rk_end(int status) {
    for (;;) rk_call(SYS_exit_group, status, 0, 0, 0, 0, 0);
}

RK_EXPORT uint32_t reprokit_abi(void) { return RK_ABI; }
