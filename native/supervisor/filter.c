/* filter.c - the seccomp filter that brings requests for entropy, and renames, to the supervisor.
 *
 * It is installed on one thread and inherited by everything that thread starts. The shim's own calls have RK_MARK in
 * the last, unused argument and pass the filter.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/compiler.h"
#include "supervisor/supervisor.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#define LOAD(field)     BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define IF(value, n, m) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), (n), (m))
#define IF_ANY(bits, n) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (bits), (n), 0)
#define AND(bits)       BPF_STMT(BPF_ALU | BPF_AND | BPF_K, (bits))
#define ALLOW           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define NOTIFY          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)

/* Lets opens of directories and for writing only pass, as they give no entropy. */
#define OPENING(number, flags)                                                            \
    IF(number, 0, 9), LOAD(args[5]), IF(RK_MARK, 5, 0), IF(RK_BROKER, 5, 0), LOAD(flags), \
        IF_ANY(O_DIRECTORY | O_PATH, 2), AND(O_ACCMODE), IF(O_WRONLY, 0, 1), ALLOW, NOTIFY

#define RENAMING(number) IF(number, 0, 4), LOAD(args[5]), IF(RK_MARK, 0, 1), ALLOW, NOTIFY

/* The two numbers of IF are instructions to skip: if the value is equal, and if it is not. */
static struct sock_filter program[] = {
    LOAD(arch),
    IF(ARCHITECTURE, 1, 0),
    ALLOW,
    LOAD(nr),
    IF(SYS_getrandom, 0, 4),
    LOAD(args[5]),
    IF(RK_MARK, 0, 1),
    ALLOW,
    NOTIFY,
    OPENING(SYS_openat, args[2]),
#ifdef SYS_open
    OPENING(SYS_open, args[1]),
#endif
#ifdef SYS_rename
    RENAMING(SYS_rename),
#endif
#ifdef SYS_renameat
    RENAMING(SYS_renameat),
#endif
    RENAMING(SYS_renameat2),
    IF(SYS_openat2, 2, 0),
    IF(SYS_execve, 1, 0),
    IF(SYS_execveat, 0, 1),
    NOTIFY,
    ALLOW,
};

bool rk_sees_exec = true;
bool rk_is_uninterrupted;

/* Removes exec calls from the filter: strace does not see what the filter reports (record --prove). */
static void leave_exec_alone(void) {
    for (size_t i = 0; i < RK_LENGTH(program); i++)
        if (program[i].code == (BPF_JMP | BPF_JEQ | BPF_K) &&
            (program[i].k == SYS_execve || program[i].k == SYS_execveat))
            program[i].k = UINT32_MAX;
    rk_sees_exec = false;
}

static int install(unsigned long flags) {
    struct sock_fprog filter = {RK_LENGTH(program), program};
    return (int)rk_call(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                        (long)(SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_SPEC_ALLOW | flags),
                        (long)&filter, 0, 0, 0);
}

/* Prefers the flag of Linux 5.19: a signal does not interrupt a request that was received. */
static int install_best(void) {
    int listener = install(SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV);
    rk_is_uninterrupted = listener != -EINVAL;
    return rk_is_uninterrupted ? listener : install(0);
}

/* Installs the filter on the calling thread. Returns the listener, or -errno. Without the necessary privilege it sets
 * no_new_privs, so that programs of the thread gain no privileges from now on; *no_new_privs is 1 then. */
RK_EXPORT int reprokit_filter(int may_forbid_rights, int sees_exec, int *no_new_privs) {
    *no_new_privs = 0;
    if (!sees_exec) leave_exec_alone();
    int listener = install_best();
    if (listener != -EACCES || !may_forbid_rights) return listener;
    long error = rk_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0);
    if (error) return (int)error;
    *no_new_privs = 1;
    return install_best();
}
