// Rows of 512 bytes by their index, a warp for each four; and what can go wrong with it, for the
// lint of machine code to find: MUTANT says what.

#define ROW 32

struct CopyArgs {
  const uint4* table;
  const unsigned* rows;
  uint4* to;
  unsigned count;
};

__device__ __forceinline__ void store(uint4* to, uint4 value) {
#if MUTANT == 4
  // In pieces, as a compiler does that does not know the alignment.
  unsigned* words = reinterpret_cast<unsigned*>(to);
  asm volatile("st.global.u32 [%0], %1;" ::"l"(words), "r"(value.x));
  asm volatile("st.global.u32 [%0], %1;" ::"l"(words + 1), "r"(value.y));
  asm volatile("st.global.u32 [%0], %1;" ::"l"(words + 2), "r"(value.z));
  asm volatile("st.global.u32 [%0], %1;" ::"l"(words + 3), "r"(value.w));
#else
  *to = value;
#endif
}

#if MUTANT == 2
// Registers for half of what the loop below holds at a time.
#define BOUNDS __launch_bounds__(1024, 2)
#define AT_ONCE 16
#else
#define BOUNDS __launch_bounds__(256, 4)
#define AT_ONCE 4
#endif

extern "C" __global__ void BOUNDS copy_rows(const CopyArgs a) {
  const unsigned lane = threadIdx.x % 32, warps = gridDim.x * (blockDim.x / 32);
  for (unsigned first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * AT_ONCE;
       first + AT_ONCE <= a.count; first += warps * AT_ONCE) {
#if MUTANT == 1
    // Each row is stored before the next is loaded.
#pragma unroll 1
    for (unsigned i = 0; i < AT_ONCE; i++) {
      store(a.to + (first + i) * ROW + lane, __ldg(a.table + a.rows[first + i] * ROW + lane));
    }
#else
    uint4 rows[AT_ONCE];
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
      rows[i] = __ldg(a.table + a.rows[first + i] * ROW + lane);
    }
#if MUTANT == 2
    // Needs all of them before the first is stored, and each of them after.
    unsigned all = 0;
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
      all = all * 31 + (rows[i].x ^ rows[i].y ^ rows[i].z ^ rows[i].w);
    }
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
      rows[i].x ^= all, rows[i].y += all, rows[i].z ^= all, rows[i].w += all;
    }
#endif
#if MUTANT == 3
    // An array whose index only the device knows is no register.
    unsigned order[64];
    for (unsigned i = 0; i < 64; i++) {
      order[a.rows[i] % 64] = i;
    }
    rows[0].x += order[first % 64];
#endif
#pragma unroll
    for (unsigned i = 0; i < AT_ONCE; i++) {
      store(a.to + (first + i) * ROW + lane, rows[i]);
    }
#endif
  }
}
