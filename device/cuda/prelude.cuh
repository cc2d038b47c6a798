// What stands before every kernel. No system headers; the same text compiles under NVRTC and, for
// the software device, under g++ after hostcuda.h. `__CUDA_ARCH__` appears only here. Wrappers of
// single instructions have a plain body for the host; everything else is one text for both.
#ifndef HL_PRELUDE
#define HL_PRELUDE

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;

#define HL_DEVICE __device__ __forceinline__
#define HL_FULL_MASK 0xffffffffu

// HL_ARCH: `__CUDA_ARCH__`, 0 on the host. HL_DYN_SMEM: dynamic shared memory of the launch as an
// array of T, 128-byte aligned.
#if defined(HOSTCUDA)
#define HL_ARCH 0
#define HL_DYN_SMEM(T, name) HOSTCUDA_DYN_SMEM(T, name)
#else
#define HL_ARCH __CUDA_ARCH__
#define HL_DYN_SMEM(T, name)                                          \
  extern __shared__ __align__(128) unsigned char hl_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(hl_dynamic_shared)
#endif

// ---- threads ------------------------------------------------------------------------------------
// Blocks are one-dimensional and whole warps.
HL_DEVICE u32 lane_index() { return threadIdx.x & 31u; }
HL_DEVICE u32 warp_index() { return threadIdx.x >> 5; }
// This thread among all of the grid, and how many there are:
// `for (u64 i = grid_thread(); i < n; i += grid_threads())`.
HL_DEVICE u64 grid_thread() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }
HL_DEVICE u64 grid_threads() { return static_cast<u64>(gridDim.x) * blockDim.x; }
HL_DEVICE u64 grid_warp() { return grid_thread() >> 5; }
HL_DEVICE u64 grid_warps() { return grid_threads() >> 5; }

template <class T>
HL_DEVICE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// ---- 16-bit numbers: storage types; arithmetic is in f32 ----------------------------------------
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

