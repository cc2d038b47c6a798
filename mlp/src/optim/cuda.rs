//! Launches of `optim.cu`.

use super::StepArgs;
use crate::cuda::{SCRATCH_BYTES, THREADS, blocks, scratch};
use headlong_device::cuda::{
    Build, CudaStream, Define, DeviceMemory, DevicePtr, Launch, OptimizerConstants, Source,
};
use headlong_device::optimizer::Optimizer;
use headlong_device::{Arena, Stream};
use std::sync::Arc;

pub static SOURCE: Source = Source { name: "mlp/optim", text: include_str!("optim.cu") };

/// Parts that the norm is summed in: as in `optim.cu`.
const NORM_PARTS: usize = 128;
const _: () = assert!(NORM_PARTS * size_of::<f64>() <= SCRATCH_BYTES);

/// As in `optim.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct OptimArgs {
    pub(super) weights: DevicePtr,
    pub(super) gradients: DevicePtr,
    pub(super) first: DevicePtr,
    pub(super) second: DevicePtr,
    pub(super) step: DevicePtr,
    pub(super) sum_of_squares: DevicePtr,
    pub(super) quads: u64,
    pub(super) constants: OptimizerConstants,
    pub(super) clip: f32,
}

/// As in `optim.cu`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct NormArgs {
    pub(super) gradients: DevicePtr,
    pub(super) sums: DevicePtr,
    pub(super) quads: u64,
}

fn defines(optimizer: &Optimizer) -> [Define; 1] {
    [OptimizerConstants::define(optimizer)]
}

/// The instance for an optimiser.
pub fn build(optimizer: &Optimizer) -> Build {
    Build { source: &SOURCE, defines: defines(optimizer).to_vec() }
}

/// Pieces of four elements in an arena.
fn quads(arena: &Arena) -> usize {
    arena.bytes() / 16
}

pub fn step(stream: &Stream, args: &StepArgs<'_>) {
    let stream = stream.cuda_body();
    let defines = defines(args.optimizer);
    let sum_of_squares = match args.clip {
        Some(_) => sum_of_squares(stream, &defines, args.gradients),
        None => None,
    };
    let address = |arena: Option<&Arena>| arena.map_or(DevicePtr::NULL, Arena::device_ptr);
    let launched = OptimArgs {
        weights: args.weights.device_ptr(),
        gradients: args.gradients.device_ptr(),
        first: address(args.first),
        second: address(args.second),
        step: args.device_step.expect("on a device, a step is read from its memory"),
        sum_of_squares: sum_of_squares.map_or(DevicePtr::NULL, |sums| sums.ptr()),
        quads: quads(args.weights) as u64,
        constants: OptimizerConstants::new(args.optimizer),
        clip: args.clip.unwrap_or(0.0),
    };
    let shape = Launch::new(blocks(stream, quads(args.weights).div_ceil(THREADS as usize)), THREADS);
    stream.run(&SOURCE, &defines, "optim_step", shape, &launched);
}

/// Where the sum of the squares of all gradients lies once what is enqueued here has run.
fn sum_of_squares(stream: &CudaStream, defines: &[Define], gradients: &Arena) -> Option<Arc<DeviceMemory>> {
    let sums = scratch(stream)?;
    let launched =
        NormArgs { gradients: gradients.device_ptr(), sums: sums.ptr(), quads: quads(gradients) as u64 };
    stream.run(&SOURCE, defines, "norm_parts", Launch::new(blocks(stream, NORM_PARTS), THREADS), &launched);
    stream.run(&SOURCE, defines, "norm_total", Launch::new(1, THREADS), &launched);
    Some(sums)
}

/// Waits for the device. NaN where it has failed; the stream keeps the reason.
pub fn norm(stream: &Stream, gradients: &Arena) -> f64 {
    let stream = stream.cuda_body();
    let mut bytes = f64::NAN.to_ne_bytes();
    if let Some(sums) = sum_of_squares(stream, &defines(&Optimizer::Sgd), gradients)
        && stream.synchronize().is_ok()
        && let Err(error) = sums.read(0, &mut bytes)
    {
        stream.fail(error);
    }
    f64::from_ne_bytes(bytes).sqrt()
}
