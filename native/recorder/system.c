/* system.c - direct system calls: without cancellation points, hooks or locks of libc. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/reach.h"
#include "recorder/system.h"
#include "urandom_hook.h"

#define PATIENCE 256 /* attempts to take a lock before its owner is checked */
#define LONGEST  200 /* in a longer identity the front is replaced by a hash */

static ssize_t set_errno(long result) {
    if (result >= 0) return result;
    errno = (int)-result;
    return -1;
}

ssize_t rk_random(void *buffer, size_t size, unsigned flags) {
    return set_errno(rk_call(SYS_getrandom, (long)buffer, (long)size, flags, 0, 0, RK_MARK));
}

ssize_t rk_read(int fd, void *buffer, size_t size) {
    return set_errno(rk_call(SYS_read, fd, (long)buffer, (long)size, 0, 0, 0));
}

/* Opens a file of the run or of /proc. O_NONBLOCK: never waits, even if a FIFO has replaced the file. */
int rk_open(const char *path, int flags, int mode) {
    flags |= O_CLOEXEC | O_NONBLOCK;
    int fd = (int)rk_call(SYS_openat, AT_FDCWD, (long)path, flags, mode, 0, RK_MARK);
    return RK_UNLIKELY(rk_is_out_of_reach(fd)) ? rk_open_by_broker(path, flags, fd) : fd;
}

void rk_close(int fd) { rk_call(SYS_close, fd, 0, 0, 0, 0, 0); }

int rk_getpid(void) { return (int)rk_call(SYS_getpid, 0, 0, 0, 0, 0, 0); }

/* The shim's mappings are far from the program's, so that the program's addresses do not depend on how much was
 * recorded. Without address randomization everything that depends on an address, such as the order of a set of objects,
 * is then the same in recording and replay. */
uint64_t rk_map_next = RK_FIRST_MAPPING;

void *rk_map(size_t size, int protection, int flags, int fd, uint64_t offset) {
    size_t pages = (size + 0xffff) & ~(size_t)0xffff;
    uint64_t hint = __atomic_fetch_add(&rk_map_next, pages + 0x10000, __ATOMIC_RELAXED);
    long address = rk_call(SYS_mmap, (long)hint, (long)size, protection, flags, fd, (long)offset);
    return address < 0 && address > -4096 ? NULL : (void *)address;
}

void *rk_map_at(void *address, size_t size, int fd, uint64_t offset) {
    long at = rk_call(SYS_mmap, (long)address, (long)size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, (long)offset);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

void rk_unmap(void *address, size_t size) { rk_call(SYS_munmap, (long)address, (long)size, 0, 0, 0, 0); }

void rk_leave(const void *start, const void *end) {
    uintptr_t page = getauxval(AT_PAGESZ);
    uintptr_t from = (uintptr_t)start & ~(page - 1), to = ((uintptr_t)end + page - 1) & ~(page - 1);
    rk_call(SYS_madvise, (long)from, (long)(to - from), MADV_DONTNEED, 0, 0, 0);
}

static int write_zeros(int fd, uint64_t offset, uint64_t size) {
    static const char zeros[4096];
    while (size > 0) {
        long n = rk_call(SYS_pwrite64, fd, (long)zeros, (long)(size < sizeof(zeros) ? size : sizeof(zeros)),
                         (long)offset, 0, 0);
        if (n == -EINTR) continue;
        if (n <= 0) return n < 0 ? (int)-n : ENOSPC;
        offset += (uint64_t)n;
        size -= (uint64_t)n;
    }
    return 0;
}

/* Checks RLIMIT_FSIZE: a write beyond it raises SIGXFSZ, which would kill the training. */
bool rk_within_limit(uint64_t end) {
    struct rlimit limit;
    long error = rk_call(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)&limit, 0, 0);
    return error != 0 || limit.rlim_cur == RLIM_INFINITY || end <= limit.rlim_cur;
}

