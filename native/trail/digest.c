/* digest.c - sums of mixed words on a CPU: by AVX-512 or AVX2 if available, else word by word. */
#include <string.h>

#include "recorder/compiler.h"
#include "trail/digest.h"
#include "trail/trail.h"

static uint64_t sum_of_words(const uint8_t *bytes, uint64_t words, uint64_t place) {
    uint64_t sum = 0, other = 0, i = 0, word[2];
    for (; i + 2 <= words; i += 2) {
        memcpy(word, bytes + 8 * i, 16);
        sum += rkt_term(word[0], place + i);
        other += rkt_term(word[1], place + i + 1);
    }
    if (i < words) {
        memcpy(word, bytes + 8 * i, 8);
        sum += rkt_term(word[0], place + i);
    }
    return sum + other;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define AHEAD 2048 /* bytes of prefetch, which loads from the last cache some cycles earlier */
#define AVX2  __attribute__((target("avx2"), always_inline)) static inline

/* Multiplies by 32-bit operations: the upper halves of x affect only the upper half of the product. */
AVX2 __m256i multiply(__m256i x, uint64_t by) {
    __m256i factor = _mm256_set1_epi32((int)by);
    __m256i upper = _mm256_blend_epi32(_mm256_mullo_epi32(x, factor), _mm256_setzero_si256(), 0x55);
    return _mm256_add_epi64(_mm256_mul_epu32(x, factor), upper);
}

AVX2 __m256i folded(__m256i x, int by) { return _mm256_xor_si256(x, _mm256_srli_epi64(x, by)); }

AVX2 __m256i mixed(__m256i x) {
    x = multiply(folded(x, 30), RKT_WORD_MUL_1);
    return folded(multiply(folded(x, 27), RKT_WORD_MUL_2), 31);
}

AVX2 __m256i four(const uint8_t *bytes) { return _mm256_loadu_si256((const __m256i *)bytes); }

AVX2 __m256i places(uint64_t first) {
    return _mm256_set_epi64x((long long)((first + 4) * RKT_STEP), (long long)((first + 3) * RKT_STEP),
                             (long long)((first + 2) * RKT_STEP), (long long)((first + 1) * RKT_STEP));
}

/* Words per iteration: eight by vector units, and two by scalar units, which would be idle otherwise. */
#define AT_ONCE 10

__attribute__((target("avx2"))) static uint64_t sum_by_avx2(const uint8_t *bytes, uint64_t words) {
    const __m256i step = _mm256_set1_epi64x((long long)(AT_ONCE * RKT_STEP));
    __m256i key = places(0), next_key = places(4), sum = _mm256_setzero_si256();
    uint64_t blocks = words / AT_ONCE, single = 0, last[2], lanes[4];
    for (uint64_t i = 0; i < blocks; i++, bytes += 8 * AT_ONCE) {
        __builtin_prefetch(bytes + AHEAD);
        sum = _mm256_add_epi64(sum, mixed(_mm256_add_epi64(key, four(bytes))));
        key = _mm256_add_epi64(key, step);
        sum = _mm256_add_epi64(sum, mixed(_mm256_add_epi64(next_key, four(bytes + 32))));
        next_key = _mm256_add_epi64(next_key, step);
        memcpy(last, bytes + 64, 16);
        single += rkt_term(last[0], AT_ONCE * i + 8) + rkt_term(last[1], AT_ONCE * i + 9);
    }
    _mm256_storeu_si256((__m256i *)lanes, sum);
    uint64_t rest = sum_of_words(bytes, words - AT_ONCE * blocks, AT_ONCE * blocks);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + single + rest;
}

/* The same sum by vectors of twice the width, which have a 64-bit multiplication. */
#define AVX512        __attribute__((target("avx512f,avx512dq")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) static inline
#define WIDE_AT_ONCE  16 /* words of a half per iteration */

static inline void prefetch_two(const uint8_t *lines) {
    __builtin_prefetch(lines);
    __builtin_prefetch(lines + 64);
}

AVX512_INLINE __m512i wide_folded(__m512i x, unsigned by) { return _mm512_xor_si512(x, _mm512_srli_epi64(x, by)); }

AVX512_INLINE __m512i wide_mixed(const uint8_t *bytes, __m512i key) {
    __m512i x = wide_folded(_mm512_add_epi64(key, _mm512_loadu_si512(bytes)), 30);
    x = wide_folded(_mm512_mullo_epi64(x, _mm512_set1_epi64(RKT_WORD_MUL_1)), 27);
    return wide_folded(_mm512_mullo_epi64(x, _mm512_set1_epi64(RKT_WORD_MUL_2)), 31);
}

/* Reads both halves in turn, which loads almost twice as much from the last cache as one after the other: processors
 * prefetch within a page only. */
AVX512 static uint64_t sum_by_avx512(const uint8_t *bytes, uint64_t words) {
    const __m512i step = _mm512_set1_epi64((long long)(WIDE_AT_ONCE * RKT_STEP));
    uint64_t blocks = words / (2 * WIDE_AT_ONCE), half = blocks * WIDE_AT_ONCE, keys[WIDE_AT_ONCE];
    for (uint64_t i = 0; i < WIDE_AT_ONCE; i++) keys[i] = (i + 1) * RKT_STEP;
    __m512i key = _mm512_loadu_si512(keys), next_key = _mm512_loadu_si512(keys + 8);
    __m512i sum = _mm512_setzero_si512(), other = _mm512_setzero_si512();
    const __m512i to_second = _mm512_set1_epi64((long long)(half * RKT_STEP));
    for (uint64_t i = 0; i < blocks; i++, bytes += 8 * WIDE_AT_ONCE) {
        const uint8_t *second = bytes + 8 * half;
        prefetch_two(bytes + AHEAD);
        prefetch_two(second + AHEAD);
        sum = _mm512_add_epi64(sum, wide_mixed(bytes, key));
        other = _mm512_add_epi64(other, wide_mixed(bytes + 64, next_key));
        sum = _mm512_add_epi64(sum, wide_mixed(second, _mm512_add_epi64(key, to_second)));
        other = _mm512_add_epi64(other, wide_mixed(second + 64, _mm512_add_epi64(next_key, to_second)));
        key = _mm512_add_epi64(key, step);
        next_key = _mm512_add_epi64(next_key, step);
    }
    uint64_t rest = sum_of_words(bytes + 8 * half, words - 2 * half, 2 * half);
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_add_epi64(sum, other)) + rest;
}

