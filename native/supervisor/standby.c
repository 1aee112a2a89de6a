/* standby.c - a process that lets waiting programs go on when the supervisor does not answer.
 *
 * It is a fork of the launcher in a session of its own, holds a duplicate of the listener, and sleeps.
 * When the launcher has died, or is stopped, or has not answered for five seconds, it tells the kernel to
 * answer; the run directory then holds a byte for each request for entropy that was answered so. It
 * ends with the last program that the filter is on. Only calls that are safe in a signal handler.
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

#include "supervisor.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define TICK     100       /* milliseconds */
#define PATIENCE 50        /* ticks without an answer */
#define MOST     (1 << 20) /* requests that are counted: a daemon may outlive the launcher by months */
#define NEAR     16        /* ids around the last one known: it was received, and its number not yet told */

struct standby {
    int listener;
    int alive; /* the end of a pipe whose other end dies with the launcher */
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

/* Told before it is done: the supervisor, stopped in the midst of an answer, must not finish it. */
static bool let_go(const struct standby *self, uint64_t id) {
    __atomic_add_fetch(&self->shared->let_go, 1, __ATOMIC_ACQ_REL);
    struct seccomp_notif_resp answer = {.id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    return ioctl(self->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0;
}

/* What the supervisor has received and will not answer. The kernel refuses what waits for nothing. */
static void let_received_go(const struct standby *self) {
    uint64_t last = __atomic_load_n(&self->shared->received, __ATOMIC_ACQUIRE);
    for (uint64_t id = last - NEAR; last && id != last + NEAR; id++)
        if (let_go(self, id)) rk_note_fresh();
}

/* The supervisor may be faster: a timer ends a receiving that nothing is there for. */
static void receive_one(const struct standby *self) {
    union {
        struct seccomp_notif one;
        char room[512];
    } notification;
    memset(&notification, 0, sizeof(notification));
    if (ioctl(self->listener, SECCOMP_IOCTL_NOTIF_RECV, &notification.one) != 0) return;
    if (let_go(self, notification.one.id) && notification.one.data.nr == SYS_getrandom) rk_note_fresh();
}

static short waits_for(int fd, int milliseconds) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, milliseconds) > 0 ? one.revents : 0;
}

static bool launcher_is_dead(const struct standby *self) { return waits_for(self->alive, 0) & POLLHUP; }

static bool launcher_is_stopped(const struct standby *self) {
    char text[512];
    if (rk_read_proc(self->launcher, "stat", text, sizeof(text)) <= 0) return false;
    const char *name = strrchr(text, ')');
    return name && (name[2] == 'T' || name[2] == 't');
}

static void tick_by_signal(int milliseconds) {
    struct itimerval every = {{0, milliseconds * 1000}, {0, milliseconds * 1000}};
    setitimer(ITIMER_REAL, &every, NULL);
}

static void finish_without_launcher(const struct standby *self) {
    let_received_go(self);
    for (;;) {
        short events = waits_for(self->listener, -1);
        if (events & (POLLHUP | POLLERR | POLLNVAL)) return;
        if (!(events & POLLIN)) continue;
        tick_by_signal(TICK);
        receive_one(self);
        tick_by_signal(0);
    }
}

static void stand_in(const struct standby *self) {
    let_received_go(self);
    tick_by_signal(TICK);
    for (int n = 0; n < 100; n++) {
        short events = waits_for(self->listener, TICK);
        if (!(events & POLLIN)) break;
        receive_one(self);
    }
    tick_by_signal(0);
}

static void stand_by(const struct standby *self) {
    uint64_t before = 0;
    for (int ticks = 0; !(waits_for(self->alive, TICK) & POLLHUP);) {
        short events = waits_for(self->listener, 0);
        if (events & (POLLHUP | POLLERR | POLLNVAL)) return;
        uint64_t received = __atomic_load_n(&self->shared->received, __ATOMIC_ACQUIRE);
        bool waits = events & POLLIN || received != __atomic_load_n(&self->shared->answered, __ATOMIC_ACQUIRE);
        ticks = waits && received == before ? ticks + 1 : 0;
        before = received;
        /* Also where nothing seems to wait: a request that was received just before the stop was not yet told of. */
        while (launcher_is_stopped(self) || ticks > PATIENCE) {
            stand_in(self);
            ticks = 0;
            if (launcher_is_dead(self)) break;
        }
    }
    finish_without_launcher(self);
}

static void ignore(int number) { (void)number; }

/* Nothing of the launcher's is held: not its terminal, its output, its directory. */
static void leave_launcher(struct standby *self) {
    struct sigaction quiet = {.sa_handler = ignore};
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

/* By the system call: no handler of pthread_atfork may run, and nobody is told of the child's end. */
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
        stand_by(&self);
    }
    rk_call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    __builtin_unreachable();
}
