/* supervisor.c - answers the requests for entropy that the shim cannot see.
 *
 * A static program, one that runs without the shim or that makes its system calls itself asks the
 * kernel; a seccomp filter (filter.c) makes the kernel ask this thread of the launcher. Its answers are
 * recorded and replayed by the shim's own code (context.c), under names that repeat (processes.c).
 * Whoever it cannot help is told to go on: the kernel then does what it would have done. When this
 * process dies or is stopped, another one tells them so (standby.c).
 *
 * It runs beside the launcher's Python, whose locks it never needs: one thread waits for requests, where
 * the kernel wakes it with the least to do, another one for everything else. What they share has one lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "supervisor.h"

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS      SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

#define WAKE       SIGURG /* to the thread that receives; of no meaning where it comes from elsewhere */
#define MANY_IDS   32768  /* of processes: so many are not given out between two ticks of the clock */
#define NANOSECOND UINT64_C(1000000000)

int rk_listener = -1;
int rk_events = -1;

static struct shared *shared;
static pthread_t receiver, watcher;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_waited_for; /* the lock, by the receiver: a program waits with it */
static bool runs, forbids_rights, ended;
static bool ids_return; /* soon: a clock's tick says nothing of them */
static int stop_event = -1, alive = -1;
static char notice[1024];
static struct watch ending;
static struct sigaction before_wake;

/* ---- one request ---------------------------------------------------------------------------------------- */

/* The last tick of a clock that costs next to nothing to read. */
static uint64_t now(void) {
    static uint64_t count;
    struct timespec time;
    if (ids_return || clock_gettime(CLOCK_MONOTONIC_COARSE, &time) != 0) return ++count;
    return (uint64_t)time.tv_sec * NANOSECOND + (uint64_t)time.tv_nsec;
}

static uint64_t times_let_go(void) { return __atomic_load_n(&shared->let_go, __ATOMIC_ACQUIRE); }

/* seccomp_unotify(2) */
bool rk_is_waiting(const struct request *request) {
    return ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &request->id) == 0;
}

/* It does without being looked at where only its end or the standby can have let it go, and this thread
 * received its request within the same tick. */
bool rk_is_pending(const struct request *request) {
    bool is_certain = rk_is_uninterrupted && !request->in_doubt && request->let_go == times_let_go();
    return (is_certain && request->tick == now()) || rk_is_waiting(request);
}

/* Among what the standby let go on there may have been an exec. */
static void look_at_standby(void) {
    static uint64_t last;
    uint64_t times = times_let_go();
    if (RK_UNLIKELY(times != last)) rk_may_have_executed();
    last = times;
}

/* An openat without a path. */
static bool is_brokered(const struct request *request) {
    return RK_UNLIKELY(request->arguments[5] == RK_BROKER) && request->number == SYS_openat && !request->arguments[1];
}

static struct answer answer_to(struct request *request) {
    look_at_standby();
    if (request->number == SYS_execve || request->number == SYS_execveat) {
        rk_executes(request->thread);
        if (forbids_rights) rk_look_at_exec(request);
        return (struct answer){.go_on = true};
    }
    struct thread *thread = request->thread > 0 ? rk_find_thread(request) : NULL;
    if (is_brokered(request)) return rk_broker(thread, request);
    if (!thread && request->number == SYS_getrandom && rk_is_waiting(request)) rk_note_fresh();
    if (!thread) return (struct answer){.go_on = true};
    return request->number == SYS_getrandom ? rk_answer_getrandom(thread, request) : rk_answer_open(thread, request);
}

static void send_answer(uint64_t id, struct answer answer) {
    if (answer.sent) return;
    struct seccomp_notif_resp response = {.id = id, .val = answer.value, .error = answer.error};
    if (answer.go_on) response = (struct seccomp_notif_resp){.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    while (ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_SEND, &response) != 0 && errno == EINTR) continue;
}

static void answer(struct request *request) {
    __atomic_store_n(&shared->received, request->id, __ATOMIC_RELEASE);
    __atomic_store_n(&is_waited_for, true, __ATOMIC_RELEASE);
    pthread_mutex_lock(&lock);
    __atomic_store_n(&is_waited_for, false, __ATOMIC_RELEASE);
    if (ended && request->number == SYS_getrandom) rk_note_fresh();
    send_answer(request->id, ended ? (struct answer){.go_on = true} : answer_to(request));
    pthread_mutex_unlock(&lock);
    __atomic_store_n(&shared->answered, request->id, __ATOMIC_RELEASE);
}

static bool has_programs(void) {
    struct pollfd listener = {.fd = rk_listener};
    return poll(&listener, 1, 0) >= 0 && !listener.revents; /* of its own accord poll tells of a hang-up only */
}

/* Waits for a request, whose program may be gone by then: so this thread does nothing else. */
static bool receive(void) {
    union {
        struct seccomp_notif one;
        char room[512];
    } notification;
    uint64_t let_go = times_let_go();
    memset(&notification, 0, sizeof(notification));
    if (ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_RECV, &notification.one) != 0)
        return errno == EINTR || (errno == ENOENT && has_programs());
    const struct seccomp_notif *one = &notification.one;
    struct request request = {.id = one->id,
                              .tick = now(),
                              .let_go = let_go,
                              .thread = (int)one->pid,
                              .number = one->data.nr,
                              .caller = one->data.instruction_pointer,
                              .arguments = (const uint64_t *)one->data.args};
    answer(&request);
    return true;
}

