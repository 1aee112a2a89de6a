/* pids.c - a stand-in for the process id, for native code that seeds itself from it: all such with record --clock, else
 * only R, whose seed has the process id beside the time of day.
 *
 * The stand-in is derived from the run's key and identities, which are the same in every run. It is larger than any
 * process id, so that no call can mistake one for the other, and a stand-in that is not translated reaches no process.
 * A process sees stand-ins for itself, its first thread and its parent, but the real ids of its children.
 * REPROKIT_RUN/entropy/process-ids maps the stand-ins of all processes of the run to real ids.
 *
 * Python signals itself and its children, and reads /proc, by os.getpid: it gets the real id, and so do
 * cryptographic libraries.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "recorder/calls.h"
#include "recorder/chacha20.h"
#include "recorder/check.h"
#include "recorder/host.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "recorder/record.h"
#include "recorder/site.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/pids.h"

#define LARGEST_PID      (1 << 22)   /* the limit of every kernel */
#define LARGEST_STAND_IN 999999999   /* below 2^30, which a futex can hold */
#define MOST             (16u << 20) /* bytes of process-ids */

static bool program_is_python;
static int first_parent;
static bool translates_senders; /* set by the constructor: a sanitizer installs its handlers earlier */

static bool is_enabled(void) { return rk_active() && rk_plan.calendar; }

static bool gets_real_pid(const void *caller) {
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    const char *slash = strrchr(module, '/'), *name = slash ? slash + 1 : module;
    if (!rk_plan.clock) return strcmp(name, "libR.so") != 0;
    if (!*module) return program_is_python;
    return strncmp(name, "libpython", 9) == 0 || strncmp(name, "libpypy", 7) == 0 || rk_is_crypto(module);
}

/* ---- stand-ins and real ids ------------------------------------------------------------------------------------- */

struct pair {
    _Alignas(8) int number; /* the stand-in; both fields are read and written atomically */
    int real;
};

/* The pairs that this process used last, inherited by its forks: a chroot may hide the file. */
static struct pair recent[16];
static uint32_t recent_count;

static void remember(struct pair pair) {
    __atomic_store(&recent[__atomic_fetch_add(&recent_count, 1, __ATOMIC_RELAXED) % RK_LENGTH(recent)], &pair,
                   __ATOMIC_RELEASE);
}

static int open_list(int flags) {
    char path[RK_RUN_PATH + 32];
    size_t length = rk_append(path, sizeof(path), 0, rk_run);
    rk_append(path, sizeof(path), length, "/entropy/process-ids");
    return rk_open(path, flags | O_NOFOLLOW, 0600);
}

static void publish(struct pair pair) {
    remember(pair);
    int fd = open_list(O_WRONLY | O_APPEND | O_CREAT);
    if (fd < 0) return;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    if (end >= 0 && end < MOST && rk_within_limit((uint64_t)end + sizeof(pair)))
        rk_call(SYS_write, fd, (long)&pair, sizeof(pair), 0, 0, 0);
    rk_close(fd);
}

static bool matches(struct pair pair, struct pair query) {
    return query.number ? pair.number == query.number : pair.number && pair.real == query.real;
}

/* Finds the last matching pair in the file: process ids are reused, and an exec writes its stand-in again. */
static struct pair look_up_in_list(struct pair query) {
    struct pair pairs[64], pair = {0};
    int fd = open_list(O_RDONLY);
    if (fd < 0) return pair;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0) / (long)sizeof(pairs[0]) * (long)sizeof(pairs[0]);
    while (end > 0 && !pair.number) {
        long size = end < (long)sizeof(pairs) ? end : (long)sizeof(pairs);
        end -= size;
        if (rk_call(SYS_pread64, fd, (long)pairs, size, end, 0, 0) != size) break;
        for (long i = size / (long)sizeof(pairs[0]) - 1; i >= 0 && !pair.number; i--)
            if (matches(pairs[i], query)) pair = pairs[i];
    }
    rk_close(fd);
    if (pair.number) remember(pair);
    return pair;
}

