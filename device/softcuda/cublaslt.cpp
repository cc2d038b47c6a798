// cublaslt.cpp - the software cublasLt: the functions that Headlong's binding calls, computed on
// the host.
//
// D = epilogue(alpha · op(A)·op(B) + beta · C), matrices by columns. Inputs are f32, f16 or bf16
// (f32 rounded to TF32 where the fast compute type asks for it), every element of the product is
// one chain of fused multiply-adds over k = 0, 1, …: results are the same on every machine that
// fuses.
//
// It refuses what the real library is documented to refuse, and what its kernels need to be told:
// leading dimensions of ReLU masks that are no multiple of 128 bits, auxiliary epilogues of
// misaligned matrices, pointers less aligned than the preference promised when the algorithm was
// chosen, a workspace smaller than the algorithm's. It poisons the workspace.
//
// It proposes four algorithms that compute the same; `softcudaProducts` says which of them are
// refused when they are to run, come to other bits at each run, or are slow.
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cublaslt_faults.h"
#include "cublaslt_names.h"
#include "enqueue.h"

namespace {

const uint32_t KNOWN[] = {DEFAULT, RELU, BIAS, RELU | BIAS, RELU | AUX, RELU | BIAS | AUX};

const int PROPOSALS = 4;
const unsigned SLOW_US = 3000;

const uint64_t MAGIC = 0x74666f735f746c63;
const size_t WORKSPACE = 4096;

struct Desc {
    Compute compute;
    int32_t transposed[2] = {0, 0};
    uint32_t epilogue = DEFAULT;
    void *bias = nullptr;
    void *aux = nullptr;
    int64_t aux_ld = 0;
    int32_t bias_type = UNSET;
};

struct Layout {
    int32_t type;
    int32_t order = 0;
    uint64_t rows;
    uint64_t cols;
    int64_t ld;

