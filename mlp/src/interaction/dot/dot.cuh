// What both kinds of kernels of the dot interaction share.

#ifndef NUM_VECTORS
#define NUM_VECTORS 26
#endif
#ifndef DIM
#define DIM 16
#endif
// Types of the bottom output, the result and their gradients, of the vectors, and of the vectors'
// gradients: 0 is f32, 1 f16, 2 bf16.
#ifndef ELEMENT
#define ELEMENT 0
#endif
#ifndef VECTORS
#define VECTORS 0
#endif
#ifndef VECTOR_GRADIENTS
#define VECTOR_GRADIENTS 0
#endif
// Samples a block takes at a time, one a warp.
#ifndef WARPS
#define WARPS 4
#endif

using Value = Element<ELEMENT>;
using Pooled = Element<VECTORS>;
using PooledGradient = Element<VECTOR_GRADIENTS>;

constexpr u32 ROWS = NUM_VECTORS + 1;
constexpr u32 PAIRS = ROWS * (ROWS - 1) / 2;

struct DotForwardArgs {
    const Value *bottom;
    const Pooled *vectors;
    Value *out;
    u64 bottom_stride;
    u64 vectors_stride;
    u64 out_stride;
    u64 samples;
    // Whether the inputs' rows start at multiples of as many elements as the kernel
    // takes at a time, and the result's.
    u32 aligned;
    u32 out_aligned;
};

struct DotBackwardArgs {
    const Value *bottom;
    const Pooled *vectors;
    const Value *d_out;
    Value *d_bottom;
    PooledGradient *d_vectors;
    u64 bottom_stride;
    u64 vectors_stride;
    u64 d_out_stride;
    u64 d_bottom_stride;
    u64 d_vectors_stride;
    UnscaleArgs unscale;
    u64 samples;
    // Whether the inputs' and their gradients' rows start at multiples of as many elements
    // as the kernel takes at a time, and those of the result's gradient.
    u32 aligned;
    u32 out_aligned;
    // Whether the bottom gradient is masked where the bottom output is not above zero.
    u32 relu;
};