static struct pair look_up(struct pair query) {
    for (size_t i = 0; i < RK_LENGTH(recent); i++) {
        struct pair pair;
        __atomic_load(&recent[i], &pair, __ATOMIC_ACQUIRE);
        if (matches(pair, query)) return pair;
    }
    return look_up_in_list(query);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static bool is_stand_in(int64_t number) { return number > LARGEST_PID && number <= LARGEST_STAND_IN; }

static int derive(uint64_t nonce) {
    uint64_t block[8];
    rk_chacha20(rk_plan.key, nonce, UINT64_MAX, (uint8_t *)block);
    return LARGEST_PID + 1 + (int)(block[0] % (LARGEST_STAND_IN - LARGEST_PID));
}

/* Derives the stand-in. A program started by exec in place (a "+" after its name) keeps its predecessor's. */
static int make_stand_in(void) {
    size_t length = strlen(rk_identity);
    while (length > 0 && rk_identity[length - 1] == '+') length--;
    return derive(rk_check(rk_identity, length, rk_process->incarnation));
}

/* Returns this process's stand-in, in a replay the recorded one. A vfork child gets its parent's. */
static int own_stand_in(void) {
    int number = __atomic_load_n(&rk_process->stand_in, __ATOMIC_ACQUIRE);
    if (RK_LIKELY(number)) return number;
    rk_file_ready();
    struct rk_file *file = rk_process->file;
    const struct rk_file *recorded = (const struct rk_file *)rk_process->profile;
    number = recorded && is_stand_in((int64_t)recorded->stand_in) ? (int)recorded->stand_in : make_stand_in();
    publish((struct pair){number, rk_process->pid});
    if (file) file->stand_in = (uint64_t)number;
    __atomic_store_n(&rk_process->stand_in, number, __ATOMIC_RELEASE);
    return number;
}

/* Publishes this process's stand-in, as a child may call getppid() before its parent has called getpid(). */
void rk_pids_child(void) {
    if (RK_UNLIKELY(rk_plan.clock)) own_stand_in(); /* without --clock nobody is told his parent's */
}

/* Returns whether a process is the launcher: it is outside of the run, but gets a stand-in as the command's parent. */
static bool is_launcher(int pid) { return (!first_parent || pid == first_parent) && !strchr(rk_identity, '/'); }

/* Returns the stand-in of another process; the real id of a process outside of the run. */
static int stand_in_of(int pid) {
    if (pid <= 1) return pid;
    if (pid == rk_process->pid) return own_stand_in();
    int number = look_up((struct pair){.real = pid}).number;
    if (number || !is_launcher(pid)) return number ? number : pid;
    number = derive(rk_check("launcher", 8, 0));
    remember((struct pair){number, pid});
    return number;
}

static int real_parent(void) { return (int)rk_call(SYS_getppid, 0, 0, 0, 0, 0, 0); }

/* Returns the real id for a stand-in, also of a process group (negative); other numbers are unchanged. */
pid_t rk_real_pid(pid_t pid) {
    int64_t number = pid < 0 ? -(int64_t)pid : pid;
    if (RK_LIKELY(!is_stand_in(number)) || !is_enabled()) return pid;
    struct pair pair = {rk_process->stand_in, rk_process->pid};
    if (pair.number != number) pair = look_up((struct pair){.number = (int)number});
    if (!pair.number) return pid;
    return pid < 0 ? -pair.real : pair.real;
}

static pid_t process_id(const void *caller) {
    int pid = rk_getpid();
    if (!is_enabled() || gets_real_pid(caller)) return pid;
    rk_process_check();
    return pid == rk_process->pid ? own_stand_in() : pid; /* a vfork child has no stand-in yet */
}

static pid_t parent_id(const void *caller) {
    int parent = real_parent();
    if (!is_enabled() || !rk_plan.clock || gets_real_pid(caller)) return parent;
    rk_process_check();
    return stand_in_of(parent);
}

/* Translates the first thread's id only: many programs compare it with the process id. */
static pid_t thread_id(const void *caller) {
    int thread = (int)rk_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
    return is_enabled() && rk_plan.clock && thread == rk_getpid() ? process_id(caller) : thread;
}

RK_EXPORT pid_t getpid(void) { return process_id(RK_CALLER()); }
RK_EXPORT pid_t getppid(void) { return parent_id(RK_CALLER()); }
RK_EXPORT pid_t gettid(void) { return thread_id(RK_CALLER()); }

/* ---- calls that take a process id
 * --------------------------------------------------------------------------------------- */

#define TAKES(type, name, parameters, ...) \
    RK_EXPORT type name parameters { return RK_REAL(name)(__VA_ARGS__); }
TAKES(int, sigqueue, (pid_t pid, int number, const union sigval value), rk_real_pid(pid), number, value)
TAKES(pid_t, getpgid, (pid_t pid), rk_real_pid(pid))
TAKES(int, setpgid, (pid_t pid, pid_t group), rk_real_pid(pid), rk_real_pid(group))
TAKES(pid_t, getsid, (pid_t pid), rk_real_pid(pid))
TAKES(int, tcsetpgrp, (int fd, pid_t group), fd, rk_real_pid(group))
TAKES(int, sched_setaffinity, (pid_t pid, size_t size, const cpu_set_t *set), rk_real_pid(pid), size, set)
TAKES(int, sched_getaffinity, (pid_t pid, size_t size, cpu_set_t *set), rk_real_pid(pid), size, set)
TAKES(int, sched_setscheduler, (pid_t pid, int policy, const struct sched_param *to), rk_real_pid(pid), policy, to)
TAKES(int, sched_getscheduler, (pid_t pid), rk_real_pid(pid))
TAKES(int, sched_setparam, (pid_t pid, const struct sched_param *to), rk_real_pid(pid), to)
TAKES(int, sched_getparam, (pid_t pid, struct sched_param *to), rk_real_pid(pid), to)
TAKES(int, sched_rr_get_interval, (pid_t pid, struct timespec *to), rk_real_pid(pid), to)
TAKES(int, clock_getcpuclockid, (pid_t pid, clockid_t *id), rk_real_pid(pid), id)
TAKES(int, setpriority, (__priority_which_t which, id_t who, int to), which, (id_t)rk_real_pid((pid_t)who), to)
TAKES(int, getpriority, (__priority_which_t which, id_t who), which, (id_t)rk_real_pid((pid_t)who))
TAKES(int, prlimit, (pid_t pid, __rlimit_resource_t what, const struct rlimit *to, struct rlimit *from),
      rk_real_pid(pid), what, to, from)
TAKES(int, prlimit64, (pid_t pid, __rlimit_resource_t what, const struct rlimit64 *to, struct rlimit64 *from),
      rk_real_pid(pid), what, to, from)
TAKES(ssize_t, process_vm_readv,
      (pid_t pid, const struct iovec *own, unsigned long owns, const struct iovec *other, unsigned long others,
       unsigned long flags),
      rk_real_pid(pid), own, owns, other, others, flags)
TAKES(ssize_t, process_vm_writev,
      (pid_t pid, const struct iovec *own, unsigned long owns, const struct iovec *other, unsigned long others,
       unsigned long flags),
      rk_real_pid(pid), own, owns, other, others, flags)

/* Records a terminating signal between processes of the run: the end of the target is then no result of its own.
 * target: the id that the program used, negative for a group. */
static int record_signal(int result, pid_t target, int number) {
    bool ends = number == SIGHUP || number == SIGINT || number == SIGQUIT || number == SIGKILL || number == SIGTERM;
    if (result != 0 || !ends || target == 0 || target == -1 || rk_real_pid(target) == rk_getpid() || !rk_active())
        return result;
    char line[48] = "";
    size_t n = rk_append_number(line, sizeof(line), 0, (uint64_t)number);
    n = rk_append(line, sizeof(line), n, target < 0 ? " -" : " ");
    n = rk_append_number(line, sizeof(line), n, target < 0 ? -(uint64_t)target : (uint64_t)target);
    n = rk_append(line, sizeof(line), n, "\n");
    rk_append_line("/signals", line, n);
    return result;
}

/* Returns whether a process is ending or has ended. Launchers of ranks kill all ranks, also one that died. They notice
 * its death by a closed socket, before it can be waited for; the kernel has marked it by then (proc(5): flags). */
static bool is_exiting(pid_t target) {
    enum { FLAGS = 7, EXITING = 0x4 }; /* the field behind the name; PF_EXITING of linux/sched.h */
    char text[512] = "/proc/";
    size_t n = rk_append_number(text, sizeof(text), strlen(text), (uint64_t)rk_real_pid(target < 0 ? -target : target));
    rk_append(text, sizeof(text), n, "/stat");
    int fd = rk_open(text, O_RDONLY, 0);
    if (fd < 0) return false;
    long length = rk_call(SYS_read, fd, (long)text, sizeof(text) - 1, 0, 0, 0);
    rk_close(fd);
    text[length < 0 ? 0 : length] = 0;
    const char *field = strrchr(text, ')');
    for (int number = 0; field != NULL && number < FLAGS; number++) field = strchr(field + 1, ' ');
    return field != NULL && (strtoul(field, NULL, 10) & EXITING) != 0;
}

RK_EXPORT int kill(pid_t pid, int number) {
    bool ended = number != 0 && is_exiting(pid); /* 0 only tests whether the process exists */
    int result = RK_REAL(kill)(rk_real_pid(pid), number);
    return ended ? result : record_signal(result, pid, number);
}
RK_EXPORT int killpg(pid_t group, int number) {
    bool ended = is_exiting(group);
    int result = RK_REAL(killpg)(rk_real_pid(group), number);
    return ended ? result : record_signal(result, -group, number);
}

/* Not in every libc: glibc < 2.30, < 2.36. */
RK_EXPORT int tgkill(pid_t pid, pid_t thread, int number) {
    return (int)RK_REAL(syscall)(SYS_tgkill, rk_real_pid(pid), rk_real_pid(thread), number);
}
RK_EXPORT int pidfd_open(pid_t pid, unsigned flags) {
    return (int)RK_REAL(syscall)(RK_SYS_PIDFD_OPEN, rk_real_pid(pid), flags);
}

/* ---- children that were killed -----------------------------------------------------------------------------------
 *
 * Only its parent learns from the kernel that a process was killed by itself, by the system or from outside. */

static void record_killed(pid_t child, int number) {
    if (!rk_active()) return;
    char line[48] = "";
    size_t n = rk_append_number(line, sizeof(line), 0, (uint64_t)number);
    n = rk_append(line, sizeof(line), n, " ");
    n = rk_append_number(line, sizeof(line), n, (uint64_t)child);
    n = rk_append(line, sizeof(line), n, "\n");
    rk_append_line("/killed", line, n);
}

/* Defines a function that returns a child and its status. A caller that wants no status passes NULL. */
#define WAITS_FOR(name, parameters, ...)                                                     \
    RK_EXPORT pid_t name parameters {                                                        \
        int own_status = 0, *at = status ? status : &own_status;                             \
        pid_t child = RK_REAL(name)(__VA_ARGS__);                                            \
        if (RK_UNLIKELY(child > 0 && WIFSIGNALED(*at))) record_killed(child, WTERMSIG(*at)); \
        return child;                                                                        \
    }
WAITS_FOR(wait, (int *status), at)
WAITS_FOR(wait3, (int *status, int options, struct rusage *usage), at, options, usage)
WAITS_FOR(waitpid, (pid_t pid, int *status, int options), rk_real_pid(pid), at, options)
WAITS_FOR(wait4, (pid_t pid, int *status, int options, struct rusage *usage), rk_real_pid(pid), at, options, usage)

RK_EXPORT int waitid(idtype_t type, id_t id, siginfo_t *info, int options) {
    siginfo_t own_info = {0}, *at = info ? info : &own_info;
    id_t real = type == P_PID || type == P_PGID ? (id_t)rk_real_pid((pid_t)id) : id;
    int result = RK_REAL(waitid)(type, real, at, options);
    if (result == 0 && at->si_signo == SIGCHLD && (at->si_code == CLD_KILLED || at->si_code == CLD_DUMPED))
        record_killed(at->si_pid, at->si_status);
    return result;
}

RK_EXPORT long ptrace(enum __ptrace_request request, ...) {
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *), *data = va_arg(rest, void *);
    va_end(rest);
    return RK_REAL(ptrace)(request, rk_real_pid(pid), address, data);
}

