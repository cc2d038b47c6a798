// emulator.cpp - fibers, barriers and warp collectives.
//
// A stack runs CUDA threads one after another: when a thread ends, the next one that has not begun
// starts on the same stack without a switch; only threads that wait keep a stack. A thread that
// waits switches straight to the next ready one. Broken rules (a barrier that not all reach, a lane
// outside its mask, ...) end the launch with a message.
#include "emulator_state.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "meter.h"
#include "sanitizers.h"

namespace softcuda {
namespace {

extern "C" void softcuda_switch(void** save, void* load);
asm(R"(.text
.globl softcuda_switch
.hidden softcuda_switch
.type softcuda_switch,@function
softcuda_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size softcuda_switch,.-softcuda_switch
)");

thread_local BlockState* running = nullptr;  // the block that this host thread executes

Fiber* self() {
  return reinterpret_cast<Fiber*>(
      hostcuda_record_of(reinterpret_cast<uintptr_t>(__builtin_frame_address(0))));
}
BlockState& block_of(Fiber* f) { return *static_cast<BlockState*>(f->block); }

uint32_t draw(BlockState& b) {
  b.random = b.random * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<uint32_t>(b.random >> 33);
}

void fiber_main();

Fiber* stack_at(BlockState& b, unsigned i) {
  Fiber* f = record_of_stack(b, i);
  if (f->magic == kMagic) return f;
  f->magic = *end_of_stack(f) = kMagic;
  b.begun_stacks = std::max(b.begun_stacks, i + 1);
  f->block = &b;
  void** sp = reinterpret_cast<void**>(f);
  *--sp = nullptr;  // keeps the alignment that a call would have left
  *--sp = reinterpret_cast<void*>(fiber_main);
  for (int k = 0; k < 6; k++) *--sp = nullptr;
  f->sp = sp;
  f->fake_stack = nullptr;
  #ifdef SOFTCUDA_TSAN
  // That another thread was the first to need it says nothing about order.
  AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
  f->tsan = __tsan_create_fiber(0);
  AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  histories++;
#endif
  return f;
}

Fiber* take_stack(BlockState& b, [[maybe_unused]] unsigned thread) {
#ifdef SOFTCUDA_TSAN
  return stack_at(b, b.set * kMaxThreads + thread);  // one history of accesses per CUDA thread
#else
  if (b.idle.empty()) return stack_at(b, b.next_stack++);
  Fiber* f = b.idle.back();
  b.idle.pop_back();
  return f;
#endif
}

// From the fiber `from` to `to`; returns when something switches back to `from`.
void switch_fibers(Fiber* from, Fiber* to) {
  IF_ASAN(__sanitizer_start_switch_fiber(&from->fake_stack, end_of_stack(to),
                                         HOSTCUDA_STACK_BYTES);)
  IF_TSAN(__tsan_switch_to_fiber(to->tsan, kTsanNoSync);)
  softcuda_switch(&from->sp, to->sp);
  IF_ASAN(__sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);)
}

// Ends the block: back to the host thread. A fiber that comes here with an error is never resumed.
void switch_to_host(Fiber* from, BlockState& b) {
  IF_ASAN(__sanitizer_start_switch_fiber(&from->fake_stack, b.host_stack, b.host_stack_bytes);)
  IF_TSAN(__tsan_switch_to_fiber(b.host_tsan, kTsanNoSync);)
  softcuda_switch(&from->sp, b.host_sp);
  IF_ASAN(__sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);)
}

void describe(BlockState& b, Fiber* f, const char* why) {
  unsigned ready = 0, barrier = 0, unstarted = 0;
  for (unsigned w = 0; w * 32 < b.threads; w++) {
    const Warp& warp = b.warps[w];
    ready += unsigned(__builtin_popcount(warp.ready & warp.started));
    barrier += unsigned(__builtin_popcount(warp.at_barrier));
    unstarted += unsigned(__builtin_popcount(warp.ready & ~warp.started));
  }
  fprintf(stderr,
          "softcuda: kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s; of %u threads %u can run, "
          "%u wait at __syncthreads, %u in a warp collective, %u have not begun, %u have ended\n",
          b.job->kernel->name, b.index.x, b.index.y, b.index.z, f->index.x, f->index.y, f->index.z,
          why, b.threads, ready, barrier, b.alive - ready - barrier - unstarted, unstarted,
          b.threads - b.alive);
}