static uint64_t sum_of_whole_words(const uint8_t *bytes, uint64_t words) {
    if (words >= 2 * WIDE_AT_ONCE && __builtin_cpu_supports("avx512dq")) return sum_by_avx512(bytes, words);
    return words >= 16 && __builtin_cpu_supports("avx2") ? sum_by_avx2(bytes, words) : sum_of_words(bytes, words, 0);
}
#else
static uint64_t sum_of_whole_words(const uint8_t *bytes, uint64_t words) { return sum_of_words(bytes, words, 0); }
#endif

uint64_t rkt_sum(const void *data, uint64_t size) {
    if (!data) return 0; /* a tensor whose storage was freed */
    const uint8_t *bytes = data;
    uint64_t words = size / 8, sum = sum_of_whole_words(bytes, words);
    if (size % 8) sum += rkt_term(rkt_word(bytes + 8 * words, size % 8), words);
    return sum;
}

RK_EXPORT uint64_t reprokit_trail_digest(const void *data, uint64_t size, uint64_t salt) {
    return rkt_mix(rkt_sum(data, size) + salt);
}

/* Adds the digest of one more item to the digest of several. */
RK_EXPORT uint64_t reprokit_trail_fold(uint64_t before, const void *data, uint64_t size, uint64_t salt) {
    return rkt_mix(before + reprokit_trail_digest(data, size, salt));
}

RK_EXPORT uint64_t reprokit_trail_list(const uint64_t *digests, uint64_t count) {
    return reprokit_trail_digest(digests, 8 * count, count);
}
