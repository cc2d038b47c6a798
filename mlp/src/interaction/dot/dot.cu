// Dot interaction, computed in f32. One warp takes one sample: it stages the rows of F in shared
// memory, and each lane keeps a tile of the result in registers. Samples need no other than their
// own warp, so there is no barrier of the block anywhere.

// Rows of a gradient tile, a multiple of 4.
#ifndef ROW_TILE
#define ROW_TILE 4
#endif

// Pieces of four elements in a row, the last one filled up with zeros.
constexpr u32 QUADS = (DIM + 3) / 4;
constexpr bool ALIGNED_DIM = DIM % 4 == 0;
// Elements between staged rows: an odd number of quads, so that eight lanes that read eight
// neighbouring rows meet all banks.
constexpr u32 STRIDE = 4 * (QUADS | 1);
constexpr u32 PAIR_SLOTS = (PAIRS + 3) / 4 * 4;
// Tiles of gradients one below the other, and elements of a row of G, which has zeros beyond the
// last of F's rows.
constexpr u32 ROW_GROUPS = (ROWS + ROW_TILE - 1) / ROW_TILE;
constexpr u32 FACTORS = ROW_GROUPS * ROW_TILE;

// The rows [bottom; vectors] of a sample into shared memory, by one warp.
inline __device__ void stage(const Value *bottom, const Pooled *vectors, float *rows, u32 lane,
                             bool aligned) {
    if (ALIGNED_DIM && aligned) {
#pragma unroll 8
        for (u32 i = lane; i < ROWS * QUADS; i += 32) {
            const f32x4 quad = i < QUADS ? load4(bottom + i * 4) : load4(vectors + (i - QUADS) * 4);
            store4(rows + i / QUADS * STRIDE + i % QUADS * 4, quad);
        }
        return;
    }
    for (u32 i = lane; i < ROWS * DIM; i += 32) {
        rows[i / DIM * STRIDE + i % DIM] =
            i < DIM ? to_float(bottom[i]) : to_float(vectors[i - DIM]);
    }
    // Zeros after the last element, of which there are none where DIM is a multiple of 4.
    for (u32 i = lane; i < ROWS * 4; i += 32) {
        const u32 d = QUADS * 4 - 4 + i % 4;
        if (d >= DIM) {
            rows[i / 4 * STRIDE + d] = 0.0f;
        }
    }
}

// A lane's tile is the 4 × 4 products of the rows high + r·CLASSES and low + c·CLASSES: so
// neighbouring lanes read neighbouring rows. A pair of rows falls into one tile with high ≥ low, or
// twice into a tile with high = low.
constexpr u32 CLASSES = (ROWS + 3) / 4;
constexpr u32 TILES = CLASSES * (CLASSES + 1) / 2;

inline __device__ void multiply_tile(const float *rows, u32 high, u32 low, float *products) {
    float sums[4][4] = {};
    const float *left[4], *right[4];
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        // A tile may reach beyond the last row: it takes that row again, and keeps nothing of it.
        left[r] = rows + min(high + r * CLASSES, ROWS - 1) * STRIDE;
        right[r] = rows + min(low + r * CLASSES, ROWS - 1) * STRIDE;
    }
