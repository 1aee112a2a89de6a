/* supervisor.c - answers the requests for entropy that the shim cannot see.
 *
 * Static programs, programs without the shim and direct system calls request entropy from the kernel. A seccomp filter
 * (filter.c) passes these requests to a thread of the launcher. Its answers are recorded and replayed by the shim's own
 * code (context.c), under names that are the same in every run (processes.c). Requests that it cannot answer continue
 * in the kernel. If this process dies or is stopped, another one lets them continue (standby.c).
 *
 * It runs in the launcher's process, but never needs the locks of Python. One thread waits for requests, another one
 * for all other events; one lock guards what they share.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "recorder/compiler.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS      SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

#define WAKE SIGURG /* sent to the receiving thread; ignored if it comes from elsewhere */

static pthread_t receiver, watcher;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool receiver_waits; /* the receiver waits for the lock, and a program with it */
static bool is_running, has_no_new_privs, ended;
static int stop_event = -1, alive = -1;
static struct watch ending;
static struct sigaction before_wake;

/* ---- one request ---------------------------------------------------------------------------------------- */

/* Marks all processes if the standby let requests continue: one may have been an exec. */
static void check_standby(void) {
    static uint64_t last;
    uint64_t count = rk_requests_let_go();
    if (RK_UNLIKELY(count != last)) rk_may_have_executed();
    last = count;
}

/* Returns whether a request is for the broker: an openat without a path. */
static bool is_brokered(const struct request *request) {
    return RK_UNLIKELY(request->arguments[5] == RK_BROKER) && request->number == SYS_openat && !request->arguments[1];
}

static struct answer answer_to(struct request *request) {
    check_standby();
    if (request->number == SYS_execve || request->number == SYS_execveat) {
        rk_executes(request->thread);
        rk_note_exec(request);
        if (has_no_new_privs) rk_look_at_exec(request);
        return (struct answer){.go_on = true};
    }
    if (rk_is_rename(request)) {
        rk_note_rename(request);
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
    __atomic_store_n(&rk_shared->received, request->id, __ATOMIC_RELEASE);
    __atomic_store_n(&receiver_waits, true, __ATOMIC_RELEASE);
    pthread_mutex_lock(&lock);
    __atomic_store_n(&receiver_waits, false, __ATOMIC_RELEASE);
    if (ended && request->number == SYS_getrandom) rk_note_fresh();
    send_answer(request->id, ended ? (struct answer){.go_on = true} : answer_to(request));
    pthread_mutex_unlock(&lock);
    __atomic_store_n(&rk_shared->answered, request->id, __ATOMIC_RELEASE);
}

static bool has_programs(void) {
    struct pollfd listener = {.fd = rk_listener};
    return poll(&listener, 1, 0) >= 0 && !listener.revents; /* poll reports only a hang-up without being asked */
}

/* Waits for a request. Its program may end at any time, so this thread does nothing else. */
static bool receive(void) {
    union {
        struct seccomp_notif message;
        char room[512];
    } notification;
    uint64_t let_go = rk_requests_let_go();
    memset(&notification, 0, sizeof(notification));
    if (ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_RECV, &notification.message) != 0)
        return errno == EINTR || (errno == ENOENT && has_programs());
    const struct seccomp_notif *received = &notification.message;
    struct request request = {.id = received->id,
                              .tick = rk_current_tick(),
                              .let_go = let_go,
                              .thread = (int)received->pid,
                              .number = received->data.nr,
                              .caller = received->data.instruction_pointer,
                              .arguments = (const uint64_t *)received->data.args};
    answer(&request);
    return true;
}

/* ---- the threads --------------------------------------------------------------------------------------------- */

static bool has_ended(void) { return __atomic_load_n(&ended, __ATOMIC_ACQUIRE); }

static void *receive_all(void *unused) {
    while (!has_ended() && receive()) continue;
    return unused;
}

static void on_end(struct watch *watch, uint32_t events) {
    (void)watch, (void)events;
    __atomic_store_n(&ended, true, __ATOMIC_RELEASE);
}

/* Handles one event at a time: the next one's watch may be freed by this event, or by a request. */
static void handle_event(void) {
    struct epoll_event event;
    while (__atomic_load_n(&receiver_waits, __ATOMIC_ACQUIRE)) sched_yield();
    pthread_mutex_lock(&lock);
    if (epoll_wait(rk_events, &event, 1, 0) == 1) ((struct watch *)event.data.ptr)->ready(event.data.ptr, event.events);
    pthread_mutex_unlock(&lock);
}

static void *watch_all(void *unused) {
    struct pollfd events = {.fd = rk_events, .events = POLLIN};
    while (!has_ended())
        if (poll(&events, 1, -1) > 0) handle_event();
    return unused;
}

/* ---- for the launcher ------------------------------------------------------------------------------------------ */

static void ignore_wake(int number) { (void)number; }

/* Starts a thread with all signals blocked except `allowed`, if given. */
static int start_thread(pthread_t *thread, void *(*run)(void *), int allowed) {
    sigset_t all, before;
    sigfillset(&all);
    if (allowed) sigdelset(&all, allowed);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits the mask */
    int error = pthread_create(thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

static void stop_watching(void) {
    static const uint64_t one = 1;
    if (write(stop_event, &one, sizeof(one)) == sizeof(one)) pthread_join(watcher, NULL);
}

/* Repeats the signal, as it may arrive just before the thread starts to wait. */
static void stop_receiving(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    do pthread_kill(receiver, WAKE);
    while (pthread_tryjoin_np(receiver, NULL) != 0 && nanosleep(&moment, NULL) <= 0);
    sigaction(WAKE, &before_wake, NULL);
}

static int start_threads(void) {
    const struct sigaction action = {.sa_handler = ignore_wake};
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
    *rk_notice_text = 0;
    ending.ready = on_end;
    rk_events = epoll_create1(EPOLL_CLOEXEC);
    stop_event = eventfd(0, EFD_CLOEXEC);
    if (rk_events < 0 || stop_event < 0) return -errno;
    rk_watch(stop_event, &ending, EPOLLIN);
    return start_threads();
}

static int start_standby(void) {
    int ends[2];
    rk_shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rk_shared == MAP_FAILED || pipe2(ends, O_CLOEXEC) != 0) return -errno;
    int error = rk_start_standby(rk_listener, rk_shared, ends[0]);
    close(ends[0]);
    alive = ends[1];
    return error;
}

/* Starts answering for the run in this directory; 0 or -errno. Not for the thread with the filter. */
RK_EXPORT int reprokit_supervise(const char *run, int listener, int no_new_privs) {
    uint64_t at_once = SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP; /* Linux 6.6: answered on the same processor */
    if (rk_read_plan(run) != 0) return -EINVAL;
    rk_listener = listener;
    has_no_new_privs = no_new_privs;
    rk_find_id_reuse();
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, at_once);
    int error = start_standby();
    if (!error) error = start_loop();
    is_running = !error;
    return error;
}

/* Stops answering; the standby serves programs that still run. Copies the notice for the user. */
RK_EXPORT void reprokit_unsupervise(char *text, uint64_t size) {
    if (!is_running) return;
    stop_watching();
    stop_receiving();
    rk_close_feeds();
    rk_forget_all();
    rk_append(text, size, 0, rk_notice_text);
    int open[] = {stop_event, rk_events, rk_listener, alive};
    for (size_t i = 0; i < RK_LENGTH(open); i++) close(open[i]);
    munmap(rk_shared, 4096);
    is_running = false;
}

/* The ABI number this library was built with. */
RK_EXPORT uint32_t reprokit_abi(void) { return RK_ABI; }
