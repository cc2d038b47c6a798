// emulator_state.h - what the emulator keeps of the block that runs: stacks, warps, collectives.
#pragma once
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "emulator.h"

namespace softcuda {

constexpr unsigned kMaxThreads = 1024, kWarps = kMaxThreads / 32;
constexpr uint64_t kMagic = 0x736f667463756461;
// ThreadSanitizer: threads of consecutive blocks get different histories, or a barrier in a block
// would seem to order it after everything its threads did in the block before. It has some 8000
// histories in all.
#ifdef SOFTCUDA_TSAN
constexpr unsigned kSets = 2, kManyHistories = 3000;
inline std::atomic<unsigned> histories{0};
#else
constexpr unsigned kSets = 1;
#endif
constexpr size_t kStacksBytes = size_t(kSets) * kMaxThreads * HOSTCUDA_STACK_BYTES;
constexpr unsigned long long kSpinLimit = 1ull << 24;  // turns without any thread getting on

// One stack. Where it ends, at its low end, lies another `magic`, which an overflow damages.
struct Fiber : HostcudaThread {
  void* sp;
  void* fake_stack;
  void* tsan;
  uint64_t magic;
};
static_assert(sizeof(Fiber) <= 128, "as much as hostcuda_record_of leaves");

// The low end of a fiber's stack.
inline uint64_t* end_of_stack(const Fiber* f) {
  return reinterpret_cast<uint64_t*>(hostcuda_stack_of(reinterpret_cast<uintptr_t>(f)));
}

// Copies without a wait are never done: no thread may read what they write.
inline void drop_copies(Fiber* f) {
  while (HostcudaCopy* copy = f->first_copy) {
    f->first_copy = copy->next;
    free(copy);
  }
}

inline unsigned long long clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<unsigned long long>(t.tv_sec) * 1000000000ull +
         static_cast<unsigned long long>(t.tv_nsec);
}

// Written without the compiler's help, so that no sanitizer takes it for an access of the program.
inline void poison(char* begin, size_t bytes) {
  asm volatile("rep stosb" : "+D"(begin), "+c"(bytes) : "a"(0xCB) : "memory");
}

// One open collective of a warp.
struct Collective {
  unsigned mask, arrived, left;
  int kind;
  alignas(16) unsigned char values[32][kHostcudaLaneBytes];
};
struct Warp {
  unsigned alive, ready, started, at_barrier;
  unsigned last;  // the lane that ran last
  uint64_t open;  // which of `collectives` are in use
  Collective* collectives;
};
constexpr unsigned kOpenCollectives = 40;  // most of a warp

struct BlockState : HostcudaBlock {
  const Grid* job = nullptr;
  class Meter* meter = nullptr;  // of the launch, where it is metered
  unsigned threads = 0, alive = 0, waiting = 0;
  int votes[2] = {0, 0};
  unsigned generation = 0;
  unsigned ready_warps = 0;
  int error = 0;
  Fiber* asleep = nullptr;    // the thread that gave way to other work, or null
  Fiber* fault_fiber = nullptr;
  void* fault_address = nullptr;
  unsigned long long spins = 0;
  uint64_t seed = 0, random = 0;
  char* stacks = nullptr;
  std::vector<Fiber*> idle;   // stacks without a thread
  unsigned next_stack = 0;    // stacks from here on were never used
  unsigned set = 0;           // of histories
  unsigned begun_stacks = 0;  // likewise, also before the last reset
  Fiber* stack_of[kMaxThreads] = {};
  Warp warps[kWarps];
  Collective collectives[kWarps][kOpenCollectives];
  void* host_sp = nullptr;
  void* host_fake_stack = nullptr;
  const void* host_stack = nullptr;
  size_t host_stack_bytes = 0;
  void* host_tsan = nullptr;
  // ThreadSanitizer's tokens: begin and end of the grid (not forgotten between blocks); barriers;
  // warp barriers.
  char grid_begin, grid_end;
  struct alignas(8) {
    char barrier[16];
    char warp[kWarps][kOpenCollectives];
  } tokens;
};

inline Fiber* record_of_stack(BlockState& b, unsigned i) {
  return reinterpret_cast<Fiber*>(
      hostcuda_record_of(reinterpret_cast<uintptr_t>(b.stacks) + size_t(i) * HOSTCUDA_STACK_BYTES));
}

// The stack of the thread after `next`, as far as `to`'s is in use: it most often runs next.
inline void fetch_ahead(const BlockState& b, unsigned next, const Fiber* to) {
  const char* record = reinterpret_cast<const char*>(b.stack_of[(next + 1) % kMaxThreads]);
  const char* top = record - (reinterpret_cast<const char*>(to) - static_cast<char*>(to->sp));
#pragma GCC unroll 8
  for (int line = 0; line < 8; line++) __builtin_prefetch(top + 64 * line);
  __builtin_prefetch(record);
}

}  // namespace softcuda
