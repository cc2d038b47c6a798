// The sum of a bag in parts, where owners pool bags: see hybrid/bags.rs. Parts are added in the
// tree over their leaves, as `sum_tree` in update/simd.rs adds them.

#define NO_LEAF 0xffffffffu
// Parts that wait at a time: of 1,024 at most, and one that has just come.
#define TREE_DEPTH 12

// The leaf of each part.
struct Leaves {
  const u32* of;
  u32 num_parts;
};

// The leaf of local row `row` of `table`.
__device__ __forceinline__ u32 leaf_of_row(const Leaves& leaves, const Table& table, u32 row) {
  // Of remainders, which are small: a division of 64 bits is a call, around which registers spill.
  const u32 parts = leaves.num_parts;
  const u32 place = (row % parts) * (table.part_step % parts) + table.part_first % parts;
  return leaves.of[place % parts];
}

// Level of the smallest subtree that holds two leaves.
__device__ __forceinline__ int height(u32 one, u32 other) {
  return 32 - __clz(static_cast<int>(one ^ other));
}

// The least leaf of entries `begin .. end` that is not below `least`. The lanes of a group share
// the search.
template <typename LeafOf>
__device__ __forceinline__ u32 next_leaf(u32 begin, u32 end, u32 least, LeafOf leaf_of) {
  u32 next = NO_LEAF;
  for (u32 entry = begin + threadIdx.x % LANES; entry < end; entry += LANES) {
    const u32 leaf = leaf_of(entry);
    next = leaf >= least && leaf < next ? leaf : next;
  }
#pragma unroll
  for (u32 step = LANES / 2; step > 0; step /= 2) {
    const u32 other = __shfl_xor_sync(group_mask(), next, step);
    next = other < next ? other : next;
  }
  return next;
}

// The sum over the leaves that entries `begin .. end` stand at, of what `sum_of` gives for each.
template <typename LeafOf, typename SumOf>
__device__ __forceinline__ Row sum_tree(u32 begin, u32 end, LeafOf leaf_of, SumOf sum_of) {
  Row sums[TREE_DEPTH];
  u32 leaves[TREE_DEPTH], depth = 0;
  sums[0] = zeros();
  for (u32 leaf = next_leaf(begin, end, 0, leaf_of); leaf != NO_LEAF;
       leaf = next_leaf(begin, end, leaf + 1, leaf_of)) {
    while (depth >= 2 &&
           height(leaves[depth - 2], leaves[depth - 1]) < height(leaves[depth - 1], leaf)) {
      add(sums[depth - 2], sums[depth - 1]);
      leaves[depth - 2] = leaves[depth - 1];
      depth--;
    }
    sums[depth] = sum_of(leaf);
    leaves[depth] = leaf;
    depth++;
  }
  for (; depth >= 2; depth--) {
    add(sums[depth - 2], sums[depth - 1]);
  }
  return sums[0];
}

// A strip of the local rows `rows[begin .. end]` of `table`, added up in parts, and in each part in
// the order of the bag; times their weights, where there are any. A row that there is not counts
// as row 0: who found it has raised the flag.
__device__ __forceinline__ Row sum_in_parts(const Leaves& leaves, const Table& table, u32 dim,
                                            const u32* rows, const float* weights, u32 begin,
                                            u32 end, u32 strip) {
  const auto row_at = [&](u32 entry) { return rows[entry] < table.rows ? rows[entry] : 0; };
  const auto leaf_of = [&](u32 entry) { return leaf_of_row(leaves, table, row_at(entry)); };
  return sum_tree(begin, end, leaf_of, [&](u32 leaf) {
    Row sum = zeros();
    bool is_first = true;
    for (u32 entry = begin; entry < end; entry++) {
      if (leaf_of(entry) != leaf) {
        continue;
      }
      const u64 at = static_cast<u64>(row_at(entry)) * dim + strip * STRIP;
      Row row = load_strip<ROW_TYPE>(table.weights, at, dim - strip * STRIP);
      if (weights != nullptr) {
        scale(row, weights[entry]);
      }
      // Note: not added to zero, so that a bag of one row is that row, a negative zero included.
      if (is_first) {
        sum = row, is_first = false;
      } else {
        add(sum, row);
      }
    }
    return sum;
  });
}
