//! A product planned once: descriptions, the algorithm, the stream's workspace.

use super::library::{Description, Layout, Preference, check, handle};
use super::{Epilogue, MatmulArgs, MatmulSpec, Operand};
use crate::cuda::{CudaDevice, CudaStream, DeviceMemory, DevicePtr};
use crate::error::{DeviceError, Result};
use cudarc::cublaslt::sys;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Workspace of a stream: what cuBLASLt's documentation recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;
/// The software device needs little.
const SOFTWARE_WORKSPACE_BYTES: usize = 64 << 10;
/// Algorithms to choose from.
const CANDIDATES: usize = 8;

/// A planned product. Any stream of its device may run it, one thread at a time.
#[derive(Debug)]
pub struct Matmul {
    device: CudaDevice,
    spec: MatmulSpec,
    /// Held while the library reads it: the epilogue's addresses are part of it.
    description: Mutex<Description>,
    a: Layout,
    b: Layout,
    d: Layout,
    /// Those that may be run, in the order in which they are tried.
    algorithms: Vec<Algorithm>,
    /// The one that is run; the library has refused those before it.
    current: AtomicUsize,
    /// Nanoseconds of a run, where that was measured.
    pub(super) nanoseconds: Option<u64>,
}

/// What the library calls an algorithm, with all its settings.
pub(super) type Algorithm = sys::cublasLtMatmulAlgo_t;

impl Matmul {
    pub(super) fn with_algorithms(
        stream: &CudaStream,
        spec: MatmulSpec,
        algorithms: Vec<Algorithm>,
    ) -> Result<Self> {
        let (a, b, d) = layouts(&spec)?;
        Ok(Self {
            device: stream.device().clone(),
            spec,
            description: Mutex::new(Description::new(&spec)?),
            a,
            b,
            d,
            algorithms,
            current: AtomicUsize::new(0),
            nanoseconds: None,
        })
    }

    /// The library's proposals, the one it thinks fastest first; at least one.
    pub(super) fn proposals(stream: &CudaStream, spec: &MatmulSpec) -> Result<Vec<Algorithm>> {
        let handle = handle(stream.device())?;
        let workspace = workspace(stream)?;
        let description = Description::new(spec)?;
        let (a, b, d) = layouts(spec)?;
        // Some versions look at the addresses' alignment already here: any aligned ones.
        description.set_pointers(spec.epilogue, workspace.ptr().0, workspace.ptr().0)?;
        let (of_a, of_b, of_d) = (alignment(&spec.a), alignment(&spec.b), alignment(&spec.d));
        let preference = Preference::new(workspace.bytes(), [of_b, of_a, of_d, of_d])?;
        // SAFETY: plain numbers, for which zeros are values.
        let mut results: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] =
            unsafe { std::mem::zeroed() };
        let mut found = 0;
        // SAFETY: living descriptions; room for as many results as said. The library's A is our B.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                description.0,
                b.0,
                a.0,
                d.0,
                d.0,
                preference.0,
                CANDIDATES as i32,
                results.as_mut_ptr(),
                &mut found,
            )
        };
        check(status, || format!("choosing an algorithm for {spec:?}"))?;
        let usable = |result: &&sys::cublasLtMatmulHeuristicResult_t| {
            result.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
        };
        let usable = results[..found.max(0) as usize].iter().filter(usable);
        let proposals: Vec<_> = usable.map(|result| result.algo).collect();
        if proposals.is_empty() {
            let reason = "cuBLASLt has no algorithm for it".to_owned();
            return Err(DeviceError::Misuse { what: format!("{spec:?}"), reason });
        }
        Ok(proposals)
    }

    /// What it computes.
    pub fn spec(&self) -> &MatmulSpec {
        &self.spec
    }

    /// Nanoseconds of a run, where that was measured.
    pub fn nanoseconds(&self) -> Option<u64> {
        self.nanoseconds
    }

    #[cfg(test)]
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithms.get(self.current.load(Ordering::Relaxed)).copied()
    }

    /// Whether the library has refused all algorithms.
    pub fn is_refused(&self) -> bool {
        self.current.load(Ordering::Relaxed) >= self.algorithms.len()
    }

    /// Enqueues the product. Failures are kept in the stream.
    pub fn run(&self, stream: &CudaStream, args: &MatmulArgs) {
        if !self.try_run(stream, args) {
            let reason = "cuBLASLt refuses all algorithms that it has proposed".to_owned();
            stream.fail(DeviceError::Misuse { what: format!("{:?}", self.spec), reason });
        }
    }

    /// The same; false where the library refuses all algorithms that it has proposed, one after the
    /// other, and nothing was enqueued.
    pub fn try_run(&self, stream: &CudaStream, args: &MatmulArgs) -> bool {
        let mut current = self.current.load(Ordering::Relaxed);
        while let Some(algorithm) = self.algorithms.get(current) {
            if !self.is_refused_now(stream, args, algorithm) {
                return true;
            }
            current += 1;
            self.current.fetch_max(current, Ordering::Relaxed);
        }
        false
    }

    /// Enqueues the product with this algorithm, unless the library refuses it.
    fn is_refused_now(
        &self,
        stream: &CudaStream,
        args: &MatmulArgs,
        algorithm: &Algorithm,
    ) -> bool {
        let mut is_refused = false;
        stream.attempt(|raw| {
            self.check_alignment(args)?;
            let (handle, workspace) = (handle(&self.device)?, workspace(stream)?);
            let description = self.description.lock().unwrap_or_else(PoisonError::into_inner);
            description.set_pointers(self.spec.epilogue, args.bias.0, args.aux.0)?;
            // SAFETY: living descriptions, an algorithm chosen for them, the stream's own
            // workspace; matrices are the caller's, of the described shapes. The library's A is our
            // B.
            let status = unsafe {
                sys::cublasLtMatmul(
                    handle,
                    description.0,
                    std::ptr::from_ref(&args.alpha).cast(),
                    args.b.0 as *const _,
                    self.b.0,
                    args.a.0 as *const _,
                    self.a.0,
                    std::ptr::from_ref(&args.beta).cast(),
                    args.c.0 as *const _,
                    self.d.0,
                    args.d.0 as *mut _,
                    self.d.0,
                    algorithm,
                    workspace.ptr().0 as *mut _,
                    workspace.bytes(),
                    raw.cast(),
                )
            };
            is_refused = is_refusal(status);
            match is_refused {
                true => Ok(()),
                false => check(status, || format!("cublasLtMatmul of {:?}", self.spec)),
            }
        });
        is_refused
    }

    /// The algorithm was chosen for addresses as aligned as the strides are.
    fn check_alignment(&self, args: &MatmulArgs) -> Result<()> {
        let spec = &self.spec;
        for (name, operand, pointer) in
            [("A", &spec.a, args.a), ("B", &spec.b, args.b), ("D", &spec.d, args.d)]
        {
            let alignment = u64::from(alignment(operand));
            if pointer.0 % alignment != 0 {
                let what = format!("{name} at {:#x} of a product of {spec:?}", pointer.0);
                let reason = format!("it was planned for multiples of {alignment} bytes");
                return Err(DeviceError::Misuse { what, reason });
            }
        }
        Ok(())
    }
}