/* Translates the target of a timer for the first thread, as profilers create. */
RK_EXPORT int timer_create(clockid_t id, struct sigevent *event, timer_t *timer) {
    struct sigevent copy;
    if (is_enabled() && event && event->sigev_notify == SIGEV_THREAD_ID) {
        copy = *event;
        copy._sigev_un._tid = rk_real_pid(copy._sigev_un._tid);
        event = &copy;
    }
    __typeof__(timer_create) *real = RK_REAL(timer_create);
    if (RK_UNLIKELY(!real))
        real = rk_librt("timer_create"); /* before glibc 2.34: librt, loaded by an extension module */
    return real(id, event, timer);
}

/* ---- files of /proc -------------------------------------------------------------------------------------------- */

/* Translates each number in the path: /proc/PID, /proc/self/task/TID. The path is readable, as the kernel has returned
 * ENOENT for it. */
bool rk_real_path(const char *path, char text[RK_REAL_PATH]) {
    if (RK_LIKELY(!rk_plan.calendar || errno != ENOENT) || strncmp(path, "/proc/", 6) != 0) return false;
    size_t length = 0, digits;
    bool is_translated = false;
    for (const char *at = path; *at && length + 12 < RK_REAL_PATH; at += digits ? digits : 1) {
        digits = at > path && at[-1] == '/' ? strspn(at, "0123456789") : 0;
        bool is_pid = digits >= 7 && digits <= 9 && (!at[digits] || at[digits] == '/');
        is_translated |= is_pid;
        if (is_pid)
            length = rk_append_number(text, RK_REAL_PATH, length, (uint64_t)rk_real_pid(atoi(at)));
        else
            for (size_t i = 0; i < (digits ? digits : 1) && length + 1 < RK_REAL_PATH; i++) text[length++] = at[i];
    }
    text[length] = 0;
    return is_translated && length + 12 < RK_REAL_PATH;
}

