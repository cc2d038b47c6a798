//! What a step brings to the optimisers, in device memory.

use super::Define;
use crate::optimizer::{Optimizer, Step};

/// Learning rate and step number as kernels read them: written by the host before a step, so that a
/// captured step needs no new arguments.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct DeviceStep {
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// 1 for the first step.
    pub number: u32,
    /// Adam: `lr / (1 - β₁ᵗ)`, LAMB: `1 / (1 - β₁ᵗ)`, computed in f64. The learning rate for every
    /// other optimiser.
    pub rate: f32,
    /// Adam, LAMB: `√(1 - β₂ᵗ)`, computed in f64. 1 for every other optimiser.
    pub root: f32,
    /// Not 0 where the step must change nothing, weights, states and counts alike: a device sets
    /// it, where gradients overflow.
    pub skip: u32,
}

impl DeviceStep {
    /// Where [`Self::skip`] lies.
    pub const SKIP_OFFSET: usize = std::mem::offset_of!(Self, skip);

    /// The step for an optimiser.
    pub fn new(step: &Step, optimizer: &Optimizer) -> Self {
        let (root, rate) = step.corrections(optimizer);
        let number = u32::try_from(step.number).unwrap_or(u32::MAX);
        Self { learning_rate: step.learning_rate, number, rate, root, skip: 0 }
    }

    /// Its words, as they lie in device memory: for a slot of [`crate::DType::U32`].
    pub fn words(&self) -> [u32; 5] {
        [
            self.learning_rate.to_bits(),
            self.number,
            self.rate.to_bits(),
            self.root.to_bits(),
            self.skip,
        ]
    }
}

/// The constants of an optimiser, as `optimizer.cuh` has them. Those that an optimiser does not
/// have are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(C)]
pub struct OptimizerConstants {
    /// Added to the root of the accumulator: Adagrad, row-wise Adagrad, Adam, LAMB.
    pub epsilon: f32,
    /// Adam, LAMB: decay of the first moment.
    pub beta1: f32,
    /// Adam, LAMB: decay of the second moment.
    pub beta2: f32,
    /// FTRL: added to the root of the accumulator.
    pub beta: f32,
    /// FTRL: L1 strength.
    pub l1: f32,
    /// FTRL: L2 strength; LAMB: weight decay.
    pub l2: f32,
}

impl OptimizerConstants {
    /// The constants of an optimiser.
    pub fn new(optimizer: &Optimizer) -> Self {
        match *optimizer {
            Optimizer::Sgd => Self::default(),
            Optimizer::Adagrad { epsilon, .. } | Optimizer::RowWiseAdagrad { epsilon, .. } => {
                Self { epsilon, ..Self::default() }
            }
            Optimizer::Adam { beta1, beta2, epsilon } => {
                Self { epsilon, beta1, beta2, ..Self::default() }
            }
            Optimizer::Lamb { beta1, beta2, epsilon, weight_decay: l2 } => {
                Self { epsilon, beta1, beta2, l2, ..Self::default() }
            }
            Optimizer::Ftrl { beta, l1, l2, .. } => Self { beta, l1, l2, ..Self::default() },
        }
    }

    /// Which optimiser it is, for the kernel: `-DHL_OPTIMIZER=`.
    pub const fn define(optimizer: &Optimizer) -> Define {
        let kind = match optimizer {
            Optimizer::Sgd => 0,
            Optimizer::Adagrad { .. } => 1,
            Optimizer::RowWiseAdagrad { .. } => 2,
            Optimizer::Adam { .. } => 3,
            Optimizer::Ftrl { .. } => 4,
            Optimizer::Lamb { .. } => 5,
        };
        Define::new("HL_OPTIMIZER", kind)
    }
}
