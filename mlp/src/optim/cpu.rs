//! The CPU body: chunks of the arena over the pool.

use super::{LAMB_CHUNKS, StepArgs, lamb_chunk_len, last_pass, tensors};
use crate::linear::Weights;
use crate::loss_scale::LossScale;
use crate::mlp::{Layer, Mlp};
use crate::simd::for_each_chunk_of_three;
use crate::sum::tree;
use headlong_device::optimizer::{Optimizer, lamb_directions};
use headlong_device::pool::Pool;
use headlong_device::{Arena, Stream, vectorized};
use std::ops::Range;

/// Elements a task updates: all that belongs to them fits the second-level cache.
pub(super) const CHUNK: usize = 1 << 14;

/// Chunks that the norm is summed in, for any length.
pub(super) const NORM_CHUNKS: usize = 64;

pub fn step(stream: &Stream, args: &StepArgs<'_>) {
    if args.loss_scale.is_some_and(LossScale::skips) {
        return;
    }
    let unscale = args.loss_scale.map_or(1.0, |loss_scale| loss_scale.scale().1);
    let clipped = |clip| clip_factor(norm(stream, args.gradients) * f64::from(unscale), clip);
    let scale = unscale * args.clip.map_or(1.0, clipped);
    multiply(stream.pool(), &mut args.gradients.write_all::<f32>(), scale);
    if let Optimizer::Lamb { .. } = args.optimizer {
        directions(stream, args);
        apply(stream, &StepArgs { first: None, second: None, ..*args });
    } else {
        apply(stream, args);
    }
}

/// The pass over all elements, and over what products read of them.
fn apply(stream: &Stream, args: &StepArgs<'_>) {
    let optimizer = last_pass(args.optimizer);
    let gradients = args.gradients.read_all::<f32>();
    let mut weights = args.weights.write_all::<f32>();
    let mut first = args.first.map(|arena| arena.write_all::<f32>());
    let mut second = args.second.map(|arena| arena.write_all::<f32>());
    let first = first.as_mut().map_or(&mut [][..], |state| &mut state[..]);
    let second = second.as_mut().map_or(&mut [][..], |state| &mut state[..]);
    let mut lists = [&mut weights[..], first, second];
    let mut done = 0;
    while let Some((layer, range)) = next_weights(args, done) {
        // Biases, and what no product reads.
        change(stream, args, &gradients[done..range.start], part(&mut lists, done..range.start));
        let gradients = &gradients[range.clone()];
        layer.change(
            stream,
            part(&mut lists, range.clone()),
            &|start, [weights, first, second]| {
                let gradients = &gradients[start..start + weights.len()];
                optimizer.apply(args.step, weights, first, second, gradients);
            },
        );
        done = range.end;
    }
    let rest = done..gradients.len();
    change(stream, args, &gradients[rest.clone()], part(&mut lists, rest));
}

/// The first weights of a layer from element `from` on, and where they lie. Those without elements
/// are passed over.
fn next_weights<'a>(args: &StepArgs<'a>, from: usize) -> Option<(&'a Weights, Range<usize>)> {
    let layers = args.stacks.iter().copied().flatten().flat_map(Mlp::layers).map(Layer::weights);
    let places = layers.map(|weights| (weights, args.weights.elements_of(weights.values())));
    places
        .filter(|(_, range)| range.start >= from && !range.is_empty())
        .min_by_key(|(_, range)| range.start)
}

/// The elements `range` of each list that has any.
fn part<'a>(lists: &'a mut [&mut [f32]; 3], range: Range<usize>) -> [&'a mut [f32]; 3] {
    lists
        .each_mut()
        .map(|list| if list.is_empty() { &mut [][..] } else { &mut list[range.clone()] })
}

/// Changes parameters that are not packed.
pub(super) fn change(
    stream: &Stream,
    args: &StepArgs<'_>,
    gradients: &[f32],
    lists: [&mut [f32]; 3],
) {
    for_each_chunk_of_three(stream.pool(), lists, CHUNK, &|start, [weights, first, second]| {
        let gradients = &gradients[start..start + weights.len()];
        last_pass(args.optimizer).apply(args.step, weights, first, second, gradients);
    });
}

/// What [`lamb_directions`] takes besides lists.
pub(super) fn lamb_constants(args: &StepArgs<'_>) -> [f32; 6] {
    let Optimizer::Lamb { beta1, beta2, epsilon, weight_decay } = *args.optimizer else {
        unreachable!("only LAMB has directions")
    };
    let (root, rate) = args.step.lamb_corrections(beta1, beta2);
    [beta1, beta2, epsilon, root, rate, weight_decay]
}

