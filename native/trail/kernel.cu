/* kernel.cu - digests tensors on a GPU; compiled by NVRTC during a training.
 *
 * Each block sums a part of one tensor, RKT_PART words, and adds it to the tensor's sum. Integer additions give the
 * same result in any order. */
#include "digest.h"

#define RKT_PART 8192ull /* words: 64 KiB */

RKT_INLINE uint64_t over_the_block(uint64_t sum) {
    __shared__ uint64_t warps[32];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return 0;
    sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0;
    for (int by = 16; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
    return sum;
}

RKT_INLINE void add_part(const uint8_t *bytes, uint64_t size, uint64_t part, uint64_t *total) {
    uint64_t first = part * RKT_PART;
    uint64_t sum = over_the_block(rkt_share(bytes, size, first, first + RKT_PART, threadIdx.x, blockDim.x));
    if (threadIdx.x == 0) atomicAdd((unsigned long long *)total, (unsigned long long)sum);
}

/* Each block adds one part of a single tensor. */
extern "C" __global__ void reprokit_sum(const uint8_t *bytes, uint64_t size, uint64_t *sum) {
    add_part(bytes, size, blockIdx.x, sum);
}

/* pointers, sizes: of the tensors; owners: for each block, the tensor and the part of it to sum. */
extern "C" __global__ void reprokit_sums(const uint64_t *pointers, const uint64_t *sizes, const uint32_t *owners,
                                         uint64_t *sums) {
    uint32_t tensor = owners[2 * blockIdx.x];
    const uint8_t *bytes = (const uint8_t *)pointers[tensor];
    if (bytes) add_part(bytes, sizes[tensor], owners[2 * blockIdx.x + 1], &sums[tensor]);
}

/* Turns the sums into digests. */
extern "C" __global__ void reprokit_digests(const uint64_t *pointers, const uint64_t *salts, uint64_t *sums,
                                            uint32_t count) {
    uint32_t tensor = blockIdx.x * blockDim.x + threadIdx.x;
    if (tensor < count) sums[tensor] = pointers[tensor] ? rkt_mix(sums[tensor] + salts[tensor]) : 0;
}
