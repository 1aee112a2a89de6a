/* worker.c - a thread that digests or writes tensors in parallel to the training.
 *
 * It is created by clone, so that neither libc nor the shim knows it: names of the training's threads do not change,
 * malloc still sees a single thread, and libc allocates nothing for it. It shares its creator's thread-local storage
 * and must not use any: no errno, no stack protector, no lazy binding, no signal handler. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/compiler.h"
#include "recorder/system.h"
#include "trail/trail.h"

#define STACK (64u << 10)
#define SPINS 200 /* a few microseconds, in which most waits are over */

static void sleep_on(uint32_t *word, uint32_t value) {
    rk_call(SYS_futex, (long)word, FUTEX_WAIT, value, 0, 0,
            0); /* not private, as the kernel's wake of `thread` is not either */
}

static void wake(uint32_t *word) { rk_call(SYS_futex, (long)word, FUTEX_WAKE, 1 << 20, 0, 0, 0); }

static void run_queued_jobs(struct rkt_worker *worker) {
    while (worker->done < __atomic_load_n(&worker->queued, __ATOMIC_ACQUIRE)) {
        worker->work(worker->queue[worker->done % RKT_QUEUE]);
        __atomic_store_n(&worker->done, worker->done + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&worker->waiting, __ATOMIC_SEQ_CST)) wake((uint32_t *)&worker->done);
    }
}

static int run_worker(void *argument) {
    struct rkt_worker *worker = argument;
    for (;;) {
        uint32_t calls = __atomic_load_n(&worker->wake, __ATOMIC_SEQ_CST);
        uint32_t stopping = __atomic_load_n(
            &worker->stopping, __ATOMIC_SEQ_CST); /* read before the queue, so that all queued jobs are done */
        run_queued_jobs(worker);
        if (stopping) return 0;
        sleep_on(&worker->wake, calls);
    }
}

static bool start_worker(struct rkt_worker *worker) {
    if (worker->thread) return true;
    if (!worker->stack) worker->stack = rk_map(STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!worker->stack) return false;
    worker->stopping = 0;
    /* The caller has all signals blocked, and the thread keeps them so. */
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
                CLONE_CHILD_CLEARTID;
    int error = errno;
    int thread_id = clone(run_worker, worker->stack + STACK, flags, worker, &worker->thread, NULL, &worker->thread);
    errno = error;
    return thread_id > 0;
}

uint64_t rkt_hand_over(struct rkt_worker *worker, void *job) {
    if (worker->queued - __atomic_load_n(&worker->done, __ATOMIC_ACQUIRE) >= RKT_QUEUE || !start_worker(worker))
        return 0;
    worker->queue[worker->queued % RKT_QUEUE] = job;
    __atomic_store_n(&worker->queued, worker->queued + 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&worker->wake, 1, __ATOMIC_SEQ_CST);
    wake(&worker->wake);
    return worker->queued;
}

void rkt_wait(struct rkt_worker *worker, uint64_t ticket) {
    for (int i = 0; i < SPINS && __atomic_load_n(&worker->done, __ATOMIC_SEQ_CST) < ticket; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("yield");
#endif
    }
    __atomic_add_fetch(&worker->waiting, 1, __ATOMIC_SEQ_CST);
    uint64_t done;
    while ((done = __atomic_load_n(&worker->done, __ATOMIC_SEQ_CST)) < ticket)
        sleep_on((uint32_t *)&worker->done, (uint32_t)done);
    __atomic_sub_fetch(&worker->waiting, 1, __ATOMIC_SEQ_CST);
}

static void stop(struct rkt_worker *worker) {
    uint32_t thread = __atomic_load_n(&worker->thread, __ATOMIC_SEQ_CST);
    if (!thread) return;
    __atomic_store_n(&worker->stopping, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&worker->wake, 1, __ATOMIC_SEQ_CST);
    wake(&worker->wake);
    while ((thread = __atomic_load_n(&worker->thread, __ATOMIC_SEQ_CST))) sleep_on(&worker->thread, thread);
}

/* Lets the worker finish its jobs and end; the next job starts another. The lock keeps jobs from being queued. */
void rkt_stop(struct rkt_worker *worker, uint32_t *lock) {
    rk_signals before = rk_block_signals();
    rk_lock(lock);
    stop(worker);
    rk_unlock(lock);
    rk_restore_signals(before);
}

RK_EXPORT void reprokit_trail_wait(struct rkt_trail *trail, uint64_t ticket) { rkt_wait(&trail->worker, ticket); }

/* Called before a fork: a single-threaded process stays one, and no digest is interrupted. */
RK_EXPORT void reprokit_trail_pause(struct rkt_trail *trail) { rkt_stop(&trail->worker, &trail->lock); }