/* Allocates blocks: on a full disk a write to a mapped page without a block raises SIGBUS. */
int rk_reserve(int fd, uint64_t offset, uint64_t size) {
    if (!rk_within_limit(offset + size)) return EFBIG;
    long error;
    do error = rk_call(SYS_fallocate, fd, 0, (long)offset, (long)size, 0, 0);
    while (error == -EINTR);
    if (error == -EOPNOTSUPP || error == -ENOSYS) return write_zeros(fd, offset, size);
    return (int)-error;
}

size_t rk_append(char *text, size_t size, size_t length, const char *more) {
    while (*more && length + 1 < size) text[length++] = *more++;
    if (size) text[length] = 0;
    return length;
}

static size_t append_digits(char *text, size_t size, size_t length, uint64_t number, unsigned base, int width) {
    char digits[24];
    int n = sizeof(digits) - 1;
    digits[n] = 0;
    do {
        digits[--n] = "0123456789abcdef"[number % base];
        number /= base;
    } while (number > 0 || (int)sizeof(digits) - 1 - n < width);
    return rk_append(text, size, length, digits + n);
}

size_t rk_append_number(char *text, size_t size, size_t length, uint64_t number) {
    return append_digits(text, size, length, number, 10, 1);
}

size_t rk_append_hex(char *text, size_t size, size_t length, uint64_t number) {
    return append_digits(text, size, length, number, 16, 16);
}

void rk_shorten(char *text) {
    size_t length = strlen(text);
    if (length <= LONGEST) return;
    size_t tail = length - 60;
    uint64_t hash = rk_check(text, tail, 0);
    char sleep_briefly[61];
    memcpy(sleep_briefly, text + tail, sizeof(sleep_briefly));
    length = rk_append(text, RK_IDENTITY, 0, "~");
    length = rk_append_hex(text, RK_IDENTITY, length, hash);
    length = rk_append(text, RK_IDENTITY, length, "~");
    rk_append(text, RK_IDENTITY, length, sleep_briefly);
}

void rk_say(const char *text) {
    char line[512];
    size_t length = rk_append(line, sizeof(line) - 1, 0, "reprokit: ");
    length = rk_append(line, sizeof(line) - 1, length, text);
    line[length++] = '\n';
    rk_call(SYS_write, 2, (long)line, (long)length, 0, 0, 0);
}

rk_signals rk_block_signals(void) {
    uint64_t all = ~UINT64_C(0);
    rk_signals before = {0};
    rk_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, (long)&before.bits, 8, 0, 0);
    return before;
}

void rk_restore_signals(rk_signals before) { rk_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before.bits, 0, 8, 0, 0); }

/* Returns whether a thread is dead, including a zombie. */
static bool is_dead(uint32_t thread) {
    siginfo_t info = {0};
    long flags = WEXITED | WNOHANG | WNOWAIT | __WALL;
    if (rk_call(SYS_waitid, P_PID, thread, (long)&info, flags, 0, 0) == 0 && info.si_pid == (pid_t)thread) return true;
    return rk_call(SYS_tkill, thread, 0, 0, 0, 0, 0) == -ESRCH;
}

/* Sleeps, as yielding in a real-time class would not let a lock's owner of another class run. */
static void sleep_briefly(void) {
    const struct timespec moment = {.tv_nsec = 20000};
    rk_call(SYS_nanosleep, (long)&moment, 0, 0, 0, 0, 0);
}

/* Takes a lock. Locks are held for microseconds with signals blocked, and zeroed in a forked child. Only a vfork child,
 * which shares its parent's memory, can leave one held, if it is killed. */
bool rk_lock(uint32_t *lock) {
    uint32_t own = (uint32_t)rk_call(SYS_gettid, 0, 0, 0, 0, 0, 0);
    for (uint32_t tries = 1;; tries++) {
        uint32_t owner = 0;
        if (__atomic_compare_exchange_n(lock, &owner, own, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return false;
        if (tries % PATIENCE == 0 && is_dead(owner) &&
            __atomic_compare_exchange_n(lock, &owner, own, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return true;
        if (tries % PATIENCE == 0)
            sleep_briefly();
        else
            rk_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
    }
}

void rk_unlock(uint32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }
