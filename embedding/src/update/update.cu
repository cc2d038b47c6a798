// Update: the gradients of each row of the batch, summed in a fixed order, and one step of the
// optimiser on the row.
//
// Rows' entries are cut into chunks of at most 32 (what ranks send, as many as there are ranks),
// counted from the row's first. A group of lanes sums a chunk, entry after entry; of a row with one
// chunk it takes the step at once, else it keeps the partial sum. These are added in eight runs of
// neighbours, then the runs, each in order: a run by the group that keeps the last of its sums, all
// runs by the group that adds up the last of them. Bits do not depend on which groups those are.
// Every row is written once.

// What gradients come as: 0 those of pooled vectors, by sample; 1 rows, by the element at which
// each starts.
#ifndef SOURCE
#define SOURCE 0
#endif
// What becomes of the sum: 0 an optimiser step; 1 it is written where `destinations` says.
#ifndef SINK
#define SINK 0
#endif
// Of sink 1: the element type of what owners are sent.
#ifndef SLOT_TYPE
#define SLOT_TYPE 0
#endif

// Element type of the block of frequent gradients.
#ifndef FREQUENT_TYPE
#define FREQUENT_TYPE 0
#endif

#ifndef HL_OPTIMIZER
#define HL_OPTIMIZER HL_SGD
#endif
// Blocks of a multiprocessor that registers leave room for: as many as do without spills.
#if ROW_TYPE == 0 && DIM != 0
#define RESIDENT 4
#else
#define RESIDENT 3
#endif

// Runs that the partial sums of a long row are cut into.
#define RUNS 8u
// Chunks whose numbers a warp reads at once.
#define CHUNKS_AT_ONCE 8u

using Frequent = Element<FREQUENT_TYPE>;

// `UpdateArgs` in update/cuda.rs.
struct UpdateArgs {
  const Table* tables;
  const u32* tile_tables;
  const u32* staged;
  const u32* chunk_starts;
  // Of a chunk of a long row, the number of the row.
  const u32* chunk_ends;
  // Entries of long rows.
  const u32* long_starts;
  const u32* long_ends;
  // Partial sums of a run that have been kept, at its first one; runs of a long row that have been
  // added up. Zeros before and after.
  u32* kept_sums;
  u32* ended_runs;
  // Chunks, long rows, rows.
  const u32* totals;
  const u32* keys;
  const u32* values;
  // The sample of each entry, of tables with bags.
  const u32* samples;
  const void* gradients;
  float* partials;
  // Sink 1: per row of the batch, and where its gradient is written.
  const u32* row_numbers;
  const u32* destinations;
  void* to_owners;
  Frequent* frequent;
  const DeviceStep* device_step;
  // Elements from one sample's gradients to the next, and from one partial sum to the next.
  u64 stride;
  u64 partial_stride;
  DeviceStep step;
  OptimizerConstants constants;
  u64 seed;
  // Of the block of frequent gradients.
  u32 num_tables;
  u32 num_frequent;
  // Of rows: elements of the slot of one source, and of how many ranks a source is.
  u32 slot_elements;
  u32 source_ranks;
  // Whether sums over ranks are rounded to what gradients travel as.
  u32 rounds_sums;
};

// A run of entries of one row.
struct Chunk {
  u32 begin;
  u32 end;
  u32 table;
  u32 row;
};

// A row of several chunks.
struct LongRow {
  u32 number;
  u32 begin;
  u32 chunks;

  // The first chunk of run `run`, which may have none.
  __device__ __forceinline__ u32 first_of(u32 run) const { return chunks * run / RUNS; }
  // The run of chunk `chunk`.
  __device__ __forceinline__ u32 run_of(u32 chunk) const {
    return (RUNS * (chunk + 1) - 1) / chunks;
  }
  // Where the partial sum of a chunk lies: two places for every CHUNK entries. Of two chunks of
  // long rows that start within so many entries, one ends its row and the other starts the next.
  __device__ __forceinline__ u64 place_of(u32 chunk) const {
    return static_cast<u64>((begin + chunk * CHUNK) / CHUNK) * 2 + (chunk == 0 ? 1 : 0);
  }
};

