/* replay.c - finds the recorded event that answers a request.
 *
 * The usual case, the next event of the same thread's stream, is read straight from the mapped file.
 * Only when that one does not fit is the oldest unused event of the same call site and size looked for, by a
 * cursor for each such class, which passes through its streams once: through the thread's own. A recorded event
 * is its thread's, who may still ask for it. Only a thread that the recording does not know at all, as its
 * name varies from run to run, is given events of threads that do not exist so far in the replay; not where the
 * recorded process was killed, as more threads would have come. A strict replay of a process that ended by itself is
 * given any thread's unused event before it stops. What has been read is unmapped behind the readers, so that memory
 * does not grow with the recording.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "internal.h"

#define STREAMS RK_STREAMS_MOST
#define CURSORS 4096 /* classes of moved events that are remembered; a power of two */
#define PROBES  8
#define SIZES   65536
#define AROUND  65536      /* bytes that one page fault maps (fault_around_bytes) */
#define BEHIND  (1u << 20) /* bytes that were read and may stay mapped, for each reader */

struct event {
    const uint8_t *record, *bytes, *next;
    uint64_t asked, given;
    uint32_t check;
    uint16_t site;
    uint8_t source, flags;
};

struct link { /* a chunk of the recording */
    uint64_t offset;
    uint32_t next; /* index of the next chunk of the same stream; 0 ends */
    uint32_t opens;
};

/* The streams of a thread: its own, and that of the signal handlers that interrupt its requests. */
struct owner {
    uint64_t streams[RK_STREAMS];
};

static const struct owner not_begun = {{0}}; /* all threads that do not exist so far */
static const struct owner anybody = {{1}};   /* all threads */

static bool is_a_thread(const struct owner *owner) { return owner->streams[0] > anybody.streams[0]; }

/* Looks for the events of one call site, size and source, from stream to stream. */
struct cursor {
    uint64_t key, asked;
    struct owner owner; /* whose streams it passes through; or as of what follows struct owner */
    uint64_t stream;
    struct rk_reader reader;
    uint32_t first; /* without an owner: link of the stream's first chunk */
    uint16_t site;  /* number of the call site in this stream, once it was met */
    uint8_t source, used;
    uint8_t next; /* of the owner's streams */
    bool passed;  /* over an event of this stream that nobody has had */
};

struct rk_moved {
    struct link *links; /* the first is none */
    uint32_t count;
    bool complete;            /* what a vfork child that was killed began is not */
    uint8_t *stolen;          /* one bit for every four bytes of the profile: given as moved */
    uint8_t sizes[SIZES / 8]; /* a bit for each size and source that occurs: a Bloom filter of one hash */
    struct cursor cursors[CURSORS];
};

/* ---- reading ------------------------------------------------------------------------------------ */

/* The recorded file; NULL without one, and in a child that a signal handler forked inside a request. */
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

/* Unmaps what a reader has passed; whoever still needs a page of it finds it in the page cache. */
static void leave(struct rk_reader *reader, const uint8_t *profile, uint64_t offset) {
    if (reader->kept == 0 || reader->kept > offset) reader->kept = offset;
    if (offset - reader->kept < BEHIND) return;
    /* With what the kernel mapped around the first page. */
    rk_leave(profile + (reader->kept > AROUND ? reader->kept - AROUND : 0), profile + offset);
    reader->kept = offset;
}

/* Whole or not at all: a signal handler that jumps out of here would leave the half of it. */
static void enter(struct rk_reader *reader, const uint8_t *profile, uint64_t offset, const struct rk_chunk *chunk) {
    rk_signals before = rk_block_signals();
    reader->chunk = offset;
    reader->ordinal++;
    reader->at = profile + offset + RK_CHUNK;
    reader->end = profile + offset + (uint64_t)chunk->size * 64;
    rk_restore_signals(before);
}

