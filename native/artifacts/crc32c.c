/*
 * CRC-32C (Castagnoli), with which TensorFlow protects its files: by the processor where it has an instruction
 * for it, else by eight tables.
 */
#include "compare.h"

#include <stddef.h>
#include <string.h>

#define EXPORT     __attribute__((visibility("default")))
#define POLYNOMIAL 0x82f63b78u
#define SLICES     8

static uint32_t tables[SLICES][256];

__attribute__((constructor)) static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int slice = 1; slice < SLICES; slice++)
            tables[slice][byte] = tables[slice - 1][byte] >> 8 ^ tables[0][tables[slice - 1][byte] & 255];
}

static uint32_t by_bytes(uint32_t crc, const unsigned char *at, size_t size) {
    for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ tables[0][(crc ^ at[i]) & 255];
    return crc;
}

static uint32_t by_tables(uint32_t crc, const unsigned char *at, size_t size) {
    for (; size >= SLICES; at += SLICES, size -= SLICES) {
        uint32_t next = 0;
        for (int i = 0; i < SLICES; i++) next ^= tables[SLICES - 1 - i][at[i] ^ (i < 4 ? crc >> 8 * i & 255 : 0)];
        crc = next;
    }
    return by_bytes(crc, at, size);
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t by_processor(uint32_t crc, const unsigned char *at, size_t size) {
    uint64_t wide = crc, word;
    for (; size >= sizeof(word); at += sizeof(word), size -= sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        wide = __builtin_ia32_crc32di(wide, word);
    }
    return by_bytes((uint32_t)wide, at, size);
}
#endif

/* The sum of bytes that follow on those whose sum is crc; 0 before the first. */
EXPORT uint32_t rka_crc32c(uint32_t crc, const void *data, uint64_t size) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2")) return ~by_processor(~crc, data, size);
#endif
    return ~by_tables(~crc, data, size);
}

/* The same without the processor's instruction, for a test of both. */
EXPORT uint32_t rka_crc32c_by_tables(uint32_t crc, const void *data, uint64_t size) {
    return ~by_tables(~crc, data, size);
}

/* Whether four bytes hold the sum of the data, masked as TensorFlow stores it. */
static int says(const unsigned char *stored, const void *data, uint64_t size) {
    uint32_t crc = rka_crc32c(0, data, size), sum;
    memcpy(&sum, stored, sizeof(sum));
    return sum == (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* How many bytes the whole and good TFRecords at the beginning take; count gets their number. */
EXPORT uint64_t rka_tfrecords(const void *data, uint64_t size, uint64_t *count) {
    const unsigned char *at = data;
    uint64_t left = size, length;
    for (*count = 0; left >= 16; ++*count, at += length + 16, left -= length + 16) {
        memcpy(&length, at, sizeof(length));
        if (length > left - 16 || !says(at + 8, at, 8) || !says(at + 12 + length, at + 12, length)) break;
    }
    return size - left;
}
