/* supervisor.c - answers the requests for entropy that the shim cannot see.
 *
 * A static program, one that runs without the shim or that makes its system calls itself asks the
 * kernel; a seccomp filter (filter.c) makes the kernel ask this thread of the launcher. Its answers are
 * recorded and replayed by the shim's own code (context.c), under names that repeat (processes.c).
 * Whoever it cannot help is told to go on: the kernel then does what it would have done. When this
 * process dies or is stopped, another one tells them so (standby.c).
 *
 * It runs beside the launcher's Python, whose locks it never needs. Its state is its thread's alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "supervisor.h"

#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS      SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

int rk_listener = -1;
int rk_events = -1;

static struct shared *shared;
static pthread_t supervisor;
static bool runs, forbids_rights;
static int stop_event = -1, alive = -1;
static char notice[1024];
static struct watch listening, ending;
static bool ended;

/* ---- one request ---------------------------------------------------------------------------------------- */

bool rk_is_pending(uint64_t id) { return ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &id) == 0; }

static struct answer answer_to(const struct request *request) {
    if (request->number == SYS_execve || request->number == SYS_execveat) {
        rk_executes(request->thread);
        if (forbids_rights) rk_look_at_exec(request);
        return (struct answer){.go_on = true};
    }
    struct thread *thread = request->thread > 0 ? rk_find_thread(request->thread) : NULL;
    if (!thread && request->number == SYS_getrandom && rk_is_pending(request->id)) rk_note_fresh();
    if (!thread) return (struct answer){.go_on = true};
    return request->number == SYS_getrandom ? rk_answer_getrandom(thread, request) : rk_answer_open(thread, request);
}

static void send_answer(uint64_t id, struct answer answer) {
    if (answer.sent) return;
    struct seccomp_notif_resp response = {.id = id, .val = answer.value, .error = answer.error};
    if (answer.go_on) response = (struct seccomp_notif_resp){.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static void take_request(struct watch *watch, uint32_t events) {
    (void)watch;
    if (events & (EPOLLHUP | EPOLLERR)) { /* no program is left */
        epoll_ctl(rk_events, EPOLL_CTL_DEL, rk_listener, NULL);
        return;
    }
    union {
        struct seccomp_notif one;
        char room[512];
    } notification;
    memset(&notification, 0, sizeof(notification));
    if (ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_RECV, &notification.one) != 0) return;
    const struct seccomp_notif *one = &notification.one;
    __atomic_store_n(&shared->received, one->id, __ATOMIC_RELEASE);
    struct request request = {.id = one->id,
                              .thread = (int)one->pid,
                              .number = one->data.nr,
                              .caller = one->data.instruction_pointer,
                              .arguments = (const uint64_t *)one->data.args};
    send_answer(one->id, answer_to(&request));
    __atomic_store_n(&shared->answered, one->id, __ATOMIC_RELEASE);
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

void rk_watch(int fd, struct watch *watch, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = watch};
    epoll_ctl(rk_events, EPOLL_CTL_ADD, fd, &event);
}

/* Taken out by name: a child that the launcher is starting may hold a duplicate just now. */
void rk_close_watched(int fd) {
    epoll_ctl(rk_events, EPOLL_CTL_DEL, fd, NULL);
    rk_close(fd);
}

static void end(struct watch *watch, uint32_t events) {
    (void)watch, (void)events;
    ended = true;
}

/* One event at a time: what it belongs to may be gone after the one before. */
static void *supervise(void *argument) {
    (void)argument;
    struct epoll_event event;
    while (!ended) {
        int n = epoll_wait(rk_events, &event, 1, -1);
        if (n < 0 && errno != EINTR) break;
        if (n == 1) ((struct watch *)event.data.ptr)->ready(event.data.ptr, event.events);
    }
    rk_close_feeds();
    rk_forget_all();
    return NULL;
}

void rk_notice(const char *text) {
    if (*notice) return;
    rk_append(notice, sizeof(notice), 0, text);
    rk_say(text);
}

/* ---- for the launcher ------------------------------------------------------------------------------------------ */

static int start_thread(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* which the thread inherits */
    int error = pthread_create(&supervisor, NULL, supervise, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -error;
}

static int start_loop(void) {
    ended = false;
    *notice = 0;
    listening.ready = take_request;
    ending.ready = end;
    rk_events = epoll_create1(EPOLL_CLOEXEC);
    stop_event = eventfd(0, EFD_CLOEXEC);
    if (rk_events < 0 || stop_event < 0) return -errno;
    rk_watch(stop_event, &ending, EPOLLIN);
    rk_watch(rk_listener, &listening, EPOLLIN);
    return start_thread();
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
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, at_once);
    int error = start_standby();
    if (!error) error = start_loop();
    runs = !error;
    return error;
}

/* Ends it; programs that are still there are the standby's. Copies what the user should be told. */
RK_EXPORT void reprokit_unsupervise(char *text, uint64_t size) {
    static const uint64_t one = 1;
    if (!runs) return;
    if (write(stop_event, &one, sizeof(one)) == sizeof(one)) pthread_join(supervisor, NULL);
    rk_append(text, size, 0, notice);
    int open[] = {stop_event, rk_events, rk_listener, alive};
    for (size_t i = 0; i < RK_LENGTH(open); i++) close(open[i]);
    munmap(shared, 4096);
    runs = false;
}

/* The ABI number this library was built with. */
RK_EXPORT uint32_t reprokit_abi(void) { return RK_ABI; }