// What an entry's gradient is multiplied with: one over the length of its bag, or its weight.
__device__ __forceinline__ float factor_of(const UpdateArgs& a, const Table& table, u32 mode,
                                           u32 position, u32 sample) {
  if ((mode & MODE_WEIGHTED) != 0) {
    return reinterpret_cast<const float*>(a.staged + table.factors)[position];
  }
  if ((table.flags & POOLING_MEAN) != 0 && (mode & MODE_BAGS) != 0) {
    const u32* offsets = a.staged + table.offsets;
    return 1.0f / static_cast<float>(offsets[sample + 1] - offsets[sample]);
  }
  return 1.0f;
}

// The end of the entries of `chunk` that count: of a bag's rows at one owner the first, as the
// owner gets the bag's gradient once.
__device__ __forceinline__ u32 end_of(const UpdateArgs& a, const Table& table, const Chunk& chunk) {
#if SINK == 1
  if ((table.flags & BAGS_TO_OWNERS) != 0) {
    const u32* numbers = a.row_numbers + chunk.begin;
    const bool is_first = chunk.begin == table.first_entry || numbers[-1] != numbers[0];
    return chunk.begin + (is_first ? 1 : 0);
  }
#endif
  return chunk.end;
}

#if SOURCE == 1
// The sum over the entries `begin .. end`, which rise. Those of one rank in order from +0 on; ranks
// in eights in a tree, where told so rounded wherever two have been added up; and the eights in
// order. So a sum has the same bits where the ranks of a node have been added up before.
__device__ __forceinline__ Row sum_of_ranks(const UpdateArgs& a, u32 begin, u32 end, u32 columns,
                                            u32 strip) {
  Row sum = zeros();
  if (begin + 1 == end) {
    add(sum, load_strip<VECTOR_TYPE, true>(a.gradients, a.values[begin] + strip * STRIP, columns));
    return sum;
  }
  TreeSum<VECTOR_TYPE> tree = {
      zeros(), {zeros(), zeros(), zeros()}, 0, a.rounds_sums != 0};
  u32 rank = a.values[begin] / a.slot_elements * a.source_ranks;
  for (u32 entry = begin; entry < end; entry++) {
    const u32 value = a.values[entry], of = value / a.slot_elements * a.source_ranks;
    if (of != rank) {
      tree.end_rank(sum, rank, of);
      sum = zeros(), rank = of;
    }
    add(sum, load_strip<VECTOR_TYPE, true>(a.gradients, value + strip * STRIP, columns));
  }
  tree.end_rank(sum, rank, 0xffffffffu);
  return tree.total;
}
#endif

// The sum over the entries `begin .. end`, in order from +0 on.
__device__ __forceinline__ Row sum_entries(const UpdateArgs& a, const Table& table,
                                           const Chunk& chunk, u32 columns, u32 strip) {
  const u32 end = end_of(a, table, chunk);
#if SOURCE == 1
  // What owners pool are bags: in order, as on one rank.
  if (table.part_step == 0) {
    return sum_of_ranks(a, chunk.begin, end, columns, strip);
  }
  const u32 mode = 0;
#else
  const u32 mode = staged_tables(a.staged)[chunk.table].mode;
#endif
  Row sum = zeros();
  if (mode == 0) {
    // Without a branch on the entries several gradients are on their way at a time.
#pragma unroll 4
    for (u32 entry = chunk.begin; entry < end; entry++) {
      const u32 value = a.values[entry];
      const u64 first = SOURCE == 1 ? value : value * a.stride + table.first_column;
      add(sum, load_strip<VECTOR_TYPE, true>(a.gradients, first + strip * STRIP, columns));
    }
    return sum;
  }
#if SOURCE == 0
  for (u32 entry = chunk.begin; entry < end; entry++) {
    const u32 position = a.values[entry];
    const u32 sample = (mode & MODE_BAGS) != 0 ? a.samples[table.first_entry + position] : position;
    const u64 first = sample * a.stride + table.first_column;
    Row gradient = load_strip<VECTOR_TYPE, true>(a.gradients, first + strip * STRIP, columns);
    scale(gradient, factor_of(a, table, mode, position, sample));
    add(sum, gradient);
  }
#endif
  return sum;
}

