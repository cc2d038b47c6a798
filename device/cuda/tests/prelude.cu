// Kernels for the tests of the prelude: each does one thing the prelude offers, on every element it
// is given.

struct ConvertArgs {
  const u32* from;  // bits of f32
  u32* bf16_bits;
  u32* f16_bits;
  u32* tf32_bits;
  u32* stochastic_bits;
  u64 n;
};
extern "C" __global__ void __launch_bounds__(128) narrow(const ConvertArgs a) {
  for (u64 i = grid_thread(); i < a.n; i += grid_threads()) {
    const float x = __uint_as_float(a.from[i]);
    a.bf16_bits[i] = to_bf16(x).bits;
    a.f16_bits[i] = to_f16(x).bits;
    a.tf32_bits[i] = __float_as_uint(to_tf32(x));
    a.stochastic_bits[i] = to_bf16_stochastic(x, static_cast<u32>(i * 2654435761u) >> 16).bits;
  }
}

struct WidenArgs {
  u32* from_bf16;
  u32* from_f16;
};
// All 65,536 patterns.
extern "C" __global__ void __launch_bounds__(128) widen(const WidenArgs a) {
  for (u64 i = grid_thread(); i < 65536; i += grid_threads()) {
    a.from_bf16[i] = __float_as_uint(to_float(bf16{static_cast<u16>(i)}));
    a.from_f16[i] = __float_as_uint(to_float(f16{static_cast<u16>(i)}));
  }
}

struct VectorArgs {
  const float* from;
  float* f32;
  bf16* b16;
  f16* h16;
  float* back;  // the sum of the three, read again
  u64 n;        // a multiple of four
};
extern "C" __global__ void __launch_bounds__(128) vectors(const VectorArgs a) {
  for (u64 i = 4 * grid_thread(); i < a.n; i += 4 * grid_threads()) {
    const f32x4 v = load4(a.from + i);
    store4(a.f32 + i, v);
    store4(a.b16 + i, v);
    store4(a.h16 + i, v);
    store4(a.back + i, load4(a.f32 + i) + load4(a.b16 + i) + load4(a.h16 + i));
  }
}

struct RandomArgs {
  u64 seed, stream, first;
  u32* bits;
  float* uniform;
  u64 n;
};
extern "C" __global__ void __launch_bounds__(128) random_numbers(const RandomArgs a) {
  for (u64 i = grid_thread(); i < a.n; i += grid_threads()) {
    const u32x4 words = random_bits(a.seed, a.stream, a.first + i);
    a.bits[4 * i] = words.x;
    a.bits[4 * i + 1] = words.y;
    a.bits[4 * i + 2] = words.z;
    a.bits[4 * i + 3] = words.w;
    a.uniform[i] = random_uniform(a.seed, a.stream, a.first + i);
  }
}

struct ReduceArgs {
  const u32* values;  // one per thread of one block
  // Per thread: warp sum, warp max, warp scan, block sum.
  u32* out;
};
extern "C" __global__ void __launch_bounds__(256) reduce(const ReduceArgs a) {
  const u32 x = a.values[threadIdx.x];
  u32* out = a.out + 4 * threadIdx.x;
  out[0] = warp_sum(x);
  out[1] = warp_max(x);
  out[2] = warp_scan(x);
  out[3] = block_sum(x);
}

struct ProductArgs {
  const u16* a;  // 16 × 16, row-major, of 16-bit elements
  const u16* b;  // 16 × 8, row-major
  float* c;      // 16 × 8, row-major; added to
};
template <bool is_bf16>
HL_DEVICE void product(const ProductArgs& args) {
  HL_DYN_SMEM(u16, shared);
  u16* a = shared;
  u16* b = shared + 256;
  const u32 lane = lane_index(), g = lane >> 2, t = lane & 3u;
  copy_async16(a + 8 * lane, args.a + 8 * lane);
  // Rows 16 to 31 of B do not exist: zeros, of which nothing comes.
  copy_async16(b + 8 * lane, args.b + 8 * (lane & 15u), lane < 16);
  copy_async_commit();
  copy_async_wait<0>();
  __syncwarp();
  // Matrices of A in the order of its registers: rows 0–7 and 8–15 of columns 0–7, then of columns
  // 8–15.
  u32 fa[4], fb4[4];
  load_matrices(fa, a + 16 * (lane & 15u) + 8 * (lane >> 4));
  load_matrices_transposed(fb4, b + 8 * lane);
  const u32 fb[2] = {fb4[0], fb4[1]};
  float c[4] = {args.c[8 * g + 2 * t], args.c[8 * g + 2 * t + 1], args.c[8 * (g + 8) + 2 * t],
                args.c[8 * (g + 8) + 2 * t + 1]};
  if (is_bf16) {
    mma_bf16(c, fa, fb);
  } else {
    mma_f16(c, fa, fb);
  }
  args.c[8 * g + 2 * t] = c[0];
  args.c[8 * g + 2 * t + 1] = c[1];
  args.c[8 * (g + 8) + 2 * t] = c[2];
  args.c[8 * (g + 8) + 2 * t + 1] = c[3];
}
extern "C" __global__ void __launch_bounds__(32) product_bf16(const ProductArgs args) {
  product<true>(args);
}
extern "C" __global__ void __launch_bounds__(32) product_f16(const ProductArgs args) {
  product<false>(args);
}

struct ProductTf32Args {
  const float* a;  // 16 × 8, row-major
  const float* b;  // 8 × 8, row-major
  float* c;        // 16 × 8, row-major; added to
};
extern "C" __global__ void __launch_bounds__(32) product_tf32(const ProductTf32Args args) {
  const u32 g = lane_index() >> 2, t = lane_index() & 3u;
  const float a[4] = {to_tf32(args.a[8 * g + t]), to_tf32(args.a[8 * (g + 8) + t]),
                      to_tf32(args.a[8 * g + t + 4]), to_tf32(args.a[8 * (g + 8) + t + 4])};
  const float b[2] = {to_tf32(args.b[8 * t + g]), to_tf32(args.b[8 * (t + 4) + g])};
  float c[4] = {args.c[8 * g + 2 * t], args.c[8 * g + 2 * t + 1], args.c[8 * (g + 8) + 2 * t],
                args.c[8 * (g + 8) + 2 * t + 1]};
  mma_tf32(c, a, b);
  args.c[8 * g + 2 * t] = c[0];
  args.c[8 * g + 2 * t + 1] = c[1];
  args.c[8 * (g + 8) + 2 * t] = c[2];
  args.c[8 * (g + 8) + 2 * t + 1] = c[3];
}
