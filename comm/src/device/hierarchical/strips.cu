// Strips: what the ranks of one node have for one rank of another, in one piece of memory with a
// header.
//
//     header (128 bytes) | block of the node's first rank | block of its second | …
//
// Blocks are as long as the header says, each rounded up to 16 bytes, and stand without gaps.
// Strips lie in slots that exchanges use in turns: exchange number s uses slot s % num_slots. No
// strip is trusted: what its header says is held against what was expected, and lengths against the
// capacity, before a byte of it is used.

struct Slots {
  u8* at;
  State* state;
  u64 slot_bytes;
  u32 num_slots;
  // The largest block.
  u32 capacity;
};

__device__ __forceinline__ u64 round_up(u64 bytes) { return (bytes + 15) / 16 * 16; }

__device__ __forceinline__ u64 strip_bytes(u32 num_blocks, u32 capacity) {
  return HEADER_BYTES + num_blocks * round_up(capacity);
}

__device__ __forceinline__ u8* slot_of(const Slots& slots, u64 sequence) {
  return slots.at + sequence % slots.num_slots * slots.slot_bytes;
}

__device__ __forceinline__ u8* slot_of(const Slots& slots) {
  return slot_of(slots, slots.state->sequence);
}

// `SealArgs` in hierarchical/launch.rs.
struct SealArgs {
  Slots slots;
  Report* report;
  // Per peer of the node, the lengths of its blocks; null: it has `fixed` for everybody.
  const u32* lengths[MOST_PEERS];
  u32 fixed[MOST_PEERS];
  // Per strip: where its blocks' lengths are among those of each peer.
  const u32* columns;
  u32 num_strips;
  u32 num_blocks;
  u32 epoch;
  u32 fingerprint;
};

__device__ __forceinline__ u32 length_of(const SealArgs& a, u32 block, u32 column) {
  return a.lengths[block] == nullptr ? a.fixed[block] : a.lengths[block][column];
}

// The first block for rank `column` that is longer than a block can be; else `num_blocks`.
__device__ __forceinline__ u32 too_long(const SealArgs& a, u32 column) {
  u32 block = 0;
  while (block < a.num_blocks && length_of(a, block, column) <= a.slots.capacity) block++;
  return block;
}

// The header of a strip of exchange `sequence`.
__device__ __forceinline__ void write_header(const SealArgs& a, Header* header, u32 column,
                                             u64 sequence) {
  const u32 bad = too_long(a, column);
  const bool fits = bad == a.num_blocks;
  const u32 found = fits ? 0 : length_of(a, bad, column);
  if (!fits) tell(a.slots.state, a.report, BLOCK_TOO_LONG, bad, a.slots.capacity, found);
  u64 bytes = 0;
  for (u32 block = 0; block < a.num_blocks; block++) {
    const u32 length = fits ? length_of(a, block, column) : 0;
    header->lengths[block] = length;
    bytes += round_up(length);
  }
  header->magic = MAGIC, header->epoch = a.epoch, header->sequence = sequence;
  header->fingerprint = a.fingerprint, header->num_blocks = a.num_blocks;
  header->bytes = static_cast<u32>(bytes);
  header->too_long = fits ? 0 : bad + 1, header->found = found;
}

// One block: begins the exchange, and writes the headers of the strips that this rank sends.
extern "C" __global__ void __launch_bounds__(128) seal(const SealArgs a) {
  if (threadIdx.x == 0) {
    a.slots.state->sequence++;
    a.slots.state->refused = 0;
  }
  __syncthreads();
  const u64 sequence = a.slots.state->sequence;
  for (u32 strip = threadIdx.x; strip < a.num_strips; strip += blockDim.x) {
    u8* at = slot_of(a.slots) + strip * strip_bytes(a.num_blocks, a.slots.capacity);
    write_header(a, reinterpret_cast<Header*>(at), a.columns[strip], sequence);
  }
}

// `PackArgs` in hierarchical/launch.rs.
struct PackArgs {
  Slots slots;
  const u8* from[MOST_PEERS];
  // Per strip: which of a peer's blocks it takes.
  const u32* positions;
  // From one block of a peer to the next, and where all of them end.
  u64 stride;
  u64 limit;
  u32 num_strips;
  u32 num_blocks;
};

// Where block `block` of a strip lies after its header, whose lengths were checked.
__device__ __forceinline__ u64 offset_of(const Header* header, u32 block) {
  u64 offset = HEADER_BYTES;
  for (u32 before = 0; before < block; before++) offset += round_up(header->lengths[before]);
  return offset;
}

// How much of `length` bytes at `offset` lies before `limit`.
__device__ __forceinline__ u32 up_to(u64 limit, u64 offset, u32 length) {
  const u64 left = limit <= offset ? 0 : limit - offset;
  return left < length ? static_cast<u32>(left) : length;
}

