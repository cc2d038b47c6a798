// Optimiser formulas, bit for bit those of device/src/optimizer.rs: every product, sum, quotient
// and root is rounded by itself, never fused. `OptimizerConstants` and `DeviceStep` have the layout
// of device/src/cuda/step.rs.
#ifndef HL_OPTIMIZER_CUH
#define HL_OPTIMIZER_CUH

// Which optimiser, as `-DHL_OPTIMIZER=`: `OptimizerConstants::define`.
#define HL_SGD 0
#define HL_ADAGRAD 1
#define HL_ROWWISE_ADAGRAD 2
#define HL_ADAM 3
#define HL_FTRL 4
#define HL_LAMB 5

struct DeviceStep {
  float learning_rate;
  u32 number;  // 1 for the first step
  float rate;  // Adam: lr / (1 - β₁ᵗ); LAMB: 1 / (1 - β₁ᵗ)
  float root;  // Adam, LAMB: √(1 - β₂ᵗ)
  u32 skip;    // not 0: the step changes nothing
};
struct OptimizerConstants {
  float epsilon;
  float beta1, beta2;
  float beta, l1, l2;  // LAMB: weight decay in l2
};

// State tensors per element of an optimiser; the row-wise one keeps one number per row instead.
template <i32 kind>
constexpr i32 element_states = kind == HL_ADAGRAD ? 1 : kind == HL_ADAM || kind == HL_FTRL ? 2 : 0;

HL_DEVICE void sgd(float& w, float g, float learning_rate) {
  w = __fsub_rn(w, __fmul_rn(learning_rate, g));
}

HL_DEVICE void adagrad(float& w, float& accumulator, float g, float learning_rate, float epsilon) {
  accumulator = __fadd_rn(accumulator, __fmul_rn(g, g));
  const float root = __fadd_rn(__fsqrt_rn(accumulator), epsilon);
  w = __fsub_rn(w, __fdiv_rn(__fmul_rn(learning_rate, g), root));
}

// The row-wise optimiser's learning rate for a row: `s += mean(g²)`, then lr / (√s + ε) for `sgd`.
HL_DEVICE float rowwise_rate(float& accumulator, float mean_of_squares, float learning_rate,
                             float epsilon) {
  accumulator = __fadd_rn(accumulator, mean_of_squares);
  return __fdiv_rn(learning_rate, __fadd_rn(__fsqrt_rn(accumulator), epsilon));
}

// Adam's moments, and what its step is of them: rate · m / (√v / root + ε).
HL_DEVICE float adam_step(float& m, float& v, float g, const OptimizerConstants& c,
                          const DeviceStep& step) {
  m = __fadd_rn(m, __fmul_rn(__fsub_rn(1.0f, c.beta1), __fsub_rn(g, m)));
  v = __fadd_rn(__fmul_rn(c.beta2, v), __fmul_rn(__fmul_rn(__fsub_rn(1.0f, c.beta2), g), g));
  const float below = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), step.root), c.epsilon);
  return __fdiv_rn(__fmul_rn(step.rate, m), below);
}

HL_DEVICE void adam(float& w, float& m, float& v, float g, const OptimizerConstants& c,
                    const DeviceStep& step) {
  w = __fsub_rn(w, adam_step(m, v, g, c, step));
}

// LAMB's direction before the norms of its tensor; what follows them is `sgd`.
HL_DEVICE float lamb_direction(float w, float& m, float& v, float g, const OptimizerConstants& c,
                               const DeviceStep& step) {
  return __fadd_rn(adam_step(m, v, g, c, step), __fmul_rn(c.l2, w));
}

HL_DEVICE void ftrl(float& w, float& z, float& n, float g, const OptimizerConstants& c,
                    float alpha) {
  const float before = __fsqrt_rn(n);
  n = __fadd_rn(n, __fmul_rn(g, g));
  const float after = __fsqrt_rn(n);
  z = __fadd_rn(z, __fsub_rn(g, __fmul_rn(__fdiv_rn(__fsub_rn(after, before), alpha), w)));
  const float shrunk = copysignf(fmaxf(__fsub_rn(fabsf(z), c.l1), 0.0f), z);
  w = __fdiv_rn(-shrunk, __fadd_rn(__fdiv_rn(__fadd_rn(c.beta, after), alpha), c.l2));
}

// One step of one element. `first` and `second` are its state where the optimiser has them. For the
// row-wise optimiser, `row_rate` is the row's `rowwise_rate`; the others do not read it.
template <i32 kind>
HL_DEVICE void update(float& w, float& first, float& second, float g, const OptimizerConstants& c,
                      const DeviceStep& step, float row_rate = 0.0f) {
  static_assert(kind != HL_LAMB, "LAMB needs the norms of whole tensors");
  if constexpr (kind == HL_SGD) sgd(w, g, step.learning_rate);
  if constexpr (kind == HL_ADAGRAD) adagrad(w, first, g, step.learning_rate, c.epsilon);
  if constexpr (kind == HL_ROWWISE_ADAGRAD) sgd(w, g, row_rate);
  if constexpr (kind == HL_ADAM) adam(w, first, second, g, c, step);
  if constexpr (kind == HL_FTRL) ftrl(w, first, second, g, c, step.learning_rate);
}

// The mean of the squares of a row of `dim` elements by sixteen neighbouring lanes, in the order of
// the CPU's sixteen lanes and tree; the same bits in all sixteen. All 32 lanes of the warp call it,
// each half with a row of its own; `at(i)` is element i.
template <class At>
HL_DEVICE float mean_of_squares16(u32 dim, At at) {
  const u32 lane = lane_index() & 15u, whole = dim & ~15u;
  float sum = 0.0f;
  if (whole + lane < dim) sum = __fmul_rn(at(whole + lane), at(whole + lane));
  for (u32 i = lane; i < whole; i += 16) sum = __fadd_rn(sum, __fmul_rn(at(i), at(i)));
#pragma unroll
  for (i32 step = 8; step > 0; step >>= 1)
    sum = __fadd_rn(sum, __shfl_xor_sync(HL_FULL_MASK, sum, step));
  return __fdiv_rn(sum, static_cast<float>(dim));
}

#endif  // HL_OPTIMIZER_CUH
