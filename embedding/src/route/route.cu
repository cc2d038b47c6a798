// Route: staged ids to keys, and sorted keys to chunks of work.
//
// A *segment* is a run of equal keys: one row of the batch. It is cut into chunks of at most CHUNK
// entries, or more where told so, counted from its own first entry, so that how a row's gradients
// are added up does not depend on what else is in the batch.

// `KeysArgs` in route/cuda.rs.
struct KeysArgs {
  const Table* tables;
  const u32* tile_tables;
  const u32* staged;
  KeyLists keys;
  // For tables with bags: the sample of each entry.
  u32* samples;
  // Tables × passes × DIGITS; zeros before.
  u32* histograms;
  Flags* flags;
  u32 num_tiles;
  u32 num_passes;
  // Keys of one owner, of tables whose bags owners pool: the most samples.
  u32 max_samples;
};

// The sample whose bag holds entry `entry`: the last one that starts at or before it, of those that
// are not empty.
__device__ __forceinline__ u32 sample_of(const u32* offsets, u32 num_samples, u32 entry) {
  u32 low = 0, high = num_samples;
  while (low + 1 < high) {
    const u32 middle = (low + high) / 2;
    if (offsets[middle] <= entry) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// One tile a block: checks ids, writes their keys, and counts their digits.
extern "C" __global__ void __launch_bounds__(BLOCK) route_keys(const KeysArgs a) {
  __shared__ u32 counts[MOST_PASSES * DIGITS];
  const Staged* staged = reinterpret_cast<const Staged*>(a.staged);
  const u32 num_samples = staged->num_samples;
  for (u32 tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    const StagedTable batch = staged_tables(a.staged)[index];
    const u32 len = tile_len(tile, table, batch.num_ids);
    const u32 first = (tile - table.first_tile) * TILE;
    const u64 base = static_cast<u64>(tile) * TILE;
    const u32* ids = a.staged + table.ids + first;
    const Digits digits = digits_of(table);
    u32* keys = first_list(a.keys, digits, a.num_passes) + base;
    if ((batch.mode & MODE_NEEDS_REST) != 0 && threadIdx.x == 0 &&
        a.staged[staged->rest] != staged->generation) {
      raise(a.flags, ERROR_NOT_COPIED, index, 0, 0);
    }
    clear_counts(counts);
    for (u32 i = threadIdx.x; i < len; i += BLOCK) {
      u32 id = ids[i];
      if (id >= table.rows) {
        raise(a.flags, ERROR_ID_OUT_OF_RANGE, index, first + i, id);
        id = 0;
      }
      u32 sample = first + i;
      if ((batch.mode & MODE_BAGS) != 0) {
        sample = sample_of(a.staged + table.offsets, num_samples, first + i);
        a.samples[base + i] = sample;
      }
      u32 key = table.home != nullptr ? table.home[id] : id;
      if ((table.flags & BAGS_TO_OWNERS) != 0) {
        key = pooling_owner(table, id) * a.max_samples + sample;
      }
      keys[i] = key;
      count_key(counts, digits, key);
    }
    add_counts(counts, digits, a.histograms + index * a.num_passes * DIGITS);
  }
}

// `ChunksArgs` in route/cuda.rs.
struct ChunksArgs {
  const Table* tables;
  const u32* tile_tables;
  const u32* num_entries;
  const u32* keys;
  // Tiles: what starts in each; and how many blocks have taken. Zeros before.
  u64* tiles;
  u32* taken;
  u32* chunk_starts;
  u32* chunk_ends;
  // For each long segment, its first chunk, and the one after its last.
  u32* long_firsts;
  u32* long_ends;
  // For each sorted entry the number of its segment among those of all tables; null where it is
  // not needed.
  u32* row_numbers;
  // For each segment its first entry; null likewise.
  u32* row_starts;
  // Chunks, long segments, segments.
  u32* totals;
  u32 stride;
  u32 num_tiles;
  // 0: each entry of an infrequent row is a segment of its own.
  u32 merges;
  // Entries of a chunk, a power of two.
  u32 chunk;
};

// What starts and ends at the entries of one thread: ITEMS neighbours of the sorted list.
struct Marks {
  u32 chunk_starts;
  u32 chunk_lasts;
  u32 row_starts;
  u32 row_lasts;
  u32 long_starts;
  // Entries whose segment has several chunks.
  u32 longs;
};

// The first position of `key` among the first `count` keys.
__device__ __forceinline__ u32 lower_bound(const u32* keys, u32 count, u32 key) {
  u32 low = 0, high = count;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Whether neighbours of the sorted list are of two segments. Keys from `single` on are never of
// one.
__device__ __forceinline__ bool differ(u32 one, u32 other, u64 single) {
  return one != other || one >= single;
}

// Words of shared memory for one of each entry of a tile, and one before. Behind each ITEMS a word
// is left out, so that lanes that read their own meet in no bank.
#define TILE_WORDS (TILE + TILE / ITEMS + 1)

// The place of word `i` of a tile.
__device__ __forceinline__ u32 place_of(u32 i) { return i + i / ITEMS; }

// The sorted keys of a table, those of one tile in shared memory: in the table those that lanes
// read at a time would lie sixteen apart.
struct TileKeys {
  const u32* table;
  const u32* tile;
  u32 tile_first;

  __device__ __forceinline__ u32 at(u32 entry) const {
    const u32 i = entry - tile_first;
    return i < TILE ? tile[place_of(i)] : table[entry];
  }
};

__device__ __forceinline__ void load_tile(u32 (&tile)[TILE_WORDS], const u32* table, u32 count,
                                          u32 tile_first) {
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 i = j * BLOCK + threadIdx.x;
    if (tile_first + i < count) {
      tile[place_of(i)] = table[tile_first + i];
    }
  }
  __syncthreads();
}

// Moves `count` words, but those that are 0, to a list from `first` on, and leaves zeros: by lanes
// whose addresses begin at a multiple of 128 bytes.
__device__ __forceinline__ void move_words(u32* list, u32 first, u32 count,
                                           u32 (&words)[TILE_WORDS]) {
  const u32 skew = first % 32;
  for (u32 i = threadIdx.x; i < skew + count; i += BLOCK) {
    const u32 word = i < skew ? 0 : words[place_of(i - skew)];
    if (word != 0) {
      list[first + i - skew] = word;
      words[place_of(i - skew)] = 0;
    }
  }
}

// Marks the ITEMS entries from `at` (counted in the table) on; `count` is how many keys the table
// has. All threads take part.
__device__ __forceinline__ Marks mark(const TileKeys& keys, u32 count, u32 at, u64 single,
                                      u32 chunk) {
  const u32 tile_first = keys.tile_first;
  u32 mine[ITEMS];
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    mine[j] = at + j < count ? keys.at(at + j) : 0;
  }
  const u32 before = at > 0 && at < count ? keys.at(at - 1) : 0;
  // The last segment start among these entries, counted from 1 in the tile.
  u32 last_start = 0;
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const bool starts =
        at + j < count && (at + j == 0 || differ(mine[j], j == 0 ? before : mine[j - 1], single));
    last_start = starts ? at + j - tile_first + 1 : last_start;
  }
  const u32 start_before = exclusive_max(last_start);
  Marks marks = {0, 0, 0, 0, 0, 0};
  if (at >= count) {
    return marks;
  }
  // Where no segment starts before these entries in the tile, theirs began in an earlier tile.
  u32 start = start_before > 0 ? tile_first + start_before - 1
                               : lower_bound(keys.table, at + 1, mine[0]);
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 entry = at + j;
    if (entry < count) {
      const bool starts = entry == 0 || differ(mine[j], j == 0 ? before : mine[j - 1], single);
      const bool ends = entry + 1 == count || differ(keys.at(entry + 1), mine[j], single);
      start = starts ? entry : start;
      const u32 offset = entry - start;
      const bool is_long = offset >= chunk ||
                           (start + chunk < count &&
                            !differ(keys.at(start + chunk), mine[j], single));
      const u32 bit = 1u << j;
      marks.row_starts |= starts ? bit : 0;
      marks.chunk_starts |= (offset & (chunk - 1)) == 0 ? bit : 0;
      marks.chunk_lasts |= ends || (offset & (chunk - 1)) == chunk - 1 ? bit : 0;
      marks.row_lasts |= ends ? bit : 0;
      marks.longs |= is_long ? bit : 0;
      marks.long_starts |= starts && is_long ? bit : 0;
    }
  }
  return marks;
}

__device__ __forceinline__ Marks mark_tile(const ChunksArgs& a, u32 tile, const Table& table,
                                           u32 count, u32 (&tile_keys)[TILE_WORDS]) {
  const u32 first = (tile - table.first_tile) * TILE;
  // Entries of one bag at one owner are one in any case.
  const bool merges = a.merges != 0 || (table.flags & BAGS_TO_OWNERS) != 0;
  const u64 single = merges ? ~0ull : table.num_frequent;
  const u32* keys = a.keys + table.first_entry;
  load_tile(tile_keys, keys, count, first);
  const TileKeys loaded = {keys, tile_keys, first};
  return mark(loaded, count, first + threadIdx.x * ITEMS, single, a.chunk);
}

// How many of each there are in a tile, or stand before something.
struct Found {
  u32 chunks;
  u32 longs;
  u32 rows;
};

// In one word, no more than a tile's 4096 of each: added up, all three are.
__device__ __forceinline__ u64 packed(const Found& found) {
  return static_cast<u64>(found.rows) << 32 | found.longs << 16 | found.chunks;
}

// What a tile publishes; 0: nothing yet.
#define TILE_FOUND 0x8000000000000000ull

__device__ __forceinline__ u64 word_of(const Found& found) { return TILE_FOUND | packed(found); }

