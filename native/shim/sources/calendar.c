/* calendar.c - the time of day that each thread was told: recorded, and told again in a replay.
 *
 * Recorded are a thread's reads in their order, each with the place that made it (place.c). A replay tells a thread the
 * next recorded time where the same place reads. Loops that wait for something read more or less often in a replay:
 *
 *   - A place with fewer reads leaves some behind: they are passed where the next place is found behind them.
 *   - A place with more reads, or one that the recording lacks, takes nobody else's: there the time goes on at real
 *     speed from what was told last. It stays below the next recorded time for some seconds, as the reads to come are
 *     to be told what was recorded.
 *   - Reads that may be another loop's than the recorded ones cannot make the time run: they gain at most LEAD, and
 *     SPEED times the time that has passed. So a deadline that is far away stays so.
 *   - Other threads stay near the first one: at most TOLERANCE behind what it was told, and ahead of what it will be
 *     told next, as they were. So a replay that is slower, or faster, fires no watchdog.
 *
 * All of that needs no lock: the first thread publishes three numbers, and each thread reads its own stream.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "recorder/fill.h"
#include "recorder/host.h"
#include "recorder/plan.h"
#include "recorder/record.h"
#include "recorder/replay.h"
#include "recorder/system.h"
#include "shim/hooks.h"
#include "shim/identity/state.h"
#include "shim/sources/calendar.h"

#define SECOND      INT64_C(1000000000)
#define TOLERANCE   (5 * SECOND)
#define GRACE       (2 * SECOND) /* how long a thread's time waits for its next recorded read */
#define OVERDUE     (5 * SECOND) /* how long other threads' time waits for the first one, whatever it has recorded */
#define SLOWEST     20           /* times as long as the recording may a replay take for them to wait for that */
#define LONGEST_GAP (1000000 * SECOND)
#define COARSEST    (SECOND / 100) /* a tick of a kernel of 100 Hz */
#define LEAD        (60 * SECOND)
#define SPEED       10
#define WINDOW      256         /* recorded reads behind the next one in which a place is looked for */
#define MOST        (16u << 20) /* bytes of the recorded reads of a process */
#define LONGEST     15          /* bytes of a record */

enum rk_next { NEXT_UNKNOWN = 0, NEXT_KNOWN, NEXT_NONE };

/* Of the time told last in this process, or before it was forked; 0: none was told. */
static int64_t newest_ahead;

int64_t rk_clock_now(clockid_t id) {
    struct timespec time = {0};
    RK_REAL(clock_gettime)(id, &time);
    return (int64_t)time.tv_sec * SECOND + time.tv_nsec;
}

/* ---- record ------------------------------------------------------------------------------------------------------ */

static bool has_room(struct rk_stream *stream) {
    const struct rk_chunk *before = stream->chunk;
    uint64_t *full = &rk_process->file->calendar_full;
    if (RK_LIKELY(stream->end - stream->at >= LONGEST)) return true;
    if (__atomic_load_n(full, __ATOMIC_RELAXED)) return false;
    bool is_spent = __atomic_load_n(&rk_process->calendar_bytes, __ATOMIC_RELAXED) >= MOST;
    uint64_t used = __atomic_load_n(&rk_process->file->used, __ATOMIC_RELAXED);
    bool is_within = rk_within_limit(4 * used); /* files double twice: the rest is for entropy */
    int error = is_spent ? 0 : is_within ? rk_stream_spare_room(stream, LONGEST) : EFBIG;
    if (error == EAGAIN) return false;
    if (is_spent || error) {
        __atomic_store_n(full, is_spent ? RK_CALENDAR_SPENT : RK_CALENDAR_NO_ROOM, __ATOMIC_RELAXED);
        return false;
    }
    if (stream->chunk != before)
        __atomic_add_fetch(&rk_process->calendar_bytes, (uint64_t)stream->chunk->size * 64, __ATOMIC_RELAXED);
    return true;
}

