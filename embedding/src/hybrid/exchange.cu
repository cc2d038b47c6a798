// Among several ranks: what a rank requests of owners, and what an owner receives. What travels
// lies in slots of one size, one per peer; of each slot its beginning travels, a strip as long as
// the host says. The host hears how long strips of a batch must be while the batch is still ahead.
//
// A slot of ids begins with what its source's strips need at most; the number of rows of each table
// follows, and then the local rows, table after table, rising. A slot of vectors (and of gradients,
// on their way back) holds one row for each of them, in the same order, of the element type in
// which they travel. A rank sorts its ids by keys that put frequent rows first, then those of owner
// 0, of owner 1 and so on: so the unique rows of an owner are neighbours.
//
// Of a table whose bags owners pool, keys are those of bags at owners, and in place of rows a slot
// of ids holds bags: how many there are, where each one's rows end, and the rows, bag after bag,
// each as often as the bag has it. A slot of vectors holds one row for each of these bags.

// The element type of vectors in slots: 0 f32, 1 f16, 2 bf16. Gradients take as many bytes.
#ifndef SLOT_TYPE
#define SLOT_TYPE 0
#endif

#define IN_REPLICA 0x80000000u
#define NO_PLACE 0xffffffffu
// `RequestArgs` in hybrid/cuda/launch.rs.
struct RequestArgs {
  const Table* tables;
  const u32* tile_tables;
  const u32* num_entries;
  // The batch as it was staged.
  const u32* staged;
  // Tables × (owners + 1): the first key of each owner's rows, and the end of the last.
  const u32* bases;
  const u32* keys;
  const u32* values;
  const u32* row_numbers;
  const u32* row_starts;
  // Tables × (owners + 1): the number of the first row of each; after those of all tables, its
  // first entry among the table's.
  u32* firsts;
  // Tables × owners × 2: where the rows lie in their owner's slot, and their vectors.
  u32* places;
  u32* ids;
  u32* origins;
  u32* destinations;
  // Per owner, bytes that count in its slot of ids and in its slot of gradients; those of all
  // owners one after the other.
  u32* lengths;
  // Where a proxy asks for its node: what its slots say besides of strips inside the node.
  const u32* inside;
  Flags* flags;
  u32 num_tables;
  u32 num_owners;
  u32 num_tiles;
  u32 slot_words;
  u32 slot_rows;
  u32 slot_elements;
  // Words of a slot of ids that travel.
  u32 strip_words;
  // Words before the numbers of rows: `StripSizes` in hybrid/strips.rs.
  u32 head;
  // From the number of one table's entries to the next.
  u32 entry_stride;
};

// A slot would have to hold so many rows and elements, with those of table `index`.
template <class Args>
__device__ __forceinline__ void raise_full(const Args& a, u32 index, u64 rows, u64 elements) {
  if (rows > a.slot_rows) {
    raise(a.flags, ERROR_SLOT_FULL, index, a.slot_rows, rows);
  } else {
    raise(a.flags, ERROR_SLOT_ELEMENTS, index, a.slot_elements, elements);
  }
}

