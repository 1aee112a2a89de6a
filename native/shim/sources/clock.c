/* clock.c - the time of day: what asks for it, and what waits until it.
 *
 * Reads of the real-time clock are recorded, and told again in a replay (calendar.c). The monotonic clock, which
 * timeouts and sleeps use, is unchanged. A deadline that the program computes from a time that it was told is converted
 * to the kernel's clock.
 *
 * A plan may also shift the time: then every time of day is later, and deadlines are earlier, by the same amount.
 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/replay.h"
#include "shim/hooks.h"
#include "shim/notes/uncovered.h"
#include "shim/sources/calendar.h"
#include "shim/sources/clock.h"
#include "shim/sources/place.h"

#define SECOND INT64_C(1000000000)

/* In seconds. Smaller values are monotonic times, counted from the machine's start. */
#define SMALLEST INT64_C(1000000000)

/* ---- readers of the clock that are not recorded ------------------------------------------------------------------ */

#define CALL_SITES 512 /* call sites that are reported at most */
#define PROBES     8   /* entries that are probed for a call site */

static const void *call_sites[CALL_SITES];

/* Reports each call site's module to the launcher once, which knows which modules seed themselves from the clock. */
static void report_reader(const void *caller) {
    for (size_t i = 0; i < PROBES; i++) {
        const void **entry = &call_sites[((uintptr_t)caller / 4 + i) % CALL_SITES], *empty = NULL;
        if (RK_LIKELY(__atomic_load_n(entry, __ATOMIC_RELAXED) == caller)) return;
        if (!__atomic_compare_exchange_n(entry, &empty, caller, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        rk_clock_reader(caller);
        return;
    }
}

static bool is_time_changed(void) { return rk_plan.calendar || rk_plan.later; }

static bool is_on(const void *caller) {
    if (!rk_active()) return false;
    if (RK_LIKELY(is_time_changed())) return true;
    report_reader(caller);
    return false;
}

/* ---- the time of day ----------------------------------------------------------------------------- */

/* Returns whether reads of this thread are not recorded: frameworks have threads that read as often as they like. */
static bool is_foreign(uint32_t place) {
    return RK_UNLIKELY(place & RK_PLACE_FOREIGN) && !rk_plan.clock && strcmp(rk_thread_check()->identity, "m") != 0;
}

static int64_t read_time(clockid_t id, const void *caller) {
    if (RK_UNLIKELY(!rk_plan.calendar)) return rk_calendar_smooth(id);
    uint32_t place = rk_place(caller);
    if (place & RK_PLACE_REAL) return rk_clock_now(id) + rk_plan.later;
    if (!is_foreign(place)) return rk_calendar_read(id, (uint16_t)place);
    report_reader(caller);
    return rk_calendar_smooth(id);
}

static bool is_time_of_day(clockid_t id) { return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE; }

static void set_timespec(struct timespec *at, int64_t time) {
    at->tv_sec = time / SECOND;
    at->tv_nsec = time % SECOND;
}

RK_EXPORT int clock_gettime(clockid_t id, struct timespec *time) {
    if (RK_LIKELY(!is_time_of_day(id)) || !is_on(RK_CALLER())) return RK_REAL(clock_gettime)(id, time);
    set_timespec(time, read_time(id, RK_CALLER()));
    return 0;
}

RK_EXPORT int timespec_get(struct timespec *time, int base) {
    if (base != TIME_UTC || !is_on(RK_CALLER())) return RK_REAL(timespec_get)(time, base);
    set_timespec(time, read_time(CLOCK_REALTIME, RK_CALLER()));
    return base;
}

RK_EXPORT int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    if (!is_on(RK_CALLER())) return RK_REAL(gettimeofday)(time, zone);
    if (zone) RK_REAL(gettimeofday)(time, zone);
    int64_t given = read_time(CLOCK_REALTIME, RK_CALLER());
    time->tv_sec = given / SECOND;
    time->tv_usec = given % SECOND / 1000;
    return 0;
}

RK_EXPORT time_t time(time_t *copy) {
    if (!is_on(RK_CALLER())) return RK_REAL(time)(copy);
    time_t given = read_time(CLOCK_REALTIME_COARSE, RK_CALLER()) / SECOND;
    if (copy) *copy = given;
    return given;
}

/* std::chrono::system_clock::now(). Hooked too, as libstdc++ would hide the caller from the hooks of libc. */
int64_t rk_system_clock(void) __asm__("_ZNSt6chrono3_V212system_clock3nowEv");
RK_EXPORT int64_t rk_system_clock(void) {
    return is_on(RK_CALLER()) ? read_time(CLOCK_REALTIME, RK_CALLER()) : rk_clock_now(CLOCK_REALTIME);
}

/* ---- deadlines by the time of day ---------------------------------------------------------------- */

/* Returns the time of day as the calling thread knows it. */
static int64_t program_time(const void *caller) {
    if (RK_UNLIKELY(!rk_plan.calendar)) return rk_calendar_smooth(CLOCK_REALTIME);
    uint32_t place = rk_place(caller);
    if (place & RK_PLACE_REAL) return rk_clock_now(CLOCK_REALTIME) + rk_plan.later;
    return is_foreign(place) ? rk_calendar_smooth(CLOCK_REALTIME) : rk_calendar_passed();
}

/* Converts a deadline to the kernel's clock. Monotonic deadlines are unchanged: condition variables may use either. */
const struct timespec *rk_deadline(const struct timespec *given, struct timespec *moved, const void *caller) {
    if (!given || !rk_active() || !is_time_changed() || rk_plan.mode != RK_MODE_REPLAY || given->tv_sec < SMALLEST ||
        given->tv_sec > RK_LATEST / SECOND || given->tv_nsec < 0 || given->tv_nsec >= SECOND)
        return given;
    int64_t left = (int64_t)given->tv_sec * SECOND + given->tv_nsec - program_time(caller);
    int64_t until = rk_clock_now(CLOCK_REALTIME) + left;
    set_timespec(moved, until > 0 ? until : 0);
    return moved;
}

#define UNTIL(name, parameters, ...)                                                         \
    RK_EXPORT int name parameters {                                                          \
        struct timespec moved;                                                               \
        const struct timespec *until = rk_deadline(given, &moved, RK_CALLER());              \
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
    const struct timespec *until = flags & TIMER_ABSTIME ? rk_deadline(request, &moved, RK_CALLER()) : request;
    return RK_REAL(clock_nanosleep)(id, flags, until, rest);
}

/* Timers that ring at a time of day. */
#define RINGS(name, timer_type)                                                                                 \
    RK_EXPORT int name(timer_type timer, int flags, const struct itimerspec *when, struct itimerspec *before) { \
        struct itimerspec moved = {{0}, {0}};                                                                   \
        const struct timespec *until =                                                                          \
            when && flags & TIMER_ABSTIME ? rk_deadline(&when->it_value, &moved.it_value, RK_CALLER()) : NULL;  \
        if (until == &moved.it_value) moved.it_interval = when->it_interval, when = &moved;                     \
        __typeof__(name) *real = RK_REAL(name);                                                                 \
        if (RK_UNLIKELY(!real)) real = rk_librt(#name); /* before glibc 2.34 */                                 \
        return real(timer, flags, when, before);                                                                \
    }
RINGS(timerfd_settime, int)
RINGS(timer_settime, timer_t)

/* ---- the same by syscall() ----------------------------------------------------------------------- */

/* Replaces what a system call has told of the time of day. The kernel was asked first, as it checks the address. */
long rk_syscall_time(long number, long a, long b, long result, const void *caller) {
    bool is_clock = number == SYS_clock_gettime && is_time_of_day((clockid_t)a) && b;
    bool is_day = number == SYS_gettimeofday && a;
#ifdef SYS_time
    if (number == SYS_time && !a && is_on(caller)) return (long)(read_time(CLOCK_REALTIME_COARSE, caller) / SECOND);
#endif
    if (result != 0 || (!is_clock && !is_day) || !is_on(caller)) return result;
    int64_t time = read_time(is_clock ? (clockid_t)a : CLOCK_REALTIME, caller);
    if (is_clock) set_timespec((struct timespec *)b, time);
    if (is_day) *(struct timeval *)a = (struct timeval){time / SECOND, time % SECOND / 1000};
    return 0;
}
