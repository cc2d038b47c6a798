// What exchanges of strips have in common, over any rails: a strip's header, the number of the
// exchange, and how the host hears of what is wrong.

#define MOST_PEERS 16
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
};
static_assert(sizeof(Header) == HEADER_BYTES, "a header is a cache line");

// What the host learns, `Report` in hierarchical/report.rs.
#define BLOCK_TOO_LONG 1u
#define PEERS_BLOCK_TOO_LONG 2u
#define NOT_A_STRIP 3u
#define OTHER_EXCHANGE 4u
#define LENGTHS_DO_NOT_FIT 5u
#define NO_STRIP 6u
#define SLOT_IN_USE 7u

struct State {
  // The number of the exchange that was begun last.
  u64 sequence;
  u32 told;
  // Whether something of the last exchange must not be used.
  u32 refused;
  // Blocks that have ended of the kernel that begins an exchange, while it runs.
  u32 ended;
  u32 unused;
};

// In page-locked memory: `code` is written last.
struct Report {
  u32 code;
  u32 peer;
  u64 expected;
  u64 found;
};

// Only the first finding is kept.
__device__ __forceinline__ void tell(State* state, Report* report, u32 code, u32 peer, u64 expected,
                                     u64 found) {
  atomicExch(&state->refused, 1u);
  if (atomicCAS(&state->told, 0u, 1u) != 0) return;
  report->peer = peer, report->expected = expected, report->found = found;
  __threadfence_system();
  store_release_system(&report->code, code);
}
