/* record.c - the entropy file of this process: created at its first request, extended by mapped windows, and
 * allocated to threads in chunks. A SIGKILL loses nothing that was committed: the pages belong to the kernel. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/file.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/pool.h"
#include "recorder/profile.h"
#include "recorder/reach.h"
#include "recorder/record.h"
#include "recorder/replay.h"
#include "recorder/site.h"
#include "recorder/system.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define FIRST_WINDOW   8192
#define LARGEST_WINDOW (4u << 20)
#define FIRST_CHUNK    512
#define LARGEST_CHUNK  65536
#define PAGE           UINT64_C(4096)
#define SMALLEST_REST  256 /* bytes left in a window that are still used for a chunk */

static void share_with_child(const void *start, const void *end) {
    uintptr_t from = (uintptr_t)start & ~(uintptr_t)(PAGE - 1);
    uintptr_t to = ((uintptr_t)end + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    if (start) rk_call(SYS_madvise, (long)from, (long)(to - from), MADV_DOFORK, 0, 0, 0);
}

/* Shares mappings with a child that a signal handler forks during a request: the child finishes it too (identity.c). */
void rk_share_request(const struct rk_thread *thread) {
    const struct rk_process *process = rk_process;
    for (size_t i = 0; i < RK_LENGTH(thread->streams); i++)
        share_with_child(thread->streams[i].chunk, thread->streams[i].end);
    if (process->file) share_with_child(process->file, process->file + 1);
    if (process->profile) share_with_child(process->profile, process->profile + process->profile_size);
    if (process->slots) share_with_child(process->slots, process->slots + RK_STREAMS_MOST);
}

/* Writes the head, its magic last: a reader of a slot takes the magic as proof of the rest. */
static void write_head(struct rk_file *file, uint32_t incarnation) {
    struct timespec now = {0};
    char path[PATH_MAX];
    rk_call(SYS_clock_gettime, CLOCK_REALTIME, (long)&now, 0, 0, 0, 0);
    struct rk_file head = {
        .magic = "RKENTROP",
        .format = RK_FORMAT,
        .mode = rk_records() ? RK_MODE_RECORD : RK_MODE_REPLAY,
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

/* Returns whether only descriptors are short: the next request tries again, and this one is counted as unrecorded. */
static bool is_temporary(int error) { return error == EMFILE || error == ENFILE; }

static const struct rk_window *current_window(void) { return &rk_process->windows[rk_process->window]; }

/* Returns the size of the file, which ends with the window. */
static uint64_t capacity(void) { return current_window()->offset + current_window()->size; }

/* Allocates and maps size more bytes of the file. Callers close the descriptor at once, so that the program neither
 * sees nor closes it. */
static int add_window(int fd, uint64_t size, bool large) {
    uint64_t end = capacity();
    int error = rk_reserve(fd, end - rk_process->in_slot, size);
    if (error) return error;
    uint8_t *start = rk_map(size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, end - rk_process->in_slot);
    if (!start) return ENOMEM;
    /* MADV_POPULATE_WRITE (Linux 5.14, ignored before) replaces a page fault for every 4 KiB. For large events a page
     * fault must map no more than its page. */
    rk_call(SYS_madvise, (long)start, (long)size, large ? MADV_RANDOM : MADV_POPULATE_WRITE, 0, 0, 0);
    rk_keep(start, size);
    uint32_t next = 1 - rk_process->window;
    rk_process->windows[next] = (struct rk_window){start, end, size};
    __atomic_store_n(&rk_process->window, next, __ATOMIC_RELEASE); /* in one store: a vfork child may be killed here */
    return 0;
}

/* Returns whether the pool has this incarnation. Checked after the file has its name; users of slots check for the
 * file after they have the slot. */
static bool is_in_pool(uint32_t incarnation) {
    char directory[RK_RUN_PATH + 16];
    uint64_t offset;
    rk_entropy_directory(directory);
    int fd = rk_pool_find(directory, rk_identity_hash(), incarnation, &offset);
    if (fd >= 0) rk_close(fd);
    return fd >= 0;
}

/* Links the complete file under the first name that no other process of this identity has. */
static int link_under_free_name(const char *temporary, struct rk_file *file) {
    char path[RK_RUN_PATH + 96];
    for (uint32_t incarnation = 0;; incarnation++) {
        write_head(file, incarnation);
        rk_file_path(path, sizeof(path), incarnation, ".entropy");
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

static void publish_file(struct rk_file *file, uint32_t incarnation) {
    rk_process->incarnation = incarnation;
    file->uncounted = rk_process->uncounted;
    file->runtimes = rk_process->runtimes;
    __atomic_store_n(&rk_process->file, file, __ATOMIC_RELEASE);
}

/* Takes a slot of the pool, which replaces the first page of a file. */
static bool use_pool_slot(void) {
    char directory[RK_RUN_PATH + 16];
    uint32_t incarnation;
    rk_entropy_directory(directory);
    bool is_small = rk_is_forked || __atomic_load_n(&rk_process->prefers_slot, __ATOMIC_RELAXED);
    uint8_t *slot = is_small ? rk_pool_take(directory, rk_identity_hash(), &incarnation) : NULL;
    if (!slot) return false;
    rk_keep(slot, RK_SLOT);
    rk_process->windows[0] = (struct rk_window){slot, 0, RK_SLOT};
    rk_process->in_slot = RK_SLOT;
    write_head((struct rk_file *)slot, incarnation);
    publish_file((struct rk_file *)slot, incarnation);
    return true;
}

static int make_file(void) {
    memset(rk_process->windows, 0, sizeof(rk_process->windows)); /* set by a vfork child that was killed here */
    rk_process->window = 0;
    rk_process->in_slot = 0;
    if (!rk_continues() && use_pool_slot()) return 0;
    char temporary[RK_RUN_PATH + 96];
    rk_file_path(temporary, sizeof(temporary), (uint32_t)rk_process->pid, ".new");
    int fd = rk_open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    if (fd < 0) return -fd;
    int error = add_window(fd, rk_plan.keyed && !rk_plan.calendar ? RK_HEAD : FIRST_WINDOW, false);
    rk_close(fd);
    struct rk_file *file = (struct rk_file *)current_window()->start;
    if (!error) error = link_under_free_name(temporary, file);
    rk_remove(temporary);
    if (!error) publish_file(file, file->incarnation);
    return error;
}

/* Opens the file that the windows map: of a process with a slot, the file that follows the slot. */
static int open_file(void) {
    char path[RK_RUN_PATH + 96];
    rk_file_path(path, sizeof(path), rk_process->incarnation, rk_process->in_slot ? RK_REST : ".entropy");
    return rk_open(path, O_RDWR | O_NOFOLLOW | (rk_process->in_slot ? O_CREAT : 0), 0600);
}

/* Fills the file up to the end of a page with an unused chunk, behind which a new window begins. */
static int end_page(int fd, uint64_t used, uint64_t end) {
    struct rk_chunk unused = {.magic = RK_CHUNK_MAGIC, .size = (uint32_t)((end - used) / 64)};
    unused.check = rk_check(&unused, offsetof(struct rk_chunk, check), 0);
    if (used < end && rk_call(SYS_pwrite64, fd, (long)&unused, sizeof(unused), (long)used, 0, 0) != sizeof(unused))
        return ENOSPC;
    uint32_t next = 1 - rk_process->window;
    rk_process->windows[next] = (struct rk_window){.offset = end};
    __atomic_store_n(&rk_process->window, next, __ATOMIC_RELEASE);
    return 0;
}

static int copy_chunks(int fd, uint64_t used) {
    const uint8_t *profile = rk_process->profile;
    for (uint64_t at = RK_HEAD; at < used;) {
        uint64_t piece = used - at < LARGEST_WINDOW ? used - at : LARGEST_WINDOW;
        long n = rk_call(SYS_pwrite64, fd, (long)(profile + at), (long)piece, (long)at, 0, 0);
        if (n == -EINTR) continue;
        if (n <= 0) return n ? (int)-n : ENOSPC;
        rk_leave(profile + at, profile + at + n);
        at += (uint64_t)n;
    }
    return 0;
}

/* Copies the recorded chunks, so that the file holds all that its process is given in both runs. */
static int copy_recorded(void) {
    uint64_t used = ((const struct rk_file *)rk_process->profile)->used, end = (used + PAGE - 1) & ~(PAGE - 1);
    int fd = open_file(), error = 0;
    if (fd < 0) return -fd;
    if (used > rk_process->profile_size) error = EIO;
    if (!error && end > capacity()) error = rk_reserve(fd, capacity(), end - capacity());
    if (!error) error = copy_chunks(fd, used);
    if (!error && end > capacity()) {
        error = end_page(fd, used, end);
        used = end;
    }
    rk_close(fd);
    if (!error) __atomic_store_n(&rk_process->file->used, used, __ATOMIC_RELEASE);
    return error;
}

bool rk_file_ready(void) {
    if (RK_UNLIKELY(!__atomic_load_n(&rk_process->opened, __ATOMIC_ACQUIRE))) {
        rk_signals before = rk_block_signals();
        if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
        if (!rk_process->opened) {
            int error = rk_process->file ? 0 : make_file();
            if (is_temporary(error) && rk_plan.mode == RK_MODE_RECORD) {
                rk_unlock(&rk_process->lock);
                rk_restore_signals(before);
                return false;
            }
            if (error) rk_give_up(reason_of(error), error);
            if (rk_plan.mode == RK_MODE_REPLAY && !rk_process->profile) rk_profile_open();
            error = rk_continues() && rk_process->file && rk_process->profile ? copy_recorded() : 0;
            if (error) rk_give_up(reason_of(error), error);
            __atomic_store_n(&rk_process->opened, 1, __ATOMIC_RELEASE);
        }
        rk_unlock(&rk_process->lock);
        rk_restore_signals(before);
    }
    return rk_process->file && rk_process->file->gave_up == RK_REASON_NONE;
}

static int grow(uint64_t need, bool large) {
    /* Doubles small files, then adds an eighth, so that little is reserved in vain. */
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

/* Adds a chunk. Its head is written before the file's `used` grows, so that readers see complete chunks only. */
static struct rk_chunk *add_chunk(uint64_t size, uint64_t stream, uint64_t ordinal) {
    struct rk_file *file = rk_process->file;
    struct rk_chunk *chunk = (struct rk_chunk *)(current_window()->start + (file->used - current_window()->offset));
    chunk->magic = RK_CHUNK_MAGIC;
    chunk->size = (uint32_t)(size / 64);
    chunk->stream = stream;
    chunk->ordinal = ordinal;
    chunk->check = rk_check(chunk, offsetof(struct rk_chunk, check), 0);
    __atomic_store_n(&file->used, file->used + size, __ATOMIC_RELEASE);
    return chunk;
}

/* Adds an unused chunk before one with a large event, to avoid 4K aliasing in a replay. If a copy's target is less
 * than 64 bytes further into its page than the source, some processors take five times as long. The replay's buffer
 * has the recording's address. */
static void add_gap(const void *buffer) {
    uint64_t gap = ((uintptr_t)buffer + 63 - rk_process->file->used) & (PAGE - 1) & ~UINT64_C(63);
    if (gap) add_chunk(gap, 0, 0);
}

static int allocate(struct rk_stream *stream, uint64_t need, const void *buffer) {
    if (!rk_process->file) return EBADF; /* a detached request: see identity.c */
    if (stream->end - (uint8_t *)stream->chunk >= LARGEST_CHUNK) rk_leave(stream->chunk, stream->end);
    need = (need + RK_CHUNK + 63) & ~UINT64_C(63);
    uint64_t size = need > stream->size ? need : stream->size, gap = buffer && need >= RK_LARGE ? PAGE : 0;
    uint64_t rest = capacity() - rk_process->file->used;
    if (rest < size && rest >= need && rest >= SMALLEST_REST && !gap) size = rest;
    if (rest < size + gap) {
        if (rest > 0) add_chunk(rest, 0, 0); /* fills the window with an unused chunk */
        int error = grow(size + gap, gap > 0);
        if (error) return error;
    }
    if (gap) add_gap(buffer);
    stream->chunk = add_chunk(size, stream->id, stream->ordinal++);
    stream->at = (uint8_t *)stream->chunk + RK_CHUNK;
    stream->end = (uint8_t *)stream->chunk + size;
    if (stream->size < LARGEST_CHUNK) stream->size *= 2;
    return 0;
}

static int make_room(struct rk_stream *stream, uint64_t size, const void *buffer, bool gives_up) {
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
    int error = allocate(stream, size, buffer);
    if (error && gives_up && !is_temporary(error)) rk_give_up(reason_of(error), error);
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return is_temporary(error) ? EAGAIN : error;
}

bool rk_stream_room(struct rk_stream *stream, uint64_t size, const void *buffer) {
    return RK_LIKELY((uint64_t)(stream->end - stream->at) >= size) || make_room(stream, size, buffer, true) == 0;
}

int rk_stream_spare_room(struct rk_stream *stream, uint64_t size) { return make_room(stream, size, NULL, false); }

/* Copies the current window under the lock, as another thread may be changing it. */
static struct rk_window window_now(void) {
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
    struct rk_window now = *current_window();
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return now;
}

/* Writes by a system call: the page cache then has larger folios than after page faults, and a replay reads them
 * 1.5 times as fast. */
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

static void finish_commit(struct rk_stream *stream) {
    stream->previous = stream->next_previous;
    stream->at = stream->next;
}

/* Turns the length bytes after stream->at into a record, whose tag goes to stream->at. An RK_TAG_END after it hides
 * what an abandoned request may have written there. */
static inline void commit(struct rk_stream *stream, enum rk_tag tag, uint64_t length, uint32_t check) {
    uint8_t *next = rk_put(stream->at + 1 + length, check, 4);
    if (next < stream->end) *next = RK_TAG_END;
    stream->next = NULL; /* so that next and next_previous always belong together */
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    stream->next_previous = check;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    stream->next = next;
    __atomic_store_n(stream->at, (uint8_t)tag, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    finish_commit(stream);
}

static uint64_t seed_of(const struct rk_stream *stream, enum rk_tag tag) {
    return (uint64_t)stream->previous << 8 | (uint64_t)tag;
}

void rk_commit(struct rk_stream *stream, enum rk_tag tag, uint64_t length) {
    commit(stream, tag, length, (uint32_t)rk_check(stream->at + 1, length, seed_of(stream, tag)));
}

void rk_commit_word(struct rk_stream *stream, enum rk_tag tag, uint64_t word, uint64_t length) {
    memcpy(stream->at + 1, &word, sizeof(word));
    commit(stream, tag, length, (uint32_t)rk_check_word(word, length, seed_of(stream, tag)));
}

/* Finishes the commit of an abandoned record, or leaves it to be overwritten. The last event is unknown afterwards,
 * so the next one is written in full. */
void rk_stream_repair(struct rk_stream *stream) {
    bool committed = stream->at < stream->end && *stream->at != RK_TAG_END;
    if (stream->next && (committed || stream->at == stream->next)) finish_commit(stream);
    stream->any = 0;
    rk_reader_repair(&stream->reader);
}

bool rk_stream_open(struct rk_stream *stream, const char *identity) {
    if (stream->opened) return true;
    size_t length = strlen(identity);
    stream->id = rk_check(identity, length, 0);
    stream->size = FIRST_CHUNK;
    if (rk_continues() && rk_replay_end(stream)) {
        stream->opened = 1;
        return rk_process->file->gave_up == RK_REASON_NONE;
    }
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

/* Drops cached call sites whose module was unloaded or replaced, after a dlclose. */
static void drop_unloaded_sites(struct rk_stream *stream, struct rk_site *cache, uint16_t unloads) {
    for (struct rk_site *site = cache; site < cache + RK_SITE_CACHE; site++) {
        if (!site->caller) continue;
        uint64_t offset;
        const char *module = rk_module(site->caller, &offset);
        if (site_key(module, offset) != site->key) site->caller = NULL;
    }
    stream->unloads = unloads;
}

static bool is_withheld(const char *module) {
    enum rk_runtime runtime;
    if (rk_plan.record_crypto) return false;
    bool withheld = rk_withholds(module, &runtime);
    __atomic_or_fetch(&rk_process->runtimes, runtime, __ATOMIC_RELAXED);
    if (rk_process->file) __atomic_or_fetch(&rk_process->file->runtimes, runtime, __ATOMIC_RELAXED);
    return withheld;
}

/* Returns the caller's entry in the stream's cache of call sites; its number is 0 until its record is written. */
struct rk_site *rk_stream_site(struct rk_thread *thread, struct rk_stream *stream, const void *caller) {
    struct rk_site *cache = thread->sites[stream - thread->streams];
    uint16_t unloads = (uint16_t)__atomic_load_n(&rk_unloads, __ATOMIC_ACQUIRE);
    if (RK_UNLIKELY(stream->unloads != unloads)) drop_unloaded_sites(stream, cache, unloads);
    struct rk_site *site = &cache[((uintptr_t)caller >> 2) % RK_SITE_CACHE];
    if (RK_LIKELY(site->caller == caller)) return site;
    /* It may be in another place, if its own was taken. Else use a free place, or evict the entry in its own. */
    struct rk_site *empty = site->caller ? NULL : site;
    for (struct rk_site *entry = cache; entry < cache + RK_SITE_CACHE; entry++) {
        if (entry->caller == caller) return entry;
        if (!entry->caller && !empty) empty = entry;
    }
    if (empty) site = empty;
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    site->caller = caller;
    site->key = site_key(module, offset);
    site->number = 0;
    site->flags = is_withheld(module) ? RK_FLAG_WITHHELD : 0;
    return site;
}
