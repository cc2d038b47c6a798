// A number for what memory holds, in whatever order its words are looked at.

// `DigestArgs` in src/cuda/blas/trial.rs.
struct DigestArgs {
  const u32* words;
  u64* digest;
  u64 count;
};

// The last steps of SplitMix64: sums of other words are equal by a chance of one in 2^64.
HL_DEVICE u64 mixed(u64 x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

// Adds it to `digest`, once all blocks are done.
extern "C" __global__ void __launch_bounds__(256) digest(const DigestArgs a) {
  u64 sum = 0;
  for (u64 i = grid_thread(); i < a.count; i += grid_threads())
    sum += mixed(i << 32 ^ a.words[i] ^ i >> 32);
  atomicAdd(a.digest, (u64)sum);
}
