// hostcuda.h - CUDA C++ for g++: what a kernel's text sees when the software device compiles it.
// One file of headers-free declarations, so that a kernel compiles in a fraction of a second; the
// emulator itself is in libcuda.so (emulator.cpp). `__global__` and `__launch_bounds__` are taken
// out of the preprocessed text by nvrtc.cpp, which makes the kernel table.
#pragma once
#include "hostcuda_abi.h"

#define HOSTCUDA 1
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __managed__ static_assert(false, "no managed memory");
// One copy per module: a device runs one block at a time, and each device has loaded the module for
// itself. These are the module's only uninitialised variables: where they begin and end is known
// from the linker. (A section of their own would be plainer, but g++ 12 ignores the attribute in
// templates.)
#define __shared__ static
#define HOSTCUDA_DYN_SMEM(T, name) T* name = reinterpret_cast<T*>(hostcuda::self()->block->dynamic)
#define __CUDACC_VER_MAJOR__ 13

extern "C" {
float sqrtf(float); float expf(float); float exp2f(float); float logf(float); float log2f(float);
float log1pf(float); float expm1f(float); float powf(float, float); float fabsf(float);
float fmaf(float, float, float); float fminf(float, float); float fmaxf(float, float);
float floorf(float); float ceilf(float); float truncf(float); float rintf(float);
float roundf(float); float nearbyintf(float); float sinf(float); float cosf(float);
float tanhf(float); float erff(float); float copysignf(float, float); float ldexpf(float, int);
float fmodf(float, float); long lrintf(float); float cbrtf(float); float log10f(float);
float tanf(float); float atan2f(float, float);
double sqrt(double); double exp(double); double log(double); double pow(double, double);
double fabs(double); double fma(double, double, double); double fmin(double, double);
double fmax(double, double); double floor(double); double ceil(double); double trunc(double);
double rint(double); double ldexp(double, int); double sin(double); double cos(double);
double tanh(double); double log2(double);
void* memcpy(void*, const void*, size_t); void* memset(void*, int, size_t);
int printf(const char*, ...);
int abs(int); long long llabs(long long);
void* malloc(size_t); void free(void*);
}

namespace hostcuda {
extern const HostcudaRuntime* runtime;

inline HostcudaThread* self() {
  unsigned long stack;
  asm("mov %%rsp, %0" : "=r"(stack));  // not volatile: a thread stays on its stack
  return reinterpret_cast<HostcudaThread*>(hostcuda_record_of(stack));
}

// Not part of the program under test: threads that have nothing to do with each other use the same
// records one after another.
#if defined(__SANITIZE_THREAD__) && !defined(HOSTCUDA_METER)
#define HOSTCUDA_UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define HOSTCUDA_UNWATCHED
#endif

// In spin loops of atomics other threads must get their turn.
HOSTCUDA_UNWATCHED inline void give_way() {
  HostcudaBlock* block = self()->block;
  if ((++block->atomics & block->spin_mask) == 0) runtime->spin();
}

// The values all lanes of `mask` brought.
template <class T>
struct Lanes {
  const unsigned char* bytes;
  T at(unsigned lane) const {
    T value;
    __builtin_memcpy(&value, bytes + lane * kHostcudaLaneBytes, sizeof value);
    return value;
  }
};
template <class T>
Lanes<T> collective(unsigned mask, int kind, const T& value) {
  static_assert(sizeof(T) <= kHostcudaLaneBytes);
  return {runtime->collective(mask, kind, &value, sizeof value)};
}
template <class T>
T shuffle(unsigned mask, int kind, T value, unsigned source, bool within) {
  static_assert(sizeof(T) <= 8 && __is_trivially_copyable(T), "shuffles move 4 or 8 bytes");
  const Lanes<T> lanes = collective(mask, kind, value);
  if (!within) return value;
  if (!(mask >> source & 1)) runtime->die("a shuffle reads a lane outside its mask");
  return lanes.at(source);
}

template <unsigned... I> struct Sequence {};
template <auto kernel> struct Thunk;
template <class... A, void (*kernel)(A...)>
struct Thunk<kernel> {
  static constexpr unsigned sizes[] = {static_cast<unsigned>(sizeof(A))..., 0};
  static constexpr unsigned count = sizeof...(A);
  template <unsigned... I>
  static void call([[maybe_unused]] void* const* parameters, Sequence<I...>) {
    kernel(*static_cast<const A*>(parameters[I])...);
  }
  static void run(void* const* parameters) {
    call(parameters, Sequence<__integer_pack(sizeof...(A))...>());
  }
};
constexpr unsigned first(unsigned n, unsigned = 0, unsigned = 0) { return n; }
}  // namespace hostcuda

#ifdef HOSTCUDA_METER
#include "hostcuda_meter.h"
#endif

