/* kernel.cu - the digests of tensors on a GPU, compiled by NVRTC while a training runs.
 *
 * Each block takes a part of one tensor, of RKT_PART words, and adds its share to that tensor's sum. Additions of
 * integers come to the same in any order. */
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

/* pointers and sizes: of the tensors; owners: the tensor and the part of it that each block takes. */
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

/* From the sums to the digests. */
extern "C" __global__ void reprokit_digests(const uint64_t *pointers, const uint64_t *salts, uint64_t *sums,
                                            uint32_t count) {
    uint32_t tensor = blockIdx.x * blockDim.x + threadIdx.x;
    if (tensor < count) sums[tensor] = pointers[tensor] ? rkt_mix(sums[tensor] + salts[tensor]) : 0;
}
