/* What a program makes of the time of day and of its process id, chosen by the first argument; prints what it got. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) \
    if (!(condition)) (perror(#condition), exit(99))

static long long nanoseconds(clockid_t id) {
    struct timespec now;
    CHECK(clock_gettime(id, &now) == 0);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* ---- the same in the recording and in its replays ----------------------------------------------------- */

static void with_seed(void) {
    srand((unsigned)time(NULL) ^ (unsigned)getpid());
    printf("%d\n", rand());
}
static void with_clock_gettime(void) {
    for (int i = 0; i < 3; i++) printf("%lld %lld\n", nanoseconds(CLOCK_REALTIME), nanoseconds(CLOCK_REALTIME_COARSE));
}
static void with_gettimeofday(void) {
    struct timeval now;
    struct timezone zone = {.tz_minuteswest = -7777};
    CHECK(gettimeofday(&now, &zone) == 0 && zone.tz_minuteswest != -7777);
    printf("%ld.%06ld\n", (long)now.tv_sec, (long)now.tv_usec);
}
static void with_timespec_get(void) {
    struct timespec now;
    CHECK(timespec_get(&now, TIME_UTC) == TIME_UTC);
    printf("%ld.%09ld\n", (long)now.tv_sec, now.tv_nsec);
}
static void with_time(void) {
    time_t copy, now = time(&copy);
    CHECK(now == copy && now > 1700000000);
    printf("%ld %d\n", (long)now, getpid());
}
static void *read_in_thread(void *result) {
    for (int i = 0; i < 3; i++) ((long long *)result)[i] = nanoseconds(CLOCK_REALTIME);
    return NULL;
}
static void with_threads(void) {
    pthread_t threads[4];
    long long results[4][3];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, read_in_thread, results[i]) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 4; i++) printf("%lld %lld %lld\n", results[i][0], results[i][1], results[i][2]);
}
static void show_process(void) {
    printf("%d %lld\n", getpid(), nanoseconds(CLOCK_REALTIME));
    fflush(stdout);
}
static void with_processes(void) {
    int mine = getpid();
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(getpid() != mine);
            show_process();
            _exit(0);
        }
        CHECK(waitpid(child, NULL, 0) == child);
    }
    CHECK(getpid() == mine);
    show_process();
}
/* The clock's reads have a stream of their own: however many there are, the same entropy follows. */
static void with_more_reads_when_replayed(void) {
    uint8_t bytes[8];
    long long before = nanoseconds(CLOCK_REALTIME), now = before;
    for (int i = getenv("READS") ? atoi(getenv("READS")) : 0; i > 0; i--) {
        now = nanoseconds(CLOCK_REALTIME);
        CHECK(now >= before);
        CHECK(now - before < 3600 * 1000000000ll);
        before = now;
    }
    CHECK(getrandom(bytes, 8, 0) == 8);
    for (int i = 0; i < 8; i++) printf("%02x", bytes[i]);
    puts("");
}
static volatile sig_atomic_t signals;
static void on_signal(int number) { signals += number; }
/* Nobody but this process is hit by its number. */
static void with_signals(void) {
    int parent = getpid();
    sigset_t usr1;
    siginfo_t information;
    signal(SIGUSR1, on_signal);
    CHECK(kill(getpid(), SIGUSR1) == 0 && signals == SIGUSR1);
    CHECK(tgkill(getpid(), gettid(), SIGUSR1) == 0 && signals == 2 * SIGUSR1);
    CHECK(syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1) == 0 && signals == 3 * SIGUSR1);
    CHECK(sigqueue(getpid(), SIGUSR1, (union sigval){0}) == 0 && signals == 4 * SIGUSR1);
    CHECK(raise(SIGUSR1) == 0 && signals == 5 * SIGUSR1);
    CHECK(setpgid(getpid(), getpid()) == 0 && getpgid(getpid()) == getpgrp() && getsid(getpid()) == getsid(0));
    CHECK(kill(-getpid(), SIGUSR1) == 0 && signals == 6 * SIGUSR1);
    CHECK(killpg(getpid(), SIGUSR1) == 0 && signals == 7 * SIGUSR1);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    pid_t child = fork();
    if (child == 0) _exit(kill(parent, SIGUSR1));
    CHECK(sigwaitinfo(&usr1, &information) == SIGUSR1 && information.si_pid == child);
    CHECK(waitpid(child, NULL, 0) == child);
    show_process();
}

/* ---- what programs expect of their process id: true of every run, also a bare one ------------------------ */

