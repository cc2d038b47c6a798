//! The CPU bodies.

use super::{
    FIRST_BAD, GOOD_STEPS, INVERSE, LARGEST, LARGEST_COUNT, LossScale, NO_QUAD, NUM_SKIPPED, SCALE,
    SKIP, SMALLEST, WAS_SKIPPED, WAS_SMALLEST,
};
use crate::simd::for_each_row;
use headlong_device::{Arena, Mat, Stream, vectorized};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Parts that gradients are looked through in.
const PARTS: usize = 64;

/// Samples whose gradients one task divides.
const TILE_ROWS: usize = 64;

pub fn check(stream: &Stream, scale: &LossScale, gradients: &Arena, elements: Range<usize>) {
    let gradients = gradients.read_all::<f32>();
    let start = elements.start;
    let gradients = &gradients[elements];
    let found = scale.overflow.read::<f32>().data()[0] != 0.0 || !all_finite(stream, gradients);
    let first =
        if found { gradients.iter().position(|gradient| !gradient.is_finite()) } else { None };
    let first = first.map(|index| start + index);
    let mut state = scale.state.write::<f32>();
    state.data_mut()[SKIP] = f32::from(u8::from(found));
    state.data_mut()[FIRST_BAD] = f32::from_bits(first.map_or(NO_QUAD, |index| (index / 4) as u32));
}

pub fn raise(stream: &Stream, scale: &LossScale, gradients: &Arena, elements: Range<usize>) {
    if !all_finite(stream, &gradients.read_all::<f32>()[elements]) {
        scale.overflow.write::<f32>().data_mut()[0] = 1.0;
    }
}

fn all_finite(stream: &Stream, gradients: &[f32]) -> bool {
    let len = gradients.len().div_ceil(PARTS);
    let mut fits = [true; PARTS];
    stream.pool().chunks_mut(&mut fits, 1, |index, fits| {
        let (start, end) = (index * len, (index + 1) * len);
        fits[0] = are_finite(&gradients[start.min(gradients.len())..end.min(gradients.len())]);
    });
    fits.iter().all(|&fits| fits)
}

pub fn adjust(scale: &LossScale) {
    let mut state = scale.state.write::<f32>();
    let state = state.data_mut();
    let skipped = state[SKIP] != 0.0;
    (state[WAS_SKIPPED], state[SKIP]) = (state[SKIP], 0.0);
    let is_smallest = skipped && state[SCALE] <= SMALLEST;
    state[WAS_SMALLEST] = f32::from(u8::from(is_smallest));
    if !is_smallest {
        state[FIRST_BAD] = f32::from_bits(NO_QUAD);
    }
    if skipped {
        state[NUM_SKIPPED] = (state[NUM_SKIPPED] + 1.0).min(LARGEST_COUNT);
        (state[SCALE], state[GOOD_STEPS]) = ((state[SCALE] / 2.0).max(SMALLEST), 0.0);
    } else {
        state[GOOD_STEPS] += 1.0;
        if state[GOOD_STEPS] >= scale.growth_interval as f32 {
            (state[SCALE], state[GOOD_STEPS]) = ((state[SCALE] * 2.0).min(LARGEST), 0.0);
        }
    }
    state[INVERSE] = 1.0 / state[SCALE];
    scale.overflow.write::<f32>().data_mut()[0] = 0.0;
}

pub fn unscale(stream: &Stream, scale: &LossScale, gradients: &Mat) {
    let (_, inverse) = scale.scale();
    let found = AtomicBool::new(false);
    let mut gradients = gradients.write::<f32>();
    for_each_row(stream.pool(), gradients.view(), TILE_ROWS, |_, gradients| {
        multiply(gradients, inverse);
        if !are_finite(gradients) {
            found.store(true, Ordering::Relaxed);
        }
    });
    if found.into_inner() {
        scale.overflow.write::<f32>().data_mut()[0] = 1.0;
    }
}

vectorized! {
    fn multiply(values: &mut [f32], factor: f32) {
        for value in values {
            *value *= factor;
        }
    }

    /// Zero times anything finite is zero; times anything else it is NaN, and sums keep that.
    fn are_finite(values: &[f32]) -> bool {
        let mut lanes = [0.0_f32; 16];
        for chunk in values.chunks(16) {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += *value * 0.0;
            }
        }
        lanes.iter().all(|lane| *lane == 0.0)
    }
}
