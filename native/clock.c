/* clock.c - record --clock: the time of day and the process id, for native code that seeds itself
 * from them.
 *
 * A read of the real-time clock is recorded in a stream of its own for each thread, and given again
 * in order. Where a replay reads more often than was recorded, time goes on from the last recorded
 * read as fast as the real one does: bytes that are derived would be no time, and a loop that waits
 * for a moment must end. The monotonic clock, by which timeouts and sleeps are counted, is left
 * alone; a deadline that the program makes of a time that it was given is moved to where the kernel's
 * clock stands.
 *
 * getpid gives native code a number that stands in for the real one, in the recording as in its
 * replays. It is larger than any process id can be, so that a signal sent to it reaches nobody else.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include "hooks.h"

#define SECOND INT64_C(1000000000)

/* The monotonic clock counts from the machine's start: what is larger, in seconds, is a time of day.
 * What is beyond the largest is no time but a way to say for ever. */
#define SMALLEST INT64_C(1000000000)
#define LARGEST  INT64_C(9000000000)

static bool is_on(void) { return rk_active() && rk_plan.clock; }

/* ---- the time of day ----------------------------------------------------------------------------- */

/* Of the time that the program was given last: how far it is ahead of the monotonic clock. A forked
 * child, and a thread that has read no recorded time yet, go on from here. */
static int64_t ahead_of_monotonic;

static int64_t real_time(clockid_t id) {
    struct timespec time = {0};
    RK_REAL(clock_gettime)(id, &time);
    return (int64_t)time.tv_sec * SECOND + time.tv_nsec;
}

static ssize_t get_clock(struct rk_real *self, void *buffer, size_t size) {
    int64_t time = real_time((clockid_t)self->argument);
    memcpy(buffer, &time, size);
    *(bool *)self->object = true;
    return (ssize_t)size;
}

/* A process that has read no recorded time yet begins when the recorded one began. */
static int64_t ahead_at_start(void) {
    const struct rk_file *recorded = (const struct rk_file *)rk_process->profile, *file = rk_process->file;
    if (!recorded || !file) return 0;
    int64_t later = (int64_t)(recorded->started_ns - file->started_ns);
    return later + real_time(CLOCK_REALTIME) - real_time(CLOCK_MONOTONIC);
}

/* Replay: 0 where nothing was recorded to go on from, and the time is the real one. */
static int64_t ahead_now(void) {
    if (rk_thread.clock_ahead) return rk_thread.clock_ahead;
    int64_t ahead = __atomic_load_n(&ahead_of_monotonic, __ATOMIC_RELAXED);
    return ahead ? ahead : ahead_at_start();
}

static int64_t go_on(clockid_t id) {
    int64_t ahead = ahead_now();
    if (!ahead) return real_time(id);
    int64_t time = real_time(CLOCK_MONOTONIC) + ahead;
    return time > rk_thread.clock_last ? time : rk_thread.clock_last;
}

static int64_t time_given(clockid_t id, const void *caller) {
    bool is_real = false;
    struct rk_real real = {.get = get_clock, .argument = id, .object = &is_real};
    int64_t time = 0;
    bool found = rk_fill_clock(caller, &time, sizeof(time), &real) == sizeof(time);
    if (is_real) return time;
    if (!found || time < 0 || time > LARGEST * SECOND) return rk_thread.clock_last = go_on(id);
    rk_thread.clock_last = time;
    rk_thread.clock_ahead = time - real_time(CLOCK_MONOTONIC);
    __atomic_store_n(&ahead_of_monotonic, rk_thread.clock_ahead, __ATOMIC_RELAXED);
    return time;
}

static bool is_time_of_day(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

static void put(struct timespec *at, int64_t time) {
    at->tv_sec = time / SECOND;
    at->tv_nsec = time % SECOND;
}

RK_EXPORT int clock_gettime(clockid_t id, struct timespec *time) {
    if (RK_LIKELY(!is_time_of_day(id)) || !is_on()) return RK_REAL(clock_gettime)(id, time);
    put(time, time_given(id, RK_CALLER()));
    return 0;
}

RK_EXPORT int timespec_get(struct timespec *time, int base) {
    if (base != TIME_UTC || !is_on()) return RK_REAL(timespec_get)(time, base);
    put(time, time_given(CLOCK_REALTIME, RK_CALLER()));
    return base;
}

RK_EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    if (!is_on()) return RK_REAL(gettimeofday)(time, zone);
    if (zone) RK_REAL(gettimeofday)(time, zone);
    int64_t given = time_given(CLOCK_REALTIME, RK_CALLER());
    time->tv_sec = given / SECOND;
    time->tv_usec = given % SECOND / 1000;
    return 0;
}

