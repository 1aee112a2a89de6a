/* listener.c - whether a received request still waits, and which descriptors the supervisor watches. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>

#include "recorder/calls.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define MANY_IDS   32768 /* more processes than are created between two ticks of the clock */
#define NANOSECOND UINT64_C(1000000000)

int rk_listener = -1;
int rk_events = -1;
struct shared *rk_shared;
char rk_notice_text[1024];

static bool are_ids_reused; /* process ids are reused within a tick of the clock */

static bool has_few_ids(void) {
    char text[32] = "";
    int fd = rk_open("/proc/sys/kernel/pid_max", O_RDONLY, 0);
    if (fd < 0) return true;
    long n = rk_call(SYS_read, fd, (long)text, sizeof(text) - 1, 0, 0, 0);
    rk_close(fd);
    return n <= 0 || strtol(text, NULL, 10) < MANY_IDS;
}

/* Finds out whether process ids are few, as in a container, so that an ended process's id may be reused at once. */
void rk_find_id_reuse(void) { are_ids_reused = has_few_ids(); }

/* Returns the last tick of a clock that is cheap to read. */
uint64_t rk_current_tick(void) {
    static uint64_t count;
    struct timespec time;
    if (are_ids_reused || clock_gettime(CLOCK_MONOTONIC_COARSE, &time) != 0) return ++count;
    return (uint64_t)time.tv_sec * NANOSECOND + (uint64_t)time.tv_nsec;
}

uint64_t rk_requests_let_go(void) { return __atomic_load_n(&rk_shared->let_go, __ATOMIC_ACQUIRE); }

/* seccomp_unotify(2) */
bool rk_is_waiting(const struct request *request) {
    return ioctl(rk_listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &request->id) == 0;
}

/* Skips the check if only the program's end or the standby can have ended the request, and it was received within the
 * current tick. */
bool rk_is_pending(const struct request *request) {
    bool is_certain = rk_is_uninterrupted && !request->in_doubt && request->let_go == rk_requests_let_go();
    return (is_certain && request->tick == rk_current_tick()) || rk_is_waiting(request);
}

void rk_watch(int fd, struct watch *watch, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = watch};
    epoll_ctl(rk_events, EPOLL_CTL_ADD, fd, &event);
}

/* Removes the descriptor explicitly: a child that the launcher is starting may hold a duplicate. */
void rk_close_watched(int fd) {
    epoll_ctl(rk_events, EPOLL_CTL_DEL, fd, NULL);
    rk_close(fd);
}

void rk_notice(const char *text) {
    if (*rk_notice_text) return;
    rk_append(rk_notice_text, sizeof(rk_notice_text), 0, text);
    rk_say(text);
}