/// Whether the library says that it cannot do this with this algorithm: another one may do.
fn is_refusal(status: sys::cublasStatus_t) -> bool {
    use sys::cublasStatus_t as Status;
    matches!(
        status,
        Status::CUBLAS_STATUS_NOT_SUPPORTED
            | Status::CUBLAS_STATUS_INVALID_VALUE
            | Status::CUBLAS_STATUS_ARCH_MISMATCH
    )
}

/// Layouts of A, B and D as stored.
fn layouts(spec: &MatmulSpec) -> Result<(Layout, Layout, Layout)> {
    let stored = |operand: &Operand, rows: usize, cols: usize| {
        let (rows, cols) = if operand.transposed { (cols, rows) } else { (rows, cols) };
        Layout::new(operand, rows, cols)
    };
    Ok((
        stored(&spec.a, spec.m, spec.k)?,
        stored(&spec.b, spec.k, spec.n)?,
        stored(&spec.d, spec.m, spec.n)?,
    ))
}

pub(super) fn check_spec(spec: &MatmulSpec) -> Result<()> {
    let stored_cols =
        |operand: &Operand, rows: usize, cols: usize| if operand.transposed { rows } else { cols };
    let fits = spec.a.stride >= stored_cols(&spec.a, spec.m, spec.k)
        && spec.b.stride >= stored_cols(&spec.b, spec.k, spec.n)
        && spec.d.stride >= spec.n
        && !spec.d.transposed
        && spec.m.min(spec.n).min(spec.k) > 0;
    if fits {
        return Ok(());
    }
    let reason = "empty, rows that overlap, or a transposed result".to_owned();
    Err(DeviceError::Misuse { what: format!("{spec:?}"), reason })
}

/// Bytes that rows' starts, and so the first one's, are multiples of: at most 16, the widest
/// access.
fn alignment(operand: &Operand) -> u32 {
    let row_bytes = operand.stride * operand.dtype.bytes();
    1 << row_bytes.trailing_zeros().min(4)
}

/// The stream's workspace. Made with its first plan, so that runs, captured ones too, find it.
fn workspace(stream: &CudaStream) -> Result<&DeviceMemory> {
    if let Some(workspace) = stream.workspace().get() {
        return Ok(workspace);
    }
    let bytes =
        if stream.device().is_software() { SOFTWARE_WORKSPACE_BYTES } else { WORKSPACE_BYTES };
    let workspace = DeviceMemory::new(stream.device(), "workspace of matrix products", bytes)?;
    Ok(stream.workspace().get_or_init(|| workspace))
}

impl Epilogue {
    /// Whether it has a mask.
    pub const fn has_aux(self) -> bool {
        matches!(self, Epilogue::ReluAuxBias)
    }

    /// Whether it reads a bias.
    pub const fn has_bias(self) -> bool {
        !matches!(self, Epilogue::None)
    }
}

impl MatmulArgs {
    /// `D = A·B`, with nothing added.
    pub const fn new(a: DevicePtr, b: DevicePtr, d: DevicePtr) -> Self {
        Self { alpha: 1.0, beta: 0.0, a, b, c: d, d, bias: DevicePtr::NULL, aux: DevicePtr::NULL }
    }
}
