// What exchanges of strips have in common, over any rails: the number of the exchange, and
// how the host hears of what is wrong.

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
