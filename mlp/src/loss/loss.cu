// Loss, its gradient and predictions. Arithmetic is f64 within a sample, as on the CPU.
//
// A block of samples of the sum is cut into parts, one thread block each: its threads take samples
// in turn, and a fixed tree adds up what they found. So the order of addition depends only on the
// shape.

// Fewest samples of a part, where a block has several, and most parts of a block.
#ifndef PART
#define PART 1024
#endif
#ifndef MAX_PARTS
#define MAX_PARTS 64
#endif

constexpr u32 BCE_WITH_LOGITS = 0;

struct LossKernelArgs {
    const float *logits;
    const float *labels;
    float *d_logits;
    float *sums;
    u64 logits_stride;
    u64 labels_stride;
    u64 d_logits_stride;
    u64 sums_stride;
    // Sums of parts, max_parts for each block, where that is more than one.
    double *parts;
    // What the gradient is multiplied with besides; null: nothing.
    const float *loss_scale;
    u64 samples;
    u64 block_len;
    u64 blocks;
    // Most parts that a block of samples is cut into.
    u64 max_parts;
    u32 kind;
    float scale;
};

struct LossOf {
    double loss;
    double gradient;
};

// Of the two exponentials only the one that cannot overflow is taken.
inline __device__ double small_exponential(double z) { return exp(z < 0.0 ? z : -z); }

inline __device__ double probability(double z, double small) {
    return (z >= 0.0 ? 1.0 : small) / (1.0 + small);
}

// ln(1 + x): what rounding takes from 1 + x cancels in the quotient (Goldberg, "What every computer
// scientist should know about floating-point arithmetic", theorem 4).
inline __device__ double ln_1p(double x) {
    const double sum = 1.0 + x;
    return sum == 1.0 ? x : log(sum) * x / (sum - 1.0);
}

// A label brings the weight with it, as in `device/src/label.rs`: 0 is label 0 of weight 1.
inline __device__ double weight_of(float label) {
    return __float_as_uint(label) == 0 ? 1.0 : (double)fabsf(label);
}

inline __device__ LossOf loss_of(u32 kind, float logit, float label) {
    const double z = logit, small = small_exponential(z), p = probability(z, small);
    if (kind == BCE_WITH_LOGITS) {
        const double weight = weight_of(label), y = label > 0.0f ? 1.0 : 0.0;
        if (weight == 0.0) {
            // Also where the loss is not finite.
            return {0.0, 0.0};
        }
        // Note: written so that a NaN logit gives a NaN loss.
        return {((z < 0.0 ? 0.0 : z) - z * y + ln_1p(small)) * weight, (p - y) * weight};
    }
    const double y = label;
    return {(p - y) * (p - y), 2.0 * (p - y) * p * (1.0 - p)};
}

// The samples of a block of the sum, and how many parts they are cut into.
struct Block {
    u64 first;
    u64 count;
    u64 parts;
};

inline __device__ Block block_at(const LossKernelArgs &a, u64 index) {
    const u64 first = min(index * a.block_len, a.samples),
              end = min((index + 1) * a.block_len, a.samples);
    const u64 count = end - first;
    return {first, count, min(max(count / PART, (u64)1), (u64)MAX_PARTS)};
}

inline __device__ u64 part_start(const Block &block, u64 part) {
    return block.first + block.count * part / block.parts;
}

// The sum and what rounding it lost.
inline __device__ void store_sum(float *sums, double sum) {
    const float rounded = (float)sum;
    // Infinity less infinity would be NaN.
    const bool finite = fabsf(rounded) <= 3.402823466e38f;
    sums[0] = rounded;
    sums[1] = finite ? (float)(sum - (double)rounded) : 0.0f;
}

// Gradients, and the sums of parts.
extern "C" __global__ void __launch_bounds__(THREADS) loss_parts(const LossKernelArgs a) {
    __shared__ double sums[THREADS];
    const double scale = (double)a.scale * (a.loss_scale != nullptr ? (double)*a.loss_scale : 1.0);
    for (u64 item = blockIdx.x; item < a.blocks * a.max_parts; item += gridDim.x) {
        const Block block = block_at(a, item / a.max_parts);
        const u64 part = item % a.max_parts;
        if (part >= block.parts) {
            continue;
        }
        const u64 end = part_start(block, part + 1);
        double sum = 0.0;
        for (u64 sample = part_start(block, part) + threadIdx.x; sample < end; sample += THREADS) {
            const LossOf each = loss_of(a.kind, a.logits[sample * a.logits_stride],
                                        a.labels[sample * a.labels_stride]);
            sum += each.loss;
            a.d_logits[sample * a.d_logits_stride] = (float)(each.gradient * scale);
        }
        sum = sum_of_block(sums, sum);
        if (threadIdx.x == 0 && a.max_parts == 1) {
            store_sum(a.sums + item * a.sums_stride, sum);
        } else if (threadIdx.x == 0) {
            a.parts[item] = sum;
        }
    }
}

// Adds up the parts of each block.
extern "C" __global__ void __launch_bounds__(THREADS) loss_blocks(const LossKernelArgs a) {
    __shared__ double sums[THREADS];
    for (u64 index = blockIdx.x; index < a.blocks; index += gridDim.x) {
        const Block block = block_at(a, index);
        double sum = 0.0;
        for (u64 part = threadIdx.x; part < block.parts; part += THREADS) {
            sum += a.parts[index * a.max_parts + part];
        }
        sum = sum_of_block(sums, sum);
        if (threadIdx.x == 0) {
            store_sum(a.sums + index * a.sums_stride, sum);
        }
    }
}
