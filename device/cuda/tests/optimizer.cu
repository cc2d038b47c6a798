// One step of an optimiser on rows of DIM elements, half a warp per row: for the tests of
// optimizer.cuh.
#ifndef HL_OPTIMIZER
#define HL_OPTIMIZER HL_ADAGRAD
#endif

struct StepArgs {
  float* weights;
  float* first;   // per element, or per row
  float* second;  // per element
  const float* gradient;
  const DeviceStep* step;
  OptimizerConstants constants;
  u32 rows, dim;
};

extern "C" __global__ void __launch_bounds__(128) optimizer_step(const StepArgs a) {
  constexpr i32 states = element_states<HL_OPTIMIZER>;
  const DeviceStep step = *a.step;
  // All lanes stay until the last row: half-warps reduce together.
  for (u64 pair = grid_warp(); 2 * pair < a.rows; pair += grid_warps()) {
    const u64 row = 2 * pair + (lane_index() >> 4);
    const bool present = row < a.rows;
    const u64 start = (present ? row : 0) * a.dim;
    float rate = 0.0f;
    if (HL_OPTIMIZER == HL_ROWWISE_ADAGRAD) {
      const float mean = mean_of_squares16(a.dim, [&](u32 i) { return a.gradient[start + i]; });
      float accumulator = present ? a.first[row] : 0.0f;
      rate = rowwise_rate(accumulator, mean, step.learning_rate, a.constants.epsilon);
      __syncwarp();  // All lanes have read the accumulator.
      if (present && (lane_index() & 15u) == 0) a.first[row] = accumulator;
    }
    for (u32 i = lane_index() & 15u; present && i < a.dim; i += 16) {
      float none = 0.0f;
      float& first = states > 0 ? a.first[start + i] : none;
      float& second = states > 1 ? a.second[start + i] : none;
      update<HL_OPTIMIZER>(a.weights[start + i], first, second, a.gradient[start + i], a.constants,
                           step, rate);
    }
  }
}
