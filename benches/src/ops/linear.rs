//! Dense layers of the two shapes: forward, and the two gradients.

use crate::harness::{Floor, Harness, Rate};
use headlong_device::testing::uniform;
use headlong_device::{ArenaPlan, DType};
use headlong_mlp::linear::{
    Activation, BackwardDataArgs, BackwardWeightsArgs, Compute, ForwardArgs, WeightsPlan,
    backward_data, backward_weights, forward,
};
use headlong_mlp::rounding::Rounding;

/// Inputs and outputs of the layers that are measured: the thin first one, and the heaviest of each
/// shape.
const LAYERS: [(usize, usize); 5] = [(13, 512), (367, 512), (512, 256), (479, 1024), (1024, 1024)];

/// Runs `linear/…` for each layer.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    let samples = harness.size(2048, 32);
    for (inputs, outputs) in LAYERS {
        for (name, compute) in [
            ("", Compute::F32),
            ("bf16 ", Compute::Rounded(Rounding::Bf16)),
            ("tiles of bf16 ", Compute::RoundedTiles),
        ] {
            layer(harness, samples, (inputs, outputs), (name, compute))?;
        }
    }
    Ok(())
}

fn layer(
    harness: &mut Harness,
    samples: usize,
    (inputs, outputs): (usize, usize),
    (numbers, compute): (&str, Compute),
) -> anyhow::Result<()> {
    let ops = ["forward", "backward data", "backward weights"];
    let case = |op: &str| format!("linear/{numbers}{op} {samples}x{inputs}x{outputs}");
    if !ops.iter().any(|op| harness.wants(&case(op))) {
        return Ok(());
    }
    let (mut parameters, mut scratch) = (ArenaPlan::new("parameters"), ArenaPlan::new("scratch"));
    let weights =
        WeightsPlan::add_for(compute, &mut parameters, &mut scratch, "w", (outputs, inputs));
    let mut plan =
        |name: &str, rows: usize, cols: usize| scratch.matrix(name, DType::F32, rows, cols);
    let (x, y, b) =
        (plan("x", samples, inputs), plan("y", samples, outputs), plan("b", 1, outputs));
    let (d_x, d_z) = (plan("d_x", samples, inputs), plan("d_z", samples, outputs));
    let (d_w, d_b) = (plan("d_w", outputs, inputs), plan("d_b", 1, outputs));
    let (parameters, scratch) = (parameters.freeze()?, scratch.freeze()?);
    let w = weights.build(&parameters, &scratch);
    let [x, y, b, d_x, d_z, d_w, d_b] = [x, y, b, d_x, d_z, d_w, d_b].map(|slot| scratch.mat(slot));
    let stream = harness.stream().clone();
    w.pack(&uniform(1, inputs * outputs));
    w.refresh(&stream);
    let drawn = |seed: u64, len: usize| {
        let mut values = uniform(seed, len);
        if let Some(rounding) = compute.rounding() {
            rounding.round_all(&mut values);
        }
        values
    };
    x.write::<f32>().data_mut().copy_from_slice(&drawn(2, samples * inputs));
    d_z.write::<f32>().data_mut().copy_from_slice(&drawn(3, samples * outputs));

    let gflop = (2 * samples * inputs * outputs) as f64 * 1e-9;
    let mut measure = |op: &str, body: &mut dyn FnMut()| {
        let rate = Rate { name: &case(op), unit: "GFLOP/s", work: gflop, floor: Floor::Arithmetic };
        harness.measure(&rate, body);
    };
    let args = ForwardArgs { x: &x, w: &w, b: Some(&b), y: &y, activation: Activation::Relu };
    measure("forward", &mut || forward(&stream, &args));
    let args = BackwardDataArgs { d_z: &d_z, w: &w, d_x: &d_x, mask: Some(&x), accumulate: false };
    measure("backward data", &mut || backward_data(&stream, &args));
    let args = BackwardWeightsArgs {
        x: &x,
        d_z: &d_z,
        d_w: &d_w,
        d_b: Some(&d_b),
        partials: None,
        block_len: usize::MAX,
        accumulate: false,
        compute,
    };
    measure("backward weights", &mut || backward_weights(&stream, &args));
    Ok(())
}
