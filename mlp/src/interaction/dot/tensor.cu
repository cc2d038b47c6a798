// Dot interaction in 16 bits on tensor cores. One warp takes one sample after another. It keeps the
// rows of F in shared memory, from where matrix fragments are loaded; with two BUFFERS those of its
// next sample are copied there while it multiplies. What it writes, it gathers in place of rows
// that have been read. Dims are multiples of 16.

// Buffers of a warp: 2 only for vectors of 16 bits, which are copied as they are.
#ifndef BUFFERS
#define BUFFERS 1
#endif

// Tiles of 16 rows.
constexpr u32 TILES = (ROWS + 15) / 16;
// Elements between staged rows: an odd number of 16 bytes, so that eight neighbouring rows meet all
// banks.
constexpr u32 STRIDE = DIM + 8;
// A row of the result, filled up to 16 bytes.
constexpr u32 LINE = (DIM + PAIRS + 7) / 8 * 8;
// Elements of a buffer. Forward the line takes the rows' place. Backward a row of zeros follows the
// rows, where tiles reach beyond the last, and then the gradients' line.
constexpr u32 FORWARD_BUFFER = ROWS * STRIDE > LINE ? ROWS * STRIDE : LINE;
constexpr u32 STAGED_ROWS = ROWS % 16 == 0 ? ROWS : ROWS + 1;
constexpr u32 BACKWARD_BUFFER = STAGED_ROWS * STRIDE + LINE;

inline __device__ void multiply(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (ELEMENT == 1) {
        mma_f16(c, a, b);
    } else {
        mma_bf16(c, a, b);
    }
}

// A row in eights of elements, 16 bytes each.
constexpr u32 EIGHTS = DIM / 8;

// Calls `take` with the places of the lane's eights of COUNT rows, side by side in memory and
// staged in shared memory. Pointers of the lane are made once: those of later eights differ by a
// constant, where a step of the warp is whole rows.
template <u32 COUNT, u32 UNROLL, class T, class V, class Take>
inline __device__ void for_eights(T *memory, V *rows, u32 lane, Take take) {
    T *from = memory + lane * 8;
    V *to = rows + (lane / EIGHTS * STRIDE + lane % EIGHTS * 8);
#pragma unroll(UNROLL)
    for (u32 first = 0; first < COUNT * EIGHTS; first += 32) {
        if (first + lane < COUNT * EIGHTS) {
            if constexpr (32 % EIGHTS == 0) {
                take(from + first * 8, to + first / EIGHTS * STRIDE);
            } else {
                const u32 i = first + lane;
                take(from + first * 8, rows + (i / EIGHTS * STRIDE + i % EIGHTS * 8));
            }
        }
    }
}

// Where an element lies among staged rows.
inline __device__ u32 place_of(u32 i) { return i / DIM * STRIDE + i % DIM; }

// Eight elements as Value, from 16 bytes of them or from 32 bytes of f32.
template <class T> inline __device__ void stage_eight(Value *to, const T *from) {
    if constexpr (sizeof(T) == 2) {
        copy_async16(to, from);
    } else {
        store4(to, load4(from));
        store4(to + 4, load4(from + 4));
    }
}

// Rows that lie side by side into shared memory, by one warp.
template <u32 COUNT, class T>
inline __device__ void stage_rows(Value *rows, const T *from, bool aligned, u32 lane) {
    if (aligned) {
        // Elements of f32 pass through registers: eight for each of four steps.
        for_eights<COUNT, sizeof(T) == 2 ? 16 : 4>(
            from, rows, lane, [](const T *eight, Value *to) { stage_eight(to, eight); });
        return;
    }
#pragma unroll 1
    for (u32 i = lane; i < COUNT * DIM; i += 32) {
        rows[place_of(i)] = from_float<Value>(to_float(from[i]));
    }
}

