//! Parameters that are divided among ranks: each moves its part and keeps the states of that part
//! only. Then all ranks gather the weights and pack them. Every bit is that of a rank that moves
//! all.
//!
//! # Norms
//! Clipping and LAMB need norms over what several ranks have. [`super::measure`] leaves the sum of
//! each chunk of a norm where all ranks have it, as the bits of an f64: on a processor zero for
//! chunks of other ranks, so that ranks add these up as integers; on a device ranks gather them
//! ([`sum_bounds`]). [`super::step`] then adds the sums of the chunks in the order in which one
//! rank does. So parts begin where chunks do ([`bounds`]). Chunks of the one norm are not those of
//! the other, so that LAMB is not clipped ([`Norms::needed`]).

use super::cpu::{
    NORM_CHUNKS, change, clip_factor, find_directions, lamb_constants, lamb_norm_of, multiply,
    norm_chunk_len, norm_of, sums_of_squares, trust_ratio,
};
use super::{LAMB_CHUNKS, StepArgs, lamb_chunk_len, tensors};
use crate::loss_scale::LossScale;
use headlong_device::optimizer::Optimizer;
use headlong_device::pool::Pool;
use headlong_device::{ArenaPlan, DType, Mat, Stream};
use std::ops::Range;

/// Elements of a cache line, which slots of an arena fill.
const LINE: usize = 16;

/// Elements at whose multiples parts begin where no norm is needed: processors fetch two lines.
const PART_ALIGN: usize = 2 * LINE;

/// Chunks that a device sums the norm of all gradients in: halves of a processor's.
pub(super) const DEVICE_NORM_CHUNKS: usize = 2 * NORM_CHUNKS;

/// Elements of one of them, of `len` gradients.
pub(super) fn device_norm_chunk_len(len: usize) -> usize {
    norm_chunk_len(len) / 2
}

/// Norms that a step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// None: each element moves by itself.
    None,
    /// That of all gradients, which are clipped.
    OfGradients,
    /// Those of each tensor's weights and directions, for LAMB.
    OfTensors,
}

impl Norms {
    /// What `optimizer` needs; nothing fits LAMB whose gradients are clipped.
    pub fn needed(optimizer: &Optimizer, is_clipped: bool) -> Option<Self> {
        match (optimizer, is_clipped) {
            (Optimizer::Lamb { .. }, true) => None,
            (Optimizer::Lamb { .. }, false) => Some(Self::OfTensors),
            (_, true) => Some(Self::OfGradients),
            (_, false) => Some(Self::None),
        }
    }
}

/// What one rank moves.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its elements of the arenas of weights and gradients.
    pub elements: Range<usize>,
    /// Sums of the chunks of all norms, 1 × [`num_sums`], u64.
    pub sums: Mat,
}

impl Part {
    /// Elements of the rank's states.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether it moves nothing.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// On a device, the chunks of the norm of all `len` gradients that begin in it.
    pub(super) fn chunks_of_norm(&self, len: usize) -> Range<usize> {
        let chunk = |at: usize| chunk_at(at, device_norm_chunk_len(len));
        chunk(self.elements.start)..chunk(self.elements.end)
    }
}

/// Where parts of parameters of `plan` begin, as equal as can be, and the end of the last one.
pub fn bounds(plan: &ArenaPlan, norms: Norms, num_ranks: usize) -> Vec<usize> {
    let len = plan.bytes() / size_of::<f32>();
    let tensors: Vec<_> = plan.elements().filter(|range| !range.is_empty()).collect();
    let next_start = |at: usize| match norms {
        Norms::None => at.next_multiple_of(PART_ALIGN),
        Norms::OfGradients => at.next_multiple_of(norm_chunk_len(len)),
        Norms::OfTensors => {
            let of_tensor = |tensor: &Range<usize>| {
                let after = at.saturating_sub(tensor.start);
                let start = tensor.start + after.next_multiple_of(lamb_chunk_len(tensor.len()));
                (start < tensor.end).then_some(start)
            };
            tensors.iter().find_map(of_tensor).unwrap_or(len)
        }
    };
    let share = |rank: usize| len / num_ranks * rank + len % num_ranks * rank / num_ranks;
    let starts = (1..num_ranks).map(|rank| next_start(share(rank)).min(len));
    std::iter::once(0).chain(starts).chain([len]).collect()
}

