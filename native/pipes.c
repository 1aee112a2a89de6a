/* pipes.c - digests of what the program reads from pipes that come from outside of it, as nobody can read them again:
 * FIFOs that are opened by name, /dev/fd/63 of a shell's process substitution, and the launcher's standard input. A
 * line of REPROKIT_RUN/pipes.list for each MiB: process, which of its pipes, which MiB, its bytes, their digest, the
 * name.
 *
 * Only a marked descriptor comes here (devices.c): a read of any other costs nothing. What stdio reads of a pipe is
 * read inside libc, past every hook.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "hooks.h"

#define PIPES  16 /* of one process that are digested */
#define NAME   512
#define PIECE  (1u << 20)
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)
#define START  UINT64_C(0xC2B2AE3D27D4EB4F)

struct pipe {
    uint64_t device, inode;
    uint64_t piece;        /* the MiB that is being read */
    uint64_t hash;         /* of its whole words so far */
    uint64_t word;         /* and its bytes behind them */
    uint32_t filled, told; /* bytes of it that were read, and that a line says */
    char name[NAME];
};

static struct pipe pipes[PIPES];
static uint32_t count, lock, generation;

static uint64_t step(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * FACTOR;
    return hash ^ (hash >> 32);
}

static void begin(struct pipe *pipe, uint64_t piece) {
    pipe->piece = piece;
    pipe->hash = START;
    pipe->word = pipe->filled = pipe->told = 0;
}

static int find(const struct stat *status) {
    uint32_t known = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < known; i++)
        if (pipes[i].device == status->st_dev && pipes[i].inode == status->st_ino) return (int)i;
    return -1;
}

/* Signal handlers read as well. */
static rk_signals enter(void) {
    rk_process_check();
    rk_signals before = rk_block_signals();
    rk_lock(&lock);
    if (generation != rk_generation) { /* of a forked child: what its parent read is the parent's */
        for (uint32_t i = 0; i < count; i++) begin(&pipes[i], 0);
        generation = rk_generation;
    }
    return before;
}

static void leave(rk_signals before) {
    rk_unlock(&lock);
    rk_restore_signals(before);
}

static int add(const struct stat *status, const char *name) {
    rk_signals before = enter();
    int found = find(status);
    if (found < 0 && count < PIPES) {
        struct pipe *pipe = &pipes[found = (int)count];
        pipe->device = status->st_dev;
        pipe->inode = status->st_ino;
        rk_append(pipe->name, NAME, 0, name);
        begin(pipe, 0);
        __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
    }
    leave(before);
    return found;
}

int rk_pipe_of(int fd, const struct stat *status) {
    if (!rk_active()) return -1;
    int found = find(status);
    if (found >= 0) return found;
    if (rk_plan.has_pipe && status->st_dev == rk_plan.pipe[0] && status->st_ino == rk_plan.pipe[1])
        return add(status, "stdin");
    char path[NAME];
    size_t length = rk_name_of(fd, path, sizeof(path));
    return length == 0 || length >= sizeof(path) || *path != '/' ? -1 : add(status, path);
}

void rk_pipe_opened(int fd, const char *path) {
    struct stat status;
    if (rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0 || !S_ISFIFO(status.st_mode)) return;
    if (find(&status) < 0 && strlen(path) < NAME) add(&status, path);
}

static void tell(struct pipe *pipe) {
    char line[RK_IDENTITY + 2 * NAME + 128];
    size_t n = rk_append(line, sizeof(line), 0, rk_identity);
    const uint64_t numbers[] = {(uint64_t)(pipe - pipes), pipe->piece, pipe->filled};
    for (size_t i = 0; i < RK_LENGTH(numbers); i++) {
        line[n++] = ' ';
        n = rk_append_number(line, sizeof(line), n, numbers[i]);
    }
    line[n++] = ' ';
    n = rk_append_hex(line, sizeof(line), n, step(step(pipe->hash, pipe->word), pipe->filled));
    line[n++] = ' ';
    n += rk_escape(line + n, pipe->name);
    line[n++] = '\n';
    rk_append_line("/pipes.list", line, n);
    pipe->told = pipe->filled;
}

static void take_byte(struct pipe *pipe, uint8_t byte) {
    pipe->word |= (uint64_t)byte << 8 * (pipe->filled++ % 8);
    if (pipe->filled % 8) return;
    pipe->hash = step(pipe->hash, pipe->word);
    pipe->word = 0;
}

/* Of one piece: words, whatever the sizes of the reads were. */
static void take(struct pipe *pipe, const uint8_t *at, size_t size) {
    for (; size > 0 && pipe->filled % 8; size--) take_byte(pipe, *at++);
    for (uint64_t word; size >= sizeof(word); size -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        pipe->hash = step(pipe->hash, word);
        pipe->filled += sizeof(word);
    }
    for (; size > 0; size--) take_byte(pipe, *at++);
}

ssize_t rk_pipe_given(int number, const void *buffer, ssize_t given) {
    if (given < 0) return given;
    int error = errno;
    rk_signals before = enter();
    struct pipe *pipe = &pipes[number];
    if (given == 0 && pipe->told < pipe->filled) tell(pipe); /* its end, for now */
    for (size_t left = (size_t)given; left > 0;) {
        size_t room = PIECE - pipe->filled, size = left < room ? left : room;
        take(pipe, (const uint8_t *)buffer + ((size_t)given - left), size);
        left -= size;
        if (pipe->filled < PIECE) continue;
        tell(pipe);
        begin(pipe, pipe->piece + 1);
    }
    leave(before);
    errno = error;
    return given;
}

void rk_pipes_end(void) {
    if (__atomic_load_n(&count, __ATOMIC_ACQUIRE) == 0) return;
    rk_signals before = enter();
    for (uint32_t i = 0; i < count; i++)
        if (pipes[i].told < pipes[i].filled) tell(&pipes[i]);
    leave(before);
}
