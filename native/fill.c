/* fill.c - the one function that every request for entropy comes through: recorded, replayed, or
 * handed on to the real source. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "internal.h"

#define PIECE      (1u << 20) /* a larger request makes several events */
#define EVENT_HEAD 21         /* tag, source, site, flags, asked, given */
#define NO_SITE    UINT16_MAX /* a stream with more call sites than numbers */

static const char *stream_name(struct rk_thread *thread, struct rk_stream *stream, char *text) {
    if (stream == &thread->streams[0]) return thread->identity;
    size_t length = rk_append(text, RK_IDENTITY, 0, thread->identity);
    rk_append(text, RK_IDENTITY, length, "!"); /* of the signal handlers that interrupt this thread */
    return text;
}

static bool ready_to_write(struct rk_thread *thread, struct rk_stream *stream) {
    char name[RK_IDENTITY];
    return rk_file_ready() && (RK_LIKELY(stream->opened) || rk_stream_open(stream, stream_name(thread, stream, name)));
}

/* Writes the call site down if this stream has not done so yet. */
static bool number_site(struct rk_stream *stream, struct rk_site *site) {
    if (RK_LIKELY(site->number)) return true;
    if (stream->sites == NO_SITE - 1) {
        site->number = NO_SITE;
        return true;
    }
    uint64_t offset;
    const char *module = rk_module(site->caller, &offset);
    size_t length = strlen(module);
    if (length > 255) module += length - 255, length = 255;
    if (!rk_stream_room(stream, 1 + 11 + length + 4)) return false;
    site->number = ++stream->sites;
    uint8_t *at = rk_put(stream->at + 1, site->number, 2);
    at = rk_put(at, offset, 8);
    at = rk_put(at, length, 1);
    memcpy(at, module, length);
    rk_commit(stream, RK_TAG_SITE, 11 + length);
    return true;
}

/* The pointer is read once: a signal handler may fork at any instruction, and the child has no file. */
static void add(size_t field, uint64_t number) {
    struct rk_file *file = __atomic_load_n(&rk_process->file, __ATOMIC_RELAXED);
    if (RK_LIKELY(file != NULL)) __atomic_add_fetch((uint64_t *)((char *)file + field), number, __ATOMIC_RELAXED);
}

static void count(enum rk_match match, uint64_t bytes) {
    add(offsetof(struct rk_file, matches) + match * sizeof(uint64_t), 1);
    add(offsetof(struct rk_file, bytes) + match * sizeof(uint64_t), bytes);
}

/* The real bytes go into the file first and to the caller after the commit: whatever the program was
 * given is in the file, at whatever moment it is killed. */
static ssize_t record_event(struct rk_stream *stream, struct rk_site *site, uint8_t source, void *buffer, size_t size,
                            struct rk_real *real) {
    bool withheld = site->flags & RK_FLAG_WITHHELD;
    bool repeat = stream->any && stream->source == source && stream->site == site->number &&
                  stream->flags == site->flags && stream->asked == size && stream->given == size;
    uint8_t *bytes = stream->at + (repeat ? 1 : EVENT_HEAD);
    ssize_t given = real->get(real, withheld ? buffer : bytes, size);
    if (given <= 0) return given;
    if (!withheld && repeat && (size_t)given != size) memmove(stream->at + EVENT_HEAD, bytes, (size_t)given);
    repeat = repeat && (size_t)given == size;
    bytes = stream->at + (repeat ? 1 : EVENT_HEAD);
    if (!withheld) memcpy(buffer, bytes, (size_t)given);
    if (!repeat) {
        uint8_t *at = rk_put(stream->at + 1, source, 1);
        at = rk_put(at, site->number, 2);
        at = rk_put(at, site->flags, 1);
        at = rk_put(at, size, 8);
        rk_put(at, (uint64_t)given, 8);
        stream->any = 1;
        stream->source = source;
        stream->site = site->number;
        stream->flags = site->flags;
        stream->asked = size;
        stream->given = (uint64_t)given;
    }
    uint64_t length = (uint64_t)(bytes - stream->at) - 1 + (withheld ? 0 : (uint64_t)given);
    rk_commit(stream, repeat ? RK_TAG_REPEAT : RK_TAG_EVENT, length);
    if (withheld) {
        add(offsetof(struct rk_file, withheld), 1);
    } else {
        stream->chunk->events++; /* only this thread writes to this chunk */
        stream->chunk->bytes += (uint64_t)given;
    }
    return given;
}