// The way back, of elements of 16 bits: those of f32 have been stored one by one.
template <u32 COUNT, class T>
inline __device__ void store_rows(T *to, const Value *rows, bool aligned, u32 lane) {
    if constexpr (sizeof(T) == 2) {
        if (aligned) {
            for_eights<COUNT, 16>(to, rows, lane, [](T *eight, const Value *row) {
                store16(eight, load16(row));
            });
            return;
        }
#pragma unroll 1
        for (u32 i = lane; i < COUNT * DIM; i += 32) {
            to[i] = rows[place_of(i)];
        }
    }
}

// Calls `copy` with the first element of each of the lane's eights of a line.
template <class Copy> inline __device__ void for_line(u32 lane, Copy copy) {
#pragma unroll
    for (u32 first = 0; first < LINE / 8; first += 32) {
        if (first + lane < LINE / 8) {
            copy((first + lane) * 8);
        }
    }
}

// What a sample needs, into a buffer.
template <class A>
inline __device__ void stage_rows_of(const A &a, u64 sample, Value *rows, u32 lane) {
    stage_rows<1>(rows, a.bottom + sample * a.bottom_stride, a.aligned, lane);
    if constexpr (NUM_VECTORS > 0) {
        stage_rows<NUM_VECTORS>(rows + STRIDE, a.vectors + sample * a.vectors_stride, a.aligned,
                                lane);
    }
}
inline __device__ void stage(const DotForwardArgs &a, u64 sample, Value *rows, u32 lane) {
    stage_rows_of(a, sample, rows, lane);
}
inline __device__ void stage(const DotBackwardArgs &a, u64 sample, Value *rows, u32 lane) {
    Value *line = rows + STAGED_ROWS * STRIDE;
    const Value *d_out = a.d_out + sample * a.d_out_stride;
    if (a.out_aligned) {
        for_line(lane, [&](u32 i) { copy_async16(line + i, d_out + i); });
    } else {
#pragma unroll 1
        for (u32 i = lane; i < DIM + PAIRS; i += 32) {
            line[i] = d_out[i];
        }
    }
    stage_rows_of(a, sample, rows, lane);
}

// A warp's walk through its samples. It has BUFFERS buffers, of SIZE elements each: one for this
// sample and one for the next, which is on its way, or one for both.
template <u32 SIZE> struct Samples {
    Value *buffers;
    u32 current;
    u64 sample, step;

    inline __device__ explicit Samples(Value *shared)
        : buffers(shared + warp_index() * BUFFERS * SIZE), current(0), sample(grid_warp()),
          step(grid_warps()) {}

    // A group for each sample, an empty one for those that are not there.
    template <class A> inline __device__ void stage_one(const A &a, u64 which, u32 buffer) const {
        if (which < a.samples) {
            stage(a, which, buffers + buffer, lane_index());
        }
        copy_async_commit();
    }
    template <class A> inline __device__ void start(const A &a) const {
        if (BUFFERS == 2) {
            stage_one(a, sample, 0);
        }
    }
    // Waits for this sample, once the next one is on its way.
    template <class A> inline __device__ void wait(const A &a) const {
        stage_one(a, sample + (BUFFERS - 1) * step, (BUFFERS - 1) * SIZE - current);
        copy_async_wait<BUFFERS - 1>();
        // What other lanes have copied is there, too.
        __syncwarp();
    }
    inline __device__ void advance() {
        // Everything is read before another sample is staged over it.
        __syncwarp();
        current = (BUFFERS - 1) * SIZE - current;
        sample += step;
    }
};

// The lane's address for a 16 × 16 fragment at column 0 of the rows from `row` on; for those beyond
// the `last`, that one again.
inline __device__ const Value *fragment(const Value *rows, u32 row, u32 last, u32 lane) {
    return rows + min(row + lane % 16, last) * STRIDE + lane / 16 * 8;
}