/// Numbers in [`Part::sums`].
pub fn num_sums(plan: &ArenaPlan, norms: Norms) -> usize {
    match norms {
        Norms::None => 0,
        // As many as a device has; a processor has half as many.
        Norms::OfGradients => DEVICE_NORM_CHUNKS,
        Norms::OfTensors => plan.elements().map(|tensor| num_sums_of(&tensor)).sum(),
    }
}

/// On a device, where the sums of each part's chunks begin in [`Part::sums`], and the end of the
/// last one, for parts that begin at `bounds`. There both sums of a chunk lie side by side.
pub fn sum_bounds(plan: &ArenaPlan, norms: Norms, bounds: &[usize]) -> Vec<usize> {
    let len = plan.bytes() / size_of::<f32>();
    let before = |&at: &usize| match norms {
        Norms::None => 0,
        Norms::OfGradients => chunk_at(at, device_norm_chunk_len(len)),
        Norms::OfTensors => {
            let tensors = plan.elements().filter(|tensor| !tensor.is_empty());
            let of_tensor = |tensor: Range<usize>| {
                let within = at.clamp(tensor.start, tensor.end) - tensor.start;
                2 * chunk_at(within, lamb_chunk_len(tensor.len()))
            };
            tensors.map(of_tensor).sum()
        }
    };
    let starts = bounds[..bounds.len() - 1].iter().map(before);
    starts.chain([num_sums(plan, norms)]).collect()
}

/// What the states of a part of `len` elements are frozen from ([`super::freeze_states_on`]).
pub fn state_plan(len: usize) -> ArenaPlan {
    let mut plan = ArenaPlan::new("states of a part");
    plan.matrix("states of a part", DType::F32, 1, len);
    plan
}

/// Bytes of one state of a part of `len` elements.
pub fn state_bytes(len: usize) -> usize {
    len.next_multiple_of(LINE) * size_of::<f32>()
}

/// Sums of the chunks of LAMB's norms of `tensor`: of weights and of directions.
pub(super) fn num_sums_of(tensor: &Range<usize>) -> usize {
    match tensor.len() {
        0 => 0,
        len => 2 * len.div_ceil(lamb_chunk_len(len)),
    }
}

/// The elements of `tensor` in a part.
pub(super) fn shared(tensor: &Range<usize>, part: &Range<usize>) -> Range<usize> {
    let start = tensor.start.max(part.start);
    start..tensor.end.min(part.end).max(start)
}

/// Leaves this rank's sums of the norms of a step in [`Part::sums`].
pub(super) fn measure(stream: &Stream, args: &StepArgs<'_>, part: &Part) {
    if args.loss_scale.is_some_and(LossScale::skips) {
        return;
    }
    let mut sums = part.sums.write::<u64>();
    sums.data_mut().fill(0);
    match args.optimizer {
        Optimizer::Lamb { .. } => measure_tensors(stream, args, part, sums.data_mut()),
        _ if args.clip.is_some() => {
            let gradients = args.gradients.read_all::<f32>();
            let len = norm_chunk_len(gradients.len());
            let first = chunk_at(part.elements.start, len);
            let gradients = &gradients[part.elements.clone()];
            put_sums(stream.pool(), gradients, len, &mut sums.data_mut()[first..]);
        }
        _ => {}
    }
}

/// The chunk that begins at element `start` of what is cut into chunks `len` long; the end of the
/// last one may be any element.
fn chunk_at(start: usize, len: usize) -> usize {
    start.div_ceil(len)
}

/// Puts the sum of each chunk of `values` to the beginning of `sums`.
fn put_sums(pool: &Pool, values: &[f32], chunk_len: usize, sums: &mut [u64]) {
    let mut found = [0.0_f64; LAMB_CHUNKS];
    let found = &mut found[..values.len().div_ceil(chunk_len)];
    sums_of_squares(pool, values, chunk_len, found);
    sums.iter_mut().zip(found).for_each(|(sum, found)| *sum = found.to_bits());
}

