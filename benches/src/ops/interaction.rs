//! The dot interaction at both shapes, forward and backward.

use crate::harness::{Floor, Harness, Rate};
use headlong_device::testing::uniform;
use headlong_device::{ArenaPlan, DType};
use headlong_mlp::interaction::dot::{BackwardArgs, ForwardArgs, backward, forward, output_width};
use headlong_mlp::linear::Activation;

const TABLES: usize = 26;

/// Runs `interaction/…` at dim 128 and dim 16.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    let samples = harness.size(2048, 32);
    for dim in [128, 16] {
        if harness.wants("interaction") {
            at_dim(harness, samples, dim)?;
        }
    }
    Ok(())
}

fn at_dim(harness: &mut Harness, samples: usize, dim: usize) -> anyhow::Result<()> {
    let width = output_width(TABLES, dim);
    let mut plan = ArenaPlan::new("interaction");
    let slots = [
        ("bottom", dim),
        ("d_bottom", dim),
        ("vectors", TABLES * dim),
        ("d_vectors", TABLES * dim),
        ("out", width),
    ]
    .map(|(name, cols)| plan.matrix(name, DType::F32, samples, cols));
    let arena = plan.freeze()?;
    let [bottom, d_bottom, vectors, d_vectors, out] = slots.map(|slot| arena.mat(slot));
    bottom.write::<f32>().data_mut().copy_from_slice(&uniform(1, samples * dim));
    vectors.write::<f32>().data_mut().copy_from_slice(&uniform(2, samples * TABLES * dim));
    let stream = harness.stream().clone();

    // Each product of two different vectors once; backward each gradient flows to both.
    let gflop = (samples * TABLES * (TABLES + 1) * dim) as f64 * 1e-9;
    let name = format!("interaction/forward {samples}x{}x{dim}", TABLES + 1);
    let rate = Rate { name: &name, unit: "GFLOP/s", work: gflop, floor: Floor::Arithmetic };
    let args = ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out };
    harness.measure(&rate, || forward(&stream, &args, None));

    let name = format!("interaction/backward {samples}x{}x{dim}", TABLES + 1);
    let rate = Rate { name: &name, unit: "GFLOP/s", work: 2.0 * gflop, floor: Floor::Arithmetic };
    let args = BackwardArgs {
        bottom: &bottom,
        vectors: &vectors,
        d_out: &out,
        d_bottom: &d_bottom,
        d_vectors: &d_vectors,
        bottom_activation: Activation::Relu,
        loss_scale: None,
    };
    harness.measure(&rate, || backward(&stream, &args, None));
    Ok(())
}