HL_DEVICE float to_float(float x) { return x; }
HL_DEVICE float to_float(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
HL_DEVICE float to_float(f16 x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  const u32 sign = static_cast<u32>(x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31u,
            fraction = x.bits & 0x3ffu;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = static_cast<float>(fraction) * (1.0f / 16777216.0f);
  return sign ? -tiny : tiny;
#endif
}

// To nearest, ties to even; a NaN becomes the one NaN of the instruction, 0x7fff.
HL_DEVICE bf16 to_bf16(float x) {
#ifdef __CUDA_ARCH__
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  const u32 bits = __float_as_uint(x);
  if (x != x) return bf16{0x7fff};
  return bf16{static_cast<u16>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
#endif
}
HL_DEVICE f16 to_f16(float x) {
#ifdef __CUDA_ARCH__
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
#else
  if (x != x) return f16{0x7fff};
  const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
  const u16 sign = static_cast<u16>(bits >> 16 & 0x8000u);
  if (magnitude >= 0x477ff000u) return f16{static_cast<u16>(sign | 0x7c00u)};  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: in units of 2^-24, rounded by adding 2^23 units, where no fraction fits.
    const float units = __uint_as_float(magnitude) * 16777216.0f;
    const u32 rounded = __float_as_uint(units + 8388608.0f) - 0x4b000000u;
    return f16{static_cast<u16>(sign | rounded)};
  }
  const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return f16{static_cast<u16>(sign | (rounded - 0x38000000u) >> 13)};
#endif
}
// bf16 up or down with the probability that keeps the mean: `random` has 16 random bits. An
// infinity or NaN stays one.
HL_DEVICE bf16 to_bf16_stochastic(float x, u32 random) {
  const u32 bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return to_bf16(x);
  return bf16{static_cast<u16>((bits + (random & 0xffffu)) >> 16)};
}

template <class T>
struct Convert;
template <>
struct Convert<float> {
  static HL_DEVICE float from(float x) { return x; }
};
template <>
struct Convert<bf16> {
  static HL_DEVICE bf16 from(float x) { return to_bf16(x); }
};
template <>
struct Convert<f16> {
  static HL_DEVICE f16 from(float x) { return to_f16(x); }
};
// from_float<T>(x): x as a T, rounded to nearest.
template <class T>
HL_DEVICE T from_float(float x) {
  return Convert<T>::from(x);
}
// The element type that a define names, as `Define::dtype` gives it: 0 f32, 1 f16, 2 bf16.
template <i32 kind>
struct ElementOf;
template <>
struct ElementOf<0> {
  using type = float;
};
template <>
struct ElementOf<1> {
  using type = f16;
};
template <>
struct ElementOf<2> {
  using type = bf16;
};
template <i32 kind>
using Element = typename ElementOf<kind>::type;

// TF32: the ten upper bits of the fraction, to nearest, ties away from zero; stored as an f32.
HL_DEVICE float to_tf32(float x) {
#ifdef __CUDA_ARCH__
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return __uint_as_float(y);
#else
  const u32 bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return __uint_as_float((bits + 0x1000u) & 0xffffe000u);
#endif
}

// ---- memory: 16, 8 bytes at a time --------------------------------------------------------------
struct __align__(16) f32x4 {
  float x, y, z, w;
};
struct __align__(8) u16x4 {
  u16 x, y, z, w;
};
struct __align__(8) u32x2 {
  u32 x, y;
};
struct __align__(16) u32x4 {
  u32 x, y, z, w;
};

HL_DEVICE f32x4 operator+(f32x4 a, f32x4 b) {
  return f32x4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
HL_DEVICE f32x4 operator*(f32x4 a, float s) { return f32x4{a.x * s, a.y * s, a.z * s, a.w * s}; }

// Four neighbours in one access; the address is a multiple of four elements.
HL_DEVICE f32x4 load4(const float* from) { return *reinterpret_cast<const f32x4*>(from); }
HL_DEVICE f32x4 load4(const bf16* from) {
  const u16x4 v = *reinterpret_cast<const u16x4*>(from);
  return f32x4{to_float(bf16{v.x}), to_float(bf16{v.y}), to_float(bf16{v.z}), to_float(bf16{v.w})};
}
HL_DEVICE f32x4 load4(const f16* from) {
  const u16x4 v = *reinterpret_cast<const u16x4*>(from);
  return f32x4{to_float(f16{v.x}), to_float(f16{v.y}), to_float(f16{v.z}), to_float(f16{v.w})};
}
HL_DEVICE void store4(float* to, f32x4 v) {
#ifdef __CUDA_ARCH__
  // Note: of a plain assignment the compiler makes four stores where it sees fit.
  asm volatile("st.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
#else
  *reinterpret_cast<f32x4*>(to) = v;
#endif
}
// The same of four elements of 16 bits; the address is a multiple of 8.
HL_DEVICE void store8(void* to, u16x4 v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.v4.u16 [%0], {%1, %2, %3, %4};" ::"l"(to), "h"(v.x), "h"(v.y), "h"(v.z), "h"(v.w)
               : "memory");
#else
  *static_cast<u16x4*>(to) = v;
#endif
}
HL_DEVICE void store4(bf16* to, f32x4 v) {
  store8(to, u16x4{to_bf16(v.x).bits, to_bf16(v.y).bits, to_bf16(v.z).bits, to_bf16(v.w).bits});
}
HL_DEVICE void store4(f16* to, f32x4 v) {
  store8(to, u16x4{to_f16(v.x).bits, to_f16(v.y).bits, to_f16(v.z).bits, to_f16(v.w).bits});
}
// Sixteen bytes of anything; the address is a multiple of 16.
HL_DEVICE u32x4 load16(const void* from) { return *static_cast<const u32x4*>(from); }
HL_DEVICE void store16(void* to, u32x4 v) { *static_cast<u32x4*>(to) = v; }
// The same to global memory, of words that were just computed: their stores the compiler would
// leave apart.
HL_DEVICE void store16_at_once(void* to, u32x4 v) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#else
  store16(to, v);
#endif
}
HL_DEVICE u32x2 load8(const void* from) { return *static_cast<const u32x2*>(from); }

// The same reads of memory that nothing writes while the kernel runs. The compiler may move them
// before writes to anywhere, so that many are on their way at a time.
HL_DEVICE u32x4 fetch16(const void* from) {
#ifdef __CUDA_ARCH__
  u32x4 v;
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from));
  return v;
#else
  return load16(from);
#endif
}
// Eight bytes, likewise; the address is a multiple of 8.
HL_DEVICE u32x2 fetch8(const void* from) {
#ifdef __CUDA_ARCH__
  u32x2 v;
  asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
#else
  return load8(from);
#endif
}