/* Writes the time since the last record where it fits into 32 bits, else the time itself. */
static void record(struct rk_thread *thread, uint16_t place, int64_t time) {
    struct rk_stream *stream = &thread->streams[RK_CLOCK];
    if (RK_UNLIKELY(!stream->opened)) __atomic_store_n(&rk_process->prefers_slot, 1, __ATOMIC_RELAXED);
    if (!rk_prepare_stream(thread, stream) || !has_room(stream)) return;
    uint64_t since = (uint64_t)(time - thread->calendar.last);
    if (RK_LIKELY(stream->any && since <= UINT32_MAX)) {
        rk_commit_word(stream, RK_TAG_TIME, place | since << 16, 6);
    } else {
        rk_put(rk_put(stream->at + 1, place, 2), (uint64_t)time, 8);
        rk_commit(stream, RK_TAG_DATE, 10);
    }
    thread->calendar.last = time;
    stream->any = 1; /* an abandoned record makes it 0: the next one is whole */
    stream->chunk->events++;
}

/* ---- replay: what was recorded ----------------------------------------------------------------------------------- */

static inline bool has_next(struct rk_thread *thread) {
    struct rk_calendar *calendar = &thread->calendar;
    struct rk_stream *stream = &thread->streams[RK_CLOCK];
    if (RK_UNLIKELY(!stream->id)) return false; /* nothing was read yet, and so nothing is opened for files' times */
    if (calendar->has_next == NEXT_UNKNOWN) {
        bool is_there = rk_moment_next(stream, calendar->last, &calendar->next);
        calendar->has_next = is_there ? NEXT_KNOWN : NEXT_NONE;
    }
    return calendar->has_next == NEXT_KNOWN;
}

static uint64_t *passed_word(struct rk_calendar *calendar, uint16_t place) {
    return &calendar->passed[place / 64 % RK_LENGTH(calendar->passed)];
}

static bool was_passed(struct rk_calendar *calendar, uint16_t place) {
    return *passed_word(calendar, place) >> place % 64 & 1;
}

/* Leaves the next recorded read behind. */
static void pass(struct rk_thread *thread) {
    struct rk_calendar *calendar = &thread->calendar;
    *passed_word(calendar, calendar->next.place) |= UINT64_C(1) << calendar->next.place % 64;
    rk_moment_pass(&thread->streams[RK_CLOCK], &calendar->next);
    calendar->last = calendar->next.time;
    calendar->has_next = NEXT_UNKNOWN;
    calendar->missed = 0;
}

/* After a siglongjmp out of a read: brings what was passed and the stream's position together. */
void rk_calendar_repair(struct rk_thread *thread) {
    struct rk_calendar *calendar = &thread->calendar;
    bool is_passed = calendar->next.next && thread->streams[RK_CLOCK].reader.at == calendar->next.next;
    if (calendar->has_next == NEXT_KNOWN && is_passed) calendar->last = calendar->next.time;
    calendar->has_next = NEXT_UNKNOWN;
}

/* ---- replay: when what was told -----------------------------------------------------------------------------------
 */

/* From a moment of the monotonic clock on, how far the calendar was ahead of it. Before the first one it ran at real
 * speed from the start of the run. */
struct stretch {
    int64_t from, ahead;
};

#define STRETCHES 512
#define DOUBLINGS 16
#define JITTER    (SECOND / 1000) /* before the first doubling */
#define TICK      (SECOND / 500)  /* files' times lag: a loop that waits for an age shall not look once more for it */

static struct stretch stretches[STRETCHES];
static uint32_t stretch_count;

