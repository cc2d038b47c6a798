// Dot interaction in 16 bits on tensor cores. One warp takes one sample: it stages the rows of F,
// filled up with rows of zeros to a multiple of 16, in shared memory, from where matrix fragments
// are loaded. Dims are multiples of 16.

// Tiles of 16 rows, and all of their rows.
constexpr u32 TILES = (ROWS + 15) / 16;
constexpr u32 ALL_ROWS = TILES * 16;
// Elements between staged rows, of F and of G: an odd number of 16 bytes, so that eight
// neighbouring rows meet all banks.
constexpr u32 STRIDE = DIM + 8;
constexpr u32 FACTORS = ALL_ROWS + 8;
// A row of the result, filled up to 16 bytes.
constexpr u32 LINE = (DIM + PAIRS + 7) / 8 * 8;

inline __device__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (ELEMENT == 1) {
        mma_f16(c, a, b);
    } else {
        mma_bf16(c, a, b);
    }
}

// Eight elements as Value, from 16 bytes of them or from 32 bytes of f32.
template <class T> inline __device__ void stage_eight(Value *to, const T *from) {
    if constexpr (sizeof(T) == 2) {
        copy_async16(to, from);
    } else {
        store4(to, load4(from));
        store4(to + 4, load4(from + 4));
    }
}

// The rows [bottom; vectors] of a sample into shared memory, by one warp.
inline __device__ void stage(const Value *bottom, const Pooled *vectors, Value *rows, u32 lane,
                             bool aligned) {
    if (aligned) {
#pragma unroll 4
        for (u32 i = lane; i < ROWS * DIM / 8; i += 32) {
            Value *to = rows + i / (DIM / 8) * STRIDE + i % (DIM / 8) * 8;
            if (i < DIM / 8) {
                stage_eight(to, bottom + i * 8);
            } else {
                stage_eight(to, vectors + (i - DIM / 8) * 8);
            }
        }
        copy_async_commit();
        copy_async_wait<0>();
        return;
    }
    for (u32 i = lane; i < ROWS * DIM; i += 32) {
        rows[i / DIM * STRIDE + i % DIM] =
            from_float<Value>(i < DIM ? to_float(bottom[i]) : to_float(vectors[i - DIM]));
    }
}

// Zeros into `count` elements, by one warp.
inline __device__ void clear(Value *values, u32 count, u32 lane) {
    for (u32 i = lane; i < count; i += 32) {
        values[i] = from_float<Value>(0.0f);
    }
}

// The lane's row address for a 16 × 16 fragment of A at (row, col) of a matrix by rows.
inline __device__ const Value *row_of_a(const Value *matrix, u32 stride, u32 row, u32 col,
                                        u32 lane) {
    return matrix + (row + lane / 8 % 2 * 8 + lane % 8) * stride + col + lane / 16 * 8;
}

// The same for two neighbouring fragments of B, each 16 × 8: of the transpose of a matrix by rows,
// whose row is B's column.
inline __device__ const Value *row_of_b(const Value *matrix, u32 stride, u32 col, u32 k, u32 lane) {
    return matrix + (col + lane / 16 * 8 + lane % 8) * stride + k + lane / 8 % 2 * 8;
}

// The products of all pairs of rows, into `products` in the order of the result.
inline __device__ void multiply_rows(const Value *rows, Value *products, u32 lane) {
    float sums[TILES][2 * TILES][4] = {};
#pragma unroll 1
    for (u32 k = 0; k < DIM; k += 16) {
        u32 b[2 * TILES][2];
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            u32 pair[4];
            load_matrices(pair, row_of_b(rows, STRIDE, n * 16, k, lane));
            b[2 * n][0] = pair[0];
            b[2 * n][1] = pair[1];
            b[2 * n + 1][0] = pair[2];
            b[2 * n + 1][1] = pair[3];
        }
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            u32 a[4];
            load_matrices(a, row_of_a(rows, STRIDE, m * 16, k, lane));
            // Nothing above the diagonal's tiles is wanted.
#pragma unroll
            for (u32 n = 0; n < 2 * (m + 1); n++) {
                multiply(sums[m][n], a, b[n]);
            }
        }
    }
