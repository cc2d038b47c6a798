// meter.h - counts what kernels ask of memory: 32-byte sectors, bytes used of them, bank conflicts.
//
// With SOFTCUDA_METER=FILE libnvrtc compiles kernels with a call before each access (the compiler's
// instrumentation for ThreadSanitizer, with hooks of our own), and the totals of each kernel are
// written to FILE at the end, a line of JSON each.
//
// Note: lanes of a warp are fibers that run one after another, so what a warp does at once has to
// be put together: accesses of one instruction belong together that are, of each lane, the n-th of
// it since the lane's last barrier or warp collective. That is what lockstep would do wherever the
// lanes take the same way; where some leave an access out in the middle of a loop, later ones of
// that loop are paired off by one until the next collective.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "emulator.h"

namespace softcuda {

struct Fiber;
enum class Space { kGlobal, kShared };

// What one launch has done so far.
class Meter {
 public:
  // Null where nothing is metered.
  static std::unique_ptr<Meter> begin(const std::string& name);
  ~Meter();  // adds it to the totals

  void begin_grid(const Grid& grid);
  // The arena of the block that begins, besides the module's own variables.
  void begin_block(const char* dynamic);
  // A lane arrives where it waits for others: at a barrier of the block, or of lanes of its warp.
  void sync(const Fiber& lane, bool of_block);
  void end_lane(const Fiber& lane);
  void end_grid();
  void access(const Fiber& lane, const void* instruction, uint64_t address, unsigned bytes,
              int kind);
  // What an operation without a kernel's text reads or writes.
  void note(size_t bytes, bool written);
  void note_flops(uint64_t flops);

 private:
  struct State;
  std::unique_ptr<State> state_;
  explicit Meter(std::unique_ptr<State> state);
};

// Whether SOFTCUDA_METER is set.
bool is_metered();
// Of the operation that this host thread runs, or null.
Meter*& running_meter();
// HostcudaRuntime's `access`.
void meter_access(const void* instruction, unsigned long address, unsigned bytes, int kind);

}  // namespace softcuda
