/* fill.c - the one function that every request for entropy passes through: it is recorded, replayed,
 * answered from a key, or passed on to the real source. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/chacha20.h"
#include "recorder/check.h"
#include "recorder/fill.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/record.h"
#include "recorder/replay.h"
#include "recorder/system.h"

#define PIECE      (1u << 20) /* larger requests are split into several events */
#define EVENT_HEAD 21         /* tag, source, site, flags, asked, given */
#define NO_SITE    UINT16_MAX /* a stream with more call sites than numbers */
#define SMALL      64         /* largest request that prefetched bytes may answer */

bool rk_hands_on;

static const char *stream_name(struct rk_thread *thread, struct rk_stream *stream, char *text) {
    if (stream == &thread->streams[0]) return thread->identity;
    size_t length = rk_append(text, RK_IDENTITY, 0, thread->identity);
    /* Of the reads of the clock, or of the signal handlers that interrupt this thread. */
    rk_append(text, RK_IDENTITY, length, stream == &thread->streams[RK_CLOCK] ? "#clock" : RK_HANDLERS);
    return text;
}

bool rk_prepare_stream(struct rk_thread *thread, struct rk_stream *stream) {
    char name[RK_IDENTITY];
    return rk_file_ready() && (RK_LIKELY(stream->opened) || rk_stream_open(stream, stream_name(thread, stream, name)));
}

/* Writes an RK_TAG_SITE record for the call site if this stream has none yet. */
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
    if (!rk_stream_room(stream, 1 + 11 + length + 4, NULL)) return false;
    uint8_t *at = rk_put(stream->at + 1, stream->sites + 1u, 2);
    at = rk_put(at, offset, 8);
    at = rk_put(at, length, 1);
    memcpy(at, module, length);
    rk_commit(stream, RK_TAG_SITE, 11 + length);
    site->number = ++stream->sites;
    return true;
}

/* Adds to a counter of the file's head. The pointer is read once: a signal handler may fork at any instruction, and
 * the child has no file. */
static void add_to_field(size_t field, uint64_t number) {
    struct rk_file *file = __atomic_load_n(&rk_process->file, __ATOMIC_RELAXED);
    if (RK_LIKELY(file != NULL)) __atomic_add_fetch((uint64_t *)((char *)file + field), number, __ATOMIC_RELAXED);
}

static void count_answer(enum rk_match match, uint64_t bytes) {
    add_to_field(offsetof(struct rk_file, matches) + match * sizeof(uint64_t), 1);
    add_to_field(offsetof(struct rk_file, bytes) + match * sizeof(uint64_t), bytes);
}

/* Gives real bytes, as the shim gave up or cannot write at the moment. */
static ssize_t get_uncounted(struct rk_real *real, void *buffer, size_t size) {
    if (!rk_process->file) __atomic_add_fetch(&rk_process->uncounted, 1, __ATOMIC_RELAXED);
    add_to_field(offsetof(struct rk_file, uncounted), 1);
    return real->get(real, buffer, size);
}

/* ---- prefetched bytes -------------------------------------------------------------------------------- */

/* Each byte is given once: it counts as given before the copy, as a signal handler may jump out of here. */
static void give_prefetched(struct rk_thread *thread, uint8_t *buffer, size_t size) {
    uint8_t *from = thread->prefetched + RK_BLOCKS - thread->unused;
    thread->unused -= (uint32_t)size;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    memcpy(buffer, from, size);
    memset(from, 0, size);
}

/* Returns whether one call to the kernel may serve several requests: small consecutive ones of the same kind. A caller
 * with one or two requests gets separate calls. */
static bool may_prefetch(const struct rk_thread *thread, const struct rk_stream *stream, const struct rk_site *site,
                         size_t size, const struct rk_real *real) {
    bool by_flags = stream->source == RK_SOURCE_GETRANDOM || stream->source == RK_SOURCE_SYSCALL ||
                    stream->source == RK_SOURCE_KERNEL;
    bool is_plain = stream->source == RK_SOURCE_GETENTROPY || (by_flags && !real->argument);
    return is_plain && !rk_hands_on && size <= SMALL && !(site->flags & RK_FLAG_WITHHELD) &&
           stream == &thread->streams[0];
}

