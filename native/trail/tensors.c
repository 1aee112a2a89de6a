/* tensors.c - saves tensors during a training. They are copied to a ring buffer at once; a worker writes them to shards
 * (safetensors), then the lines that refer to them to an index. docs/format.md describes both.
 *
 * After a write error everything further is dropped: a full disk ends the saving, not the training.
 *
 * Shards bypass the page cache (O_DIRECT) if the file system supports it, as copies to it take a quarter of the CPU
 * time of a training with small steps. So writes start at block boundaries, in memory and in the file, and the file is
 * truncated after the last value. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/reach.h"
#include "recorder/system.h"
#include "trail/trail.h"

#define SHARDS 1000000 /* limit of the digits in a name */
#define BLOCK  4096u

enum rkt_put { RKT_COPIED, RKT_HAND_OVER, RKT_TOO_LARGE, RKT_ENDED };

/* A value of a shard: its digest is written at offset `place` of the lines. One that has the bytes of an earlier value
 * has no size, and the place of that one's digest. */
struct rkt_value {
    uint64_t size, salt, place, earlier;
};

/* A shard to be written, in a separate mapping, followed by its tables and texts. */
struct rkt_shard {
    struct rkt_saver *saver;
    uint64_t mapped; /* bytes of this mapping */
    const uint8_t *data;
    uint64_t size; /* of the data */
    uint64_t end;  /* the ring is free up to here once the shard is written */
    uint64_t count, text;
    uint8_t *head; /* the head of the file, in whole blocks */
    uint64_t head_size;
    struct rkt_value values[];
};

struct rkt_saver {
    struct rkt_worker worker;
    char path[RK_RUN_PATH + 64]; /* without an ending */
    uint8_t *ring;
    uint64_t size;
    uint64_t begin, at, tail; /* of the shard being filled; the ring is free before tail; they only grow */
    uint64_t shards;          /* their number */
    uint32_t lock, error;
};

/* ---- the worker's ---------------------------------------------------------------------------------------------- */

static int write_all(int fd, const void *data, uint64_t size) {
    const uint8_t *bytes = data;
    while (size) {
        long n = rk_call(SYS_write, fd, (long)bytes, (long)(size < (1u << 30) ? size : (1u << 30)), 0, 0, 0);
        if (n == -EINTR) continue;
        if (n <= 0) return n ? (int)-n : ENOSPC;
        bytes += n;
        size -= (uint64_t)n;
    }
    return 0;
}

static uint64_t round_to_blocks(uint64_t size) { return (size + BLOCK - 1) & ~(uint64_t)(BLOCK - 1); }

static char *text_of(struct rkt_shard *shard) { return (char *)(shard->values + shard->count); }

static void write_digests(struct rkt_shard *shard) {
    const uint8_t *data = shard->data;
    for (uint64_t i = 0; i < shard->count; data += shard->values[i++].size) {
        const struct rkt_value *value = &shard->values[i];
        char digest[17], *text = text_of(shard);
        if (!value->earlier)
            rk_append_hex(digest, sizeof(digest), 0, reprokit_trail_digest(data, value->size, value->salt));
        memcpy(text + value->place, value->earlier ? text + value->earlier : digest, 16);
    }
}

static int write_file(const struct rkt_shard *shard, const char *path, int flags) {
    int fd = rk_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | flags, 0600);
    if (fd < 0) return -fd;
    int error = rk_within_limit(shard->head_size + round_to_blocks(shard->size)) ? 0 : EFBIG;
    if (!error) error = write_all(fd, shard->head, shard->head_size);
    if (!error) error = write_all(fd, shard->data, flags ? round_to_blocks(shard->size) : shard->size);
    if (!error && flags) error = (int)-rk_call(SYS_ftruncate, fd, (long)(shard->head_size + shard->size), 0, 0, 0, 0);
    rk_close(fd);
    return error;
}

/* Writes a shard under a temporary name first, so that no incomplete one is visible. */
static int write_shard(struct rkt_saver *saver, const struct rkt_shard *shard) {
    char path[sizeof(saver->path) + 32], temporary[sizeof(path)];
    size_t length = rk_append(path, sizeof(path), 0, saver->path);
    rk_append(temporary, sizeof(temporary), rk_append(temporary, sizeof(temporary), 0, path), ".partial");
    length = rk_append(path, sizeof(path), length, "-");
    for (uint64_t more = SHARDS / 10; more > 1 && saver->shards < more; more /= 10)
        length = rk_append(path, sizeof(path), length, "0");
    length = rk_append_number(path, sizeof(path), length, saver->shards);
    rk_append(path, sizeof(path), length, ".safetensors");
    bool is_aligned = (uintptr_t)shard->data % BLOCK == 0;
    int error = is_aligned ? write_file(shard, temporary, O_DIRECT) : EINVAL;
    if (error == EINVAL) error = write_file(shard, temporary, 0);
    if (!error) error = (int)-rk_call(SYS_renameat2, AT_FDCWD, (long)temporary, AT_FDCWD, (long)path, 0, 0);
    if (error) rk_remove(temporary);
    saver->shards++;
    return error;
}