fn measure_tensors(stream: &Stream, args: &StepArgs<'_>, part: &Part, sums: &mut [u64]) {
    let (pool, own) = (stream.pool(), &part.elements);
    let constants = lamb_constants(args);
    let weights = args.weights.read_all::<f32>();
    let mut gradients = args.gradients.write_all::<f32>();
    multiply(pool, &mut gradients[own.clone()], unscale(args));
    let [mut first, mut second] = [args.first, args.second].map(|arena| {
        arena.expect("LAMB keeps two states, as `step` has checked").write_all::<f32>()
    });
    let mut rest = sums;
    for tensor in tensors(args.weights) {
        let [of_weights, of_directions];
        ([of_weights, of_directions], rest) = split_sums(rest, &tensor);
        let own = shared(&tensor, own);
        if own.is_empty() {
            continue;
        }
        let in_states = own.start - part.elements.start..own.end - part.elements.start;
        let (weights, directions) = (&weights[own.clone()], &mut gradients[own.clone()]);
        let states = [&mut first[in_states.clone()], &mut second[in_states]];
        let [first, second] = states;
        find_directions(pool, weights, [&mut *directions, first, second], &constants);
        let len = lamb_chunk_len(tensor.len());
        let chunk = chunk_at(own.start - tensor.start, len);
        put_sums(pool, weights, len, &mut of_weights[chunk..]);
        put_sums(pool, directions, len, &mut of_directions[chunk..]);
    }
}

/// Of `sums`, those of `tensor`: of weights and of directions; and what follows.
fn split_sums<'a>(
    sums: &'a mut [u64],
    tensor: &Range<usize>,
) -> ([&'a mut [u64]; 2], &'a mut [u64]) {
    let (sums, rest) = sums.split_at_mut(num_sums_of(tensor));
    let (of_weights, of_directions) = sums.split_at_mut(sums.len() / 2);
    ([of_weights, of_directions], rest)
}

fn unscale(args: &StepArgs<'_>) -> f32 {
    args.loss_scale.map_or(1.0, |loss_scale| loss_scale.scale().1)
}

/// Moves the weights of a part, once [`Part::sums`] has those of all ranks.
pub(super) fn step(stream: &Stream, args: &StepArgs<'_>, part: &Part) {
    if args.loss_scale.is_some_and(LossScale::skips) {
        return;
    }
    match args.optimizer {
        Optimizer::Lamb { .. } => {
            scale_directions(stream, args, part);
            apply(stream, &StepArgs { first: None, second: None, ..*args }, part);
        }
        _ => {
            let unscale = unscale(args);
            let clipped = |clip| {
                let sums = part.sums.read::<u64>();
                let sums = std::array::from_fn(|chunk| f64::from_bits(sums.data()[chunk]));
                clip_factor(norm_of(sums) * f64::from(unscale), clip)
            };
            let scale = unscale * args.clip.map_or(1.0, clipped);
            let mut gradients = args.gradients.write_all::<f32>();
            multiply(stream.pool(), &mut gradients[part.elements.clone()], scale);
            drop(gradients);
            apply(stream, args, part);
        }
    }
}

/// LAMB: directions of the part times the trust ratios of their tensors.
fn scale_directions(stream: &Stream, args: &StepArgs<'_>, part: &Part) {
    let mut sums = part.sums.write::<u64>();
    let mut rest = sums.data_mut();
    let mut directions = args.gradients.write_all::<f32>();
    for tensor in tensors(args.weights) {
        let of_tensor;
        (of_tensor, rest) = split_sums(rest, &tensor);
        let norms = of_tensor.map(|sums| {
            let mut all = [0.0; LAMB_CHUNKS];
            all.iter_mut().zip(sums).for_each(|(to, sum)| *to = f64::from_bits(*sum));
            lamb_norm_of(all)
        });
        let own = shared(&tensor, &part.elements);
        multiply(stream.pool(), &mut directions[own], trust_ratio(norms));
    }
}

fn apply(stream: &Stream, args: &StepArgs<'_>, part: &Part) {
    let gradients = args.gradients.read_all::<f32>();
    let mut weights = args.weights.write_all::<f32>();
    let mut first = args.first.map(|arena| arena.write_all::<f32>());
    let mut second = args.second.map(|arena| arena.write_all::<f32>());
    let [first, second] = [&mut first, &mut second]
        .map(|state| state.as_mut().map_or(&mut [][..], |state| &mut state[..part.len()]));
    let own = part.elements.clone();
    change(stream, args, &gradients[own.clone()], [&mut weights[own], first, second]);
}

#[cfg(test)]
mod tests;
