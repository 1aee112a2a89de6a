/*
 * crc32c.c - CRC-32C (Castagnoli), the checksum in TensorFlow's files: by the CPU's instruction if available, else by
 * eight tables. The instruction has a latency of three cycles and a throughput of one per cycle, so three stretches are
 * summed in parallel.
 */
#include "artifacts/compare.h"

#include <stddef.h>
#include <string.h>

#define EXPORT     __attribute__((visibility("default")))
#define POLYNOMIAL 0x82f63b78u
#define SLICES     8
#define STRETCH    4096 /* bytes */

static uint32_t tables[SLICES][256];
static uint32_t zero_shift[4][256]; /* each byte of a sum, after a stretch of zeros */

static uint32_t sum_by_bytes(uint32_t crc, const unsigned char *at, size_t size) {
    for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ tables[0][(crc ^ at[i]) & 255];
    return crc;
}

static uint32_t sum_by_tables(uint32_t crc, const unsigned char *at, size_t size) {
    for (; size >= SLICES; at += SLICES, size -= SLICES) {
        uint32_t next = 0;
        for (int i = 0; i < SLICES; i++) next ^= tables[SLICES - 1 - i][at[i] ^ (i < 4 ? crc >> 8 * i & 255 : 0)];
        crc = next;
    }
    return sum_by_bytes(crc, at, size);
}

__attribute__((constructor)) static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < SLICES; slice++)
            tables[slice][byte] = tables[slice - 1][byte] >> 8 ^ tables[0][tables[slice - 1][byte] & 255];
    static const unsigned char zeros[STRETCH];
    for (uint32_t byte = 1; byte < 256; byte++)
        for (int place = 0; place < 4; place++)
            zero_shift[place][byte] = byte & (byte - 1)
                                          ? zero_shift[place][byte & (byte - 1)] ^ zero_shift[place][byte & -byte]
                                          : sum_by_tables(byte << 8 * place, zeros, STRETCH);
}

#ifdef __x86_64__
#ifdef __clang__
#define WITH_CRC32 "crc32" // a feature of its own there, which sse4.2 does not bring
#else
#define WITH_CRC32 "sse4.2"
#endif

static uint32_t shift_by_stretch(uint32_t crc) {
    return zero_shift[0][crc & 255] ^ zero_shift[1][crc >> 8 & 255] ^ zero_shift[2][crc >> 16 & 255] ^
           zero_shift[3][crc >> 24];
}

__attribute__((target(WITH_CRC32))) static uint32_t sum_by_instruction(uint32_t crc, const unsigned char *at,
                                                                       size_t size) {
    uint64_t wide = crc, word;
    for (; size >= 3 * STRETCH; at += 3 * STRETCH, size -= 3 * STRETCH) {
        uint64_t sums[3] = {wide, 0, 0};
        for (size_t i = 0; i < STRETCH; i += sizeof(word))
            for (int stretch = 0; stretch < 3; stretch++) {
                memcpy(&word, at + stretch * STRETCH + i, sizeof(word));
                sums[stretch] = __builtin_ia32_crc32di(sums[stretch], word);
            }
        wide = shift_by_stretch(shift_by_stretch((uint32_t)sums[0]) ^ (uint32_t)sums[1]) ^ sums[2];
    }
    for (; size >= sizeof(word); at += sizeof(word), size -= sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        wide = __builtin_ia32_crc32di(wide, word);
    }
    return sum_by_bytes((uint32_t)wide, at, size);
}
#endif

/* Extends the sum `crc` of preceding bytes (0 at the start) by these bytes. */
EXPORT uint32_t rka_crc32c(uint32_t crc, const void *data, uint64_t size) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return ~sum_by_instruction(~crc, data, size);
#endif
    return ~sum_by_tables(~crc, data, size);
}

/* Computes the same without the CPU's instruction, to test both. */
EXPORT uint32_t rka_crc32c_by_tables(uint32_t crc, const void *data, uint64_t size) {
    return ~sum_by_tables(~crc, data, size);
}

/* Returns whether four bytes are a sum, masked as in TensorFlow's files. */
static int has_checksum(const unsigned char *stored, uint32_t crc) {
    uint32_t sum;
    memcpy(&sum, stored, sizeof(sum));
    return sum == (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void compare_sum(struct rka_tfrecords *state, int is_head) {
    state->wrong =
        !has_checksum(state->bytes + (is_head ? 8 : 0), is_head ? rka_crc32c(0, state->bytes, 8) : state->crc);
    if (is_head) {
        memcpy(&state->length, state->bytes, sizeof(state->length));
        state->crc = 0;
    } else if (!state->wrong) {
        state->good++;
        state->begun = 0;
    }
}

/* Takes in bytes up to the end of the first bad record, and returns how many these were. */
EXPORT uint64_t rka_tfrecords(struct rka_tfrecords *state, const void *data, uint64_t size) {
    const unsigned char *at = data;
    uint64_t left = size, taken;
    if (state->wrong) state->begun = 0;
    state->good = state->wrong = 0;
    for (; left && !state->wrong; at += taken, left -= taken) {
        int is_head = state->begun < RKA_HEAD;
        uint64_t held = is_head ? state->begun : state->begun - RKA_HEAD, due = is_head ? RKA_HEAD : state->length;
        int is_data = !is_head && held < due;
        if (!is_head && !is_data) held -= due, due = RKA_FOOT;
        taken = left < due - held ? left : due - held;
        if (is_data)
            state->crc = rka_crc32c(state->crc, at, taken);
        else
            memcpy(state->bytes + held, at, taken);
        state->begun += taken;
        if (!is_data && held + taken == due) compare_sum(state, is_head);
    }
    return size - left;
}
