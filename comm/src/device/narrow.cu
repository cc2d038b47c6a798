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
  // Groups of four from one block to the next, and of a block.
  u64 groups;
  u64 used_groups;
  u32 num_blocks;
};

// Where the i-th of all groups is that blocks may have; none where it does not count.
#define NO_GROUP (~0ull)
__device__ __forceinline__ u64 place_of(const NarrowArgs& a, u64 i) {
  const u64 block = i / a.used_groups, group = i % a.used_groups;
  const bool counts = a.lengths == nullptr || group * 4 * sizeof(float) < a.lengths[block];
  return counts ? 4 * (block * a.groups + group) : NO_GROUP;
}

// Rounds to nearest, ties to even.
extern "C" __global__ void __launch_bounds__(256) narrow_blocks(const NarrowArgs a) {
  for (u64 i = grid_thread(); i < a.used_groups * a.num_blocks; i += grid_threads()) {
    const u64 at = place_of(a, i);
    if (at != NO_GROUP) store4(a.narrow + at, load4(a.wide + at));
  }
  for (u64 block = grid_thread(); a.narrow_lengths != nullptr && block < a.num_blocks;
       block += grid_threads()) {
    a.narrow_lengths[block] = a.lengths == nullptr
                                  ? static_cast<u32>(a.used_groups * 4 * sizeof(bf16))
                                  : a.lengths[block] / 2;
  }
}

extern "C" __global__ void __launch_bounds__(256) widen_blocks(const NarrowArgs a) {
  for (u64 i = grid_thread(); i < a.used_groups * a.num_blocks; i += grid_threads()) {
    const u64 at = place_of(a, i);
    if (at != NO_GROUP) store4(a.wide + at, load4(a.narrow + at));
  }
}
