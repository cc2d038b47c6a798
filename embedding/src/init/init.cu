// Initial values of rows, and of optimiser states: the bits that the processor makes, wherever a
// row lies.
//
// Where a row is a whole number of groups of four, a thread makes the four elements of one counter;
// else one element.

// Element type of the rows: 0 f32, 1 f16, 2 bf16.
#ifndef ROW_TYPE
#define ROW_TYPE 0
#endif

// `InitArgs` in init/cuda.rs.
struct InitArgs {
  // num_rows × dim.
  void* rows;
  // Per row, which row of the model's table it is; null where that is its place.
  const u32* row_numbers;
  u64 seed;
  u64 stream;
  u64 num_rows;
  float low;
  // From the smallest value to the largest.
  float width;
  u32 dim;
  u32 unused;
};

// `FillArgs` in init/cuda.rs.
struct FillArgs {
  float* to;
  u64 count;
  float value;
  u32 unused;
};

// Product and sum are rounded one after the other, as on the processor: nothing is fused.
__device__ __forceinline__ float value_of(const InitArgs& a, float unit) {
  return __fadd_rn(a.low, __fmul_rn(a.width, unit));
}

__device__ __forceinline__ float unit_of(u32 word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

// Row of the model's table of local row `row`, which is below num_rows.
__device__ __forceinline__ u64 number_of(const InitArgs& a, u64 row) {
  return a.row_numbers != nullptr ? a.row_numbers[row] : row;
}

extern "C" __global__ void __launch_bounds__(256) initial_rows(const InitArgs a) {
  Element<ROW_TYPE>* rows = static_cast<Element<ROW_TYPE>*>(a.rows);
  if (a.dim % 4 == 0) {
    const u32 groups = a.dim / 4;
    for (u64 i = grid_thread(); i < a.num_rows * groups; i += grid_threads()) {
      const u64 row = i / groups;
      const u32x4 words = random_bits(a.seed, a.stream, number_of(a, row) * groups + i % groups);
      // Rows stand without gaps: group i of the matrix is elements 4i to 4i + 3.
      store4(rows + 4 * i, f32x4{value_of(a, unit_of(words.x)), value_of(a, unit_of(words.y)),
                                 value_of(a, unit_of(words.z)), value_of(a, unit_of(words.w))});
    }
    return;
  }
  for (u64 i = grid_thread(); i < a.num_rows * a.dim; i += grid_threads()) {
    const u64 element = number_of(a, i / a.dim) * a.dim + i % a.dim;
    rows[i] = from_float<Element<ROW_TYPE>>(value_of(a, random_uniform(a.seed, a.stream, element)));
  }
}

extern "C" __global__ void __launch_bounds__(256) fill_state(const FillArgs a) {
  for (u64 i = grid_thread(); i < a.count; i += grid_threads()) {
    a.to[i] = a.value;
  }
}
