// What all kernels of the tables share: where tables and their entries lie, the staged batch, the
// flag of errors.
//
// The ids of a batch are *entries*. Those of table t stand from `first_entry` on, which is a
// multiple of a tile, so that a tile belongs to one table; how many there are is known on the
// device only. Nothing here is larger than its capacity.

// Elements of a row, where all tables have the same; 0: each table says, and single elements are
// accessed.
#ifndef DIM
#define DIM 0
#endif
// Element type of the rows: 0 f32, 1 f16, 2 bf16.
#ifndef ROW_TYPE
#define ROW_TYPE 0
#endif
// Element type of the pooled vectors and of their gradients, likewise.
#ifndef VECTOR_TYPE
#define VECTOR_TYPE 0
#endif

#define TILE 4096u
#define TILE_LOG2 12
#define BLOCK 256u
#define WARPS (BLOCK / 32)
#define ALL_LANES 0xffffffffu

// Entries of a chunk: what one group of lanes sums.
#define CHUNK 32u
// Marks of a chunk, next to its first entry: its row has several chunks; it is the first of them.
#define CHUNK_OF_LONG 0x80000000u
#define CHUNK_OF_START 0x40000000u
#define CHUNK_ENTRY 0x3fffffffu

// Of a table.
#define POOLING_MEAN 1u
// Its rows are the author's: `weights` is a staging matrix of f32, one vector per entry or one
// gradient per unique row.
#define ROWS_HIDDEN 2u
// As a slice's ids see it: owners pool its bags. A key is that of a bag at an owner.
#define BAGS_TO_OWNERS 4u
// Of a table's part of a batch.
#define MODE_BAGS 1u
#define MODE_WEIGHTED 2u
#define MODE_NEEDS_REST 4u

// Among several ranks, of a row's gradient: it goes to the block of frequent gradients, else to an
// element of what goes to owners; or nowhere, as its owner's slot was full.
#define IN_FREQUENT 0x80000000u
#define NOWHERE 0x7fffffffu

// One table. The same layout as `DeviceTable` in cuda/layout.rs, as are the structs below.
struct Table {
  void* weights;
  float* first;
  float* second;
  // Per row its key in the sort; null where that is the row itself.
  const u32* home;
  // Among several ranks, of rows that are rounded stochastically: per row that lies here, which row
  // of the model's table it is. Null where that is its place.
  const u32* row_numbers;
  u32 rows;
  u32 dim;
  u32 first_column;
  u32 first_entry;
  // Where its ids, offsets and weights of ids lie in the staged batch, in words.
  u32 ids;
  u32 offsets;
  u32 factors;
  u32 first_tile;
  u32 num_tiles;
  u32 flags;
  // Among several ranks: rows of the replica, whose keys come first, and their places in the block
  // of frequent gradients.
  u32 num_frequent;
  u32 first_touched;
  u32 first_gradient;
  // Of a table whose bags owners pool; 0 of others. Where bags are requested (BAGS_TO_OWNERS), row
  // r is that of owner (r + part_first) mod part_step, or of owner part_first where part_step is 1.
  // Where rows lie, local row r stands in part r · part_step + part_first of its bag's sum, modulo
  // the parts.
  u32 part_step;
  u32 part_first;
  // Bits of its keys in the sort.
  u32 key_bits;
};

// The owner of row `row` of a table whose bags owners pool, as a slice's ids see it, and which of
// its rows that is.
__device__ __forceinline__ u32 pooling_owner(const Table& table, u32 row) {
  const bool is_whole = table.part_step == 1;
  return is_whole ? table.part_first : (row + table.part_first) % table.part_step;
}

__device__ __forceinline__ u32 pooled_row(const Table& table, u32 row) {
  return row / table.part_step;
}

// What a staged batch begins with; one `StagedTable` per table follows.
struct Staged {
  u32 num_samples;
  // Number of the batch; the rest of it, which seldom is copied, begins with the same.
  u32 generation;
  u32 rest;
  u32 unused;
};

struct StagedTable {
  u32 num_ids;
  u32 mode;
};

__device__ __forceinline__ const StagedTable* staged_tables(const u32* staged) {
  return reinterpret_cast<const StagedTable*>(staged + sizeof(Staged) / sizeof(u32));
}

// Errors: the smallest of kind << 56 | table << 40 | where, so that which one is reported does not
// depend on the schedule.
#define ERROR_ID_OUT_OF_RANGE 1ull
#define ERROR_NOT_COPIED 2ull
#define ERROR_SLOT_FULL 3ull
#define ERROR_ASKED_ROW 4ull
#define ERROR_SLOT_ELEMENTS 5ull

struct Flags {
  u64 first;
  u64 detail;
};

__device__ __forceinline__ void raise(Flags* flags, u64 kind, u32 table, u64 where, u64 detail) {
  const u64 error = kind << 56 | static_cast<u64>(table) << 40 | where;
  if (atomicMin(&flags->first, error) > error) {
    flags->detail = detail;
  }
}
