// Dense optimisers, one pass over the arena of all parameters: four elements a thread at a time.
// Arenas start and end at multiples of 64 bytes, and the gaps between slots hold zeros in
// gradients.

#ifndef HL_OPTIMIZER
#define HL_OPTIMIZER HL_SGD
#endif

// Type of the copies of weights that products read: 1 is f16, 2 bf16; 0: they read the weights.
#ifndef COPIES
#define COPIES 0
#endif

// Type in which ranks have added up gradients, where they have; 0: gradients are f32.
#ifndef SUMMED
#define SUMMED 0
#endif

using Copy = Element<COPIES>;
using Summed = Element<SUMMED>;

constexpr u32 MAX_COPIES = 32;
// Chunks that the norm is summed in, for any length.
constexpr u32 NORM_PARTS = 128;

// The copy of a parameter: `count` elements of the arena from `first` on, rows of `cols`.
struct Copied {
    Copy *to;
    u64 first;
    u32 count;
    u32 cols;
    u32 stride;
    // Whether quads of elements are quads of a row.
    u32 aligned;
};

struct OptimArgs {
    float *weights;
    float *gradients;
    float *first;
    float *second;
    // Where SUMMED is not 0: the gradients that count.
    const Summed *summed;
    const DeviceStep *step;
    // The sum of the squares of all gradients, where they are clipped.
    const double *sum_of_squares;
    // The state of the loss scale, whose second number is 1 / scale; null: the loss is not scaled.
    const float *loss_scale;
    // Quads of elements.
    u64 quads;
    OptimizerConstants constants;
    float clip;
    // In the order of the arena.
    u32 num_copies;
    Copied copies[MAX_COPIES];
};

struct NormArgs {
    const float *gradients;
    const Summed *summed;
    // NORM_PARTS sums, one a chunk.
    double *sums;
    // The sum of them; it may be the first.
    double *total;
    // Of all gradients, and of a chunk.
    u64 quads;
    u64 chunk_quads;
    // The chunks that this rank sums.
    u32 begin;
    u32 end;
};

inline __device__ f32x4 gradients_of(const float *gradients, const Summed *summed, u64 quad) {
    return SUMMED != 0 ? load4(summed + 4 * quad) : load4(gradients + 4 * quad);
}

extern "C" __global__ void __launch_bounds__(THREADS) norm_parts(const NormArgs a) {
    __shared__ double sums[THREADS];
    for (u32 part = a.begin + blockIdx.x; part < a.end; part += gridDim.x) {
        const u64 start = part * a.chunk_quads, after = start + a.chunk_quads;
        const u64 end = after < a.quads ? after : a.quads;
        double sum = 0.0;
        for (u64 i = start + threadIdx.x; i < end; i += THREADS) {
            const f32x4 g = gradients_of(a.gradients, a.summed, i);
            sum +=
                ((double)g.x * g.x + (double)g.y * g.y) + ((double)g.z * g.z + (double)g.w * g.w);
        }
        sum = sum_of_block(sums, sum);
        if (threadIdx.x == 0) {
            a.sums[part] = sum;
        }
    }
}

// One block.
extern "C" __global__ void __launch_bounds__(THREADS) norm_total(const NormArgs a) {
    __shared__ double sums[THREADS];
    const double sum = sum_of_block(sums, threadIdx.x < NORM_PARTS ? a.sums[threadIdx.x] : 0.0);
    if (threadIdx.x == 0) {
        *a.total = sum;
    }
}

// PyTorch's factor: at most 1, and a little less than clip / norm. A NaN norm gives a NaN factor,
// so that a broken step shows.
inline __device__ float clip_factor(double norm, float clip) {
    const double factor = (double)clip / (norm + 1e-6);
    return factor >= 1.0 ? 1.0f : (float)factor;
}

// What gradients are multiplied by: unscaled, then clipped.
inline __device__ float gradient_factor(const float *loss_scale, const double *sum_of_squares,
                                        float clip) {
    const float unscale = loss_scale != nullptr ? loss_scale[1] : 1.0f;
    return unscale *
           (sum_of_squares ? clip_factor(sqrt(*sum_of_squares) * (double)unscale, clip) : 1.0f);
}

