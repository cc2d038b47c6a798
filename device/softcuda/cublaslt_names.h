// cublaslt_names.h - numbers of cuBLASLt's interface.
#pragma once
#include <cstdint>

// The numbers of cublasStatus_t, cudaDataType_t, cublasComputeType_t, cublasLtEpilogue_t and of the
// attributes (CUDA 13.0).
enum Status {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    INVALID_VALUE = 7,
    EXECUTION_FAILED = 13,
    NOT_SUPPORTED = 15
};
enum Type : int32_t { F32 = 0, F16 = 2, BF16 = 14, UNSET = -1 };
enum Compute : int32_t { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_32F_TF32 = 77 };
enum DescAttribute {
    TRANSA = 3,
    TRANSB = 4,
    EPILOGUE = 7,
    BIAS_POINTER = 8,
    AUX_POINTER = 11,
    AUX_LD = 12,
    BIAS_TYPE = 26
};
enum LayoutAttribute {
    LAYOUT_TYPE = 0,
    LAYOUT_ORDER = 1,
    LAYOUT_ROWS = 2,
    LAYOUT_COLS = 3,
    LAYOUT_LD = 4
};
enum PreferenceAttribute {
    MAX_WORKSPACE = 1,
    REDUCTION_SCHEMES = 3,
    ALIGNMENT_A = 5,
    ALIGNMENT_D = 8
};

// Epilogues are sums of these, DEFAULT aside.
enum Epilogue : uint32_t {
    DEFAULT = 1,
    RELU = 2,
    BIAS = 4,
    AUX = 128,
};
