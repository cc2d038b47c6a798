// hostcuda_abi.h - what a compiled kernel and the emulator in libcuda.so share. Included by both;
// no other header.
#pragma once
#if !defined(__x86_64__)
#error "the software device switches stacks with x86-64 instructions"
#endif

using size_t = decltype(sizeof 0);

// Stacks are aligned to their size, and the thread's own record lies where it begins, next to what
// runs: it is found from the stack pointer, so neither a thread-local variable nor a call is needed
// for threadIdx.
#if defined(HOSTCUDA_METER)  // ThreadSanitizer's instrumentation without its run-time library
#define HOSTCUDA_STACK_BYTES (64u << 10)
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SOFTCUDA_ASAN) || \
    defined(SOFTCUDA_TSAN)
#define HOSTCUDA_STACK_BYTES (256u << 10)
#else
#define HOSTCUDA_STACK_BYTES (64u << 10)
#endif

inline unsigned long hostcuda_stack_of(unsigned long address) {
  return address & ~(static_cast<unsigned long>(HOSTCUDA_STACK_BYTES) - 1);
}
// Staggered: at one distance from each other all would compete for the same cache lines.
inline unsigned long hostcuda_record_of(unsigned long address) {
  const unsigned long stack = hostcuda_stack_of(address);
  return stack + HOSTCUDA_STACK_BYTES - 128 - stack / HOSTCUDA_STACK_BYTES * 192 % 8192;
}

struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

struct HostcudaBlock {
  uint3 index;          // blockIdx
  dim3 dim, grid;       // blockDim, gridDim
  char* dynamic;        // dynamic shared memory
  unsigned atomics;     // atomics executed so far
  unsigned spin_mask;   // a thread gives way whenever atomics & spin_mask is zero
};

// An asynchronous copy of 16 bytes that its thread has not waited for.
struct HostcudaCopy {
  void* to;
  const void* from;
  bool valid;           // false: zeros
  unsigned group;
  HostcudaCopy* next;
};

struct HostcudaThread {
  uint3 index;          // threadIdx
  unsigned lane, linear;
  HostcudaBlock* block;
  HostcudaCopy* first_copy;  // the oldest, or null
  HostcudaCopy* last_copy;   // meaningless where there is no first one
  unsigned copy_group;       // of copies to come
};

// Kinds of warp collectives: all lanes of a mask must be in the same one.
enum HostcudaCollective {
  kHostcudaSyncwarp,
  kHostcudaShfl,
  kHostcudaShflUp,
  kHostcudaShflDown,
  kHostcudaShflXor,
  kHostcudaBallot,
  kHostcudaMatchAny,
  kHostcudaMatchAll,
  kHostcudaReduce,
  kHostcudaExchange
};
constexpr unsigned kHostcudaLaneBytes = 64;  // most that a lane brings to a collective

// What the hooks of a metered kernel tell.
enum HostcudaAccess { kHostcudaRead, kHostcudaWrite, kHostcudaAtomic };

struct HostcudaRuntime {
  // Reports a broken rule, ends the launch with CUDA_ERROR_LAUNCH_FAILED; does not return.
  void (*die)(const char* why);
  // __syncthreads; returns the sum of `vote` over all threads.
  int (*barrier)(int vote);
  // Waits for all lanes of `mask`; returns 32 x kHostcudaLaneBytes bytes with what each lane
  // brought, valid until the calling thread next waits.
  const unsigned char* (*collective)(unsigned mask, int kind, const void* value, unsigned bytes);
  unsigned (*alive)(void);   // lanes of the calling warp that have not exited
  void (*spin)(void);        // lets other threads run
  void (*fence)(void);       // __threadfence
  unsigned long long (*clock)(void);
  void (*sleep)(void);       // likewise, and other work than this launch, if nothing of it can run
  // The instruction is about to access memory (hostcuda_meter.h).
  void (*access)(const void* instruction, unsigned long address, unsigned bytes, int kind);
};

struct HostcudaKernel {
  const char* name;
  void (*run)(void* const* parameters);
  const unsigned* sizes;       // bytes of each parameter
  unsigned num_parameters;
  unsigned max_threads;        // __launch_bounds__; 0: none
};

struct HostcudaModule {
  unsigned version;
  const HostcudaKernel* kernels;
  unsigned num_kernels;
  char* shared_begin;          // all __shared__ variables
  char* shared_end;
  const HostcudaRuntime** runtime;
};
constexpr unsigned kHostcudaVersion = 2;
