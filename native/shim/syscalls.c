/* syscalls.c - syscall(): which numbers the shim answers. */
#include <linux/futex.h>
#include <sys/syscall.h>

#include "shim/hooks.h"
#include "shim/identity/pids.h"
#include "shim/notes/placed.h"
#include "shim/sources/clock.h"
#include "shim/sources/devices.h"
#include "shim/syscalls.h"

/* Returns whether a futex operation's fourth argument is a deadline by the time of day. */
static bool waits_until(long operation) {
    long command = operation & FUTEX_CMD_MASK;
    if (command == FUTEX_LOCK_PI) return true;
    return operation & FUTEX_CLOCK_REALTIME && (command == FUTEX_WAIT_BITSET || command == FUTEX_WAIT_REQUEUE_PI);
}

enum {
    ANSWERED = 1,     /* by the shim, or with another deadline */
    TAKES_FIRST = 2,  /* a process id as its first argument */
    TAKES_SECOND = 4, /* as its second */
    PLACES = 8,       /* gives a file a name */
    DEVICE = 16,      /* opens or reads a file, which may be the device */
    TIME = 32,        /* tells the time of day */
};

/* What to do for each system call number. The assembly in urandom_hook.c reads this table. */
__attribute__((visibility("hidden"))) const uint8_t rk_diverted[RK_DIVERTED] = {
    [SYS_read] = DEVICE,
    [SYS_pread64] = DEVICE,
    [SYS_openat] = DEVICE,
#ifdef SYS_open
    [SYS_open] = DEVICE,
#endif
    [SYS_futex] = ANSWERED,
    [SYS_clock_gettime] = TIME,
    [SYS_gettimeofday] = TIME,
#ifdef SYS_time
    [SYS_time] = TIME,
#endif
    [SYS_getpid] = ANSWERED,
    [SYS_getppid] = ANSWERED,
    [SYS_gettid] = ANSWERED,
    [SYS_kill] = TAKES_FIRST,
    [SYS_tkill] = TAKES_FIRST,
    [SYS_tgkill] = TAKES_FIRST | TAKES_SECOND,
    [SYS_rt_sigqueueinfo] = TAKES_FIRST,
    [SYS_rt_tgsigqueueinfo] = TAKES_FIRST | TAKES_SECOND,
    [SYS_getpgid] = TAKES_FIRST,
    [SYS_setpgid] = TAKES_FIRST | TAKES_SECOND,
    [SYS_getsid] = TAKES_FIRST,
    [SYS_wait4] = TAKES_FIRST,
    [SYS_sched_setaffinity] = TAKES_FIRST,
    [SYS_sched_getaffinity] = TAKES_FIRST,
    [SYS_sched_setscheduler] = TAKES_FIRST,
    [SYS_sched_getscheduler] = TAKES_FIRST,
    [SYS_sched_setparam] = TAKES_FIRST,
    [SYS_sched_getparam] = TAKES_FIRST,
    [SYS_sched_setattr] = TAKES_FIRST,
    [SYS_sched_getattr] = TAKES_FIRST,
    [SYS_sched_rr_get_interval] = TAKES_FIRST,
    [SYS_setpriority] = TAKES_SECOND,
    [SYS_getpriority] = TAKES_SECOND,
    [SYS_ioprio_set] = TAKES_SECOND,
    [SYS_ioprio_get] = TAKES_SECOND,
    [SYS_prlimit64] = TAKES_FIRST,
    [SYS_process_vm_readv] = TAKES_FIRST,
    [SYS_process_vm_writev] = TAKES_FIRST,
    [SYS_ptrace] = TAKES_SECOND,
    [SYS_perf_event_open] = TAKES_SECOND,
    [SYS_move_pages] = TAKES_FIRST,
    [SYS_migrate_pages] = TAKES_FIRST,
    [SYS_get_robust_list] = TAKES_FIRST,
    [SYS_kcmp] = TAKES_FIRST | TAKES_SECOND,
    [RK_SYS_PIDFD_OPEN] = TAKES_FIRST,
#ifdef SYS_rename
    [SYS_rename] = PLACES,
    [SYS_link] = PLACES,
    [SYS_symlink] = PLACES,
    [SYS_unlink] = PLACES,
#endif
#ifdef SYS_renameat
    [SYS_renameat] = PLACES,
#endif
    [SYS_renameat2] = PLACES,
    [SYS_linkat] = PLACES,
    [SYS_symlinkat] = PLACES,
    [SYS_unlinkat] = PLACES,
};

/* std::future and abseil wait by syscall(SYS_futex, ...); many ask for their thread by SYS_gettid. */
__attribute__((visibility("hidden"))) long rk_syscall_diverted(long number, long a, long b, long c, long d, long e,
                                                               long f) {
    struct timespec moved;
    long id;
    if (rk_diverted[number] & PLACES) return rk_syscall_placed(number, a, b, c, d, e);
    if (rk_diverted[number] & DEVICE) return rk_syscall_device(number, a, b, c, d, e, f, RK_CALLER());
    if (rk_diverted[number] & ANSWERED && rk_syscall_pid(number, RK_CALLER(), &id)) return id;
    if (rk_diverted[number] & TAKES_FIRST) a = rk_real_pid((pid_t)a);
    if (rk_diverted[number] & TAKES_SECOND) b = rk_real_pid((pid_t)b);
    if (number == SYS_futex && waits_until(b)) d = (long)rk_deadline((const struct timespec *)d, &moved, RK_CALLER());
    long result = RK_REAL(syscall)(number, a, b, c, d, e, f);
    return rk_diverted[number] & TIME ? rk_syscall_time(number, a, b, result, RK_CALLER()) : result;
}
