/* standby.c - a process that lets waiting programs continue if the supervisor does not answer.
 *
 * It is a fork of the launcher in a separate session, with a duplicate of the listener. If the launcher has died, is
 * stopped, or has not answered for five seconds, it makes the kernel answer; the run directory then has a byte for each
 * request for entropy answered so. It ends with the last program under the filter. It makes only async-signal-safe
 * calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "recorder/calls.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define TICK     100       /* milliseconds */
#define PATIENCE 50        /* ticks without an answer */
#define MOST     (1 << 20) /* maximum requests that are counted: a daemon may outlive the launcher by months */
#define NEAR     16        /* ids tried around the last known one: another may be received but not published yet */

struct standby {
    int listener;
    int alive; /* a pipe whose other end closes with the launcher */
    int launcher;
    struct shared *shared;
};

void rk_note_fresh(void) {
    char path[RK_RUN_PATH + 32];
    size_t n = rk_append(path, sizeof(path), 0, rk_run);
    rk_append(path, sizeof(path), n, "/entropy/fresh");
    int fd = rk_open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    if (rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0) < MOST) rk_call(SYS_write, fd, (long)".", 1, 0, 0, 0);
    rk_close(fd);
}

/* Lets a request continue. Counted before: a supervisor that was stopped while answering must not finish the answer. */
static bool let_continue(const struct standby *self, uint64_t id) {
    __atomic_add_fetch(&self->shared->let_go, 1, __ATOMIC_ACQ_REL);
    struct seccomp_notif_resp answer = {.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    return ioctl(self->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0;
}

/* Lets the requests continue that the supervisor has received. The kernel rejects ids that are not waiting. */
static void release_received(const struct standby *self) {
    uint64_t last = __atomic_load_n(&self->shared->received, __ATOMIC_ACQUIRE);
    for (uint64_t id = last - NEAR; last && id != last + NEAR; id++)
        if (let_continue(self, id)) rk_note_fresh();
}

/* Receives a request and lets it continue. The supervisor may be faster: a timer then interrupts the wait. */
static void release_next(const struct standby *self) {
    union {
        struct seccomp_notif message;
        char room[512];
    } notification;
    memset(&notification, 0, sizeof(notification));
    if (ioctl(self->listener, SECCOMP_IOCTL_NOTIF_RECV, &notification.message) != 0) return;
    if (let_continue(self, notification.message.id) && notification.message.data.nr == SYS_getrandom) rk_note_fresh();
}

static short poll_events(int fd, int milliseconds) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, milliseconds) > 0 ? polled.revents : 0;
}

static bool launcher_is_dead(const struct standby *self) { return poll_events(self->alive, 0) & POLLHUP; }

static bool launcher_is_stopped(const struct standby *self) {
    char text[512];
    if (rk_read_proc(self->launcher, "stat", text, sizeof(text)) <= 0) return false;
    const char *name = strrchr(text, ')');
    return name && (name[2] == 'T' || name[2] == 't');
}

static void set_timer(int milliseconds) {
    struct itimerval every = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
}

static void serve_without_launcher(const struct standby *self) {
    release_received(self);
    for (;;) {
        short events = poll_events(self->listener, -1);
        if (events & (POLLHUP | POLLERR | POLLNVAL)) return;
        if (!(events & POLLIN)) continue;
        set_timer(TICK);
        release_next(self);
        set_timer(0);
    }
}

static void serve_stopped_launcher(const struct standby *self) {
    release_received(self);
    set_timer(TICK);
    for (int n = 0; n < 100; n++) {
        short events = poll_events(self->listener, TICK);
        if (!(events & POLLIN)) break;
        release_next(self);
    }
    set_timer(0);
}

static void watch_launcher(const struct standby *self) {
    uint64_t last_received = 0;
    for (int ticks = 0; !(poll_events(self->alive, TICK) & POLLHUP);) {
        short events = poll_events(self->listener, 0);
        if (events & (POLLHUP | POLLERR | POLLNVAL)) return;
        uint64_t received = __atomic_load_n(&self->shared->received, __ATOMIC_ACQUIRE);
        bool is_waiting = events & POLLIN || received != __atomic_load_n(&self->shared->answered, __ATOMIC_ACQUIRE);
        ticks = is_waiting && received == last_received ? ticks + 1 : 0;
        last_received = received;
        /* Even if nothing seems to wait: a request received just before the stop may not be published yet. */
        while (launcher_is_stopped(self) || ticks > PATIENCE) {
            serve_stopped_launcher(self);
            ticks = 0;
            if (launcher_is_dead(self)) break;
        }
    }
    serve_without_launcher(self);
}

static void ignore_signal(int number) { (void)number; }

/* Releases the launcher's terminal, output, directory and descriptors. */
static void leave_launcher(struct standby *self) {
    struct sigaction quiet = {.sa_handler = ignore_signal};
    setsid();
    for (int number = 1; number < NSIG; number++)
        signal(number, number == SIGPIPE || number == SIGXFSZ ? SIG_IGN : SIG_DFL);
    sigaction(SIGALRM, &quiet, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_NAME, "reprokit-wait");
    if (chdir("/") != 0) return;
    int listener = fcntl(self->listener, F_DUPFD, 3), alive = fcntl(self->alive, F_DUPFD, 3);
    if (dup2(listener, 0) < 0 || dup2(alive, 1) < 0) return;
    self->listener = 0;
    self->alive = 1;
    if (rk_call(SYS_close_range, 2, ~0u, 0, 0, 0, 0) != 0)
        for (int fd = 2; fd < 65536; fd++) rk_close(fd);
}

/* Forks by the system call: no handlers of pthread_atfork run, and the child's end raises no SIGCHLD. */
static long fork_quietly(void) { return rk_call(SYS_clone, 0, 0, 0, 0, 0, 0); }

int rk_start_standby(int listener, struct shared *shared, int alive) {
    struct standby self = {.listener = listener, .alive = alive, .launcher = rk_getpid(), .shared = shared};
    long child = fork_quietly();
    if (child < 0) return (int)child;
    if (child > 0) {
        while (rk_call(SYS_wait4, child, 0, __WCLONE, 0, 0, 0) == -EINTR) continue;
        return 0;
    }
    if (fork_quietly() == 0) {
        leave_launcher(&self);
        watch_launcher(&self);
    }
    rk_call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    __builtin_unreachable();
}