static void exited_well(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static volatile pid_t sender;
static void on_sender(int number, siginfo_t *information, void *context) {
    (void)number;
    (void)context;
    sender = information->si_pid;
}
/* As the workers of PyTorch's DataLoader: what their parent sends is known by getppid(). */
static void is_told_by_parent(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK(getppid() == parent && syscall(SYS_getppid) == parent && getpid() != parent && kill(parent, 0) == 0);
    while (!sender) usleep(1000);
    CHECK(sender == getppid());
    CHECK(kill(getpid(), SIGUSR2) == 0 && sender == getpid());
    show_process();
    _exit(0);
}
static void with_family(void) {
    pid_t me = getpid(), child;
    struct sigaction action = {.sa_sigaction = on_sender, .sa_flags = SA_SIGINFO}, before;
    CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR2, NULL, &before) == 0 && before.sa_sigaction == on_sender);
    CHECK(signal(SIGUSR2, SIG_DFL) == (void (*)(int))on_sender && sigaction(SIGUSR2, &before, NULL) == 0);
    if ((child = fork()) == 0) is_told_by_parent(me);
    CHECK(kill(child, SIGUSR2) == 0);
    exited_well(child);
    if ((child = vfork()) == 0) _exit(getppid() != me || getpid() == me);
    exited_well(child);
    if ((child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL)) == 0)
        _exit(getppid() != me || getpid() == me);
    exited_well(child);
    if ((child = fork()) == 0) _exit(getppid() != me || (child = fork()) != 0 ? 0 : getppid() == me);
    exited_well(child);
    printf("%d\n", getppid()); /* of the launcher, or what the test runs */
}
/* A program that was not forked by this one's copy, but started. */
static void with_programs(void) {
    char command[PATH_MAX + 64], itself[PATH_MAX] = "";
    CHECK(readlink("/proc/self/exe", itself, sizeof(itself) - 1) > 0);
    show_process();
    if (vfork() == 0) execl(itself, itself, "child", NULL);
    wait(NULL);
    snprintf(command, sizeof(command), "exec %s child", itself);
    CHECK(system(command) == 0);
    snprintf(command, sizeof(command), "%s child | cat; kill -0 %d", itself, (int)getpid());
    CHECK(system(command) == 0);
}
static void with_child(void) {
    CHECK(kill(getppid(), 0) == 0);
    printf("%d %d\n", getppid(), getpid());
}
static void *other_thread(void *unused) {
    CHECK(gettid() != getpid() && syscall(SYS_gettid) == gettid());
    return unused;
}
/* By the number: every call and file that takes it. */
static void with_lookups(void) {
    pid_t me = getpid();
    char path[64], text[64] = "text", copy[64] = "";
    cpu_set_t set;
    struct sched_param parameter;
    struct rlimit limit;
    struct iovec from = {text, 4}, to = {copy, 4};
    pthread_t thread;
    CHECK(me == gettid() && me == syscall(SYS_getpid) && me == syscall(SYS_gettid));
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(sched_getaffinity(me, sizeof(set), &set) == 0 && sched_setaffinity(me, sizeof(set), &set) == 0);
    CHECK(syscall(SYS_sched_getaffinity, me, sizeof(set), &set) > 0);
    CHECK(sched_getscheduler(me) == SCHED_OTHER && sched_getparam(me, &parameter) == 0);
    CHECK(setpriority(PRIO_PROCESS, (id_t)me, getpriority(PRIO_PROCESS, (id_t)me)) == 0);
    CHECK(prlimit(me, RLIMIT_NOFILE, NULL, &limit) == 0);
    CHECK(process_vm_readv(me, &to, 1, &from, 1, 0) == 4 && strcmp(copy, "text") == 0);
    int fd = (int)syscall(434 /* pidfd_open */, me, 0);
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK(fcntl(0, F_SETOWN, me) == 0);
    for (const char *const *name = (const char *const[]){"exe", "maps", "task", "fd", NULL}; *name; name++) {
        snprintf(path, sizeof(path), "/proc/%d/%s", me, *name);
        CHECK(access(path, R_OK) == 0 && (fd = open(path, O_RDONLY)) >= 0 && close(fd) == 0);
    }
    snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", me, gettid());
    FILE *stream = fopen(path, "r");
    CHECK(stream && fgets(copy, sizeof(copy), stream) && fclose(stream) == 0);
    snprintf(path, sizeof(path), "/proc/self/task/%d", gettid());
    DIR *directory = opendir(path);
    CHECK(directory && closedir(directory) == 0);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1, ._sigev_un = {._tid = gettid()}};
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_delete(timer) == 0);
    CHECK(waitpid(me, NULL, 0) == -1 && errno == ECHILD);
    clockid_t clock;
    CHECK(clock_getcpuclockid(me, &clock) == 0 && nanoseconds(clock) > 0);
    const char *nowhere = (const char *)8; /* some look so whether there is memory */
    CHECK(access(nowhere, 0) == -1 && errno == EFAULT && open(nowhere, O_RDONLY) == -1 && errno == EFAULT);
    CHECK(readlink(nowhere, copy, sizeof(copy)) == -1 && errno == EFAULT);
    show_process();
}

/* ---- another in every run ------------------------------------------------------------------------------ */

