//! What a step brings to the optimisers, in device memory.

use crate::optimizer::{Optimizer, Step};

/// Learning rate and step number as kernels read them: written by the host before a step, so that a captured step needs
/// no new arguments.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct DeviceStep {
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// 1 for the first step.
    pub number: u32,
    /// Adam: `lr / (1 - β₁ᵗ)`, computed in f64. The learning rate for every other optimiser.
    pub rate: f32,
    /// Adam: `√(1 - β₂ᵗ)`, computed in f64. 1 for every other optimiser.
    pub root: f32,
}

impl DeviceStep {
    /// The step for an optimiser.
    pub fn new(step: &Step, optimizer: &Optimizer) -> Self {
        let (root, rate) = step.corrections(optimizer);
        let number = u32::try_from(step.number).unwrap_or(u32::MAX);
        Self { learning_rate: step.learning_rate, number, rate, root }
    }

    /// Its bytes, as they lie in device memory.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let words = [
            self.learning_rate.to_bits(),
            self.number,
            self.rate.to_bits(),
            self.root.to_bits(),
        ];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
