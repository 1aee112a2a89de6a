/* worker.c - a thread that digests tensors beside the training, or writes them.
 *
 * Made by clone: neither libc nor the shim counts it, so that no thread of the training's gets another name, malloc
 * stays what it is in a process of one thread, and nothing of libc's is allocated for it. It shares its creator's
 * thread-local storage and must not use any: no errno, no stack protector, no lazy binding, no signal handler. */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "trail.h"

#define STACK (64u << 10)
#define SPINS 200 /* a few microseconds, in which most waits are over */

static void sleep_on(uint32_t *word, uint32_t value) {
    rk_call(SYS_futex, (long)word, FUTEX_WAIT, value, 0, 0, 0); /* not private: the kernel clears `thread` so */
}

static void wake(uint32_t *word) { rk_call(SYS_futex, (long)word, FUTEX_WAKE, 1 << 20, 0, 0, 0); }

static void work_off(struct rkt_worker *worker) {
    while (worker->done < __atomic_load_n(&worker->given, __ATOMIC_ACQUIRE)) {
        worker->work(worker->queue[worker->done % RKT_QUEUE]);
        __atomic_store_n(&worker->done, worker->done + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&worker->waiting, __ATOMIC_SEQ_CST)) wake((uint32_t *)&worker->done);
    }
}

static int work_on(void *argument) {
    struct rkt_worker *worker = argument;
    for (;;) {
        uint32_t calls = __atomic_load_n(&worker->wake, __ATOMIC_SEQ_CST);
        uint32_t stopping = __atomic_load_n(&worker->stopping, __ATOMIC_SEQ_CST); /* before: what was given is done */
        work_off(worker);
        if (stopping) return 0;
        sleep_on(&worker->wake, calls);
    }
}

static bool begin(struct rkt_worker *worker) {
    if (worker->thread) return true;
    if (!worker->stack) worker->stack = rk_map(STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!worker->stack) return false;
    worker->stopping = 0;
    /* The caller has all signals blocked, and the thread keeps them so. */
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
                CLONE_CHILD_CLEARTID;
    int error = errno;
    int made = clone(work_on, worker->stack + STACK, flags, worker, &worker->thread, NULL, &worker->thread);
    errno = error;
    return made > 0;
}

uint64_t rkt_hand_over(struct rkt_worker *worker, void *job) {
    if (worker->given - __atomic_load_n(&worker->done, __ATOMIC_ACQUIRE) >= RKT_QUEUE || !begin(worker)) return 0;
    worker->queue[worker->given % RKT_QUEUE] = job;
    __atomic_store_n(&worker->given, worker->given + 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&worker->wake, 1, __ATOMIC_SEQ_CST);
    wake(&worker->wake);
    return worker->given;
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

/* Lets the worker finish and end; the next job makes another. Under the lock nobody hands one over. */
void rkt_stop(struct rkt_worker *worker, uint32_t *lock) {
    rk_signals before = rk_block_signals();
    rk_lock(lock);
    stop(worker);
    rk_unlock(lock);
    rk_restore_signals(before);
}

RK_EXPORT void reprokit_trail_wait(struct rkt_trail *trail, uint64_t ticket) { rkt_wait(&trail->worker, ticket); }

/* Before a fork: a process of one thread is none of several, and no digest is cut off in the midst. */
RK_EXPORT void reprokit_trail_pause(struct rkt_trail *trail) { rkt_stop(&trail->worker, &trail->lock); }