/* Adds a stretch if the calendar is far enough from the last one; the more there are, the farther. */
static void note(int64_t now, int64_t ahead) {
    uint32_t count = __atomic_load_n(&stretch_count, __ATOMIC_ACQUIRE);
    int64_t before = count ? __atomic_load_n(&stretches[count - 1].ahead, __ATOMIC_RELAXED) : rk_plan.ahead;
    int64_t moved = ahead - before;
    int64_t least = JITTER << count / (STRETCHES / DOUBLINGS);
    if (RK_LIKELY(moved <= least && moved >= -least)) return;
    if (__atomic_exchange_n(&rk_process->noting, 1, __ATOMIC_ACQUIRE)) return;
    count = __atomic_load_n(&stretch_count, __ATOMIC_ACQUIRE);
    if (count < STRETCHES) {
        stretches[count] = (struct stretch){now, ahead};
        __atomic_store_n(&stretch_count, count + 1, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(&stretches[count - 1].ahead, ahead, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&rk_process->noting, 0, __ATOMIC_RELEASE);
}

int64_t rk_calendar_of_file(int64_t time) {
    int64_t then = time - rk_plan.kernel_ahead, ahead = rk_plan.ahead;
    uint32_t count = __atomic_load_n(&stretch_count, __ATOMIC_ACQUIRE);
    if ((!ahead && !count) || time <= rk_calendar_expected()) return time;
    for (uint32_t i = 0; i < count && stretches[i].from <= then; i++)
        ahead = __atomic_load_n(&stretches[i].ahead, __ATOMIC_RELAXED);
    return then + ahead - TICK;
}

/* ---- replay: other threads --------------------------------------------------------------------------------------- */

static bool is_first(const struct rk_thread *thread) { return thread->identity[0] == 'm' && !thread->identity[1]; }

/* What a thread may be told. */
struct bounds {
    int64_t least, most;
};

/* How long other threads' time waits for the first thread's next read: some times as long as the recording took, as far
 * as the replay has been slower so far. */
static int64_t patience(int64_t told, int64_t next) {
    int64_t real = __atomic_load_n(&rk_process->first_now, __ATOMIC_RELAXED) -
                   __atomic_load_n(&rk_process->first_began_now, __ATOMIC_RELAXED);
    int64_t calendar = told - __atomic_load_n(&rk_process->first_began, __ATOMIC_RELAXED);
    int64_t slower = calendar > 0 && real > calendar ? real / calendar + 1 : 1;
    int64_t gap = next - told < LONGEST_GAP ? next - told : LONGEST_GAP;
    return OVERDUE + gap * (1 + 2 * (slower < SLOWEST ? slower : SLOWEST));
}

static inline struct bounds bounds_of(const struct rk_thread *thread, int64_t now) {
    struct bounds bounds = {INT64_MIN, INT64_MAX};
    int64_t told = __atomic_load_n(&rk_process->first_told, __ATOMIC_RELAXED);
    int64_t next = __atomic_load_n(&rk_process->first_next, __ATOMIC_RELAXED);
    if (RK_LIKELY(is_first(thread)) || !told) return bounds;
    bounds.least = told - TOLERANCE;
    int64_t waited = now - __atomic_load_n(&rk_process->first_now, __ATOMIC_RELAXED);
    if (next && waited <= patience(told, next)) bounds.most = next + TOLERANCE;
    return bounds;
}

static void publish(struct rk_thread *thread, int64_t told, int64_t now) {
    if (!is_first(thread)) return;
    if (RK_UNLIKELY(!__atomic_load_n(&rk_process->first_began, __ATOMIC_RELAXED))) {
        __atomic_store_n(&rk_process->first_began_now, now, __ATOMIC_RELAXED);
        __atomic_store_n(&rk_process->first_began, told, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&rk_process->first_told, told, __ATOMIC_RELAXED);
    __atomic_store_n(&rk_process->first_now, now, __ATOMIC_RELAXED);
    __atomic_store_n(&rk_process->first_next, has_next(thread) ? thread->calendar.next.time : 0, __ATOMIC_RELAXED);
}

extern char __libc_single_threaded __attribute__((weak)); /* glibc 2.32 */

/* Adds one to a counter of the file's head. */
static void count(size_t field) {
    struct rk_file *file = __atomic_load_n(&rk_process->file, __ATOMIC_RELAXED);
    uint64_t *counter = (uint64_t *)((char *)file + field);
    if (RK_UNLIKELY(!file) || rk_continues()) return;
    if (&__libc_single_threaded && __libc_single_threaded)
        ++*counter;
    else
        __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

/* ---- replay: what is told ---------------------------------------------------------------------------------------- */

static int64_t ahead_of(const struct rk_calendar *calendar) {
    if (calendar->ahead) return calendar->ahead;
    int64_t ahead = __atomic_load_n(&newest_ahead, __ATOMIC_RELAXED);
    return ahead ? ahead : rk_plan.ahead;
}

/* Returns the latest time that a doubtful read may be told. */
static int64_t limit_of(const struct rk_calendar *calendar, int64_t expected, int64_t now) {
    int64_t started = __atomic_load_n(&rk_process->calendar_started, __ATOMIC_RELAXED);
    if (RK_UNLIKELY(!started)) __atomic_store_n(&rk_process->calendar_started, started = now, __ATOMIC_RELAXED);
    int64_t passed = now - started;
    return expected + LEAD + SPEED * passed - calendar->lead;
}

static bool is_recent(const struct rk_calendar *calendar, uint16_t place) {
    return place == calendar->places[0] || place == calendar->places[1];
}

/* The names are the same: lines of the same functions, which may have been edited. */
static bool is_akin(uint16_t left, uint16_t right) { return left >> 8 == right >> 8; }

enum choice { NOT_RECORDED, DOUBTFUL, FIRM };

/* Looks for this read behind the next recorded one. */
static __attribute__((noinline)) enum choice choose_behind(struct rk_thread *thread, uint16_t place, int64_t limit,
                                                           int64_t most) {
    struct rk_calendar *calendar = &thread->calendar;
    struct rk_moment *next = &calendar->next;
    if (place == calendar->places[0] && next->place == calendar->recorded && next->time <= limit) return DOUBTFUL;
    if (place == calendar->places[0] || place == calendar->missed) return NOT_RECORDED;
    struct rk_moment later = *next;
    bool is_there = rk_moment_find(&thread->streams[RK_CLOCK], place, calendar->places, limit, WINDOW, &later);
    if (is_there && later.time <= most) {
        while (has_next(thread) && next->record != later.record) pass(thread);
        return !has_next(thread) ? NOT_RECORDED : later.time > limit ? FIRM : DOUBTFUL;
    }
    if (!was_passed(calendar, place) && is_akin(place, next->place) && next->time <= limit) return DOUBTFUL;
    calendar->missed = place;
    return NOT_RECORDED;
}

/* Decides whether this read is the next recorded one, or one behind it, which then becomes the next. */
static inline enum choice choose(struct rk_thread *thread, uint16_t place, int64_t limit, int64_t most) {
    const struct rk_calendar *calendar = &thread->calendar;
    const struct rk_moment *next = &calendar->next;
    if (RK_UNLIKELY(!has_next(thread))) return NOT_RECORDED;
    if (RK_UNLIKELY(next->place == 0)) return FIRM;
    if (RK_UNLIKELY(next->time > most)) return NOT_RECORDED;
    if (RK_UNLIKELY(next->place != place)) return choose_behind(thread, place, limit, most);
    if (!is_recent(calendar, place)) return FIRM;
    return next->time <= limit ? DOUBTFUL : NOT_RECORDED;
}

static int64_t tell_recorded(struct rk_thread *thread, enum choice choice, int64_t expected, int64_t now) {
    struct rk_calendar *calendar = &thread->calendar;
    int64_t time = calendar->next.time;
    if (choice == DOUBTFUL && expected) {
        calendar->lead += time - expected;
        if (calendar->lead < 0) calendar->lead = 0;
    }
    calendar->recorded = calendar->next.place;
    pass(thread);
    if (time < calendar->floor) time = calendar->floor;
    calendar->ahead = time - now;
    __atomic_store_n(&newest_ahead, calendar->ahead, __ATOMIC_RELAXED);
    note(now, calendar->ahead);
    count(offsetof(struct rk_file, clock_reads));
    return time;
}

/* Returns the time that goes on at real speed, and waits for the next recorded one, and near the first thread. */
static int64_t extrapolate(struct rk_thread *thread, int64_t expected, struct bounds bounds) {
    int64_t time = expected;
    if (has_next(thread) && time > thread->calendar.next.time) {
        time = time - GRACE > thread->calendar.next.time ? time - GRACE : thread->calendar.next.time;
    }
    if (time < bounds.least) time = bounds.least;
    if (time > bounds.most) time = bounds.most;
    return time > thread->calendar.floor ? time : thread->calendar.floor;
}

static clockid_t monotonic(clockid_t id) {
    return id == CLOCK_REALTIME_COARSE ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC;
}

/* A recorded time is told by the coarse clock, which costs a fifth: what goes on from it is some milliseconds later. */
static int64_t tell(struct rk_thread *thread, uint16_t place, clockid_t id) {
    struct rk_calendar *calendar = &thread->calendar;
    int64_t now = rk_clock_now(CLOCK_MONOTONIC_COARSE);
    int64_t ahead = ahead_of(calendar), expected = ahead ? now + ahead : 0, time = 0;
    if (RK_UNLIKELY(!thread->streams[RK_CLOCK].id)) {
        __atomic_store_n(&rk_process->prefers_slot, 1, __ATOMIC_RELAXED);
        rk_prepare_replay(thread, &thread->streams[RK_CLOCK]);
    }
    struct bounds bounds = bounds_of(thread, now);
    while (has_next(thread) && calendar->next.time < bounds.least && calendar->next.place) pass(thread);
    enum choice choice = choose(thread, place, expected ? limit_of(calendar, expected, now) : INT64_MAX, bounds.most);
    if (RK_LIKELY(choice != NOT_RECORDED)) {
        time = tell_recorded(thread, choice, expected, now);
    } else {
        count(offsetof(struct rk_file, clock_past));
        if (expected) time = calendar->floor = extrapolate(thread, rk_clock_now(monotonic(id)) + ahead, bounds);
        if (rk_continues() && !has_next(thread)) record(thread, place, time ? time : (time = rk_clock_now(id)));
    }
    calendar->places[1] = calendar->places[0];
    calendar->places[0] = place;
    calendar->told = time;
    if (time) publish(thread, time, now);
    return time;
}

/* The usual case of rk_begin_request() without its calls, of which a read of the clock would notice each. */
static inline struct rk_thread *begin(const char *frame) {
    bool is_usual = __atomic_load_n(&rk_process->ready, __ATOMIC_ACQUIRE) && rk_thread.generation == rk_generation &&
                    !rk_thread.depth && !rk_thread.detached;
    if (RK_UNLIKELY(!is_usual)) return rk_begin_request(frame, 1);
    rk_thread.frames[rk_thread.depth++] = frame;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    return &rk_thread;
}

int64_t rk_calendar_read(clockid_t id, uint16_t place) {
    bool records = rk_plan.mode == RK_MODE_RECORD;
    int64_t time = records ? rk_clock_now(id) : 0;
    struct rk_thread *thread = begin(__builtin_frame_address(0));
    if (RK_LIKELY(thread && records))
        record(thread, place, time);
    else if (thread)
        time = tell(thread, place, id);
    if (RK_LIKELY(thread != NULL)) rk_end_request(thread);
    return time ? time : rk_calendar_smooth(id);
}

/* For threads whose reads are not recorded: the calendar, at real speed. */
int64_t rk_calendar_smooth(clockid_t id) {
    bool is_replay = rk_plan.mode == RK_MODE_REPLAY && rk_plan.calendar && rk_plan.ahead;
    return is_replay ? rk_clock_now(monotonic(id)) + rk_plan.ahead : rk_clock_now(id) + rk_plan.later;
}

int64_t rk_calendar_expected(void) {
    if (!rk_plan.calendar || rk_plan.mode == RK_MODE_RECORD) return rk_calendar_smooth(CLOCK_REALTIME);
    struct rk_thread *thread = rk_thread_check();
    int64_t now = rk_clock_now(CLOCK_MONOTONIC), ahead = ahead_of(&thread->calendar);
    if (!ahead) return rk_calendar_smooth(CLOCK_REALTIME);
    if (thread->depth) return now + ahead; /* in a signal handler that interrupted a read */
    return extrapolate(thread, now + ahead, bounds_of(thread, now));
}

/* The coarse clock is up to COARSEST behind: a wait that took that for time that has passed would end early. */
int64_t rk_calendar_passed(void) {
    int64_t told = rk_thread_check()->calendar.told, expected = rk_calendar_expected() - COARSEST;
    return expected > told ? expected : told;
}
