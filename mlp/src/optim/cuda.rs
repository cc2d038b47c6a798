//! Launches of `optim.cu`.

use super::divided::{DEVICE_NORM_CHUNKS, Part, device_norm_chunk_len, num_sums_of, shared};
use super::{LAMB_CHUNKS, StepArgs, lamb_chunk_len, last_pass, tensors};
use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, scratch};
use crate::linear::copy_rounded;
use crate::mlp::Mlp;
use headlong_device::cuda::{
    Build, CudaStream, Define, DeviceMemory, DevicePtr, Launch, OptimizerConstants, Source,
    kernel_args,
};
use headlong_device::optimizer::Optimizer;
use headlong_device::{Arena, DType, Mat, Stream};
use std::ops::Range;
use std::sync::Arc;

pub static SOURCE: Source = Source {
    name: "mlp/optim",
    text: concat!(include_str!("../sum.cuh"), include_str!("optim.cu")),
};

/// Chunks that the norm is summed in: as in `optim.cu`.
const NORM_PARTS: usize = DEVICE_NORM_CHUNKS;
const _: () = assert!(NORM_PARTS == 128);
const _: () = assert!(NORM_PARTS * size_of::<f64>() <= SCRATCH_BYTES);

/// Tensors of one launch of LAMB's kernels, and blocks for each: as in `optim.cu`.
const MAX_TENSORS: usize = 32;
const LAMB_BLOCKS: u32 = 32;
/// Sums of a tensor: of squares of its weights, then of its directions.
const LAMB_SUMS: usize = 2 * LAMB_CHUNKS;
const _: () = assert!((NORM_PARTS + MAX_TENSORS * LAMB_SUMS) * size_of::<f64>() <= SCRATCH_BYTES);

/// Most parameters whose copies one pass writes: as in `optim.cu`. Those of deeper stacks are
/// rounded after it.
const MAX_COPIES: usize = 32;

kernel_args! {
    #[derive(Default)]
    pub struct Copied { to: DevicePtr; first: u64; count, cols, stride, aligned: u32; }

    pub struct OptimArgs {
        weights, gradients, first, second, summed, step, sum_of_squares, loss_scale: DevicePtr;
        quads: u64;
        constants: OptimizerConstants;
        clip: f32;
        num_copies: u32;
        copies: [Copied; MAX_COPIES];
    }

    #[derive(Default)]
    pub struct Tensor { first, sums: u64; count, chunk_len: u32; }

    pub struct LambArgs {
        weights, gradients, first, second, summed, step, sum_of_squares, loss_scale,
        sums: DevicePtr;
        begin, end: u64;
        constants: OptimizerConstants;
        clip: f32;
        unused: u32;
        tensors: [Tensor; MAX_TENSORS];
    }

    pub struct NormArgs {
        gradients, summed, sums, total: DevicePtr;
        quads, chunk_quads: u64;
        begin, end: u32;
    }
}

fn defines(optimizer: &Optimizer, copies: DType, summed: Option<&Mat>) -> [Define; 3] {
    defines_of(optimizer, copies, summed.map_or(DType::F32, Mat::dtype))
}

fn defines_of(optimizer: &Optimizer, copies: DType, summed: DType) -> [Define; 3] {
    [
        OptimizerConstants::define(last_pass(optimizer)),
        Define::dtype("COPIES", copies),
        Define::dtype("SUMMED", summed),
    ]
}

/// The instances for an optimiser: without copies, and with those of either type; and those that
/// read sums in bf16.
pub fn builds(optimizer: &Optimizer) -> impl Iterator<Item = Build> {
    use DType::{Bf16, F16, F32};
    // LAMB reads its directions in f32, and sums before it writes copies.
    let types = [(F32, F32), (Bf16, F32), (F16, F32), (Bf16, Bf16), (F16, Bf16), (F32, Bf16)];
    let types = types.into_iter();
    types.map(|(copies, summed)| Build {
        source: &SOURCE,
        defines: defines_of(optimizer, copies, summed).to_vec(),
    })
}

fn address_of(summed: Option<&Mat>) -> DevicePtr {
    summed.map_or(DevicePtr::NULL, Mat::device_ptr)
}

impl Copied {
    /// The copy of a parameter of `weights`.
    fn new(weights: &Arena, (from, to): (&Mat, &Mat)) -> Self {
        let offset = from.device_ptr().0 - weights.device_ptr().0;
        assert_eq!(
            from.stride(),
            from.cols(),
            "slot `{}`: parameters have no room between rows",
            from.name()
        );
        Self {
            to: to.device_ptr(),
            first: offset / size_of::<f32>() as u64,
            count: (from.rows() * from.cols()) as u32,
            cols: from.cols() as u32,
            stride: to.stride() as u32,
            // Copies start at cache lines.
            aligned: u32::from(from.cols().is_multiple_of(4) && to.stride().is_multiple_of(4)),
        }
    }
}

