//! The thin layer over cuBLASLt's C functions: handles that free themselves, statuses as errors.

use super::{Epilogue, Math, MatmulSpec, Operand, aux_stride_bits};
use crate::cuda::libraries::Library;
use crate::cuda::{CudaDevice, driver};
use crate::dtype::DType;
use crate::error::{DeviceError, Result};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as ComputeType, cublasLtEpilogue_t as LtEpilogue,
    cublasLtMatmulDescAttributes_t as DescAttribute,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cudaDataType_t as DataType,
};
use std::ffi::c_void;

/// cuBLASLt's version, such as 130100.
pub fn library_version() -> Result<usize> {
    Library::CublasLt.require()?;
    // SAFETY: the library is open.
    Ok(unsafe { sys::cublasLtGetVersion() })
}

/// A status as an error that says what was being done.
pub(super) fn check(status: sys::cublasStatus_t, what: impl FnOnce() -> String) -> Result<()> {
    if status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    // SAFETY: returns a static C string for every status.
    let text = driver::string(unsafe { sys::cublasLtGetStatusName(status) });
    Err(DeviceError::Driver { what: what(), code: status as i32, text })
}

/// The library's handle on a device; made once and kept, as the device's context is.
pub(crate) fn handle(device: &CudaDevice) -> Result<sys::cublasLtHandle_t> {
    let known = device.blas_handle();
    if let Some(&handle) = known.get() {
        return Ok(handle as sys::cublasLtHandle_t);
    }
    Library::CublasLt.require()?;
    device.bind()?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: the library is open, the device's context current.
    check(unsafe { sys::cublasLtCreate(&mut handle) }, || {
        format!("starting cuBLASLt on {device}")
    })?;
    // Two threads may come at once: one of the two handles stays unused.
    Ok(*known.get_or_init(|| handle as usize) as sys::cublasLtHandle_t)
}

pub(super) fn data_type(dtype: DType) -> Result<DataType> {
    match dtype {
        DType::F32 => Ok(DataType::CUDA_R_32F),
        DType::F16 => Ok(DataType::CUDA_R_16F),
        DType::Bf16 => Ok(DataType::CUDA_R_16BF),
        other => Err(DeviceError::Misuse {
            what: format!("a product of {}", other.name()),
            reason: "matrices are f32, f16 or bf16".to_owned(),
        }),
    }
}

fn epilogue(epilogue: Epilogue) -> LtEpilogue {
    match epilogue {
        Epilogue::None => LtEpilogue::CUBLASLT_EPILOGUE_DEFAULT,
        Epilogue::Bias => LtEpilogue::CUBLASLT_EPILOGUE_BIAS,
        Epilogue::ReluBias => LtEpilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        Epilogue::ReluAuxBias => LtEpilogue::CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
    }
}

/// A handle that frees itself.
macro_rules! dropped_by {
    ($handle:ident, $destroy:ident) => {
        impl Drop for $handle {
            fn drop(&mut self) {
                // SAFETY: made in `new`, destroyed only here.
                unsafe { sys::$destroy(self.0) };
            }
        }
    };
}

/// A description of what is computed.
#[derive(Debug)]
pub(super) struct Description(pub(super) sys::cublasLtMatmulDesc_t);

// SAFETY: a handle that one thread at a time uses: plans keep it under a lock.
unsafe impl Send for Description {}

impl Description {
    pub(super) fn new(spec: &MatmulSpec) -> Result<Self> {
        let compute = match spec.math {
            Math::Full => ComputeType::CUBLAS_COMPUTE_32F,
            Math::Tf32 => ComputeType::CUBLAS_COMPUTE_32F_FAST_TF32,
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is open: plans take its handle first.
        let status =
            unsafe { sys::cublasLtMatmulDescCreate(&mut raw, compute, DataType::CUDA_R_32F) };
        check(status, || "describing a product".to_owned())?;
        let made = Self(raw);
        // cublasOperation_t, which the bindings leave out: 0 takes a matrix as it is, 1 its
        // transpose.
        let op = |operand: &Operand| i32::from(operand.transposed);
        made.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, &op(&spec.b))?;
        made.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, &op(&spec.a))?;
        made.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue(spec.epilogue) as u32))?;
        if spec.epilogue.has_bias() {
            let bias = data_type(spec.bias_dtype)? as u32;
            made.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias)?;
        }
        if spec.epilogue.has_aux() {
            let stride = aux_stride_bits(spec.n) as i64;
            made.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride)?;
        }
        Ok(made)
    }

    pub(super) fn set_pointers(&self, epilogue: Epilogue, bias: u64, aux: u64) -> Result<()> {
        if epilogue.has_bias() {
            self.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if epilogue.has_aux() {
            self.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux)?;
        }
        Ok(())
    }

    fn set<T: Copy>(&self, attribute: DescAttribute, value: &T) -> Result<()> {
        let value: *const c_void = std::ptr::from_ref(value).cast();
        // SAFETY: a living description; the library copies as many bytes as said.
        let status = unsafe {
            sys::cublasLtMatmulDescSetAttribute(self.0, attribute, value, size_of::<T>())
        };
        check(status, || format!("describing a product: {attribute:?}"))
    }
}

dropped_by!(Description, cublasLtMatmulDescDestroy);

/// How a matrix lies in memory: a row-major one is the library's column-major transpose.
#[derive(Debug)]
pub(super) struct Layout(pub(super) sys::cublasLtMatrixLayout_t);

// SAFETY: a description that is only read after it was made.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

impl Layout {
    /// A row-major matrix of `rows × cols`, as stored.
    pub(super) fn new(operand: &Operand, rows: usize, cols: usize) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        let (dtype, stride) = (data_type(operand.dtype)?, operand.stride as i64);
        // SAFETY: the library is open: plans take its handle first.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(&mut raw, dtype, cols as u64, rows as u64, stride)
        };
        check(status, || format!("describing a matrix of {rows} × {cols}"))?;
        Ok(Self(raw))
    }
}

dropped_by!(Layout, cublasLtMatrixLayoutDestroy);

/// How sums that are computed in parts may be added up: as f32 that lie in the workspace. Not in
/// place, where parts come in the order in which they are done, and not in the type of the result,
/// which rounds each part to 16 bits. A mask of cublasLtReductionScheme_t, which the bindings leave
/// out.
const EXACT_REDUCTIONS: u32 = 2;

/// What is promised of pointers and workspace when algorithms are asked for.
pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

impl Preference {
    /// `alignments` of the library's A, B, C and D, bytes.
    pub(super) fn new(workspace_bytes: usize, alignments: [u32; 4]) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is open: plans take its handle first.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&mut raw) };
        check(status, || "describing what algorithms may use".to_owned())?;
        let made = Self(raw);
        let bytes = workspace_bytes as u64;
        made.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes)?;
        let attributes = [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        for (attribute, alignment) in attributes.into_iter().zip(&alignments) {
            made.set(attribute, alignment)?;
        }
        let schemes = PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        made.set(schemes, &EXACT_REDUCTIONS)?;
        Ok(made)
    }

    fn set<T: Copy>(&self, attribute: PreferenceAttribute, value: &T) -> Result<()> {
        let value: *const c_void = std::ptr::from_ref(value).cast();
        // SAFETY: a living preference; the library copies as many bytes as said.
        let status = unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(self.0, attribute, value, size_of::<T>())
        };
        check(status, || format!("{attribute:?}"))
    }
}

dropped_by!(Preference, cublasLtMatmulPreferenceDestroy);
