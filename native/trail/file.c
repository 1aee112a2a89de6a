/* file.c - the trail's file: created at the first step, extended by mapped chunks. No descriptor stays open, and blocks
 * are allocated before they are written. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/reach.h"
#include "recorder/system.h"
#include "trail/trail.h"

_Static_assert(sizeof(struct rkt_head) == 512, "the layout of a trail's head");
_Static_assert(sizeof(struct rkt_chunk) == 64, "the layout of a chunk's head");
_Static_assert(sizeof(struct rkt_record) == 88, "the layout of a step");

static void give_up(struct rkt_trail *trail, enum rk_reason reason, int error) {
    if (trail->head->gave_up) return;
    trail->head->gave_up_errno = (uint32_t)error;
    trail->head->gave_up = reason;
}

static enum rk_reason reason_of(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return RK_REASON_DISK_FULL;
    case EFBIG:
        return RK_REASON_FILE_LIMIT;
    case ENOMEM:
        return RK_REASON_CANNOT_MAP;
    default:
        return RK_REASON_CANNOT_OPEN;
    }
}

static int map_more(int fd, uint64_t offset, uint64_t size, void **mapped) {
    int error = offset + size > RKT_LARGEST ? EFBIG : rk_reserve(fd, offset, size);
    if (error) return error;
    uint64_t before = offset & (getauxval(AT_PAGESZ) - 1);
    uint8_t *window = rk_map(before + size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset - before);
    *mapped = window ? window + before : NULL;
    return window ? 0 : ENOMEM;
}

void rkt_unmap(const struct rkt_chunk *chunk) {
    uintptr_t before = (uintptr_t)chunk & (getauxval(AT_PAGESZ) - 1);
    rk_unmap((uint8_t *)chunk - before, before + chunk->size);
}

static void seal(struct rkt_chunk *chunk) { chunk->check = rk_check(chunk, offsetof(struct rkt_chunk, check), 0); }

/* Appends a chunk with this head, followed by zeros; NULL on a full disk. */
struct rkt_chunk *rkt_take(struct rkt_trail *trail, const struct rkt_chunk *head) {
    if (trail->head->gave_up) return NULL;
    void *chunk = NULL;
    int fd = rk_open(trail->path, O_RDWR | O_NOFOLLOW, 0);
    if (fd == -EMFILE || fd == -ENFILE) return NULL; /* the next step tries again */
    int error = fd < 0 ? -fd : map_more(fd, trail->head->used, head->size, &chunk);
    if (fd >= 0) rk_close(fd);
    if (error) {
        give_up(trail, reason_of(error), error);
        return NULL;
    }
    memcpy(chunk, head, sizeof(*head));
    seal(chunk);
    __atomic_store_n(&trail->head->used, trail->head->used + head->size, __ATOMIC_RELEASE);
    return chunk;
}

static size_t append_place(char *path, size_t size, const char *run, const char *identity, const char *separator,
                           uint32_t number) {
    size_t length = rk_append(path, size, 0, run);
    length = rk_append(path, size, length, "/trail/");
    length = rk_append_hex(path, size, length, rk_check(identity, strlen(identity), 0));
    length = rk_append(path, size, length, separator);
    return rk_append_number(path, size, length, number);
}

static void write_head(struct rkt_head *head, const char *identity) {
    memcpy(head->magic, "RKTRAIL", 8);
    head->format = RKT_FORMAT;
    head->pid = (uint32_t)rk_getpid();
    rk_append(head->identity, sizeof(head->identity), 0, identity);
    head->used = sizeof(*head);
}

/* Links the complete file under the first name that no other process of this identity has. */
static int link_under_free_name(struct rkt_trail *trail, const char *temporary, const char *run, const char *identity) {
    for (uint32_t incarnation = 0;; incarnation++) {
        trail->head->incarnation = incarnation;
        trail->head->check = rk_check(trail->head, offsetof(struct rkt_head, check), 0);
        size_t length = append_place(trail->path, sizeof(trail->path), run, identity, "-", incarnation);
        rk_append(trail->path, sizeof(trail->path), length, ".trail");
        const char *path = trail->path;
        long error = rk_link(temporary, path);
        if (error == -EPERM || error == -EOPNOTSUPP) /* a file system without links */
            error = rk_rename(temporary, path);
        if (error != -EEXIST) return (int)-error;
    }
}

int rkt_make_file(struct rkt_trail *trail, const char *run, const char *identity) {
    char directory[RK_RUN_PATH + 16], temporary[RK_RUN_PATH + 96];
    rk_append(directory, sizeof(directory), rk_append(directory, sizeof(directory), 0, run), "/trail");
    rk_call(SYS_mkdirat, AT_FDCWD, (long)directory, 0700, 0, 0, 0);
    size_t length = append_place(temporary, sizeof(temporary), run, identity, ".", (uint32_t)rk_getpid());
    rk_append(temporary, sizeof(temporary), length, ".new");
    int fd = rk_open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd < 0) return -fd;
    int error = map_more(fd, 0, sizeof(struct rkt_head), (void **)&trail->head);
    rk_close(fd);
    if (!error) {
        write_head(trail->head, identity);
        error = link_under_free_name(trail, temporary, run, identity);
    }
    rk_remove(temporary);
    return error;
}

/* Removes unused room for steps from the end of the file. */
void rkt_trim(struct rkt_trail *trail, struct rkt_series *last) {
    struct rkt_chunk *chunk = last ? last->recent[0] : NULL;
    if (!chunk || last->end != trail->head->used) return;
    uint64_t spare = (chunk->count - (last->next - chunk->first)) * rkt_record_size(chunk->kept);
    int fd = rk_open(trail->path, O_RDWR | O_NOFOLLOW, 0);
    if (fd < 0) return;
    chunk->count = (uint32_t)(last->next - chunk->first);
    chunk->size -= spare;
    seal(chunk);
    trail->head->used -= spare;
    rk_call(SYS_ftruncate, fd, (long)trail->head->used, 0, 0, 0, 0);
    rk_close(fd);
}
