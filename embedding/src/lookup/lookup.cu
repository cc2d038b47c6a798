// Lookup: the rows of each bag, pooled in the order of the bag, for all tables in one launch.
//
// A warp takes 32 neighbouring samples of one table. Its lanes read their ids at once; then each
// group of lanes copies rows, AT_ONCE of them on their way at a time. Bags are summed by their
// group.

// Where rows come from: 0 the tables, by staged id; 1 from replicas and what owners have sent, by
// the origin of each id.
#ifndef SOURCE
#define SOURCE 0
#endif
// Of source 1: the element type of what owners have sent.
#ifndef SLOT_TYPE
#define SLOT_TYPE 0
#endif

// An origin that is a row of the replica; else the element at which a received vector starts.
#define IN_REPLICA 0x80000000u

// `LookupArgs` in lookup/cuda.rs.
struct LookupArgs {
  const Table* tables;
  const u32* staged;
  // Per entry: where its vector lies (source 1).
  const u32* origins;
  const void* recv_rows;
  void* vectors;
  // Of tables whose bags owners pool: the leaf of each part (source 0) or owner (source 1).
  const u32* leaves;
  u64 stride;
  u32 num_tables;
  u32 max_samples;
  // Source 0: parts; source 1: elements of one owner's slot.
  u32 num_parts;
};

// A strip of the row that `id` says: of the table, of the replica, of what was received, or of the
// staging matrix.
__device__ __forceinline__ Strip load_entry(const LookupArgs& a, const Table& table, u32 dim,
                                            u32 id, u32 strip) {
  const bool is_hidden = (table.flags & ROWS_HIDDEN) != 0;
  u32 row = id;
  if (!is_hidden) {
    row = SOURCE == 1 ? id & ~IN_REPLICA : (id < table.rows ? id : 0);
  }
  const void* base = table.weights;
  u64 first = static_cast<u64>(row) * dim;
  u32 type = is_hidden ? 0 : ROW_TYPE;
  if (SOURCE == 1 && (id & IN_REPLICA) == 0) {
    base = a.recv_rows, first = id, type = SLOT_TYPE;
  }
  constexpr int RECEIVED = SOURCE == 1 ? SLOT_TYPE : 0;
  return strip_of<ROW_TYPE, RECEIVED>(base, first + strip * STRIP, type, dim - strip * STRIP);
}

// Its numbers.
__device__ __forceinline__ Row numbers_of(const Strip& strip) {
  return numbers<ROW_TYPE, SLOT_TYPE>(strip);
}

// 32 samples with one id each, `mine` this lane's.
__device__ __forceinline__ void copy_rows(const LookupArgs& a, const Table& table, u32 dim,
                                          u32 mine, u32 first, u32 count) {
  const u32 group = threadIdx.x % 32 / LANES;
  for (u32 strip = 0; strip < num_strips(dim); strip++) {
    const u32 column = table.first_column + strip * STRIP;
    // Note: unrolled, more rows would be on their way than registers are.
#pragma unroll 1
    for (u32 k = 0; k < 32 / GROUPS; k += AT_ONCE) {
      Strip rows[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        const u32 sample = (k + i) * GROUPS + group;
        // Note: what lies behind the last sample is its first row again, and goes nowhere.
        const u32 id = __shfl_sync(ALL_LANES, mine, sample < count ? sample : 0);
        rows[i] = load_entry(a, table, dim, id, strip);
      }
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; i++) {
        const u32 sample = (k + i) * GROUPS + group;
        if (sample < count) {
          store_strip<VECTOR_TYPE>(numbers_of(rows[i]), a.vectors,
                                   (first + sample) * a.stride + column, dim - strip * STRIP);
        }
      }
    }
  }
}

// One bag: entries `begin .. end` of the table.
__device__ __forceinline__ Row pool_bag(const LookupArgs& a, const Table& table, u32 dim,
                                        const u32* ids, const float* weights, u32 begin, u32 end,
                                        u32 strip) {
  const bool is_hidden = (table.flags & ROWS_HIDDEN) != 0;
  Row sum = zeros();
#pragma unroll 1
  for (u32 first = begin; first < end; first += AT_ONCE) {
    Strip rows[AT_ONCE];
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      if (first + i < end) {
        rows[i] = load_entry(a, table, dim, is_hidden ? first + i : ids[first + i], strip);
      }
    }
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      if (first + i < end) {
        Row row = numbers_of(rows[i]);
        if (weights != nullptr) {
          scale(row, weights[first + i]);
        }
        if (first + i == begin) {
          // Note: not added to zero, so that a bag of one row is that row, a negative zero
          // included.
          sum = row;
        } else {
          add(sum, row);
        }
      }
    }
  }
  if ((table.flags & POOLING_MEAN) != 0 && end > begin) {
    scale(sum, 1.0f / static_cast<float>(end - begin));
  }
  return sum;
}