/// Pieces of four elements in an arena.
fn quads(arena: &Arena) -> usize {
    arena.bytes() / 16
}

/// Moves all weights, or those of a part, whose sums of norms are there.
pub fn step(stream: &Stream, args: &StepArgs<'_>) {
    if let Optimizer::Lamb { .. } = args.optimizer {
        let launched: &[&str] = match args.part {
            None => &["lamb_directions", "lamb_scale"],
            Some(_) => &["lamb_scale"],
        };
        lamb(stream.cuda_body(), args, launched);
        // Gradients have been unscaled and clipped on the way.
        let optimizer = last_pass(args.optimizer);
        let (first, second, summed, clip, loss_scale) = (None, None, None, None, None);
        apply(stream, &StepArgs { optimizer, first, second, summed, clip, loss_scale, ..*args });
    } else {
        apply(stream, args);
    }
}

/// Leaves the sums of a part's chunks in [`Part::sums`]: of gradients that are clipped, else
/// LAMB's.
pub fn measure(stream: &Stream, args: &StepArgs<'_>, part: &Part) {
    let cuda = stream.cuda_body();
    if let Optimizer::Lamb { .. } = args.optimizer {
        lamb(cuda, args, &["lamb_directions"]);
    } else if args.clip.is_some()
        && !part.is_empty()
        && let Some(scratch) = scratch(cuda)
    {
        let launched = NormArgs::new((args.gradients, args.summed), Some(part), &scratch);
        launched.sum_chunks(cuda, &defines(args.optimizer, DType::F32, args.summed));
    }
}

/// LAMB: gradients become directions, and directions are multiplied by the trust ratio of their
/// tensor.
fn lamb(stream: &CudaStream, args: &StepArgs<'_>, kernels: &[&'static str]) {
    let defines = defines(args.optimizer, DType::F32, args.summed);
    let of_norm = args.clip.and_then(|_| sum_of_squares(stream, &defines, args));
    let Some(scratch) = scratch(stream) else { return };
    let address = |arena: Option<&Arena>| arena.map_or(DevicePtr::NULL, Arena::device_ptr);
    let own = own_elements(args);
    let mut packed = 0;
    let placed = tensors(args.weights).map(|range| {
        let sums = packed;
        packed += num_sums_of(&range);
        (range, sums)
    });
    let mut all = placed.filter(|(range, _)| !shared(range, &own).is_empty()).peekable();
    while all.peek().is_some() {
        let (mut tensors, mut num_tensors) = ([Tensor::default(); MAX_TENSORS], 0);
        for (index, (tensor, (range, packed))) in tensors.iter_mut().zip(all.by_ref()).enumerate() {
            let (count, chunk_len) = (range.len() as u32, lamb_chunk_len(range.len()) as u32);
            let sums = args.part.map_or(index * LAMB_SUMS, |_| packed) as u64;
            *tensor = Tensor { first: range.start as u64, sums, count, chunk_len };
            num_tensors += 1;
        }
        let launched = LambArgs {
            weights: args.weights.device_ptr(),
            gradients: args.gradients.device_ptr(),
            first: address(args.first),
            second: address(args.second),
            summed: address_of(args.summed),
            step: args.device_step.expect("on a device, a step is read from its memory"),
            sum_of_squares: of_norm.as_ref().map_or(DevicePtr::NULL, |sums| sums.ptr()),
            loss_scale: args.loss_scale.map_or(DevicePtr::NULL, |scale| scale.state.device_ptr()),
            sums: args.part.map_or_else(
                || scratch.ptr().offset(NORM_PARTS * size_of::<f64>()),
                |part| part.sums.device_ptr(),
            ),
            begin: own.start as u64,
            end: own.end as u64,
            constants: OptimizerConstants::new(args.optimizer),
            clip: args.clip.unwrap_or(0.0),
            unused: 0,
            tensors,
        };
        let shape = Launch::new(num_tensors * LAMB_BLOCKS, THREADS);
        kernels.iter().for_each(|name| stream.run(&SOURCE, &defines, name, shape, &launched));
    }
}

/// Elements of the arenas of weights and gradients that this rank moves.
fn own_elements(args: &StepArgs<'_>) -> Range<usize> {
    let all = 0..args.weights.bytes() / size_of::<f32>();
    args.part.map_or(all, |part| part.elements.clone())
}

