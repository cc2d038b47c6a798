// Kernels for the tests of streams, events and graphs.

struct ScaleArgs {
  const float* from;
  float* to;
  u64 n;
  float factor, term;
};
// to[i] = factor · from[i] + term
extern "C" __global__ void __launch_bounds__(128) scale(const ScaleArgs a) {
  for (u64 i = grid_thread(); i < a.n; i += grid_threads()) a.to[i] = a.factor * a.from[i] + a.term;
}

struct SharedArgs {
  u32* out;
  u32 words;
};
// Writes and reads all of the dynamic shared memory, and adds it up.
extern "C" __global__ void __launch_bounds__(128) fill_shared(const SharedArgs a) {
  HL_DYN_SMEM(u32, words);
  for (u32 i = threadIdx.x; i < a.words; i += blockDim.x) words[i] = i;
  __syncthreads();
  u32 sum = 0;
  for (u32 i = threadIdx.x; i < a.words; i += blockDim.x) sum += words[a.words - 1 - i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *a.out = sum;
}

struct TrapArgs {
  u32* unused;
};
// Fails on the device.
extern "C" __global__ void trap(const TrapArgs a) {
  if (a.unused != nullptr) __trap();
}
