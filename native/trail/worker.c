/* worker.c - a thread that digests tensors beside the training.
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

static void work_off(struct rkt_trail *trail) {
    while (trail->done < __atomic_load_n(&trail->given, __ATOMIC_ACQUIRE)) {
        rkt_digest_tensors(trail->queue[trail->done % RKT_QUEUE]);
        __atomic_store_n(&trail->done, trail->done + 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&trail->waiting, __ATOMIC_SEQ_CST)) wake((uint32_t *)&trail->done);
    }
}

static int worker(void *argument) {
    struct rkt_trail *trail = argument;
    for (;;) {
        uint32_t calls = __atomic_load_n(&trail->wake, __ATOMIC_SEQ_CST);
        uint32_t stopping = __atomic_load_n(&trail->stopping, __ATOMIC_SEQ_CST); /* before: what was given is done */
        work_off(trail);
        if (stopping) return 0;
        sleep_on(&trail->wake, calls);
    }
}

static bool begin(struct rkt_trail *trail) {
    if (trail->thread) return true;
    if (!trail->stack) trail->stack = rk_map(STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!trail->stack) return false;
    trail->stopping = 0;
    /* The caller has all signals blocked, and the thread keeps them so. */
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID |
                CLONE_CHILD_CLEARTID;
    int error = errno;
    int made = clone(worker, trail->stack + STACK, flags, trail, &trail->thread, NULL, &trail->thread);
    errno = error;
    return made > 0;
}

uint64_t rkt_hand_over(struct rkt_series *series) {
    struct rkt_trail *trail = series->trail;
    if (trail->given - __atomic_load_n(&trail->done, __ATOMIC_ACQUIRE) >= RKT_QUEUE || !begin(trail)) return 0;
    trail->queue[trail->given % RKT_QUEUE] = series;
    __atomic_store_n(&trail->given, trail->given + 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&trail->wake, 1, __ATOMIC_SEQ_CST);
    wake(&trail->wake);
    return trail->given;
}

void rkt_wait(struct rkt_trail *trail, uint64_t ticket) {
    for (int i = 0; i < SPINS && __atomic_load_n(&trail->done, __ATOMIC_SEQ_CST) < ticket; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("yield");
#endif
    }
    __atomic_add_fetch(&trail->waiting, 1, __ATOMIC_SEQ_CST);
    uint64_t done;
    while ((done = __atomic_load_n(&trail->done, __ATOMIC_SEQ_CST)) < ticket)
        sleep_on((uint32_t *)&trail->done, (uint32_t)done);
    __atomic_sub_fetch(&trail->waiting, 1, __ATOMIC_SEQ_CST);
}

static void stop(struct rkt_trail *trail) {
    uint32_t thread = __atomic_load_n(&trail->thread, __ATOMIC_SEQ_CST);
    if (!thread) return;
    __atomic_store_n(&trail->stopping, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&trail->wake, 1, __ATOMIC_SEQ_CST);
    wake(&trail->wake);
    while ((thread = __atomic_load_n(&trail->thread, __ATOMIC_SEQ_CST))) sleep_on(&trail->thread, thread);
}

/* Lets the worker finish and end; the next step makes another. */
void rkt_stop(struct rkt_trail *trail) {
    rk_signals before = rk_block_signals();
    rk_lock(&trail->lock);
    stop(trail);
    rk_unlock(&trail->lock);
    rk_restore_signals(before);
}

RK_EXPORT const uint64_t *reprokit_trail_done(const struct rkt_trail *trail) { return &trail->done; }

RK_EXPORT void reprokit_trail_wait(struct rkt_trail *trail, uint64_t ticket) { rkt_wait(trail, ticket); }

/* Before a fork: a process of one thread is none of several, and no digest is cut off in the midst. */
RK_EXPORT void reprokit_trail_pause(struct rkt_trail *trail) { rkt_stop(trail); }
