// Digits of the sort's keys, and how often each occurs: who writes keys counts them, for all passes
// at once.
//
// A table has as many passes as its own keys need. One with fewer than others begins later, so that
// all end with the last pass, in the same list.

#define DIGITS 256u
#define DIGIT_BITS 8u
// Passes of keys of 32 bits.
#define MOST_PASSES 4u

// Where keys go before their table's first pass: lists take turns, pass by pass.
struct KeyLists {
  // Of tables that begin with an even pass, and with an odd one.
  u32* even;
  u32* odd;
};

// Digits of a table's keys.
struct Digits {
  u32 passes;
  u32 bits;
  u32 mask;
};

__device__ __forceinline__ Digits digits_of(const Table& table) {
  const u32 passes = (table.key_bits + DIGIT_BITS - 1) / DIGIT_BITS;
  const u32 bits = (table.key_bits + passes - 1) / passes;
  return {passes, bits, (1u << bits) - 1};
}

// The list of a table's keys before its first pass, where the last of all tables' is the
// `num_passes`-th.
__device__ __forceinline__ u32* first_list(const KeyLists& lists, const Digits& digits,
                                           u32 num_passes) {
  return (num_passes - digits.passes) % 2 == 0 ? lists.even : lists.odd;
}

// A block's counts of digits, pass after pass, in shared memory: cleared, then keys counted, then
// added to their table's. All threads take part in the first and in the last.
__device__ __forceinline__ void clear_counts(u32 (&counts)[MOST_PASSES * DIGITS]) {
  for (u32 i = threadIdx.x; i < MOST_PASSES * DIGITS; i += BLOCK) {
    counts[i] = 0;
  }
  __syncthreads();
}

__device__ __forceinline__ void count_key(u32 (&counts)[MOST_PASSES * DIGITS],
                                          const Digits& digits, u32 key) {
  for (u32 pass = 0; pass < digits.passes; pass++) {
    atomicAdd(&counts[pass * DIGITS + (key >> pass * digits.bits & digits.mask)], 1u);
  }
}

__device__ __forceinline__ void add_counts(const u32 (&counts)[MOST_PASSES * DIGITS],
                                           const Digits& digits, u32* of_table) {
  __syncthreads();
  for (u32 i = threadIdx.x; i < digits.passes * DIGITS; i += BLOCK) {
    if (counts[i] != 0) {
      atomicAdd(&of_table[i], (u32)counts[i]);
    }
  }
  // The next keys' counts are cleared.
  __syncthreads();
}