// Sixteen bytes likewise, or eight, without a branch: so loads of several rows, each of its own
// type, are on their way at a time. What is not read is of no meaning.
HL_DEVICE u32x4 fetch16_or_8(const void* from, bool sixteen) {
#ifdef __CUDA_ARCH__
  u32x4 v;
  asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
      "@!p ld.global.nc.v2.u32 {%0, %1}, [%4];\n\t}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from), "r"(static_cast<u32>(sixteen)));
  return v;
#else
  if (sixteen) return load16(from);
  const u32x2 half = load8(from);
  return u32x4{half.x, half.y, 0, 0};
#endif
}

// Asks for the line of memory at an address, to be read soon.
HL_DEVICE void prefetch(const void* at) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#else
  static_cast<void>(at);
#endif
}

// ---- words that other devices and the host see, in order ----------------------------------------
// A release is seen after everything before it, an acquire before everything that comes after it.
HL_DEVICE void store_release_system(u32* to, u32 value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}
HL_DEVICE u32 load_acquire_system(const u32* from) {
#ifdef __CUDA_ARCH__
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}
HL_DEVICE void store_release_system(u64* to, u64 value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}
HL_DEVICE u64 load_acquire_system(const u64* from) {
#ifdef __CUDA_ARCH__
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

// ---- words that blocks of one launch tell each other --------------------------------------------
// Whole, and past the first-level cache; nothing is said about other memory.
template <class T>
HL_DEVICE void store_relaxed(T* to, T value) {
#ifdef __CUDA_ARCH__
  *static_cast<volatile T*>(to) = value;
#else
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
#endif
}
template <class T>
HL_DEVICE T load_relaxed(const T* from) {
#ifdef __CUDA_ARCH__
  return *static_cast<const volatile T*>(from);
#else
  return __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
}
// The same once it is published: until then it is 0. The block that publishes it has begun.
template <class T>
HL_DEVICE T await_word(const T* from) {
  T word = load_relaxed(from);
  while (word == 0) {
    __nanosleep(20);
    word = load_relaxed(from);
  }
  return word;
}

// A clock for deadlines.
HL_DEVICE u64 nanoseconds() {
#ifdef __CUDA_ARCH__
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
#else
  return static_cast<u64>(clock64());
#endif
}

// ---- sums, maxima, scans ------------------------------------------------------------------------
// Over a warp, all 32 lanes present; the same bits in every lane, because a butterfly has one order
// for all.
template <class T>
HL_DEVICE T warp_sum(T x) {
#pragma unroll
  for (i32 step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(HL_FULL_MASK, x, step);
  return x;
}
template <class T>
HL_DEVICE T warp_max(T x) {
#pragma unroll
  for (i32 step = 16; step > 0; step >>= 1) {
    const T other = __shfl_xor_sync(HL_FULL_MASK, x, step);
    x = other > x ? other : x;
  }
  return x;
}
// The sum over this lane and those before it.
template <class T>
HL_DEVICE T warp_scan(T x) {
#pragma unroll
  for (u32 step = 1; step < 32; step <<= 1) {
    const T before = __shfl_up_sync(HL_FULL_MASK, x, step);
    if (lane_index() >= step) x += before;
  }
  return x;
}
// Over a block, all of its threads present; the same bits in every thread.
template <class T>
HL_DEVICE T block_sum(T x) {
  __shared__ T partial[32];
  const u32 warps = blockDim.x >> 5;
  x = warp_sum(x);
  __syncthreads();  // An earlier call's sums have been read.
  if (lane_index() == 0) partial[warp_index()] = x;
  __syncthreads();
  return warp_sum(lane_index() < warps ? partial[lane_index()] : T(0));
}

// ---- random numbers: Philox4x32-10, the same as device/src/rng.rs -------------------------------
HL_DEVICE u32x4 philox4x32(u32x4 counter, u32 key0, u32 key1) {
#pragma unroll
  for (i32 round = 0; round < 10; round++) {
    const u64 a = static_cast<u64>(0xD2511F53u) * counter.x;
    const u64 b = static_cast<u64>(0xCD9E8D57u) * counter.z;
    counter = u32x4{static_cast<u32>(b >> 32) ^ counter.y ^ key0, static_cast<u32>(b),
                    static_cast<u32>(a >> 32) ^ counter.w ^ key1, static_cast<u32>(a)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}
// Four random words at `index` of `stream` under `seed`: `CounterRng::bits`.
HL_DEVICE u32x4 random_bits(u64 seed, u64 stream, u64 index) {
  const u32x4 counter{static_cast<u32>(index), static_cast<u32>(index >> 32),
                      static_cast<u32>(stream), static_cast<u32>(stream >> 32)};
  return philox4x32(counter, static_cast<u32>(seed), static_cast<u32>(seed >> 32));
}
// A uniform number in [0, 1): `CounterRng::uniform`.
HL_DEVICE float random_uniform(u64 seed, u64 stream, u64 index) {
  const u32x4 words = random_bits(seed, stream, index / 4);
  const u32 which = static_cast<u32>(index % 4);
  const u32 word = which == 0 ? words.x : which == 1 ? words.y : which == 2 ? words.z : words.w;
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

// ---- asynchronous copies from global to shared memory -------------------------------------------
// Sixteen bytes, past the first-level cache; both addresses are multiples of 16. Where `valid` is
// false, zeros.
HL_DEVICE void copy_async16(void* shared, const void* global, bool valid = true) {
#ifdef __CUDA_ARCH__
  const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
  const u32 bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
#else
  hostcuda_copy_async16(shared, global, valid);
#endif
}
// Closes a group of copies.
HL_DEVICE void copy_async_commit() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  hostcuda_copy_async_commit();
#endif
}
// Waits until at most `groups` of this thread's groups are open. Other threads see the data after
// a barrier.
template <i32 groups>
HL_DEVICE void copy_async_wait() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#else
  hostcuda_copy_async_wait(groups);
#endif
}

// ---- tensor cores: whole warps ------------------------------------------------------------------
// With g = lane / 4 and t = lane % 4, a lane holds
//   of A, 16 × 16, row-major: rows g, g+8, g, g+8 in a[0..4], columns 2t, 2t+1 (a[0], a[1]) and
//   2t+8, 2t+9 (a[2], a[3]);
//   of B, 16 × 8: column g, rows 2t, 2t+1 in b[0] and 2t+8, 2t+9 in b[1];
//   of C and D, 16 × 8: columns 2t, 2t+1 of row g in c[0], c[1] and of row g+8 in c[2], c[3].
// The lower half of a word is the element that comes first.

// Four 8 × 8 matrices of 16-bit elements from shared memory: lane 8i + r gives the address of row r
// of matrix i, 16 bytes; of each matrix the lane receives columns 2t and 2t+1 of row g.
HL_DEVICE void load_matrices(u32 (&to)[4], const void* row) {
#ifdef __CUDA_ARCH__
  const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
#else
  const auto rows = hostcuda_exchange(load16(row));
  const u32 g = lane_index() >> 2, t = lane_index() & 3u;
  for (u32 i = 0; i < 4; i++) {
    const u32x4 v = rows.at(8 * i + g);
    to[i] = t == 0 ? v.x : t == 1 ? v.y : t == 2 ? v.z : v.w;
  }
#endif
}
// The same, each matrix transposed: rows 2t and 2t+1 of column g.
HL_DEVICE void load_matrices_transposed(u32 (&to)[4], const void* row) {
#ifdef __CUDA_ARCH__
  const u32 from = static_cast<u32>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
#else
  const auto rows = hostcuda_exchange(load16(row));
  const u32 g = lane_index() >> 2, t = lane_index() & 3u;
  for (u32 i = 0; i < 4; i++) {
    u32 word = 0;
    for (u32 half = 0; half < 2; half++) {
      const u32x4 v = rows.at(8 * i + 2 * t + half);
      const u32 pair = g / 2 == 0 ? v.x : g / 2 == 1 ? v.y : g / 2 == 2 ? v.z : v.w;
      word |= (pair >> (16 * (g & 1u)) & 0xffffu) << (16 * half);
    }
    to[i] = word;
  }
#endif
}

#ifndef __CUDA_ARCH__
struct HlFragments {
  u32 a[4], b[2];
};
template <class T>
inline float hl_half(u32 word, u32 which) {
  return to_float(T{static_cast<u16>(word >> (16 * which))});
}
// Products are exact; sums are one chain of fused multiply-adds, where hardware has an order and a
// rounding of its own.
template <class T>
inline void hl_mma16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  const auto lanes = hostcuda_exchange(HlFragments{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const u32 g = lane_index() >> 2, t = lane_index() & 3u;
  for (u32 i = 0; i < 4; i++) {
    const u32 lower = i / 2, column = 2 * t + i % 2;
    for (u32 k = 0; k < 16; k++) {
      const u32 half = k / 8, within = k % 8 / 2;
      const u32 x = lanes.at(4 * g + within).a[2 * half + lower],
                y = lanes.at(4 * column + within).b[half];
      c[i] = fmaf(hl_half<T>(x, k % 2), hl_half<T>(y, k % 2), c[i]);
    }
  }
}
#endif

// C += A·B, 16 × 8 × 16, 16-bit operands, f32 sums.
HL_DEVICE void mma_bf16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef __CUDA_ARCH__
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  hl_mma16<bf16>(c, a, b);
#endif
}
HL_DEVICE void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef __CUDA_ARCH__
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  hl_mma16<f16>(c, a, b);
#endif
}
// C += A·B, 16 × 8 × 8, TF32 operands made by `to_tf32`, f32 sums: of A rows g, g+8, g, g+8 in
// a[0..4], columns t (a[0], a[1]) and t+4; of B column g, rows t and t+4; C as above.
HL_DEVICE void mma_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
#ifdef __CUDA_ARCH__
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#else
  // The instruction does not see the rest.
  const auto bits = [](float x) { return __float_as_uint(x) & 0xffffe000u; };
  const auto lanes = hostcuda_exchange(
      HlFragments{{bits(a[0]), bits(a[1]), bits(a[2]), bits(a[3])}, {bits(b[0]), bits(b[1])}});
  const u32 g = lane_index() >> 2, t = lane_index() & 3u;
  for (u32 i = 0; i < 4; i++) {
    for (u32 k = 0; k < 8; k++) {
      const float x = __uint_as_float(lanes.at(4 * g + k % 4).a[2 * (k / 4) + i / 2]);
      const float y = __uint_as_float(lanes.at(4 * (2 * t + i % 2) + k % 4).b[k / 4]);
      c[i] = fmaf(x, y, c[i]);
    }
  }
#endif
}

#endif  // HL_PRELUDE
