//! The CPU body: a block of samples a task.

use super::{Loss, LossArgs};
use crate::simd::for_each_row;
use crate::sum::block;
use headlong_device::label;
use headlong_device::pool::Pool;
use headlong_device::{MatMut, MatRef, Stream};

/// Samples whose losses and gradients one task computes.
const TILE_ROWS: usize = 256;

pub fn forward_backward(stream: &Stream, args: &LossArgs<'_>) {
    let (logits, labels) = (args.logits.read::<f32>(), args.labels.read::<f32>());
    let (mut gradient, mut sums) = (args.d_logits.write::<f32>(), args.sums.write::<f32>());
    let (logits, labels) = (logits.view(), labels.view());
    gradients(stream.pool(), args, (logits, labels), gradient.view());
    for_each_row(stream.pool(), sums.view(), 1, |index, row| {
        let samples = block(logits.rows(), args.block_len, index);
        let sum: f64 = samples.map(|s| loss(args.loss, logits.row(s)[0], labels.row(s)[0]).0).sum();
        let rounded = sum as f32;
        // Infinity less infinity would be NaN.
        let rest = if rounded.is_finite() { (sum - f64::from(rounded)) as f32 } else { 0.0 };
        row.copy_from_slice(&[rounded, rest]);
    });
}

fn gradients(
    pool: &Pool,
    args: &LossArgs<'_>,
    (logits, labels): (MatRef<'_>, MatRef<'_>),
    out: MatMut<'_>,
) {
    let loss_scale = args.loss_scale.map_or(1.0, |loss_scale| loss_scale.scale().0);
    let scale = f64::from(args.scale) * f64::from(loss_scale);
    for_each_row(pool, out, TILE_ROWS, |sample, out| {
        let (_, gradient) = loss(args.loss, logits.row(sample)[0], labels.row(sample)[0]);
        out[0] = (gradient * scale) as f32;
    });
}

/// Loss of one sample and its derivative by the logit.
fn loss(kind: Loss, logit: f32, label: f32) -> (f64, f64) {
    let z = f64::from(logit);
    // Of the two exponentials only the one that cannot overflow is taken.
    let small = (-z.abs()).exp();
    let p = if z >= 0.0 { 1.0 / (1.0 + small) } else { small / (1.0 + small) };
    match kind {
        Loss::BceWithLogits => {
            let (is_positive, weight) = label::parts(label);
            if weight == 0.0 {
                // Also where the loss is not finite.
                return (0.0, 0.0);
            }
            let (y, weight) = (f64::from(u8::from(is_positive)), f64::from(weight));
            // Note: written so that a NaN logit gives a NaN loss; `f64::max` would swallow it.
            let loss = (if z < 0.0 { 0.0 } else { z }) - z * y + small.ln_1p();
            (loss * weight, (p - y) * weight)
        }
        Loss::MseOfSigmoid => {
            let y = f64::from(label);
            ((p - y) * (p - y), 2.0 * (p - y) * p * (1.0 - p))
        }
    }
}
