// f32 as bf16: the dense gradients that a sum takes in 16 bits.

// `NarrowArgs` in device/narrow.rs.
struct NarrowArgs {
  const float* from;
  bf16* to;
  u64 groups;
};

// Rounds groups of four to nearest, ties to even.
extern "C" __global__ void __launch_bounds__(256) round_to_bf16(const NarrowArgs a) {
  for (u64 group = grid_thread(); group < a.groups; group += grid_threads())
    store4(a.to + 4 * group, load4(a.from + 4 * group));
}
