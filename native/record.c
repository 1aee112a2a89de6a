/* record.c - the entropy file of this process: made at its first request, grown by windows that are
 * mapped into memory, handed out to threads in chunks. A SIGKILL loses nothing that was committed:
 * the pages belong to the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "internal.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define FIRST_WINDOW   8192
#define LARGEST_WINDOW (4u << 20)
#define FIRST_CHUNK    512
#define LARGEST_CHUNK  65536
#define PAGE           UINT64_C(4096)
#define SMALLEST_REST  256 /* of a window that is still worth a chunk */

/* A mapping of this process alone, which those that are forked neither see nor pay for. */
void rk_keep(const void *start, uint64_t size) {
    rk_call(SYS_madvise, (long)start, (long)size, MADV_DONTFORK, 0, 0, 0);
}

static void share(const void *start, const void *end) {
    uintptr_t from = (uintptr_t)start & ~(uintptr_t)(PAGE - 1);
    uintptr_t to = ((uintptr_t)end + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    if (start) rk_call(SYS_madvise, (long)from, (long)(to - from), MADV_DOFORK, 0, 0, 0);
}

/* A signal handler forks in the midst of a request, which the child will end too: see identity.c. */
void rk_share_request(const struct rk_thread *thread) {
    const struct rk_process *process = rk_process;
    for (size_t i = 0; i < RK_LENGTH(thread->streams); i++) share(thread->streams[i].chunk, thread->streams[i].end);
    if (process->file) share(process->file, process->file + 1);
    if (process->profile) share(process->profile, process->profile + process->profile_size);
    if (process->slots) share(process->slots, process->slots + RK_STREAMS_MOST);
}

void rk_entropy_path(char *path, size_t size, const char *directory, uint64_t hash, uint32_t number,
                     const char *ending) {
    size_t length = rk_append(path, size, 0, directory);
    length = rk_append(path, size, length, "/");
    length = rk_append_hex(path, size, length, hash);
    length = rk_append(path, size, length, "-");
    length = rk_append_number(path, size, length, number);
    rk_append(path, size, length, ending);
}

uint64_t rk_identity_hash(void) { return rk_check(rk_identity, strlen(rk_identity), 0); }

static void directory_path(char path[RK_RUN_PATH + 16]) {
    rk_append(path, RK_RUN_PATH + 16, rk_append(path, RK_RUN_PATH + 16, 0, rk_run), "/entropy");
}

static void file_path(char *path, size_t size, uint32_t incarnation, const char *ending) {
    char directory[RK_RUN_PATH + 16];
    directory_path(directory);
    rk_entropy_path(path, size, directory, rk_identity_hash(), incarnation, ending);
}

/* Says in the run directory that this process is not recorded any more. Where there is no file to
 * say it in, an empty one with a telling name needs no block of the disk. */
void rk_give_up(enum rk_reason reason, int error) {
    if (rk_process->file) {
        if (rk_process->file->gave_up == RK_REASON_NONE) {
            rk_process->file->gave_up_errno = (uint32_t)error;
            rk_process->file->gave_up = reason;
        }
        return;
    }
    char path[RK_RUN_PATH + 96], ending[64];
    size_t length = rk_append(ending, sizeof(ending), 0, "-");
    length = rk_append_number(ending, sizeof(ending), length, reason);
    length = rk_append(ending, sizeof(ending), length, "-");
    length = rk_append_number(ending, sizeof(ending), length, (uint64_t)error);
    rk_append(ending, sizeof(ending), length, ".lost");
    file_path(path, sizeof(path), (uint32_t)rk_process->pid, ending);
    int fd = rk_open(path, O_WRONLY | O_CREAT, 0600);
    if (fd < 0) rk_tell_lost(RK_LOST_FILE, rk_identity);
    if (fd >= 0) rk_close(fd);
}

/* Its first bytes last, by which a reader of a slot knows that the rest is there. */
static void write_head(struct rk_file *file, uint32_t incarnation) {
    struct timespec now = {0};
    char path[PATH_MAX];
    rk_call(SYS_clock_gettime, CLOCK_REALTIME, (long)&now, 0, 0, 0, 0);
    struct rk_file head = {
        .magic = "RKENTROP",
        .format = RK_FORMAT,
        .mode = rk_plan.mode,
        .started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
        .pid = (uint32_t)rk_process->pid,
        .incarnation = incarnation,
        .used = RK_HEAD,
    };
    rk_append(head.identity, sizeof(head.identity), 0, rk_identity);
    rk_append(head.program, sizeof(head.program), 0, rk_program(path));
    head.head_check = rk_check(&head, offsetof(struct rk_file, head_check), 0);
    uint64_t magic;
    memcpy(&magic, head.magic, sizeof(magic));
    memcpy((uint8_t *)file + sizeof(magic), (uint8_t *)&head + sizeof(magic), sizeof(head) - sizeof(magic));
    __atomic_store_n((uint64_t *)file, magic, __ATOMIC_RELEASE);
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

/* No descriptor is free just now: the next request tries again, and this one is counted. */
static bool is_passing(int error) { return error == EMFILE || error == ENFILE; }

static const struct rk_window *window(void) { return &rk_process->windows[rk_process->window]; }

/* Of the file, whose end is the window's. */
static uint64_t capacity(void) { return window()->offset + window()->size; }

/* Blocks for size more bytes of the file, mapped; the descriptor is closed again at once, so that the
 * program neither sees nor closes it. */
static int add_window(int fd, uint64_t size, bool large) {
    uint64_t end = capacity();
    int error = rk_reserve(fd, end - rk_process->in_slot, size);
    if (error) return error;
    uint8_t *start = rk_map(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, end - rk_process->in_slot);
    if (!start) return ENOMEM;
    /* One call instead of a page fault for every 4 KiB; Linux 5.14, and of no harm before. Where large events
     * will be written, a page fault must bring no more than its page. */
    rk_call(SYS_madvise, (long)start, (long)size, large ? MADV_RANDOM : MADV_POPULATE_WRITE, 0, 0, 0);
    rk_keep(start, size);
    uint32_t next = 1 - rk_process->window;
    rk_process->windows[next] = (struct rk_window){start, end, size};
    __atomic_store_n(&rk_process->window, next, __ATOMIC_RELEASE); /* at once: a vfork child may be killed here */
    return 0;
}

/* Looked for when the name was given, as whoever takes a slot looks for the name when it has it. */
static bool is_in_pool(uint32_t incarnation) {
    char directory[RK_RUN_PATH + 16];
    uint64_t offset;
    directory_path(directory);
    int fd = rk_pool_find(directory, rk_identity_hash(), incarnation, &offset);
    if (fd >= 0) rk_close(fd);
    return fd >= 0;
}

/* Gives the file, whole with its head, the first name that no other process of this identity has. */
static int take_name(const char *temporary, struct rk_file *file) {
    char path[RK_RUN_PATH + 96];
    for (uint32_t incarnation = 0;; incarnation++) {
        write_head(file, incarnation);
        file_path(path, sizeof(path), incarnation, ".entropy");
        long error = rk_link(temporary, path);
        if (error == -EPERM || error == -EOPNOTSUPP) /* a file system without links */
            error = rk_rename(temporary, path);
        if (!error && is_in_pool(incarnation)) {
            rk_remove(path);
            error = -EEXIST;
        }
        if (error != -EEXIST) return (int)-error;
    }
}

static void use(struct rk_file *file, uint32_t incarnation) {
    rk_process->incarnation = incarnation;
    file->uncounted = rk_process->uncounted;
    file->runtimes = rk_process->runtimes;
    __atomic_store_n(&rk_process->file, file, __ATOMIC_RELEASE);
}

/* Of the pool, in the place of a file's first page. */
static bool take_slot(void) {
    char directory[RK_RUN_PATH + 16];
    uint32_t incarnation;
    directory_path(directory);
    uint8_t *slot = rk_is_forked ? rk_pool_take(directory, rk_identity_hash(), &incarnation) : NULL;
    if (!slot) return false;
    rk_keep(slot, RK_SLOT);
    rk_process->windows[0] = (struct rk_window){slot, 0, RK_SLOT};
    rk_process->in_slot = RK_SLOT;
    write_head((struct rk_file *)slot, incarnation);
    use((struct rk_file *)slot, incarnation);
    return true;
}

static int make_file(void) {
    memset(rk_process->windows, 0, sizeof(rk_process->windows)); /* of a vfork child that was killed here */
    rk_process->window = 0;
    rk_process->in_slot = 0;
    if (take_slot()) return 0;
    char temporary[RK_RUN_PATH + 96];
    file_path(temporary, sizeof(temporary), (uint32_t)rk_process->pid, ".new");
    int fd = rk_open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd < 0) return -fd;
    int error = add_window(fd, rk_plan.keyed && !rk_plan.clock ? RK_HEAD : FIRST_WINDOW, false);
    rk_close(fd);
    struct rk_file *file = (struct rk_file *)window()->start;
    if (!error) error = take_name(temporary, file);
    rk_remove(temporary);
    if (!error) use(file, file->incarnation);
    return error;
}

bool rk_file_ready(void) {
    if (RK_UNLIKELY(!__atomic_load_n(&rk_process->opened, __ATOMIC_ACQUIRE))) {
        rk_signals before = rk_block_signals();
        if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
        if (!rk_process->opened) {
            int error = rk_process->file ? 0 : make_file();
            if (is_passing(error) && rk_plan.mode == RK_MODE_RECORD) {
                rk_unlock(&rk_process->lock);
                rk_restore_signals(before);
                return false;
            }
            if (error) rk_give_up(reason_of(error), error);
            if (rk_plan.mode == RK_MODE_REPLAY && !rk_process->profile) rk_profile_open();
            __atomic_store_n(&rk_process->opened, 1, __ATOMIC_RELEASE);
        }
        rk_unlock(&rk_process->lock);
        rk_restore_signals(before);
    }
    return rk_process->file && rk_process->file->gave_up == RK_REASON_NONE;
}

/* Where the windows lie; of a process with a slot what follows it. */
static int open_file(void) {
    char path[RK_RUN_PATH + 96];
    file_path(path, sizeof(path), rk_process->incarnation, rk_process->in_slot ? RK_REST : ".entropy");
    return rk_open(path, O_RDWR | O_NOFOLLOW | (rk_process->in_slot ? O_CREAT : 0), 0600);
}

static int grow(uint64_t need, bool large) {
    /* Doubled while small, then by an eighth: what is reserved and never written stays little. */
    uint64_t end = capacity(), size = end <= LARGEST_CHUNK ? end : end / 8;
    if (size < LARGEST_CHUNK && end > LARGEST_CHUNK) size = LARGEST_CHUNK;
    if (size > LARGEST_WINDOW) size = LARGEST_WINDOW;
    if (size < need) size = need;
    size = (size + 4095) & ~UINT64_C(4095);
    int fd = open_file();
    if (fd < 0) return -fd;
    int error = add_window(fd, size, large);
    rk_close(fd);
    return error;
}

/* Its head is written before the file's `used` grows: a reader meets whole chunks only. */
static struct rk_chunk *take(uint64_t size, uint64_t stream, uint64_t ordinal) {
    struct rk_file *file = rk_process->file;
    struct rk_chunk *chunk = (struct rk_chunk *)(window()->start + (file->used - window()->offset));
    chunk->magic = RK_CHUNK_MAGIC;
    chunk->size = (uint32_t)(size / 64);
    chunk->stream = stream;
    chunk->ordinal = ordinal;
    chunk->check = rk_check(chunk, offsetof(struct rk_chunk, check), 0);
    __atomic_store_n(&file->used, file->used + size, __ATOMIC_RELEASE);
    return chunk;
}

/* Where a page is copied to a place that lies less than 64 bytes further into its page, some processors take five
 * times as long, as each load looks like what was just stored (4K aliasing). A chunk of no stream in front of
 * one with a large event keeps that from a replay, whose buffer lies where the recording's did. */
static void leave_gap(const void *buffer) {
    uint64_t gap = ((uintptr_t)buffer + 63 - rk_process->file->used) & (PAGE - 1) & ~UINT64_C(63);
    if (gap) take(gap, 0, 0);
}

static int allocate(struct rk_stream *stream, uint64_t need, const void *buffer) {
    if (!rk_process->file) return EBADF; /* a detached request */
    if (stream->end - (uint8_t *)stream->chunk >= LARGEST_CHUNK) rk_leave(stream->chunk, stream->end);
    need = (need + RK_CHUNK + 63) & ~UINT64_C(63);
    uint64_t size = need > stream->size ? need : stream->size, gap = buffer && need >= RK_LARGE ? PAGE : 0;
    uint64_t rest = capacity() - rk_process->file->used;
    if (rest < size && rest >= need && rest >= SMALLEST_REST && !gap) size = rest;
    if (rest < size + gap) {
        if (rest > 0) take(rest, 0, 0); /* belongs to no stream */
        int error = grow(size + gap, gap > 0);
        if (error) return error;
    }
    if (gap) leave_gap(buffer);
    stream->chunk = take(size, stream->id, stream->ordinal++);
    stream->at = (uint8_t *)stream->chunk + RK_CHUNK;
    stream->end = (uint8_t *)stream->chunk + size;
    if (stream->size < LARGEST_CHUNK) stream->size *= 2;
    return 0;
}

bool rk_stream_room(struct rk_stream *stream, uint64_t size, const void *buffer) {
    if (RK_LIKELY((uint64_t)(stream->end - stream->at) >= size)) return true;
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
    int error = allocate(stream, size, buffer);
    if (error && !is_passing(error)) rk_give_up(reason_of(error), error);
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return error == 0;
}

/* As another thread may be about to change it. */
static struct rk_window window_now(void) {
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
    struct rk_window now = *window();
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return now;
}

/* The kernel keeps what it is given at once in larger pieces than what comes by page faults, and a replay reads
 * those half as fast again. */
void rk_write(uint8_t *at, const void *bytes, uint64_t size) {
    struct rk_window now = window_now();
    bool inside = at >= now.start && at + size <= now.start + now.size;
    int fd = inside ? open_file() : -1;
    long n = -1;
    if (fd >= 0) {
        uint64_t offset = now.offset - rk_process->in_slot + (uint64_t)(at - now.start);
        n = rk_call(SYS_pwrite64, fd, (long)bytes, (long)size, (long)offset, 0, 0);
        rk_close(fd);
    }
    uint64_t done = n > 0 ? (uint64_t)n : 0;
    memcpy(at + done, (const uint8_t *)bytes + done, size - done);
}

uint8_t *rk_put(uint8_t *at, uint64_t value, int bytes) {
    memcpy(at, &value, (size_t)bytes);
    return at + bytes;
}

static void go_on(struct rk_stream *stream) {
    stream->previous = stream->next_previous;
    stream->at = stream->next;
}

/* Makes a record of the length bytes written behind stream->at, whose first one becomes the tag. What
 * follows it is no record, even if a request that was left in its midst wrote there. */
void rk_commit(struct rk_stream *stream, enum rk_tag tag, uint64_t length) {
    uint64_t seed = (uint64_t)stream->previous << 8 | (uint64_t)tag;
    uint32_t check = (uint32_t)rk_check(stream->at + 1, length, seed);
    uint8_t *next = rk_put(stream->at + 1 + length, check, 4);
    if (next < stream->end) *next = RK_TAG_END;
    stream->next = NULL; /* at no moment a pair that does not belong together */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    stream->next_previous = check;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    stream->next = next;
    __atomic_store_n(stream->at, (uint8_t)tag, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    go_on(stream);
}

/* The record under way was either committed, or is written over. Which event was the last to be written
 * whole is not known: the next one is. */
void rk_stream_repair(struct rk_stream *stream) {
    bool committed = stream->at < stream->end && *stream->at != RK_TAG_END;
    if (stream->next && (committed || stream->at == stream->next)) go_on(stream);
    stream->any = 0;
    rk_reader_repair(&stream->reader);
}

bool rk_stream_open(struct rk_stream *stream, const char *identity) {
    if (stream->opened) return true;
    size_t length = strlen(identity);
    stream->id = rk_check(identity, length, 0);
    stream->size = FIRST_CHUNK;
    if (!rk_stream_room(stream, 1 + 1 + length + 4, NULL)) return false;
    uint8_t *at = rk_put(stream->at + 1, length, 1);
    memcpy(at, identity, length);
    rk_commit(stream, RK_TAG_THREAD, 1 + length);
    stream->opened = 1;
    return true;
}

static uint32_t site_key(const char *module, uint64_t offset) {
    return (uint32_t)rk_check(module, strlen(module), offset);
}

/* After a dlclose: those whose module is gone, or another one. */
static void forget_unloaded(struct rk_stream *stream, uint16_t unloads) {
    for (struct rk_site *site = stream->cache; site < stream->cache + RK_SITE_CACHE; site++) {
        if (!site->caller) continue;
        uint64_t offset;
        const char *module = rk_module(site->caller, &offset);
        if (site_key(module, offset) != site->key) site->caller = NULL;
    }
    stream->unloads = unloads;
}

/* Of the clock only libraries read the real one: certificates are valid for a time. */
static bool is_withheld(const struct rk_stream *stream, const char *module) {
    enum rk_runtime runtime;
    if (rk_plan.record_crypto) return false;
    if (stream == &rk_thread_check()->streams[RK_CLOCK]) return rk_is_crypto(module);
    bool withheld = rk_withholds(module, &runtime);
    __atomic_or_fetch(&rk_process->runtimes, runtime, __ATOMIC_RELAXED);
    if (rk_process->file) __atomic_or_fetch(&rk_process->file->runtimes, runtime, __ATOMIC_RELAXED);
    return withheld;
}

/* The caller's entry in the small cache of this stream; its number stays 0 until it is written down. */
struct rk_site *rk_stream_site(struct rk_stream *stream, const void *caller) {
    uint16_t unloads = (uint16_t)__atomic_load_n(&rk_unloads, __ATOMIC_ACQUIRE);
    if (RK_UNLIKELY(stream->unloads != unloads)) forget_unloaded(stream, unloads);
    struct rk_site *site = &stream->cache[((uintptr_t)caller >> 2) % RK_SITE_CACHE];
    if (RK_LIKELY(site->caller == caller)) return site;
    /* Elsewhere, because its own place was taken; else a free place, else its own. */
    struct rk_site *empty = site->caller ? NULL : site;
    for (struct rk_site *other = stream->cache; other < stream->cache + RK_SITE_CACHE; other++) {
        if (other->caller == caller) return other;
        if (!other->caller && !empty) empty = other;
    }
    if (empty) site = empty;
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    site->caller = caller;
    site->key = site_key(module, offset);
    site->number = 0;
    site->flags = is_withheld(stream, module) ? RK_FLAG_WITHHELD : 0;
    return site;
}