// The same of a table whose bags owners pool: the sum of what they sent, or would send.
__device__ __forceinline__ Row add_parts(const LookupArgs& a, const Table& table, u32 dim,
                                         const u32* ids, const float* weights, u32 begin, u32 end,
                                         u32 strip) {
#if SOURCE == 1
  const auto leaf_of = [&](u32 entry) { return a.leaves[ids[entry] / a.num_parts]; };
  Row sum = sum_tree(begin, end, leaf_of, [&](u32 leaf) {
    u32 entry = begin;
    while (leaf_of(entry) != leaf) {
      entry++;
    }
    return numbers_of(load_entry(a, table, dim, ids[entry], strip));
  });
#else
  const Leaves leaves = {a.leaves, a.num_parts};
  Row sum = sum_in_parts(leaves, table, dim, ids, weights, begin, end, strip);
#endif
  if ((table.flags & POOLING_MEAN) != 0 && end > begin) {
    scale(sum, 1.0f / static_cast<float>(end - begin));
  }
  return sum;
}

// PARTS: of tables whose bags owners pool; else of the others.
template <bool PARTS>
__device__ __forceinline__ void pool_bags(const LookupArgs& a, const Table& table, u32 dim,
                                          const u32* ids, u32 mode, u32 first, u32 count) {
  const u32* offsets = a.staged + table.offsets;
  const float* weights = nullptr;
  if ((mode & MODE_WEIGHTED) != 0) {
    weights = reinterpret_cast<const float*>(a.staged + table.factors);
  }
  for (u32 sample = threadIdx.x % 32 / LANES; sample < count; sample += GROUPS) {
    u32 begin = first + sample, end = begin + 1;
    if ((mode & MODE_BAGS) != 0) {
      end = offsets[begin + 1], begin = offsets[begin];
    }
    for (u32 strip = 0; strip < num_strips(dim); strip++) {
      Row sum;
      if constexpr (PARTS) {
        sum = add_parts(a, table, dim, ids, weights, begin, end, strip);
      } else {
        sum = pool_bag(a, table, dim, ids, weights, begin, end, strip);
      }
      const u64 to = (first + sample) * a.stride + table.first_column + strip * STRIP;
      store_strip<VECTOR_TYPE>(sum, a.vectors, to, dim - strip * STRIP);
    }
  }
}

template <bool PARTS>
__device__ __forceinline__ void lookup_tables(const LookupArgs& a) {
  const Staged* staged = reinterpret_cast<const Staged*>(a.staged);
  const u32 num_samples = staged->num_samples < a.max_samples ? staged->num_samples : a.max_samples;
  const u32 blocks = (a.max_samples + 31) / 32, lane = threadIdx.x % 32;
  const u32 num_warps = gridDim.x * WARPS;
  for (u32 task = blockIdx.x * WARPS + threadIdx.x / 32; task < a.num_tables * blocks;
       task += num_warps) {
    const u32 index = task / blocks, first = task % blocks * 32;
    if (first >= num_samples) {
      continue;
    }
    const Table table = a.tables[index];
    if ((table.part_step != 0) != PARTS) {
      continue;
    }
    const u32 mode = staged_tables(a.staged)[index].mode;
    const u32* ids = SOURCE == 1 ? a.origins + table.first_entry : a.staged + table.ids;
    const u32 count = num_samples - first < 32 ? num_samples - first : 32;
    const u32 dim = DIM == 0 ? table.dim : DIM;
    if (!PARTS && (mode & (MODE_BAGS | MODE_WEIGHTED)) == 0) {
      const bool is_hidden = (table.flags & ROWS_HIDDEN) != 0;
      const u32 mine = is_hidden ? first + lane : lane < count ? ids[first + lane] : 0;
      copy_rows(a, table, dim, mine, first, count);
    } else {
      pool_bags<PARTS>(a, table, dim, ids, mode, first, count);
    }
  }
}

// Resident blocks: for sm_100 rows of two types take more registers than four leave.
#if SOURCE == 1 && SLOT_TYPE != 0 && HL_ARCH >= 1000
#define RESIDENT 3
#define RESIDENT_WITH_PARTS 2
#else
#define RESIDENT 4
#define RESIDENT_WITH_PARTS 4
#endif

extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT) lookup(const LookupArgs a) {
  lookup_tables<false>(a);
}

// A kernel of its own: the parts that wait would take registers from the other.
extern "C" __global__ void __launch_bounds__(BLOCK, RESIDENT_WITH_PARTS)
    lookup_parts(const LookupArgs a) {
  lookup_tables<true>(a);
}
