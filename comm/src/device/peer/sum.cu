// The sum over ranks, in place: this rank's segment of everybody's data is read, added up and written back to all.
//
// Only this rank touches the segment, on any device, between the two barriers around the launch. A thread takes every
// (grid size)-th group of four numbers, then of the single ones behind them, so that accesses of a warp lie side by side.

#ifndef RANKS
#define RANKS 2
#endif

// `SumArgs` in device/peer/mod.rs.
struct SumArgs {
  // The data of all ranks, in the order of ranks; those behind RANKS are not used.
  float* data[8];
  u64 begin;
  u64 end;
  // Groups of four from `begin` on; 0 where an address is no multiple of 16.
  u64 groups;
};

// The tree of headlong_comm::element: neighbours first, then neighbours of these; a part without a neighbour waits.
template <class T, class Add>
__device__ __forceinline__ T tree(T (&part)[RANKS], Add add) {
#pragma unroll
  for (u32 width = 1; width < RANKS; width *= 2) {
#pragma unroll
    for (u32 at = 0; at + width < RANKS; at += 2 * width) part[at] = add(part[at], part[at + width]);
  }
  return part[0];
}

__device__ __forceinline__ float4 add_four(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float add_one(float a, float b) { return a + b; }

extern "C" __global__ void __launch_bounds__(256) sum_segment(const SumArgs a) {
  const u64 first = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 group = first; group < a.groups; group += stride) {
    float4 part[RANKS];
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) part[rank] = *reinterpret_cast<const float4*>(a.data[rank] + a.begin + 4 * group);
    const float4 sum = tree(part, add_four);
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) *reinterpret_cast<float4*>(a.data[rank] + a.begin + 4 * group) = sum;
  }
  for (u64 at = a.begin + 4 * a.groups + first; at < a.end; at += stride) {
    float part[RANKS];
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) part[rank] = a.data[rank][at];
    const float sum = tree(part, add_one);
#pragma unroll
    for (u32 rank = 0; rank < RANKS; rank++) a.data[rank][at] = sum;
  }
}