/// LAMB: gradients become directions times the trust ratio of their tensor.
fn directions(stream: &Stream, args: &StepArgs<'_>) {
    let constants = lamb_constants(args);
    let (weights, pool) = (args.weights.read_all::<f32>(), stream.pool());
    let [mut gradients, mut first, mut second] = [Some(args.gradients), args.first, args.second]
        .map(|arena| {
            arena.expect("LAMB keeps two states, as `step` has checked").write_all::<f32>()
        });
    let mut lists = [&mut gradients[..], &mut first, &mut second];
    for range in tensors(args.weights) {
        let weights = &weights[range.clone()];
        let [directions, first, second] = part(&mut lists, range);
        find_directions(pool, weights, [&mut *directions, first, second], &constants);
        let norms = [weights, &*directions].map(|values| lamb_norm(pool, values));
        multiply(pool, directions, trust_ratio(norms));
    }
}

/// LAMB: gradients, the first of `lists`, become directions.
pub(super) fn find_directions(
    pool: &Pool,
    weights: &[f32],
    lists: [&mut [f32]; 3],
    constants: &[f32; 6],
) {
    for_each_chunk_of_three(pool, lists, CHUNK, &|start, [directions, first, second]| {
        let weights = &weights[start..start + directions.len()];
        lamb_directions(weights, first, second, directions, constants);
    });
}

/// `‖w‖ / ‖r‖`, or 1. Note: a NaN norm gives a NaN ratio, so that a broken step shows.
pub(super) fn trust_ratio([of_weights, of_directions]: [f64; 2]) -> f32 {
    let is_none = of_weights == 0.0 || of_directions == 0.0;
    if is_none { 1.0 } else { (of_weights / of_directions) as f32 }
}

/// Multiplies all values, where that changes them.
pub(super) fn multiply(pool: &Pool, values: &mut [f32], factor: f32) {
    if factor != 1.0 {
        pool.chunks_mut(values, CHUNK, |_, chunk| scale_by(chunk, factor));
    }
}

/// `‖x‖₂` of a tensor, in the order of `lamb_directions` and `lamb_scale` on a device.
fn lamb_norm(pool: &Pool, values: &[f32]) -> f64 {
    let len = lamb_chunk_len(values.len());
    let mut sums = [0.0_f64; LAMB_CHUNKS];
    sums_of_squares(pool, values, len, &mut sums[..values.len().div_ceil(len)]);
    lamb_norm_of(sums)
}

/// Sums of squares of chunks `len` long.
pub(super) fn sums_of_squares(pool: &Pool, values: &[f32], len: usize, sums: &mut [f64]) {
    /// Chunks a task adds up.
    const TOGETHER: usize = 32;
    pool.chunks_mut(sums, TOGETHER, |task, sums| {
        let chunks = values[task * TOGETHER * len..].chunks(len);
        sums.iter_mut().zip(chunks).for_each(|(sum, chunk)| *sum = sum_of_squares(chunk));
    });
}

/// The norm of a tensor from the sums of its chunks.
pub(super) fn lamb_norm_of(mut sums: [f64; LAMB_CHUNKS]) -> f64 {
    let mut distance = LAMB_CHUNKS / 2;
    while distance > 0 {
        (0..distance).for_each(|i| sums[i] += sums[i + distance]);
        distance /= 2;
    }
    sums[0].sqrt()
}

/// PyTorch's factor: at most 1, and a little less than `clip / norm`.
pub(super) fn clip_factor(norm: f64, clip: f32) -> f32 {
    let factor = f64::from(clip) / (norm + 1e-6);
    // Note: a NaN norm gives a NaN factor, so that a broken step shows instead of passing
    // unclipped.
    if factor >= 1.0 { 1.0 } else { factor as f32 }
}

pub fn norm(stream: &Stream, gradients: &Arena) -> f64 {
    let gradients = gradients.read_all::<f32>();
    let len = norm_chunk_len(gradients.len());
    let mut sums = [0.0_f64; NORM_CHUNKS];
    stream.pool().chunks_mut(&mut sums, 1, |index, sum| {
        let (start, end) = (index * len, (index + 1) * len);
        let chunk = &gradients[start.min(gradients.len())..end.min(gradients.len())];
        sum[0] = sum_of_squares(chunk);
    });
    norm_of(sums)
}

/// Elements of a chunk of the norm over `len` elements.
pub(super) fn norm_chunk_len(len: usize) -> usize {
    len.div_ceil(NORM_CHUNKS).next_multiple_of(16)
}

/// The norm from the sums of its chunks.
pub(super) fn norm_of(mut sums: [f64; NORM_CHUNKS]) -> f64 {
    tree(NORM_CHUNKS, |into, from| sums[into] += sums[from]);
    sums[0].sqrt()
}

vectorized! {
    fn scale_by(values: &mut [f32], factor: f32) {
        for value in values {
            *value *= factor;
        }
    }

    /// In eight lanes, so that every instruction set adds in the same order. Chunks are multiples
    /// of 16 long.
    fn sum_of_squares(values: &[f32]) -> f64 {
        let mut lanes = [0.0_f64; 8];
        for chunk in values.chunks(8) {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(*value) * f64::from(*value);
            }
        }
        ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6]))
            + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]))
    }
}