// The blocks of the node's ranks, into the strips. A CUDA block takes every (grid size)-th chunk of
// all blocks of all strips.
extern "C" __global__ void __launch_bounds__(256) pack(const PackArgs a) {
  const u32 chunks = ceil_div(a.slots.capacity, CHUNK);
  const u64 pieces = static_cast<u64>(a.num_strips) * a.num_blocks * chunks;
  for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const u32 chunk = piece % chunks, block = piece / chunks % a.num_blocks,
              strip = piece / chunks / a.num_blocks;
    u8* to = slot_of(a.slots) + strip * strip_bytes(a.num_blocks, a.slots.capacity);
    const Header* header = reinterpret_cast<const Header*>(to);
    const u64 offset = a.positions[strip] * a.stride;
    copy_chunk(a.from[block] + offset, to + offset_of(header, block),
               up_to(a.limit, offset, header->lengths[block]), chunk);
  }
}

// `SendArgs` in hierarchical/launch.rs.
struct SendArgs {
  SealArgs seal;
  // Per peer of the node, its blocks, `stride` bytes apart.
  const u8* from[MOST_PEERS];
  // Per strip: which of a peer's blocks it takes.
  const u32* positions;
  // Of this rank: where its blocks' lengths are among those of each peer, and which of a peer's
  // blocks is its own.
  u32 column;
  u32 position;
  // Where blocks for this rank go: per peer of the node its rank, and `to_stride` bytes a rank.
  u32 ranks[MOST_PEERS];
  u8* to;
  u64 stride;
  u64 to_stride;
};

// A chunk of a block of a strip, with the header before the first.
__device__ __forceinline__ void send_chunk(const SendArgs& a, u32 strip, u32 block, u32 chunk,
                                           u64 sequence) {
  const SealArgs& seal = a.seal;
  const u32 column = seal.columns[strip];
  u8* to =
      slot_of(seal.slots, sequence) + strip * strip_bytes(seal.num_blocks, seal.slots.capacity);
  if (block == 0 && chunk == 0 && threadIdx.x == 0)
    write_header(seal, reinterpret_cast<Header*>(to), column, sequence);
  if (too_long(seal, column) < seal.num_blocks) return;
  u64 offset = HEADER_BYTES;
  for (u32 before = 0; before < block; before++)
    offset += round_up(length_of(seal, before, column));
  copy_chunk(a.from[block] + a.positions[strip] * a.stride, to + offset,
             length_of(seal, block, column), chunk);
}

// A chunk of what a rank of this node has for this one: straight to where it belongs.
__device__ __forceinline__ void take_chunk(const SendArgs& a, u32 peer, u32 chunk) {
  const u32 length = length_of(a.seal, peer, a.column), capacity = a.seal.slots.capacity;
  if (length > capacity) {
    if (threadIdx.x == 0)
      tell(a.seal.slots.state, a.seal.report, BLOCK_TOO_LONG, peer, capacity, length);
    return;
  }
  copy_chunk(a.from[peer] + a.position * a.stride, a.to + a.ranks[peer] * a.to_stride, length,
             chunk);
}