/* ---- the threads --------------------------------------------------------------------------------------------- */

void rk_watch(int fd, struct watch *watch, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = watch};
    epoll_ctl(rk_events, EPOLL_CTL_ADD, fd, &event);
}

/* Taken out by name: a child that the launcher is starting may hold a duplicate just now. */
void rk_close_watched(int fd) {
    epoll_ctl(rk_events, EPOLL_CTL_DEL, fd, NULL);
    rk_close(fd);
}

static bool has_ended(void) { return __atomic_load_n(&ended, __ATOMIC_ACQUIRE); }

static void *receive_all(void *unused) {
    while (!has_ended() && receive()) continue;
    return unused;
}

static void end(struct watch *watch, uint32_t events) {
    (void)watch, (void)events;
    __atomic_store_n(&ended, true, __ATOMIC_RELEASE);
}

/* One event at a time: what it belongs to may be gone after the one before, or after a request. */
static void take_event(void) {
    struct epoll_event event;
    while (__atomic_load_n(&is_waited_for, __ATOMIC_ACQUIRE)) sched_yield();
    pthread_mutex_lock(&lock);
    if (epoll_wait(rk_events, &event, 1, 0) == 1) ((struct watch *)event.data.ptr)->ready(event.data.ptr, event.events);
    pthread_mutex_unlock(&lock);
}

static void *watch_all(void *unused) {
    struct pollfd events = {.fd = rk_events, .events = POLLIN};
    while (!has_ended())
        if (poll(&events, 1, -1) > 0) take_event();
    return unused;
}

void rk_notice(const char *text) {
    if (*notice) return;
    rk_append(notice, sizeof(notice), 0, text);
    rk_say(text);
}

/* ---- for the launcher ------------------------------------------------------------------------------------------ */

static void wake(int number) { (void)number; }

/* With every signal blocked but this one, where one is given. */
static int start_thread(pthread_t *thread, void *(*run)(void *), int allowed) {
    sigset_t all, before;
    sigfillset(&all);
    if (allowed) sigdelset(&all, allowed);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* which the thread inherits */
    int error = pthread_create(thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

static void stop_watching(void) {
    static const uint64_t one = 1;
    if (write(stop_event, &one, sizeof(one)) == sizeof(one)) pthread_join(watcher, NULL);
}

/* The signal may come just before the thread begins to wait. */
static void stop_receiving(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    do pthread_kill(receiver, WAKE);
    while (pthread_tryjoin_np(receiver, NULL) != 0 && nanosleep(&moment, NULL) <= 0);
    sigaction(WAKE, &before_wake, NULL);
}

static int start_threads(void) {
    const struct sigaction action = {.sa_handler = wake};
    int error = start_thread(&watcher, watch_all, 0);
    if (error) return error;
    sigaction(WAKE, &action, &before_wake);
    error = start_thread(&receiver, receive_all, WAKE);
    if (!error) return 0;
    sigaction(WAKE, &before_wake, NULL);
    stop_watching();
    return error;
}

static int start_loop(void) {
    ended = false;
    *notice = 0;
    ending.ready = end;
    rk_events = epoll_create1(EPOLL_CLOEXEC);
    stop_event = eventfd(0, EFD_CLOEXEC);
    if (rk_events < 0 || stop_event < 0) return -errno;
    rk_watch(stop_event, &ending, EPOLLIN);
    return start_threads();
}

/* Few in a container, perhaps: then a process may have the id of one that ended just now. */
static bool do_ids_return(void) {
    char text[32] = "";
    int fd = rk_open("/proc/sys/kernel/pid_max", O_RDONLY, 0);
    if (fd < 0) return true;
    long n = rk_call(SYS_read, fd, (long)text, sizeof(text) - 1, 0, 0, 0);
    rk_close(fd);
    return n <= 0 || strtol(text, NULL, 10) < MANY_IDS;
}

static int start_standby(void) {
    int ends[2];
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe2(ends, O_CLOEXEC) != 0) return -errno;
    int error = rk_start_standby(rk_listener, shared, ends[0]);
    close(ends[0]);
    alive = ends[1];
    return error;
}

/* Begins to answer for the run in this directory; 0 or -errno. Not on the thread that has the filter. */
RK_EXPORT int reprokit_supervise(const char *run, int listener, int no_new_privs) {
    uint64_t at_once = SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP; /* Linux 6.6: answered on the same processor */
    if (rk_read_plan(run) != 0) return -EINVAL;
    rk_listener = listener;
    forbids_rights = no_new_privs;
    ids_return = do_ids_return();
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, at_once);
    int error = start_standby();
    if (!error) error = start_loop();
    runs = !error;
    return error;
}

/* Ends it; programs that are still there are the standby's. Copies what the user should be told. */
RK_EXPORT void reprokit_unsupervise(char *text, uint64_t size) {
    if (!runs) return;
    stop_watching();
    stop_receiving();
    rk_close_feeds();
    rk_forget_all();
    rk_append(text, size, 0, notice);
    int open[] = {stop_event, rk_events, rk_listener, alive};
    for (size_t i = 0; i < RK_LENGTH(open); i++) close(open[i]);
    munmap(shared, 4096);
    runs = false;
}

/* The ABI number this library was built with. */
RK_EXPORT uint32_t reprokit_abi(void) { return RK_ABI; }