[[noreturn]] void stop(int error, const char* why) {
  Fiber* f = self();
  BlockState& b = *running;
  describe(b, f, why);
  b.error = error;
  switch_to_host(f, b);
  __builtin_unreachable();
}
[[noreturn]] void die(const char* why) { stop(719, why); }
constexpr const char* kDeadlock =
    "deadlock: no thread can run (a barrier or a warp collective that not all of its threads "
    "reach)";

// The next thread that can run, or -1. In natural order the warp of the last thread runs on as long
// as it can.
inline int pick(BlockState& b, unsigned after, bool other_warp) {
  if (!b.seed && !other_warp) {
    // Most often.
    const Warp& warp = b.warps[after >> 5];
    const unsigned later = warp.ready & ~0u << warp.last << 1;
    if (later) return int((after & ~31u) + unsigned(__builtin_ctz(later)));
  }
  if (!b.ready_warps) return -1;
  const uint32_t random = b.seed ? draw(b) : 0;
  unsigned warp = (b.seed ? random : (after >> 5) + other_warp) & 31;
  const unsigned warps = b.ready_warps >> warp | (warp ? b.ready_warps << (32 - warp) : 0);
  warp = (warp + unsigned(__builtin_ctz(warps))) & 31;
  const unsigned ready = b.warps[warp].ready;
  const unsigned lane = (b.seed ? random >> 5 : b.warps[warp].last + 1) & 31;
  const unsigned lanes = ready >> lane | (lane ? ready << (32 - lane) : 0);
  return int(warp * 32 + ((lane + unsigned(__builtin_ctz(lanes))) & 31));
}

void set_ready(BlockState& b, unsigned warp, unsigned lanes) {
  b.warps[warp].ready |= lanes;
  b.ready_warps |= 1u << warp;
}

void begin_thread(BlockState& b, Fiber* f, unsigned thread) {
  f->linear = thread;
  f->lane = thread & 31;
  f->index = {thread % b.dim.x, thread / b.dim.x % b.dim.y, thread / (b.dim.x * b.dim.y)};
  b.stack_of[thread] = f;
}

// Takes the thread out of the ready set; whether it has begun before.
inline bool claim(BlockState& b, unsigned thread) {
  Warp& w = b.warps[thread >> 5];
  const unsigned bit = 1u << (thread & 31);
  w.ready &= ~bit;
  if (!w.ready) b.ready_warps &= ~(1u << (thread >> 5));
  w.last = thread & 31;
  const bool begun = w.started & bit;
  w.started |= bit;
  return begun;
}

void check_stack(Fiber* f) {
  if (*end_of_stack(f) != kMagic) {
    fprintf(stderr, "softcuda: a thread's stack of %u bytes has overflowed\n",
            HOSTCUDA_STACK_BYTES);
    abort();
  }
}

// The calling thread waits (its state says for what) or gives way; others run until it is ready and
// chosen.
inline void give_way(bool other_warp) {
  Fiber* me = self();
  BlockState& b = block_of(me);
  const int next = pick(b, me->linear, other_warp);
  if (next < 0) die(kDeadlock);
  if (claim(b, unsigned(next))) {
    Fiber* to = b.stack_of[next];
    if (to == me) return;
    fetch_ahead(b, unsigned(next), to);
    switch_fibers(me, to);
    return;
  }
  Fiber* to = take_stack(b, unsigned(next));
  begin_thread(b, to, unsigned(next));
  switch_fibers(me, to);
}

void release_barrier(BlockState& b) {
  if (!b.alive || b.waiting != b.alive) return;
  b.waiting = 0;
  // The votes just counted are in the other one, until the next barrier.
  b.votes[b.generation & 1] = 0;
  b.generation++;
  b.spins = 0;
  for (unsigned w = 0; w * 32 < b.threads; w++) {
    if (!b.warps[w].at_barrier) continue;
    set_ready(b, w, b.warps[w].at_barrier);
    b.warps[w].at_barrier = 0;
  }
}

void end_thread(BlockState& b, Fiber* f) {
  Warp& w = b.warps[f->linear >> 5];
  const unsigned bit = 1u << f->lane;
  check_stack(f);
  drop_copies(f);
  if (b.meter) b.meter->end_lane(*f);
  b.alive--;
  b.spins = 0;
  w.alive &= ~bit;
  for (uint64_t open = w.open; open; open &= open - 1) {
    const Collective& c = w.collectives[__builtin_ctzll(open)];
    if (c.mask & ~c.arrived & bit)
      die("a lane has ended while others wait for it in a warp collective");
  }
  release_barrier(b);
}

