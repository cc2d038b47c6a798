// Kernels of the conformance tests: small correct ones, and at the end the mistakes that must be
// found.
struct Args {
  u32* to;
  const u32* from;
  u32 n;
  u32 value;
};

// to[i] = from[i] * 3 + value
extern "C" __global__ void scale(const Args a) {
  for (u64 i = grid_thread(); i < a.n; i += grid_threads()) a.to[i] = a.from[i] * 3u + a.value;
}
extern "C" __global__ void copy_words(const Args a) {
  for (u64 i = grid_thread(); i < a.n; i += grid_threads()) a.to[i] = a.from[i];
}
extern "C" __global__ void store(const Args a) {
  if (grid_thread() == 0) a.to[0] = a.value;
}
extern "C" __global__ void __launch_bounds__(64) bounded(const Args a) {
  if (grid_thread() == 0) a.to[0] = a.value;
}

// One block: reversed through shared memory. The barriers are a define, so that tests can leave
// them out.
#ifndef BARRIER
#define BARRIER 1
#endif
extern "C" __global__ void __launch_bounds__(256) reverse_block(const Args a) {
  __shared__ u32 words[256];
  words[threadIdx.x] = a.from[threadIdx.x];
  if (BARRIER) __syncthreads();
  a.to[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void reverse_dynamic(const Args a) {
  HL_DYN_SMEM(u32, words);
  words[threadIdx.x] = a.from[threadIdx.x];
  __syncthreads();
  a.to[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}
// One warp: each lane reads its neighbour's word.
extern "C" __global__ void rotate_warp(const Args a) {
  __shared__ u32 words[32];
  words[threadIdx.x] = a.from[threadIdx.x];
  if (BARRIER) __syncwarp();
  a.to[threadIdx.x] = words[(threadIdx.x + 1) & 31u];
}

// One warp: what the collectives give, eight words per lane.
extern "C" __global__ void collectives(const Args a) {
  const u32 lane = threadIdx.x;
  u32* out = a.to + lane * 8;
  out[0] = __shfl_sync(HL_FULL_MASK, lane * 10u, 5);
  out[1] = __shfl_up_sync(HL_FULL_MASK, lane, 3);
  out[2] = __shfl_down_sync(HL_FULL_MASK, lane, 4);
  out[3] = __shfl_xor_sync(HL_FULL_MASK, lane, 1);
  out[4] = __shfl_sync(HL_FULL_MASK, lane, 2, 8);
  out[5] = __ballot_sync(HL_FULL_MASK, lane % 3u == 0u);
  out[6] = __match_any_sync(HL_FULL_MASK, lane / 8u);
  out[7] = __reduce_add_sync(HL_FULL_MASK, lane);
}
// The halves of a warp meet each by itself.
extern "C" __global__ void half_warps(const Args a) {
  if (threadIdx.x < 16) {
    a.to[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, threadIdx.x, 8);
  } else {
    a.to[threadIdx.x] = __shfl_xor_sync(0xffff0000u, threadIdx.x, 8);
  }
}
extern "C" __global__ void votes(const Args a) {
  const i32 count = __syncthreads_count((threadIdx.x & 1u) && threadIdx.x < 100);
  const i32 any = __syncthreads_or(threadIdx.x == 77), all = __syncthreads_and(threadIdx.x < 100);
  if (threadIdx.x != 0) return;
  a.to[0] = static_cast<u32>(count);
  a.to[1] = any != 0;
  a.to[2] = all != 0;
}
extern "C" __global__ void atomics(const Args a) {
  const u32 thread = static_cast<u32>(grid_thread());
  atomicAdd(a.to, 1u);
  atomicMax(a.to + 1, thread);
  atomicXor(a.to + 2, thread);
  if (atomicCAS(a.to + 3, 0u, 1u) == 0u) atomicAdd(a.to + 4, 7u);  // exactly one wins
  atomicAdd(reinterpret_cast<u64*>(a.to + 6), (u64)1 << 32);
}
// Each block has shared memory of its own: others' words are in other places of it.
extern "C" __global__ void blocks_apart(const Args a) {
  __shared__ u32 words[64];
  const u32 mine = (threadIdx.x + 7u * blockIdx.x) & 63u;
  words[mine] = mine;
  __syncthreads();
  a.to[blockIdx.x * 64 + threadIdx.x] = words[threadIdx.x];
}
// One warp: the first of three parts of 128 words in one group of asynchronous copies, the second,
// of whose words the last lane's are zeros, in another, the third in one that stays open. OPEN:
// how many groups the wait leaves; -1: none waits.
#ifndef OPEN
#define OPEN 0
#endif
extern "C" __global__ void staged(const Args a) {
  __shared__ __align__(16) u32 words[384];
  const u32 mine = 4 * threadIdx.x;
  copy_async16(words + mine, a.from + mine);
  copy_async_commit();
  copy_async16(words + 128 + mine, a.from + 128 + mine, threadIdx.x < 31);
  copy_async_commit();
  copy_async16(words + 256 + mine, a.from + 256 + mine);
#if OPEN >= 0
  copy_async_wait<OPEN>();
#endif
  __syncthreads();
  for (u32 i = threadIdx.x; i < 384; i += 32) a.to[i] = words[i];
}
// What a block finds in shared memory before it has written there: of a kernel, of a template.
template <class T>
__device__ T stale(T next) {
  __shared__ T word[1];
  const T found = *static_cast<volatile T*>(word);
  *static_cast<volatile T*>(word) = next;
  return found;
}
extern "C" __global__ void stale_shared(const Args a) {
  __shared__ u32 words[32];
  if (threadIdx.x == 0) a.to[blockIdx.x * 32] = stale<u32>(a.value);
  else a.to[blockIdx.x * 32 + threadIdx.x] = *static_cast<volatile u32*>(words + threadIdx.x);
  words[threadIdx.x] = a.value;
}

// ---- mistakes -----------------------------------------------------------------------------------
extern "C" __global__ void wild_store(const Args a) {
  if (grid_thread() == 0) a.to[static_cast<u64>(1) << 40] = a.value;
}
extern "C" __global__ void read_past_the_end(const Args a) {
  if (grid_thread() == 0) a.to[0] = a.from[a.n];
}
extern "C" __global__ void shared_past_the_end(const Args a) {
  __shared__ u32 words[32];
  words[threadIdx.x] = a.from[threadIdx.x];
  __syncthreads();
  a.to[threadIdx.x] = words[threadIdx.x + a.value];
}
extern "C" __global__ void same_word(const Args a) {
  __syncthreads();
  if (threadIdx.x == blockIdx.x) a.to[0] += 1;
}
extern "C" __global__ void divergent_barrier(const Args a) {
  if (threadIdx.x < a.value) __syncthreads();
  if (threadIdx.x >= a.value) __syncwarp();
}
extern "C" __global__ void outside_the_mask(const Args a) {
  a.to[threadIdx.x] = threadIdx.x < 16 ? __shfl_sync(0x0000ffffu, threadIdx.x, 20) : 0u;
}
