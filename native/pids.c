/* pids.c - record --clock: a number that stands in for the process id, for native code that seeds itself from it.
 *
 * It is made from the run's key and the names that are the same in every run, and larger than any process id can
 * be: what is not translated below reaches nobody, and no translated number can be meant otherwise. By it a
 * process knows itself, the thread that it began with, and its parent. Its children it knows by the numbers that
 * fork gave it. REPROKIT_RUN/entropy/process-ids says which number is whose, for all processes of the run.
 *
 * Python signals itself and its children, and looks into /proc, by os.getpid: it gets the real one, and so do
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

#include "hooks.h"

#define LARGEST_PID    (1 << 22)   /* that any kernel can give */
#define LARGEST_NUMBER 999999999   /* below 2^30, which a futex can hold */
#define MOST           (16u << 20) /* bytes of process-ids */

static bool program_is_python;
static int first_parent;
static bool names_senders; /* since the constructor: a sanitizer installs its handlers before it has started */

static bool is_on(void) { return rk_active() && rk_plan.clock; }

static bool gets_the_real_one(const void *caller) {
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    if (!*module) return program_is_python;
    const char *slash = strrchr(module, '/'), *name = slash ? slash + 1 : module;
    return strncmp(name, "libpython", 9) == 0 || strncmp(name, "libpypy", 7) == 0 || rk_is_crypto(module);
}

/* ---- whose number is which ------------------------------------------------------------------------------------- */

struct pair {
    _Alignas(8) int number; /* both are read and written at once */
    int real;
};

/* Those that this process met last, and that it has from who forked it: a chroot hides the file. */
static struct pair known[16];
static uint32_t met;

static void keep(struct pair pair) {
    __atomic_store(&known[__atomic_fetch_add(&met, 1, __ATOMIC_RELAXED) % RK_LENGTH(known)], &pair, __ATOMIC_RELEASE);
}

static int open_list(int flags) {
    char path[RK_RUN_PATH + 32];
    size_t length = rk_append(path, sizeof(path), 0, rk_run);
    rk_append(path, sizeof(path), length, "/entropy/process-ids");
    return rk_open(path, flags | O_NOFOLLOW, 0600);
}

static void publish(struct pair pair) {
    keep(pair);
    int fd = open_list(O_WRONLY | O_APPEND | O_CREAT);
    if (fd < 0) return;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    if (end >= 0 && end < MOST && rk_within_limit((uint64_t)end + sizeof(pair)))
        rk_call(SYS_write, fd, (long)&pair, sizeof(pair), 0, 0, 0);
    rk_close(fd);
}

static bool is_asked_for(struct pair pair, struct pair asked) {
    return asked.number ? pair.number == asked.number : pair.number && pair.real == asked.real;
}

/* The last one in the file: process ids are given again, numbers that exec keeps are written again. */
static struct pair look_up_in_list(struct pair asked) {
    struct pair pairs[64], found = {0};
    int fd = open_list(O_RDONLY);
    if (fd < 0) return found;
    long end = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0) / (long)sizeof(pairs[0]) * (long)sizeof(pairs[0]);
    while (end > 0 && !found.number) {
        long size = end < (long)sizeof(pairs) ? end : (long)sizeof(pairs);
        end -= size;
        if (rk_call(SYS_pread64, fd, (long)pairs, size, end, 0, 0) != size) break;
        for (long i = size / (long)sizeof(pairs[0]) - 1; i >= 0 && !found.number; i--)
            if (is_asked_for(pairs[i], asked)) found = pairs[i];
    }
    rk_close(fd);
    if (found.number) keep(found);
    return found;
}

