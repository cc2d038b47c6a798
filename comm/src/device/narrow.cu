// Blocks of f32 as blocks of bf16, and back: what an exchange with compression sends and has
// received.
//
// A thread takes every (grid size)-th group of four numbers of all blocks, so that accesses of a
// warp lie side by side. Of a block, only the groups that count are touched, never any after its
// room.

// `NarrowArgs` in device/narrow.rs.
struct NarrowArgs {
  float* wide;
  bf16* narrow;
  // Per block, its bytes of f32 that count; null: all.
  const u32* lengths;
  // Per block, its bytes of bf16; null where none is wanted.
  u32* narrow_lengths;
  // Groups of four of a block.
  u64 groups;
  u32 num_blocks;
};

// Whether a group counts in the block that it lies in.
__device__ __forceinline__ bool counts(const NarrowArgs& a, u64 group) {
  const u32 block = static_cast<u32>(group / a.groups);
  return a.lengths == nullptr || group % a.groups * 4 * sizeof(float) < a.lengths[block];
}

// Rounds to nearest, ties to even.
extern "C" __global__ void __launch_bounds__(256) narrow_blocks(const NarrowArgs a) {
  for (u64 group = grid_thread(); group < a.groups * a.num_blocks; group += grid_threads()) {
    if (counts(a, group)) store4(a.narrow + 4 * group, load4(a.wide + 4 * group));
  }
  for (u64 block = grid_thread(); a.narrow_lengths != nullptr && block < a.num_blocks;
       block += grid_threads()) {
    a.narrow_lengths[block] =
        a.lengths == nullptr ? static_cast<u32>(a.groups * 4 * sizeof(bf16)) : a.lengths[block] / 2;
  }
}

extern "C" __global__ void __launch_bounds__(256) widen_blocks(const NarrowArgs a) {
  for (u64 group = grid_thread(); group < a.groups * a.num_blocks; group += grid_threads()) {
    if (counts(a, group)) store4(a.wide + 4 * group, load4(a.narrow + 4 * group));
  }
}
