/* unshimmed.c - detects programs that will be executed without the shim, and reports them to the launcher if there is
 * no supervisor to answer their requests; and processes that the supervisor does not reach. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/compiler.h"
#include "recorder/lost.h"
#include "recorder/plan.h"
#include "recorder/reach.h"
#include "recorder/system.h"
#include "shim/notes/uncovered.h"
#include "shim/notes/unshimmed.h"

static bool is_supervised(void) {
    char path[RK_RUN_PATH + 16];
    rk_append(path, sizeof(path), rk_append(path, sizeof(path), 0, rk_run), "/shim.plan");
    int fd = rk_open_by_broker(path, O_RDONLY | O_CLOEXEC, -ENOENT);
    if (fd >= 0) rk_close(fd);
    return fd >= 0;
}

/* Reports a process that is no descendant of the command, as a task of Slurm, which a daemon starts. A container may
 * have a filter of its own: there ranks ask. */
void rk_look_for_supervisor(bool is_rank) {
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 0 || (is_rank && !is_supervised())) rk_uncovered("unsupervised");
}

/* Returns false for a program of another user or in another root. */
static bool can_open_shim(void) {
    int fd = (int)rk_call(SYS_openat, AT_FDCWD, (long)rk_plan.shim, O_RDONLY | O_CLOEXEC, 0, 0, RK_MARK);
    if (fd >= 0) rk_close(fd);
    return fd >= 0 || !rk_is_out_of_reach(fd);
}

/* Returns whether a program is set-user-ID or set-group-ID: the loader ignores LD_PRELOAD for it. */
static bool gains_rights(const char *path) {
    struct stat status;
    if (rk_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)&status, 0, 0, 0) != 0) return false;
    bool user = status.st_mode & S_ISUID && status.st_uid != geteuid();
    bool group = status.st_mode & S_ISGID && status.st_mode & S_IXGRP && status.st_gid != getegid();
    return S_ISREG(status.st_mode) && (user || group) && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1;
}

/* Checks the first file of this name in the directories of PATH. */
static bool gains_rights_in_path(const char *file) {
    const char *directories = strchr(file, '/') ? NULL : getenv("PATH");
    char path[512];
    while (directories && *directories) {
        size_t n = strcspn(directories, ":");
        if (n + strlen(file) + 2 <= sizeof(path)) {
            memcpy(path, directories, n);
            path[n] = 0;
            rk_append(path, sizeof(path), rk_append(path, sizeof(path), n, "/"), file);
            if (rk_call(SYS_faccessat, AT_FDCWD, (long)path, X_OK, 0, 0, 0) == 0) return gains_rights(path);
        }
        directories += n + (directories[n] == ':');
    }
    return gains_rights(file);
}

/* Reports a program that will not have the shim, unless a supervisor answers its requests. */
void rk_look_for_shim(const char *file, bool in_path, const char *identity) {
    bool gains = file && (in_path ? gains_rights_in_path(file) : gains_rights(file));
    if (RK_UNLIKELY(gains || !can_open_shim()) && !is_supervised()) rk_tell_lost(RK_LOST_SHIM, identity);
}
