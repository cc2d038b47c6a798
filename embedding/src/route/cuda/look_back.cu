// A test of what tiles learn from those before: one block, of which the last warp publishes what
// earlier tiles have, while the others wait for it. Blocks of the software device run one after
// another, and so never wait.

#define TILES 70u

struct LookBackArgs {
  // Tiles × DIGITS, and tiles; zeros before.
  u32* states;
  u64* tiles;
  // Per lane what stands before the last tile; then chunks, long segments and segments.
  u32* found;
};

// Later tiles first; some know all before themselves.
__device__ void publish(const LookBackArgs& a, u32 lane) {
  for (u32 tile = TILES - 1; tile-- > 0;) {
    const u32 before = tile * (tile - 1) / 2 + tile * lane, count = tile + lane;
    u32* state = a.states + tile * DIGITS + lane;
    if (tile % 5 == 0) {
      store_relaxed(state, STATE_OF_ALL | (before + count));
    } else {
      publish_count(state, tile, count);
    }
    if (lane == 0) {
      store_relaxed(a.tiles + tile, word_of({tile, 1, 2 * tile}));
    }
    __nanosleep(20);
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK) look_back(const LookBackArgs a) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp == WARPS - 1) {
    publish(a, lane);
  } else if (warp == 0) {
    a.found[lane] = count_before(a.states + (TILES - 1) * DIGITS + lane, TILES - 1, 7);
  }
  const Found found = found_before(a.tiles, TILES - 1);
  if (threadIdx.x == 0) {
    a.found[32] = found.chunks, a.found[33] = found.longs, a.found[34] = found.rows;
  }
}
