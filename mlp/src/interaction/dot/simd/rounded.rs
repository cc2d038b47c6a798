//! A sample's vectors, rounded on the stack: those in memory are read once and stay as they are.

use headlong_device::bf16::nearest;
use headlong_device::vectorized;
use std::mem::MaybeUninit;

/// Numbers of a sample that find room.
pub const MAX_ROUNDED: usize = 1 << 13;

/// Room for the vectors of a sample, in whole cache lines.
#[repr(C, align(64))]
pub struct Rounded([MaybeUninit<f32>; MAX_ROUNDED]);

impl Rounded {
    pub const fn new() -> Self {
        Self([MaybeUninit::uninit(); MAX_ROUNDED])
    }

    /// `vectors`, rounded to bf16.
    pub fn of(&mut self, vectors: &[f32]) -> &[f32] {
        let rounded = &mut self.0[..vectors.len()];
        round_into(vectors, rounded);
        // SAFETY: each number was written, by the line above.
        unsafe { std::slice::from_raw_parts(rounded.as_ptr().cast(), rounded.len()) }
    }
}

vectorized! {
    fn round_into(from: &[f32], to: &mut [MaybeUninit<f32>]) {
        for (to, from) in to.iter_mut().zip(from) {
            to.write(nearest(*from));
        }
    }
}
