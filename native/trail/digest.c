/* digest.c - sums of mixed words on a processor: by AVX2 where it has that, else word by word. */
#include <string.h>

#include "trail.h"

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

#define AVX2 __attribute__((target("avx2"), always_inline)) static inline

AVX2 __m256i multiply(__m256i x, uint64_t by) {
    __m256i low = _mm256_set1_epi64x((long long)(by & 0xffffffff)), high = _mm256_set1_epi64x((long long)(by >> 32));
    __m256i crossed = _mm256_add_epi64(_mm256_mul_epu32(x, high), _mm256_mul_epu32(_mm256_srli_epi64(x, 32), low));
    return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(crossed, 32));
}

AVX2 __m256i folded(__m256i x, int by) { return _mm256_xor_si256(x, _mm256_srli_epi64(x, by)); }

AVX2 __m256i mixed(__m256i x) {
    x = multiply(folded(x, 30), RKT_MUL_1);
    return folded(multiply(folded(x, 27), RKT_MUL_2), 31);
}

AVX2 __m256i four(const uint8_t *bytes) { return _mm256_loadu_si256((const __m256i *)bytes); }

__attribute__((target("avx2"))) static uint64_t sum_by_avx2(const uint8_t *bytes, uint64_t words) {
    __m256i key = _mm256_set_epi64x((long long)(4 * RKT_STEP), (long long)(3 * RKT_STEP), (long long)(2 * RKT_STEP),
                                    (long long)RKT_STEP);
    const __m256i four_steps = _mm256_set1_epi64x((long long)(4 * RKT_STEP));
    __m256i sum = _mm256_setzero_si256(), other = sum;
    uint64_t blocks = words / 8;
    for (uint64_t i = 0; i < blocks; i++) {
        sum = _mm256_add_epi64(sum, mixed(_mm256_add_epi64(key, four(bytes + 64 * i))));
        key = _mm256_add_epi64(key, four_steps);
        other = _mm256_add_epi64(other, mixed(_mm256_add_epi64(key, four(bytes + 64 * i + 32))));
        key = _mm256_add_epi64(key, four_steps);
    }
    uint64_t lanes[4];
    _mm256_storeu_si256((__m256i *)lanes, _mm256_add_epi64(sum, other));
    uint64_t rest = sum_of_words(bytes + 64 * blocks, words - 8 * blocks, 8 * blocks);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + rest;
}

static uint64_t sum_of_whole_words(const uint8_t *bytes, uint64_t words) {
    return words >= 16 && __builtin_cpu_supports("avx2") ? sum_by_avx2(bytes, words) : sum_of_words(bytes, words, 0);
}
#else
static uint64_t sum_of_whole_words(const uint8_t *bytes, uint64_t words) { return sum_of_words(bytes, words, 0); }
#endif

uint64_t rkt_sum(const void *data, uint64_t size) {
    const uint8_t *bytes = data;
    uint64_t words = size / 8, sum = sum_of_whole_words(bytes, words);
    if (size % 8) sum += rkt_term(rkt_word(bytes + 8 * words, size % 8), words);
    return sum;
}

RK_EXPORT uint64_t reprokit_trail_digest(const void *data, uint64_t size, uint64_t salt) {
    return rkt_mix(rkt_sum(data, size) + salt);
}

/* The digest so far of several things, and one more. */
RK_EXPORT uint64_t reprokit_trail_fold(uint64_t before, const void *data, uint64_t size, uint64_t salt) {
    return rkt_mix(before + reprokit_trail_digest(data, size, salt));
}

RK_EXPORT uint64_t reprokit_trail_list(const uint64_t *digests, uint64_t count) {
    return reprokit_trail_digest(digests, 8 * count, count);
}