RK_EXPORT time_t time(time_t *copy) {
    if (!is_on()) return RK_REAL(time)(copy);
    time_t given = time_given(CLOCK_REALTIME_COARSE, RK_CALLER()) / SECOND;
    if (copy) *copy = given;
    return given;
}

/* ---- deadlines by the time of day ---------------------------------------------------------------- */

/* Where the kernel's clock will be then. A condition variable may be made for either clock. */
static const struct timespec *deadline(const struct timespec *given, struct timespec *moved) {
    if (!given || !is_on() || rk_plan.mode != RK_MODE_REPLAY || given->tv_sec < SMALLEST || given->tv_sec > LARGEST ||
        given->tv_nsec < 0 || given->tv_nsec >= SECOND)
        return given;
    int64_t ahead = ahead_now();
    if (!ahead) return given;
    int64_t left = (int64_t)given->tv_sec * SECOND + given->tv_nsec - (real_time(CLOCK_MONOTONIC) + ahead);
    int64_t until = real_time(CLOCK_REALTIME) + left;
    put(moved, until > 0 ? until : 0);
    return moved;
}

#define UNTIL(name, parameters, ...)                                                         \
    RK_EXPORT int name parameters {                                                          \
        struct timespec moved;                                                               \
        const struct timespec *until = deadline(given, &moved);                              \
        return RK_REAL(name) ? rk_real_##name(__VA_ARGS__) : ENOSYS; /* not in every libc */ \
    }
UNTIL(sem_timedwait, (sem_t *restrict semaphore, const struct timespec *restrict given), semaphore, until)
UNTIL(sem_clockwait, (sem_t *restrict semaphore, clockid_t id, const struct timespec *restrict given), semaphore, id,
      until)
UNTIL(pthread_cond_timedwait,
      (pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict given),
      condition, mutex, until)
UNTIL(pthread_cond_clockwait,
      (pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t id,
       const struct timespec *restrict given),
      condition, mutex, id, until)
UNTIL(pthread_mutex_timedlock, (pthread_mutex_t *restrict mutex, const struct timespec *restrict given), mutex, until)
UNTIL(pthread_mutex_clocklock, (pthread_mutex_t *restrict mutex, clockid_t id, const struct timespec *restrict given),
      mutex, id, until)
UNTIL(pthread_rwlock_timedrdlock, (pthread_rwlock_t *restrict lock, const struct timespec *restrict given), lock, until)
UNTIL(pthread_rwlock_timedwrlock, (pthread_rwlock_t *restrict lock, const struct timespec *restrict given), lock, until)
UNTIL(pthread_rwlock_clockrdlock,
      (pthread_rwlock_t *restrict lock, clockid_t id, const struct timespec *restrict given), lock, id, until)
UNTIL(pthread_rwlock_clockwrlock,
      (pthread_rwlock_t *restrict lock, clockid_t id, const struct timespec *restrict given), lock, id, until)
UNTIL(pthread_timedjoin_np, (pthread_t thread, void **result, const struct timespec *given), thread, result, until)
UNTIL(pthread_clockjoin_np, (pthread_t thread, void **result, clockid_t id, const struct timespec *given), thread,
      result, id, until)
UNTIL(cnd_timedwait, (cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict given),
      condition, mutex, until)
UNTIL(mtx_timedlock, (mtx_t *restrict mutex, const struct timespec *restrict given), mutex, until)

RK_EXPORT int clock_nanosleep(clockid_t id, int flags, const struct timespec *request, struct timespec *rest) {
    struct timespec moved;
    const struct timespec *until = flags & TIMER_ABSTIME ? deadline(request, &moved) : request;
    return RK_REAL(clock_nanosleep)(id, flags, until, rest);
}

/* ---- the process id ------------------------------------------------------------------------------ */

#define LARGEST_PID (1 << 22) /* that any kernel can give */
#define STAND_INS   (9999999 - LARGEST_PID)

static bool program_is_python;

/* Python signals itself and its children, and looks into /proc, by os.getpid; what a script seeds
 * from it is in the ledger of seeds. Cryptographic libraries are left alone. */
static bool gets_the_real_one(const void *caller) {
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    if (!*module) return program_is_python;
    const char *slash = strrchr(module, '/'), *name = slash ? slash + 1 : module;
    return strncmp(name, "libpython", 9) == 0 || strncmp(name, "libpypy", 7) == 0 || rk_is_crypto(module);
}

