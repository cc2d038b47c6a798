// A sum of parts that lie anywhere the device can reach, written to several places at once.
//
// A thread takes every (grid size)-th group of four numbers, or eight bf16, then of the single ones
// after them, so that accesses of a warp lie side by side. A place may be one of the parts: a
// thread reads all parts of a number before it writes it.

#ifndef PARTS
#define PARTS 2
#endif
// Whether numbers are bf16 from some group on: they are added in f32 and rounded at every node of
// the tree.
#ifndef NARROW
#define NARROW 0
#endif
#define MOST_PARTS 16
#define MOST_OUTS 16

// `SumArgs` in device/sum.rs.
struct SumArgs {
  // The first PARTS are used, in the order of the tree's leaves.
  const float* parts[MOST_PARTS];
  float* outs[MOST_OUTS];
  // Which of the parts, and of the places, lie in slots that take turns: bit by bit.
  u64 turning_parts;
  u64 turning_outs;
  // The number of the exchange; null where nothing takes turns.
  const u64* sequence;
  // Not 0: what came cannot be added up, and nothing is written. Null: it can.
  const u32* refused;
  u64 slot_bytes;
  u64 len;
  // Groups of 16 bytes from the first number on; 0 where an address is no multiple of 16. Of these,
  // the first that are f32.
  u64 groups;
  u64 exact_groups;
  u32 num_slots;
  u32 num_outs;
};

// The largest power of two below COUNT.
template <u32 COUNT>
__device__ constexpr u32 half_of() {
  u32 half = 1;
  while (2 * half < COUNT) half *= 2;
  return half;
}

// The tree of headlong_comm::element: neighbours first, then neighbours of these; a part without a
// neighbour waits. That is: the largest power of two of the parts on one side, the rest on the
// other.
template <u32 FIRST, u32 COUNT, class T, class Load, class Add>
__device__ __forceinline__ T tree(Load load, Add add) {
  if constexpr (COUNT == 1) {
    return load(FIRST);
  } else {
    constexpr u32 half = half_of<COUNT>();
    const T left = tree<FIRST, half, T>(load, add);
    return add(left, tree<FIRST + half, COUNT - half, T>(load, add));
  }
}

__device__ __forceinline__ float4 add_four(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Two bf16 in a word, to two others.
__device__ __forceinline__ u32 add_pair(u32 a, u32 b) {
  const float low = __uint_as_float(a << 16) + __uint_as_float(b << 16);
  const float high = __uint_as_float(a & 0xffff0000u) + __uint_as_float(b & 0xffff0000u);
  return to_bf16(low).bits | static_cast<u32>(to_bf16(high).bits) << 16;
}

__device__ __forceinline__ u32x4 add_eight(u32x4 a, u32x4 b) {
  return u32x4{add_pair(a.x, b.x), add_pair(a.y, b.y), add_pair(a.z, b.z), add_pair(a.w, b.w)};
}

extern "C" __global__ void __launch_bounds__(256) sum_parts(const SumArgs a) {
  if (a.refused != nullptr && *a.refused != 0) return;
  const u64 turn =
      a.sequence == nullptr ? 0 : *a.sequence % a.num_slots * (a.slot_bytes / sizeof(float));
  const auto part = [&](u32 index) {
    return a.parts[index] + ((a.turning_parts >> index & 1u) != 0 ? turn : 0);
  };
  const auto out = [&](u32 index) {
    return a.outs[index] + ((a.turning_outs >> index & 1u) != 0 ? turn : 0);
  };
  const u64 first = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const u64 stride = static_cast<u64>(gridDim.x) * blockDim.x;
  for (u64 group = first; group < a.groups; group += stride) {
    if (NARROW != 0 && group >= a.exact_groups) {
      const auto load = [&](u32 index) { return load16(part(index) + 4 * group); };
      const u32x4 sum = tree<0, PARTS, u32x4>(load, add_eight);
      for (u32 index = 0; index < a.num_outs; index++) store16(out(index) + 4 * group, sum);
      continue;
    }
    const auto load = [&](u32 index) {
      return reinterpret_cast<const float4*>(part(index))[group];
    };
    const float4 sum = tree<0, PARTS, float4>(load, add_four);
    for (u32 index = 0; index < a.num_outs; index++)
      reinterpret_cast<float4*>(out(index))[group] = sum;
  }
  for (u64 at = 4 * a.groups + first; at < a.len; at += stride) {
    const auto load = [&](u32 index) { return part(index)[at]; };
    const float sum =
        tree<0, PARTS, float>(load, [](float one, float other) { return one + other; });
    for (u32 index = 0; index < a.num_outs; index++) out(index)[at] = sum;
  }
}
