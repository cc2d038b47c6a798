//! A table of one's own with a CUDA body, inside the captured iteration: alone, and as one table of
//! four ranks.

#![cfg(test)]

#[path = "../../embedding/tests/common/quotient_remainder.rs"]
#[allow(dead_code, reason = "its layout is compared in its own crate")]
mod quotient_remainder;

use headlong::config::{Config, DeviceChoice, ScheduleChoice, TableRows};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_device::cuda::testing::{device, has_devices};
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_reader::{Batch, Jagged};
use quotient_remainder::QuotientRemainder;
use std::sync::Arc;

const ROWS: [u64; 2] = [400, 60];
const SAMPLES: usize = 24;
const STEPS: u64 = 30;

const OWN: &str = r#"
[[table]]
name = "C1"
kind = "quotient_remainder"
grain = "whole"
placement = "table_wise"
"#;

fn config(ranks: usize, schedule: ScheduleChoice) -> Config {
    let mut config = Config::default();
    config.model.dim = 16;
    config.model.bottom = vec![16];
    config.model.top = vec![16, 1];
    (config.data.num_dense, config.data.num_sparse) = (4, ROWS.len());
    config.tables.rows = TableRows::List(ROWS.to_vec());
    config.table = Config::from_toml(OWN, "own").unwrap().table;
    (config.train.batch_size, config.eval.batch_size) = (SAMPLES, SAMPLES);
    (config.run.device, config.run.schedule, config.run.ranks) =
        (DeviceChoice::Cuda, schedule, ranks);
    config.optimizer.set_both("adagrad").unwrap();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

fn batch(number: u64) -> Batch {
    let random = CounterRng::new(number, 5);
    let draw = |index: usize| f64::from(random.uniform(index as u64));
    let ids = |table: usize| Jagged {
        values: (0..SAMPLES)
            .map(|i| (draw(table * 100 + i).powi(3) * ROWS[table] as f64) as u64)
            .collect(),
        offsets: (0..=SAMPLES as u32).collect(),
    };
    Batch {
        num_samples: SAMPLES,
        labels: (0..SAMPLES).map(|i| f32::from(draw(500 + i) < 0.4)).collect(),
        dense: (0..SAMPLES * 4).map(|i| draw(1000 + i) as f32 - 0.5).collect(),
        sparse: (0..ROWS.len()).map(ids).collect(),
        ..Batch::default()
    }
}

/// Losses and the digest of all weights and states.
fn run(ranks: usize, schedule: ScheduleChoice) -> (Vec<f64>, String) {
    let config = config(ranks, schedule);
    let mut registry = Registry::default();
    registry.register("quotient_remainder", QuotientRemainder);
    let placements = vec![
        TablePlacement::TableWise(Owner(ranks - 1)),
        TablePlacement::RowWise { frequent: vec![0, 1, 2], placed: Vec::new() },
    ];
    let partition = Partition::new(&table_specs(&config, &ROWS), ranks, placements).unwrap();
    let partition = (ranks > 1).then(|| Arc::new(partition));
    let options = RankGroupOptions { partition, ..RankGroupOptions::new(2, &registry) };
    let group = RankGroup::build(&config, &ROWS, options).unwrap();
    group.prime(&batch(0)).unwrap();
    let mut losses = Vec::new();
    for number in 1..=STEPS {
        group
            .enqueue(StepRates { number, dense: 0.02, sparse: 0.05 }, Some(&batch(number % 3)))
            .unwrap();
        group.take_losses(&mut |step| losses.push(step.loss));
    }
    group.drain().unwrap();
    group.take_losses(&mut |step| losses.push(step.loss));
    (losses, weights_digest(&group).unwrap())
}

#[test]
fn a_table_of_ones_own_trains_captured_alone_and_among_four_ranks() {
    if device().is_none() {
        return;
    }
    let alone = run(1, ScheduleChoice::Captured);
    assert_eq!(alone, run(1, ScheduleChoice::Serial), "captured is eager, bit for bit");
    assert_eq!(alone.0.len() as u64, STEPS);
    // Three batches over and over are learnt by heart.
    let (first, last): (f64, f64) =
        (alone.0[..3].iter().sum(), alone.0[STEPS as usize - 3..].iter().sum());
    assert!(last < 0.9 * first, "it does not learn: {:?}", alone.0);
    if !has_devices(4) {
        return;
    }
    let four = run(4, ScheduleChoice::Captured);
    assert_eq!(
        four,
        run(4, ScheduleChoice::Serial),
        "captured is eager on four ranks, bit for bit"
    );
    for (one, four) in alone.0.iter().zip(&four.0) {
        // Adagrad's roots let f32 rounding grow, as in `cuda.rs`.
        assert!((one - four).abs() <= 3e-4, "loss {four} on four ranks, {one} on one");
    }
}
