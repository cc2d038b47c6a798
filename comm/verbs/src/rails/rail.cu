// What a captured step says to its rank's proxy, and what it waits for: words in a page of
// page-locked memory.
//
// One warp does each of these: it waits longer than it works, and must not take a multiprocessor's
// place.

#define LINE 128
#define MOST_TRIGGERS 64

// `Page` in page.rs: a line each, so that no write disturbs another's reads.
//   poison | number of the last exchange whose strips were delivered
//     | likewise of what has come, per peer | triggers | per slot, the lengths of its strips
#define SENT_AT LINE
#define ARRIVED_AT (2 * LINE)

// 16 bytes: which chain of work requests the proxy posts. `sequence` is written last, and tells
// that the rest is there.
struct Trigger {
  u32 operation;
  u32 slot;
  u64 sequence;
};
static_assert(sizeof(Trigger) == 16, "a trigger is one store of a line");

// `RailArgs` in rails.rs.
struct RailArgs {
  u8* page;
  State* state;
  Report* report;
  // Per peer of the rail, its rank.
  const u32* peers;
  // The slots that are sent from, and in one of them from each strip to the next.
  const u8* slots;
  u64 slot_bytes;
  u64 stride;
  u64 deadline_ns;
  u32 triggers_at;
  u32 lengths_at;
  u32 operation;
  u32 num_slots;
  u32 num_peers;
  u32 num_strips;
};

__device__ __forceinline__ const u32* poison_of(const RailArgs& a) {
  return reinterpret_cast<const u32*>(a.page);
}

// Waits until the word is at least `least`. The job's failure ends it, and so does the deadline,
// for all later waits, too.
__device__ __forceinline__ bool wait_for(const RailArgs& a, u64 at, u64 least, u32 code, u32 peer) {
  const u64* word = reinterpret_cast<const u64*>(a.page + at);
  const u64 begun = nanoseconds();
  for (;;) {
    const u64 found = load_acquire_system(word);
    if (found >= least) return true;
    if (load_acquire_system(poison_of(a)) != 0) {
      atomicExch(&a.state->refused, 1u);
      return false;
    }
    if (nanoseconds() - begun > a.deadline_ns) {
      tell(a.state, a.report, code, peer, least, found);
      store_release_system(reinterpret_cast<u32*>(a.page), 1u);
      return false;
    }
    __nanosleep(200);
  }
}

// Before a slot is written: its strips of `num_slots` exchanges ago have been delivered, so that no
// NIC reads them again.
extern "C" __global__ void __launch_bounds__(32) wait_for_slot(const RailArgs a) {
  if (threadIdx.x != 0) return;
  const u64 next = a.state->sequence + 1;
  if (next > a.num_slots) wait_for(a, SENT_AT, next - a.num_slots, SLOT_IN_USE, 0);
}

// Behind the strips in the stream. Their lengths go into the page, since the proxy does not see a
// device's memory. The release makes both visible to the one that has seen the trigger.
extern "C" __global__ void __launch_bounds__(32) pull_trigger(const RailArgs a) {
  const u64 sequence = a.state->sequence;
  const u32 slot = static_cast<u32>(sequence % a.num_slots);
  const u8* strips = a.slots + slot * a.slot_bytes;
  u32* lengths = reinterpret_cast<u32*>(a.page + a.lengths_at) + slot * a.num_peers;
  for (u32 strip = threadIdx.x; strip < a.num_strips; strip += blockDim.x)
    lengths[strip] =
        static_cast<u32>(HEADER_BYTES) +
        reinterpret_cast<const Header*>(strips + strip * a.stride)->bytes;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Trigger* trigger = reinterpret_cast<Trigger*>(a.page + a.triggers_at) + sequence % MOST_TRIGGERS;
  trigger->operation = a.operation;
  trigger->slot = slot;
  __threadfence_system();
  store_release_system(&trigger->sequence, sequence);
}

extern "C" __global__ void __launch_bounds__(32) wait_for_strips(const RailArgs a) {
  if (threadIdx.x != 0) return;
  const u64 sequence = a.state->sequence;
  for (u32 peer = 0; peer < a.num_peers; peer++) {
    if (!wait_for(a, ARRIVED_AT + peer * LINE, sequence, NO_STRIP, a.peers[peer])) return;
  }
}
