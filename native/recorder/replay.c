/* replay.c - finds the recorded event that answers a request.
 *
 * The usual case, the next event of the same thread's stream, is read straight from the mapped file.
 * If it does not match, the oldest unused event of the same call site and size answers (a "moved" event). One cursor
 * for each such class reads the streams once.
 *
 * A recorded event belongs to its thread, which may still request it, so a cursor searches the thread's own streams.
 * A thread that the recording lacks, as its name varies between runs, takes events of threads not started yet. That is
 * refused if the recorded process was killed, as more threads would have started. A strict replay of a process that
 * ended normally takes any thread's unused event before it stops. Pages are unmapped after they were read, so that
 * memory does not grow with the recording.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/file.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/profile.h"
#include "recorder/record.h"
#include "recorder/replay.h"
#include "recorder/site.h"
#include "recorder/system.h"

#define STREAMS RK_STREAMS_MOST
#define CURSORS 4096 /* classes of moved events with a cursor; a power of two */
#define PROBES  8
#define SIZES   65536
#define AROUND  65536      /* bytes that one page fault maps (fault_around_bytes) */
#define BEHIND  (1u << 20) /* bytes that each reader may leave mapped after reading them */

struct event {
    const uint8_t *record, *bytes, *next;
    uint64_t asked, given;
    uint32_t check;
    uint16_t site;
    uint8_t source, flags;
};

#define PLACE 2 /* bytes of the place in a record of the clock */

/* A chunk of the recording, in the chain of its stream. */
struct link {
    uint64_t offset;
    uint32_t next;     /* index of the next chunk of the same stream; 0 ends */
    uint32_t is_first; /* of its stream */
};

/* The streams of a thread: its own, and the one of signal handlers that interrupt its requests. */
struct owner {
    uint64_t streams[RK_STREAMS];
};

static const struct owner unstarted_threads = {{0}}; /* threads that the replay has not started yet */
static const struct owner any_thread = {{1}};        /* all threads */

static bool is_thread(const struct owner *owner) { return owner->streams[0] > any_thread.streams[0]; }

/* Finds the events of one call site, size and source, stream by stream. */
struct cursor {
    uint64_t key, asked;
    struct owner owner; /* the thread whose streams it reads, or one of the two constants above */
    uint64_t stream;
    struct rk_reader reader;
    uint32_t first; /* without an owner: link of the stream's first chunk */
    uint16_t site;  /* number of the call site in this stream; 0 before its RK_TAG_SITE was read */
    uint8_t source, used;
    uint8_t next; /* of the owner's streams */
    bool skipped; /* this cursor left an unused event of the stream behind */
};

struct rk_moved {
    struct link *links; /* index 0 is unused */
    uint32_t count;
    bool complete;            /* false if a vfork child was killed while it built the index */
    uint8_t *taken;           /* one bit for every four bytes of the profile: the event there was given as moved */
    uint8_t sizes[SIZES / 8]; /* a bit for each size and source that occurs: a Bloom filter of one hash */
    struct cursor cursors[CURSORS];
};

/* ---- reading ------------------------------------------------------------------------------------ */

/* Returns the recorded file; NULL without one, and in a child that a signal handler forked during a request. */
static const uint8_t *profile_now(void) { return __atomic_load_n(&rk_process->profile, __ATOMIC_RELAXED); }

static const struct rk_chunk *chunk_at(const uint8_t *profile, uint64_t offset) {
    if (offset + RK_CHUNK > rk_process->profile_size) return NULL;
    const struct rk_chunk *chunk = (const struct rk_chunk *)(profile + offset);
    if (chunk->magic != RK_CHUNK_MAGIC || chunk->size == 0 ||
        (uint64_t)chunk->size * 64 > rk_process->profile_size - offset ||
        chunk->check != rk_check(chunk, offsetof(struct rk_chunk, check), 0))
        return NULL;
    return chunk;
}

static uint64_t profile_used(const uint8_t *profile) {
    if (!profile) return 0;
    uint64_t used = ((const struct rk_file *)profile)->used;
    return used < rk_process->profile_size ? used : rk_process->profile_size;
}