// What every stack runs for ever: thread after thread.
void fiber_main() {
  Fiber* me = self();
  IF_ASAN(__sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);)
  BlockState& b = block_of(me);
  for (;;) {
    IF_TSAN(__tsan_acquire(&b.grid_begin);)
    b.job->kernel->run(b.job->parameters);
    IF_TSAN(__tsan_release(&b.grid_end);)
    end_thread(b, me);
    const int next = b.alive ? pick(b, me->linear, false) : -1;
    if (next < 0 && b.alive) die(kDeadlock);
    if (next < 0) {
#ifndef SOFTCUDA_TSAN
      b.idle.push_back(me);
#endif
      switch_to_host(me, b);
      continue;  // a later block begins a thread here
    }
    const bool begun = claim(b, unsigned(next));
    IF_TSAN(if (!begun) begin_thread(b, take_stack(b, unsigned(next)), unsigned(next));
            switch_fibers(me, b.stack_of[next]); continue;)
    if (!begun) {
      begin_thread(b, me, unsigned(next));
      continue;
    }
    b.idle.push_back(me);
    switch_fibers(me, b.stack_of[next]);
  }
}

int barrier(int vote) {
  Fiber* me = self();
  BlockState& b = block_of(me);
  const unsigned generation = b.generation;
  b.votes[(generation + 1) & 1] += vote;
  if (b.meter) b.meter->sync(*me, true);
  IF_TSAN(__tsan_release(&b.tokens.barrier[8 * (generation & 1)]);)
  b.warps[me->linear >> 5].at_barrier |= 1u << me->lane;
  b.waiting++;
  const int* votes = &b.votes[(generation + 1) & 1];
  release_barrier(b);
  give_way(false);
  IF_TSAN(__tsan_acquire(&b.tokens.barrier[8 * (generation & 1)]);)
  return *votes;
}

// The open collective of `mask` that the lane has not reached yet, or a new one.
Collective* find_collective(Warp& w, unsigned mask, unsigned bit, int kind) {
  for (uint64_t open = w.open; open; open &= open - 1) {
    Collective& c = w.collectives[__builtin_ctzll(open)];
    if (c.mask == mask && c.arrived != mask && !(c.arrived & bit)) {
      if (c.kind != kind) die("lanes of one mask are in different warp collectives");
      return &c;
    }
  }
  const unsigned free = unsigned(__builtin_ctzll(~w.open));
  if (free >= kOpenCollectives) die("too many open warp collectives");
  w.open |= 1ull << free;
  Collective& c = w.collectives[free];
  c.mask = mask;
  c.arrived = c.left = 0;
  c.kind = kind;
  return &c;
}

const unsigned char* collective(unsigned mask, int kind, const void* value, unsigned bytes) {
  Fiber* me = self();
  BlockState& b = block_of(me);
  Warp& w = b.warps[me->linear >> 5];
  const unsigned bit = 1u << me->lane;
  if (!(mask & bit)) die("the calling lane is not in the mask of its warp collective");
  if (mask & ~w.alive)
    die("the mask of a warp collective names a lane that has ended or does not exist");
  if (b.meter) b.meter->sync(*me, false);
  Collective* c = find_collective(w, mask, bit, kind);
  __builtin_memcpy(c->values[me->lane], value, bytes);
  c->arrived |= bit;
  IF_TSAN(char* token = &b.tokens.warp[me->linear >> 5][c - w.collectives];
          if (kind == kHostcudaSyncwarp)
              __tsan_release(token);)  // shuffles and votes do not order memory
  if (c->arrived != mask) {
    give_way(false);
  } else {
    set_ready(b, me->linear >> 5, mask & ~bit);
    if (!w.ready) b.ready_warps &= ~(1u << (me->linear >> 5));
    b.spins = 0;
  }
  IF_TSAN(if (kind == kHostcudaSyncwarp) __tsan_acquire(token);)
  c->left |= bit;
  if (c->left == mask) w.open &= ~(1ull << (c - w.collectives));
  return &c->values[0][0];
}

unsigned alive_lanes() {
  Fiber* me = self();
  return block_of(me).warps[me->linear >> 5].alive;
}

void spin() {
  Fiber* me = self();
  BlockState& b = block_of(me);
  if (++b.spins > kSpinLimit)
    die("a thread spins for ever (blocks run one after another here: none may wait for a later "
        "one)");
  set_ready(b, me->linear >> 5, 1u << me->lane);
  give_way(true);
}

// The calling thread waits for something from outside. A grid of one block of which no other thread
// can run leaves the host thread, which may be needed for what is waited for; Emulator::run comes
// back here.
void sleep() {
  Fiber* me = self();
  BlockState& b = block_of(me);
  const dim3 blocks = b.job->blocks;
  if (blocks.x * blocks.y * blocks.z != 1 || b.ready_warps) return spin();
  b.asleep = me;
  switch_to_host(me, b);
}

