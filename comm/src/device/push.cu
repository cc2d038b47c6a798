// What a rank has for each of its peers, straight into their memory: of each block what counts.

#define MOST_PEERS 16

// `PushArgs` in device/push.rs.
struct PushArgs {
  const u8* from;
  // Where each peer takes this rank's block.
  u8* to[MOST_PEERS];
  // Per peer, the bytes of its block that count; null: all.
  const u32* lengths;
  u64 stride;
  u32 capacity;
  u32 num_peers;
  // The peer that is written to first: every rank begins with another.
  u32 first;
  u32 unused;
};

extern "C" __global__ void __launch_bounds__(256) push(const PushArgs a) {
  const u32 chunks = ceil_div(a.capacity, CHUNK);
  for (u32 piece = blockIdx.x; piece < a.num_peers * chunks; piece += gridDim.x) {
    const u32 peer = (piece / chunks + a.first) % a.num_peers;
    const u32 length =
        a.lengths == nullptr ? a.capacity : min(a.lengths[peer], a.capacity);
    copy_chunk(a.from + peer * a.stride, a.to[peer], length, piece % chunks);
  }
}
