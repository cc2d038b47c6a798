// Where a step stopped being numbers.

constexpr u32 THREADS = 256;
constexpr u32 MAX_MATRICES = 48;
// Bits of a record: step, place, sample.
constexpr u32 PLACE_BITS = 12, SAMPLE_BITS = 24;

struct Matrix {
    const void *data;
    u64 stride;
    u32 rows;
    u32 cols;
    // Columns of one place, and the number of the first place.
    u32 group;
    u32 place;
    // Type of the elements: 0 is f32, 1 f16, 2 bf16.
    u32 kind;
    u32 unused;
};

struct FindKernelArgs {
    const float *sums;
    const DeviceStep *step;
    unsigned long long *record;
    u32 num_sums;
    u32 num_matrices;
    Matrix matrices[MAX_MATRICES];
};

inline __device__ bool is_finite(float value) { return fabsf(value) <= 3.402823466e38f; }

inline __device__ float element(const Matrix &matrix, u64 at) {
    if (matrix.kind == 0) {
        return static_cast<const float *>(matrix.data)[at];
    }
    return matrix.kind == 1 ? to_float(static_cast<const Element<1> *>(matrix.data)[at])
                            : to_float(static_cast<const Element<2> *>(matrix.data)[at]);
}

extern "C" __global__ void __launch_bounds__(THREADS) find_non_finite(const FindKernelArgs a) {
    bool fits = true;
    for (u32 i = 0; i < a.num_sums; i++) {
        fits = fits && is_finite(a.sums[i]);
    }
    if (fits) {
        return;
    }
    const unsigned long long number = static_cast<unsigned long long>(a.step->number);
    const unsigned long long step = number << (PLACE_BITS + SAMPLE_BITS);
    for (u32 number = 0; number < a.num_matrices; number++) {
        const Matrix matrix = a.matrices[number];
        for (u64 i = grid_thread(); i < (u64)matrix.rows * matrix.cols; i += grid_threads()) {
            const u64 row = i / matrix.cols, col = i % matrix.cols;
            if (!is_finite(element(matrix, row * matrix.stride + col))) {
                const u64 place = matrix.place + col / matrix.group;
                // The least of a step, and of steps the first.
                atomicMin(a.record, step | (unsigned long long)(place << SAMPLE_BITS) |
                                        (unsigned long long)row);
            }
        }
    }
}