#define threadIdx (hostcuda::self()->index)
#define blockIdx (hostcuda::self()->block->index)
#define blockDim (hostcuda::self()->block->dim)
#define gridDim (hostcuda::self()->block->grid)
constexpr int warpSize = 32;

// --- vector types --------------------------------------------------------------------------------
#ifdef HOSTCUDA_METER
// Assigned in one access as on a device, where the compiler would assign the elements of `{x, y}`.
template <unsigned bytes> struct HostcudaWord;
template <> struct HostcudaWord<2> { using type [[gnu::may_alias]] = unsigned short; };
template <> struct HostcudaWord<4> { using type [[gnu::may_alias]] = unsigned; };
template <> struct HostcudaWord<8> { using type [[gnu::may_alias]] = unsigned long; };
template <> struct HostcudaWord<16> { using type [[gnu::may_alias]] = unsigned __int128; };
template <> struct HostcudaWord<32> { struct type { unsigned __int128 a, b; }; };
#define HOSTCUDA_ASSIGNED(N)                                                          \
  N& operator=(const N& v) {                                                          \
    using Word = HostcudaWord<sizeof(N)>::type;                                       \
    *reinterpret_cast<Word*>(this) = *reinterpret_cast<const Word*>(&v);              \
    return *this;                                                                     \
  }
#else
#define HOSTCUDA_ASSIGNED(N)
#endif
#define HOSTCUDA_VECTOR(T, N)                                                                   \
  struct __align__(2 * sizeof(T)) N##2 { T x, y; HOSTCUDA_ASSIGNED(N##2) };                     \
  struct __align__(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) N##4 {                              \
    T x, y, z, w;                                                                               \
    HOSTCUDA_ASSIGNED(N##4)                                                                     \
  };                                                                                            \
  inline N##2 make_##N##2(T x, T y) { return {x, y}; }                                          \
  inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define HOSTCUDA_VECTOR3(T, N)                                                                  \
  struct N##3 { T x, y, z; };                                                                   \
  inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }
HOSTCUDA_VECTOR(signed char, char) HOSTCUDA_VECTOR(unsigned char, uchar)
HOSTCUDA_VECTOR(short, short) HOSTCUDA_VECTOR(unsigned short, ushort)
HOSTCUDA_VECTOR(int, int) HOSTCUDA_VECTOR(unsigned, uint) HOSTCUDA_VECTOR(float, float)
HOSTCUDA_VECTOR(long long, longlong) HOSTCUDA_VECTOR(unsigned long long, ulonglong)
HOSTCUDA_VECTOR(double, double)
HOSTCUDA_VECTOR3(int, int) HOSTCUDA_VECTOR3(float, float)
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// --- barriers, votes, shuffles -------------------------------------------------------------------
inline void __syncthreads() { hostcuda::runtime->barrier(0); }
inline int __syncthreads_count(int p) { return hostcuda::runtime->barrier(p != 0); }
inline int __syncthreads_or(int p) { return hostcuda::runtime->barrier(p != 0) != 0; }
inline int __syncthreads_and(int p) { return hostcuda::runtime->barrier(p == 0) == 0; }
inline void __syncwarp(unsigned mask = ~0u) { hostcuda::collective(mask, kHostcudaSyncwarp, 0); }

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  const unsigned lane = hostcuda::self()->lane, base = lane & ~unsigned(width - 1);
  return hostcuda::shuffle(mask, kHostcudaShfl, v, base + (unsigned(source) & unsigned(width - 1)),
                           true);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  const unsigned lane = hostcuda::self()->lane, within = lane & unsigned(width - 1);
  return hostcuda::shuffle(mask, kHostcudaShflUp, v, lane - delta, within >= delta);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  const unsigned lane = hostcuda::self()->lane, within = lane & unsigned(width - 1);
  return hostcuda::shuffle(mask, kHostcudaShflDown, v, lane + delta,
                           within + delta < unsigned(width));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
  const unsigned lane = hostcuda::self()->lane, base = lane & ~unsigned(width - 1);
  return hostcuda::shuffle(mask, kHostcudaShflXor, v, lane ^ unsigned(bits),
                           (lane ^ unsigned(bits)) < base + unsigned(width));
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  const auto lanes = hostcuda::collective(mask, kHostcudaBallot, p != 0);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; i++) votes |= unsigned((mask >> i & 1) && lanes.at(i)) << i;
  return votes;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T v) {
  const auto lanes = hostcuda::collective(mask, kHostcudaMatchAny, v);
  unsigned same = 0;
  for (unsigned i = 0; i < 32; i++) same |= unsigned((mask >> i & 1) && lanes.at(i) == v) << i;
  return same;
}
template <class T>
unsigned __match_all_sync(unsigned mask, T v, int* all) {
  const auto lanes = hostcuda::collective(mask, kHostcudaMatchAll, v);
  *all = 1;
  for (unsigned i = 0; i < 32; i++) *all &= int(!(mask >> i & 1) || lanes.at(i) == v);
  return *all ? mask : 0;
}
#define HOSTCUDA_REDUCE(name, T, expression)                                            \
  inline T __reduce_##name##_sync(unsigned mask, T v) {                                 \
    const auto lanes = hostcuda::collective(mask, kHostcudaReduce, v);                  \
    bool any = false;                                                                   \
    T a = v;                                                                            \
    for (unsigned i = 0; i < 32; i++) {                                                 \
      if (!(mask >> i & 1)) continue;                                                   \
      const T b = lanes.at(i);                                                          \
      a = any ? (expression) : b;                                                       \
      any = true;                                                                       \
    }                                                                                   \
    return a;                                                                           \
  }