/* Writes all lines or none. */
static int write_lines(const struct rkt_saver *saver, const char *text, uint64_t size, int flags) {
    char path[sizeof(saver->path) + 8];
    rk_append(path, sizeof(path), rk_append(path, sizeof(path), 0, saver->path), ".jsonl");
    int fd = rk_open(path, O_WRONLY | O_NOFOLLOW | flags, 0600);
    if (fd < 0) return -fd;
    long before = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    int error = rk_within_limit((uint64_t)before + size) ? write_all(fd, text, size) : EFBIG;
    if (error) rk_call(SYS_ftruncate, fd, before, 0, 0, 0, 0);
    rk_close(fd);
    return error;
}

static void save(void *job) {
    struct rkt_shard *shard = job;
    struct rkt_saver *saver = shard->saver;
    int error = (int)saver->error;
    if (!error && shard->count) {
        write_digests(shard);
        error = write_shard(saver, shard);
    }
    if (!error) error = write_lines(saver, text_of(shard), shard->text, O_APPEND);
    __atomic_store_n(&saver->error, (uint32_t)error, __ATOMIC_SEQ_CST);
    __atomic_store_n(&saver->tail, shard->end, __ATOMIC_SEQ_CST);
    rk_unmap(shard, shard->mapped);
}

/* ---- the training's -------------------------------------------------------------------------------------------- */

static int create_index(struct rkt_saver *saver, const char *directory, const char *identity, const char *text) {
    size_t length = rk_append(saver->path, sizeof(saver->path), 0, directory);
    rk_call(SYS_mkdirat, AT_FDCWD, (long)saver->path, 0700, 0, 0, 0);
    length = rk_append(saver->path, sizeof(saver->path), length, "/");
    length = rk_append_hex(saver->path, sizeof(saver->path), length, rk_check(identity, strlen(identity), 0));
    length = rk_append(saver->path, sizeof(saver->path), length, "-");
    for (uint64_t incarnation = 0;; incarnation++) {
        rk_append_number(saver->path, sizeof(saver->path), length, incarnation);
        int error = write_lines(saver, text, strlen(text), O_CREAT | O_EXCL);
        if (error != EEXIST) return error;
    }
}

/* Creates a saver for this process, with the first line of its index; NULL on failure, with the reason in *error. */
RK_EXPORT struct rkt_saver *reprokit_trail_saver(const char *directory, const char *identity, const char *text,
                                                 uint64_t size, int *error) {
    int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    struct rkt_saver *saver = rk_map(sizeof(*saver), protection, flags, -1, 0);
    uint8_t *ring = rk_map(round_to_blocks(size) + BLOCK, protection, flags | MAP_NORESERVE, -1, 0);
    *error = saver && ring ? create_index(saver, directory, identity, text) : ENOMEM;
    if (*error) return NULL;
    saver->ring = ring;
    saver->size = round_to_blocks(size);
    saver->worker.work = save;
    return saver;
}

/* Returns the path of the saver's files, without an ending. */
RK_EXPORT const char *reprokit_trail_saver_path(const struct rkt_saver *saver) { return saver->path; }

/* Finds room for a value in the ring; false if the current shard must be handed over first, or the ring is full. */
static bool find_room(struct rkt_saver *saver, uint64_t size) {
    uint64_t offset = saver->begin % saver->size + saver->at - saver->begin; /* not 0 where the shard fills the ring */
    if (offset + size > saver->size) {
        if (saver->at != saver->begin) return false;
        saver->begin = saver->at += saver->size - offset;
    }
    return saver->at + size - __atomic_load_n(&saver->tail, __ATOMIC_SEQ_CST) <= saver->size;
}

static bool is_busy(const struct rkt_saver *saver) {
    return __atomic_load_n(&saver->worker.done, __ATOMIC_SEQ_CST) < saver->worker.queued;
}

/* Returns at once if the worker has become idle meanwhile: no further shard would end the wait. */
static void wait_for_next_shard(struct rkt_saver *saver) {
    uint64_t done = __atomic_load_n(&saver->worker.done, __ATOMIC_SEQ_CST);
    if (done < saver->worker.queued) rkt_wait(&saver->worker, done + 1);
}