#if DIM != 0
// The mean of the squares of a row, in the order of the CPU: element i belongs to lane i mod 16 of
// sixteen, which add up in the order of elements, and then in a tree. All lanes of the group get
// it.
__device__ __forceinline__ float mean_of_squares(const Row& gradient) {
  // Lanes that hold sixteen neighbours, and this one's place among them.
  constexpr u32 neighbours = 16 / ELEMENTS;
  const u32 place = threadIdx.x % neighbours;
  float sums[ELEMENTS];
#pragma unroll
  for (u32 e = 0; e < ELEMENTS; e++) {
    float sum = 0.0f;
#pragma unroll
    for (u32 v = 0; v < VECTORS; v++) {
      const float square = __fmul_rn(gradient.x[v][e], gradient.x[v][e]);
      for (u32 lane = 0; lane < LANES; lane += neighbours) {
        sum = __fadd_rn(sum, __shfl_sync(group_mask(), square, lane + place, LANES));
      }
    }
#pragma unroll
    for (u32 step = neighbours / 2; step > 0; step /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(group_mask(), sum, step));
    }
    sums[e] = sum;
  }
#pragma unroll
  for (u32 width = ELEMENTS / 2; width > 0; width /= 2) {
#pragma unroll
    for (u32 e = 0; e < width; e++) {
      sums[e] = __fadd_rn(sums[e], sums[e + width]);
    }
  }
  return __fdiv_rn(sums[0], static_cast<float>(DIM));
}
#endif

// The sum of the squares of a strip, in a fixed tree.
__device__ __forceinline__ float squares_of_strip(const Row& gradient) {
  float sum = __fmul_rn(gradient.x[0][0], gradient.x[0][0]);
#pragma unroll
  for (u32 step = 16; step > 0; step /= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, step));
  }
  return sum;
}

// Writes weights: bf16 with stochastic rounding, so that small steps are not lost; the numbers
// go by seed, step, table, row of the model's table and element, as in rows.rs.
__device__ __forceinline__ void store_weights(const UpdateArgs& a, const DeviceStep& step,
                                              const Table& table, const Chunk& chunk, u32 dim,
                                              const Row& weights, u64 at, u32 strip) {
  if constexpr (ROW_TYPE != 2) {
    store_strip<ROW_TYPE>(weights, table.weights, at, dim - strip * STRIP);
    return;
  }
  const u64 stream = static_cast<u64>(step.number) << 32 | chunk.table;
  const u64 row = table.row_numbers != nullptr ? table.row_numbers[chunk.row] : chunk.row;
  bf16* base = static_cast<bf16*>(table.weights) + at;
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
    const u32 column = column_of(v), element = strip * STRIP + column;
    // Eight elements share four words.
    const u64 index = row * ((dim + 7) / 8) + element / 8;
    const u32x4 random = random_bits(a.seed, stream, index);
    const u32 words[4] = {random.x, random.y, random.z, random.w};
    if constexpr (ELEMENTS == 8) {
      u32 bits[8];
#pragma unroll
      for (u32 e = 0; e < 8; e++) {
        bits[e] = to_bf16_stochastic(weights.x[v][e % ELEMENTS], words[e / 2] >> 16 * (e % 2)).bits;
      }
      store_eight(base + column, bits);
    } else if (element < dim) {
      const u32 which = element % 8, pair = which / 2;
      const u32 word = pair == 0   ? random.x
                       : pair == 1 ? random.y
                       : pair == 2 ? random.z
                                   : random.w;
      base[column] = to_bf16_stochastic(weights.x[v][0], word >> 16 * (which % 2));
    }
  }
}

// Takes one step on a strip of the row. `mean` is the mean of the whole row's squares, for the
// row-wise optimiser.
__device__ __forceinline__ void step_strip(const UpdateArgs& a, const DeviceStep& step,
                                           const Table& table, const Chunk& chunk, u32 dim,
                                           u32 strip, const Row& gradient, float mean) {
  const u32 columns = dim - strip * STRIP;
  const u64 at = static_cast<u64>(chunk.row) * dim + strip * STRIP;
  Row weights = load_strip<ROW_TYPE>(table.weights, at, columns);
  float rate = 0.0f;
  if constexpr (HL_OPTIMIZER == HL_ROWWISE_ADAGRAD) {
    float accumulator = table.first[chunk.row];
    rate = rowwise_rate(accumulator, mean, step.learning_rate, a.constants.epsilon);
    // All lanes have read before one writes.
    __syncwarp(group_mask());
    if (threadIdx.x % LANES == 0 && strip + 1 == num_strips(dim)) {
      table.first[chunk.row] = accumulator;
    }
  }
  Row first = zeros(), second = zeros();
  if constexpr (element_states<HL_OPTIMIZER> >= 1) {
    first = load_strip<0>(table.first, at, columns);
  }
  if constexpr (element_states<HL_OPTIMIZER> >= 2) {
    second = load_strip<0>(table.second, at, columns);
  }
#pragma unroll
  for (u32 v = 0; v < VECTORS; v++) {
#pragma unroll
    for (u32 e = 0; e < ELEMENTS; e++) {
      update<HL_OPTIMIZER>(weights.x[v][e], first.x[v][e], second.x[v][e], gradient.x[v][e],
                           a.constants, step, rate);
    }
  }
  store_weights(a, step, table, chunk, dim, weights, at, strip);
  if constexpr (element_states<HL_OPTIMIZER> >= 1) {
    store_strip<0>(first, table.first, at, columns);
  }
  if constexpr (element_states<HL_OPTIMIZER> >= 2) {
    store_strip<0>(second, table.second, at, columns);
  }
}