static ssize_t record(struct rk_thread *thread, struct rk_stream *stream, uint8_t source, const void *caller,
                      void *buffer, size_t size, struct rk_real *real) {
    struct rk_site *site;
    if (!ready_to_write(thread, stream) || !(site = rk_stream_site(stream, caller)) || !number_site(stream, site) ||
        !rk_stream_room(stream, EVENT_HEAD + size + 4)) {
        if (!rk_process->file) __atomic_add_fetch(&rk_process->uncounted, 1, __ATOMIC_RELAXED);
        add(offsetof(struct rk_file, uncounted), 1);
        return real->get(real, buffer, size);
    }
    return record_event(stream, site, source, buffer, size, real);
}

static void note_mismatch(struct rk_thread *thread, struct rk_stream *stream, struct rk_site *site, uint8_t source,
                          enum rk_match match, uint64_t size) {
    if (!ready_to_write(thread, stream) || !number_site(stream, site) || !rk_stream_room(stream, 1 + 12 + 4)) return;
    uint8_t *at = rk_put(stream->at + 1, source, 1);
    at = rk_put(at, site->number, 2);
    at = rk_put(at, match, 1);
    rk_put(at, size, 8);
    rk_commit(stream, RK_TAG_MISMATCH, 12);
}

/* Strict replay: says why in the run directory, where the launcher looks, and ends the process. */
__attribute__((noreturn)) static void stop(struct rk_thread *thread, const void *caller, size_t size) {
    char text[1024], path[RK_RUN_PATH + 16];
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    size_t n = rk_append(text, sizeof(text), 0, "process ");
    n = rk_append(text, sizeof(text), n, rk_identity);
    n = rk_append(text, sizeof(text), n, ", thread ");
    n = rk_append(text, sizeof(text), n, thread->identity);
    n = rk_append(text, sizeof(text), n, ": a request for ");
    n = rk_append_number(text, sizeof(text), n, size);
    n = rk_append(text, sizeof(text), n, " bytes by ");
    n = rk_append(text, sizeof(text), n, *module ? module : "the program");
    n = rk_append(text, sizeof(text), n, " at offset ");
    n = rk_append_number(text, sizeof(text), n, offset);
    n = rk_append(text, sizeof(text), n, " is not in the random profile");
    size_t length = rk_append(path, sizeof(path), 0, rk_run);
    rk_append(path, sizeof(path), length, "/stopped");
    int fd = rk_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd >= 0) rk_call(SYS_write, fd, (long)text, (long)n, 0, 0, 0);
    rk_call(SYS_exit_group, 125, 0, 0, 0, 0, 0);
    __builtin_unreachable();
}

/* Bytes that no recording holds, but every replay of it gives: ChaCha20 under the profile's key, with
 * the names of process and thread as nonce. */
static void derive(struct rk_thread *thread, struct rk_stream *stream, uint8_t *buffer, size_t size) {
    char name[RK_IDENTITY];
    const char *stream_text = stream_name(thread, stream, name);
    uint64_t nonce = rk_check(rk_identity, strlen(rk_identity), rk_process->incarnation);
    nonce = rk_check(stream_text, strlen(stream_text), nonce);
    uint8_t block[64];
    for (size_t done = 0; done < size; done += sizeof(block)) {
        size_t part = size - done < sizeof(block) ? size - done : sizeof(block);
        rk_chacha20(rk_plan.key, nonce, stream->derived++, block);
        memcpy(buffer + done, block, part);
    }
}