static ssize_t get_prefetched(struct rk_thread *thread, struct rk_real *real, uint8_t *buffer, size_t size) {
    if (thread->unused < size) {
        thread->unused = 0;
        if (rk_call(SYS_getrandom, (long)thread->prefetched, RK_BLOCKS, 0, 0, 0, RK_MARK) != RK_BLOCKS)
            return real->get(real, buffer, size);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        thread->unused = RK_BLOCKS;
    }
    give_prefetched(thread, buffer, size);
    return (ssize_t)size;
}

/* ---- record ------------------------------------------------------------------------------------------ */

/* The real bytes go into the file first, and to the caller later: if the program is killed, the file has all that it
 * was given. Large ones are read into the caller's buffer directly, but the request returns after the commit. */
static ssize_t record_event(struct rk_thread *thread, struct rk_stream *stream, struct rk_site *site, uint8_t source,
                            void *buffer, size_t size, struct rk_real *real) {
    bool withheld = site->flags & RK_FLAG_WITHHELD;
    bool repeat = stream->any && stream->source == source && stream->site == site->number &&
                  stream->flags == site->flags && stream->asked == size && stream->given == size;
    bool is_large = size >= RK_LARGE, in_buffer = withheld || is_large;
    uint8_t *bytes = stream->at + (repeat ? 1 : EVENT_HEAD);
    ssize_t given = repeat && may_prefetch(thread, stream, site, size, real)
                        ? get_prefetched(thread, real, bytes, size)
                        : real->get(real, in_buffer ? buffer : bytes, size);
    if (given <= 0) return given;
    if (is_large && !withheld) rk_write(bytes, buffer, (uint64_t)given);
    if (!withheld && repeat && (size_t)given != size) memmove(stream->at + EVENT_HEAD, bytes, (size_t)given);
    repeat = repeat && (size_t)given == size;
    bytes = stream->at + (repeat ? 1 : EVENT_HEAD);
    if (!in_buffer) memcpy(buffer, bytes, (size_t)given);
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
        add_to_field(offsetof(struct rk_file, withheld), 1);
    } else {
        stream->chunk->events++; /* only this thread writes to this chunk, so no atomics */
        stream->chunk->bytes += (uint64_t)given;
    }
    return given;
}

static ssize_t answer_recorded(struct rk_thread *thread, struct rk_stream *stream, uint8_t source, const void *caller,
                               void *buffer, size_t size, struct rk_real *real) {
    struct rk_site *site;
    if (!rk_prepare_stream(thread, stream) || !(site = rk_stream_site(thread, stream, caller)) ||
        !number_site(stream, site) || !rk_stream_room(stream, EVENT_HEAD + size + 4, buffer))
        return get_uncounted(real, buffer, size);
    return record_event(thread, stream, site, source, buffer, size, real);
}

/* Ends the process in a strict replay, and writes the reason to the run directory for the launcher. */
__attribute__((noreturn)) static void stop_strict_replay(struct rk_thread *thread, const void *caller, size_t size) {
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
    rk_end(125);
}

/* ---- keyed ------------------------------------------------------------------------------------------- */

/* Its position is 128 bits: a hash of the process identity, and one of process identity and name. */
void rk_derive_block(const char *name, uint8_t block[64]) {
    size_t length = strlen(rk_identity);
    uint64_t process = rk_check(rk_identity, length, rk_process->incarnation);
    uint64_t whole = rk_check(name, strlen(name), rk_check(rk_identity, length, ~(uint64_t)rk_process->incarnation));
    rk_chacha20(rk_plan.key, process, whole, block);
}

static void make_key(struct rk_thread *thread, struct rk_stream *stream) {
    char name[RK_IDENTITY];
    uint8_t block[64];
    rk_derive_block(stream_name(thread, stream, name), block);
    struct rk_key *key = &thread->keys[stream - thread->streams];
    memcpy(key->key, block, sizeof(key->key));
    key->position = 0;
    stream->has_key = 1;
}