// The first sorted entry of `table` whose key is not below `key`.
__device__ __forceinline__ u32 entry_at(const RequestArgs& a, const Table& table, u32 count,
                                        u32 key) {
  u32 low = 0, high = count;
  const u32* keys = a.keys + table.first_entry;
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

// The number of the row that starts at sorted entry `entry` of `count`.
__device__ __forceinline__ u32 row_at(const RequestArgs& a, const Table& table, u32 count,
                                      u32 entry) {
  const u32* numbers = a.row_numbers + table.first_entry;
  return count == 0 ? 0 : entry < count ? numbers[entry] : numbers[count - 1] + 1;
}

// Words of a slot of ids that hold `count` rows: of a table whose bags owners pool, in `bags` bags.
__device__ __forceinline__ u64 words_of_rows(const Table& table, u32 count, u32 bags) {
  return table.part_step == 0 || count == 0 ? count : 1ull + bags + count;
}

// One block: how many rows of each table are requested of each owner, and their place in its slot.
extern "C" __global__ void __launch_bounds__(BLOCK) request_bounds(const RequestArgs a) {
  const u32 bounds = a.num_owners + 1;
  for (u32 i = threadIdx.x; i < a.num_tables * bounds; i += BLOCK) {
    const u32 index = i / bounds, count = a.num_entries[a.entry_stride * index];
    const u32 entry = entry_at(a, a.tables[index], count, a.bases[i]);
    a.firsts[i] = row_at(a, a.tables[index], count, entry);
    a.firsts[a.num_tables * bounds + i] = entry;
  }
  __shared__ u32 most_words, most_elements;
  if (threadIdx.x == 0) most_words = 0, most_elements = 0;
  __syncthreads();
  for (u32 owner = threadIdx.x; owner < a.num_owners; owner += BLOCK) {
    u32 rows = 0, elements = 0;
    u32* counts = a.ids + static_cast<u64>(owner) * a.slot_words + a.head;
    for (u32 index = 0; index < a.num_tables; index++) {
      const Table& table = a.tables[index];
      const u32* first = a.firsts + index * bounds + owner;
      const u32* entry = first + a.num_tables * bounds;
      const u32 vectors = first[1] - first[0];
      const u32 count = table.part_step == 0 ? vectors : entry[1] - entry[0];
      const u64 words = words_of_rows(table, count, vectors);
      const u64 numbers = static_cast<u64>(vectors) * table.dim;
      const bool fits = words <= a.slot_rows - rows && numbers <= a.slot_elements - elements;
      u32* place = a.places + 2 * (index * a.num_owners + owner);
      place[0] = fits ? rows : NO_PLACE;
      place[1] = elements;
      counts[index] = fits ? count : 0;
      if (fits) {
        rows += words, elements += numbers;
      } else {
        raise_full(a, index, rows + words, elements + numbers);
      }
    }
    u32 words = a.head + a.num_tables + rows;
    atomicMax(&most_words, words);
    atomicMax(&most_elements, elements);
    if (words > a.strip_words) {
      // It does not travel whole: no row of it does, and the host asks again with longer strips.
      for (u32 index = 0; index < a.num_tables; index++) counts[index] = 0;
      words = a.head + a.num_tables;
    }
    a.lengths[owner] = words * sizeof(u32);
    a.lengths[a.num_owners + owner] = elements * sizeof(Element<SLOT_TYPE>);
  }
  __syncthreads();
  for (u32 owner = threadIdx.x; owner < a.num_owners; owner += BLOCK) {
    u32* head = a.ids + static_cast<u64>(owner) * a.slot_words;
    head[0] = most_words, head[1] = most_elements;
    for (u32 i = 2; i < a.head; i++) head[i] = a.inside[i - 2];
  }
}

// The owner of key `key`, which is no frequent row's: the last one whose rows do not start after
// it.
__device__ __forceinline__ u32 owner_of(const u32* bases, u32 num_owners, u32 key) {
  u32 low = 0, high = num_owners;
  while (low + 1 < high) {
    const u32 middle = (low + high) / 2;
    if (bases[middle] <= key) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Requests the row of sorted entry `entry`, whose bag is number `bag` of those of `owner`.
__device__ __forceinline__ void request_of_bag(const RequestArgs& a, u32 index, const Table& table,
                                               u32 owner, u32 entry, u32 end, u32 bag) {
  const u32 bounds = a.num_owners + 1;
  const u32* first = a.firsts + index * bounds + owner;
  const u32 bags = first[1] - first[0];
  const u32 number = entry - table.first_entry - first[a.num_tables * bounds];
  u32* list = a.ids + static_cast<u64>(owner) * a.slot_words + a.head + a.num_tables +
              a.places[2 * (index * a.num_owners + owner)];
  if (number == 0) {
    list[0] = bags;
  }
  if (entry + 1 == end || a.row_numbers[entry + 1] != a.row_numbers[entry]) {
    list[1 + bag] = number + 1;
  }
  list[1 + bags + number] = pooled_row(table, a.staged[table.ids + a.values[entry]]);
}

// Each sorted entry tells its id where the vector will lie, that of a proxy keeps it; the first of
// each row requests it.
extern "C" __global__ void __launch_bounds__(BLOCK, 4) request_write(const RequestArgs a) {
  for (u32 tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    const u32 end = table.first_entry + a.num_entries[a.entry_stride * index];
    const u32* bases = a.bases + index * (a.num_owners + 1);
    for (u32 entry = tile * TILE + threadIdx.x; entry < (tile + 1) * TILE && entry < end;
         entry += BLOCK) {
      const u32 key = a.keys[entry], row = a.row_numbers[entry];
      const bool is_first = a.row_starts[row] == entry;
      u32 origin = IN_REPLICA | key,
          destination = IN_FREQUENT | (table.first_gradient + key * table.dim);
      if (key >= table.num_frequent) {
        const u32 owner = owner_of(bases, a.num_owners, key);
        const u32 number = row - a.firsts[index * (a.num_owners + 1) + owner];
        const u32* place = a.places + 2 * (index * a.num_owners + owner);
        const bool fits = place[0] != NO_PLACE;
        origin = owner * a.slot_elements + (fits ? place[1] + number * table.dim : 0);
        destination = fits ? origin : NOWHERE;
        if (fits && (table.flags & BAGS_TO_OWNERS) != 0) {
          request_of_bag(a, index, table, owner, entry, end, number);
        } else if (is_first && fits) {
          u32* slot = a.ids + static_cast<u64>(owner) * a.slot_words + a.head + a.num_tables;
          slot[place[0] + number] = key - bases[owner];
        }
      }
      // A proxy hands its node what it asks for in the order of sorted entries.
      a.origins[a.inside == nullptr ? table.first_entry + a.values[entry] : entry] = origin;
      if (is_first) {
        a.destinations[row] = destination;
      }
    }
  }
}

// What the host hears, `Told` in hybrid/strips.rs: `generation` is written last.
struct Told {
  u32 generation;
  // Words and elements, and where nodes merge those inside of nodes.
  u32 lengths[4];
};

__device__ __forceinline__ void tell(Told* told, const u32* lengths, u32 generation) {
  for (u32 i = 0; i < 4; i++) told->lengths[i] = lengths[i];
  __threadfence_system();
  store_release_system(&told->generation, generation);
}

// `MostArgs` in hybrid/cuda/launch.rs.
struct MostArgs {
  // Heads of slots, `stride` words apart.
  const u32* heads;
  u32* most;
  const Staged* staged;
  Told* told;
  u32 count;
  u32 stride;
};

// One thread: the longest strips of so many heads; the host hears of them, where they are those of
// all ranks.
extern "C" __global__ void __launch_bounds__(32) longest_strips(const MostArgs a) {
  if (threadIdx.x != 0) return;
  u32 most[4] = {0, 0, 0, 0};
  for (u32 head = 0; head < a.count; head++) {
    for (u32 i = 0; i < 4; i++) {
      const u32 length = a.heads[head * a.stride + i];
      most[i] = length > most[i] ? length : most[i];
    }
  }
  for (u32 i = 0; i < 4; i++) a.most[i] = most[i];
  if (a.told != nullptr) tell(a.told, most, a.staged->generation);
}

// `ReceivedArgs` in hybrid/cuda/launch.rs.
struct ReceivedArgs {
  const Table* tables;
  const u32* tile_tables;
  const u32* ids;
  // Sources × tables × 3: where the rows lie in the source's slot, their vectors, and their entries
  // among the table's.
  u32* places;
  // Per table.
  u32* num_entries;
  // Sorted, by those who read them; those who write them have `key_lists` and `value_lists`.
  const u32* keys;
  const u32* values;
  KeyLists key_lists;
  KeyLists value_lists;
  // Tables × passes × DIGITS; zeros before.
  u32* histograms;
  void* vectors;
  // Per source, bytes that count in its slot of vectors.
  u32* lengths;
  // The own batch, as it was staged; in page-locked memory, what the host hears of all ranks'.
  const Staged* staged;
  Told* told;
  // Of a proxy: how long strips inside its node must be.
  u32* inside;
  // Likewise: per entry, where its vector lies among those that owners have sent.
  const u32* origins;
  const void* sent;
  // Of tables whose bags owners pool: the leaf of each part.
  const u32* leaves;
  Flags* flags;
  u32 num_tables;
  u32 num_sources;
  u32 num_tiles;
  u32 slot_words;
  u32 slot_rows;
  u32 slot_elements;
  u32 num_parts;
  // Most bags that one source asks for, of a table.
  u32 max_bags;
  // Words before the numbers of rows.
  u32 head;
  // Of the sort.
  u32 num_passes;
};

// The requests of one source, of one table: its rows, the ends of its bags where owners pool them,
// and where the rows are among the table's entries.
struct Requests {
  const u32* rows;
  const u32* ends;
  u32 num_bags;
  u32 first;
  u32 count;
  // Where its vectors lie.
  u32 element;
};

__device__ __forceinline__ Requests requests_of(const ReceivedArgs& a, u32 list,
                                                const Table& table) {
  const u32 source = list / a.num_tables, index = list % a.num_tables;
  const u32* place = a.places + 3 * list;
  const u32 next = source + 1 < a.num_sources ? place[3 * a.num_tables + 2] : a.num_entries[index];
  const u32* words =
      a.ids + static_cast<u64>(source) * a.slot_words + a.head + a.num_tables + place[0];
  Requests found = {words, nullptr, 0, place[2], next - place[2],
                    source * a.slot_elements + place[1]};
  if (table.part_step != 0 && found.count > 0) {
    found.num_bags = words[0];
    found.ends = words + 1;
    found.rows = found.ends + found.num_bags;
  }
  return found;
}

// The end of bag `bag`; what a source claims is not trusted.
__device__ __forceinline__ u32 end_of_bag(const Requests& found, u32 bag) {
  return found.ends[bag] < found.count ? found.ends[bag] : found.count;
}

// The bag that holds row `number`.
__device__ __forceinline__ u32 bag_of(const Requests& found, u32 number) {
  u32 low = 0, high = found.num_bags - 1;
  while (low < high) {
    const u32 middle = (low + high) / 2;
    if (found.ends[middle] <= number) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// One block: where the requests of each source lie, and how long strips of this batch must be, the
// same on all ranks. What a source claims is not trusted.
extern "C" __global__ void __launch_bounds__(BLOCK) received_bounds(const ReceivedArgs a) {
  __shared__ u32 most_words, most_elements;
  if (threadIdx.x == 0) most_words = 0, most_elements = 0;
  __syncthreads();
  for (u32 source = threadIdx.x; source < a.num_sources; source += BLOCK) {
    const u32* slot = a.ids + static_cast<u64>(source) * a.slot_words;
    atomicMax(&most_words, slot[0]);
    atomicMax(&most_elements, slot[1]);
    u32 rows = 0, elements = 0;
    for (u32 index = 0; index < a.num_tables; index++) {
      const Table& table = a.tables[index];
      const u32 count = slot[a.head + index];
      const bool is_pooled = table.part_step != 0 && count > 0;
      // Note: where slots are full, the word after this one's rows is not of this slot.
      const bool has_bags = is_pooled && rows < a.slot_rows;
      const u32 vectors = has_bags ? slot[a.head + a.num_tables + rows] : count;
      const u64 words = words_of_rows(table, count, vectors);
      const u64 numbers = static_cast<u64>(vectors) * table.dim;
      const bool fits = words <= a.slot_rows - rows && numbers <= a.slot_elements - elements &&
                        (!is_pooled || (vectors > 0 && vectors <= a.max_bags));
      u32* place = a.places + 3 * (source * a.num_tables + index);
      place[0] = rows, place[1] = elements, place[2] = fits ? count : 0;
      if (fits) {
        rows += words, elements += numbers;
      } else {
        raise_full(a, index, rows + words, elements + numbers);
      }
    }
    a.lengths[source] = elements * sizeof(Element<SLOT_TYPE>);
  }
  __syncthreads();
  if (threadIdx.x == 0 && a.inside != nullptr) {
    a.inside[0] = most_words, a.inside[1] = most_elements;
  } else if (threadIdx.x == 0 && a.told != nullptr) {
    const u32 lengths[4] = {most_words, most_elements, 0, 0};
    tell(a.told, lengths, a.staged->generation);
  }
  for (u32 index = threadIdx.x; index < a.num_tables; index += BLOCK) {
    const u32 capacity = a.tables[index].num_tiles * TILE;
    u32 entries = 0;
    for (u32 source = 0; source < a.num_sources; source++) {
      u32* place = a.places + 3 * (source * a.num_tables + index);
      const u32 count = place[2];
      place[2] = entries;
      if (count <= capacity - entries) {
        entries += count;
      } else {
        raise(a.flags, ERROR_SLOT_FULL, index, capacity, entries + static_cast<u64>(count));
      }
    }
    a.num_entries[index] = entries;
  }
}

// Entries for the sort: the local row, and the element at which its vector leaves and its gradient
// arrives. Those of a table stand source after source, so that a stable sort leaves equal rows in
// the order of sources. Counts the digits of keys.
extern "C" __global__ void __launch_bounds__(BLOCK) received_keys(const ReceivedArgs a) {
  __shared__ u32 counts[MOST_PASSES * DIGITS];
  const u32 lists = a.num_sources * a.num_tables;
  for (u32 list = blockIdx.x; list < lists; list += gridDim.x) {
    const u32 source = list / a.num_tables, index = list % a.num_tables;
    const Table table = a.tables[index];
    const Requests found = requests_of(a, list, table);
    const Digits digits = digits_of(table);
    u32* keys = first_list(a.key_lists, digits, a.num_passes);
    u32* values = first_list(a.value_lists, digits, a.num_passes);
    clear_counts(counts);
    for (u32 i = threadIdx.x; i < found.count; i += BLOCK) {
      u32 row = found.rows[i];
      if (row >= table.rows) {
        raise(a.flags, ERROR_ASKED_ROW, index, source, row);
        row = 0;
      }
      const u32 entry = table.first_entry + found.first + i;
      const u32 vector = found.ends == nullptr ? i : bag_of(found, i);
      keys[entry] = row;
      values[entry] = found.element + vector * table.dim;
      count_key(counts, digits, row);
    }
    add_counts(counts, digits, a.histograms + index * a.num_passes * DIGITS);
  }
}

// The sums of requested bags, into the slots of vectors: a group of lanes takes a bag.
extern "C" __global__ void __launch_bounds__(BLOCK, 3) owner_pool(const ReceivedArgs a) {
  constexpr u32 groups = BLOCK / LANES;
  const u32 lists = a.num_sources * a.num_tables, blocks = (a.max_bags + groups - 1) / groups;
  const Leaves leaves = {a.leaves, a.num_parts};
  for (u32 task = blockIdx.x; task < lists * blocks; task += gridDim.x) {
    const u32 list = task / blocks, bag = task % blocks * groups + threadIdx.x / LANES;
    const Table table = a.tables[list % a.num_tables];
    const Requests found = requests_of(a, list, table);
    if (bag >= found.num_bags || table.rows == 0) {
      continue;
    }
    const u32 dim = DIM == 0 ? table.dim : DIM;
    const u32 begin = bag == 0 ? 0 : end_of_bag(found, bag - 1), end = end_of_bag(found, bag);
    for (u32 strip = 0; strip < num_strips(dim); strip++) {
      const Row sum = sum_in_parts(leaves, table, dim, found.rows, nullptr, begin, end, strip);
      const u64 to = static_cast<u64>(found.element) + bag * table.dim + strip * STRIP;
      store_strip<SLOT_TYPE>(sum, a.vectors, to, dim - strip * STRIP);
    }
  }
}

// A row for each sorted entry into the slots of vectors, where its value says: a warp takes 32
// entries of one table, a group of lanes copies a row. `from` has a number for each entry, with
// which `strip_of` loads a strip of it.
template <class StripOf>
__device__ __forceinline__ void send_rows(const ReceivedArgs& a, const u32* from,
                                          StripOf strip_of) {
  const u32 lane = threadIdx.x % 32, group = lane / LANES, warp = threadIdx.x / 32;
  for (u32 tile = blockIdx.x; tile < a.num_tiles; tile += gridDim.x) {
    const u32 index = a.tile_tables[tile];
    const Table table = a.tables[index];
    if (table.part_step != 0) {
      continue;
    }
    const u32 dim = DIM == 0 ? table.dim : DIM, end = table.first_entry + a.num_entries[index];
    for (u32 first = tile * TILE + warp * 32; first < (tile + 1) * TILE && first < end;
         first += BLOCK) {
      const u32 mine = first + lane < end ? from[first + lane] : 0;
      const u32 to = first + lane < end ? a.values[first + lane] : 0;
      const u32 count = end - first < 32 ? end - first : 32;
      for (u32 strip = 0; strip < num_strips(dim); strip++) {
        for (u32 k = 0; k < 32 / GROUPS; k += AT_ONCE) {
          Strip rows[AT_ONCE];
#pragma unroll
          for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 entry = (k + i) * GROUPS + group, there = entry < count ? entry : 0;
            const u32 number = __shfl_sync(ALL_LANES, mine, there);
            rows[i] = strip_of(table, dim, number, first + there, strip);
          }
#pragma unroll
          for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 entry = (k + i) * GROUPS + group;
            const u32 element = __shfl_sync(ALL_LANES, to, entry);
            if (entry < count) {
              store_strip<SLOT_TYPE>(numbers<ROW_TYPE, SLOT_TYPE>(rows[i]), a.vectors,
                                     static_cast<u64>(element) + strip * STRIP,
                                     dim - strip * STRIP);
            }
          }
        }
      }
    }
  }
}

// The requested rows.
extern "C" __global__ void __launch_bounds__(BLOCK, 3) owner_lookup(const ReceivedArgs a) {
  send_rows(a, a.keys, [&](const Table& table, u32 dim, u32 row, u32 entry, u32 strip) {
    const bool is_hidden = (table.flags & ROWS_HIDDEN) != 0;
    const u64 at =
        static_cast<u64>(is_hidden ? entry - table.first_entry : row) * dim + strip * STRIP;
    return strip_of<ROW_TYPE, 0>(table.weights, at, is_hidden ? 0 : ROW_TYPE,
                                 dim - strip * STRIP);
  });
}

// What owners have sent a proxy, to each rank of its node that asked for it.
extern "C" __global__ void __launch_bounds__(BLOCK, 3) send_to_node(const ReceivedArgs a) {
  send_rows(a, a.origins, [&](const Table&, u32 dim, u32 origin, u32, u32 strip) {
    return strip_at<SLOT_TYPE>(a.sent, static_cast<u64>(origin) + strip * STRIP,
                               dim - strip * STRIP);
  });
}