static void with_monotonic(void) {
    printf("%lld %lld %lld\n", nanoseconds(CLOCK_MONOTONIC), nanoseconds(CLOCK_BOOTTIME),
           (long long)(nanoseconds(CLOCK_PROCESS_CPUTIME_ID) > 0));
}

/* ---- waiting: each deadline is 50 ms ahead of the time that the program was given ------------------------ */

static struct timespec soon(void) {
    struct timespec until;
    CHECK(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_nsec += 50 * 1000 * 1000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    return until;
}
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static void wait_semaphore(const struct timespec *until) {
    sem_t semaphore;
    CHECK(sem_init(&semaphore, 0, 0) == 0);
    CHECK(sem_timedwait(&semaphore, until) == -1 && errno == ETIMEDOUT);
}
static void wait_condition(const struct timespec *until) {
    pthread_mutex_lock(&mutex);
    CHECK(pthread_cond_timedwait(&condition, &mutex, until) == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);
}
static void wait_c11(const struct timespec *until) {
    mtx_t lock;
    cnd_t event;
    CHECK(mtx_init(&lock, mtx_plain) == thrd_success && cnd_init(&event) == thrd_success);
    mtx_lock(&lock);
    CHECK(cnd_timedwait(&event, &lock, until) == thrd_timedout);
    mtx_unlock(&lock);
}
static void wait_mutex(const struct timespec *until) {
    pthread_mutex_lock(&mutex);
    CHECK(pthread_mutex_timedlock(&mutex, until) == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);
}
static void wait_futex(const struct timespec *until) {
    uint32_t word = 0;
    enum { WAIT_BITSET_REALTIME = 9 | 128 | 256 };
    CHECK(syscall(SYS_futex, &word, WAIT_BITSET_REALTIME, 0, until, NULL, ~0u) == -1 && errno == ETIMEDOUT);
}
static void wait_sleep(const struct timespec *until) {
    CHECK(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, until, NULL) == 0);
}
static const struct {
    const char *name;
    void (*wait)(const struct timespec *until);
} waits[] = {
    {"semaphore", wait_semaphore}, {"condition", wait_condition}, {"c11", wait_c11},
    {"mutex", wait_mutex},         {"futex", wait_futex},         {"sleep", wait_sleep},
};
/* Says of each whether it ended before its time, by the monotonic clock. */
static void with_deadlines(void) {
    for (size_t i = 0; i < sizeof(waits) / sizeof(*waits); i++) {
        long long before = nanoseconds(CLOCK_MONOTONIC);
        struct timespec until = soon();
        waits[i].wait(&until);
        long long passed = nanoseconds(CLOCK_MONOTONIC) - before;
        /* The clocks differ by up to 500 millionths while one is adjusted. */
        printf("%s %s\n", waits[i].name, passed < 49 * 1000 * 1000 + 900 * 1000 ? "too early" : "in time");
    }
    struct timespec monotonic, until = {.tv_sec = 1};
    pthread_condattr_t attributes;
    pthread_cond_t other;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&other, &attributes);
    pthread_mutex_lock(&mutex);
    CHECK(pthread_cond_timedwait(&other, &mutex, &until) == ETIMEDOUT); /* a second after the machine's start */
    CHECK(clock_gettime(CLOCK_MONOTONIC, &monotonic) == 0);
    CHECK(pthread_cond_timedwait(&other, &mutex, &monotonic) == ETIMEDOUT);
}
/* A thread that waits is cancelled, and cleans up. */
static void cleaned(void *what) { puts(what); }
static void *wait_long(void *which) {
    struct timespec until = soon();
    until.tv_sec += 1000;
    pthread_cleanup_push(cleaned, (void *)waits[(intptr_t)which].name);
    waits[(intptr_t)which].wait(&until);
    pthread_cleanup_pop(0);
    return NULL;
}
static void with_cancelled(void) {
    int cancellable[] = {0, 1, 5};
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, wait_long, (void *)(intptr_t)cancellable[i]) == 0);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        condition = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    }
}
/* A loop that waits for a moment ends, whatever was recorded of it. */
static void with_loop(void) {
    long long end = nanoseconds(CLOCK_REALTIME) + 30 * 1000 * 1000;
    while (nanoseconds(CLOCK_REALTIME) < end) continue;
    puts("over");
}

#define PATH(name) {#name, with_##name}
static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    PATH(seed),      PATH(clock_gettime), PATH(gettimeofday), PATH(timespec_get),
    PATH(time),      PATH(threads),       PATH(processes),    PATH(more_reads_when_replayed),
    PATH(signals),   PATH(monotonic),     PATH(deadlines),    PATH(loop),
    PATH(cancelled), PATH(family),        PATH(programs),     PATH(child),
    PATH(lookups),
};

int main(int count, char **arguments) {
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
        if (count > 1 && strcmp(paths[i].name, arguments[1]) == 0) return paths[i].run(), 0;
    return 97;
}
