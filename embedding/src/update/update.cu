// Update: the gradients of each row of the batch, summed in a fixed order, and one step of the
// optimiser on the row.
//
// Rows' entries are cut into chunks of at most 32 (what ranks send, as many as there are ranks),
// counted from the row's first. `update_chunks`: a group of lanes sums a chunk, entry after entry;
// of a row with one chunk it takes the step at once, else it keeps the partial sum. `update_longs`:
// a block adds the partial sums of one row: eight runs of neighbours, then the runs, each in order.
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
  const u32* chunk_ends;
  const u32* long_firsts;
  const u32* long_ends;
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

// Where the partial sum of a chunk lies: two places for every CHUNK entries. Of two chunks of long
// rows that start within so many entries, one ends its row and the other starts the next.
__device__ __forceinline__ u64 partial_of(u32 begin, bool starts_row) {
  return static_cast<u64>(begin / CHUNK) * 2 + (starts_row ? 1 : 0);
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

// A chunk that is a whole row.
__device__ __forceinline__ void update_row(const UpdateArgs& a, const DeviceStep& step,
                                           const Chunk& chunk) {
  const Table table = a.tables[chunk.table];
  const u32 dim = DIM == 0 ? table.dim : DIM;
  const auto strip_of = [&](u32 strip) {
    return sum_entries(a, table, chunk, dim - strip * STRIP, strip);
  };
  Row gradient = strip_of(0);
  const float mean = mean_over_strips(dim, gradient, strip_of);
  for (u32 strip = 0; strip < num_strips(dim); strip++) {
    gradient = strip == 0 ? gradient : strip_of(strip);
    finish_strip(a, step, table, chunk, dim, strip, gradient, mean);
  }
}

// A chunk of a row that has several.
__device__ __forceinline__ void keep_partial(const UpdateArgs& a, const Chunk& chunk,
                                             bool starts_row) {
  const Table table = a.tables[chunk.table];
  const u32 dim = DIM == 0 ? table.dim : DIM;
  for (u32 strip = 0; strip < num_strips(dim); strip++) {
    const Row sum = sum_entries(a, table, chunk, dim - strip * STRIP, strip);
    const u64 to = partial_of(chunk.begin, starts_row) * a.partial_stride + strip * STRIP;
    store_strip<0>(sum, a.partials, to, dim - strip * STRIP);
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
// take turns. Neighbouring chunks go to neighbouring warps: those of a frequent row are full, stand
// side by side, and would keep one warp long after the others have ended.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) update_chunks(const UpdateArgs a) {
  const u32 lane = threadIdx.x % 32, group = lane / LANES;
  const u32 num_chunks = a.totals[0], num_warps = gridDim.x * WARPS;
  const DeviceStep step = this_step(a);
  if (step.skip != 0) {
    return;
  }
  for (u32 first = blockIdx.x * WARPS + threadIdx.x / 32; first < num_chunks;
       first += num_warps * CHUNKS_AT_ONCE) {
    Chunk mine = {0, 0, 0, 0};
    const u32 number = first + lane * num_warps;
    if (lane < CHUNKS_AT_ONCE && number < num_chunks) {
      mine.begin = a.chunk_starts[number];
      mine.end = a.chunk_ends[number];
      mine.table = a.tile_tables[(mine.begin & CHUNK_ENTRY) >> TILE_LOG2];
      mine.row = a.keys[mine.begin & CHUNK_ENTRY];
    }
    if constexpr (DIM != 0) {
      const Chunk chunk = {mine.begin & CHUNK_ENTRY, mine.end, mine.table, mine.row};
      prefetch_chunk(a, chunk, (mine.begin & CHUNK_OF_LONG) == 0);
    }
    for (u32 k = 0; k < CHUNKS_AT_ONCE; k += GROUPS) {
      const u32 source = (k + group) % 32;
      const u32 begin = __shfl_sync(ALL_LANES, mine.begin, source);
      Chunk chunk;
      chunk.begin = begin & CHUNK_ENTRY;
      chunk.end = __shfl_sync(ALL_LANES, mine.end, source);
      chunk.table = __shfl_sync(ALL_LANES, mine.table, source);
      chunk.row = __shfl_sync(ALL_LANES, mine.row, source);
      if (k + group >= CHUNKS_AT_ONCE || first + (k + group) * num_warps >= num_chunks) {
        continue;
      }
      if ((begin & CHUNK_OF_LONG) == 0) {
        update_row(a, step, chunk);
      } else {
        keep_partial(a, chunk, (begin & CHUNK_OF_START) != 0);
      }
    }
  }
}

// The partial sums of chunks `first .. last` (of `all` of the row), added in order.
__device__ __forceinline__ Row sum_partials(const UpdateArgs& a, u32 begin, u32 first, u32 last,
                                            u32 columns, u32 strip) {
  Row sum = zeros();
#pragma unroll 4
  for (u32 chunk = first; chunk < last; chunk++) {
    const u64 partial = partial_of(begin + chunk * CHUNK, chunk == 0);
    add(sum, load_strip<0, true>(a.partials, partial * a.partial_stride + strip * STRIP, columns));
  }
  return sum;
}

// One long row at a time: each of the first RUNS groups adds a run, then the first group adds the
// runs.
__device__ __forceinline__ Row sum_long(const UpdateArgs& a, float* runs, u32 begin, u32 chunks,
                                        u32 columns, u32 strip) {
  const u32 group = threadIdx.x / LANES;
  // The last strip's readers are done.
  __syncthreads();
  for (u32 run = group; run < RUNS; run += BLOCK / LANES) {
    const u32 first = chunks * run / RUNS, last = chunks * (run + 1) / RUNS;
    store_strip<0>(sum_partials(a, begin, first, last, columns, strip), runs, run * STRIP, STRIP);
  }
  __syncthreads();
  Row sum = zeros();
  if (group == 0) {
    for (u32 run = 0; run < RUNS; run++) {
      add(sum, load_strip<0>(runs, run * STRIP, STRIP));
    }
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) update_longs(const UpdateArgs a) {
  __shared__ __align__(16) float runs[RUNS * STRIP];
  const u32 num_longs = a.totals[1];
  const DeviceStep step = this_step(a);
  if (step.skip != 0) {
    return;
  }
  for (u32 number = blockIdx.x; number < num_longs; number += gridDim.x) {
    const u32 first = a.long_firsts[number], chunks = a.long_ends[number] - first;
    Chunk chunk;
    chunk.begin = a.chunk_starts[first] & CHUNK_ENTRY;
    chunk.end = chunk.begin;
    chunk.table = a.tile_tables[chunk.begin >> TILE_LOG2];
    chunk.row = a.keys[chunk.begin];
    const Table table = a.tables[chunk.table];
    const u32 dim = DIM == 0 ? table.dim : DIM;
    const auto strip_of = [&](u32 strip) {
      return sum_long(a, runs, chunk.begin, chunks, dim - strip * STRIP, strip);
    };
    Row gradient = strip_of(0);
    // Note: all warps sum strips, for their barriers; only the first group has the sums and takes
    // the step.
    float mean = 0.0f;
    if (DIM == 0 || threadIdx.x < LANES) {
      mean = mean_over_strips(dim, gradient, strip_of);
    }
    if (DIM == 0 && NEEDS_MEAN) {
      gradient = strip_of(0);
    }
    for (u32 strip = 0; strip < num_strips(dim); strip++) {
      gradient = strip == 0 ? gradient : strip_of(strip);
      if (threadIdx.x < LANES) {
        finish_strip(a, step, table, chunk, dim, strip, gradient, mean);
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