#pragma unroll 1
    for (u32 d = 0; d < QUADS * 4; d += 4) {
        f32x4 x[4], y[4];
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            x[r] = load4(left[r] + d);
            y[r] = load4(right[r] + d);
        }
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                sums[r][c] = fmaf(x[r].x, y[c].x, sums[r][c]);
                sums[r][c] = fmaf(x[r].y, y[c].y, sums[r][c]);
                sums[r][c] = fmaf(x[r].z, y[c].z, sums[r][c]);
                sums[r][c] = fmaf(x[r].w, y[c].w, sums[r][c]);
            }
        }
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
#pragma unroll
        for (u32 c = 0; c < 4; c++) {
            const u32 i = max(high + r * CLASSES, low + c * CLASSES),
                      j = min(high + r * CLASSES, low + c * CLASSES);
            const bool first = high != low || r > c;
            if (first && i < ROWS) {
                products[i * (i - 1) / 2 + j] = sums[r][c];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) dot_forward(const DotForwardArgs a) {
    HL_DYN_SMEM(float, shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *rows = shared + warp * (ROWS * STRIDE + PAIR_SLOTS);
    float *products = rows + ROWS * STRIDE;
    for (u64 sample = (u64)blockIdx.x * WARPS + warp; sample < a.samples;
         sample += (u64)gridDim.x * WARPS) {
        stage(a.bottom + sample * a.bottom_stride, a.vectors + sample * a.vectors_stride, rows,
              lane, a.aligned != 0);
        // All rows are there before any lane multiplies.
        __syncwarp();
        for (u32 tile = lane; tile < TILES; tile += 32) {
            u32 high = 0;
            while ((high + 1) * (high + 2) / 2 <= tile) {
                high++;
            }
            multiply_tile(rows, high, tile - high * (high + 1) / 2, products);
        }
        // All products are there before they are copied out side by side.
        __syncwarp();
        Value *out = a.out + sample * a.out_stride;
        for (u32 d = lane; d < DIM; d += 32) {
            out[d] = from_float<Value>(rows[d]);
        }
        for (u32 pair = lane; pair + 1 <= PAIRS; pair += 32) {
            out[DIM + pair] = from_float<Value>(products[pair]);
        }
        // Everything is read before the next sample is staged over it.
        __syncwarp();
    }
}

// G as a symmetric matrix of zero diagonal, FACTORS a row, by one warp.
inline __device__ void expand(const Value *gradient, float *factors, u32 lane) {
    for (u32 j = lane; j < ROWS; j += 32) {
        factors[j * FACTORS + j] = 0.0f;
        for (u32 i = ROWS; i < FACTORS; i++) {
            factors[j * FACTORS + i] = 0.0f;
        }
    }
#pragma unroll 4
    for (u32 i = 1; i < ROWS; i++) {
        for (u32 j = lane; j < i; j += 32) {
            const float value = to_float(gradient[i * (i - 1) / 2 + j]);
            factors[i * FACTORS + j] = value;
            factors[j * FACTORS + i] = value;
        }
    }
}

// Four neighbouring elements, of which the last quad of a row may have fewer.
template <class T>
inline __device__ void store_quad(T *row, u32 first, f32x4 quad, bool aligned) {
    if (ALIGNED_DIM && aligned) {
        store4(row + first, quad);
        return;
    }
    const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (first + i < DIM) {
            row[first + i] = from_float<T>(values[i]);
        }
    }
}

// A tile of gradients: four columns of ROW_TILE rows, each one chain over the rows of F in order.
inline __device__ void gradient_tile(const DotBackwardArgs &a, u64 sample, const float *rows,
                                     const float *factors, u32 item, Unscale &unscale) {
    const u32 first_row = item / QUADS * ROW_TILE, first = item % QUADS * 4;
    const Value *d_out = a.d_out + sample * a.d_out_stride;
    f32x4 sums[ROW_TILE] = {};
    if (first_row == 0) {
        // The bottom's gradient starts from that of its copy.
        sums[0].x = to_float(d_out[first]);
        sums[0].y = first + 1 < DIM ? to_float(d_out[first + 1]) : 0.0f;
        sums[0].z = first + 2 < DIM ? to_float(d_out[first + 2]) : 0.0f;
        sums[0].w = first + 3 < DIM ? to_float(d_out[first + 3]) : 0.0f;
    }
#pragma unroll 1
    for (u32 j = 0; j < ROWS; j++) {
        const f32x4 x = load4(rows + j * STRIDE + first);
#pragma unroll
        for (u32 i = 0; i < ROW_TILE; i += 4) {
            const f32x4 quad = load4(factors + j * FACTORS + first_row + i);
            const float g[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                f32x4 &sum = sums[i + r];
                sum.x = fmaf(g[r], x.x, sum.x);
                sum.y = fmaf(g[r], x.y, sum.y);
                sum.z = fmaf(g[r], x.z, sum.z);
                sum.w = fmaf(g[r], x.w, sum.w);
            }
        }
    }
    if (first_row == 0) {
        f32x4 sum = sums[0];
        const f32x4 output = load4(rows + first);
        sum.x = !a.relu || output.x > 0.0f ? sum.x : 0.0f;
        sum.y = !a.relu || output.y > 0.0f ? sum.y : 0.0f;
        sum.z = !a.relu || output.z > 0.0f ? sum.z : 0.0f;
        sum.w = !a.relu || output.w > 0.0f ? sum.w : 0.0f;
        store_quad(a.d_bottom + sample * a.d_bottom_stride, first, sum, a.aligned != 0);
    }
    PooledGradient *d_vectors = a.d_vectors + sample * a.d_vectors_stride;
#pragma unroll
    for (u32 i = 0; i < ROW_TILE; i++) {
        const u32 row = first_row + i;
        if (row > 0 && row < ROWS) {
            sums[i] = {unscale(sums[i].x), unscale(sums[i].y), unscale(sums[i].z),
                       unscale(sums[i].w)};
            store_quad(d_vectors + (row - 1) * DIM, first, sums[i], a.aligned != 0);
        }
    }
}

// Shared memory always has room for two blocks. Without the number some shapes are given so few
// registers that they spill.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    dot_backward(const DotBackwardArgs a) {
    HL_DYN_SMEM(float, shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float *rows = shared + warp * ROWS * (STRIDE + FACTORS);
    float *factors = rows + ROWS * STRIDE;
    Unscale unscale = unscale_of(a.unscale);
    for (u64 sample = (u64)blockIdx.x * WARPS + warp; sample < a.samples;
         sample += (u64)gridDim.x * WARPS) {
        stage(a.bottom + sample * a.bottom_stride, a.vectors + sample * a.vectors_stride, rows,
              lane, a.aligned != 0);
        expand(a.d_out + sample * a.d_out_stride + DIM, factors, lane);
        // Rows and factors are there before any lane multiplies.
        __syncwarp();
        for (u32 item = lane; item < ROW_GROUPS * QUADS; item += 32) {
            gradient_tile(a, sample, rows, factors, item, unscale);
        }
        // Everything is read before the next sample is staged over it.
        __syncwarp();
    }
    report(a.unscale, unscale);
}

// ---- samples whose rows do not fit into shared memory: a block takes a sample, a thread an output
// at a time --------------

inline __device__ float feature(const Value *bottom, const Pooled *vectors, u32 row, u32 d) {
    return row == 0 ? to_float(bottom[d]) : to_float(vectors[(row - 1) * DIM + d]);
}

extern "C" __global__ void __launch_bounds__(128) dot_forward_large(const DotForwardArgs a) {
    for (u64 sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const Value *bottom = a.bottom + sample * a.bottom_stride;
        const Pooled *vectors = a.vectors + sample * a.vectors_stride;
        Value *out = a.out + sample * a.out_stride;
        for (u32 d = threadIdx.x; d < DIM; d += blockDim.x) {
            out[d] = bottom[d];
        }
        for (u32 i = 1; i < ROWS; i++) {
            for (u32 j = threadIdx.x; j < i; j += blockDim.x) {
                float sum = 0.0f;
                for (u32 d = 0; d < DIM; d++) {
                    sum = fmaf(feature(bottom, vectors, i, d), feature(bottom, vectors, j, d), sum);
                }
                out[DIM + i * (i - 1) / 2 + j] = from_float<Value>(sum);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) dot_backward_large(const DotBackwardArgs a) {
    Unscale unscale = unscale_of(a.unscale);
    for (u64 sample = blockIdx.x; sample < a.samples; sample += gridDim.x) {
        const Value *bottom = a.bottom + sample * a.bottom_stride;
        const Pooled *vectors = a.vectors + sample * a.vectors_stride;
        const Value *d_out = a.d_out + sample * a.d_out_stride;
        for (u32 item = threadIdx.x; item < ROWS * DIM; item += blockDim.x) {
            const u32 i = item / DIM, d = item % DIM;
            float sum = i == 0 ? to_float(d_out[d]) : 0.0f;
            for (u32 j = 0; j < ROWS; j++) {
                const u32 high = max(i, j), low = min(i, j);
                const float factor =
                    i == j ? 0.0f : to_float(d_out[DIM + high * (high - 1) / 2 + low]);
                sum = fmaf(factor, feature(bottom, vectors, j, d), sum);
            }
            if (i > 0) {
                a.d_vectors[sample * a.d_vectors_stride + item - DIM] =
                    from_float<PooledGradient>(unscale(sum));
            } else {
                const bool passes = !a.relu || to_float(bottom[d]) > 0.0f;
                a.d_bottom[sample * a.d_bottom_stride + d] = from_float<Value>(passes ? sum : 0.0f);
            }
        }
    }
    report(a.unscale, unscale);
}
