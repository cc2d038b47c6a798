// A stable radix sort of every table's (key, entry) pairs, least digit first: one launch a pass,
// for all tables at once (Adinets and Merrill, "Onesweep", 2022).
//
// Where a tile's keys of a digit go is known from the counts of digits of the whole table, which
// those who write keys have made, and from the tiles before: a tile publishes its counts, then adds
// up what those before it have published, back to the first one that knows all before itself.
// Blocks take tiles in rising order, so that none waits for one that has not begun. A tile ranks
// its keys among equal digits, sorts them in shared memory and writes runs of equal digits. Ranks
// go by place and never by who came first, so the result is the same for any schedule.

#define ITEMS (TILE / BLOCK)

// What a tile has published of a digit; 0: nothing yet. Its own keys, or those of all tiles of the
// table up to it.
#define STATE_OF_TILE 0x40000000u
#define STATE_OF_ALL 0x80000000u
#define STATE_COUNT 0x3fffffffu

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
  // Tables × passes × DIGITS.
  const u32* histograms;
  // Of this pass: tiles × DIGITS, and how many tiles blocks have taken. Zeros before.
  u32* states;
  u32* taken;
  u32 stride;
  u32 num_tiles;
  u32 num_passes;
  u32 pass;
  // Whether values are the entries' positions, which then need not be read by the first pass.
  u32 values_are_positions;
};

// Entries of tile `tile`, which is one of `table`: none after the last entry.
__device__ __forceinline__ u32 tile_len(u32 tile, const Table& table, u32 num_entries) {
  const u32 first = (tile - table.first_tile) * TILE;
  return num_entries <= first ? 0 : (num_entries - first < TILE ? num_entries - first : TILE);
}

// One tile of one pass.
struct TilePass {
  u32 tile;
  u32 len;
  u32 shift;
  u32 mask;
  bool values_are_positions;

  __device__ __forceinline__ u32 digit(u32 key) const { return key >> shift & mask; }
};

// The keys of one tile on their way.
struct Ranked {
  u32 keys[ITEMS];
  u32 values[ITEMS];
  u32 ranks[ITEMS];
};

// Reads the tile and ranks each key among those of its warp with the same digit. Item j of a warp's
// lane l is the warp's entry 32 j + l, so places rise with j, then with l. `counts` is the warp's
// own, and ends as its counts of digits.
__device__ __forceinline__ void rank_in_warp(const SortArgs& a, const TilePass& pass, u32* counts,
                                             Ranked& out) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, len = pass.len;
  const u64 base = static_cast<u64>(pass.tile) * TILE;
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 at = warp * (32 * ITEMS) + j * 32 + lane;
    out.keys[j] = at < len ? a.keys_in[base + at] : 0;
    out.values[j] = at < len && !pass.values_are_positions ? a.values_in[base + at] : 0;
  }
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 at = warp * (32 * ITEMS) + j * 32;
    out.ranks[j] = 0;
    // The same for the whole warp.
    if (at < len) {
      const bool there = at + lane < len;
      const u32 digit = there ? pass.digit(out.keys[j]) : DIGITS;
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

// Publishes the tile's count of a digit, where `state` is its own word; those of earlier tiles of
// the table stand before, DIGITS words apart. The first tile's count is that of all up to it.
__device__ __forceinline__ void publish_count(u32* state, u32 tiles_before, u32 count) {
  store_relaxed(state, (tiles_before == 0 ? STATE_OF_ALL : STATE_OF_TILE) | count);
}

// Keys of the digit in earlier tiles of the table, which this tile then publishes for later ones.
__device__ __forceinline__ u32 count_before(u32* state, u32 tiles_before, u32 count) {
  u32 before = 0;
  for (u32 back = 1; back <= tiles_before; back++) {
    const u32 word = await_word(state - back * DIGITS);
    before += word & STATE_COUNT;
    if ((word & STATE_OF_ALL) != 0) {
      break;
    }
  }
  if (tiles_before > 0) {
    store_relaxed(state, STATE_OF_ALL | (before + count));
  }
  return before;
}

struct SortShared {
  u32 warp_counts[WARPS][DIGITS];
  u32 starts[DIGITS];
  u32 targets[DIGITS];
  u32 keys[TILE];
  u32 values[TILE];
};

// Thread d has digit d. `histogram` is how often each occurs in the table.
__device__ __forceinline__ void sort_tile(const SortArgs& a, const TilePass& pass,
                                          const Table& table, const u32* histogram,
                                          SortShared& shared) {
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, digit = threadIdx.x;
  const u32 tiles_before = pass.tile - table.first_tile;
  for (u32 d = lane; d < DIGITS; d += 32) {
    shared.warp_counts[warp][d] = 0;
  }
  __syncwarp();
  Ranked mine;
  rank_in_warp(a, pass, shared.warp_counts[warp], mine);
  __syncthreads();
  // How many keys of the digit stand in earlier warps, and in the tile.
  u32 count = 0;
  for (u32 w = 0; w < WARPS; w++) {
    const u32 here = shared.warp_counts[w][digit];
    shared.warp_counts[w][digit] = count;
    count += here;
  }
  u32* state = a.states + static_cast<u64>(pass.tile) * DIGITS + digit;
  publish_count(state, tiles_before, count);
  // Keys of smaller digits: in the tile, and, in the lower half, in the table.
  u64 ignored;
  const u64 smaller = exclusive_scan(static_cast<u64>(count) << 32 | histogram[digit], ignored);
  const u32 start = static_cast<u32>(smaller >> 32);
  shared.starts[digit] = start;
  __syncthreads();
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 at = warp * (32 * ITEMS) + j * 32 + lane;
    if (at < pass.len) {
      const u32 d = pass.digit(mine.keys[j]);
      const u32 place = shared.starts[d] + shared.warp_counts[warp][d] + mine.ranks[j];
      shared.keys[place] = mine.keys[j];
      shared.values[place] =
          pass.values_are_positions ? tiles_before * TILE + at : mine.values[j];
    }
  }
  shared.targets[digit] = table.first_entry + static_cast<u32>(smaller) +
                          count_before(state, tiles_before, count) - start;
  __syncthreads();
  for (u32 i = threadIdx.x; i < pass.len; i += BLOCK) {
    const u32 key = shared.keys[i], to = shared.targets[pass.digit(key)] + i;
    a.keys_out[to] = key;
    a.values_out[to] = shared.values[i];
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK) sort_pass(const SortArgs a) {
  __shared__ SortShared shared;
  for (u32 tile = take_tile(a.taken); tile < a.num_tiles; tile = take_tile(a.taken)) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    const Digits digits = digits_of(table);
    const u32 first_pass = a.num_passes - digits.passes;
    const u32 len = tile_len(tile, table, a.num_entries[index * a.stride]);
    if (a.pass < first_pass || len == 0) {
      continue;
    }
    const u32 number = a.pass - first_pass;
    const bool values_are_positions = a.values_are_positions != 0 && number == 0;
    const TilePass pass = {tile, len, number * digits.bits, digits.mask, values_are_positions};
    sort_tile(a, pass, table, a.histograms + (index * a.num_passes + number) * DIGITS, shared);
  }
}
