// Concatenation: copies of rows. One warp takes one sample.

// Types of the bottom output, the result and their gradients, and of the vectors and theirs: 0 is
// f32, 1 f16, 2 bf16.
#ifndef ELEMENT
#define ELEMENT 0
#endif
#ifndef VECTORS
#define VECTORS 0
#endif

using Value = Element<ELEMENT>;
using Pooled = Element<VECTORS>;

struct CatForwardArgs {
    const Value *bottom;
    const Pooled *vectors;
    Value *out;
    u64 bottom_stride;
    u64 vectors_stride;
    u64 out_stride;
    u64 samples;
    u64 bottom_cols;
    u64 vectors_cols;
};

struct CatBackwardArgs {
    const Value *bottom;
    const Value *d_out;
    Value *d_bottom;
    Pooled *d_vectors;
    u64 bottom_stride;
    u64 d_out_stride;
    u64 d_bottom_stride;
    u64 d_vectors_stride;
    UnscaleArgs unscale;
    u64 samples;
    u64 bottom_cols;
    u64 vectors_cols;
    // Whether the bottom gradient is masked where the bottom output is not above zero.
    u64 relu;
};

extern "C" __global__ void __launch_bounds__(256) cat_forward(const CatForwardArgs a) {
    const u32 lane = threadIdx.x % 32;
    for (u64 sample = grid_warp(); sample < a.samples; sample += grid_warps()) {
        Value *out = a.out + sample * a.out_stride;
        const Value *bottom = a.bottom + sample * a.bottom_stride;
        const Pooled *vectors = a.vectors + sample * a.vectors_stride;
        for (u64 d = lane; d < a.bottom_cols; d += 32) {
            out[d] = bottom[d];
        }
#pragma unroll 4
        for (u64 d = lane; d < a.vectors_cols; d += 32) {
            out[a.bottom_cols + d] = from_float<Value>(to_float(vectors[d]));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) cat_backward(const CatBackwardArgs a) {
    Unscale unscale = unscale_of(a.unscale);
    const u32 lane = threadIdx.x % 32;
    for (u64 sample = grid_warp(); sample < a.samples; sample += grid_warps()) {
        const Value *d_out = a.d_out + sample * a.d_out_stride,
                    *bottom = a.bottom + sample * a.bottom_stride;
        Value *d_bottom = a.d_bottom + sample * a.d_bottom_stride;
        Pooled *d_vectors = a.d_vectors + sample * a.d_vectors_stride;
        for (u64 d = lane; d < a.bottom_cols; d += 32) {
            d_bottom[d] =
                a.relu == 0 || to_float(bottom[d]) > 0.0f ? d_out[d] : from_float<Value>(0.0f);
        }
// Not four at once: the compiler then spills on sm_100.
#pragma unroll 2
        for (u64 d = lane; d < a.vectors_cols; d += 32) {
            d_vectors[d] = from_float<Pooled>(unscale(to_float(d_out[a.bottom_cols + d])));
        }
    }
    report(a.unscale, unscale);
}