// Gives the summed gradient of a whole row away: an optimiser step, or a copy.
__device__ __forceinline__ void finish_strip(const UpdateArgs& a, const DeviceStep& step,
                                             const Table& table, const Chunk& chunk, u32 dim,
                                             u32 strip, const Row& gradient, float mean) {
#if SINK == 0
  if ((table.flags & ROWS_HIDDEN) != 0) {
    // Its number among the table's rows: the author's own step comes after.
    const u32 number = a.row_numbers[chunk.begin] - a.row_numbers[table.first_entry];
    store_strip<0>(gradient, table.weights, static_cast<u64>(number) * dim + strip * STRIP,
                   dim - strip * STRIP);
    return;
  }
  step_strip(a, step, table, chunk, dim, strip, gradient, mean);
#else
  const u32 to = a.destinations[a.row_numbers[chunk.begin]];
  if (to == NOWHERE) {
    return;
  }
  const bool is_frequent = (to & IN_FREQUENT) != 0;
  if (is_frequent && strip == 0 && threadIdx.x % LANES == 0) {
    a.frequent[table.first_touched + chunk.row] = from_float<Frequent>(1.0f);
  }
  const u64 at = static_cast<u64>(to & ~IN_FREQUENT) + strip * STRIP;
  if (is_frequent) {
    store_strip<FREQUENT_TYPE>(gradient, a.frequent, at, dim - strip * STRIP);
  } else {
    store_strip<SLOT_TYPE>(gradient, a.to_owners, at, dim - strip * STRIP);
  }
#endif
}

__device__ __forceinline__ DeviceStep this_step(const UpdateArgs& a) {
  return a.device_step != nullptr ? *a.device_step : a.step;
}

// Whether the whole row's gradient is needed before its first strip's step.
#define NEEDS_MEAN (SINK == 0 && HL_OPTIMIZER == HL_ROWWISE_ADAGRAD)

// The mean of the squares of the row whose strips `strip_of` gives; `gradient` is the first, and
// the only one where DIM is known.
template <typename StripOf>
__device__ __forceinline__ float mean_over_strips(u32 dim, const Row& gradient, StripOf strip_of) {
#if NEEDS_MEAN && DIM != 0
  return mean_of_squares(gradient);
#elif NEEDS_MEAN
  float sum = squares_of_strip(gradient);
  for (u32 strip = 1; strip < num_strips(dim); strip++) {
    sum = __fadd_rn(sum, squares_of_strip(strip_of(strip)));
  }
  return __fdiv_rn(sum, static_cast<float>(dim));
#else
  return 0.0f;
#endif
}

// Whether this group is the last of `all` to come here. What the others have written by then is
// seen by it. The counter is 0 before the first and after the last.
__device__ __forceinline__ bool is_last_of(u32* counter, u32 all) {
  u32 before = 0;
  // All lanes have written.
  __syncwarp(group_mask());
  if (threadIdx.x % LANES == 0) {
    __threadfence();
    before = atomicAdd(counter, 1u);
    __threadfence();
    if (before + 1 == all) {
      store_relaxed(counter, 0);
    }
  }
  before = __shfl_sync(group_mask(), before, 0, LANES);
  // No lane reads before the fence.
  __syncwarp(group_mask());
  return before + 1 == all;
}

// The partial sums of chunks `first .. last`, added in order.
__device__ __forceinline__ Row sum_partials(const UpdateArgs& a, const LongRow& row, u32 first,
                                            u32 last, u32 columns, u32 strip) {
  Row sum = zeros();
#pragma unroll 4
  for (u32 chunk = first; chunk < last; chunk++) {
    const u64 at = row.place_of(chunk) * a.partial_stride + strip * STRIP;
    add(sum, load_strip<0>(a.partials, at, columns));
  }
  return sum;
}

