/* What programs do with the time of day, chosen by the first argument. POLLS is how often a loop looks. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) \
    if (!(condition)) return fprintf(stderr, "line %d: %s\n", __LINE__, strerror(errno)), exit(1)

static long long nanoseconds(clockid_t id) {
    struct timespec time;
    if (clock_gettime(id, &time) != 0) abort();
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}
/* Inlined, so that each use is a place of its own. */
static inline __attribute__((always_inline)) long long now(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_REALTIME, &time) != 0) abort();
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}
static int polls(void) { return getenv("POLLS") ? atoi(getenv("POLLS")) : 5; }

/* Three places in each of two rounds, one of them in a loop. */
static void with_polls(void) {
    for (int round = 0; round < 2; round++) {
        long long start = now();
        for (int i = polls(); i > 0; i--) {
            CHECK(now() - start < 30 * 1000000000ll);
            usleep(1000);
        }
        long long end = now();
        printf("%lld %lld\n", start, end);
    }
}
/* One place is all that looks: what is recorded of the second loop may come an hour behind the first. */
static int wait_for(int count) {
    long long start = 0, last = 0;
    for (int i = 0; i < count; i++) {
        last = now();
        if (!start) start = last;
        if (last - start > 30 * 1000000000ll) return puts("too late"), 0;
        usleep(1000);
    }
    return puts("in time"), 1;
}
static void with_loops(void) {
    wait_for(polls());
    printf("%lld\n", now());
    wait_for(3);
}
static void with_syscalls(void) {
    struct timespec time;
    struct timeval day;
    CHECK(syscall(SYS_clock_gettime, CLOCK_REALTIME, &time) == 0 && syscall(SYS_gettimeofday, &day, NULL) == 0);
    printf("%ld.%09ld %ld.%06ld\n", time.tv_sec, time.tv_nsec, day.tv_sec, day.tv_usec);
#ifdef SYS_time
    printf("%ld\n", syscall(SYS_time, NULL));
#endif
    CHECK(syscall(SYS_clock_gettime, CLOCK_REALTIME, (struct timespec *)8) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time) == 0 && time.tv_sec < 1000000000);
}
static struct itimerspec soon(void) {
    struct itimerspec when = {{0, 0}, {0, 0}};
    long long time = now() + 60 * 1000000;
    when.it_value.tv_sec = time / 1000000000;
    when.it_value.tv_nsec = time % 1000000000;
    return when;
}
/* Timers that ring 60 ms from now. */
static void with_timers(void) {
    uint64_t times;
    long long before = nanoseconds(CLOCK_MONOTONIC);
    struct itimerspec when = soon();
    int fd = timerfd_create(CLOCK_REALTIME, 0);
    CHECK(fd >= 0 && timerfd_settime(fd, TFD_TIMER_ABSTIME, &when, NULL) == 0);
    CHECK(read(fd, &times, sizeof(times)) == sizeof(times));
    long long between = nanoseconds(CLOCK_MONOTONIC);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    sigset_t signals;
    timer_t timer;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    CHECK(timer_create(CLOCK_REALTIME, &event, &timer) == 0);
    when = soon();
    CHECK(timer_settime(timer, TIMER_ABSTIME, &when, NULL) == 0 && sigwaitinfo(&signals, NULL) == SIGUSR1);
    long long after = nanoseconds(CLOCK_MONOTONIC);
    puts(between - before < 50000000 || after - between < 50000000 ? "too early" : "in time");
}
/* Waits until a file that it has written is older than 200 ms, and looks at one that is much older. */
static void with_ages(void) {
    struct stat status;
    struct timespec old[2] = {{.tv_sec = 1000000000, .tv_nsec = 5}, {.tv_sec = 1000000000, .tv_nsec = 7}};
    CHECK(close(creat("made", 0600)) == 0 && close(creat("old", 0600)) == 0);
    CHECK(utimensat(AT_FDCWD, "old", old, 0) == 0 && stat("old", &status) == 0);
    CHECK(status.st_mtim.tv_sec == 1000000000 && status.st_mtim.tv_nsec == 7);
    for (int i = 0; i < 1000; i++) {
        CHECK(stat("made", &status) == 0);
        long long age = now() - (status.st_mtim.tv_sec * 1000000000ll + status.st_mtim.tv_nsec);
        CHECK(age > -1000000000);
        if (age > 200000000) break;
        usleep(10000);
        CHECK(i < 900);
    }
    long long first = status.st_mtim.tv_sec * 1000000000ll + status.st_mtim.tv_nsec;
    CHECK(lstat("made", &status) == 0);
    CHECK(first == status.st_mtim.tv_sec * 1000000000ll + status.st_mtim.tv_nsec);
    struct statx extended;
    CHECK(statx(AT_FDCWD, "made", 0, STATX_MTIME, &extended) == 0);
    CHECK(first == extended.stx_mtime.tv_sec * 1000000000ll + extended.stx_mtime.tv_nsec);
    puts("old enough");
}
/* Threads that read as often as they like beside the first one. */
static int is_over;
static void *read_on(void *unused) {
    long long last = 0;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        long long time = now();
        if (time < last) return "backwards";
        last = time;
    }
    return unused;
}
static void with_threads(void) {
    pthread_t threads[4];
    void *result;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, read_on, NULL) == 0);
    for (int i = 0; i < polls(); i++) {
        printf("%lld\n", now());
        usleep(2000);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], &result) == 0 && !result);
}
static void with_spin(void) {
    long long first = now(), last = first;
    for (int i = 0; i < 2000000; i++) {
        long long time = now();
        CHECK(time >= last);
        last = time;
    }
    CHECK(last - first < 60 * 1000000000ll);
    puts("over");
}

#define PATH(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {PATH(polls), PATH(loops), PATH(syscalls), PATH(timers), PATH(ages), PATH(threads), PATH(spin)};

int main(int count, char **arguments) {
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
        if (count > 1 && strcmp(paths[i].name, arguments[1]) == 0) return paths[i].run(), 0;
    return 97;
}
