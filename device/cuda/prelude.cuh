// What stands before every kernel. No system headers; the same text compiles under NVRTC and, for the software device,
// under g++ behind hostcuda.h. `__CUDA_ARCH__` appears only here.
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

// Dynamic shared memory of the launch as an array of T, 16-byte aligned. hostcuda.h brings its own.
#ifndef HL_DYN_SMEM
#define HL_DYN_SMEM(T, name)                                          \
  extern __shared__ __align__(128) unsigned char hl_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(hl_dynamic_shared)
#endif

// Four elements in one access of 16 bytes; the address is a multiple of 16.
struct __align__(16) f32x4 {
  float x, y, z, w;
};
HL_DEVICE f32x4 load4(const float* from) { return *reinterpret_cast<const f32x4*>(from); }
HL_DEVICE void store4(float* to, f32x4 v) { *reinterpret_cast<f32x4*>(to) = v; }

// The sum over a warp, the same bits in every lane: a butterfly has one order for all.
HL_DEVICE float warp_sum(float x) {
#pragma unroll
  for (i32 step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(HL_FULL_MASK, x, step);
  return x;
}
HL_DEVICE u32 warp_sum(u32 x) {
#pragma unroll
  for (i32 step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(HL_FULL_MASK, x, step);
  return x;
}

#endif