/* Unmaps what a reader has passed; other readers of a page get it from the page cache again. */
static void unmap_passed(struct rk_reader *reader, const uint8_t *profile, uint64_t offset) {
    if (reader->mapped_from == 0 || reader->mapped_from > offset) reader->mapped_from = offset;
    if (offset - reader->mapped_from < BEHIND) return;
    /* Includes the pages that the kernel mapped around the first one. */
    rk_leave(profile + (reader->mapped_from > AROUND ? reader->mapped_from - AROUND : 0), profile + offset);
    reader->mapped_from = offset;
}

/* Blocks signals: a handler that jumps out of here would leave the reader half updated. */
static void enter_chunk(struct rk_reader *reader, const uint8_t *profile, uint64_t offset,
                        const struct rk_chunk *chunk) {
    rk_signals before = rk_block_signals();
    reader->chunk = offset;
    reader->ordinal++;
    reader->at = profile + offset + RK_CHUNK;
    reader->end = profile + offset + (uint64_t)chunk->size * 64;
    rk_restore_signals(before);
}

/* Moves the reader to the stream's next chunk, searching from offset on. */
static bool next_chunk(struct rk_reader *reader, uint64_t stream, uint64_t offset) {
    const uint8_t *profile = profile_now();
    uint64_t used = profile_used(profile);
    while (offset < used) {
        unmap_passed(reader, profile, offset);
        const struct rk_chunk *chunk = chunk_at(profile, offset);
        if (!chunk) {
            rk_give_up(RK_REASON_BAD_PROFILE, 0);
            return false;
        }
        if (chunk->stream == stream && chunk->ordinal == reader->ordinal) {
            enter_chunk(reader, profile, offset, chunk);
            return true;
        }
        offset += (uint64_t)chunk->size * 64;
    }
    reader->search = 2; /* the stream has ended: do not scan the rest of the file again */
    return false;
}

/* Moves a cursor to its stream's next chunk, by the links of the index. */
static bool linked_chunk(struct rk_reader *reader) {
    const uint8_t *profile = profile_now();
    if (!profile || !(reader->link = rk_process->moved->links[reader->link].next)) return false;
    uint64_t offset = rk_process->moved->links[reader->link].offset;
    unmap_passed(reader, profile, offset);
    const struct rk_chunk *chunk = chunk_at(profile, offset);
    if (!chunk) return false;
    enter_chunk(reader, profile, offset, chunk);
    return true;
}

static bool go_to_next_chunk(struct rk_reader *reader, uint64_t stream) {
    if (RK_UNLIKELY(reader->link)) return linked_chunk(reader);
    return next_chunk(reader, stream, (uint64_t)(reader->end - rk_process->profile));
}

static uint64_t load(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    memcpy(&value, at, (size_t)bytes);
    return value;
}

/* Returns the length of the record at reader->at between tag and check, or -1 if it is malformed. */
static int64_t parse(const struct rk_reader *reader, struct event *event) {
    const uint8_t *at = reader->at + 1;
    uint64_t room = (uint64_t)(reader->end - at);
    switch (*reader->at) {
    case RK_TAG_THREAD:
        return room < 1 ? -1 : 1 + at[0];
    case RK_TAG_SITE:
        return room < 11 ? -1 : 11 + at[10];
    case RK_TAG_MISMATCH:
        return 12;
    case RK_TAG_TIME:
        return PLACE + 4;
    case RK_TAG_DATE:
        return PLACE + 8;
    case RK_TAG_REPEAT:
        event->source = reader->source;
        event->flags = reader->flags;
        event->site = reader->site;
        event->asked = reader->asked;
        event->given = reader->given;
        event->bytes = at;
        break;
    case RK_TAG_EVENT:
        if (room < 20) return -1;
        event->source = at[0];
        event->site = (uint16_t)load(at + 1, 2);
        event->flags = at[3];
        event->asked = load(at + 4, 8);
        event->given = load(at + 12, 8);
        event->bytes = at + 20;
        if (event->given > event->asked) return -1;
        break;
    default:
        return -1;
    }
    uint64_t payload = event->flags & RK_FLAG_WITHHELD ? 0 : event->given;
    if (payload > room) return -1;
    return (int64_t)((uint64_t)(event->bytes - at) + payload);
}

