/* replay.c - finds the recorded event that answers a request.
 *
 * The usual case, the next event of the same thread's stream, is read straight from the mapped file.
 * Only when that one does not fit is an index of all the process's events made, which finds the
 * oldest unused one of the same call site and size.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "internal.h"

#define STREAMS (1u << 20) /* slots of the table of positions; a power of two */

struct event {
    const uint8_t *record, *bytes, *next;
    uint64_t asked, given;
    uint32_t check;
    uint16_t site;
    uint8_t source, flags;
};

struct entry {
    uint64_t key, asked, given, stream, offset;
    const uint8_t *bytes;
    uint32_t next; /* index + 1 of the next entry of the same hash; 0 ends */
    uint8_t source;
};

struct rk_moved {
    struct entry *entries;
    uint64_t count, capacity;
    uint32_t *heads; /* index + 1 */
    uint64_t mask;
    uint8_t *stolen; /* one bit for every four bytes of the profile: given as moved */
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

/* Goes on to the stream's next chunk, from offset on. */
static bool next_chunk(struct rk_reader *reader, uint64_t stream, uint64_t offset) {
    const uint8_t *profile = profile_now();
    uint64_t used = profile_used(profile);
    while (offset < used) {
        const struct rk_chunk *chunk = chunk_at(profile, offset);
        if (!chunk) {
            rk_give_up(RK_REASON_BAD_PROFILE, 0);
            return false;
        }
        uint64_t size = (uint64_t)chunk->size * 64;
        if (chunk->stream == stream && chunk->ordinal == reader->ordinal) {
            reader->chunk = offset;
            reader->ordinal++;
            reader->at = profile + offset + RK_CHUNK;
            reader->end = profile + offset + size;
            return true;
        }
        offset += size;
    }
    reader->found = 2; /* nothing is left: do not look through the rest of the file again */
    return false;
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

/* Reads the record at the reader's position. False: no more records, or a damaged one. */
static bool read_record(struct rk_reader *reader, uint64_t stream, struct event *event) {
    while (reader->at == reader->end || *reader->at == RK_TAG_END) {
        if (!next_chunk(reader, stream, (uint64_t)(reader->end - rk_process->profile))) return false;
    }
    int64_t length = parse(reader, event);
    if (length < 0 || length + 5 > reader->end - reader->at) return false;
    event->record = reader->at;
    event->next = reader->at + length + 5;
    uint64_t seed = (uint64_t)reader->previous << 8 | *reader->at;
    event->check = (uint32_t)rk_check(reader->at + 1, (uint64_t)length, seed);
    if (event->check != (uint32_t)get(event->next - 4, 4)) {
        rk_give_up(RK_REASON_BAD_PROFILE, 0);
        return false;
    }
    return true;
}

static void advance(struct rk_reader *reader, const struct event *event) {
    if (*event->record == RK_TAG_EVENT) {
        reader->source = event->source;
        reader->flags = event->flags;
        reader->site = event->site;
        reader->asked = event->asked;
        reader->given = event->given;
    }
    reader->at = event->next;
    reader->previous = event->check;
}

static bool is_event(const struct event *event) {
    return *event->record == RK_TAG_EVENT || *event->record == RK_TAG_REPEAT;
}

/* ---- positions that thieves can see ---------------------------------------------------------------- */

/* Where the stream's owner has come to: the offset behind the last event it was given. */
static uint64_t *position_of(uint64_t stream) {
    for (uint64_t i = stream, n = 0; n < STREAMS; i++, n++) {
        uint64_t *slot = rk_process->consumed[i % STREAMS];
        if (slot[0] == stream) return &slot[1];
        if (slot[0] == 0 && rk_process->streams < STREAMS / 2) {
            rk_process->streams++;
            slot[0] = stream;
            return &slot[1];
        }
    }
    return NULL;
}

static bool open_reader(struct rk_stream *stream) {
    struct rk_reader *reader = &stream->reader;
    reader->found = 2; /* looked for, and not there */
    if (!rk_process->profile) return false;
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->lock);
    /* Streams are mostly opened in the order they were recorded in. */
    uint64_t from = rk_process->last_opened ? rk_process->last_opened : RK_HEAD;
    bool there = next_chunk(reader, stream->id, from) || (from > RK_HEAD && next_chunk(reader, stream->id, RK_HEAD));
    if (there) rk_process->last_opened = reader->chunk;
    reader->found = there && (reader->consumed = position_of(stream->id)) ? 1 : 2;
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    return reader->found == 1;
}

static bool is_stolen(const uint8_t *record) {
    uint64_t bit = (uint64_t)(record - rk_process->profile) / 4;
    return rk_process->moved->stolen[bit / 8] >> bit % 8 & 1;
}

/* ---- exact ------------------------------------------------------------------------------------------ */

/* The next event of this stream that was neither withheld nor stolen. */
static bool peek(struct rk_stream *stream, struct event *event) {
    struct rk_reader *reader = &stream->reader;
    while (read_record(reader, stream->id, event)) {
        bool stolen = RK_UNLIKELY(__atomic_load_n(&rk_process->stolen, __ATOMIC_ACQUIRE)) && is_stolen(event->record);
        if (is_event(event) && !(event->flags & RK_FLAG_WITHHELD) && !stolen) return true;
        advance(reader, event);
    }
    return false;
}

/* ---- moved ------------------------------------------------------------------------------------------- */

static uint64_t bucket(uint64_t key, uint64_t asked) { return (key ^ asked * UINT64_C(0x9E3779B97F4A7C15)) >> 7; }

static void *zeroed(uint64_t size) {
    return rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Visits every event of one stream; counts only while the index has no room yet. */
static void index_stream(struct rk_moved *moved, uint64_t stream, uint64_t offset, uint64_t *keys) {
    struct rk_reader reader = {0};
    struct event event;
    if (!next_chunk(&reader, stream, offset)) return;
    for (; read_record(&reader, stream, &event); advance(&reader, &event)) {
        const uint8_t *at = event.record + 1;
        if (*event.record == RK_TAG_SITE) keys[get(at, 2)] = rk_site_key((const char *)at + 11, at[10], get(at + 2, 8));
        if (!is_event(&event) || event.flags & RK_FLAG_WITHHELD) continue;
        if (moved->count < moved->capacity)
            moved->entries[moved->count] = (struct entry){.key = keys[event.site],
                                                          .asked = event.asked,
                                                          .given = event.given,
                                                          .stream = stream,
                                                          .offset = (uint64_t)(event.record - rk_process->profile),
                                                          .bytes = event.bytes,
                                                          .source = event.source};
        moved->count++;
    }
}

static void index_streams(struct rk_moved *moved, uint64_t *keys) {
    moved->count = 0;
    const struct rk_chunk *chunk;
    const uint8_t *profile = rk_process->profile;
    for (uint64_t offset = RK_HEAD; offset < profile_used(profile) && (chunk = chunk_at(profile, offset));
         offset += (uint64_t)chunk->size * 64)
        if (chunk->ordinal == 0 && chunk->stream != 0) index_stream(moved, chunk->stream, offset, keys);
}

/* Chains are built from the back, so that the oldest event stands first. */
static void link_entries(struct rk_moved *moved) {
    for (uint64_t i = moved->count; i > 0; i--) {
        struct entry *entry = &moved->entries[i - 1];
        uint32_t *head = &moved->heads[bucket(entry->key, entry->asked) & moved->mask];
        entry->next = *head;
        *head = (uint32_t)i;
    }
}

static struct rk_moved *make_index(void) {
    struct rk_moved *moved = zeroed(sizeof(*moved));
    uint64_t *keys = zeroed(65536 * sizeof(*keys));
    if (!moved || !keys) return NULL;
    index_streams(moved, keys);
    if (moved->count == 0 || moved->count >= UINT32_MAX) return NULL;
    moved->capacity = moved->count;
    for (moved->mask = 1; moved->mask < moved->count; moved->mask *= 2) continue;
    moved->heads = zeroed(moved->mask * sizeof(*moved->heads));
    moved->mask--;
    moved->entries = zeroed(moved->capacity * sizeof(*moved->entries));
    moved->stolen = zeroed(rk_process->profile_size / 32 + 1);
    if (!moved->heads || !moved->entries || !moved->stolen) return NULL;
    index_streams(moved, keys);
    rk_unmap(keys, 65536 * sizeof(*keys));
    link_entries(moved);
    return moved;
}

static bool is_unused(const struct entry *entry) {
    if (is_stolen(rk_process->profile + entry->offset)) return false;
    uint64_t *position = position_of(entry->stream);
    return position && __atomic_load_n(position, __ATOMIC_ACQUIRE) <= entry->offset;
}

/* Takes an event out of the stream it was recorded in. Its owner looks at `stolen` before it takes
 * its next event; should it have looked just before, both are given the same bytes: only where the
 * program already went another way than recorded. */
static const struct entry *steal(uint64_t key, uint64_t asked, uint8_t source) {
    struct rk_moved *moved = rk_process->moved;
    if (!moved && !rk_process->no_index) {
        moved = rk_process->moved = make_index();
        rk_process->no_index = !moved;
    }
    if (!moved) return NULL;
    uint32_t *link = &moved->heads[bucket(key, asked) & moved->mask];
    while (*link) {
        struct entry *entry = &moved->entries[*link - 1];
        if (entry->key == key && entry->asked == asked && entry->source == source) {
            bool unused = is_unused(entry);
            *link = entry->next; /* used, whether before or now: never looked at again */
            if (!unused) continue;
            uint64_t bit = entry->offset / 4;
            moved->stolen[bit / 8] |= (uint8_t)(1u << bit % 8);
            __atomic_store_n(&rk_process->stolen, 1, __ATOMIC_RELEASE);
            return entry;
        }
        link = &entry->next;
    }
    return NULL;
}

static const uint8_t *find_moved(uint64_t key, uint64_t asked, uint8_t source, uint64_t *given) {
    if (!rk_process->profile) return NULL;
    rk_signals before = rk_block_signals();
    rk_lock(&rk_process->lock);
    const struct entry *entry = steal(key, asked, source);
    rk_unlock(&rk_process->lock);
    rk_restore_signals(before);
    if (!entry) return NULL;
    *given = entry->given;
    return entry->bytes;
}

const uint8_t *rk_replay_find(struct rk_stream *stream, uint8_t source, uint64_t key, uint64_t asked, uint64_t *given,
                              enum rk_match *match) {
    struct rk_reader *reader = &stream->reader;
    struct event event;
    if (RK_LIKELY(reader->found == 1) || (reader->found == 0 && open_reader(stream))) {
        if (peek(stream, &event) && event.source == source && event.asked == asked) {
            advance(reader, &event);
            __atomic_store_n(reader->consumed, (uint64_t)(event.next - rk_process->profile), __ATOMIC_RELEASE);
            *given = event.given;
            *match = RK_MATCH_EXACT;
            return event.bytes;
        }
    }
    *match = RK_MATCH_MOVED;
    return find_moved(key, asked, source, given);
}

/* ---- the recorded file of this process ----------------------------------------------------------- */

static bool is_profile(const struct rk_file *file, uint64_t size) {
    return size >= RK_HEAD && memcmp(file->magic, "RKENTROP", 8) == 0 && file->format <= RK_FORMAT &&
           file->head_check == rk_check(file, offsetof(struct rk_file, head_check), 0) &&
           strncmp(file->identity, rk_identity, sizeof(file->identity)) == 0;
}

static int open_recorded(void) {
    char path[sizeof(rk_plan.profile) + 64];
    size_t length = rk_append(path, sizeof(path), 0, rk_plan.profile);
    length = rk_append(path, sizeof(path), length, "/");
    length = rk_append_hex(path, sizeof(path), length, rk_check(rk_identity, strlen(rk_identity), 0));
    length = rk_append(path, sizeof(path), length, "-");
    length = rk_append_number(path, sizeof(path), length, rk_process->incarnation);
    rk_append(path, sizeof(path), length, ".entropy");
    return rk_open(path, O_RDONLY | O_NOFOLLOW, 0);
}

/* A process without a recorded file is answered by the policy. */
void rk_profile_open(void) {
    int fd = open_recorded();
    if (fd < 0) {
        if (fd != -ENOENT) rk_give_up(RK_REASON_BAD_PROFILE, -fd);
        return;
    }
    long size = rk_call(SYS_lseek, fd, 0, SEEK_END, 0, 0, 0);
    uint8_t *map = size > 0 ? rk_map((size_t)size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    rk_close(fd);
    rk_process->consumed = zeroed(STREAMS * sizeof(*rk_process->consumed));
    if (!map || !rk_process->consumed || !is_profile((struct rk_file *)map, (uint64_t)size)) {
        rk_give_up(RK_REASON_BAD_PROFILE, 0);
        return;
    }
    rk_process->profile = map;
    rk_process->profile_size = (uint64_t)size;
}