/// The pass over all elements, or over a part: then copies are written later, of all weights.
fn apply(stream: &Stream, args: &StepArgs<'_>) {
    let (stream, own) = (stream.cuda_body(), own_elements(args));
    if own.is_empty() {
        return;
    }
    let stacks = if args.part.is_some() { &[] } else { args.stacks };
    let mut stacks = stacks.iter().copied().flatten().flat_map(Mlp::copies).peekable();
    let dtype = stacks.peek().map_or(DType::F32, |(_, to)| to.dtype());
    let defines = defines(args.optimizer, dtype, args.summed);
    let sum_of_squares = match args.clip {
        Some(_) => sum_of_squares(stream, &defines, args),
        None => None,
    };
    let address = |arena: Option<&Arena>| arena.map_or(DevicePtr::NULL, Arena::device_ptr);
    let (mut copies, mut num_copies) = ([Copied::default(); MAX_COPIES], 0);
    for (copy, pair) in copies.iter_mut().zip(stacks.by_ref()) {
        (*copy, num_copies) = (Copied::new(args.weights, pair), num_copies + 1);
    }
    // Parts begin and end where cache lines do.
    let quads = own.len() / 4;
    let launched = OptimArgs {
        weights: args.weights.device_ptr().offset(own.start * size_of::<f32>()),
        gradients: args.gradients.device_ptr().offset(own.start * size_of::<f32>()),
        first: address(args.first),
        second: address(args.second),
        summed: args.summed.map_or(DevicePtr::NULL, |summed| {
            summed.device_ptr().offset(own.start * summed.dtype().bytes())
        }),
        step: args.device_step.expect("on a device, a step is read from its memory"),
        sum_of_squares: sum_of_squares.map_or(DevicePtr::NULL, |sums| sums.ptr()),
        loss_scale: args.loss_scale.map_or(DevicePtr::NULL, |scale| scale.state.device_ptr()),
        quads: quads as u64,
        constants: OptimizerConstants::new(args.optimizer),
        clip: args.clip.unwrap_or(0.0),
        num_copies,
        copies,
    };
    let shape = Launch::new(blocks(stream, quads.div_ceil(THREADS as usize)), THREADS);
    stream.run(&SOURCE, &defines, "optim_step", shape, &launched);
    copy_rounded(stream, stacks);
}

/// Where the sum of the squares of all gradients lies once what is enqueued here has run; those of
/// the chunks are there already where each rank has summed some of them.
fn sum_of_squares(
    stream: &CudaStream,
    defines: &[Define],
    args: &StepArgs<'_>,
) -> Option<Arc<DeviceMemory>> {
    sum_of_squares_of(stream, defines, (args.gradients, args.summed), args.part)
}

fn sum_of_squares_of(
    stream: &CudaStream,
    defines: &[Define],
    gradients: (&Arena, Option<&Mat>),
    part: Option<&Part>,
) -> Option<Arc<DeviceMemory>> {
    let scratch = scratch(stream)?;
    let launched = NormArgs::new(gradients, part, &scratch);
    if part.is_none() {
        launched.sum_chunks(stream, defines);
    }
    stream.run(&SOURCE, defines, "norm_total", Launch::new(1, THREADS), &launched);
    Some(scratch)
}

impl NormArgs {
    /// With the sums of the chunks where ranks exchange them, or in `scratch`, and the total there.
    fn new(
        (gradients, summed): (&Arena, Option<&Mat>),
        part: Option<&Part>,
        scratch: &DeviceMemory,
    ) -> Self {
        let len = gradients.bytes() / size_of::<f32>();
        let chunks = part.map_or(0..NORM_PARTS, |part| part.chunks_of_norm(len));
        Self {
            gradients: gradients.device_ptr(),
            summed: address_of(summed),
            sums: part.map_or(scratch.ptr(), |part| part.sums.device_ptr()),
            total: scratch.ptr(),
            quads: quads(gradients) as u64,
            chunk_quads: device_norm_chunk_len(len) as u64 / 4,
            begin: chunks.start as u32,
            end: chunks.end as u32,
        }
    }

    fn sum_chunks(&self, stream: &CudaStream, defines: &[Define]) {
        let shape = Launch::new(blocks(stream, (self.end - self.begin) as usize), THREADS);
        stream.run(&SOURCE, defines, "norm_parts", shape, self);
    }
}

/// Waits for the device. NaN where it has failed; the stream keeps the reason.
pub fn norm(stream: &Stream, gradients: &Arena) -> f64 {
    let stream = stream.cuda_body();
    let mut bytes = f64::NAN.to_ne_bytes();
    let defines = defines(&Optimizer::Sgd, DType::F32, None);
    if let Some(sums) = sum_of_squares_of(stream, &defines, (gradients, None), None)
        && stream.synchronize().is_ok()
        && let Err(error) = sums.read(0, &mut bytes)
    {
        stream.fail(error);
    }
    f64::from_ne_bytes(bytes).sqrt()
}