// The sums of runs, which lie where those of their first chunks did, added in order.
__device__ __forceinline__ Row sum_runs(const UpdateArgs& a, const LongRow& row, u32 columns,
                                        u32 strip) {
  Row sum = zeros();
  for (u32 run = 0; run < RUNS; run++) {
    const u32 first = row.first_of(run), is_empty = first == row.first_of(run + 1);
    add(sum, is_empty ? zeros() : sum_partials(a, row, first, first + 1, columns, strip));
  }
  return sum;
}

// Keeps the sum of a chunk of a long row, and adds up its run where that was the last of it.
// Whether the whole row is then left to this group.
__device__ __forceinline__ bool keep_partial(const UpdateArgs& a, const Table& table, u32 dim,
                                             const Chunk& chunk, const LongRow& row) {
  const u32 index = (chunk.begin - row.begin) / CHUNK, run = row.run_of(index);
  const u32 first = row.first_of(run), last = row.first_of(run + 1);
  for (u32 strip = 0; strip < num_strips(dim); strip++) {
    const Row sum = sum_entries(a, table, chunk, dim - strip * STRIP, strip);
    const u64 to = row.place_of(index) * a.partial_stride + strip * STRIP;
    store_strip<0>(sum, a.partials, to, dim - strip * STRIP);
  }
  if (!is_last_of(a.kept_sums + row.place_of(first), last - first)) {
    return false;
  }
  for (u32 strip = 0; strip < num_strips(dim); strip++) {
    const Row sum = sum_partials(a, row, first, last, dim - strip * STRIP, strip);
    const u64 to = row.place_of(first) * a.partial_stride + strip * STRIP;
    store_strip<0>(sum, a.partials, to, dim - strip * STRIP);
  }
  return is_last_of(a.ended_runs + row.number, row.chunks < RUNS ? row.chunks : RUNS);
}

// A chunk that is a whole row, or one of the row `number` of those that have several.
__device__ __forceinline__ void update_chunk(const UpdateArgs& a, const DeviceStep& step,
                                             const Chunk& chunk, bool is_long, u32 number) {
  const Table table = a.tables[chunk.table];
  const u32 dim = DIM == 0 ? table.dim : DIM;
  LongRow row = {number, 0, 0};
  if (is_long) {
    row.begin = a.long_starts[number];
    row.chunks = (a.long_ends[number] - row.begin + CHUNK - 1) / CHUNK;
    if (!keep_partial(a, table, dim, chunk, row)) {
      return;
    }
  }
  const auto strip_of = [&](u32 strip) {
    const u32 columns = dim - strip * STRIP;
    return is_long ? sum_runs(a, row, columns, strip)
                   : sum_entries(a, table, chunk, columns, strip);
  };
  Row gradient = strip_of(0);
  const float mean = mean_over_strips(dim, gradient, strip_of);
  for (u32 strip = 0; strip < num_strips(dim); strip++) {
    gradient = strip == 0 ? gradient : strip_of(strip);
    finish_strip(a, step, table, chunk, dim, strip, gradient, mean);
  }
}

// Asks for what this lane's chunk, if it has one, begins with: the first gradient, and where it is
// a whole row that moves, the row.
__device__ __forceinline__ void prefetch_chunk(const UpdateArgs& a, const Chunk& mine,
                                               bool is_row) {
  u64 gradient = 0, weights = 0, first = 0;
  if (mine.end > mine.begin) {
    const Table& table = a.tables[mine.table];
    const u64 row = static_cast<u64>(mine.row) * DIM;
#if SOURCE == 1
    const u64 element = a.values[mine.begin];
    const bool is_plain = true;
#else
    const u64 element = a.values[mine.begin] * a.stride + table.first_column;
    const bool is_plain = staged_tables(a.staged)[mine.table].mode == 0;
#endif
    if (is_plain) {
      gradient = reinterpret_cast<u64>(static_cast<const Element<VECTOR_TYPE>*>(a.gradients) +
                                       element);
    }
    if (SINK == 0 && is_row && (table.flags & ROWS_HIDDEN) == 0) {
      weights = reinterpret_cast<u64>(static_cast<const Element<ROW_TYPE>*>(table.weights) + row);
      first = element_states<HL_OPTIMIZER> >= 1 ? reinterpret_cast<u64>(table.first + row) : 0;
    }
  }
  prefetch_rows<CHUNKS_AT_ONCE>(gradient, sizeof(Element<VECTOR_TYPE>));
  if constexpr (SINK == 0) {
    prefetch_rows<CHUNKS_AT_ONCE>(weights, sizeof(Element<ROW_TYPE>));
  }
  if constexpr (SINK == 0 && element_states<HL_OPTIMIZER> >= 1) {
    prefetch_rows<CHUNKS_AT_ONCE>(first, sizeof(float));
  }
}