// Rounds a quad of the arena into the copy that it belongs to. `number` is that of the thread's
// last quad, or before: quads rise.
inline __device__ void copy_quad(const OptimArgs &a, u32 &number, u64 quad, float4 w) {
    const u64 element = quad * 4;
    while (number + 1 < a.num_copies && a.copies[number + 1].first <= element) {
        number++;
    }
    const Copied &copy = a.copies[number];
    // Slots start at multiples of 16 elements, so that a quad belongs to one; after its last
    // element is a gap.
    const u64 start = element - copy.first;
    if (element < copy.first || start >= copy.count) {
        return;
    }
    u32 row = (u32)start / copy.cols, col = (u32)start % copy.cols;
    if (copy.aligned) {
        store4(copy.to + (u64)row * copy.stride + col, f32x4{w.x, w.y, w.z, w.w});
        return;
    }
    const float values[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (start + i < copy.count) {
            copy.to[(u64)row * copy.stride + col] = from_float<Copy>(values[i]);
        }
        col++;
        if (col == copy.cols) {
            row++;
            col = 0;
        }
    }
}

constexpr i32 STATES = element_states<HL_OPTIMIZER>;

extern "C" __global__ void __launch_bounds__(THREADS) optim_step(const OptimArgs a) {
    const DeviceStep step = *a.step;
    if (step.skip != 0) {
        return;
    }
    const float factor = gradient_factor(a.loss_scale, a.sum_of_squares, a.clip);
    float4 *weights = reinterpret_cast<float4 *>(a.weights),
           *gradients = reinterpret_cast<float4 *>(a.gradients);
    float4 *first = reinterpret_cast<float4 *>(a.first),
           *second = reinterpret_cast<float4 *>(a.second);
    u32 copy = 0;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < a.quads;
         i += (u64)gridDim.x * THREADS) {
        float4 w = weights[i];
        const f32x4 summed = gradients_of(a.gradients, a.summed, i);
        float4 g = {summed.x, summed.y, summed.z, summed.w};
        float4 m = STATES >= 1 ? first[i] : w, v = STATES >= 2 ? second[i] : w;
        if (factor != 1.0f) {
            g = {g.x * factor, g.y * factor, g.z * factor, g.w * factor};
            // As on the CPU, the gradients stay clipped.
            if (SUMMED == 0) {
                gradients[i] = g;
            }
        }
        update<HL_OPTIMIZER>(w.x, m.x, v.x, g.x, a.constants, step);
        update<HL_OPTIMIZER>(w.y, m.y, v.y, g.y, a.constants, step);
        update<HL_OPTIMIZER>(w.z, m.z, v.z, g.z, a.constants, step);
        update<HL_OPTIMIZER>(w.w, m.w, v.w, g.w, a.constants, step);
        weights[i] = w;
        if (COPIES != 0) {
            copy_quad(a, copy, i, w);
        }
        if (STATES >= 1) {
            first[i] = m;
        }
        if (STATES >= 2) {
            second[i] = v;
        }
    }
}

// LAMB, one tensor at a time: gradients become directions, then directions times the trust ratio of
// their tensor. Norms are summed in the order of the CPU: chunks of `chunk_len` elements, eight
// lanes each, then a tree over LAMB_CHUNKS.
constexpr u32 MAX_TENSORS = 32;
constexpr u32 LAMB_CHUNKS = 1024;
// A block takes the chunks whose lanes are its threads.
constexpr u32 LAMB_LANES = 8;
constexpr u32 CHUNKS_OF_BLOCK = THREADS / LAMB_LANES;
constexpr u32 LAMB_BLOCKS = LAMB_CHUNKS / CHUNKS_OF_BLOCK;
static_assert(LAMB_CHUNKS == 4 * THREADS, "a thread adds up four chunks");

// A parameter: `count` elements of the arena from `first` on.
struct Tensor {
    u64 first;
    // Where the sums of its chunks begin.
    u64 sums;
    u32 count;
    u32 chunk_len;
};

struct LambArgs {
    const float *weights;
    // Directions afterwards.
    float *gradients;
    float *first;
    float *second;
    const Summed *summed;
    const DeviceStep *step;
    const double *sum_of_squares;
    const float *loss_scale;
    // Two a chunk: of squares of weights, and of directions.
    double *sums;
    // The elements of the arena that this rank moves: whole chunks. States begin with the first.
    u64 begin;
    u64 end;
    OptimizerConstants constants;
    float clip;
    u32 unused;
    Tensor tensors[MAX_TENSORS];
};

