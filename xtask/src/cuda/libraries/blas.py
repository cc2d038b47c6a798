"""What the real libraries answer without a device: NVRTC CUBLASLT, then NAME=VALUE...

Each value is an enumerator's, as cudarc declares it. Exits with 1 at the first wrong answer.
"""

import ctypes
import sys
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

nvrtc, lt = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:3]]
value = {name: int(number, 0) for name, number in (word.split("=") for word in sys.argv[3:])}


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: expected {expected}, found {found}")


major, minor = c_int(), c_int()
expect("nvrtcVersion", nvrtc.nvrtcVersion(byref(major), byref(minor)), 0)
lt.cublasLtGetVersion.restype = c_size_t
lt.cublasLtGetStatusName.restype = ctypes.c_char_p
print(f"NVRTC {major.value}.{minor.value}")
print(f"cuBLASLt {lt.cublasLtGetVersion()}")
expect("name of status 0", lt.cublasLtGetStatusName(0), b"CUBLAS_STATUS_SUCCESS")

F32, BF16 = value["CUDA_R_32F"], value["CUDA_R_16BF"]
# A product, each attribute with the type that `blas/library.rs` gives it.
for compute in ("CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_32F_FAST_TF32"):
    product = c_void_p()
    made = lt.cublasLtMatmulDescCreate(byref(product), value[compute], F32)
    expect("cublasLtMatmulDescCreate", made, 0)

    def describe(name, number):
        code = lt.cublasLtMatmulDescSetAttribute(
            product, value[name], byref(number), c_size_t(ctypes.sizeof(number))
        )
        expect(f"setting {name}", code, 0)
        # Half the bytes must be refused: else no size is looked at.
        half = c_size_t(ctypes.sizeof(number) // 2)
        code = lt.cublasLtMatmulDescSetAttribute(product, value[name], byref(number), half)
        if code == 0:
            sys.exit(f"setting {name} with half its bytes is not refused")

    describe("CUBLASLT_MATMUL_DESC_TRANSA", c_int32(1))
    describe("CUBLASLT_MATMUL_DESC_TRANSB", c_int32(1))
    for name in sorted(value):
        if name.startswith("CUBLASLT_EPILOGUE_"):
            describe("CUBLASLT_MATMUL_DESC_EPILOGUE", c_uint32(value[name]))
    describe("CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE", c_uint32(BF16))
    describe("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD", c_int64(128))
    describe("CUBLASLT_MATMUL_DESC_BIAS_POINTER", c_uint64(256))
    describe("CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER", c_uint64(256))
    expect("cublasLtMatmulDescDestroy", lt.cublasLtMatmulDescDestroy(product), 0)

for kind in ("CUDA_R_32F", "CUDA_R_16F", "CUDA_R_16BF"):
    layout = c_void_p()
    shape = (c_uint64(64), c_uint64(32), c_int64(64))
    made = lt.cublasLtMatrixLayoutCreate(byref(layout), value[kind], *shape)
    expect("cublasLtMatrixLayoutCreate", made, 0)
    expect("cublasLtMatrixLayoutDestroy", lt.cublasLtMatrixLayoutDestroy(layout), 0)

preference = c_void_p()
expect("preference", lt.cublasLtMatmulPreferenceCreate(byref(preference)), 0)
for name in sorted(value):
    if name.startswith("CUBLASLT_MATMUL_PREF_"):
        number = c_uint64(1 << 20) if name.endswith("WORKSPACE_BYTES") else c_uint32(2 | 4)
        number = c_uint32(16) if "ALIGNMENT" in name else number
        code = lt.cublasLtMatmulPreferenceSetAttribute(
            preference, value[name], byref(number), c_size_t(ctypes.sizeof(number))
        )
        expect(f"setting {name}", code, 0)
expect("preference", lt.cublasLtMatmulPreferenceDestroy(preference), 0)

# What needs a device is refused, and does not crash; with a driver it may be taken.
handle = c_void_p()
code = lt.cublasLtCreate(byref(handle))
print(f"cublasLtCreate without a device: {lt.cublasLtGetStatusName(code).decode()}")