/* Goes on to the stream's next chunk, from offset on. */
static bool next_chunk(struct rk_reader *reader, uint64_t stream, uint64_t offset) {
    const uint8_t *profile = profile_now();
    uint64_t used = profile_used(profile);
    while (offset < used) {
        leave(reader, profile, offset);
        const struct rk_chunk *chunk = chunk_at(profile, offset);
        if (!chunk) {
            rk_give_up(RK_REASON_BAD_PROFILE, 0);
            return false;
        }
        if (chunk->stream == stream && chunk->ordinal == reader->ordinal) {
            enter(reader, profile, offset, chunk);
            return true;
        }
        offset += (uint64_t)chunk->size * 64;
    }
    reader->found = 2; /* nothing is left: do not look through the rest of the file again */
    return false;
}

/* The same for a cursor, which knows where it is. */
static bool linked_chunk(struct rk_reader *reader) {
    const uint8_t *profile = profile_now();
    if (!profile || !(reader->link = rk_process->moved->links[reader->link].next)) return false;
    uint64_t offset = rk_process->moved->links[reader->link].offset;
    leave(reader, profile, offset);
    const struct rk_chunk *chunk = chunk_at(profile, offset);
    if (!chunk) return false;
    enter(reader, profile, offset, chunk);
    return true;
}

static bool goes_on(struct rk_reader *reader, uint64_t stream) {
    if (RK_UNLIKELY(reader->link)) return linked_chunk(reader);
    return next_chunk(reader, stream, (uint64_t)(reader->end - rk_process->profile));
}

static uint64_t get(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    memcpy(&value, at, (size_t)bytes);
    return value;
}

/* The length of the record at reader->at between tag and check, or -1 if it is none. */
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
        event->site = (uint16_t)get(at + 1, 2);
        event->flags = at[3];
        event->asked = get(at + 4, 8);
        event->given = get(at + 12, 8);
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

/* A request: what of it must agree with an event, and where the bytes go. */
struct request {
    uint8_t source;
    uint64_t asked;
    uint8_t *buffer;
    uint64_t key; /* of the call site: the same in every run */
    struct owner owner;
};

/* Whether somebody was given it before: its owner (a cursor asks), or a thief. */
static bool is_used(const struct rk_reader *reader, const struct event *event) {
    bool stolen = __atomic_load_n(&rk_process->stolen, __ATOMIC_ACQUIRE);
    if (RK_LIKELY(!stolen && !reader->link)) return false;
    uint64_t offset = (uint64_t)(event->record - rk_process->profile), bit = offset / 4;
    if (reader->consumed && __atomic_load_n(reader->consumed, __ATOMIC_ACQUIRE) > offset) return true;
    return stolen && __atomic_load_n(&rk_process->moved->stolen[bit / 8], __ATOMIC_RELAXED) >> bit % 8 & 1;
}

/* Not of a cryptographic library, whose bytes are not there, nor used. */
static bool is_there(const struct rk_reader *reader, const struct event *event) {
    return is_event(event) && !(event->flags & RK_FLAG_WITHHELD) && !is_used(reader, event);
}

/* Large ones are read, which costs less than a page fault for every few pages of them. */
static bool read_bytes(const struct event *event, uint8_t *buffer) {
    uint64_t offset = (uint64_t)(event->bytes - rk_process->profile);
    int fd = event->given >= RK_LARGE ? rk_recorded_open(&offset) : -1;
    if (fd < 0) return false;
    long n = rk_call(SYS_pread64, fd, (long)buffer, (long)event->given, (long)offset, 0, 0);
    rk_close(fd);
    return n >= 0 && (uint64_t)n == event->given;
}

