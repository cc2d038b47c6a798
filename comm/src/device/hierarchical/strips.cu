// Strips: what the ranks of one node have for one rank of another, in one piece of memory with a
// header.
//
//     header (128 bytes) | block of the node's first rank | block of its second | …
//
// Blocks are as long as the header says, each rounded up to 16 bytes, and stand without gaps.
// Strips lie in slots that exchanges use in turns: exchange number s uses slot s % num_slots. No
// strip is trusted: what its header says is held against what was expected, and lengths against the
// capacity, before a byte of it is used.

#define MOST_PEERS 8
#define MAGIC 0x50545348u
#define HEADER_BYTES 128ull

struct Header {
  u32 magic;
  u32 epoch;
  u64 sequence;
  u32 fingerprint;
  u32 num_blocks;
  // Of all blocks, rounded up.
  u32 bytes;
  // One more than the index of a block that would not fit; 0: all do. Then no block is sent.
  u32 too_long;
  u32 found;
  u32 reserved[7];
  u32 lengths[MOST_PEERS];
  u32 rest[8];
};
static_assert(sizeof(Header) == HEADER_BYTES, "a header is a cache line");

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

__device__ __forceinline__ u8* slot_of(const Slots& slots) {
  return slots.at + slots.state->sequence % slots.num_slots * slots.slot_bytes;
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

// One block: begins the exchange, and writes the headers of the strips that this rank sends.
extern "C" __global__ void __launch_bounds__(128) seal(const SealArgs a) {
  if (threadIdx.x == 0) {
    a.slots.state->sequence++;
    a.slots.state->refused = 0;
  }
  __syncthreads();
  const u64 sequence = a.slots.state->sequence;
  for (u32 strip = threadIdx.x; strip < a.num_strips; strip += blockDim.x) {
    Header* header = reinterpret_cast<Header*>(slot_of(a.slots) +
                                               strip * strip_bytes(a.num_blocks, a.slots.capacity));
    u32 too_long = 0, found = 0;
    u64 bytes = 0;
    for (u32 block = 0; block < a.num_blocks; block++) {
      const u32 length =
          a.lengths[block] == nullptr ? a.fixed[block] : a.lengths[block][a.columns[strip]];
      const bool fits = length <= a.slots.capacity;
      if (!fits && too_long == 0) {
        too_long = block + 1, found = length;
        tell(a.slots.state, a.report, BLOCK_TOO_LONG, block, a.slots.capacity, length);
      }
      header->lengths[block] = fits ? length : 0;
      bytes += fits ? round_up(length) : 0;
    }
    for (u32 block = 0; too_long != 0 && block < a.num_blocks; block++) header->lengths[block] = 0;
    header->magic = MAGIC, header->epoch = a.epoch, header->sequence = sequence;
    header->fingerprint = a.fingerprint, header->num_blocks = a.num_blocks;
    header->bytes = too_long != 0 ? 0 : static_cast<u32>(bytes);
    header->too_long = too_long, header->found = found;
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

// `InsideArgs` in hierarchical/launch.rs.
struct InsideArgs {
  State* state;
  Report* report;
  const u8* from[MOST_PEERS];
  const u32* lengths[MOST_PEERS];
  u32 fixed[MOST_PEERS];
  // The ranks of this node: where their blocks go.
  u32 ranks[MOST_PEERS];
  u8* to;
  u64 stride;
  u64 to_stride;
  u32 column;
  u32 position;
  u32 capacity;
  u32 num_peers;
};

// What the ranks of this node have for this one: straight to where it belongs.
extern "C" __global__ void __launch_bounds__(256) take_inside(const InsideArgs a) {
  const u32 chunks = ceil_div(a.capacity, CHUNK);
  for (u32 piece = blockIdx.x; piece < a.num_peers * chunks; piece += gridDim.x) {
    const u32 chunk = piece % chunks, peer = piece / chunks;
    const u32 length = a.lengths[peer] == nullptr ? a.fixed[peer] : a.lengths[peer][a.column];
    if (length > a.capacity) {
      if (threadIdx.x == 0) tell(a.state, a.report, BLOCK_TOO_LONG, peer, a.capacity, length);
      continue;
    }
    copy_chunk(a.from[peer] + a.position * a.stride, a.to + a.ranks[peer] * a.to_stride, length,
               chunk);
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

__device__ __forceinline__ void look_at(const OpenArgs& a, u32 strip) {
  const u32 capacity = a.slots.capacity, sender = a.senders[strip];
  const Header* header =
      reinterpret_cast<const Header*>(slot_of(a.slots) + start_of(a.blocks, strip, capacity));
  const u64 sequence = a.slots.state->sequence;
  if (header->magic != MAGIC || header->epoch != a.epoch) {
    tell(a.slots.state, a.report, NOT_A_STRIP, sender, a.epoch, header->epoch);
  } else if (header->sequence != sequence || header->fingerprint != a.fingerprint) {
    const bool other = header->sequence == sequence;
    tell(a.slots.state, a.report, OTHER_EXCHANGE, sender, other ? a.fingerprint : sequence,
         other ? header->fingerprint : header->sequence);
  } else if (header->too_long != 0) {
    tell(a.slots.state, a.report, PEERS_BLOCK_TOO_LONG, sender, capacity, header->found);
  } else {
    bool fits = header->num_blocks == a.blocks[strip];
    for (u32 block = 0; block < a.blocks[strip]; block++)
      fits = fits && header->lengths[block] <= capacity;
    if (!fits)
      tell(a.slots.state, a.report, LENGTHS_DO_NOT_FIT, sender, a.blocks[strip],
           header->num_blocks);
  }
}

// One block: whether the strips that have come are those that were expected. If one is not, nothing
// of the exchange is used. Where something is wrong already, strips may not have come: what they
// look like is no cause of anything.
extern "C" __global__ void __launch_bounds__(128) open(const OpenArgs a) {
  const bool is_refused = a.slots.state->refused != 0;
  __syncthreads();
  if (is_refused) return;
  for (u32 strip = threadIdx.x; strip < a.num_strips; strip += blockDim.x) look_at(a, strip);
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
};

// The blocks of the strips that have come, to where they belong.
extern "C" __global__ void __launch_bounds__(256) unpack(const UnpackArgs a) {
  if (a.slots.state->refused != 0) return;
  const u32 chunks = ceil_div(a.slots.capacity, CHUNK);
  const u64 pieces = static_cast<u64>(a.num_strips) * MOST_PEERS * chunks;
  for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const u32 chunk = piece % chunks, block = piece / chunks % MOST_PEERS,
              strip = piece / chunks / MOST_PEERS;
    if (block >= a.blocks[strip]) continue;
    const u8* from = slot_of(a.slots) + start_of(a.blocks, strip, a.slots.capacity);
    const Header* header = reinterpret_cast<const Header*>(from);
    const u64 offset = a.sources[strip * MOST_PEERS + block] * a.to_stride;
    copy_chunk(from + offset_of(header, block), a.to + offset,
               up_to(a.limit, offset, header->lengths[block]), chunk);
  }
}