/* Copies a value after the previous ones; waits for the worker if the ring is full. */
RK_EXPORT uint32_t reprokit_trail_put(struct rkt_saver *saver, const void *data, uint64_t size) {
    if (__atomic_load_n(&saver->error, __ATOMIC_SEQ_CST)) return RKT_ENDED;
    if (saver->at == saver->begin && !is_busy(saver)) /* all is written: reuse the start, which is in the caches */
        saver->begin = saver->at = saver->tail = 0;
    if (size > saver->size / 2) return saver->at == saver->begin ? RKT_TOO_LARGE : RKT_HAND_OVER;
    while (!find_room(saver, size)) {
        if (saver->at != saver->begin) return RKT_HAND_OVER;
        wait_for_next_shard(saver);
        if (!is_busy(saver)) saver->begin = saver->at = saver->tail = 0;
    }
    memcpy(saver->ring + saver->at % saver->size, data, size);
    saver->at += size;
    return RKT_COPIED;
}

/* Returns whether data are the same bytes as those copied to the offset of the shard that is being filled. */
RK_EXPORT uint32_t reprokit_trail_is_copy(const struct rkt_saver *saver, const void *data, uint64_t size,
                                          uint64_t offset) {
    return !memcmp(saver->ring + saver->begin % saver->size + offset, data, size);
}

static void write_head(struct rkt_shard *shard, const char *head, uint64_t size) {
    uint64_t length = shard->head_size - 8;
    memcpy(shard->head, &length, 8);
    memcpy(shard->head + 8, head, size);
    memset(shard->head + 8 + size, ' ', length - size);
}

static struct rkt_shard *new_shard(struct rkt_saver *saver, const struct rkt_value *values, uint64_t count,
                                   const char *head, uint64_t head_size, const char *text, uint64_t text_size) {
    uint64_t table = sizeof(*values) * count, front = round_to_blocks(sizeof(struct rkt_shard) + table + text_size);
    uint64_t size = front + round_to_blocks(8 + head_size);
    struct rkt_shard *shard = rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!shard) return NULL;
    *shard = (struct rkt_shard){.saver = saver,
                                .mapped = size,
                                .count = count,
                                .text = text_size,
                                .head = (uint8_t *)shard + front,
                                .head_size = size - front};
    memcpy(shard->values, values, table);
    memcpy(text_of(shard), text, text_size);
    write_head(shard, head, head_size);
    return shard;
}

static uint64_t queue_shard(struct rkt_saver *saver, struct rkt_shard *shard) {
    rk_signals before = rk_block_signals();
    rk_lock(&saver->lock);
    uint64_t ticket = rkt_hand_over(&saver->worker, shard);
    rk_unlock(&saver->lock);
    rk_restore_signals(before);
    return ticket;
}

/* Hands over the values since the last call, or the one at `data`: then it waits until that is written. Returns 0 if
 * memory is short. */
RK_EXPORT uint32_t reprokit_trail_shard(struct rkt_saver *saver, const struct rkt_value *values, uint64_t count,
                                        const char *head, uint64_t head_size, const char *text, uint64_t text_size,
                                        const void *data) {
    struct rkt_shard *shard = new_shard(saver, values, count, head, head_size, text, text_size);
    if (!shard) return 0;
    shard->data = data ? data : saver->ring + saver->begin % saver->size;
    for (uint64_t i = 0; i < count; i++) shard->size += values[i].size;
    shard->end = round_to_blocks(saver->at);
    uint64_t ticket, shard_end = shard->end; /* the worker unmaps the shard */
    while (!(ticket = queue_shard(saver, shard))) {
        if (!is_busy(saver)) { /* no thread can be created */
            save(shard);
            break;
        }
        wait_for_next_shard(saver);
    }
    if (data && ticket) rkt_wait(&saver->worker, ticket);
    saver->begin = saver->at = shard_end;
    return 1;
}

/* Writes everything that was handed over, before a fork and at the end. Returns the error, or 0. */
RK_EXPORT uint32_t reprokit_trail_settle(struct rkt_saver *saver) {
    rkt_stop(&saver->worker, &saver->lock);
    return __atomic_load_n(&saver->error, __ATOMIC_SEQ_CST);
}

/* Writes lines alone, as after a full disk has ended the saving. */
RK_EXPORT uint32_t reprokit_trail_lines(struct rkt_saver *saver, const char *text, uint64_t size) {
    rkt_stop(&saver->worker, &saver->lock);
    return (uint32_t)write_lines(saver, text, size, O_APPEND);
}