// The sum of a chunk's eight lanes, which are neighbouring threads; for the first of them.
inline __device__ double sum_of_lanes(double *sums, double mine) {
    __syncthreads();
    sums[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x % LAMB_LANES != 0) {
        return 0.0;
    }
    const double *lanes = sums + threadIdx.x;
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

extern "C" __global__ void __launch_bounds__(THREADS) lamb_directions(const LambArgs a) {
    __shared__ double sums[THREADS];
    const DeviceStep step = *a.step;
    const Tensor tensor = a.tensors[blockIdx.x / LAMB_BLOCKS];
    const u32 first_chunk = blockIdx.x % LAMB_BLOCKS * CHUNKS_OF_BLOCK;
    // All threads of a block leave, or none.
    if (step.skip != 0 || (u64)first_chunk * tensor.chunk_len >= tensor.count) {
        return;
    }
    const float factor = gradient_factor(a.loss_scale, a.sum_of_squares, a.clip);
    const u32 chunk = first_chunk + threadIdx.x / LAMB_LANES;
    const u64 start = tensor.first + (u64)chunk * tensor.chunk_len;
    const u64 after = start + tensor.chunk_len, last = tensor.first + tensor.count;
    // None of a chunk that is not this rank's: few numbers stay in registers in the loop.
    const bool is_present = start >= a.begin && start < a.end && start < last;
    const u32 len = !is_present ? 0 : (u32)((after < last ? after : last) - start);
    double of_weights = 0.0, of_directions = 0.0;
    for (u32 k = threadIdx.x % LAMB_LANES; k < len; k += LAMB_LANES) {
        const u64 i = start + k;
        const float w = a.weights[i], g = SUMMED != 0 ? to_float(a.summed[i]) : a.gradients[i];
        const float direction =
            lamb_direction(w, a.first[i - a.begin], a.second[i - a.begin],
                           factor != 1.0f ? g * factor : g, a.constants, step);
        a.gradients[i] = direction;
        // Products of two floats are exact in f64.
        of_weights += (double)w * w;
        of_directions += (double)direction * direction;
    }
    of_weights = sum_of_lanes(sums, of_weights);
    of_directions = sum_of_lanes(sums, of_directions);
    if (len > 0 && threadIdx.x % LAMB_LANES == 0) {
        double *into = a.sums + tensor.sums + 2 * (first_chunk + threadIdx.x / LAMB_LANES);
        into[0] = of_weights;
        into[1] = of_directions;
    }
}

// The norm from every second of the sums of a tensor's chunks, of which `present` have elements;
// for thread 0.
inline __device__ double lamb_norm(double *shared, const double *sums, u32 present) {
    const u32 at = threadIdx.x;
    double quarters[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        quarters[i] = at + i * THREADS < present ? sums[2 * (at + i * THREADS)] : 0.0;
    }
    return sqrt(
        sum_of_block(shared, (quarters[0] + quarters[2]) + (quarters[1] + quarters[3])));
}

// The grid of `lamb_directions`, after it.
extern "C" __global__ void __launch_bounds__(THREADS) lamb_scale(const LambArgs a) {
    __shared__ double shared[THREADS];
    __shared__ float ratio;
    const Tensor tensor = a.tensors[blockIdx.x / LAMB_BLOCKS];
    const u64 len = (u64)CHUNKS_OF_BLOCK * tensor.chunk_len;
    // What of this block's elements is this rank's.
    const u64 first = tensor.first + blockIdx.x % LAMB_BLOCKS * len, after = first + len;
    const u64 last = tensor.first + tensor.count;
    const u64 start = first > a.begin ? first : a.begin;
    const u64 before = after < last ? after : last, end = before < a.end ? before : a.end;
    if (a.step->skip != 0 || start >= end) {
        return;
    }
    const u32 present = (tensor.count + tensor.chunk_len - 1) / tensor.chunk_len;
    const double *sums = a.sums + tensor.sums;
    const double of_weights = lamb_norm(shared, sums, present);
    const double of_directions = lamb_norm(shared, sums + 1, present);
    if (threadIdx.x == 0) {
        // A NaN norm gives a NaN ratio, so that a broken step shows.
        const bool has_ratio = of_weights != 0.0 && of_directions != 0.0;
        ratio = has_ratio ? (float)(of_weights / of_directions) : 1.0f;
    }
    __syncthreads();
    for (u64 i = start + threadIdx.x; i < end; i += THREADS) {
        a.gradients[i] *= ratio;
    }
}
