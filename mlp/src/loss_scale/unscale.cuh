// What an interaction does with gradients of a scaled loss: it divides them, and tells where one is
// not finite.
struct UnscaleArgs {
    // The state of the scale, whose second number is 1 / scale; null where the loss is not scaled.
    const float *state;
    // Becomes 1.0f where a gradient is not finite.
    u32 *overflow;
};

struct Unscale {
    float inverse;
    // Zero as long as all gradients are finite, else NaN: each is added times zero, which takes one
    // instruction.
    float zero;

    inline __device__ float operator()(float gradient) {
        const float result = gradient * inverse;
        zero = fmaf(result, 0.0f, zero);
        return result;
    }
};

inline __device__ Unscale unscale_of(const UnscaleArgs &a) {
    return {a.state != nullptr ? a.state[1] : 1.0f, 0.0f};
}

// Called by each thread, once it has written its gradients.
inline __device__ void report(const UnscaleArgs &a, const Unscale &unscale) {
    if (a.overflow != nullptr && unscale.zero != 0.0f) {
        // The bits of 1.0f, from any thread.
        atomicOr(a.overflow, 0x3f800000u);
    }
}
