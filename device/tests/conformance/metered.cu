// Kernels whose accesses are known to the byte, for the tests of the meter: each mistake next to
// its correct twin. 32 rows of 32 words, one warp.
struct Args {
  u32* to;
  const u32* from;
  u32 n;
  u32 value;
};

// The warp goes along a row.
extern "C" __global__ void rows_by_warp(const Args a) {
  for (u32 row = 0; row < 32; row++)
    a.to[row * 32 + threadIdx.x] = a.from[row * 32 + threadIdx.x];
}
// The mistake: each lane has a row of its own.
extern "C" __global__ void rows_by_lane(const Args a) {
  for (u32 column = 0; column < 32; column++)
    a.to[threadIdx.x * 32 + column] = a.from[threadIdx.x * 32 + column];
}

// A transposition through shared memory, whose rows are one word longer than a row of banks.
extern "C" __global__ void padded_tile(const Args a) {
  __shared__ u32 tile[32][33];
  for (u32 row = 0; row < 32; row++)
    tile[row][threadIdx.x] = a.from[row * 32 + threadIdx.x];
  __syncthreads();
  for (u32 row = 0; row < 32; row++) a.to[row * 32 + threadIdx.x] = tile[threadIdx.x][row];
}
// The mistake: a column lies in one bank.
extern "C" __global__ void tile_in_one_bank(const Args a) {
  __shared__ u32 tile[32][32];
  for (u32 row = 0; row < 32; row++)
    tile[row][threadIdx.x] = a.from[row * 32 + threadIdx.x];
  __syncthreads();
  for (u32 row = 0; row < 32; row++) a.to[row * 32 + threadIdx.x] = tile[threadIdx.x][row];
}

// What is one access of 16 or 8 bytes on a device is one here.
extern "C" __global__ void wide_accesses(const Args a) {
  __shared__ __align__(16) u32 words[128];
  copy_async16(words + 4 * threadIdx.x, a.from + 4 * threadIdx.x);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  store16(a.to + 4 * threadIdx.x, load16(words + 4 * threadIdx.x));
  bf16* halves = reinterpret_cast<bf16*>(a.to + 128);
  const float* floats = reinterpret_cast<const float*>(a.from);
  store4(halves + 4 * threadIdx.x, load4(floats + 4 * threadIdx.x));
}

// Lanes in groups of eight whose loops end at different times, and one atomic each.
extern "C" __global__ void uneven_groups(const Args a) {
  const u32 group = threadIdx.x / 8, lane = threadIdx.x % 8;
  u32 sum = 0;
  for (u32 row = 0; row <= group; row++) sum += a.from[(4 * row + group) * 8 + lane];
  atomicAdd(a.to, (u32)sum);
}