// The products of all pairs of rows, each as a lane holds it of C: fragments of 16 × 8.
inline __device__ void multiply_rows(const Value *rows, float (&sums)[TILES][2 * TILES][4],
                                     u32 lane) {
    const Value *from[TILES];
#pragma unroll
    for (u32 m = 0; m < TILES; m++) {
        from[m] = fragment(rows, m * 16, ROWS - 1, lane);
    }
#pragma unroll 2
    for (u32 k = 0; k < DIM; k += 16) {
        u32 a[TILES][4];
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            load_matrices(a[m], from[m] + k);
        }
        // A column of B is a row of F: eight of them are the upper or lower half of a fragment of
        // A. Nothing above the diagonal's tiles is wanted.
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
#pragma unroll
            for (u32 n = 0; n < 2 * (m + 1); n++) {
                const u32 b[2] = {a[n / 2][n % 2], a[n / 2][n % 2 + 2]};
                multiply(sums[m][n], a[m], b);
            }
        }
    }
}

// The products, in the order of the result.
inline __device__ void write_products(const float (&sums)[TILES][2 * TILES][4], Value *products,
                                      u32 lane) {
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
    const u32 lane = lane_index();
    Samples<FORWARD_BUFFER> samples(shared);
    samples.start(a);
    for (; samples.sample < a.samples; samples.advance()) {
        samples.wait(a);
        Value *line = samples.buffers + samples.current;
        float sums[TILES][2 * TILES][4] = {};
        multiply_rows(line, sums, lane);
        // All lanes have loaded the rows; of those only the first stays, as the line's beginning.
        __syncwarp();
        write_products(sums, line + DIM, lane);
        // What fills the line up are zeros: a product with the result may read them.
        if (DIM + PAIRS + lane < LINE) {
            line[DIM + PAIRS + lane] = from_float<Value>(0.0f);
        }
        // The line is complete before it is copied out.
        __syncwarp();
        Value *out = a.out + samples.sample * a.out_stride;
        if (a.out_aligned) {
            for_line(lane, [&](u32 i) { store16(out + i, load16(line + i)); });
        } else {
#pragma unroll 1
            for (u32 i = lane; i < DIM + PAIRS; i += 32) {
                out[i] = line[i];
            }
        }
    }
}

// G at (i, j): symmetric, with zeros on its diagonal and beyond F's rows.
inline __device__ u32 factor(const Value *gradients, u32 i, u32 j) {
    const u32 high = max(i, j), low = min(i, j);
    return i != j && high < ROWS ? gradients[high * (high - 1) / 2 + low].bits : 0;
}

// G's fragments, as A: each lane finds its own elements in the line of gradients.
inline __device__ void load_factors(const Value *gradients, u32 (&g)[TILES][TILES][4], u32 lane) {
#pragma unroll
    for (u32 m = 0; m < TILES; m++) {
#pragma unroll
        for (u32 k = 0; k < TILES; k++) {
#pragma unroll
            for (u32 word = 0; word < 4; word++) {
                const u32 i = m * 16 + word % 2 * 8 + lane / 4;
                const u32 j = k * 16 + word / 2 * 8 + lane % 4 * 2;
                g[m][k][word] = factor(gradients, i, j) | factor(gradients, i, j + 1) << 16;
            }
        }
    }
}

// Two neighbouring elements, of which the first's place is a multiple of two where `aligned`.
template <class T> inline __device__ void store_two(T *to, float x, float y, bool aligned) {
    const T first = from_float<T>(x), second = from_float<T>(y);
    if constexpr (sizeof(T) == 2) {
        if (aligned) {
            *reinterpret_cast<u32 *>(to) = first.bits | (u32)second.bits << 16;
            return;
        }
    } else if (aligned) {
        *reinterpret_cast<float2 *>(to) = {first, second};
        return;
    }
    to[0] = first;
    to[1] = second;
}

