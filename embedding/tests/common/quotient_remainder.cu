// Row i is quotient[i / m] * remainder[i % m], element by element: a table whose rows share
// storage.

// `Args` in quotient_remainder.rs.
#ifndef HL_OPTIMIZER
#define HL_OPTIMIZER HL_SGD
#endif

struct Args {
  // Weights and the two states of each part, `rows` of it.
  float* weights[2];
  float* first[2];
  float* second[2];
  // Sums of gradients of both parts, one after the other.
  float* sums;
  const u32* rows;
  const u32* count;
  float* values;
  const DeviceStep* device_step;
  DeviceStep step;
  OptimizerConstants constants;
  u32 part_rows[2];
  u32 dim;
  u32 buckets;
};

extern "C" __global__ void qr_lookup(const Args a) {
  const u64 count = static_cast<u64>(*a.count) * a.dim;
  for (u64 i = grid_thread(); i < count; i += grid_threads()) {
    const u32 row = a.rows[i / a.dim], column = i % a.dim;
    const float quotient = a.weights[0][row / a.buckets * a.dim + column];
    a.values[i] = __fmul_rn(quotient, a.weights[1][row % a.buckets * a.dim + column]);
  }
}

// One thread sums an element of a row of a part, over all rows of the batch in their order.
extern "C" __global__ void qr_sum(const Args a) {
  const u32 count = *a.count, all = (a.part_rows[0] + a.part_rows[1]) * a.dim;
  for (u64 i = grid_thread(); i < all; i += grid_threads()) {
    const u32 column = i % a.dim, half = i / a.dim < a.part_rows[0] ? 0 : 1;
    const u32 mine = i / a.dim - (half == 0 ? 0 : a.part_rows[0]);
    float sum = 0.0f;
    for (u32 entry = 0; entry < count; entry++) {
      const u32 places[2] = {a.rows[entry] / a.buckets, a.rows[entry] % a.buckets};
      if (places[half] == mine) {
        const float other = a.weights[1 - half][places[1 - half] * a.dim + column];
        sum = __fadd_rn(sum, __fmul_rn(a.values[entry * a.dim + column], other));
      }
    }
    a.sums[i] = sum;
  }
}

__device__ bool occurs(const Args& a, u32 half, u32 place) {
  const u32 count = *a.count;
  for (u32 entry = 0; entry < count; entry++) {
    if ((half == 0 ? a.rows[entry] / a.buckets : a.rows[entry] % a.buckets) == place) {
      return true;
    }
  }
  return false;
}

// One warp takes the step of a row of a part.
extern "C" __global__ void qr_step(const Args a) {
  const DeviceStep step = a.device_step != nullptr ? *a.device_step : a.step;
  for (u64 row = grid_warp(); row < a.part_rows[0] + a.part_rows[1]; row += grid_warps()) {
    const u32 half = row < a.part_rows[0] ? 0 : 1, mine = row - (half == 0 ? 0 : a.part_rows[0]);
    if (!occurs(a, half, mine)) {
      continue;
    }
    const float* sums = a.sums + row * a.dim;
    float rate = 0.0f;
    if constexpr (HL_OPTIMIZER == HL_ROWWISE_ADAGRAD) {
      const float mean = mean_of_squares16(a.dim, [&](u32 i) { return sums[i]; });
      float accumulator = a.first[half][mine];
      rate = rowwise_rate(accumulator, mean, step.learning_rate, a.constants.epsilon);
      __syncwarp();
      if (lane_index() == 0) a.first[half][mine] = accumulator;
    }
    for (u32 column = lane_index(); column < a.dim; column += 32) {
      const u32 at = mine * a.dim + column;
      float none = 0.0f;
      float& first = element_states<HL_OPTIMIZER> >= 1 ? a.first[half][at] : none;
      float& second = element_states<HL_OPTIMIZER> >= 2 ? a.second[half][at] : none;
      update<HL_OPTIMIZER>(a.weights[half][at], first, second, sums[column], a.constants, step,
                           rate);
    }
  }
}
