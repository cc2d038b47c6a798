// What a cross layer does apart from its products: one pass over the rows. One warp takes one
// sample, its lanes neighbouring columns.

// Type of all matrices: 0 is f32, 1 f16, 2 bf16.
#ifndef ELEMENT
#define ELEMENT 0
#endif

using Value = Element<ELEMENT>;

struct CrossForwardArgs {
    const Value *x0;
    const Value *h;
    const Value *x;
    Value *y;
    u64 x0_stride;
    u64 h_stride;
    u64 x_stride;
    u64 y_stride;
    u64 samples;
    u64 cols;
};

struct CrossBackwardArgs {
    const Value *x0;
    const Value *h;
    const Value *d_y;
    Value *d_h;
    Value *d_x0;
    u64 x0_stride;
    u64 h_stride;
    u64 d_y_stride;
    u64 d_h_stride;
    u64 d_x0_stride;
    u64 samples;
    u64 cols;
    // Whether d_x0 holds nothing yet.
    u64 is_last;
    // Whether the layer's input is x0.
    u64 is_first;
};

extern "C" __global__ void __launch_bounds__(256) cross_forward(const CrossForwardArgs a) {
    // In bounds: sample < samples, d < cols, and every matrix is samples × cols.
    for (u64 sample = grid_warp(); sample < a.samples; sample += grid_warps()) {
        const Value *x0 = a.x0 + sample * a.x0_stride, *h = a.h + sample * a.h_stride,
                    *x = a.x + sample * a.x_stride;
        Value *y = a.y + sample * a.y_stride;
#pragma unroll 4
        for (u64 d = lane_index(); d < a.cols; d += 32) {
            y[d] = from_float<Value>(fmaf(to_float(x0[d]), to_float(h[d]), to_float(x[d])));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) cross_backward(const CrossBackwardArgs a) {
    // In bounds: as above.
    for (u64 sample = grid_warp(); sample < a.samples; sample += grid_warps()) {
        const Value *x0 = a.x0 + sample * a.x0_stride, *h = a.h + sample * a.h_stride;
        const Value *d_y = a.d_y + sample * a.d_y_stride;
        Value *d_h = a.d_h + sample * a.d_h_stride, *d_x0 = a.d_x0 + sample * a.d_x0_stride;
#pragma unroll 4
        for (u64 d = lane_index(); d < a.cols; d += 32) {
            const float gradient = to_float(d_y[d]);
            const float before = a.is_last != 0 ? 0.0f : to_float(d_x0[d]);
            const float sum = fmaf(gradient, to_float(h[d]), before);
            d_h[d] = from_float<Value>(gradient * to_float(x0[d]));
            d_x0[d] = from_float<Value>(a.is_first != 0 ? sum + gradient : sum);
        }
    }
}
