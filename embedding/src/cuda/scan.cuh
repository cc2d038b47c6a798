// Scans over a block's threads, for kernels that count before they write.

// Each of these has one __syncthreads(), between writing its shared array and reading it. The
// caller must have another one between two calls of the same function.

// The sum of `value` over the threads before this one, and over all of them. All threads of the
// block take part.
template <class Number>
static __device__ __forceinline__ Number exclusive_scan(Number value, Number& total) {
  __shared__ Number sums[WARPS];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Number inclusive = value;
  for (u32 step = 1; step < 32; step *= 2) {
    const Number before = __shfl_up_sync(ALL_LANES, inclusive, step);
    inclusive += lane >= step ? before : 0;
  }
  if (lane == 31) {
    sums[warp] = inclusive;
  }
  __syncthreads();
  Number before = 0;
  total = 0;
  for (u32 w = 0; w < WARPS; w++) {
    before += w < warp ? sums[w] : 0;
    total += sums[w];
  }
  return before + inclusive - value;
}

// The largest `value` of the threads before this one; 0 for the first.
static __device__ __forceinline__ u32 exclusive_max(u32 value) {
  __shared__ u32 most[WARPS];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 inclusive = value;
  for (u32 step = 1; step < 32; step *= 2) {
    const u32 before = __shfl_up_sync(ALL_LANES, inclusive, step);
    inclusive = lane >= step && before > inclusive ? before : inclusive;
  }
  const u32 previous = __shfl_up_sync(ALL_LANES, inclusive, 1);
  if (lane == 31) {
    most[warp] = inclusive;
  }
  __syncthreads();
  u32 before = lane > 0 ? previous : 0;
  for (u32 w = 0; w < warp; w++) {
    before = most[w] > before ? most[w] : before;
  }
  return before;
}

// The next tile that no block has taken, for the whole block. Blocks that have taken lower ones
// have begun, so that this one may wait for them.
static __device__ __forceinline__ u32 take_tile(u32* counter) {
  __shared__ u32 tile;
  // Readers of the last one are done with it, and with the block's other shared memory.
  __syncthreads();
  if (threadIdx.x == 0) {
    tile = atomicAdd(counter, 1u);
  }
  __syncthreads();
  return tile;
}
