/* plan.c - reads shim.plan of the run directory: the launcher's instructions for the shim and the supervisor. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/plan.h"
#include "recorder/system.h"

_Static_assert(sizeof(struct rk_plan) == 2048, "the layout of shim.plan");

struct rk_plan rk_plan;
char rk_run[RK_RUN_PATH + 1];

static bool is_plan(void) {
    return memcmp(rk_plan.magic, "RKPLAN\0", 8) == 0 && rk_plan.abi == RK_ABI &&
           rk_check(&rk_plan, offsetof(struct rk_plan, check), 0) == rk_plan.check;
}

bool rk_run_is_over(void) {
    char path[RK_RUN_PATH + 16];
    rk_append(path, sizeof(path), rk_append(path, sizeof(path), 0, rk_run), "/entropy/over");
    return rk_call(SYS_faccessat, AT_FDCWD, (long)path, F_OK, 0, 0, 0) == 0;
}

int rk_read_plan(const char *run) {
    char path[RK_RUN_PATH + 16];
    if (strlen(run) != RK_RUN_PATH) return -ENOENT;
    memcpy(rk_run, run, RK_RUN_PATH);
    size_t length = rk_append(path, sizeof(path), 0, rk_run);
    rk_append(path, sizeof(path), length, "/shim.plan");
    int fd = rk_open(path, O_RDONLY | O_NOFOLLOW, 0);
    if (fd < 0) return fd;
    long n = rk_call(SYS_read, fd, (long)&rk_plan, sizeof(rk_plan), 0, 0, 0);
    rk_close(fd);
    if (n != sizeof(rk_plan) || !is_plan()) {
        memset(&rk_plan, 0, sizeof(rk_plan)); /* varied.c reads it without checking that this is a run */
        return -EINVAL;
    }
    rk_plan.profile[sizeof(rk_plan.profile) - 1] = 0;
    rk_plan.shim[sizeof(rk_plan.shim) - 1] = 0;
    rk_plan.python_path[sizeof(rk_plan.python_path) - 1] = 0;
    rk_plan.ranks[sizeof(rk_plan.ranks) - 1] = 0;
    rk_plan.host[sizeof(rk_plan.host) - 1] = 0;
    return 0;
}
