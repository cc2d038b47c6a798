//! What the CUDA bodies of this crate share: sizes of grids, scratch memory, planned products; and
//! the list of all kernels.

use headlong_device::DType;
use headlong_device::cuda::blas::{Alternative, Matmul, MatmulSpec};
use headlong_device::cuda::{Build, CudaFiles, CudaStream, DeviceMemory};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

/// Threads of a block of elementwise kernels.
pub(crate) const THREADS: u32 = 256;

/// Blocks of such a kernel for each multiprocessor: all that can be there at once.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Bytes of [`scratch`].
pub(crate) const SCRATCH_BYTES: usize = 1 << 20;

/// Blocks for `items` pieces of work, a block each, of which some take several in turn.
pub(crate) fn blocks(stream: &CudaStream, items: usize) -> u32 {
    let most = stream.device().multiprocessors() * BLOCKS_PER_MULTIPROCESSOR;
    u32::try_from(items).unwrap_or(u32::MAX).min(most)
}

type Scratch = HashMap<(u32, usize), Arc<DeviceMemory>>;

/// Memory for what one op hands from its first kernel to its second: never from one op to another.
/// Each stream has its own, made at its first use; a stream's work is in order, so that nothing
/// else uses it meanwhile.
pub(crate) fn scratch(stream: &CudaStream) -> Option<Arc<DeviceMemory>> {
    // Note: one table per process, as streams and contexts are the process's; entries of streams
    // that are gone stay for the next stream of the same address.
    static SCRATCH: LazyLock<Mutex<Scratch>> = LazyLock::new(Mutex::default);
    let mut all = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (stream.device().ordinal(), stream.raw() as usize);
    if let Some(memory) = all.get(&key) {
        return Some(Arc::clone(memory));
    }
    match DeviceMemory::new(stream.device(), "scratch of the dense network", SCRATCH_BYTES) {
        Ok(memory) => Some(Arc::clone(all.entry(key).or_insert(Arc::new(memory)))),
        Err(error) => {
            stream.fail(error);
            None
        }
    }
}

/// A plan, or why there is none.
type Planned = Result<Arc<Matmul>, Arc<str>>;

/// Up to two epilogues, in no memory of their own: eager steps look each product up.
pub(crate) type Alternatives = [Option<Alternative>; 2];

type Plans = HashMap<(u32, Arc<CudaFiles>, MatmulSpec, Alternatives), Planned>;

/// The plan of a product with one of several epilogues, made at its first use; or why there is
/// none: most often, the library has no algorithm for it.
pub(crate) fn product(
    stream: &CudaStream,
    spec: MatmulSpec,
    alternatives: Alternatives,
) -> Planned {
    // Note: one table per process, as with kernels. Plans are few: one for each layer, op and size
    // of batch.
    static PLANS: LazyLock<RwLock<Plans>> = LazyLock::new(RwLock::default);
    let files = Arc::clone(stream.device().files());
    let key = (stream.device().ordinal(), files, spec, alternatives);
    if let Some(plan) = PLANS.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return plan.clone();
    }
    let alternatives: Vec<Alternative> = alternatives.into_iter().flatten().collect();
    let plan = Matmul::fastest_of(stream, spec, &alternatives);
    let plan: Planned = plan.map(Arc::new).map_err(|error| error.to_string().into());
    // What fails because a graph is being captured works afterwards, and what this stream has
    // failed at before is no word of the library about the product.
    if plan.is_err() && (stream.is_capturing().unwrap_or(true) || stream.check().is_err()) {
        return plan;
    }
    PLANS.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(plan).clone()
}

/// What [`kernels`] lists kernels for.
#[derive(Debug, Clone, Copy)]
pub struct Shapes<'a> {
    /// How many vectors of how many elements interact with the bottom output; none where they are
    /// only put side by side.
    pub dot: Option<(usize, usize)>,
    /// Whether a cross network follows.
    pub cross: bool,
    /// The optimiser of the dense parameters.
    pub optimizer: &'a headlong_device::optimizer::Optimizer,
}

/// All kernels that a model needs, for builds ahead of time.
pub fn kernels(shapes: &Shapes<'_>) -> Vec<Build> {
    let plain = |source| Build { source, defines: Vec::new() };
    let sources = [&crate::loss::SOURCE, &crate::finite::SOURCE];
    let mut all: Vec<Build> = sources.into_iter().map(plain).collect();
    all.extend(crate::loss_scale::builds());
    all.extend([DType::F32, DType::Bf16, DType::F16].map(crate::linear::build));
    all.extend(match shapes.dot {
        Some((vectors, dim)) => crate::interaction::dot::builds(vectors, dim),
        None => crate::interaction::cat::builds(),
    });
    all.extend(shapes.cross.then(crate::interaction::cross::builds).into_iter().flatten());
    all.extend(crate::optim::builds(shapes.optimizer));
    all
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::blas::{Epilogue, Math, Operand};
    use headlong_device::cuda::testing::stream;

    #[test]
    fn products_are_planned_once_for_each_file_of_algorithms() {
        let Some(stream) = stream() else { return };
        let operand = Operand::plain(DType::F32, 8);
        let [a, b, d] = [operand; 3];
        let (math, epilogue, bias_dtype) = (Math::Full, Epilogue::None, DType::F32);
        let spec = MatmulSpec { m: 16, n: 8, k: 8, a, b, d, math, epilogue, bias_dtype };
        let plan_with = |name: &str| {
            let algorithms = Some(std::env::temp_dir().join(name));
            let files = CudaFiles { algorithms, ..CudaFiles::default() };
            let device = stream.cuda_body().device().clone().with_files(files);
            let alternatives = [Some(Alternative { epilogue, bytes_left: 0 }), None];
            product(&CudaStream::new(&device).unwrap(), spec, alternatives).unwrap()
        };
        let [one, other, again] = ["one.txt", "other.txt", "one.txt"].map(plan_with);
        assert!(Arc::ptr_eq(&one, &again));
        assert!(!Arc::ptr_eq(&one, &other));
    }
}