__device__ __forceinline__ Found found_in(u64 word) {
  return {static_cast<u32>(word) & 0xffff, static_cast<u32>(word) >> 16,
          static_cast<u32>(word >> 32) & 0xffff};
}

__device__ __forceinline__ void add(Found& sum, const Found& more) {
  sum.chunks += more.chunks;
  sum.longs += more.longs;
  sum.rows += more.rows;
}

// The sum over the tiles before `tile`, for all threads. As with the scans, the caller must have a
// __syncthreads() between two calls.
__device__ __forceinline__ Found found_before(const u64* tiles, u32 tile) {
  __shared__ Found sums[WARPS];
  Found sum = {0, 0, 0}, total = {0, 0, 0};
  for (u32 i = threadIdx.x; i < tile; i += BLOCK) {
    add(sum, found_in(await_word(tiles + i)));
  }
  sum.chunks = __reduce_add_sync(ALL_LANES, sum.chunks);
  sum.longs = __reduce_add_sync(ALL_LANES, sum.longs);
  sum.rows = __reduce_add_sync(ALL_LANES, sum.rows);
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  for (u32 warp = 0; warp < WARPS; warp++) {
    add(total, sums[warp]);
  }
  return total;
}

// Bits of `marks` below and at `bit`.
__device__ __forceinline__ u32 marks_up_to(u32 marks, u32 bit) {
  return __popc(marks & (bit | (bit - 1)));
}

// `before`: what stands before this thread's entries.
__device__ __forceinline__ void write_entries(const ChunksArgs& a, const Marks& marks,
                                              const Found& before, u32 entry, u32 end) {
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 bit = 1u << j;
    const u32 chunk = before.chunks + marks_up_to(marks.chunk_starts, bit) - 1;
    const u32 row = before.rows + marks_up_to(marks.row_starts, bit) - 1;
    const u32 number = before.longs + marks_up_to(marks.long_starts, bit) - 1;
    const bool is_long = (marks.longs & bit) != 0, starts = (marks.row_starts & bit) != 0;
    if (is_long && starts) {
      a.long_firsts[number] = chunk;
    }
    if (is_long && (marks.row_lasts & bit) != 0) {
      a.long_ends[number] = chunk + 1;
    }
    if (a.row_starts != nullptr && starts) {
      a.row_starts[row] = entry + j;
    }
    if (a.row_numbers != nullptr && entry + j < end) {
      a.row_numbers[entry + j] = row;
    }
  }
}

// The bounds of chunks, which lie next to each other: gathered in shared memory, where no thread
// reads keys any longer, so that they are written whole sectors at a time. `first`: the chunks of
// the tiles before; `own`: of the tile's threads before this one; `here`: of the tile.
__device__ __forceinline__ void write_chunks(const ChunksArgs& a, const Marks& marks, u32 first,
                                             u32 own, u32 here, u32 entry,
                                             u32 (&words)[TILE_WORDS]) {
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 bit = 1u << j;
    if ((marks.chunk_starts & bit) != 0) {
      const u32 is_long = (marks.longs & bit) != 0 ? CHUNK_OF_LONG : 0;
      const u32 starts = (marks.row_starts & bit) != 0 ? CHUNK_OF_START : 0;
      words[place_of(own + marks_up_to(marks.chunk_starts, bit) - 1)] =
          (entry + j) | is_long | starts;
    }
  }
  // Of ends there is one more: the first may be that of a chunk that began in an earlier tile, and
  // the last chunk may end in a later one.
  if (threadIdx.x == 0) {
    words[place_of(here)] = 0;
  }
  __syncthreads();
  move_words(a.chunk_starts, first, here, words);
  __syncthreads();
