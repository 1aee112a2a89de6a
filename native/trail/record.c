/* record.c - writes the steps of a series: the training thread's data at once, digests of tensors later. */
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/compiler.h"
#include "recorder/system.h"
#include "trail/digest.h"
#include "trail/trail.h"

#define FIRST_STEPS   64
#define LARGEST_STEPS 16384

static void *map_memory(uint64_t size) {
    return rk_map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static uint64_t kept_size(uint32_t count) { return sizeof(struct rkt_kept) + 16 * (uint64_t)count; }

/* Returns for how many first and last steps there is room. */
static uint32_t count_kept_steps(const struct rkt_trail *trail, uint32_t count) {
    uint64_t fit = trail->room / 2 / kept_size(count);
    return fit < RKT_KEPT ? (uint32_t)fit : RKT_KEPT;
}

static struct rkt_chunk *add_tensor_chunk(struct rkt_trail *trail, uint16_t number, uint32_t count) {
    uint32_t kept = count_kept_steps(trail, count);
    uint64_t size = 2 * kept * kept_size(count);
    if (!kept || !count) return NULL;
    struct rkt_chunk head = {RKT_CHUNK_MAGIC, RKT_KIND_TENSORS, number, sizeof(head) + ((size + 63) & ~UINT64_C(63)),
                             .count = count,  .kept = kept};
    trail->room -= size;
    return rkt_take(trail, &head);
}

static bool add_text_chunk(struct rkt_trail *trail, struct rkt_series *series, const char *text, uint64_t length) {
    struct rkt_chunk head = {RKT_CHUNK_MAGIC,        RKT_KIND_SERIES,
                             series->number,         sizeof(head) + ((length + 63) & ~UINT64_C(63)),
                             .first = series->first, .count = series->count,
                             .length = length,       .text_check = rk_check(text, length, 0)};
    struct rkt_chunk *chunk = rkt_take(trail, &head);
    if (!chunk) return false;
    memcpy(chunk + 1, text, length);
    rkt_unmap(chunk);
    return true;
}

static struct rkt_series *new_series(struct rkt_trail *trail, uint32_t count, uint32_t parts, uint64_t first) {
    struct rkt_series *series = map_memory(sizeof(*series) + (parts ? 56 : 48) * (uint64_t)count);
    if (!series) return NULL;
    series->trail = trail;
    series->number = (uint16_t)trail->series;
    series->count = count;
    series->parts = parts;
    series->first = series->next = first;
    series->sizes = (uint64_t *)(series + 1);
    series->salts = series->sizes + 2 * (uint64_t)count;
    series->digests = series->salts + 2 * (uint64_t)count;
    series->placements = series->digests + 2 * (uint64_t)count;
    return series;
}

static struct rkt_series *add_series(struct rkt_trail *trail, const char *text, uint64_t length, uint32_t count,
                                     const uint64_t *sizes, const uint64_t *salts, const uint64_t *placements,
                                     uint32_t parts, uint64_t first) {
    if (trail->series >= RKT_SERIES) return NULL;
    struct rkt_series *series = new_series(trail, count, parts, first);
    if (!series || !add_text_chunk(trail, series, text, length)) return NULL;
    trail->series++;
    memcpy(series->sizes, sizes, 16 * (uint64_t)count);
    memcpy(series->salts, salts, 16 * (uint64_t)count);
    if (parts) memcpy(series->placements, placements, 8 * (uint64_t)count);
    for (uint32_t i = 0; i < 2 * count; i++) series->bytes += sizes[i];
    series->tensors = add_tensor_chunk(trail, series->number, count);
    return series;
}

/* Starts a series of steps that update these tensors. sizes and salts: of the gradients, then of the parameters;
 * placements: which of so many parts each tensor belongs to, 0 if they have no digests of their own. */
RK_EXPORT struct rkt_series *reprokit_trail_series(struct rkt_trail *trail, const char *text, uint64_t length,
                                                   uint32_t count, const uint64_t *sizes, const uint64_t *salts,
                                                   const uint64_t *placements, uint32_t parts, uint64_t first) {
    if (parts > RKT_PARTS) parts = 0;
    rk_signals before = rk_block_signals();
    rk_lock(&trail->lock);
    struct rkt_series *series = add_series(trail, text, length, count, sizes, salts, placements, parts, first);
    rk_unlock(&trail->lock);
    rk_restore_signals(before);
    return series;
}

/* ---- one step ------------------------------------------------------------------------------------------------ */

static uint32_t next_count(const struct rkt_series *series) {
    uint64_t count = (series->next - series->first) / 4 / 64 * 64;
    if (count < FIRST_STEPS) return FIRST_STEPS;
    return count < LARGEST_STEPS ? (uint32_t)count : LARGEST_STEPS;
}

static bool is_past(const struct rkt_chunk *chunk, uint64_t step) {
    return chunk->first + chunk->count + RKT_WINDOW <= step;
}

static bool add_step_chunk(struct rkt_series *series) {
    uint32_t count = next_count(series);
    struct rkt_chunk head = {RKT_CHUNK_MAGIC,       RKT_KIND_STEPS,
                             series->number,        sizeof(head) + count * rkt_record_size(series->parts),
                             .first = series->next, .count = count,
                             .kept = series->parts};
    struct rkt_chunk *chunk = rkt_take(series->trail, &head);
    if (!chunk) return false;
    for (int i = RKT_RECENT - 1; i >= 0; i--)
        if (series->recent[i] && (i == RKT_RECENT - 1 || is_past(series->recent[i], series->next))) {
            rkt_unmap(series->recent[i]);
            series->recent[i] = NULL;
        }
    memmove(series->recent + 1, series->recent, sizeof(series->recent) - sizeof(series->recent[0]));
    series->recent[0] = chunk;
    series->end = series->trail->head->used;
    return true;
}

static struct rkt_record *record_in(struct rkt_chunk *chunk, uint64_t step) {
    if (!chunk || step < chunk->first || step - chunk->first >= chunk->count) return NULL;
    return (struct rkt_record *)((uint8_t *)(chunk + 1) + (step - chunk->first) * rkt_record_size(chunk->kept));
}

static struct rkt_record *next_record(struct rkt_series *series) {
    struct rkt_record *record = record_in(series->recent[0], series->next);
    if (!record && add_step_chunk(series)) record = record_in(series->recent[0], series->next);
    if (record)
        series->step = series->next++;
    else
        series->trail->head->lost++;
    return record;
}

static void commit(const struct rkt_series *series, struct rkt_record *record, uint64_t step) {
    uint32_t check = (uint32_t)rk_check((const uint8_t *)record + 4, rkt_record_size(series->parts) - 4, step);
    __atomic_store_n(&record->check, check ? check : 1, __ATOMIC_RELEASE);
}

static struct rkt_kept *kept_slot(const struct rkt_series *series, uint64_t step) {
    if (!series->tensors) return NULL;
    uint64_t done = step - series->first, kept = series->tensors->kept;
    uint64_t slot = done < kept ? done : kept + done % kept;
    return (struct rkt_kept *)((uint8_t *)(series->tensors + 1) + slot * kept_size(series->count));
}

static void store_tensor_digests(const struct rkt_series *series, uint64_t step, const uint64_t *digests) {
    struct rkt_kept *kept = kept_slot(series, step);
    if (!kept) return;
    __atomic_store_n(&kept->step, 0, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(kept->digests, digests, 16 * (uint64_t)series->count);
    kept->check = rk_check(kept->digests, 16 * (uint64_t)series->count, step + 1);
    __atomic_store_n(&kept->step, step + 1, __ATOMIC_RELEASE);
}

/* Returns whether any tensor was read. */
static bool any_digest(const uint64_t *digests, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (digests[i]) return true;
    return false;
}

/* Digests the parameters of each placement, which other ranks may have as well. */
static void digest_parts(const struct rkt_series *series, struct rkt_record *record, const uint64_t *digests) {
    for (uint32_t part = 0; part < series->parts; part++) {
        uint64_t sum = 0, count = 0;
        bool any = false;
        for (uint32_t i = 0; i < series->count; i++)
            if (series->placements[i] == part) {
                sum += rkt_term(digests[i], count++);
                any = any || digests[i];
            }
        record->parts[part] = any ? rkt_mix(sum + count) : 0;
    }
}

static void store_digests(struct rkt_series *series, struct rkt_record *record, uint64_t step,
                          const uint64_t *digests) {
    bool gradients = any_digest(digests, series->count),
         parameters = any_digest(digests + series->count, series->count);
    if (gradients || parameters) store_tensor_digests(series, step, digests);
    record->gradients = gradients ? reprokit_trail_list(digests, series->count) : 0;
    record->parameters = parameters ? reprokit_trail_list(digests + series->count, series->count) : 0;
    digest_parts(series, record, digests + series->count);
    record->flags |= (gradients ? RKT_GRADIENTS : 0) | (parameters ? RKT_PARAMETERS : 0);
    commit(series, record, step);
}

static uint64_t digest_at(const struct rkt_series *series, uint32_t i, uint64_t address) {
    const void *data = (const void *)(uintptr_t)address;
    return data || !series->sizes[i] ? reprokit_trail_digest(data, series->sizes[i], series->salts[i]) : 0;
}

static uint64_t digest_of(const struct rkt_series *series, uint32_t i) {
    return digest_at(series, i, series->pointers[i]);
}

void rkt_digest_tensors(void *job) {
    struct rkt_series *series = job;
    for (uint32_t i = 0; i < 2 * series->count; i++) series->digests[i] = digest_of(series, i);
    store_digests(series, series->record, series->step, series->digests);
}

static uint64_t digest_state(uint64_t address, uint64_t size, uint64_t salt) {
    return address ? reprokit_trail_digest((const void *)(uintptr_t)address, size, salt) : 0;
}

static void write_facts(struct rkt_record *record, const struct rkt_facts *facts) {
    record->flags = (uint32_t)facts->flags;
    record->batch = facts->batch;
    record->loss = facts->loss;
    record->before = facts->before;
    record->buffers = facts->buffers;
    record->inputs = facts->inputs;
    record->torch = digest_state(facts->torch_state, facts->torch_size, facts->torch_salt);
    if (facts->torch_more) record->torch = rkt_mix(record->torch + facts->torch_more);
    record->python = digest_state(facts->python_state, RKT_WORDS, facts->words_salt);
    record->numpy = digest_state(facts->numpy_state, RKT_WORDS, facts->words_salt);
}

/* Tells which rank stopped first where one keeps the others waiting. */
static void note_time(struct rkt_head *head) {
    struct timespec now;
    if (memcmp(head->identity, "rank", 4) != 0) return;
    rk_call(SYS_clock_gettime, CLOCK_REALTIME, (long)&now, 0, 0, 0, 0);
    head->stepped = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Writes a step and returns the worker's ticket, or 0; *here: the caller must digest the tensors. */
static uint64_t write_step(struct rkt_series *series, const struct rkt_facts *facts, const uint64_t *pointers,
                           bool *here) {
    struct rkt_record *record = next_record(series);
    series->record = record;
    *here = record && !(facts->how & RKT_LATER);
    if (!record) return 0;
    write_facts(record, facts);
    commit(series, record, series->step);
    note_time(series->trail->head);
    series->pointers = pointers;
    uint64_t ticket = facts->how || series->bytes <= RKT_SMALL ? 0 : rkt_hand_over(&series->trail->worker, series);
    *here = *here && !ticket;
    return ticket;
}

/* Writes a step. The tensors must not change until its ticket is done (0: already done). */
RK_EXPORT uint64_t reprokit_trail_step(struct rkt_series *series, const struct rkt_facts *facts,
                                       const uint64_t *pointers) {
    rk_signals before = rk_block_signals();
    rk_lock(&series->trail->lock);
    bool here;
    uint64_t ticket = write_step(series, facts, pointers, &here);
    rk_unlock(&series->trail->lock);
    rk_restore_signals(before);
    if (here) rkt_digest_tensors(series);
    return ticket;
}

/* Writes steps that are passed over. */
RK_EXPORT void reprokit_trail_pass(struct rkt_series *series, uint64_t count) {
    rk_signals before = rk_block_signals();
    rk_lock(&series->trail->lock);
    series->record = NULL;
    for (; count; count--) {
        struct rkt_record *record = next_record(series);
        if (!record) continue;
        record->flags = RKT_PASSED;
        commit(series, record, series->step);
    }
    rk_unlock(&series->trail->lock);
    rk_restore_signals(before);
}

/* Returns the record of a step; NULL if it is too old. */
static struct rkt_record *recent_record(const struct rkt_series *series, uint64_t step) {
    struct rkt_record *record = NULL;
    for (int i = 0; i < RKT_RECENT && !record; i++) record = record_in(series->recent[i], step);
    return record;
}

/* Adds the digests of a step that were computed later or on another device, and its loss. */
RK_EXPORT void reprokit_trail_given(struct rkt_series *series, uint64_t step, uint64_t loss, const uint64_t *digests) {
    struct rkt_record *record = recent_record(series, step);
    if (!record) return;
    if (loss) {
        record->loss = loss;
        record->flags |= RKT_LOSS;
    }
    if (digests)
        store_digests(series, record, step, digests);
    else
        commit(series, record, step);
}

/* Folds numbers into a digest, which a framework's function reads one by one: counts[i] of the i-th tree. */
RK_EXPORT uint64_t reprokit_trail_leaves(uint64_t digest, int (*read)(void *model, int tree, int leaf, double *value),
                                         void *model, const uint32_t *counts, uint64_t trees) {
    for (uint64_t i = 0; i < trees; i++)
        for (uint32_t leaf = 0; leaf < counts[i]; leaf++) {
            double value = 0;
            uint64_t word;
            if (read(model, (int)i, (int)leaf, &value)) return 0;
            memcpy(&word, &value, sizeof(word));
            digest = rkt_mix(digest + rkt_mix(word + RKT_STEP));
        }
    return digest;
}

/* Adds the digest of the whole model after a step. */
RK_EXPORT void reprokit_trail_model(const struct rkt_series *series, uint64_t step, uint64_t digest) {
    struct rkt_record *record = recent_record(series, step);
    if (!record) return;
    record->buffers = digest;
    record->flags |= RKT_BUFFERS;
    commit(series, record, step);
}

/* Returns which tensors of the last step have changed since: 1 gradients, 2 parameters. */
RK_EXPORT uint32_t reprokit_trail_changed(struct rkt_series *series, uint32_t parts) {
    uint32_t changed = 0;
    for (uint32_t i = 0; i < 2 * series->count && series->pointers; i++) {
        uint32_t part = i < series->count ? 1 : 2;
        if ((parts & part & ~changed) && digest_of(series, i) != series->digests[i]) changed |= part;
    }
    return changed;
}

/* Returns the digest of the parameters at these pointers (after those of the gradients), as in a record. */
RK_EXPORT uint64_t reprokit_trail_parameters(const struct rkt_series *series, const uint64_t *pointers) {
    uint64_t sum = 0, count = series->count;
    for (uint32_t i = 0; i < count; i++)
        sum += rkt_term(digest_at(series, (uint32_t)count + i, pointers[count + i]), i);
    return rkt_mix(sum + count);
}

/* Flags tensors of the last step that changed while they were read: their digests are invalid. */
RK_EXPORT void reprokit_trail_unsteady(struct rkt_series *series, uint32_t flags) {
    if (!series->record) return;
    series->record->flags |= flags;
    commit(series, series->record, series->step);
}