// What is made of a row's two neighbouring elements from d on. They take the place of F's, `at`,
// unless they are of f32.
inline __device__ void keep_gradient(const DotBackwardArgs &a, u64 sample, Value *at,
                                     const Value *line, u32 row, u32 d, float x, float y,
                                     Unscale &unscale) {
    if (row == 0) {
        x += to_float(line[d]);
        y += to_float(line[d + 1]);
        x = !a.relu || to_float(at[0]) > 0.0f ? x : 0.0f;
        y = !a.relu || to_float(at[1]) > 0.0f ? y : 0.0f;
        store_two(at, x, y, true);
    } else if (row < ROWS) {
        x = unscale(x);
        y = unscale(y);
        if constexpr (sizeof(PooledGradient) == 2) {
            store_two(at, x, y, true);
        } else {
            store_two(a.d_vectors + sample * a.d_vectors_stride + (row - 1) * DIM + d, x, y,
                      a.aligned);
        }
    }
}

// Sixteen columns of the gradients, G·F; `from`: the lane's addresses for fragments of F.
inline __device__ void gradient_columns(const DotBackwardArgs &a, u64 sample, Value *rows,
                                        const Value *const (&from)[TILES],
                                        const u32 (&g)[TILES][TILES][4], u32 col, u32 lane,
                                        Unscale &unscale) {
    float sums[TILES][2][4] = {};
#pragma unroll
    for (u32 k = 0; k < TILES; k++) {
        // Transposed: a fragment of B has F's rows along k.
        u32 pair[4];
        load_matrices_transposed(pair, from[k] + col);
        const u32 low[2] = {pair[0], pair[1]}, high[2] = {pair[2], pair[3]};
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            multiply(sums[m][0], g[m][k], low);
            multiply(sums[m][1], g[m][k], high);
        }
    }
    // All lanes have loaded these columns of F, and no other columns need them.
    __syncwarp();
    Value *first = rows + (lane / 4 * STRIDE + lane % 4 * 2 + col);
#pragma unroll
    for (u32 m = 0; m < TILES; m++) {
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 below = m * 16 + part % 2 * 8, right = part / 2 * 8;
            const float *pair = sums[m][part / 2] + part % 2 * 2;
            keep_gradient(a, sample, first + (below * STRIDE + right), rows + STAGED_ROWS * STRIDE,
                          below + lane / 4, col + right + lane % 4 * 2, pair[0], pair[1], unscale);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    tensor_backward(const DotBackwardArgs a) {
    HL_DYN_SMEM(Value, shared);
    const u32 lane = lane_index();
    Samples<BACKWARD_BUFFER> samples(shared);
    if constexpr (STAGED_ROWS > ROWS) {
        for (u32 i = lane; i < STRIDE; i += 32) {
            Value *zero = samples.buffers + ROWS * STRIDE + i;
            zero[0] = zero[(BUFFERS - 1) * BACKWARD_BUFFER] = from_float<Value>(0.0f);
        }
    }
    Unscale unscale = unscale_of(a.unscale);
    samples.start(a);
    for (; samples.sample < a.samples; samples.advance()) {
        samples.wait(a);
        Value *rows = samples.buffers + samples.current;
        u32 g[TILES][TILES][4];
        load_factors(rows + STAGED_ROWS * STRIDE + DIM, g, lane);
        const Value *from[TILES];
#pragma unroll
        for (u32 k = 0; k < TILES; k++) {
            from[k] = fragment(rows, k * 16, STAGED_ROWS - 1, lane);
        }
#pragma unroll 1
        for (u32 col = 0; col < DIM; col += 16) {
            gradient_columns(a, samples.sample, rows, from, g, col, lane, unscale);
        }
        // The gradients are complete before they are copied out.
        __syncwarp();
        store_rows<1>(a.d_bottom + samples.sample * a.d_bottom_stride, rows, a.aligned, lane);
        if constexpr (NUM_VECTORS > 0) {
            store_rows<NUM_VECTORS>(a.d_vectors + samples.sample * a.d_vectors_stride,
                                    rows + STRIDE, a.aligned, lane);
        }
    }
    report(a.unscale, unscale);
}
