// Concatenation: copies of rows. One warp takes one sample.

struct CatForwardArgs {
    const float *bottom;
    const float *vectors;
    float *out;
    u64 bottom_stride;
    u64 vectors_stride;
    u64 out_stride;
    u64 samples;
    u64 bottom_cols;
    u64 vectors_cols;
};

struct CatBackwardArgs {
    const float *bottom;
    const float *d_out;
    float *d_bottom;
    float *d_vectors;
    u64 bottom_stride;
    u64 d_out_stride;
    u64 d_bottom_stride;
    u64 d_vectors_stride;
    u64 samples;
    u64 bottom_cols;
    u64 vectors_cols;
    // Whether the bottom gradient is masked where the bottom output is not above zero.
    u64 relu;
};

inline __device__ u64 first_sample() { return ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; }

inline __device__ u64 samples_at_once() { return (u64)gridDim.x * blockDim.x / 32; }

extern "C" __global__ void __launch_bounds__(256) cat_forward(const CatForwardArgs a) {
    const u32 lane = threadIdx.x % 32;
    for (u64 sample = first_sample(); sample < a.samples; sample += samples_at_once()) {
        float *out = a.out + sample * a.out_stride;
        const float *bottom = a.bottom + sample * a.bottom_stride, *vectors = a.vectors + sample * a.vectors_stride;
        for (u64 d = lane; d < a.bottom_cols; d += 32) {
            out[d] = bottom[d];
        }
#pragma unroll 4
        for (u64 d = lane; d < a.vectors_cols; d += 32) {
            out[a.bottom_cols + d] = vectors[d];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) cat_backward(const CatBackwardArgs a) {
    const u32 lane = threadIdx.x % 32;
    for (u64 sample = first_sample(); sample < a.samples; sample += samples_at_once()) {
        const float *d_out = a.d_out + sample * a.d_out_stride, *bottom = a.bottom + sample * a.bottom_stride;
        float *d_bottom = a.d_bottom + sample * a.d_bottom_stride, *d_vectors = a.d_vectors + sample * a.d_vectors_stride;
        for (u64 d = lane; d < a.bottom_cols; d += 32) {
            d_bottom[d] = a.relu == 0 || bottom[d] > 0.0f ? d_out[d] : 0.0f;
        }
#pragma unroll 4
        for (u64 d = lane; d < a.vectors_cols; d += 32) {
            d_vectors[d] = d_out[a.bottom_cols + d];
        }
    }
}