HOSTCUDA_REDUCE(add, unsigned, a + b) HOSTCUDA_REDUCE(add, int, int(unsigned(a) + unsigned(b)))
HOSTCUDA_REDUCE(min, unsigned, a < b ? a : b) HOSTCUDA_REDUCE(min, int, a < b ? a : b)
HOSTCUDA_REDUCE(max, unsigned, a > b ? a : b) HOSTCUDA_REDUCE(max, int, a > b ? a : b)
HOSTCUDA_REDUCE(and, unsigned, a & b) HOSTCUDA_REDUCE(or, unsigned, a | b)
HOSTCUDA_REDUCE(xor, unsigned, a ^ b)
// Code must not rely on fewer.
inline unsigned __activemask() { return hostcuda::runtime->alive(); }

// For wrappers of one instruction that a whole warp executes (mma, ldmatrix): what every lane
// brought, at most 64 bytes.
template <class T>
hostcuda::Lanes<T> hostcuda_exchange(const T& value) {
  return hostcuda::collective(~0u, kHostcudaExchange, value);
}

// --- memory --------------------------------------------------------------------------------------
// No atomics on floating-point numbers: their order would show in the result.
#define HOSTCUDA_ATOMIC(name, T, expression)                                                     \
  inline T name(T* p, T v) {                                                                     \
    hostcuda::give_way();                                                                        \
    T old = __atomic_load_n(p, __ATOMIC_RELAXED), next;                                          \
    do next = (expression);                                                                      \
    while (                                                                                      \
        !__atomic_compare_exchange_n(p, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
    return old;                                                                                  \
  }
#define HOSTCUDA_ATOMICS(T)                                                              \
  HOSTCUDA_ATOMIC(atomicMax, T, old > v ? old : v)                                       \
  HOSTCUDA_ATOMIC(atomicMin, T, old < v ? old : v) HOSTCUDA_ATOMIC(atomicOr, T, old | v) \
      HOSTCUDA_ATOMIC(atomicAnd, T, old& v) HOSTCUDA_ATOMIC(atomicXor, T, old ^ v)
#define HOSTCUDA_ATOMICS_BASIC(T)                                                           \
  HOSTCUDA_ATOMIC(atomicAdd, T, static_cast<T>(old + v))                                    \
  HOSTCUDA_ATOMIC(atomicExch, T, v) inline T atomicCAS(T* p, T compare, T v) {              \
    hostcuda::give_way();                                                                   \
    __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return compare;                                                                         \
  }
HOSTCUDA_ATOMICS(int)
HOSTCUDA_ATOMICS(unsigned) HOSTCUDA_ATOMICS(unsigned long long) HOSTCUDA_ATOMICS_BASIC(int)
    HOSTCUDA_ATOMICS_BASIC(unsigned) HOSTCUDA_ATOMICS_BASIC(unsigned long long)
        HOSTCUDA_ATOMIC(atomicMax, long long,
                        old > v ? old : v) HOSTCUDA_ATOMIC(atomicMin, long long, old < v ? old : v)
            HOSTCUDA_ATOMIC(atomicSub, int, old - v) HOSTCUDA_ATOMIC(atomicSub, unsigned, old - v)
                HOSTCUDA_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
                    HOSTCUDA_ATOMIC(atomicDec, unsigned,
                                    old == 0 || old > v ? v : old - 1) inline void __threadfence() {
  hostcuda::runtime->fence();
}
inline void __threadfence_block() { hostcuda::runtime->fence(); }
inline void __threadfence_system() { hostcuda::runtime->fence(); }
inline void __nanosleep(unsigned) { hostcuda::runtime->sleep(); }
inline long long clock64() { return static_cast<long long>(hostcuda::runtime->clock()); }
[[noreturn]] inline void __trap() { hostcuda::runtime->die("__trap()"); __builtin_unreachable(); }
#define assert(condition) \
  ((condition) ? void() : hostcuda::runtime->die("assertion failed: " #condition))
template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldca(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldlu(const T* p) { return *p; }
template <class T> T __ldcv(const T* p) { return *p; }
template <class T> void __stcg(T* p, T v) { *p = v; }
template <class T> void __stcs(T* p, T v) { *p = v; }
template <class T> void __stwb(T* p, T v) { *p = v; }
template <class T> void __stwt(T* p, T v) { *p = v; }

// --- asynchronous copies -------------------------------------------------------------------------
namespace hostcuda {
HOSTCUDA_UNWATCHED inline void note_copy(void* to, const void* from, bool valid) {
  HostcudaThread* me = self();
  HostcudaCopy* copy = static_cast<HostcudaCopy*>(malloc(sizeof(HostcudaCopy)));
  *copy = {to, from, valid, me->copy_group, nullptr};
  (me->first_copy ? me->last_copy->next : me->first_copy) = copy;
  me->last_copy = copy;
}
HOSTCUDA_UNWATCHED inline void close_group() { self()->copy_group++; }
// Takes the oldest copy, unless its group is open or among the `groups` closed last.
HOSTCUDA_UNWATCHED inline bool take_copy(unsigned groups, HostcudaCopy& copy) {
  HostcudaThread* me = self();
  HostcudaCopy* first = me->first_copy;
  if (!first || me->copy_group - first->group <= groups) return false;
  copy = *first;
  me->first_copy = first->next;
  free(first);
  return true;
}
}  // namespace hostcuda

// Done at the wait, the latest moment that hardware may choose. Until then the destination holds
// NaNs of every type: sums and products keep them, so that a result without its wait is seen to be
// wrong.
inline void hostcuda_copy_async16(void* to, const void* from, bool valid) {
#ifdef HOSTCUDA_METER
  // One read and one write, of the place that asks for them.
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
#else
  *static_cast<uint4*>(to) = uint4{~0u, ~0u, ~0u, ~0u};
  hostcuda::note_copy(to, from, valid);
#endif
}
inline void hostcuda_copy_async_commit() { hostcuda::close_group(); }
inline void hostcuda_copy_async_wait(unsigned groups) {
  for (HostcudaCopy copy; hostcuda::take_copy(groups, copy);)
    *static_cast<uint4*>(copy.to) =
        copy.valid ? *static_cast<const uint4*>(copy.from) : uint4{0, 0, 0, 0};
}

// --- bits and numbers ----------------------------------------------------------------------------
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline int __clzll(long long v) {
  return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return int(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
  return r;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
  return unsigned(((static_cast<unsigned long long>(high) << 32 | low) << (n & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return unsigned((static_cast<unsigned long long>(high) << 32 | low) >> (n & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = static_cast<unsigned long long>(b) << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned s = selector >> (4 * i) & 15;
    unsigned byte = unsigned(both >> (8 * (s & 7))) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    r |= byte << (8 * i);
  }
  return r;
}
template <class To, class From>
To hostcuda_bits(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  __builtin_memcpy(&r, &v, sizeof r);
  return r;
}
inline float __uint_as_float(unsigned v) { return hostcuda_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return hostcuda_bits<unsigned>(v); }
inline float __int_as_float(int v) { return hostcuda_bits<float>(v); }
inline int __float_as_int(float v) { return hostcuda_bits<int>(v); }
inline double __longlong_as_double(long long v) { return hostcuda_bits<double>(v); }
inline long long __double_as_longlong(double v) { return hostcuda_bits<long long>(v); }
inline int __float2int_rn(float v) { return int(rintf(v)); }
inline int __float2int_rz(float v) { return int(v); }
inline int __float2int_rd(float v) { return int(floorf(v)); }
inline unsigned __float2uint_rn(float v) { return unsigned(rintf(v)); }
inline unsigned __float2uint_rz(float v) { return unsigned(v); }
inline float __int2float_rn(int v) { return float(v); }
inline float __uint2float_rn(unsigned v) { return float(v); }
inline float __double2float_rn(double v) { return float(v); }
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __frsqrt_rn(float v) { return 1.0f / sqrtf(v); }
inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }
inline bool isnan(float v) { return v != v; }
inline bool isnan(double v) { return v != v; }
inline bool isinf(float v) { return __builtin_isinf(v); }
inline bool isinf(double v) { return __builtin_isinf(v); }
inline bool isfinite(float v) { return __builtin_isfinite(v); }
inline bool isfinite(double v) { return __builtin_isfinite(v); }
#define HOSTCUDA_MINMAX(T)                              \
  inline T min(T a, T b) { return b < a ? b : a; }      \
  inline T max(T a, T b) { return a < b ? b : a; }
HOSTCUDA_MINMAX(int) HOSTCUDA_MINMAX(unsigned) HOSTCUDA_MINMAX(long) HOSTCUDA_MINMAX(unsigned long)
HOSTCUDA_MINMAX(long long) HOSTCUDA_MINMAX(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
