//! Loss and its gradient in one pass.
//!
//! # What it computes
//! For logits `z`, labels `y` and `p = 1 / (1 + e^-z)`:
//!
//! | [`Loss`] | loss of a sample | gradient `d_logits / scale` |
//! |---|---|---|
//! | `BceWithLogits` | `max(z, 0) - z·y + ln(1 + e^-|z|)` | `p - y` |
//! | `MseOfSigmoid` | `(p - y)²` | `2 (p - y) p (1 - p)` |
//!
//! With `BceWithLogits` a sample's loss and gradient are multiplied by its weight, which its label
//! brings with it ([`headlong_device::label`]); a sample of weight 0 has none, whatever its logit.
//! `MseOfSigmoid` takes any number as a label, and no weights.
//!
//! `scale` is 1 / (global batch), or 1 / (batch · k) where k batches are accumulated into one step:
//! then gradients are those of the mean. It divides by samples, not by the sum of weights.
//!
//! # Shapes
//! Logits, labels and gradient samples × 1; [`LossArgs::sums`] blocks × 2; all f32. Arithmetic is
//! f64 within a sample.
//!
//! # Sums
//! The losses of a block are added in f64 in sample order and kept as two f32, the sum and what
//! rounding it lost; [`total`] adds the blocks in the fixed tree of [`crate::sum`].
//!
//! # Work
//! On the CPU it blocks until done and allocates nothing; on a device it enqueues one or two
//! kernels. Errors: none; wrong shapes panic. NaN passes through to the sums, unless its weight is
//! 0.
//!
//! # Source
//! PyTorch `BCEWithLogitsLoss`, `MSELoss`; the stable form of the former is the well-known one.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::SOURCE;

use crate::loss_scale::LossScale;
use crate::sum::tree;
use headlong_device::{Device, Mat, Stream};
use serde::{Deserialize, Serialize};

/// What training minimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Binary cross-entropy, from logits.
    #[serde(rename = "bce")]
    BceWithLogits,
    /// Squared error of the probability: the debug run of the original DLRM.
    #[serde(rename = "mse")]
    MseOfSigmoid,
}

/// Most blocks of samples that the loss is summed in.
pub const MAX_SUM_BLOCKS: usize = 1024;

/// Arguments of [`forward_backward`].
#[derive(Debug)]
pub struct LossArgs<'a> {
    /// Which loss.
    pub loss: Loss,
    /// Logits, samples × 1.
    pub logits: &'a Mat,
    /// Labels, samples × 1: 0 or 1, or with a weight ([`headlong_device::label::weighted`]); the
    /// squared error takes any number.
    pub labels: &'a Mat,
    /// Gradient with respect to the logits, samples × 1; overwritten.
    pub d_logits: &'a Mat,
    /// Sums of the losses per block of samples, blocks × 2; overwritten. Its rows say how many
    /// blocks.
    pub sums: &'a Mat,
    /// Samples of one block ([`crate::sum::block_len`]); all blocks together hold all samples.
    pub block_len: usize,
    /// Factor of the gradient.
    pub scale: f32,
    /// What the gradient is multiplied by as well, where the loss is scaled.
    pub loss_scale: Option<&'a LossScale>,
}

/// Losses, summed per block, and the gradient of the logits.
pub fn forward_backward(stream: &Stream, args: &LossArgs<'_>) {
    let samples = args.logits.rows();
    for (what, mat) in
        [("logits", args.logits), ("labels", args.labels), ("gradient", args.d_logits)]
    {
        assert_eq!(
            (mat.rows(), mat.cols()),
            (samples, 1),
            "{what}, slot `{}`: rows × columns",
            mat.name()
        );
    }
    assert_eq!(args.sums.cols(), 2, "a block's sum is two numbers");
    assert!((1..=MAX_SUM_BLOCKS).contains(&args.sums.rows()), "1 to {MAX_SUM_BLOCKS} blocks");
    assert!(
        args.sums.rows().saturating_mul(args.block_len) >= samples,
        "the blocks hold all samples"
    );
    match stream.device() {
        Device::Cpu => cpu::forward_backward(stream, args),
        Device::Cuda(_) => cuda::forward_backward(stream, args),
    }
}

/// The sum of the losses of all samples, from the block sums of [`forward_backward`]. Reads device
/// memory: for the host's part.
pub fn total(sums: &Mat) -> f64 {
    let sums = sums.read::<f32>();
    let pairs = (0..sums.view().rows()).map(|index| sums.row(index));
    total_of_pairs(pairs)
}

/// As [`total`], of a copy of the sums, two numbers a block: what was brought from a device.
pub fn total_of(sums: &[f32]) -> f64 {
    total_of_pairs(sums.chunks(2))
}

fn total_of_pairs<'a>(pairs: impl ExactSizeIterator<Item = &'a [f32]>) -> f64 {
    let count = pairs.len();
    assert!(count <= MAX_SUM_BLOCKS, "{count} blocks of at most {MAX_SUM_BLOCKS}");
    let mut blocks = [0.0_f64; MAX_SUM_BLOCKS];
    for (block, pair) in blocks.iter_mut().zip(pairs) {
        let [sum, rest] = *pair else { unreachable!("a block's sum is two numbers") };
        *block = f64::from(sum) + f64::from(rest);
    }
    tree(count, |into, from| blocks[into] += blocks[from]);
    blocks[0]
}
