// Rows of 512 bytes, gathered as a lookup without pooling would: a warp for each.
struct Args {
  uint4* to;
  const uint4* from;
  u64 rows;
  u64 count;
};

// Four rows at a time, all asked for before one is stored; the next row is a fixed hash of its
// number, so that no list of rows is read.
extern "C" __global__ void __launch_bounds__(256) gather(const Args a) {
  const u32 lane = threadIdx.x % 32;
  const u64 warps = grid_threads() / 32;
  for (u64 first = grid_thread() / 32 * 4; first + 4 <= a.count; first += warps * 4) {
    uint4 part[4];
    for (u32 i = 0; i < 4; i++) {
      const u64 row = ((first + i) * 0x9e3779b97f4a7c15ull >> 11) % a.rows;
      part[i] = a.from[row * 32 + lane];
    }
    for (u32 i = 0; i < 4; i++) a.to[(first + i) % 4096 * 32 + lane] = part[i];
  }
}

extern "C" __global__ void nothing(const Args a) {
  if (a.count == 1) a.to[0] = a.from[0];
}