static bool is_event(const struct event *event) {
    return *event->record == RK_TAG_EVENT || *event->record == RK_TAG_REPEAT;
}

/* A request: the properties that an event must match, and the buffer for the bytes. */
struct request {
    uint8_t source;
    uint64_t asked;
    uint8_t *buffer;
    uint64_t key; /* of the call site: the same in every run */
    struct owner owner;
};

/* Returns whether the event was given before, to its owner (asked by cursors only) or as a moved event. */
static bool is_used(const struct rk_reader *reader, const struct event *event) {
    bool any_taken = __atomic_load_n(&rk_process->any_taken, __ATOMIC_ACQUIRE);
    if (RK_LIKELY(!any_taken && !reader->link)) return false;
    uint64_t offset = (uint64_t)(event->record - rk_process->profile), bit = offset / 4;
    if (reader->consumed && __atomic_load_n(reader->consumed, __ATOMIC_ACQUIRE) > offset) return true;
    return any_taken && __atomic_load_n(&rk_process->moved->taken[bit / 8], __ATOMIC_RELAXED) >> bit % 8 & 1;
}

/* Returns whether the event can be given: unused, and with recorded bytes (withheld events have none). */
static bool is_available(const struct rk_reader *reader, const struct event *event) {
    return is_event(event) && !(event->flags & RK_FLAG_WITHHELD) && !is_used(reader, event);
}

/* Reads the bytes of a large event by a system call, which costs less than page faults. */
static bool read_bytes(const struct event *event, uint8_t *buffer) {
    uint64_t offset = (uint64_t)(event->bytes - rk_process->profile);
    int fd = event->given >= RK_LARGE ? rk_recorded_open(&offset) : -1;
    if (fd < 0) return false;
    long n = rk_call(SYS_pread64, fd, (long)buffer, (long)event->given, (long)offset, 0, 0);
    rk_close(fd);
    return n >= 0 && (uint64_t)n == event->given;
}

/* The check behind the bytes makes 8 of them readable. */
static uint32_t check_time(const uint8_t *body, uint64_t seed) {
    return (uint32_t)rk_check_word(load(body, 8) & ((UINT64_C(1) << 8 * (PLACE + 4)) - 1), PLACE + 4, seed);
}

/* Compares the check of a record, and copies the bytes if it is the event asked for. */
static bool verify(const struct rk_reader *reader, struct event *event, uint64_t length,
                   const struct request *request) {
    uint64_t seed = (uint64_t)reader->previous << 8 | *event->record;
    const uint8_t *body = event->record + 1;
    uint32_t expected = (uint32_t)load(body + length, 4);
    bool is_match =
        request && is_available(reader, event) && event->source == request->source && event->asked == request->asked;
    event->check = expected;
    if (is_match && read_bytes(event, request->buffer) &&
        (uint32_t)rk_check_copied(body, length, seed, request->buffer, (uint64_t)(event->bytes - body)) == expected)
        return true; /* on a mismatch another thread may have written to the same buffer: check the mapped bytes */
    if ((length == PLACE + 4 ? check_time(body, seed) : (uint32_t)rk_check(body, length, seed)) != expected)
        return false;
    if (is_match) memcpy(request->buffer, event->bytes, event->given);
    return true;
}

/* Reads the record at the reader's position. False: no more records, or a damaged one. */
static bool read_record(struct rk_reader *reader, uint64_t stream, struct event *event, const struct request *request) {
    while (reader->at == reader->end || *reader->at == RK_TAG_END)
        if (!go_to_next_chunk(reader, stream)) return false;
    int64_t length = parse(reader, event);
    if (length < 0 || length + 5 > reader->end - reader->at) return false;
    event->record = reader->at;
    event->next = reader->at + length + 5;
    if (RK_LIKELY(verify(reader, event, (uint64_t)length, request))) return true;
    rk_give_up(RK_REASON_BAD_PROFILE, 0);
    return false;
}

