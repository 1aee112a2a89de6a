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

/* pointers, sizes: of the tensors; owners: for each block, the tensor and the part of it to sum. */
extern "C" __global__ void reprokit_sums(const uint64_t *pointers, const uint64_t *sizes, const uint32_t *owners,
                                         uint64_t *sums) {
    uint32_t tensor = owners[2 * blockIdx.x];
    uint64_t first = owners[2 * blockIdx.x + 1] * RKT_PART;
    const uint8_t *bytes = (const uint8_t *)pointers[tensor];
    if (!bytes) return;
    uint64_t sum = rkt_share(bytes, sizes[tensor], first, first + RKT_PART, threadIdx.x, blockDim.x);
    sum = over_the_block(sum);
    if (threadIdx.x == 0) atomicAdd((unsigned long long *)&sums[tensor], (unsigned long long)sum);
}

/* Turns the sums into digests. */
extern "C" __global__ void reprokit_digests(const uint64_t *pointers, const uint64_t *salts, uint64_t *sums,
                                            uint32_t count) {
    uint32_t tensor = blockIdx.x * blockDim.x + threadIdx.x;
    if (tensor < count) sums[tensor] = pointers[tensor] ? rkt_mix(sums[tensor] + salts[tensor]) : 0;
}
