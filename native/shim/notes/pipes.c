/* pipes.c - digests what the program reads from pipes that come from outside of the run, as it cannot be read again:
 * FIFOs opened by name, /dev/fd/63 of a shell's process substitution, and the launcher's standard input. Each MiB is a
 * line of REPROKIT_RUN/pipes.list: process, index of the pipe, index of the MiB, its bytes, their digest, the name.
 *
 * Only reads of marked descriptors get here (devices.c); others cost nothing. stdio reads inside libc, where no hook
 * sees it.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/host.h"
#include "recorder/names.h"
#include "recorder/plan.h"
#include "recorder/system.h"
#include "shim/identity/state.h"
#include "shim/notes/pipes.h"

#define PIPES  16 /* of one process that are digested */
#define NAME   512
#define PIECE  (1u << 20)
#define FACTOR UINT64_C(0x9E3779B97F4A7C15)
#define START  UINT64_C(0xC2B2AE3D27D4EB4F)

struct pipe {
    uint64_t device, inode;
    uint64_t piece;            /* the MiB that is being read */
    uint64_t hash;             /* of the piece's complete words so far */
    uint64_t word;             /* its bytes after these words */
    uint32_t filled, reported; /* bytes of the piece that were read, and that were reported */
    char name[NAME];
};

static struct pipe pipes[PIPES];
static uint32_t count, lock, generation;

static uint64_t step(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * FACTOR;
    return hash ^ (hash >> 32);
}

static void begin_piece(struct pipe *pipe, uint64_t piece) {
    pipe->piece = piece;
    pipe->hash = START;
    pipe->word = pipe->filled = pipe->reported = 0;
}

static int find_pipe(const struct stat *status) {
    uint32_t pipe_count = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < pipe_count; i++)
        if (pipes[i].device == status->st_dev && pipes[i].inode == status->st_ino) return (int)i;
    return -1;
}

/* Locks the table with signals blocked, as signal handlers read pipes too. */
static rk_signals lock_pipes(void) {
    rk_process_check();
    rk_signals before = rk_block_signals();
    rk_lock(&lock);
    if (generation != rk_generation) { /* of a forked child: what its parent read is the parent's */
        for (uint32_t i = 0; i < count; i++) begin_piece(&pipes[i], 0);
        generation = rk_generation;
    }
    return before;
}

static void unlock_pipes(rk_signals before) {
    rk_unlock(&lock);
    rk_restore_signals(before);
}

static int add_pipe(const struct stat *status, const char *name) {
    rk_signals before = lock_pipes();
    int index = find_pipe(status);
    if (index < 0 && count < PIPES) {
        struct pipe *pipe = &pipes[index = (int)count];
        pipe->device = status->st_dev;
        pipe->inode = status->st_ino;
        rk_append(pipe->name, NAME, 0, name);
        begin_piece(pipe, 0);
        __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
    }
    unlock_pipes(before);
    return index;
}

int rk_pipe_of(int fd, const struct stat *status) {
    if (!rk_active()) return -1;
    int index = find_pipe(status);
    if (index >= 0) return index;
    if (rk_plan.has_pipe && status->st_dev == rk_plan.pipe[0] && status->st_ino == rk_plan.pipe[1])
        return add_pipe(status, "stdin");
    char path[NAME];
    size_t length = rk_name_of(fd, path, sizeof(path));
    return length == 0 || length >= sizeof(path) || *path != '/' ? -1 : add_pipe(status, path);
}

void rk_pipe_opened(int fd, const char *path) {
    struct stat status;
    if (rk_call(SYS_fstat, fd, (long)&status, 0, 0, 0, 0) != 0 || !S_ISFIFO(status.st_mode)) return;
    if (find_pipe(&status) < 0 && strlen(path) < NAME) add_pipe(&status, path);
}

static void write_digest(struct pipe *pipe) {
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
    pipe->reported = pipe->filled;
}

static void digest_byte(struct pipe *pipe, uint8_t byte) {
    pipe->word |= (uint64_t)byte << 8 * (pipe->filled++ % 8);
    if (pipe->filled % 8) return;
    pipe->hash = step(pipe->hash, pipe->word);
    pipe->word = 0;
}

/* Digests bytes of one piece by words, independently of the sizes of reads. */
static void digest_bytes(struct pipe *pipe, const uint8_t *at, size_t size) {
    for (; size > 0 && pipe->filled % 8; size--) digest_byte(pipe, *at++);
    for (uint64_t word; size >= sizeof(word); size -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        pipe->hash = step(pipe->hash, word);
        pipe->filled += sizeof(word);
    }
    for (; size > 0; size--) digest_byte(pipe, *at++);
}

ssize_t rk_pipe_given(int number, const void *buffer, ssize_t given) {
    if (given < 0) return given;
    int error = errno;
    rk_signals before = lock_pipes();
    struct pipe *pipe = &pipes[number];
    if (given == 0 && pipe->reported < pipe->filled) write_digest(pipe); /* its end, for now */
    for (size_t left = (size_t)given; left > 0;) {
        size_t room = PIECE - pipe->filled, size = left < room ? left : room;
        digest_bytes(pipe, (const uint8_t *)buffer + ((size_t)given - left), size);
        left -= size;
        if (pipe->filled < PIECE) continue;
        write_digest(pipe);
        begin_piece(pipe, pipe->piece + 1);
    }
    unlock_pipes(before);
    errno = error;
    return given;
}

void rk_pipes_end(void) {
    if (__atomic_load_n(&count, __ATOMIC_ACQUIRE) == 0) return;
    rk_signals before = lock_pipes();
    for (uint32_t i = 0; i < count; i++)
        if (pipes[i].reported < pipes[i].filled) write_digest(&pipes[i]);
    unlock_pipes(before);
}
