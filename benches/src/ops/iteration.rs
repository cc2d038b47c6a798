//! Whole training steps at both shapes: what `headlong bench iteration` measures.

use crate::harness::{Floor, Harness, Rate};
use headlong::commands::bench::iteration::{SteadyTrainer, configuration};
use headlong::commands::bench::shapes::Shape;
use headlong::iteration::arithmetic::Arithmetic;
use headlong::plan::advice;

/// Runs `iteration/C1` and `iteration/C2`: samples per second, and the same in GFLOP/s next to the
/// peak.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    for name in ["C1", "C2"] {
        if harness.wants(&format!("iteration/{name}")) {
            at_shape(harness, name)?;
        }
    }
    Ok(())
}

fn at_shape(harness: &mut Harness, name: &str) -> anyhow::Result<()> {
    let shape = Shape::from_name(name, harness.settings().smoke.then_some(500))
        .map_err(anyhow::Error::msg)?;
    let batch_size = harness.size(2048, 32);
    let config = configuration(&shape, batch_size, harness.settings().threads, None)?;
    let mut trainer =
        SteadyTrainer::new(&shape, &config, harness.stream().pool().threads(), advice::BENCH)?;
    let case = format!("iteration/{name} batch {batch_size}");
    let rate = Rate { name: &case, unit: "samples/s", work: batch_size as f64, floor: Floor::None };
    let mut failure = None;
    let mut samples =
        harness.measure(&rate, || failure = failure.take().or(trainer.steps(1).err()));
    failure.map_or(Ok(()), |error| Err(anyhow::Error::from(error)))?;
    let gflop = Arithmetic::of(&config).training_flop() as f64 * 1e-9;
    samples.iter_mut().for_each(|sample| sample.rate *= gflop);
    let case = format!("iteration/{name} batch {batch_size}, arithmetic");
    harness.report(
        &Rate { name: &case, unit: "GFLOP/s", work: 1.0, floor: Floor::Arithmetic },
        &samples,
    );
    Ok(())
}