static void advance(struct rk_reader *reader, const struct event *event) {
    reader->moving = event->record;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    if (*event->record == RK_TAG_EVENT) {
        reader->source = event->source;
        reader->flags = event->flags;
        reader->site = event->site;
        reader->asked = event->asked;
        reader->given = event->given;
    }
    reader->at = event->next;
    reader->previous = event->check;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    reader->moving = NULL;
}

/* Repeats an advance() that a signal handler jumped out of; the record was verified before. */
void rk_reader_repair(struct rk_reader *reader) {
    struct event event;
    if (!reader->moving) return;
    reader->at = reader->moving;
    int64_t length = parse(reader, &event);
    event.record = reader->moving;
    event.next = event.record + length + 5;
    event.check = (uint32_t)load(event.next - 4, 4);
    advance(reader, &event);
}

/* ---- positions, shared between threads ---------------------------------------------------------------- */

/* Returns the stream's entry in the table of positions; NULL if the table is full. */
static struct rk_slot *slot_of(uint64_t stream) {
    for (uint64_t i = stream, n = 0; n < STREAMS; i++, n++) {
        struct rk_slot *slot = &rk_process->slots[i % STREAMS];
        if (slot->stream == stream) return slot;
        if (slot->stream == 0 && rk_process->streams < STREAMS / 2) {
            rk_process->streams++;
            slot->stream = stream;
            return slot;
        }
    }
    return NULL;
}

/* Records where each stream begins. Needed once threads start in another order than recorded. */
static void index_streams(void) {
    const uint8_t *profile = profile_now();
    struct rk_reader scan = {0};
    const struct rk_chunk *chunk;
    for (uint64_t at = RK_HEAD; at < profile_used(profile) && (chunk = chunk_at(profile, at));
         at += (uint64_t)chunk->size * 64) {
        struct rk_slot *slot = chunk->stream && chunk->ordinal == 0 ? slot_of(chunk->stream) : NULL;
        if (slot && !slot->first) slot->first = at;
        unmap_passed(&scan, profile, at);
    }
    rk_process->is_indexed = 1;
}

static const struct rk_slot *find_slot(uint64_t stream) {
    for (uint64_t i = stream; rk_process->slots[i % STREAMS].stream; i++)
        if (rk_process->slots[i % STREAMS].stream == stream) return &rk_process->slots[i % STREAMS];
    return NULL;
}

/* Searches from the stream opened last first: most streams are opened in the recorded order. */
static bool find_first(struct rk_reader *reader, uint64_t stream) {
    uint64_t from = rk_process->last_opened ? rk_process->last_opened : RK_HEAD;
    if (!rk_process->is_indexed && next_chunk(reader, stream, from)) return true;
    if (!rk_process->is_indexed) index_streams();
    const struct rk_slot *slot = find_slot(stream);
    return slot && slot->first && next_chunk(reader, stream, slot->first);
}

static bool open_reader(struct rk_stream *stream) {
    struct rk_reader *reader = &stream->reader;
    reader->search = 2; /* absent, unless found below */
    if (!rk_process->profile) return false;
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
    bool is_found = find_first(reader, stream->id);
    if (is_found) rk_process->last_opened = reader->chunk;
    struct rk_slot *slot = is_found ? slot_of(stream->id) : NULL;
    reader->search = slot ? 1 : 2;
    if (slot) reader->consumed = &slot->position;
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return reader->search == 1;
}

bool rk_replay_end(struct rk_stream *stream) {
    struct rk_stream whole = {.id = stream->id};
    struct event event;
    if (!open_reader(&whole)) return false;
    for (; read_record(&whole.reader, whole.id, &event, NULL); advance(&whole.reader, &event))
        if (*event.record == RK_TAG_SITE) stream->sites++;
    stream->previous = whole.reader.previous;
    stream->ordinal = whole.reader.ordinal;
    return true;
}

/* ---- exact ------------------------------------------------------------------------------------------ */

/* Reads up to the next event of this stream that was neither withheld nor taken. */
static bool peek(struct rk_stream *stream, struct event *event, const struct request *request) {
    struct rk_reader *reader = &stream->reader;
    for (; read_record(reader, stream->id, event, request); advance(reader, event))
        if (is_available(reader, event)) return true;
    return false;
}