#pragma unroll
  for (u32 j = 0; j < ITEMS; j++) {
    const u32 bit = 1u << j;
    if ((marks.chunk_lasts & bit) != 0) {
      words[place_of(own + marks_up_to(marks.chunk_starts, bit))] = entry + j + 1;
    }
  }
  __syncthreads();
  // Note: word 0 is of the chunk before; where there is none it is 0, and its place, which wraps,
  // is not written.
  move_words(a.chunk_ends, first - 1, here + 1, words);
}

// A tile counts what begins in it, publishes that, and writes it after what begins in the tiles
// before.
extern "C" __global__ void __launch_bounds__(BLOCK, 3) find_chunks(const ChunksArgs a) {
  __shared__ u32 words[TILE_WORDS];
  for (u32 tile = take_tile(a.taken); tile < a.num_tiles; tile = take_tile(a.taken)) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    const u32 count = a.num_entries[index * a.stride];
    // The last tile knows the totals.
    if (tile_len(tile, table, count) == 0 && tile + 1 != a.num_tiles) {
      if (threadIdx.x == 0) {
        store_relaxed(a.tiles + tile, word_of({0, 0, 0}));
      }
      continue;
    }
    const Marks marks = mark_tile(a, tile, table, count, words);
    u64 in_tile;
    const Found own = {static_cast<u32>(__popc(marks.chunk_starts)),
                       static_cast<u32>(__popc(marks.long_starts)),
                       static_cast<u32>(__popc(marks.row_starts))};
    Found before = found_in(exclusive_scan(packed(own), in_tile));
    const Found here = found_in(in_tile);
    if (threadIdx.x == 0) {
      store_relaxed(a.tiles + tile, word_of(here));
    }
    const Found tiles_before = found_before(a.tiles, tile);
    const u32 entry = tile * TILE + threadIdx.x * ITEMS;
    write_chunks(a, marks, tiles_before.chunks, before.chunks, here.chunks, entry, words);
    add(before, tiles_before);
    write_entries(a, marks, before, entry, table.first_entry + count);
    if (tile + 1 == a.num_tiles && threadIdx.x == 0) {
      a.totals[0] = tiles_before.chunks + here.chunks;
      a.totals[1] = tiles_before.longs + here.longs;
      a.totals[2] = tiles_before.rows + here.rows;
    }
  }
}

// `UniqueArgs` in route/cuda.rs.
struct UniqueArgs {
  const Table* tables;
  const u32* tile_tables;
  const u32* num_entries;
  const u32* keys;
  const u32* row_numbers;
  // Per table from its first entry on: its rows, each once, rising; and how many.
  u32* rows;
  u32* counts;
  // Null where the host has the step.
  const DeviceStep* device_step;
  u32 stride;
  u32 num_tiles;
};

// Lists the rows of each table, for tables whose authors take the step. There are none in a step
// that changes nothing.
extern "C" __global__ void __launch_bounds__(BLOCK) unique_rows(const UniqueArgs a) {
  const bool is_skipped = a.device_step != nullptr && a.device_step->skip != 0;
  for (u32 tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    const u32 count = is_skipped ? 0 : a.num_entries[index * a.stride],
              end = table.first_entry + count;
    if (count == 0 && tile == table.first_tile && threadIdx.x == 0) {
      a.counts[index] = 0;
    }
    for (u32 entry = tile * TILE + threadIdx.x; entry < (tile + 1) * TILE && entry < end;
         entry += BLOCK) {
      const u32 number = a.row_numbers[entry] - a.row_numbers[table.first_entry];
      if (entry == table.first_entry || a.keys[entry] != a.keys[entry - 1]) {
        a.rows[table.first_entry + number] = a.keys[entry];
      }
      if (entry + 1 == end) {
        a.counts[index] = number + 1;
      }
    }
  }
}