// An exchange up to where strips leave: fills them, each with its header, and takes what the ranks
// of this node have for this one. A CUDA block takes every (grid size)-th chunk of all blocks,
// those that other nodes wait for first. All blocks read the number of the exchange before; the
// last to end makes it that of this one.
extern "C" __global__ void __launch_bounds__(256) send_strips(const SendArgs a) {
  State* state = a.seal.slots.state;
  const u64 sequence = state->sequence + 1;
  const u32 chunks = ceil_div(a.seal.slots.capacity, CHUNK), num_blocks = a.seal.num_blocks;
  const u64 leaving = static_cast<u64>(a.seal.num_strips) * num_blocks * chunks;
  for (u64 piece = blockIdx.x; piece < leaving + num_blocks * chunks; piece += gridDim.x) {
    const u32 chunk = piece % chunks;
    if (piece < leaving) {
      send_chunk(a, piece / chunks / num_blocks, piece / chunks % num_blocks, chunk, sequence);
    } else {
      take_chunk(a, (piece - leaving) / chunks, chunk);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    if (atomicAdd(&state->ended, 1u) == gridDim.x - 1) {
      // After everything that the other blocks did before they counted themselves: they read
      // `sequence`.
      __threadfence();
      atomicExch(&state->ended, 0u);
      state->sequence = sequence;
    }
  }
}

// `OpenArgs` in hierarchical/launch.rs.
struct OpenArgs {
  Slots slots;
  Report* report;
  // Per strip that was received: who sent it, and of how many ranks' blocks it is.
  const u32* senders;
  const u32* blocks;
  u32 num_strips;
  u32 epoch;
  u32 fingerprint;
};

// Where a received strip begins: those before it have as many blocks as their nodes have ranks.
__device__ __forceinline__ u64 start_of(const u32* blocks, u32 strip, u32 capacity) {
  u64 start = 0;
  for (u32 before = 0; before < strip; before++) start += strip_bytes(blocks[before], capacity);
  return start;
}

// Whether strip `strip`, with this header, is the one that was expected; the host hears of it where
// it is not, if `tells`.
__device__ __forceinline__ bool is_expected(const OpenArgs& a, u32 strip, const Header* header,
                                            bool tells) {
  const u32 capacity = a.slots.capacity;
  const u64 sequence = a.slots.state->sequence;
  u32 code = 0;
  u64 expected = 0, found = 0;
  if (header->magic != MAGIC || header->epoch != a.epoch) {
    code = NOT_A_STRIP, expected = a.epoch, found = header->epoch;
  } else if (header->sequence != sequence) {
    code = OTHER_EXCHANGE, expected = sequence, found = header->sequence;
  } else if (header->fingerprint != a.fingerprint) {
    code = OTHER_EXCHANGE, expected = a.fingerprint, found = header->fingerprint;
  } else if (header->too_long != 0) {
    code = PEERS_BLOCK_TOO_LONG, expected = capacity, found = header->found;
  } else {
    bool fits = header->num_blocks == a.blocks[strip];
    for (u32 block = 0; block < a.blocks[strip]; block++)
      fits = fits && header->lengths[block] <= capacity;
    if (!fits) code = LENGTHS_DO_NOT_FIT, expected = a.blocks[strip], found = header->num_blocks;
  }
  if (code != 0 && tells)
    tell(a.slots.state, a.report, code, a.senders[strip], expected, found);
  return code == 0;
}

// One block: whether the strips that have come are those that were expected. If one is not, nothing
// of the exchange is used. Where something is wrong already, strips may not have come: what they
// look like is no cause of anything.
extern "C" __global__ void __launch_bounds__(128) open(const OpenArgs a) {
  const bool is_refused = a.slots.state->refused != 0;
  __syncthreads();
  if (is_refused) return;
  for (u32 strip = threadIdx.x; strip < a.num_strips; strip += blockDim.x) {
    const u8* at = slot_of(a.slots) + start_of(a.blocks, strip, a.slots.capacity);
    is_expected(a, strip, reinterpret_cast<const Header*>(at), true);
  }
}

// `UnpackArgs` in hierarchical/launch.rs.
struct UnpackArgs {
  Slots slots;
  const u32* blocks;
  // Strips × MOST_PEERS: whose block it is.
  const u32* sources;
  u8* to;
  u64 to_stride;
  // Where all blocks end.
  u64 limit;
  u32 num_strips;
  // Of any strip.
  u32 most_blocks;
};

// The blocks of the strips that have come, to where they belong.
extern "C" __global__ void __launch_bounds__(256) unpack(const UnpackArgs a) {
  if (a.slots.state->refused != 0) return;
  const u32 chunks = ceil_div(a.slots.capacity, CHUNK);
  const u64 pieces = static_cast<u64>(a.num_strips) * a.most_blocks * chunks;
  for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const u32 chunk = piece % chunks, block = piece / chunks % a.most_blocks,
              strip = piece / chunks / a.most_blocks;
    if (block >= a.blocks[strip]) continue;
    const u8* from = slot_of(a.slots) + start_of(a.blocks, strip, a.slots.capacity);
    const Header* header = reinterpret_cast<const Header*>(from);
    const u64 offset = a.sources[strip * MOST_PEERS + block] * a.to_stride;
    copy_chunk(from + offset_of(header, block), a.to + offset,
               up_to(a.limit, offset, header->lengths[block]), chunk);
  }
}

// `ReceiveArgs` in hierarchical/launch.rs.
struct ReceiveArgs {
  OpenArgs open;
  // Strips × MOST_PEERS: whose block it is.
  const u32* sources;
  u8* to;
  u64 to_stride;
  // Of any strip.
  u32 most_blocks;
};

// An exchange from where strips have come: each that is as expected, to where its blocks belong. Of
// one that is not, nothing is used; and nothing is, where something is wrong already.
extern "C" __global__ void __launch_bounds__(256) receive_strips(const ReceiveArgs a) {
  const OpenArgs& open = a.open;
  if (open.slots.state->refused != 0) return;
  const u32 chunks = ceil_div(open.slots.capacity, CHUNK);
  const u64 pieces = static_cast<u64>(open.num_strips) * a.most_blocks * chunks;
  for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const u32 chunk = piece % chunks, block = piece / chunks % a.most_blocks,
              strip = piece / chunks / a.most_blocks;
    if (block >= open.blocks[strip]) continue;
    const u8* from = slot_of(open.slots) + start_of(open.blocks, strip, open.slots.capacity);
    const Header* header = reinterpret_cast<const Header*>(from);
    const bool tells = chunk == 0 && block == 0 && threadIdx.x == 0;
    if (!is_expected(open, strip, header, tells)) continue;
    u8* to = a.to + a.sources[strip * MOST_PEERS + block] * a.to_stride;
    copy_chunk(from + offset_of(header, block), to, header->lengths[block], chunk);
  }
}