static struct pair look_up(struct pair asked) {
    for (size_t i = 0; i < RK_LENGTH(known); i++) {
        struct pair pair;
        __atomic_load(&known[i], &pair, __ATOMIC_ACQUIRE);
        if (is_asked_for(pair, asked)) return pair;
    }
    return look_up_in_list(asked);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static bool is_number(int64_t number) { return number > LARGEST_PID && number <= LARGEST_NUMBER; }

static int derive(uint64_t nonce) {
    uint64_t block[8];
    rk_chacha20(rk_plan.key, nonce, UINT64_MAX, (uint8_t *)block);
    return LARGEST_PID + 1 + (int)(block[0] % (LARGEST_NUMBER - LARGEST_PID));
}

/* A program that takes another's place (by exec: a '+' behind its name) keeps the number. */
static int make_number(void) {
    size_t length = strlen(rk_identity);
    while (length > 0 && rk_identity[length - 1] == '+') length--;
    return derive(rk_check(rk_identity, length, rk_process->incarnation));
}

/* Of this process, as recorded. A vfork child asks for its parent's. */
static int own_number(void) {
    int number = __atomic_load_n(&rk_process->stand_in, __ATOMIC_ACQUIRE);
    if (RK_LIKELY(number)) return number;
    rk_file_ready();
    struct rk_file *file = rk_process->file;
    const struct rk_file *recorded = (const struct rk_file *)rk_process->profile;
    number = recorded && is_number((int64_t)recorded->stand_in) ? (int)recorded->stand_in : make_number();
    publish((struct pair){number, rk_process->pid});
    if (file) file->stand_in = (uint64_t)number;
    __atomic_store_n(&rk_process->stand_in, number, __ATOMIC_RELEASE);
    return number;
}

/* A child may ask who its parent is before that has asked for itself. */
void rk_pids_child(void) {
    if (RK_UNLIKELY(rk_plan.clock)) own_number();
}

/* The launcher is no process of the run, and yet the same for the command in every run. */
static bool is_launcher(int pid) { return (!first_parent || pid == first_parent) && !strchr(rk_identity, '/'); }

/* What this process calls another one: a parent that is no process of the run keeps its number. */
static int number_of(int pid) {
    if (pid <= 1) return pid;
    if (pid == rk_process->pid) return own_number();
    int number = look_up((struct pair){.real = pid}).number;
    if (number || !is_launcher(pid)) return number ? number : pid;
    number = derive(rk_check("launcher", 8, 0));
    keep((struct pair){number, pid});
    return number;
}

static int real_parent(void) { return (int)rk_call(SYS_getppid, 0, 0, 0, 0, 0, 0); }

/* The real one behind a number, also of a process group; what is no number stays what it is. */
pid_t rk_real_pid(pid_t pid) {
    int64_t number = pid < 0 ? -(int64_t)pid : pid;
    if (RK_LIKELY(!is_number(number)) || !is_on()) return pid;
    struct pair found = {rk_process->stand_in, rk_process->pid};
    if (found.number != number) found = look_up((struct pair){.number = (int)number});
    if (!found.number) return pid;
    return pid < 0 ? -found.real : found.real;
}

static pid_t process_id(const void *caller) {
    int pid = rk_getpid();
    if (!is_on() || gets_the_real_one(caller)) return pid;
    rk_process_check();
    return pid == rk_process->pid ? own_number() : pid; /* a vfork child is nobody of its own yet */
}

static pid_t parent_id(const void *caller) {
    int parent = real_parent();
    if (!is_on() || gets_the_real_one(caller)) return parent;
    rk_process_check();
    return number_of(parent);
}

/* Many take a thread whose id is the process's for the first one. The ids of others are real. */
static pid_t thread_id(const void *caller) {
    int thread = (int)rk_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
    return is_on() && thread == rk_getpid() ? process_id(caller) : thread;
}

RK_EXPORT pid_t getpid(void) { return process_id(RK_CALLER()); }
RK_EXPORT pid_t getppid(void) { return parent_id(RK_CALLER()); }
RK_EXPORT pid_t gettid(void) { return thread_id(RK_CALLER()); }

/* ---- calls that take one --------------------------------------------------------------------------------------- */

#define TAKES(type, name, parameters, ...) \
    RK_EXPORT type name parameters { return RK_REAL(name)(__VA_ARGS__); }
TAKES(int, sigqueue, (pid_t pid, int number, const union sigval value), rk_real_pid(pid), number, value)
TAKES(pid_t, getpgid, (pid_t pid), rk_real_pid(pid))
TAKES(int, setpgid, (pid_t pid, pid_t group), rk_real_pid(pid), rk_real_pid(group))
TAKES(pid_t, getsid, (pid_t pid), rk_real_pid(pid))
TAKES(int, tcsetpgrp, (int fd, pid_t group), fd, rk_real_pid(group))
TAKES(pid_t, waitpid, (pid_t pid, int *status, int options), rk_real_pid(pid), status, options)
TAKES(pid_t, wait4, (pid_t pid, int *status, int options, struct rusage *usage), rk_real_pid(pid), status, options,
      usage)
TAKES(int, waitid, (idtype_t type, id_t id, siginfo_t *info, int options), type,
      type == P_PID || type == P_PGID ? (id_t)rk_real_pid((pid_t)id) : id, info, options)
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

/* Signals that end a process, of one process of the run to another: how that one ends is no outcome of its own then.
 * target: as the program names it, a group by its negative number. */
static int signaled(int result, pid_t target, int number) {
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

/* Whether a process is ending, or has ended: launchers of ranks kill all, also the one that died. They learn of its
 * death by a socket that it closes, before it is a child to wait for; the kernel has marked it by then (proc(5):
 * flags). */
static bool ends_by_itself(pid_t target) {
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
    bool ended = number != 0 && ends_by_itself(pid); /* 0 only asks whether it is there, as polls do */
    int result = RK_REAL(kill)(rk_real_pid(pid), number);
    return ended ? result : signaled(result, pid, number);
}
RK_EXPORT int killpg(pid_t group, int number) {
    bool ended = ends_by_itself(group);
    int result = RK_REAL(killpg)(rk_real_pid(group), number);
    return ended ? result : signaled(result, -group, number);
}

/* Not in every libc: glibc < 2.30, < 2.36. */
RK_EXPORT int tgkill(pid_t pid, pid_t thread, int number) {
    return (int)RK_REAL(syscall)(SYS_tgkill, rk_real_pid(pid), rk_real_pid(thread), number);
}
RK_EXPORT int pidfd_open(pid_t pid, unsigned flags) {
    return (int)RK_REAL(syscall)(RK_SYS_PIDFD_OPEN, rk_real_pid(pid), flags);
}

RK_EXPORT long ptrace(enum __ptrace_request request, ...) {
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *), *data = va_arg(rest, void *);
    va_end(rest);
    return RK_REAL(ptrace)(request, rk_real_pid(pid), address, data);
}

/* For the first thread: profilers count its time. */
RK_EXPORT int timer_create(clockid_t id, struct sigevent *event, timer_t *timer) {
    struct sigevent copy;
    if (is_on() && event && event->sigev_notify == SIGEV_THREAD_ID) {
        copy = *event;
        copy._sigev_un._tid = rk_real_pid(copy._sigev_un._tid);
        event = &copy;
    }
    __typeof__(timer_create) *real = RK_REAL(timer_create);
    if (RK_UNLIKELY(!real)) real = rk_librt("timer_create"); /* before glibc 2.34: of an extension module alone */
    return real(id, event, timer);
}

/* ---- files of /proc -------------------------------------------------------------------------------------------- */

/* Each part of the path that is a number: /proc/PID, /proc/self/task/TID. The kernel has read the path, or it
 * would not say that nothing is there. */
bool rk_real_path(const char *path, char text[RK_REAL_PATH]) {
    if (RK_LIKELY(!rk_plan.clock) || errno != ENOENT || strncmp(path, "/proc/", 6) != 0) return false;
    size_t length = 0, digits;
    bool found = false;
    for (const char *at = path; *at && length + 12 < RK_REAL_PATH; at += digits ? digits : 1) {
        digits = at > path && at[-1] == '/' ? strspn(at, "0123456789") : 0;
        bool whole = digits >= 7 && digits <= 9 && (!at[digits] || at[digits] == '/');
        found |= whole;
        if (whole)
            length = rk_append_number(text, RK_REAL_PATH, length, (uint64_t)rk_real_pid(atoi(at)));
        else
            for (size_t i = 0; i < (digits ? digits : 1) && length + 1 < RK_REAL_PATH; i++) text[length++] = at[i];
    }
    text[length] = 0;
    return found && length + 12 < RK_REAL_PATH;
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
 * Programs compare it with getpid() and getppid(). */

static void name_sender(siginfo_t *info) {
    int64_t pid = info->si_code <= 0 && info->si_code != SI_TIMER ? info->si_pid : 0;
    if (pid <= 1) return;
    rk_process_check();
    if (pid == rk_process->pid || pid == real_parent()) info->si_pid = number_of((int)pid);
}

static void (*handlers[_NSIG])(int number, siginfo_t *info, void *context); /* the program's own */

static void named(int number, siginfo_t *info, void *context) {
    name_sender(info);
    handlers[number](number, info, context);
}

/* What the program installed, where the kernel says what was installed for it. */
RK_BEFORE_TSAN void *rk_own_handler(int number, void *handler) {
    return handler == (void *)named ? (void *)handlers[number] : handler;
}

static bool is_function(const struct sigaction *action) {
    return action->sa_flags & SA_SIGINFO && action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

RK_BEFORE_TSAN int rk_sigaction_named(int number, const struct sigaction *action, struct sigaction *before,
                                      const void *caller) {
    if (RK_LIKELY(!names_senders) || number <= 0 || number >= _NSIG) return RK_REAL(sigaction)(number, action, before);
    struct sigaction own;
    void *last = (void *)handlers[number];
    if (action && is_function(action) && action->sa_sigaction != named && !gets_the_real_one(caller)) {
        own = *action;
        own.sa_sigaction = named;
        handlers[number] = action->sa_sigaction;
        action = &own;
    }
    int result = RK_REAL(sigaction)(number, action, before);
    if (result == 0 && before && before->sa_sigaction == named)
        before->sa_sigaction = (void (*)(int, siginfo_t *, void *))last;
    return result;
}

#define WAITS(name, parameters, ...)                                                                   \
    RK_EXPORT int name parameters {                                                                    \
        int number = RK_REAL(name)(__VA_ARGS__);                                                       \
        if (number > 0 && names_senders && info && !gets_the_real_one(RK_CALLER())) name_sender(info); \
        return number;                                                                                 \
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

/* Whether the program itself is Python: asked once, as dlsym is not for every moment. */
void rk_pids_start(void) {
    void *function = rk_plan.clock ? dlsym(RTLD_DEFAULT, "Py_GetVersion") : NULL;
    uint64_t offset;
    program_is_python = function && !*rk_module(function, &offset);
    first_parent = real_parent();
    names_senders = rk_plan.clock;
}
