// emulator.h - runs one grid of a compiled kernel on the calling thread: every CUDA thread is a
// fiber with a stack of its own.
#pragma once
#include <cstdint>
#include <memory>

#include "hostcuda_abi.h"

namespace softcuda {

struct Grid {
  const HostcudaModule* module;
  const HostcudaKernel* kernel;
  dim3 blocks, threads;
  unsigned dynamic_bytes;
  void* const* parameters;
};

struct BlockState;

// The fibers of one device. Runs one grid at a time, on whichever host thread calls.
class Emulator {
 public:
  // Schedules of threads and blocks are drawn from `seed`; 0 is the natural order.
  explicit Emulator(uint64_t seed);
  ~Emulator();
  // Returns 0, CUDA_ERROR_ILLEGAL_ADDRESS or CUDA_ERROR_LAUNCH_FAILED, in which cases stderr has
  // the reason; kAsleep when the only block of the grid sleeps until something outside of it
  // happens: the next call must be with the same grid and continues.
  int run(const Grid& grid);
  static constexpr int kAsleep = -1;
  // Forgets a grid that sleeps.
  void drop();

 private:
  std::unique_ptr<BlockState> state_;
};

// The table that kernels call back through.
extern const HostcudaRuntime kRuntime;

}  // namespace softcuda