RK_EXPORT DIR *opendir(const char *path) {
    char text[RK_REAL_PATH];
    DIR *directory = RK_REAL(opendir)(path);
    return RK_UNLIKELY(!directory) && rk_real_path(path, text) ? RK_REAL(opendir)(text) : directory;
}
RK_EXPORT ssize_t readlink(const char *restrict path, char *restrict target, size_t size) {
    char text[RK_REAL_PATH];
    ssize_t length = RK_REAL(readlink)(path, target, size);
    return RK_UNLIKELY(length < 0) && rk_real_path(path, text) ? RK_REAL(readlink)(text, target, size) : length;
}
RK_EXPORT int access(const char *path, int mode) {
    char text[RK_REAL_PATH];
    int result = RK_REAL(access)(path, mode);
    return RK_UNLIKELY(result < 0) && rk_real_path(path, text) ? RK_REAL(access)(text, mode) : result;
}

/* ---- who sent a signal -----------------------------------------------------------------------------------------
 *
 * Programs compare the sender with getpid() and getppid(). */

static void translate_sender(siginfo_t *info) {
    int64_t pid = info->si_code <= 0 && info->si_code != SI_TIMER ? info->si_pid : 0;
    if (pid <= 1) return;
    rk_process_check();
    if (pid == rk_process->pid || pid == real_parent()) info->si_pid = stand_in_of((int)pid);
}