/* Sets a stream's position, unless another thread has moved it further in the meantime. */
static void raise_position(uint64_t *position, uint64_t offset) {
    uint64_t current = __atomic_load_n(position, __ATOMIC_RELAXED);
    if (RK_LIKELY(!__atomic_load_n(&rk_process->any_taken, __ATOMIC_ACQUIRE)))
        __atomic_store_n(position, offset, __ATOMIC_RELEASE);
    else
        while (current < offset &&
               !__atomic_compare_exchange_n(position, &current, offset, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            continue;
}

static bool find_exact(struct rk_stream *stream, const struct request *request, uint64_t *given) {
    struct rk_reader *reader = &stream->reader;
    struct event event;
    if (RK_UNLIKELY(reader->search != 1) && (reader->search != 0 || !open_reader(stream))) return false;
    if (!peek(stream, &event, request) || event.source != request->source || event.asked != request->asked)
        return false;
    advance(reader, &event);
    raise_position(reader->consumed, (uint64_t)(event.next - rk_process->profile));
    *given = event.given;
    return true;
}

/* ---- the clock --------------------------------------------------------------------------------------- */

static int64_t bounded(int64_t time) { return time < 0 || time > RK_LATEST ? RK_LATEST : time; }

/* The usual record of the clock, without a detour. */
static inline bool read_time(const struct rk_reader *reader, int64_t last, struct rk_moment *moment) {
    const uint8_t *at = reader->at;
    if (reader->end - at < 1 + PLACE + 4 + 4 || *at != RK_TAG_TIME) return false;
    uint64_t seed = (uint64_t)reader->previous << 8 | RK_TAG_TIME;
    uint32_t expected = (uint32_t)load(at + 1 + PLACE + 4, 4);
    if (RK_UNLIKELY(check_time(at + 1, seed) != expected)) return false;
    *moment = (struct rk_moment){.time = bounded(last + (int64_t)load(at + 1 + PLACE, 4)),
                                 .record = at,
                                 .next = at + 1 + PLACE + 4 + 4,
                                 .check = expected,
                                 .place = (uint16_t)load(at + 1, PLACE)};
    return true;
}

/* Reads up to the next record of the clock. Before format 4 they were events, without a place. */
static bool read_moment(struct rk_reader *reader, uint64_t stream, int64_t last, struct rk_moment *moment) {
    struct event event;
    if (RK_LIKELY(read_time(reader, last, moment))) return true;
    for (; read_record(reader, stream, &event, NULL); advance(reader, &event)) {
        const uint8_t *body = event.record + 1;
        bool is_plain = is_event(&event) && event.source == RK_SOURCE_CLOCK && event.given == sizeof(moment->time) &&
                        !(event.flags & RK_FLAG_WITHHELD);
        uint8_t tag = *event.record;
        if (!is_plain && tag != RK_TAG_TIME && tag != RK_TAG_DATE) continue;
        *moment = (struct rk_moment){.record = event.record, .next = event.next, .check = event.check};
        if (!is_plain) moment->place = (uint16_t)load(body, PLACE);
        moment->time = bounded(is_plain             ? (int64_t)load(event.bytes, 8)
                               : tag == RK_TAG_DATE ? (int64_t)load(body + PLACE, 8)
                                                    : last + (int64_t)load(body + PLACE, 4));
        return true;
    }
    return false;
}

/* Returns the next recorded read of a thread's clock, which stays the next one. last: the time of the one before. */
bool rk_moment_next(struct rk_stream *stream, int64_t last, struct rk_moment *moment) {
    struct rk_reader *reader = &stream->reader;
    if (RK_UNLIKELY(reader->search != 1) && (reader->search != 0 || !open_reader(stream))) return false;
    return read_moment(reader, stream->id, last, moment);
}

static void pass_moment(struct rk_reader *reader, const struct rk_moment *moment) {
    struct event event = {.record = moment->record, .next = moment->next, .check = moment->check};
    if (*event.record == RK_TAG_EVENT) parse(reader, &event);
    advance(reader, &event);
}

void rk_moment_pass(struct rk_stream *stream, const struct rk_moment *moment) { pass_moment(&stream->reader, moment); }

/* Finds the first read by a place behind `moment`, in a window. Behind reads that are not of a loop's two places it may
 * not be later than `limit`. */
bool rk_moment_find(const struct rk_stream *stream, uint16_t place, const uint16_t loop[2], int64_t limit, int window,
                    struct rk_moment *moment) {
    struct rk_reader reader = stream->reader;
    bool is_left_over = true;
    for (int i = 0; i < window; i++) {
        is_left_over &= moment->place == loop[0] || moment->place == loop[1];
        pass_moment(&reader, moment);
        if (!read_moment(&reader, stream->id, moment->time, moment)) return false;
        if (!is_left_over && moment->time > limit) return false;
        if (moment->place == place) return true;
    }
    return false;
}

/* ---- moved ------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t hash = (a ^ b * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xC2B2AE3D27D4EB4F);
    return hash ^ hash >> 32;
}

static void *map_zeroed(uint64_t size) {
    return rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static uint32_t count_chunks(const uint8_t *profile) {
    struct rk_reader scan = {0};
    uint32_t count = 0;
    const struct rk_chunk *chunk;
    for (uint64_t at = RK_HEAD; at < profile_used(profile) && (chunk = chunk_at(profile, at)) && count < UINT32_MAX - 1;
         count++) {
        at += (uint64_t)chunk->size * 64;
        unmap_passed(&scan, profile, at);
    }
    return count;
}

/* Links the chunks of each stream. */
static void link_chunks(struct rk_moved *moved, const uint8_t *profile, uint32_t count) {
    struct rk_reader scan = {0};
    uint64_t at = RK_HEAD;
    for (uint32_t i = 1; i <= count; i++) {
        const struct rk_chunk *chunk = chunk_at(profile, at);
        struct rk_slot *slot = chunk && chunk->stream ? slot_of(chunk->stream) : NULL;
        if (!chunk) return;
        moved->links[i] = (struct link){.offset = at, .is_first = slot && chunk->ordinal == 0};
        if (moved->links[i].is_first) slot->first_link = i;
        if (slot && slot->last_link) moved->links[slot->last_link].next = i;
        if (slot) slot->last_link = i;
        moved->count = i;
        at += (uint64_t)chunk->size * 64;
        unmap_passed(&scan, profile, at);
    }
}

static uint64_t size_bit(uint64_t asked, uint8_t source) { return mix(asked, source) % SIZES; }

static uint32_t first_link_of(uint64_t stream) {
    const struct rk_slot *slot = find_slot(stream);
    return slot ? slot->first_link : 0;
}

/* Returns the first link of the next stream that this cursor may take events from; 0 at the end. */
static uint32_t next_first_link(const struct rk_moved *moved, struct cursor *cursor) {
    uint32_t link = 0;
    if (is_thread(&cursor->owner)) {
        while (!link && cursor->next < RK_STREAMS) link = first_link_of(cursor->owner.streams[cursor->next++]);
        return link;
    }
    while (!link && cursor->first < moved->count)
        if (moved->links[++cursor->first].is_first) link = cursor->first;
    return link;
}

/* Moves the cursor to the first chunk of its next stream. */
static bool next_stream(const struct rk_moved *moved, struct cursor *cursor) {
    const uint8_t *profile = profile_now();
    uint64_t mapped_from = cursor->reader.mapped_from;
    uint32_t link = next_first_link(moved, cursor);
    const struct rk_chunk *chunk = profile && link ? chunk_at(profile, moved->links[link].offset) : NULL;
    if (!chunk) return false;
    cursor->reader =
        (struct rk_reader){.link = link, .mapped_from = mapped_from, .consumed = &slot_of(chunk->stream)->position};
    enter_chunk(&cursor->reader, profile, moved->links[link].offset, chunk);
    cursor->stream = chunk->stream;
    cursor->site = 0;
    cursor->skipped = false;
    return true;
}

static bool next_record(const struct rk_moved *moved, struct cursor *cursor, struct event *event) {
    while (!cursor->stream || !read_record(&cursor->reader, cursor->stream, event, NULL))
        if (!next_stream(moved, cursor)) return false;
    return true;
}

static void record_sizes(struct rk_moved *moved) {
    struct cursor all = {0};
    struct event event;
    for (; next_record(moved, &all, &event); advance(&all.reader, &event)) {
        if (!is_event(&event)) continue;
        uint64_t bit = size_bit(event.asked, event.source);
        moved->sizes[bit / 8] |= (uint8_t)(1u << bit % 8);
    }
}

static void build_index(void) {
    const uint8_t *profile = profile_now();
    uint32_t count = count_chunks(profile);
    struct rk_moved *moved = map_zeroed(sizeof(*moved));
    if (!moved || count == 0) return;
    moved->links = map_zeroed((count + UINT64_C(1)) * sizeof(*moved->links));
    moved->taken = map_zeroed(rk_process->profile_size / 32 + 1);
    if (!moved->links || !moved->taken) return;
    rk_process->moved = moved;
    link_chunks(moved, profile, count);
    record_sizes(moved);
    moved->complete = true;
}

/* Returns the cursor of a class for an owner. If its places are taken it evicts one, which restarts later. */
static struct cursor *cursor_of(struct rk_moved *moved, const struct request *request, const struct owner *owner) {
    struct cursor fresh = {
        .key = request->key, .asked = request->asked, .owner = *owner, .source = request->source, .used = 1};
    uint64_t home = mix(fresh.key ^ owner->streams[0], fresh.asked * RK_SOURCES + fresh.source);
    for (uint64_t i = home; i < home + PROBES; i++) {
        struct cursor *cursor = &moved->cursors[i % CURSORS];
        if (cursor->used && cursor->key == fresh.key && cursor->asked == fresh.asked &&
            cursor->source == fresh.source && cursor->owner.streams[0] == owner->streams[0])
            return cursor;
        if (!cursor->used) {
            *cursor = fresh;
            return cursor;
        }
    }
    struct cursor *cursor = &moved->cursors[home % CURSORS];
    *cursor = fresh;
    return cursor;
}

static void note_site(struct cursor *cursor, const struct event *event) {
    const uint8_t *at = event->record + 1;
    uint64_t key = rk_site_key((const char *)at + 11, at[10], load(at + 2, 8));
    if (key == cursor->key) cursor->site = (uint16_t)load(at, 2);
}

static bool fits(const struct cursor *cursor, const struct event *event) {
    return cursor->site && event->site == cursor->site && event->asked == cursor->asked &&
           event->source == cursor->source;
}

/* Marks an event as taken from the stream it was recorded in. The owner checks the mark before it takes its
 * next event. If it checked just before, both threads get the same bytes; the program has diverged by then. A stream
 * taken from its beginning needs no marks: its owner's position is raised instead. */
static void take_out(struct rk_moved *moved, struct cursor *cursor, const struct event *event) {
    uint64_t bit = (uint64_t)(event->record - rk_process->profile) / 4;
    if (cursor->skipped) __atomic_fetch_or(&moved->taken[bit / 8], (uint8_t)(1u << bit % 8), __ATOMIC_RELAXED);
    __atomic_store_n(&rk_process->any_taken, 1, __ATOMIC_RELEASE);
    if (!cursor->skipped) raise_position(cursor->reader.consumed, (uint64_t)(event->next - rk_process->profile));
}

static struct owner owner_of(const char *thread) {
    char handlers[RK_IDENTITY];
    size_t length = rk_append(handlers, sizeof(handlers), 0, thread);
    uint64_t own = rk_check(handlers, length, 0);
    length = rk_append(handlers, sizeof(handlers), length, RK_HANDLERS);
    return (struct owner){{own, rk_check(handlers, length, 0)}};
}

static uint32_t *started_word(struct rk_process *process, uint64_t stream) {
    return &process->started[stream / 32 % RK_LENGTH(process->started)];
}

/* Records that a thread of this name has started. */
void rk_thread_begins(struct rk_process *process, const char *thread) {
    struct owner owner = owner_of(thread);
    for (int i = 0; i < RK_STREAMS; i++)
        __atomic_fetch_or(started_word(process, owner.streams[i]), UINT32_C(1) << owner.streams[i] % 32,
                          __ATOMIC_RELEASE);
}

static bool has_started(uint64_t stream) {
    return __atomic_load_n(started_word(rk_process, stream), __ATOMIC_ACQUIRE) >> stream % 32 & 1;
}

static bool has_ended(void) { return ((const struct rk_file *)rk_process->profile)->ended; }

/* Finds the threads whose recorded events may answer this request out of order; false if there are none. */
static bool find_donor(const struct request *request, struct owner *donor) {
    const struct owner *owner = &request->owner;
    bool is_recorded = first_link_of(owner->streams[0]) || first_link_of(owner->streams[1]);
    *donor = is_recorded ? *owner : unstarted_threads;
    return is_recorded || has_ended();
}

static bool take_from(struct rk_moved *moved, const struct request *request, const struct owner *donor,
                      uint64_t *given) {
    struct cursor *cursor = cursor_of(moved, request, donor);
    struct event event;
    for (; next_record(moved, cursor, &event); advance(&cursor->reader, &event)) {
        if (donor->streams[0] == unstarted_threads.streams[0] && has_started(cursor->stream)) {
            cursor->stream = 0; /* a started thread keeps its events: skip this stream */
            continue;
        }
        if (*event.record == RK_TAG_SITE) note_site(cursor, &event);
        if (!is_available(&cursor->reader, &event)) continue;
        if (!fits(cursor, &event)) {
            cursor->skipped = true;
            continue;
        }
        take_out(moved, cursor, &event);
        memcpy(request->buffer, event.bytes, event.given);
        *given = event.given;
        advance(&cursor->reader, &event);
        return true;
    }
    return false;
}

/* Answers a request by a moved event. Which thread of a pool makes a request varies between identical runs, so a
 * strict replay stops only after it has tried the events of all threads. */
static bool answer_out_of_order(const struct request *request, uint64_t *given) {
    if (!rk_process->moved && !rk_process->no_index) {
        build_index();
        rk_process->no_index = !rk_process->moved;
    }
    struct rk_moved *moved = rk_process->moved;
    uint64_t bit = size_bit(request->asked, request->source);
    struct owner donor;
    if (!moved || rk_process->no_index || !(moved->sizes[bit / 8] >> bit % 8 & 1)) return false;
    if (!find_donor(request, &donor)) return false;
    if (take_from(moved, request, &donor, given)) return true;
    return rk_plan.policy == RK_POLICY_STRICT && has_ended() && take_from(moved, request, &any_thread, given);
}

/* Resets all cursors, which find their positions again by the marks of taken events. */
static void forget_cursors(void) {
    struct rk_moved *moved = rk_process->moved;
    rk_process->is_torn = 0;
    if (moved && !moved->complete) rk_process->no_index = 1;
    if (moved) memset(moved->cursors, 0, sizeof(moved->cursors));
}

static bool find_moved(struct request *request, const char *thread, const void *caller, uint64_t *given) {
    if (!rk_process->profile) return false;
    uint64_t offset;
    const char *module = rk_module(caller, &offset);
    request->key = rk_site_key(module, strlen(module), offset);
    request->owner = owner_of(thread);
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->is_torn = 1;
    if (RK_UNLIKELY(rk_process->is_torn)) forget_cursors();
    bool is_answered = answer_out_of_order(request, given);
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return is_answered;
}

bool rk_replay_find(const char *thread, struct rk_stream *stream, uint8_t source, const void *caller, void *buffer,
                    uint64_t asked, uint64_t *given, enum rk_match *match) {
    struct request request = {.source = source, .asked = asked, .buffer = buffer};
    *match = RK_MATCH_EXACT;
    if (RK_LIKELY(find_exact(stream, &request, given))) return true;
    /* A pipe is filled ahead of its reader, so its bytes may be another stream's next ones: only a stream that the
     * recording lacks may take moved events. */
    if (rk_runs_ahead(source) && stream->reader.consumed) return false;
    *match = RK_MATCH_MOVED;
    return find_moved(&request, thread, caller, given);
}
