// A stable radix sort of every table's (key, entry) pairs, least digit first: three launches a
// pass, for all tables at once.
//
// count: how often each digit occurs in each tile. scan: for each table and digit, the sum over the
// tiles before. scatter: each tile ranks its keys among equal digits, sorts them in shared memory
// and writes runs of equal digits. Ranks go by place in the tile and never by who came first, so
// the result is the same for any schedule.

#define DIGITS 256u
#define ITEMS (TILE / BLOCK)

// `SortArgs` in route/cuda.rs.
struct SortArgs {
  const Table* tables;
  const u32* tile_tables;
  // Entries of table t: num_entries[t · stride].
  const u32* num_entries;
  const u32* keys_in;
  const u32* values_in;
  u32* keys_out;
  u32* values_out;
  // Tiles × DIGITS, and tables × DIGITS.
  u32* counts;
  u32* totals;
  u32 stride;
  u32 num_tables;
  u32 num_tiles;
  u32 shift;
  u32 mask;
  // Whether values are the entries' positions, which then need not be read.
  u32 values_are_positions;
};

// Entries of tile `tile`, which is one of `table`: none after the last entry.
__device__ __forceinline__ u32 tile_len(u32 tile, const Table& table, u32 num_entries) {
  const u32 first = (tile - table.first_tile) * TILE;
  return num_entries <= first ? 0 : (num_entries - first < TILE ? num_entries - first : TILE);
}