void fence() {
  IF_TSAN(static char order; __tsan_release(&order); __tsan_acquire(&order);)
  Fiber* me = self();
  BlockState& b = block_of(me);
  if (b.seed && (draw(b) & 3) == 0) spin();
}

void prepare(BlockState& b) {
  const Grid& job = *b.job;
  b.alive = b.threads;
  b.waiting = 0;
  b.votes[0] = b.votes[1] = 0;
  b.spins = 0;
  b.atomics = 0;
  b.ready_warps = 0;
  for (unsigned w = 0; w < kWarps; w++) {
    Warp& warp = b.warps[w];
    const unsigned left = b.threads > w * 32 ? b.threads - w * 32 : 0;
    warp.alive = left >= 32 ? ~0u : (1u << left) - 1;
    warp.ready = warp.alive;
    warp.started = warp.at_barrier = 0;
    warp.last = 31;
    warp.open = 0;
    warp.collectives = b.collectives[w];
    if (warp.ready) b.ready_warps |= 1u << w;
  }
  poison(job.module->shared_begin, size_t(job.module->shared_end - job.module->shared_begin));
  if (b.dynamic) poison(b.dynamic, job.dynamic_bytes);
  if (b.meter) b.meter->begin_block(b.dynamic);
  // Blocks have shared memory and barriers of their own: what the last one did there has nothing to
  // do with this one.
  IF_TSAN(tsan_forget(job.module->shared_begin,
                      size_t(job.module->shared_end - job.module->shared_begin));)
  IF_TSAN(if (b.dynamic) tsan_forget(b.dynamic, job.dynamic_bytes);
          tsan_forget(&b.tokens, sizeof b.tokens);)
}

// Begins all stacks again after a launch that ended in the middle of its threads.
void reset_stacks(BlockState& b) {
  b.idle.clear();
  b.next_stack = 0;
  for (unsigned i = 0; i < b.begun_stacks; i++) {
    Fiber* f = record_of_stack(b, i);
    drop_copies(f);
    IF_TSAN(if (f->magic == kMagic) { __tsan_destroy_fiber(f->tsan); histories--; })
    f->magic = 0;
  }
  IF_ASAN(__asan_unpoison_memory_region(b.stacks, kStacksBytes);)
}

void report_fault(BlockState& b) {
  char why[80];
  snprintf(why, sizeof why, "illegal access to address %p", b.fault_address);
  describe(b, b.fault_fiber, why);
  b.fault_fiber = nullptr;
}

// From the host thread to the fiber `f`; returns when the block ends or sleeps.
void enter(BlockState& b, Fiber* f) {
  IF_ASAN(__sanitizer_start_switch_fiber(&b.host_fake_stack, end_of_stack(f),
                                         HOSTCUDA_STACK_BYTES);)
  IF_TSAN(b.host_tsan = __tsan_get_current_fiber(); __tsan_switch_to_fiber(f->tsan, kTsanNoSync);)
  softcuda_switch(&b.host_sp, f->sp);
  IF_ASAN(__sanitizer_finish_switch_fiber(b.host_fake_stack, nullptr, nullptr);)
}

void run_block(BlockState& b) {
  prepare(b);
#ifdef SOFTCUDA_TSAN
  b.set = (b.set + 1) % kSets;
  if (histories > kManyHistories && b.begun_stacks <= b.set * kMaxThreads) b.set = 0;
#endif
  const unsigned thread = unsigned(pick(b, b.threads - 1, true));
  claim(b, thread);
  Fiber* f = take_stack(b, thread);
  begin_thread(b, f, thread);
  enter(b, f);
}

// Continues with the block whose thread sleeps.
void wake_block(BlockState& b) {
  Fiber* f = b.asleep;
  b.asleep = nullptr;
  enter(b, f);
}

#if !defined(SOFTCUDA_ASAN) && !defined(SOFTCUDA_TSAN)
struct sigaction previous_segv, previous_bus;