/* Compares the check of a record, and copies the bytes if it is the event asked for. */
static bool verify(const struct rk_reader *reader, struct event *event, uint64_t length,
                   const struct request *request) {
    uint64_t seed = (uint64_t)reader->previous << 8 | *event->record;
    const uint8_t *body = event->record + 1;
    uint32_t expected = (uint32_t)get(body + length, 4);
    bool wanted =
        request && is_there(reader, event) && event->source == request->source && event->asked == request->asked;
    event->check = expected;
    if (wanted && read_bytes(event, request->buffer) &&
        (uint32_t)rk_check_copied(body, length, seed, request->buffer, (uint64_t)(event->bytes - body)) == expected)
        return true; /* otherwise another thread may write into the same buffer */
    if ((uint32_t)rk_check(body, length, seed) != expected) return false;
    if (wanted) memcpy(request->buffer, event->bytes, event->given);
    return true;
}

/* Reads the record at the reader's position. False: no more records, or a damaged one. */
static bool read_record(struct rk_reader *reader, uint64_t stream, struct event *event, const struct request *request) {
    while (reader->at == reader->end || *reader->at == RK_TAG_END)
        if (!goes_on(reader, stream)) return false;
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

/* A signal handler jumped out of advance: it is done again, from the record that was compared before. */
void rk_reader_repair(struct rk_reader *reader) {
    struct event event;
    if (!reader->moving) return;
    reader->at = reader->moving;
    int64_t length = parse(reader, &event);
    event.record = reader->moving;
    event.next = event.record + length + 5;
    event.check = (uint32_t)get(event.next - 4, 4);
    advance(reader, &event);
}

/* ---- positions that thieves can see ---------------------------------------------------------------- */

/* The stream's place in the table of positions; NULL when that is full. */
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

/* Once a thread is not the next one that was recorded, others will not be either: where each begins. */
static void look_through(void) {
    const uint8_t *profile = profile_now();
    struct rk_reader passed = {0};
    const struct rk_chunk *chunk;
    for (uint64_t at = RK_HEAD; at < profile_used(profile) && (chunk = chunk_at(profile, at));
         at += (uint64_t)chunk->size * 64) {
        struct rk_slot *slot = chunk->stream && chunk->ordinal == 0 ? slot_of(chunk->stream) : NULL;
        if (slot && !slot->first) slot->first = at;
        leave(&passed, profile, at);
    }
    rk_process->looked = 1;
}

static const struct rk_slot *find_slot(uint64_t stream) {
    for (uint64_t i = stream; rk_process->slots[i % STREAMS].stream; i++)
        if (rk_process->slots[i % STREAMS].stream == stream) return &rk_process->slots[i % STREAMS];
    return NULL;
}

/* Streams are mostly opened in the order they were recorded in. */
static bool find_first(struct rk_reader *reader, uint64_t stream) {
    uint64_t from = rk_process->last_opened ? rk_process->last_opened : RK_HEAD;
    if (!rk_process->looked && next_chunk(reader, stream, from)) return true;
    if (!rk_process->looked) look_through();
    const struct rk_slot *slot = find_slot(stream);
    return slot && slot->first && next_chunk(reader, stream, slot->first);
}

static bool open_reader(struct rk_stream *stream) {
    struct rk_reader *reader = &stream->reader;
    reader->found = 2; /* looked for, and not there */
    if (!rk_process->profile) return false;
    rk_signals before = rk_block_signals();
    if (rk_lock(&rk_process->lock)) rk_process->torn = 1;
    bool there = find_first(reader, stream->id);
    if (there) rk_process->last_opened = reader->chunk;
    struct rk_slot *slot = there ? slot_of(stream->id) : NULL;
    reader->found = slot ? 1 : 2;
    if (slot) reader->consumed = &slot->position;
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return reader->found == 1;
}

/* ---- exact ------------------------------------------------------------------------------------------ */

/* The next event of this stream that was neither withheld nor stolen. */
static bool peek(struct rk_stream *stream, struct event *event, const struct request *request) {
    struct rk_reader *reader = &stream->reader;
    for (; read_record(reader, stream->id, event, request); advance(reader, event))
        if (is_there(reader, event)) return true;
    return false;
}

/* A thief may have been further on in the meantime. */
static void go_on_to(uint64_t *position, uint64_t offset) {
    uint64_t now = __atomic_load_n(position, __ATOMIC_RELAXED);
    if (RK_LIKELY(!__atomic_load_n(&rk_process->stolen, __ATOMIC_ACQUIRE)))
        __atomic_store_n(position, offset, __ATOMIC_RELEASE);
    else
        while (now < offset &&
               !__atomic_compare_exchange_n(position, &now, offset, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
            continue;
}

static bool find_exact(struct rk_stream *stream, const struct request *request, uint64_t *given) {
    struct rk_reader *reader = &stream->reader;
    struct event event;
    if (RK_UNLIKELY(reader->found != 1) && (reader->found != 0 || !open_reader(stream))) return false;
    if (!peek(stream, &event, request) || event.source != request->source || event.asked != request->asked)
        return false;
    advance(reader, &event);
    go_on_to(reader->consumed, (uint64_t)(event.next - rk_process->profile));
    *given = event.given;
    return true;
}

/* ---- moved ------------------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t a, uint64_t b) {
    uint64_t hash = (a ^ b * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xC2B2AE3D27D4EB4F);
    return hash ^ hash >> 32;
}

static void *zeroed(uint64_t size) {
    return rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static uint32_t count_chunks(const uint8_t *profile) {
    struct rk_reader passed = {0};
    uint32_t count = 0;
    const struct rk_chunk *chunk;
    for (uint64_t at = RK_HEAD; at < profile_used(profile) && (chunk = chunk_at(profile, at)) && count < UINT32_MAX - 1;
         count++) {
        at += (uint64_t)chunk->size * 64;
        leave(&passed, profile, at);
    }
    return count;
}

/* Chains the chunks of each stream. */
static void link_chunks(struct rk_moved *moved, const uint8_t *profile, uint32_t count) {
    struct rk_reader passed = {0};
    uint64_t at = RK_HEAD;
    for (uint32_t i = 1; i <= count; i++) {
        const struct rk_chunk *chunk = chunk_at(profile, at);
        struct rk_slot *slot = chunk && chunk->stream ? slot_of(chunk->stream) : NULL;
        if (!chunk) return;
        moved->links[i] = (struct link){.offset = at, .opens = slot && chunk->ordinal == 0};
        if (moved->links[i].opens) slot->opens = i;
        if (slot && slot->last) moved->links[slot->last].next = i;
        if (slot) slot->last = i;
        moved->count = i;
        at += (uint64_t)chunk->size * 64;
        leave(&passed, profile, at);
    }
}

static uint64_t size_bit(uint64_t asked, uint8_t source) { return mixed(asked, source) % SIZES; }

static uint32_t opening_link(uint64_t stream) {
    const struct rk_slot *slot = find_slot(stream);
    return slot ? slot->opens : 0;
}

/* The link of the next stream that this cursor may take events of; 0 ends. */
static uint32_t next_opening(const struct rk_moved *moved, struct cursor *cursor) {
    uint32_t link = 0;
    if (is_a_thread(&cursor->owner)) {
        while (!link && cursor->next < RK_STREAMS) link = opening_link(cursor->owner.streams[cursor->next++]);
        return link;
    }
    while (!link && cursor->first < moved->count)
        if (moved->links[++cursor->first].opens) link = cursor->first;
    return link;
}

/* Goes to the first chunk of the next stream behind this one. */
static bool next_stream(const struct rk_moved *moved, struct cursor *cursor) {
    const uint8_t *profile = profile_now();
    uint64_t kept = cursor->reader.kept;
    uint32_t link = next_opening(moved, cursor);
    const struct rk_chunk *chunk = profile && link ? chunk_at(profile, moved->links[link].offset) : NULL;
    if (!chunk) return false;
    cursor->reader = (struct rk_reader){.link = link, .kept = kept, .consumed = &slot_of(chunk->stream)->position};
    enter(&cursor->reader, profile, moved->links[link].offset, chunk);
    cursor->stream = chunk->stream;
    cursor->site = 0;
    cursor->passed = false;
    return true;
}

static bool next_record(const struct rk_moved *moved, struct cursor *cursor, struct event *event) {
    while (!cursor->stream || !read_record(&cursor->reader, cursor->stream, event, NULL))
        if (!next_stream(moved, cursor)) return false;
    return true;
}

static void note_sizes(struct rk_moved *moved) {
    struct cursor all = {0};
    struct event event;
    for (; next_record(moved, &all, &event); advance(&all.reader, &event)) {
        if (!is_event(&event)) continue;
        uint64_t bit = size_bit(event.asked, event.source);
        moved->sizes[bit / 8] |= (uint8_t)(1u << bit % 8);
    }
}

static void make_moved(void) {
    const uint8_t *profile = profile_now();
    uint32_t count = count_chunks(profile);
    struct rk_moved *moved = zeroed(sizeof(*moved));
    if (!moved || count == 0) return;
    moved->links = zeroed((count + UINT64_C(1)) * sizeof(*moved->links));
    moved->stolen = zeroed(rk_process->profile_size / 32 + 1);
    if (!moved->links || !moved->stolen) return;
    rk_process->moved = moved;
    link_chunks(moved, profile, count);
    note_sizes(moved);
    moved->complete = true;
}

/* The cursor of a class for an owner; one that is forgotten for another begins anew. */
static struct cursor *cursor_of(struct rk_moved *moved, const struct request *request, const struct owner *owner) {
    struct cursor wanted = {
        .key = request->key, .asked = request->asked, .owner = *owner, .source = request->source, .used = 1};
    uint64_t home = mixed(wanted.key ^ owner->streams[0], wanted.asked * RK_SOURCES + wanted.source);
    for (uint64_t i = home; i < home + PROBES; i++) {
        struct cursor *cursor = &moved->cursors[i % CURSORS];
        if (cursor->used && cursor->key == wanted.key && cursor->asked == wanted.asked &&
            cursor->source == wanted.source && cursor->owner.streams[0] == owner->streams[0])
            return cursor;
        if (!cursor->used) {
            *cursor = wanted;
            return cursor;
        }
    }
    struct cursor *cursor = &moved->cursors[home % CURSORS];
    *cursor = wanted;
    return cursor;
}

static void note_site(struct cursor *cursor, const struct event *event) {
    const uint8_t *at = event->record + 1;
    uint64_t key = rk_site_key((const char *)at + 11, at[10], get(at + 2, 8));
    if (key == cursor->key) cursor->site = (uint16_t)get(at, 2);
}

static bool fits(const struct cursor *cursor, const struct event *event) {
    return cursor->site && event->site == cursor->site && event->asked == cursor->asked &&
           event->source == cursor->source;
}

/* Takes an event out of the stream it was recorded in. Its owner looks whether it is used before it takes
 * its next event; should it have looked just before, both are given the same bytes: only where the
 * program already went another way than recorded. A stream that is taken from its beginning needs no marks:
 * its owner goes on behind. */
static void take_out(struct rk_moved *moved, struct cursor *cursor, const struct event *event) {
    uint64_t bit = (uint64_t)(event->record - rk_process->profile) / 4;
    if (cursor->passed) __atomic_fetch_or(&moved->stolen[bit / 8], (uint8_t)(1u << bit % 8), __ATOMIC_RELAXED);
    __atomic_store_n(&rk_process->stolen, 1, __ATOMIC_RELEASE);
    if (!cursor->passed) go_on_to(cursor->reader.consumed, (uint64_t)(event->next - rk_process->profile));
}

static struct owner owner_of(const char *thread) {
    char handlers[RK_IDENTITY];
    size_t length = rk_append(handlers, sizeof(handlers), 0, thread);
    uint64_t own = rk_check(handlers, length, 0);
    length = rk_append(handlers, sizeof(handlers), length, RK_HANDLERS);
    return (struct owner){{own, rk_check(handlers, length, 0)}};
}

static uint32_t *begun_word(struct rk_process *process, uint64_t stream) {
    return &process->begun[stream / 32 % RK_LENGTH(process->begun)];
}

/* A thread of this name exists from now on. */
void rk_thread_begins(struct rk_process *process, const char *thread) {
    struct owner owner = owner_of(thread);
    for (int i = 0; i < RK_STREAMS; i++)
        __atomic_fetch_or(begun_word(process, owner.streams[i]), UINT32_C(1) << owner.streams[i] % 32,
                          __ATOMIC_RELEASE);
}

static bool has_begun(uint64_t stream) {
    return __atomic_load_n(begun_word(rk_process, stream), __ATOMIC_ACQUIRE) >> stream % 32 & 1;
}

static bool has_ended(void) { return ((const struct rk_file *)rk_process->profile)->ended; }

/* Whose recorded events may answer this request besides the next one of its stream. False: nobody's. */
static bool find_lender(const struct request *request, struct owner *lender) {
    const struct owner *owner = &request->owner;
    bool is_known = opening_link(owner->streams[0]) || opening_link(owner->streams[1]);
    *lender = is_known ? *owner : not_begun;
    return is_known || has_ended();
}

static bool borrow(struct rk_moved *moved, const struct request *request, const struct owner *lender, uint64_t *given) {
    struct cursor *cursor = cursor_of(moved, request, lender);
    struct event event;
    for (; next_record(moved, cursor, &event); advance(&cursor->reader, &event)) {
        if (lender->streams[0] == not_begun.streams[0] && has_begun(cursor->stream)) {
            cursor->stream = 0; /* its events are its own: on to the next stream */
            continue;
        }
        if (*event.record == RK_TAG_SITE) note_site(cursor, &event);
        if (!is_there(&cursor->reader, &event)) continue;
        if (!fits(cursor, &event)) {
            cursor->passed = true;
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

/* A strict replay would end here, and which thread of a pool asks for what varies in runs that are the same: it
 * ends only where all that was recorded is used up. */
static bool steal(const struct request *request, uint64_t *given) {
    if (!rk_process->moved && !rk_process->no_index) {
        make_moved();
        rk_process->no_index = !rk_process->moved;
    }
    struct rk_moved *moved = rk_process->moved;
    uint64_t bit = size_bit(request->asked, request->source);
    struct owner lender;
    if (!moved || rk_process->no_index || !(moved->sizes[bit / 8] >> bit % 8 & 1)) return false;
    if (!find_lender(request, &lender)) return false;
    if (borrow(moved, request, &lender, given)) return true;
    return rk_plan.policy == RK_POLICY_STRICT && has_ended() && borrow(moved, request, &anybody, given);
}

/* They find their places again, by what is marked as given. */
static void forget_cursors(void) {
    struct rk_moved *moved = rk_process->moved;
    rk_process->torn = 0;
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
    if (rk_lock(&rk_process->lock)) rk_process->torn = 1;
    if (RK_UNLIKELY(rk_process->torn)) forget_cursors();
    bool found = steal(request, given);
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return found;
}

bool rk_replay_find(const char *thread, struct rk_stream *stream, uint8_t source, const void *caller, void *buffer,
                    uint64_t asked, uint64_t *given, enum rk_match *match) {
    struct request request = {.source = source, .asked = asked, .buffer = buffer};
    *match = RK_MATCH_EXACT;
    if (RK_LIKELY(find_exact(stream, &request, given))) return true;
    if (source == RK_SOURCE_CLOCK) return false;
    /* What a pipe is filled with ahead of its reader may be another's next bytes: only one that the recording
     * does not know is given them. */
    if (rk_runs_ahead(source) && stream->reader.consumed) return false;
    *match = RK_MATCH_MOVED;
    return find_moved(&request, thread, caller, given);
}