// Counts the digits that `digit_of(i)` gives for i < len. Thread d keeps and writes the count of
// digit d; `histogram` is shared.
template <typename DigitOf>
__device__ __forceinline__ void count_digits(u32* histogram, u32 len, u32* counts,
                                             DigitOf digit_of) {
  histogram[threadIdx.x] = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < len; i += BLOCK) {
    atomicAdd(&histogram[digit_of(i)], 1u);
  }
  __syncthreads();
  counts[threadIdx.x] = histogram[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(BLOCK) sort_count(const SortArgs a) {
  __shared__ u32 histogram[DIGITS];
  for (u32 tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    const u32 index = a.tile_tables[tile];
    const u32 len = tile_len(tile, a.tables[index], a.num_entries[index * a.stride]);
    const u32* keys = a.keys_in + static_cast<u64>(tile) * TILE;
    count_digits(histogram, len, a.counts + static_cast<u64>(tile) * DIGITS,
                 [&](u32 i) { return keys[i] >> a.shift & a.mask; });
  }
}

// One block per table and 32 digits: a warp's lanes are digits, its eight warps share the tiles.
extern "C" __global__ void __launch_bounds__(BLOCK) sort_scan(const SortArgs a) {
  __shared__ u32 sums[WARPS][32];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 groups = DIGITS / 32;
  for (u32 task = blockIdx.x; task < a.num_tables * groups; task += gridDim.x) {
    const u32 index = task / groups, digit = task % groups * 32 + lane;
    const Table table = a.tables[index];
    const u32 tiles = (a.num_entries[index * a.stride] + TILE - 1) / TILE;
    const u32 first = tiles * warp / WARPS, last = tiles * (warp + 1) / WARPS;
    u32* counts = a.counts + static_cast<u64>(table.first_tile) * DIGITS + digit;
    u32 sum = 0;
#pragma unroll 4
    for (u32 tile = first; tile < last; tile++) {
      sum += counts[tile * DIGITS];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    u32 before = 0;
    for (u32 w = 0; w < warp; w++) {
      before += sums[w][lane];
    }
    if (warp == WARPS - 1) {
      a.totals[index * DIGITS + digit] = before + sum;
    }
#pragma unroll 4
    for (u32 tile = first; tile < last; tile++) {
      const u32 count = counts[tile * DIGITS];
      counts[tile * DIGITS] = before;
      before += count;
    }
    // The next task writes the sums that this one's warps read.
    __syncthreads();
  }
}

// The keys of one tile on their way.
struct Ranked {
  u32 keys[ITEMS];
  u32 values[ITEMS];
  u32 ranks[ITEMS];
};

// Reads the tile and ranks each key among those of its warp with the same digit. Item j of a warp's
// lane l is the warp's entry 32 j + l, so places rise with j, then with l. `counts` is the warp's
// own, and ends as its counts of digits.
__device__ __forceinline__ void rank_in_warp(const SortArgs& a, u32 tile, u32 len, u32* counts,
                                             Ranked& out) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 base = static_cast<u64>(tile) * TILE;
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 at = warp * (32 * ITEMS) + j * 32 + lane;
    out.keys[j] = at < len ? a.keys_in[base + at] : 0;
    out.values[j] = at < len && !a.values_are_positions ? a.values_in[base + at] : 0;
  }
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 at = warp * (32 * ITEMS) + j * 32;
    out.ranks[j] = 0;
    // The same for the whole warp.
    if (at < len) {
      const bool there = at + lane < len;
      const u32 digit = there ? out.keys[j] >> a.shift & a.mask : DIGITS;
      const u32 peers = __match_any_sync(ALL_LANES, digit);
      const u32 before = there ? counts[digit] : 0;
      out.ranks[j] = before + __popc(peers & ((1u << lane) - 1));
      // All lanes have read before the first of the peers writes, and it has written before the
      // next item is read.
      __syncwarp();
      if (there && (peers & ((1u << lane) - 1)) == 0) {
        counts[digit] = before + __popc(peers);
      }
      __syncwarp();
    }
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK) sort_scatter(const SortArgs a) {
  __shared__ u32 warp_counts[WARPS][DIGITS];
  __shared__ u32 starts[DIGITS];
  __shared__ u32 targets[DIGITS];
  __shared__ u32 sorted_keys[TILE];
  __shared__ u32 sorted_values[TILE];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, digit = threadIdx.x;
  for (u32 tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    const u32 len = tile_len(tile, table, a.num_entries[index * a.stride]);
    if (len == 0) {
      continue;
    }
    for (u32 w = 0; w < WARPS; w++) {
      warp_counts[w][digit] = 0;
    }
    __syncthreads();
    Ranked mine;
    rank_in_warp(a, tile, len, warp_counts[warp], mine);
    __syncthreads();
    // Thread d: how many keys of digit d stand in earlier warps, in the tile, in earlier tiles, and
    // under smaller digits.
    u32 count = 0;
    for (u32 w = 0; w < WARPS; w++) {
      const u32 here = warp_counts[w][digit];
      warp_counts[w][digit] = count;
      count += here;
    }
    u32 ignored;
    const u32 start = exclusive_scan(count, ignored);
    const u32 smaller = exclusive_scan(a.totals[index * DIGITS + digit], ignored);
    starts[digit] = start;
    targets[digit] =
        table.first_entry + smaller + a.counts[static_cast<u64>(tile) * DIGITS + digit] - start;
    __syncthreads();
    const u32 position = (tile - table.first_tile) * TILE;
#pragma unroll
    for (u32 j = 0; j < ITEMS; j++) {
      const u32 at = warp * (32 * ITEMS) + j * 32 + lane;
      if (at < len) {
        const u32 d = mine.keys[j] >> a.shift & a.mask;
        const u32 place = starts[d] + warp_counts[warp][d] + mine.ranks[j];
        sorted_keys[place] = mine.keys[j];
        sorted_values[place] = a.values_are_positions ? position + at : mine.values[j];
      }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < len; i += BLOCK) {
      const u32 key = sorted_keys[i];
      const u32 to = targets[key >> a.shift & a.mask] + i;
      a.keys_out[to] = key;
      a.values_out[to] = sorted_values[i];
    }
    // The next tile overwrites what this one's threads read.
    __syncthreads();
  }
}
