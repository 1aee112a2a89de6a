/* devices.c - /dev/urandom for programs without the shim: a pipe that is kept filled.
 *
 * Each open has a stream of its own, named after the thread and the number of its opens. The pipe is filled one page
 * ahead of its reader. Bytes ahead of the recording are no mismatch.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/system.h"
#include "supervisor/supervisor.h"

#define PAGE    4096
#define AT_ONCE 16 /* pages per event, before other requests are answered */
#define KEPT    48 /* descriptors that are left to the launcher itself */

struct feed {
    struct watch watch; /* of the writing end */
    int fd;
    uint64_t caller;
    struct program *program;
    uint32_t written; /* bytes of the page */
    struct rk_thread state;
    struct feed *older, *newer;
    uint8_t page[PAGE];
};

static struct feed *newest;

static void stop_feed(struct feed *feed) {
    rk_close_watched(feed->fd);
    if (feed->newer)
        feed->newer->older = feed->older;
    else
        newest = feed->older;
    if (feed->older) feed->older->newer = feed->newer;
    rk_release(feed->program);
    free(feed);
}

void rk_close_feeds(void) {
    while (newest) stop_feed(newest);
}

static bool next_page(struct feed *feed) {
    feed->written = 0;
    return rk_fill_for(feed->program, &feed->state, RK_SOURCE_KERNEL_DEVICE, feed->caller, feed->page, PAGE, 0) == PAGE;
}

static long write_page(struct feed *feed) {
    long n = rk_call(SYS_write, feed->fd, (long)feed->page + feed->written, PAGE - feed->written, 0, 0, 0);
    if (n > 0) feed->written += (uint32_t)n;
    return n;
}

/* Fills the pipe; false if its reader is gone. */
static bool fill_pipe(struct feed *feed) {
    for (int pages = 0; pages < AT_ONCE; pages++) {
        if (feed->written == PAGE && !next_page(feed)) return false;
        long n = write_page(feed);
        if (n == -EAGAIN) return true;
        if (n <= 0) return false;
    }
    return true;
}

static void on_writable(struct watch *watch, uint32_t events) {
    struct feed *self = (struct feed *)watch;
    if (events & EPOLLERR || !fill_pipe(self)) stop_feed(self);
}

static struct feed *new_feed(struct thread *thread, uint64_t caller, int fd) {
    struct feed *feed = calloc(1, sizeof(*feed));
    if (!feed) return NULL;
    *feed = (struct feed){.watch.ready = on_writable, .fd = fd, .caller = caller, .written = PAGE, .older = newest};
    feed->program = thread->process->program;
    feed->program->references++;
    size_t n = rk_append(feed->state.identity, RK_IDENTITY, 0, thread->state.identity);
    n = rk_append(feed->state.identity, RK_IDENTITY, n, ".device.");
    rk_append_number(feed->state.identity, RK_IDENTITY, n, ++thread->devices);
    if (newest) newest->newer = feed;
    newest = feed;
    return feed;
}

static bool make_pipe(int ends[2]) {
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    if (rk_call(SYS_pipe2, (long)ends, O_CLOEXEC, 0, 0, 0, 0) != 0) return false;
    rk_call(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0);
    if ((rlim_t)ends[1] + KEPT < limit.rlim_cur) return true;
    rk_close(ends[0]);
    rk_close(ends[1]);
    return false;
}

int rk_open_feed(struct thread *thread, uint64_t caller) {
    int ends[2];
    if (!make_pipe(ends)) return -EMFILE;
    rk_call(SYS_fcntl, ends[1], F_SETPIPE_SZ, PAGE, 0, 0, 0);
    rk_call(SYS_fcntl, ends[1], F_SETFL, O_NONBLOCK, 0, 0, 0);
    struct feed *feed = new_feed(thread, caller, ends[1]);
    if (!feed || !next_page(feed) || write_page(feed) <= 0) { /* one page: most programs read no more */
        if (feed)
            stop_feed(feed);
        else
            rk_close(ends[1]);
        rk_close(ends[0]);
        return -EIO;
    }
    rk_watch(ends[1], &feed->watch, EPOLLOUT);
    return ends[0];
}