/* Derives the next bytes of the stream. The sequence does not depend on the sizes of requests. */
static void derive(struct rk_thread *thread, struct rk_stream *stream, uint8_t *buffer, size_t size) {
    if (RK_UNLIKELY(!stream->has_key)) make_key(thread, stream);
    struct rk_key *key = &thread->keys[stream - thread->streams];
    uint8_t local[RK_BLOCKS], *blocks = stream == &thread->streams[0] ? thread->prefetched : local;
    while (size > 0) {
        size_t at = key->position % RK_BLOCKS, part = size < RK_BLOCKS - at ? size : RK_BLOCKS - at;
        uint8_t *to = part == RK_BLOCKS ? buffer : blocks;
        if (at == 0 || blocks == local) rk_chacha20_blocks(key->key, 0, (key->position - at) / 64, to);
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        key->position += part; /* before the copy: after a jump out of here no byte may be given twice */
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        if (to != buffer) memcpy(buffer, blocks + at, part);
        buffer += part;
        size -= part;
    }
}

static bool is_beyond_recording(void) {
    if (RK_LIKELY(rk_plan.mode != RK_MODE_REPLAY || rk_plan.policy != RK_POLICY_STRICT)) return false;
    const struct rk_file *recorded = (const struct rk_file *)rk_process->profile, *file = rk_process->file;
    return file && file->matches[RK_MATCH_EXACT] > (recorded ? recorded->matches[RK_MATCH_EXACT] : 0);
}

/* Answers a request of a keyed run, which stores only the number of requests. A strict replay stops after as many. */
static ssize_t answer_keyed(struct rk_thread *thread, struct rk_stream *stream, uint8_t source, const void *caller,
                            void *buffer, size_t size, struct rk_real *real) {
    struct rk_site *site = rk_stream_site(thread, stream, caller);
    bool is_file_ready = rk_file_ready();
    if (RK_UNLIKELY(site->flags & RK_FLAG_WITHHELD)) {
        add_to_field(offsetof(struct rk_file, withheld), 1);
        return real->get(real, buffer, size);
    }
    if (RK_UNLIKELY(!is_file_ready)) return get_uncounted(real, buffer, size);
    if (RK_UNLIKELY(!stream->has_key)) add_to_field(offsetof(struct rk_file, streams), 1);
    if (!rk_runs_ahead(source)) {
        count_answer(RK_MATCH_EXACT, size);
        if (RK_UNLIKELY(is_beyond_recording())) stop_strict_replay(thread, caller, size);
    }
    derive(thread, stream, buffer, size);
    return (ssize_t)size;
}

/* ---- replay ------------------------------------------------------------------------------------------ */

static void record_mismatch(struct rk_thread *thread, struct rk_stream *stream, struct rk_site *site, uint8_t source,
                            enum rk_match match, uint64_t size) {
    if (!rk_prepare_stream(thread, stream) || !number_site(stream, site) || !rk_stream_room(stream, 1 + 12 + 4, NULL))
        return;
    uint8_t *at = rk_put(stream->at + 1, source, 1);
    at = rk_put(at, site->number, 2);
    at = rk_put(at, match, 1);
    rk_put(at, size, 8);
    rk_commit(stream, RK_TAG_MISMATCH, 12);
}

static ssize_t answer_unrecorded(struct rk_thread *thread, struct rk_stream *stream, struct rk_site *site,
                                 uint8_t source, void *buffer, size_t size, struct rk_real *real) {
    if (rk_continues()) return answer_recorded(thread, stream, source, site->caller, buffer, size, real);
    bool runs_ahead = rk_runs_ahead(source);
    if (rk_plan.policy == RK_POLICY_STRICT && !runs_ahead) stop_strict_replay(thread, site->caller, size);
    enum rk_match match = rk_plan.policy == RK_POLICY_LIVE ? RK_MATCH_LIVE : RK_MATCH_DERIVED;
    ssize_t given = (ssize_t)size;
    if (match == RK_MATCH_LIVE)
        given = real->get(real, buffer, size);
    else
        derive(thread, stream, buffer, size);
    if (given > 0 && !runs_ahead) {
        count_answer(match, (uint64_t)given);
        record_mismatch(thread, stream, site, source, match, size);
    }
    return given;
}

void rk_prepare_replay(struct rk_thread *thread, struct rk_stream *stream) {
    if (RK_UNLIKELY(!__atomic_load_n(&rk_process->opened, __ATOMIC_ACQUIRE))) rk_file_ready();
    if (RK_UNLIKELY(!stream->id)) {
        char name[RK_IDENTITY];
        const char *text = stream_name(thread, stream, name);
        stream->id = rk_check(text, strlen(text), 0);
    }
}

