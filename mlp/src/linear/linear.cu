// What dense layers need apart from their products, and instead of an epilogue that the library
// does not have for a shape. Rows lie `stride` elements apart.

// Type of activations and their gradients: 0 is f32, 1 f16, 2 bf16.
#ifndef ELEMENT
#define ELEMENT 0
#endif

using Value = Element<ELEMENT>;
constexpr u32 THREADS = 256;

struct MaskArgs {
    const Value *output;
    Value *gradient;
    u64 output_stride;
    u64 gradient_stride;
    u64 rows;
    u64 cols;
};

struct BiasArgs {
    Value *values;
    const float *bias;
    u64 stride;
    u64 rows;
    u64 cols;
    // Whether negative results become zero.
    u64 relu;
};

struct BiasGradientArgs {
    const Value *gradient;
    float *d_bias;
    // Sums of parts of the rows, parts × cols, where there are several.
    float *sums;
    u64 stride;
    u64 rows;
    u64 cols;
    u64 parts;
    // Whether to add to what d_bias holds.
    u64 accumulate;
};

struct TreeArgs {
    // Blocks of equally many rows, one under the other; used up.
    float *blocks;
    float *total;
    u64 blocks_stride;
    u64 total_stride;
    u64 rows;
    u64 cols;
    u64 count;
    // Whether to add to what the total holds.
    u64 accumulate;
};

// A matrix of f32 and its copy, rows filled up with zeros to `padded_cols`.
struct CopyArgs {
    const float *from;
    Value *to;
    u64 from_stride;
    u64 to_stride;
    u64 rows;
    u64 cols;
    u64 padded_cols;
};

constexpr u32 MAX_COPIES = 16;

// Several of them, one for each y of the grid.
struct CopiesArgs {
    CopyArgs copies[MAX_COPIES];
};

// Calls f(row, col) for all elements of a matrix. Threads stand side by side along a row, as many
// as it has elements, rounded up to a power of two, and on so many rows as a block has room for: so
// no thread divides.
template <class F> inline __device__ void for_each_element(u64 rows, u64 cols, F f) {
    u32 log = 0;
    while (log < 8 && (1u << log) < cols) {
        log++;
    }
    const u32 width = 1u << log;
    for (u64 row = (u64)blockIdx.x * (THREADS >> log) + (threadIdx.x >> log); row < rows;
         row += (u64)gridDim.x * (THREADS >> log)) {
        for (u64 col = threadIdx.x & (width - 1); col < cols; col += width) {
            f(row, col);
        }
    }
}

// Zero where the output is not above zero: the derivative of a ReLU by its output.
extern "C" __global__ void __launch_bounds__(THREADS) mask_gradient(const MaskArgs a) {
    for_each_element(a.rows, a.cols, [&](u64 row, u64 col) {
        if (!(to_float(a.output[row * a.output_stride + col]) > 0.0f)) {
            a.gradient[row * a.gradient_stride + col] = from_float<Value>(0.0f);
        }
    });
}

// Adds a bias to each row, and applies the activation.
extern "C" __global__ void __launch_bounds__(THREADS) add_bias(const BiasArgs a) {
    for_each_element(a.rows, a.cols, [&](u64 row, u64 col) {
        Value &value = a.values[row * a.stride + col];
        const float sum = to_float(value) + a.bias[col];
        // A NaN stays one.
        value = from_float<Value>(a.relu && sum <= 0.0f ? 0.0f : sum);
    });
}

// Sums of the columns over each of the parts of the rows, in order: a block takes 32 columns of a
// part, and its eight warps take the rows in turn.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_gradient_parts(const BiasGradientArgs a) {
    __shared__ float sums[THREADS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 groups = (a.cols + 31) / 32;
    for (u64 item = blockIdx.x; item < groups * a.parts; item += gridDim.x) {
        const u64 part = item / groups, col = item % groups * 32 + lane;
        const u64 end = a.rows * (part + 1) / a.parts;
        float sum = 0.0f;
#pragma unroll 4
        for (u64 row = a.rows * part / a.parts + warp; row < end; row += THREADS / 32) {
            sum += col < a.cols ? to_float(a.gradient[row * a.stride + col]) : 0.0f;
        }
        sums[threadIdx.x] = sum;
        for (u32 distance = THREADS / 2; distance >= 32; distance /= 2) {
            // What a thread adds, another has stored.
            __syncthreads();
            if (threadIdx.x < distance) {
                sums[threadIdx.x] += sums[threadIdx.x + distance];
            }
        }
        if (warp == 0 && col < a.cols) {
            if (a.parts > 1) {
                a.sums[part * a.cols + col] = sums[lane];
            } else {
                a.d_bias[col] = a.accumulate ? a.d_bias[col] + sums[lane] : sums[lane];
            }
        }
        // The first warp has read its sums before the next item's are stored over them.
        __syncthreads();
    }
}

// Adds up the parts in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
    bias_gradient_total(const BiasGradientArgs a) {
    for (u64 col = grid_thread(); col < a.cols; col += grid_threads()) {
        float sum = 0.0f;
#pragma unroll 4
        for (u64 part = 0; part < a.parts; part++) {
            sum += a.sums[part * a.cols + col];
        }
        a.d_bias[col] = a.accumulate ? a.d_bias[col] + sum : sum;
    }
}

// Adds up blocks in the fixed tree of the sums over samples: neighbours first, then pairs of those.
extern "C" __global__ void __launch_bounds__(THREADS) add_blocks(const TreeArgs a) {
    for_each_element(a.rows, a.cols, [&](u64 row, u64 col) {
        float *blocks = a.blocks + row * a.blocks_stride + col;
        const u64 step = a.rows * a.blocks_stride;
        for (u64 distance = 1; distance < a.count; distance *= 2) {
            for (u64 into = 0; into + distance < a.count; into += 2 * distance) {
                blocks[into * step] += blocks[(into + distance) * step];
            }
        }
        float &total = a.total[row * a.total_stride + col];
        total = a.accumulate ? total + blocks[0] : blocks[0];
    });
}

// Rounds matrices of f32 to Value.
extern "C" __global__ void __launch_bounds__(THREADS) copy_rounded(const CopiesArgs a) {
    const CopyArgs &copy = a.copies[blockIdx.y];
    for_each_element(copy.rows, copy.padded_cols, [&](u64 row, u64 col) {
        const float value = col < copy.cols ? copy.from[row * copy.from_stride + col] : 0.0f;
        copy.to[row * copy.to_stride + col] = from_float<Value>(value);
    });
}