// An access to unmapped memory inside a kernel ends the launch as it would on a device.
void on_fault(int signal, siginfo_t* info, void* context) {
  const uintptr_t sp = uintptr_t(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  BlockState* b = running;
  const uintptr_t low = b ? uintptr_t(b->stacks) : 0;
  if (b && sp >= low && sp < low + kStacksBytes) {
    // Little stack is left here (an alternate signal stack): the host thread prints the message.
    b->fault_fiber = reinterpret_cast<Fiber*>(hostcuda_record_of(sp));
    b->fault_address = info->si_addr;
    b->error = 700;
    switch_to_host(b->fault_fiber, *b);
  }
  // Not ours: as if this handler had never been there.
  sigaction(signal, signal == SIGSEGV ? &previous_segv : &previous_bus, nullptr);
}

void catch_faults() {
  static const bool once = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous_segv);
    sigaction(SIGBUS, &action, &previous_bus);
    return true;
  }();
  (void)once;
}
#else
void catch_faults() {}  // the sanitizer reports them
#endif

// The host thread's own stack, which AddressSanitizer wants to hear of.
void find_host_stack([[maybe_unused]] BlockState& b) {
#ifdef SOFTCUDA_ASAN
  thread_local void* low = nullptr;
  thread_local size_t bytes = 0;
  if (!low) {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &bytes);
    pthread_attr_destroy(&attributes);
  }
  b.host_stack = low;
  b.host_stack_bytes = bytes;
#endif
}

// Blocks in the order in which they run: any order is right.
std::vector<uint32_t> block_order(BlockState& b, size_t count) {
  std::vector<uint32_t> order;
  if (!b.seed) return order;
  order.resize(count);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = count; i > 1; i--) std::swap(order[i - 1], order[draw(b) % i]);
  return order;
}

// What remains to be done when all blocks have run, or one has failed.
int end(BlockState& b) {
  IF_TSAN(__tsan_acquire(&b.grid_end);)
  if (b.fault_fiber) report_fault(b);
  if (b.error) reset_stacks(b);
  if (b.meter) b.meter->end_grid();
  free(b.dynamic);
  b.dynamic = nullptr;
  return b.error;
}

}  // namespace

Emulator::Emulator(uint64_t seed) : state_(std::make_unique<BlockState>()) {
  BlockState& b = *state_;
  b.seed = b.random = seed;
  b.spin_mask = seed ? 7 : 63;
}
Emulator::~Emulator() {
  if (!state_->stacks) return;
  reset_stacks(*state_);
  munmap(state_->stacks, kStacksBytes);
}

int Emulator::run(const Grid& grid) {
  BlockState& b = *state_;
  if (!b.stacks) {
    constexpr size_t kLargePage = 2 << 20;
    char* raw = static_cast<char*>(mmap(nullptr, kStacksBytes + kLargePage, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (raw == MAP_FAILED) return 2;
    b.stacks = reinterpret_cast<char*>((uintptr_t(raw) + kLargePage - 1) & ~(kLargePage - 1));
    // A small page for each stack is more than the TLB holds.
    madvise(b.stacks, kStacksBytes, MADV_HUGEPAGE);
  }
  catch_faults();
  find_host_stack(b);
  b.job = &grid;
  if (b.asleep) {
    BlockState* outer = running;
    running = &b;
    b.meter = nullptr;  // it has ended with the part before
    wake_block(b);
    running = outer;
    return b.asleep ? kAsleep : end(b);
  }
  b.grid = grid.blocks;
  b.dim = grid.threads;
  b.threads = grid.threads.x * grid.threads.y * grid.threads.z;
  b.error = 0;
  b.dynamic = nullptr;
  b.meter = running_meter();
  if (b.meter) b.meter->begin_grid(grid);
  if (grid.dynamic_bytes) {  // of the exact size: a sanitizer sees overruns
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, grid.dynamic_bytes)) return 2;
    b.dynamic = static_cast<char*>(memory);
  }
  BlockState* outer = running;
  running = &b;
  IF_TSAN(__tsan_release(&b.grid_begin);)
  const size_t count = size_t(grid.blocks.x) * grid.blocks.y * grid.blocks.z;
  const std::vector<uint32_t> order = block_order(b, count);
  for (size_t n = 0; n < count && !b.error; n++) {
    const size_t i = order.empty() ? n : order[n];
    const size_t plane = size_t(grid.blocks.x) * grid.blocks.y;
    b.index = {unsigned(i % grid.blocks.x), unsigned(i / grid.blocks.x % grid.blocks.y),
               unsigned(i / plane)};
    run_block(b);
  }
  running = outer;
  return b.asleep ? kAsleep : end(b);
}

void Emulator::drop() {
  BlockState& b = *state_;
  if (!b.asleep) return;
  b.asleep = nullptr;
  reset_stacks(b);
  free(b.dynamic);
  b.dynamic = nullptr;
}

const HostcudaRuntime kRuntime = {die,  barrier, collective, alive_lanes,
                                  spin, fence,   clock_ns,   sleep,  meter_access};

}  // namespace softcuda