static ssize_t answer_replayed(struct rk_thread *thread, struct rk_stream *stream, uint8_t source, const void *caller,
                               void *buffer, size_t size, struct rk_real *real) {
    rk_prepare_replay(thread, stream);
    struct rk_site *site = rk_stream_site(thread, stream, caller);
    if (RK_UNLIKELY(site->flags & RK_FLAG_WITHHELD)) {
        add_to_field(offsetof(struct rk_file, withheld), 1);
        return real->get(real, buffer, size);
    }
    uint64_t given;
    enum rk_match match;
    if (RK_UNLIKELY(!rk_replay_find(thread->identity, stream, source, caller, buffer, size, &given, &match)))
        return answer_unrecorded(thread, stream, site, source, buffer, size, real);
    count_answer(match, given);
    if (RK_UNLIKELY(match != RK_MATCH_EXACT) && !rk_continues())
        record_mismatch(thread, stream, site, source, match, size);
    return (ssize_t)given;
}

/* Repairs the streams of requests that a signal handler left by siglongjmp: their frames are no longer on the stack. */
static void repair_abandoned(struct rk_thread *thread, const char *frame) {
    stack_t alternate = {0};
    rk_call(SYS_sigaltstack, 0, (long)&alternate, 0, 0, 0, 0);
    if (alternate.ss_flags & SS_ONSTACK) return;
    while (thread->depth > 0 && thread->depth <= RK_STREAMS && thread->frames[thread->depth - 1] <= frame) {
        rk_stream_repair(&thread->streams[--thread->depth]);
        rk_stream_repair(&thread->streams[RK_CLOCK]); /* the request may have been a read of the clock */
        rk_calendar_repair(thread);
    }
}

static ssize_t answer(struct rk_thread *thread, struct rk_stream *stream, uint8_t source, const void *caller,
                      void *buffer, size_t size, struct rk_real *real) {
    if (rk_plan.keyed) return answer_keyed(thread, stream, source, caller, buffer, size, real);
    if (rk_plan.mode == RK_MODE_RECORD) return answer_recorded(thread, stream, source, caller, buffer, size, real);
    return answer_replayed(thread, stream, source, caller, buffer, size, real);
}

/* Begins a request of the calling thread; NULL if `limit` requests are under way already. */
inline struct rk_thread *rk_begin_request(const char *frame, uint32_t limit) {
    rk_process_check();
    struct rk_thread *thread = rk_thread_check();
    if (RK_UNLIKELY(thread->depth > 0)) repair_abandoned(thread, frame);
    if (RK_UNLIKELY(thread->depth >= limit)) return NULL;
    if (RK_UNLIKELY(thread->detached) && thread->depth == 0) {
        memset(thread->streams, 0, sizeof(thread->streams));
        memset(thread->sites, 0, sizeof(thread->sites));
        memset(&thread->calendar, 0, sizeof(thread->calendar));
        thread->unused = 0;
        thread->detached = 0;
    }
    thread->frames[thread->depth++] = frame;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return thread;
}

inline void rk_end_request(struct rk_thread *thread) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    thread->depth--;
}

ssize_t rk_fill(enum rk_source source, const void *caller, void *buffer, size_t size, struct rk_real *real) {
    if (RK_UNLIKELY(!rk_active() || size == 0)) return real->get(real, buffer, size);
    struct rk_thread *thread = rk_begin_request(__builtin_frame_address(0), RK_STREAMS);
    if (RK_UNLIKELY(!thread)) return real->get(real, buffer, size);
    struct rk_stream *stream = &thread->streams[thread->depth - 1];
    ssize_t total = 0;
    while ((size_t)total < size) {
        size_t piece = size - (size_t)total < PIECE ? size - (size_t)total : PIECE;
        uint8_t *at = (uint8_t *)buffer + total;
        ssize_t given = answer(thread, stream, (uint8_t)source, caller, at, piece, real);
        if (given < 0 && total == 0) total = given;
        if (given <= 0) break;
        total += given;
        if ((size_t)given < piece) break;
    }
    rk_end_request(thread);
    return total;
}