#pragma unroll
    for (u32 m = 0; m < TILES; m++) {
#pragma unroll
        for (u32 n = 0; n < 2 * (m + 1); n++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 i = m * 16 + lane / 4 + e / 2 * 8, j = n * 8 + lane % 4 * 2 + e % 2;
                if (j < i && i < ROWS) {
                    products[i * (i - 1) / 2 + j] = from_float<Value>(sums[m][n][e]);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) tensor_forward(const DotForwardArgs a) {
    HL_DYN_SMEM(Value, shared);
    const u32 lane = lane_index(), warp = warp_index();
    Value *rows = shared + warp * (ALL_ROWS * STRIDE + LINE);
    Value *line = rows + ALL_ROWS * STRIDE;
    clear(rows + ROWS * STRIDE, (ALL_ROWS - ROWS) * STRIDE, lane);
    clear(line + LINE - 8, 8, lane);
    for (u64 sample = (u64)blockIdx.x * WARPS + warp; sample < a.samples;
         sample += (u64)gridDim.x * WARPS) {
        stage(a.bottom + sample * a.bottom_stride, a.vectors + sample * a.vectors_stride, rows,
              lane, a.aligned != 0);
        // All rows are there before any lane loads fragments.
        __syncwarp();
        multiply_rows(rows, line + DIM, lane);
        for (u32 d = lane; d < DIM; d += 32) {
            line[d] = rows[d];
        }
        // The line is complete before it is copied out.
        __syncwarp();
        Value *out = a.out + sample * a.out_stride;
        if (a.out_aligned) {
            // What fills the line up are zeros: a product with the result may read them.
            for (u32 i = lane; i < LINE / 8; i += 32) {
                store16(out + i * 8, load16(line + i * 8));
            }
        } else {
            for (u32 i = lane; i < DIM + PAIRS; i += 32) {
                out[i] = line[i];
            }
        }
        // Everything is read before the next sample is staged over it.
        __syncwarp();
    }
}

// G as a symmetric matrix from the line of gradients; its diagonal and what fills it up stay zeros.
inline __device__ void expand(const Value *gradients, Value *factors, u32 lane) {
    for (u32 i = 1; i < ROWS; i++) {
        for (u32 j = lane; j < i; j += 32) {
            const Value value = gradients[i * (i - 1) / 2 + j];
            factors[i * FACTORS + j] = value;
            factors[j * FACTORS + i] = value;
        }
    }
}

// Two neighbouring elements of a gradient's row.
template <class T> inline __device__ void store_two(T *to, float x, float y) {
    const u32 high = from_float<T>(y).bits;
    *reinterpret_cast<u32 *>(to) = from_float<T>(x).bits | high << 16;
}
inline __device__ void store_two(float *to, float x, float y) {
    *reinterpret_cast<float2 *>(to) = {x, y};
}

// Sixteen columns of the gradients, G·F.
inline __device__ void gradient_columns(const DotBackwardArgs &a, u64 sample, Value *rows,
                                        const Value *line, const u32 (&g)[TILES][TILES][4], u32 col,
                                        u32 lane, Unscale &unscale) {
    float sums[TILES][2][4] = {};
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        // Transposed: a fragment of B has F's rows along k.
        u32 pair[4];
        load_matrices_transposed(pair, rows + (k * 16 + lane % 16) * STRIDE + col + lane / 16 * 8);
        const u32 low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            multiply(sums[m][0], g[m][k], low);
            multiply(sums[m][1], g[m][k], high);
        }
    }
#pragma unroll
    for (u32 m = 0; m < TILES; m++) {
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 row = m * 16 + lane / 4 + part % 2 * 8, d = col + part / 2 * 8 + lane % 4 * 2;
            float x = sums[m][part / 2][part % 2 * 2], y = sums[m][part / 2][part % 2 * 2 + 1];
            if (row > 0 && row < ROWS) {
                x = unscale(x);
                y = unscale(y);
                Pooled *to = a.d_vectors + sample * a.d_vectors_stride + (row - 1) * DIM + d;
                if (a.aligned) {
                    store_two(to, x, y);
                } else {
                    to[0] = from_float<Pooled>(x);
                    to[1] = from_float<Pooled>(y);
                }
            } else if (row == 0) {
                x += to_float(line[d]);
                y += to_float(line[d + 1]);
                x = !a.relu || to_float(rows[d]) > 0.0f ? x : 0.0f;
                y = !a.relu || to_float(rows[d + 1]) > 0.0f ? y : 0.0f;
                Value *to = a.d_bottom + sample * a.d_bottom_stride + d;
                to[0] = from_float<Value>(x);
                to[1] = from_float<Value>(y);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    tensor_backward(const DotBackwardArgs a) {
    HL_DYN_SMEM(Value, shared);
    const u32 lane = lane_index(), warp = warp_index();
    Value *rows = shared + warp * (ALL_ROWS * (STRIDE + FACTORS) + LINE);
    Value *factors = rows + ALL_ROWS * STRIDE;
    Value *line = factors + ALL_ROWS * FACTORS;
    clear(rows + ROWS * STRIDE, (ALL_ROWS - ROWS) * STRIDE, lane);
    clear(factors, ALL_ROWS * FACTORS, lane);
    Unscale unscale = unscale_of(a.unscale);
    for (u64 sample = (u64)blockIdx.x * WARPS + warp; sample < a.samples;
         sample += (u64)gridDim.x * WARPS) {
        const Value *d_out = a.d_out + sample * a.d_out_stride;
        if (a.out_aligned) {
            for (u32 i = lane; i < LINE / 8; i += 32) {
                copy_async16(line + i * 8, d_out + i * 8);
            }
        } else {
            for (u32 i = lane; i < DIM + PAIRS; i += 32) {
                line[i] = d_out[i];
            }
        }
        copy_async_commit();
        stage(a.bottom + sample * a.bottom_stride, a.vectors + sample * a.vectors_stride, rows,
              lane, a.aligned != 0);
        copy_async_wait<0>();
        // The gradients are there before any lane spreads them out.
        __syncwarp();
        expand(line + DIM, factors, lane);
        // Rows and factors are there before any lane loads fragments.
        __syncwarp();
        u32 g[TILES][TILES][4];
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
#pragma unroll
            for (u32 k = 0; k < TILES; k++) {
                load_matrices(g[m][k], row_of_a(factors, FACTORS, m * 16, k * 16, lane));
            }
        }
#pragma unroll 1
        for (u32 col = 0; col < DIM; col += 16) {
            gradient_columns(a, sample, rows, line, g, col, lane, unscale);
        }
        // Everything is read before the next sample is staged over it.
        __syncwarp();
    }
    report(a.unscale, unscale);
}