    size_t element() const { return type == F32 ? 4 : 2; }
    size_t bytes() const { return rows && cols ? ((cols - 1) * ld + rows) * element() : 0; }
};

struct Preference {
    uint64_t workspace = 0;
    uint32_t reduction_schemes = 7;
    uint32_t alignments[4] = {256, 256, 256, 256};
};

struct Algo {
    uint64_t magic;
    uint64_t workspace;
    uint32_t alignments[4];
    uint64_t number;
    uint64_t rest[3];
};

struct HeuristicResult {
    Algo algo;
    size_t workspace;
    int32_t state;
    float waves;
    int32_t reserved[4];
};
static_assert(sizeof(Algo) == 64 && sizeof(HeuristicResult) == 96, "as in cublasLt.h");

struct Operation {
    Desc desc;
    Layout a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void *d_data;
    float alpha, beta;
    uint64_t m, n, k;
    void *workspace;
    uint64_t workspace_bytes;
    bool varies, is_slow;
};

// ---- elements -----------------------------------------------------------------------------------

float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// To nearest, ties to even, keeping the upper 32 - `cut` bits; a NaN stays one.
uint32_t rounded_bits(float value, int cut) {
    const uint32_t bits = to_bits(value);
    if (value != value) {
        return bits | 0x400000;
    }
    return (bits + ((1u << (cut - 1)) - 1) + ((bits >> cut) & 1)) >> cut << cut;
}

float half_to_float(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31, fraction = half & 1023,
                   sign = (uint32_t)(half & 0x8000) << 16;
    if (exponent == 31) {
        return from_bits(sign | 0x7f800000 | fraction << 13);
    }
    const float magnitude =
        exponent ? from_bits((exponent + 112) << 23 | fraction << 13) : (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

uint16_t float_to_half(float value) {
    const uint16_t sign = to_bits(value) >> 16 & 0x8000;
    const float magnitude = fabsf(value);
    if (value != value) {
        return sign | 0x7e00;
    }
    if (magnitude >= 65520.0f) {
        return sign | 0x7c00;
    }
    if (magnitude < 0x1p-14f) {
        // Subnormal: a multiple of 2⁻²⁴. Adding 0.5 rounds to it, to nearest and ties to even.
        return sign | (uint16_t)(to_bits(magnitude + 0.5f) - to_bits(0.5f));
    }
    return sign | (uint16_t)((rounded_bits(magnitude, 13) >> 13) - (112 << 10));
}

float load(const void *data, int32_t type, uint64_t index) {
    if (type == F32) {
        return static_cast<const float *>(data)[index];
    }
    const uint16_t bits = static_cast<const uint16_t *>(data)[index];
    return type == BF16 ? from_bits((uint32_t)bits << 16) : half_to_float(bits);
}

void store(void *data, int32_t type, uint64_t index, float value) {
    if (type == F32) {
        static_cast<float *>(data)[index] = value;
    } else {
        const uint16_t bits = type == BF16 ? rounded_bits(value, 16) >> 16 : float_to_half(value);
        static_cast<uint16_t *>(data)[index] = bits;
    }
}

// ---- the product --------------------------------------------------------------------------------

const uint64_t ROWS = 32, COLS = 8, DEPTH = 512;
typedef float Vector __attribute__((vector_size(64), aligned(64)));

// `width` rows (or columns) of `count` steps of k, packed step after step, zeros beyond the last.
void pack(const Layout &layout, const void *data, bool along_rows, bool tf32, uint64_t first,
          uint64_t end, uint64_t width, uint64_t k, uint64_t count, float *out) {
    for (uint64_t step = 0; step < count; step++) {
        for (uint64_t i = 0; i < width; i++) {
            const uint64_t at = first + i;
            const uint64_t index =
                along_rows ? (k + step) * layout.ld + at : at * layout.ld + k + step;
            const float value = at < end ? load(data, layout.type, index) : 0.0f;
            out[step * width + i] = tf32 ? from_bits(rounded_bits(value, 13)) : value;
        }
    }
}

// Continues with the chains of a tile of ROWS × COLS elements, `stride` apart between columns.
// The compiler fuses where the processor can.
__attribute__((optimize("O3,fp-contract=fast"),
               target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
void multiply(const float *a, const float *b, uint64_t depth, float *sums, uint64_t stride) {
    Vector tile[COLS][2];
    for (uint64_t j = 0; j < COLS; j++) {
        memcpy(tile[j], sums + j * stride, sizeof tile[j]);
    }
    for (uint64_t k = 0; k < depth; k++) {
        Vector low, high;
        memcpy(&low, a + k * ROWS, 64);
        memcpy(&high, a + k * ROWS + 16, 64);
#pragma GCC unroll 8
        for (uint64_t j = 0; j < COLS; j++) {
            tile[j][0] += low * b[k * COLS + j];
            tile[j][1] += high * b[k * COLS + j];
        }
    }
    for (uint64_t j = 0; j < COLS; j++) {
        memcpy(sums + j * stride, tile[j], sizeof tile[j]);
    }
}

// op(A)·op(B) by columns, `stride` from column to column; room for whole tiles.
std::vector<float> product(const Operation &op, uint64_t stride) {
    const uint64_t cols = (op.n + COLS - 1) / COLS * COLS, panels = stride / ROWS;
    std::vector<float> sums(stride * cols), left(DEPTH * stride), right(DEPTH * COLS);
    const bool tf32 = op.desc.compute == COMPUTE_32F_TF32;
    for (uint64_t k = 0; k < op.k; k += DEPTH) {
        const uint64_t depth = op.k - k < DEPTH ? op.k - k : DEPTH;
        for (uint64_t panel = 0; panel < panels; panel++) {
            pack(op.a, op.a_data, !op.desc.transposed[0], tf32, panel * ROWS, op.m, ROWS, k, depth,
                 left.data() + panel * ROWS * DEPTH);
        }
        for (uint64_t j = 0; j < op.n; j += COLS) {
            pack(op.b, op.b_data, op.desc.transposed[1], tf32, j, op.n, COLS, k, depth,
                 right.data());
            for (uint64_t panel = 0; panel < panels; panel++) {
                multiply(left.data() + panel * ROWS * DEPTH, right.data(), depth,
                         sums.data() + j * stride + panel * ROWS, stride);
            }
        }
    }
    return sums;
}

// ---- the epilogue -------------------------------------------------------------------------------

int32_t bias_type(const Operation &op) {
    return op.desc.bias_type == UNSET ? op.d.type : op.desc.bias_type;
}

float finish(const Operation &op, float sum, uint64_t row, uint64_t col) {
    const uint32_t epilogue = op.desc.epilogue;
    float value = op.alpha * sum;
    if (op.beta != 0.0f) {
        value += op.beta * load(op.c_data, op.c.type, col * op.c.ld + row);
    }
    if (epilogue & BIAS) {
        value += load(op.desc.bias, bias_type(op), row);
    }
    if (epilogue & AUX) {
        uint8_t *mask = static_cast<uint8_t *>(op.desc.aux) + (col * op.desc.aux_ld + row) / 8;
        const uint8_t bit = 1 << row % 8;
        *mask = value > 0.0f ? *mask | bit : *mask & ~bit;
    }
    return epilogue & RELU && value <= 0.0f ? 0.0f : value;
}

bool mapped(const char *what, const void *data, size_t bytes) {
    int device;
    if (bytes == 0 || softcudaIsMapped(data, bytes, &device)) {
        return true;
    }
    fprintf(stderr, "softcuda: cublasLtMatmul: %s, %zu bytes at %p, is not in one allocation\n",
            what, bytes, data);
    return false;
}

bool all_mapped(const Operation &op) {
    const uint32_t epilogue = op.desc.epilogue;
    const size_t bias = op.m * (bias_type(op) == F32 ? 4 : 2);
    return mapped("A", op.a_data, op.a.bytes()) && mapped("B", op.b_data, op.b.bytes()) &&
           mapped("D", op.d_data, op.d.bytes()) &&
           mapped("C", op.c_data, op.beta != 0.0f ? op.c.bytes() : 0) &&
           mapped("the bias", op.desc.bias, epilogue & BIAS ? bias : 0) &&
           mapped("the ReLU mask", op.desc.aux,
                  epilogue & AUX && op.n ? ((op.n - 1) * op.desc.aux_ld + op.m + 7) / 8 : 0) &&
           mapped("the workspace", op.workspace, op.workspace_bytes);
}

// What the meter cannot see: each matrix once, the mask, the product.
void count_traffic(const Operation &op) {
    const auto bytes = [](const Layout &l) { return l.rows * l.cols * (l.type == F32 ? 4 : 2); };
    const uint64_t mask = op.desc.epilogue & AUX ? (op.m + 7) / 8 * op.n : 0;
    const uint64_t c = op.beta != 0.0f ? bytes(op.c) : 0;
    softcudaMoves(bytes(op.a) + bytes(op.b) + c, bytes(op.d) + mask, 2 * op.m * op.n * op.k);
}

int run(const void *argument, void *) {
    const Operation &op = *static_cast<const Operation *>(argument);
    if (!all_mapped(op)) {
        return 700;
    }
    count_traffic(op);
    if (op.workspace_bytes) {
        memset(op.workspace, 0xab, op.workspace_bytes);
    }
    if (op.is_slow) {
        usleep(SLOW_US);
    }
    const uint64_t stride = (op.m + ROWS - 1) / ROWS * ROWS;
    const std::vector<float> sums = product(op, stride);
    for (uint64_t col = 0; col < op.n; col++) {
        for (uint64_t row = 0; row < op.m; row++) {
            const float value = finish(op, sums[col * stride + row], row, col);
            store(op.d_data, op.d.type, col * op.d.ld + row, value);
        }
    }
    static std::atomic<unsigned> runs{0};
    if (op.varies) {
        *static_cast<uint8_t *>(op.d_data) = static_cast<uint8_t>(runs++);
    }
    return 0;
}

// ---- what is supported --------------------------------------------------------------------------

bool is_type(int32_t type) { return type == F32 || type == F16 || type == BF16; }

bool types_fit(const Desc &desc, const Layout &a, const Layout &b, const Layout &c,
               const Layout &d) {
    const bool fast = desc.compute == COMPUTE_32F_TF32;
    if (!is_type(a.type) || a.type != b.type || c.type != d.type || (fast && a.type != F32)) {
        return false;
    }
    const bool output = d.type == F32 || d.type == a.type;
    return output && (desc.bias_type == UNSET || desc.bias_type == d.type);
}

bool shapes_fit(const Desc &desc, const Layout &a, const Layout &b, const Layout &c,
                const Layout &d) {
    const uint64_t m = desc.transposed[0] ? a.cols : a.rows,
                   k = desc.transposed[0] ? a.rows : a.cols;
    const uint64_t n = desc.transposed[1] ? b.rows : b.cols,
                   depth = desc.transposed[1] ? b.cols : b.rows;
    for (const Layout *layout : {&a, &b, &c, &d}) {
        if (layout->ld < (int64_t)layout->rows || layout->order != 0) {
            return false;
        }
    }
    return k == depth && d.rows == m && d.cols == n && c.rows == m && c.cols == n && m && n && k;
}

// Epilogues that keep a mask are kernels of 16-byte accesses.
bool epilogue_fits(const Desc &desc, const Layout *const layouts[4], const uint32_t *alignments) {
    bool known = false;
    for (const uint32_t epilogue : KNOWN) {
        known |= desc.epilogue == epilogue;
    }
    if (!known ||
        (desc.epilogue & AUX && (desc.aux_ld % 128 || desc.aux_ld < (int64_t)layouts[3]->rows))) {
        return false;
    }
    if (!(desc.epilogue & AUX)) {
        return true;
    }
    for (int i = 0; i < 4; i++) {
        if (alignments[i] % 16 || layouts[i]->ld * layouts[i]->element() % 16) {
            return false;
        }
    }
    return true;
}

template <class Field> Status set(Field &field, const void *value, size_t bytes) {
    if (bytes != sizeof field) {
        return INVALID_VALUE;
    }
    memcpy(&field, value, bytes);
    return SUCCESS;
}

template <class T> Status give(T **out, T *made) {
    *out = made;
    return SUCCESS;
}

template <class T> Status destroy(T *made) {
    delete made;
    return SUCCESS;
}

} // namespace

#pragma GCC visibility push(default)
extern "C" {

const char *cublasLtGetStatusName(int status) {
    switch (status) {
    case SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_unknown";
    }
}
const char *cublasLtGetStatusString(int status) { return cublasLtGetStatusName(status); }
size_t cublasLtGetVersion() { return 130000; }
size_t cublasLtGetCudartVersion() { return 13000; }

int cublasLtCreate(int **handle) { return give(handle, new int(0)); }
int cublasLtDestroy(int *handle) { return destroy(handle); }

int cublasLtMatmulDescCreate(Desc **desc, Compute compute, int32_t scale) {
    const bool known =
        compute == COMPUTE_32F || compute == COMPUTE_32F_PEDANTIC || compute == COMPUTE_32F_TF32;
    return known && scale == F32 ? give(desc, new Desc{compute}) : NOT_SUPPORTED;
}
int cublasLtMatmulDescDestroy(Desc *desc) { return destroy(desc); }
int cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case TRANSA: return set(desc->transposed[0], value, bytes);
    case TRANSB: return set(desc->transposed[1], value, bytes);
    case EPILOGUE: return set(desc->epilogue, value, bytes);
    case BIAS_POINTER: return set(desc->bias, value, bytes);
    case AUX_POINTER: return set(desc->aux, value, bytes);
    case AUX_LD: return set(desc->aux_ld, value, bytes);
    case BIAS_TYPE: return set(desc->bias_type, value, bytes);
    default: return NOT_SUPPORTED;
    }
}

int cublasLtMatrixLayoutCreate(Layout **layout, int32_t type, uint64_t rows, uint64_t cols,
                               int64_t ld) {
    return is_type(type) ? give(layout, new Layout{type, 0, rows, cols, ld}) : NOT_SUPPORTED;
}
int cublasLtMatrixLayoutDestroy(Layout *layout) { return destroy(layout); }
int cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value,
                                     size_t bytes) {
    switch (attribute) {
    case LAYOUT_TYPE: return set(layout->type, value, bytes);
    case LAYOUT_ORDER: return set(layout->order, value, bytes);
    case LAYOUT_ROWS: return set(layout->rows, value, bytes);
    case LAYOUT_COLS: return set(layout->cols, value, bytes);
    case LAYOUT_LD: return set(layout->ld, value, bytes);
    default: return NOT_SUPPORTED;
    }
}

int cublasLtMatmulPreferenceCreate(Preference **preference) {
    return give(preference, new Preference);
}
int cublasLtMatmulPreferenceDestroy(Preference *preference) { return destroy(preference); }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value,
                                         size_t bytes) {
    if (attribute == MAX_WORKSPACE) {
        return set(preference->workspace, value, bytes);
    }
    if (attribute == REDUCTION_SCHEMES) {
        return set(preference->reduction_schemes, value, bytes);
    }
    const bool alignment = attribute >= ALIGNMENT_A && attribute <= ALIGNMENT_D;
    return alignment ? set(preference->alignments[attribute - ALIGNMENT_A], value, bytes)
                     : NOT_SUPPORTED;
}

int cublasLtMatmulAlgoGetHeuristic(int *, const Desc *desc, const Layout *a, const Layout *b,
                                   const Layout *c, const Layout *d, const Preference *preference,
                                   int requested, HeuristicResult *results, int *count) {
    *count = 0;
    if (requested < 1) {
        return INVALID_VALUE;
    }
    const Layout *const layouts[4] = {a, b, c, d};
    const bool fits = types_fit(*desc, *a, *b, *c, *d) && shapes_fit(*desc, *a, *b, *c, *d);
    if (!fits || !epilogue_fits(*desc, layouts, preference->alignments)) {
        return NOT_SUPPORTED;
    }
    const uint64_t workspace = preference->workspace < WORKSPACE ? 0 : WORKSPACE;
    HeuristicResult result = {{MAGIC, workspace, {}, 0, {}}, workspace, SUCCESS, 1.0f, {}};
    memcpy(result.algo.alignments, preference->alignments, sizeof result.algo.alignments);
    for (; *count < requested && *count < PROPOSALS; ++*count) {
        result.algo.number = *count;
        results[*count] = result;
    }
    return SUCCESS;
}

int cublasLtMatmulAlgoCheck(int *, const Desc *desc, const Layout *a, const Layout *b,
                            const Layout *c, const Layout *d, const Algo *algo,
                            HeuristicResult *result) {
    const Layout *const layouts[4] = {a, b, c, d};
    const bool fits = algo->magic == MAGIC && types_fit(*desc, *a, *b, *c, *d) &&
                      shapes_fit(*desc, *a, *b, *c, *d);
    if (!fits || !epilogue_fits(*desc, layouts, algo->alignments)) {
        return NOT_SUPPORTED;
    }
    *result = {*algo, algo->workspace, SUCCESS, 1.0f, {}};
    return SUCCESS;
}

int cublasLtMatmul(int *handle, const Desc *desc, const float *alpha, const void *a_data,
                   const Layout *a, const void *b_data, const Layout *b, const float *beta,
                   const void *c_data, const Layout *c, void *d_data, const Layout *d,
                   const Algo *algo, void *workspace, size_t workspace_bytes, void *stream) {
    HeuristicResult checked;
    if (!handle || !algo ||
        cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, algo, &checked) != SUCCESS) {
        return algo ? NOT_SUPPORTED : INVALID_VALUE;
    }
    const uint32_t number = 1u << algo->number;
    if (faults.refused & number || faults.refused_epilogue == desc->epilogue) {
        return NOT_SUPPORTED;
    }
    const void *const data[4] = {a_data, b_data, c_data, d_data};
    for (int i = 0; i < 4; i++) {
        const bool unread = i == 2 && *beta == 0.0f;
        if (!unread && (!data[i] || (uintptr_t)data[i] % algo->alignments[i])) {
            fprintf(stderr,
                    "softcuda: cublasLtMatmul: %c at %p is not aligned as promised (%u bytes)\n",
                    "ABCD"[i], data[i], algo->alignments[i]);
            return INVALID_VALUE;
        }
    }
    if ((desc->epilogue & BIAS && (!desc->bias || (uintptr_t)desc->bias % 16)) ||
        (desc->epilogue & AUX && (!desc->aux || (uintptr_t)desc->aux % 16))) {
        fprintf(stderr,
                "softcuda: cublasLtMatmul: the epilogue's bias %p or mask %p is missing or not "
                "aligned to 16 bytes\n",
                desc->bias, desc->aux);
        return INVALID_VALUE;
    }
    // As documented: in place means the same layout too.
    if ((c_data == d_data && *beta != 0.0f && c->ld != d->ld) ||
        workspace_bytes < algo->workspace || (algo->workspace && (uintptr_t)workspace % 16)) {
        return INVALID_VALUE;
    }
    const uint64_t k = desc->transposed[0] ? a->rows : a->cols;
    const Operation op = {
        *desc, *a, *b, *c, *d, a_data, b_data, c_data, d_data, *alpha, *beta,
        d->rows, d->cols, k, workspace, algo->workspace, (faults.varying & number) != 0,
        (faults.slow & number) || faults.slow_epilogue == desc->epilogue,
    };
    return softcudaEnqueue(stream, "cublasLtMatmul", run, &op, sizeof op, nullptr) == 0
               ? SUCCESS
               : EXECUTION_FAILED;
}

} // extern "C"
#pragma GCC visibility pop