/* Made from the names that are the same in every run, and from this run's key: seven digits. A
 * program that takes another's place keeps the number. */
static int make_stand_in(void) {
    rk_file_ready();
    size_t length = strlen(rk_identity);
    while (length > 0 && rk_identity[length - 1] == '+') length--;
    uint64_t block[8];
    uint64_t nonce = rk_check(rk_identity, length, rk_process->incarnation);
    rk_chacha20(rk_plan.key, nonce, UINT64_MAX, (uint8_t *)block);
    return LARGEST_PID + 1 + (int)(block[0] % STAND_INS);
}

/* The numbers of this process and of those that forked it, which may signal each other by them. */
static struct {
    int stand_in, real;
} family[16];
static uint32_t members;

static int stand_in(void) {
    int number = make_stand_in();
    uint32_t i = __atomic_fetch_add(&members, 1, __ATOMIC_RELAXED) % RK_LENGTH(family);
    family[i].real = rk_process->pid;
    __atomic_store_n(&family[i].stand_in, number, __ATOMIC_RELEASE);
    return number;
}

RK_EXPORT pid_t getpid(void) {
    int pid = rk_getpid();
    if (!is_on() || gets_the_real_one(RK_CALLER())) return pid;
    rk_process_check();
    if (pid != rk_process->pid) return pid; /* of a vfork child, which is nobody of its own yet */
    if (!rk_process->stand_in) rk_process->stand_in = stand_in();
    return rk_process->stand_in;
}

/* The real one behind a number that stands in for it, also of a process group. */
static pid_t real_pid(pid_t pid) {
    if (RK_LIKELY(pid <= LARGEST_PID && pid >= -LARGEST_PID)) return pid;
    for (size_t i = 0; i < RK_LENGTH(family); i++) {
        int number = __atomic_load_n(&family[i].stand_in, __ATOMIC_ACQUIRE);
        if (number == pid) return family[i].real;
        if (number == -pid) return -family[i].real;
    }
    return pid;
}

RK_EXPORT int kill(pid_t pid, int number) { return RK_REAL(kill)(real_pid(pid), number); }
RK_EXPORT int killpg(pid_t group, int number) { return RK_REAL(killpg)(real_pid(group), number); }
RK_EXPORT int tgkill(pid_t pid, pid_t thread, int number) {
    return (int)RK_REAL(syscall)(SYS_tgkill, real_pid(pid), thread, number); /* glibc < 2.30 has no tgkill */
}
RK_EXPORT int sigqueue(pid_t pid, int number, const union sigval value) {
    return RK_REAL(sigqueue)(real_pid(pid), number, value);
}
RK_EXPORT pid_t getpgid(pid_t pid) { return RK_REAL(getpgid)(real_pid(pid)); }
RK_EXPORT int setpgid(pid_t pid, pid_t group) { return RK_REAL(setpgid)(real_pid(pid), real_pid(group)); }
RK_EXPORT pid_t getsid(pid_t pid) { return RK_REAL(getsid)(real_pid(pid)); }

/* ---- the same by syscall() ----------------------------------------------------------------------- */

/* Whether the fourth argument is a deadline by the time of day. */
static bool waits_until(long operation) {
    long command = operation & FUTEX_CMD_MASK;
    if (command == FUTEX_LOCK_PI) return true;
    return operation & FUTEX_CLOCK_REALTIME && (command == FUTEX_WAIT_BITSET || command == FUTEX_WAIT_REQUEUE_PI);
}

/* std::future and abseil wait by syscall(SYS_futex, ...); abseil signals a thread by
 * syscall(SYS_tgkill, ...). */
__attribute__((visibility("hidden"))) long rk_syscall_clock(long number, long a, long b, long c, long d, long e,
                                                            long f) {
    struct timespec moved;
    if (number == SYS_tgkill) a = real_pid((pid_t)a);
    if (number == SYS_futex && waits_until(b)) d = (long)deadline((const struct timespec *)d, &moved);
    return RK_REAL(syscall)(number, a, b, c, d, e, f);
}

/* Whether the program itself is Python: asked once, as dlsym is not for every moment. */
void rk_clock_ready(void) {
    void *function = rk_plan.clock ? dlsym(RTLD_DEFAULT, "Py_GetVersion") : NULL;
    uint64_t offset;
    program_is_python = function && !*rk_module(function, &offset);
}