static void (*handlers[_NSIG])(int number, siginfo_t *info, void *context); /* the program's own */

static void handle_translated(int number, siginfo_t *info, void *context) {
    translate_sender(info);
    handlers[number](number, info, context);
}

/* Returns the program's own handler if the kernel reports the shim's. */
RK_BEFORE_TSAN void *rk_own_handler(int number, void *handler) {
    return handler == (void *)handle_translated ? (void *)handlers[number] : handler;
}

static bool is_function(const struct sigaction *action) {
    return action->sa_flags & SA_SIGINFO && action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

RK_BEFORE_TSAN int rk_sigaction_named(int number, const struct sigaction *action, struct sigaction *before,
                                      const void *caller) {
    if (RK_LIKELY(!translates_senders) || number <= 0 || number >= _NSIG)
        return RK_REAL(sigaction)(number, action, before);
    struct sigaction own;
    void *last = (void *)handlers[number];
    if (action && is_function(action) && action->sa_sigaction != handle_translated && !gets_real_pid(caller)) {
        own = *action;
        own.sa_sigaction = handle_translated;
        handlers[number] = action->sa_sigaction;
        action = &own;
    }
    int result = RK_REAL(sigaction)(number, action, before);
    if (result == 0 && before && before->sa_sigaction == handle_translated)
        before->sa_sigaction = (void (*)(int, siginfo_t *, void *))last;
    return result;
}

#define WAITS(name, parameters, ...)                                                                         \
    RK_EXPORT int name parameters {                                                                          \
        int number = RK_REAL(name)(__VA_ARGS__);                                                             \
        if (number > 0 && translates_senders && info && !gets_real_pid(RK_CALLER())) translate_sender(info); \
        return number;                                                                                       \
    }
WAITS(sigwaitinfo, (const sigset_t *restrict set, siginfo_t *restrict info), set, info)
WAITS(sigtimedwait, (const sigset_t *restrict set, siginfo_t *restrict info, const struct timespec *restrict timeout),
      set, info, timeout)

/* ---- the same by syscall() ------------------------------------------------------------------------------------- */

bool rk_syscall_pid(long number, const void *caller, long *result) {
    if (number == SYS_getpid) return *result = process_id(caller), true;
    if (number == SYS_getppid) return *result = parent_id(caller), true;
    if (number == SYS_gettid) return *result = thread_id(caller), true;
    return false;
}

/* Finds out once whether the program itself is Python, as dlsym may not be called at any moment. */
void rk_pids_start(void) {
    void *function = rk_plan.clock ? dlsym(RTLD_DEFAULT, "Py_GetVersion") : NULL;
    uint64_t offset;
    program_is_python = function && !*rk_module(function, &offset);
    first_parent = real_parent();
    translates_senders = rk_plan.clock;
}
