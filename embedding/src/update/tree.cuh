// Sums over ranks, and rows that are asked for ahead of their use.

// Ranks whose gradients are added up in a tree: 2 to this power.
#define TREE_LEVELS 3u

// The sum of two parts, as it travels: rounded where that is TYPE.
template <int TYPE>
__device__ __forceinline__ Row sum_of(Row sum, const Row& other, bool rounds) {
  add(sum, other);
  if (!rounds) {
    return sum;
  }
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) {
      const float travels = to_float(from_float<Element<TYPE> >(sum.x[v][e]));
      // What is rounded to −0 is +0, as a sum without parts.
      sum.x[v][e] = __fadd_rn(travels, 0.0f);
    }
  }
  return sum;
}

// What has been added up of a row, rank by rank as they rise; TYPE is what gradients travel as,
// and sums where they are rounded.
template <int TYPE>
struct TreeSum {
  // Of the eights of ranks that have ended, and left halves of subtrees that have not.
  Row total;
  Row left[TREE_LEVELS];
  u32 has_left;
  bool rounds;

  // Ends rank `rank` with sum `sum`; `next` is the next one.
  __device__ __forceinline__ void end_rank(Row sum, u32 rank, u32 next) {
    const u32 differs = rank ^ next;
#pragma unroll
    for (u32 level = 0; level < TREE_LEVELS; level++) {
      if (differs >> level == 1) {
        left[level] = sum, has_left |= 1u << level;
      }
      if (differs >> level > 1 && (has_left >> level & 1) != 0) {
        sum = sum_of<TYPE>(left[level], sum, rounds), has_left &= ~(1u << level);
      }
    }
    if (differs >> TREE_LEVELS != 0) {
      add(total, sum);
    }
  }
};

// Asks for the lines of up to ROWS rows of DIM elements of `bytes` bytes, where each of the first
// lanes has the address of one, or 0. A warp's loads of one row wait for those of the row
// before; these do not.
template <u32 ROWS>
__device__ __forceinline__ void prefetch_rows(u64 at, u32 bytes) {
  const u32 lines = DIM * bytes / 128 > 1 ? DIM * bytes / 128 : 1, lane = threadIdx.x % 32;
  for (u32 first = 0; first < ROWS * lines; first += 32) {
    const u32 line = first + lane, row = line / lines % ROWS;
    const u64 low = __shfl_sync(ALL_LANES, static_cast<u32>(at), row);
    const u64 high = __shfl_sync(ALL_LANES, static_cast<u32>(at >> 32), row);
    const u64 address = high << 32 | low;
    if (address != 0 && line < ROWS * lines) {
      prefetch(reinterpret_cast<const u8*>(address) + line % lines * 128);
    }
  }
}
