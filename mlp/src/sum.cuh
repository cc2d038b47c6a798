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
            // Kept in a register: compilers let every thread read what thread 0 has just stored.
            mine += sums[threadIdx.x + distance];
            sums[threadIdx.x] = mine;
        }
    }
    return mine;
}