static ssize_t replay_unknown(struct rk_thread *thread, struct rk_stream *stream, struct rk_site *site, uint8_t source,
                              void *buffer, size_t size, struct rk_real *real) {
    /* A feeder runs ahead of what is read from its pipe, by how much depends on timing. */
    bool ahead = source == RK_SOURCE_FEEDER;
    if (rk_plan.policy == RK_POLICY_STRICT && !ahead) stop(thread, site->caller, size);
    enum rk_match match = rk_plan.policy == RK_POLICY_LIVE ? RK_MATCH_LIVE : RK_MATCH_DERIVED;
    ssize_t given = (ssize_t)size;
    if (match == RK_MATCH_LIVE)
        given = real->get(real, buffer, size);
    else
        derive(thread, stream, buffer, size);
    if (given > 0 && !ahead) {
        count(match, (uint64_t)given);
        note_mismatch(thread, stream, site, source, match, size);
    }
    return given;
}

static ssize_t replay(struct rk_thread *thread, struct rk_stream *stream, uint8_t source, const void *caller,
                      void *buffer, size_t size, struct rk_real *real) {
    if (RK_UNLIKELY(!__atomic_load_n(&rk_process->opened, __ATOMIC_ACQUIRE))) rk_file_ready();
    if (RK_UNLIKELY(!stream->id)) {
        char name[RK_IDENTITY];
        const char *text = stream_name(thread, stream, name);
        stream->id = rk_check(text, strlen(text), 0);
    }
    struct rk_site *site = rk_stream_site(stream, caller);
    if (RK_UNLIKELY(site->flags & RK_FLAG_WITHHELD)) {
        add(offsetof(struct rk_file, withheld), 1);
        return real->get(real, buffer, size);
    }
    uint64_t given;
    enum rk_match match;
    const uint8_t *bytes = rk_replay_find(stream, source, site->key, size, &given, &match);
    if (RK_UNLIKELY(!bytes)) return replay_unknown(thread, stream, site, source, buffer, size, real);
    memcpy(buffer, bytes, given);
    count(match, given);
    if (RK_UNLIKELY(match != RK_MATCH_EXACT)) note_mismatch(thread, stream, site, source, match, size);
    return (ssize_t)given;
}

/* A signal handler that left a request by siglongjmp left its depth behind: the stack shows it. */
static void forget_abandoned(struct rk_thread *thread, const char *frame) {
    stack_t alternate = {0};
    rk_call(SYS_sigaltstack, 0, (long)&alternate, 0, 0, 0, 0);
    if (alternate.ss_flags & SS_ONSTACK) return;
    while (thread->depth > 0 && thread->depth <= RK_STREAMS && thread->frames[thread->depth - 1] <= frame)
        thread->depth--;
}

ssize_t rk_fill(enum rk_source source, const void *caller, void *buffer, size_t size, struct rk_real *real) {
    if (RK_UNLIKELY(!rk_active() || size == 0)) return real->get(real, buffer, size);
    rk_process_check();
    struct rk_thread *thread = rk_thread_check();
    const char *frame = __builtin_frame_address(0);
    if (RK_UNLIKELY(thread->depth > 0)) forget_abandoned(thread, frame);
    if (RK_UNLIKELY(thread->depth >= RK_STREAMS)) return real->get(real, buffer, size);
    if (RK_UNLIKELY(thread->detached) && thread->depth == 0) {
        memset(thread->streams, 0, sizeof(thread->streams));
        thread->detached = 0;
    }
    thread->frames[thread->depth] = frame;
    struct rk_stream *stream = &thread->streams[thread->depth++];
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    ssize_t total = 0;
    while ((size_t)total < size) {
        size_t piece = size - (size_t)total < PIECE ? size - (size_t)total : PIECE;
        uint8_t *at = (uint8_t *)buffer + total;
        ssize_t given = rk_plan.mode == RK_MODE_RECORD
                            ? record(thread, stream, (uint8_t)source, caller, at, piece, real)
                            : replay(thread, stream, (uint8_t)source, caller, at, piece, real);
        if (given < 0 && total == 0) total = given;
        if (given <= 0) break;
        total += given;
        if ((size_t)given < piece) break;
    }
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    thread->depth--;
    return total;
}