// A warp reads the numbers of eight chunks at once, one by each of its first lanes; its groups then
// take turns.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) update_chunks(const UpdateArgs a) {
  const u32 lane = threadIdx.x % 32, group = lane / LANES;
  const u32 num_chunks = a.totals[0], num_warps = gridDim.x * WARPS;
  const DeviceStep step = this_step(a);
  if (step.skip != 0) {
    return;
  }
  for (u32 base = (blockIdx.x * WARPS + threadIdx.x / 32) * CHUNKS_AT_ONCE; base < num_chunks;
       base += num_warps * CHUNKS_AT_ONCE) {
    Chunk mine = {0, 0, 0, 0};
    bool is_long = false;
    u32 number = 0;
    if (lane < CHUNKS_AT_ONCE && base + lane < num_chunks) {
      const u32 begin = a.chunk_starts[base + lane];
      is_long = (begin & CHUNK_OF_LONG) != 0;
      number = a.chunk_ends[base + lane];
      mine.begin = begin & CHUNK_ENTRY;
      mine.end = is_long ? min(mine.begin + CHUNK, a.long_ends[number]) : number;
      mine.table = a.tile_tables[mine.begin >> TILE_LOG2];
      mine.row = a.keys[mine.begin];
    }
    if constexpr (DIM != 0) {
      prefetch_chunk(a, mine, !is_long);
    }
    const u32 longs = __ballot_sync(ALL_LANES, is_long);
    for (u32 k = 0; k < CHUNKS_AT_ONCE; k += GROUPS) {
      const u32 source = (k + group) % 32;
      Chunk chunk;
      chunk.begin = __shfl_sync(ALL_LANES, mine.begin, source);
      chunk.end = __shfl_sync(ALL_LANES, mine.end, source);
      chunk.table = __shfl_sync(ALL_LANES, mine.table, source);
      chunk.row = __shfl_sync(ALL_LANES, mine.row, source);
      const u32 number_of_long = __shfl_sync(ALL_LANES, number, source);
      if (k + group < CHUNKS_AT_ONCE && base + k + group < num_chunks) {
        update_chunk(a, step, chunk, (longs >> source & 1) != 0, number_of_long);
      }
    }
  }
}

// The table whose replica has row `row` of all replicas, counted in the order of tables.
__device__ __forceinline__ u32 table_of_frequent(const UpdateArgs& a, u32 row) {
  u32 low = 0, high = a.num_tables;
  while (low + 1 < high) {
    const u32 middle = (low + high) / 2;
    if (a.tables[middle].first_touched <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The frequent rows that occurred on any rank, from the block that all ranks have added up: a group
// a row.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) update_frequent(const UpdateArgs a) {
  const DeviceStep step = this_step(a);
  if (step.skip != 0) {
    return;
  }
  const u32 group = (blockIdx.x * BLOCK + threadIdx.x) / LANES,
            num_groups = gridDim.x * (BLOCK / LANES);
  for (u32 row = group; row < a.num_frequent; row += num_groups) {
    if (to_float(a.frequent[row]) == 0.0f) {
      continue;
    }
    Chunk chunk = {0, 0, table_of_frequent(a, row), 0};
    const Table table = a.tables[chunk.table];
    chunk.row = row - table.first_touched;
    const u32 dim = DIM == 0 ? table.dim : DIM;
    const u64 first = table.first_gradient + static_cast<u64>(chunk.row) * dim;
    const auto strip_of = [&](u32 strip) {
      return load_strip<FREQUENT_TYPE>(a.frequent, first + strip * STRIP, dim - strip * STRIP);
    };
    Row gradient = strip_of(0);
    const float mean = mean_over_strips(dim, gradient, strip_of);
    for (u32 strip = 0; strip < num_strips(dim); strip++) {
      gradient = strip == 0 ? gradient : strip_of(strip);
#if SINK == 0
      step_strip(a, step, table, chunk, dim, strip, gradient, mean);
#endif
    }
  }
}
