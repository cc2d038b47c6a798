// The scale of the loss: whether a step is skipped, and what the next scale is.

// Type of the gradients that are looked at: 0 is f32, 2 bf16.
#ifndef SUMMED
#define SUMMED 0
#endif

using Gradient = Element<SUMMED>;

constexpr u32 THREADS = 256;

// Columns of the state, as in `loss_scale.rs`.
constexpr u32 SCALE = 0, INVERSE = 1, GOOD_STEPS = 2, NUM_SKIPPED = 3, SKIP = 4, WAS_SKIPPED = 5,
              WAS_SMALLEST = 6, FIRST_BAD = 7;
constexpr float SMALLEST = 1.0f, LARGEST = 16777216.0f, LARGEST_COUNT = 16777216.0f;
// The bits of 1.0f.
constexpr u32 YES = 0x3f800000u;
// Of the first bad quad, where there is none.
constexpr u32 NO_QUAD = 0xffffffffu;

struct CheckLaunch {
    // The summed gradients of all dense parameters, or those of this rank's part.
    const Gradient *gradients;
    // Becomes 1.0f where ranks have yet to tell each other.
    u32 *overflow;
    u32 *state;
    // `DeviceStep::skip` of the dense parameters' step and of the tables'.
    u32 *skip_dense;
    u32 *skip_sparse;
    u64 quads;
    // The first quad, counted in all gradients.
    u64 first;
};

struct AdjustArgs {
    float *state;
    float *overflow;
    u32 growth_interval;
};

inline __device__ bool is_finite(float value) { return fabsf(value) <= 3.402823466e38f; }

// The first quad of this thread's that is not finite.
inline __device__ u32 first_bad(const CheckLaunch &a) {
    u32 first = NO_QUAD;
    for (u64 i = grid_thread(); i < a.quads; i += grid_threads()) {
        const f32x4 g = load4(a.gradients + 4 * i);
        if (!(is_finite(g.x) && is_finite(g.y) && is_finite(g.z) && is_finite(g.w))) {
            first = min(first, (u32)(a.first + i));
        }
    }
    return first;
}

// Before ranks add the overflow up.
extern "C" __global__ void __launch_bounds__(THREADS) raise_overflow(const CheckLaunch a) {
    if (first_bad(a) != NO_QUAD) {
        atomicOr(a.overflow, YES);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) check_gradients(const CheckLaunch a) {
    const u32 first = first_bad(a);
    // Ranks add up what one of them has raised: any number above zero.
    if (first != NO_QUAD || (grid_thread() == 0 && *a.overflow != 0)) {
        // All threads that find something write the same.
        atomicOr(a.state + SKIP, YES);
        atomicMin(a.state + FIRST_BAD, first);
        atomicOr(a.skip_dense, 1u);
        atomicOr(a.skip_sparse, 1u);
    }
}

// One thread.
extern "C" __global__ void adjust_scale(const AdjustArgs a) {
    float *state = a.state;
    const bool skipped = state[SKIP] != 0.0f;
    float scale = state[SCALE], good = state[GOOD_STEPS] + 1.0f;
    state[WAS_SKIPPED] = state[SKIP];
    const bool is_smallest = skipped && scale <= SMALLEST;
    state[WAS_SMALLEST] = is_smallest ? 1.0f : 0.0f;
    if (!is_smallest) {
        // Bits, and no float's copy: they are those of a NaN.
        reinterpret_cast<u32 *>(state)[FIRST_BAD] = NO_QUAD;
    }
    if (skipped) {
        state[NUM_SKIPPED] = fminf(state[NUM_SKIPPED] + 1.0f, LARGEST_COUNT);
        scale = fmaxf(scale * 0.5f, SMALLEST);
        good = 0.0f;
    } else if (good >= (float)a.growth_interval) {
        scale = fminf(scale * 2.0f, LARGEST);
        good = 0.0f;
    }
    state[SCALE] = scale;
    state[INVERSE] = 1.0f / scale;
    state[GOOD_STEPS] = good;
    state[SKIP] = 0.0f;
    *a.overflow = 0.0f;
}
