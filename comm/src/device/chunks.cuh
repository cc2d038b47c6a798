// Blocks of any length, copied in chunks by blocks of 256 threads.

#define CHUNK 4096u

// One thread copies 16 bytes of a chunk of at most CHUNK; both sides are as far aligned as their
// addresses are.
__device__ __forceinline__ void copy_chunk(const u8* from, u8* to, u32 bytes, u32 chunk) {
  const u32 begin = chunk * CHUNK + threadIdx.x * 16;
  if (from == to || begin >= bytes) return;
  const u32 len = min(bytes - begin, 16u);
  const u64 address = reinterpret_cast<u64>(from) | reinterpret_cast<u64>(to);
  if (len == 16 && address % 16 == 0) {
    *reinterpret_cast<u32x4*>(to + begin) = *reinterpret_cast<const u32x4*>(from + begin);
  } else if ((address | len) % 4 == 0) {
    for (u32 at = begin; at < begin + len; at += 4)
      *reinterpret_cast<u32*>(to + at) = *reinterpret_cast<const u32*>(from + at);
  } else {
    for (u32 at = begin; at < begin + len; at++) to[at] = from[at];
  }
}
