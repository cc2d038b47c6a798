// Sums over the threads of a block.

constexpr u32 THREADS = 256;

// The sum of the threads' numbers, in a fixed tree; for thread 0.
inline __device__ double sum_of_block(double *sums, double mine) {
    // An earlier call's sum has been read.
    __syncthreads();
    sums[threadIdx.x] = mine;
    for (u32 distance = THREADS / 2; distance > 0; distance /= 2) {
        // What a thread adds, another has stored.
        __syncthreads();
        if (threadIdx.x < distance) {
            sums[threadIdx.x] += sums[threadIdx.x + distance];
        }
    }
    return threadIdx.x == 0 ? sums[0] : 0.0;
}
