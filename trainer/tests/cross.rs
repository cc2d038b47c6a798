//! DLRM with a cross network: the same bits whatever the ranks, nodes, schedule; saved, resumed,
//! launched and applied as any other model; on a CUDA device the same within bounds.

#![cfg(test)]

mod made_up;
mod run_support;

use headlong::config::{
    AllToAll, Config, DeviceChoice, Interaction, Precision, ScheduleChoice, TableRows,
};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_device::cuda::testing::{device, has_devices};
use headlong_embedding::Registry;
use made_up::{MadeUp, mixed};
use run_support::{Place, Run, events, names};
use std::sync::Arc;

const DENSE: usize = 3;
const ROWS: [u64; 4] = [5, 40, 1, 300];
const SAMPLES: usize = 24;
const STEPS: u64 = 10;

fn config() -> Config {
    let mut config = Config::default();
    (config.model.dim, config.model.bottom, config.model.top) = (8, vec![12, 6], vec![9, 1]);
    config.model.interaction = Interaction::Cross;
    (config.model.cross_layers, config.model.cross_rank) = (2, 5);
    (config.data.num_dense, config.data.num_sparse) = (DENSE, ROWS.len());
    config.tables.rows = TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = 3;
    (config.train.batch_size, config.train.sum_blocks) = (SAMPLES, Some(4));
    config.eval.batch_size = SAMPLES;
    config.run.schedule = ScheduleChoice::Serial;
    config.comm.deadline_s = 20.0;
    config.optimizer.set_both("adagrad").unwrap();
    config.optimizer.resolve().unwrap();
    config
}

#[derive(Debug, PartialEq)]
struct Outcome {
    losses: Vec<f64>,
    digest: String,
    predictions: Vec<f32>,
}

/// Some steps, every fifth batch short, then a prediction.
fn run(config: &Config) -> Outcome {
    config.validate().unwrap();
    let registry = Registry::default();
    let ranks = config.run.ranks;
    let partition = (ranks > 1).then(|| Arc::new(mixed(&table_specs(config, &ROWS), ranks)));
    let group = RankGroup::build(
        config,
        &ROWS,
        RankGroupOptions { partition, ..RankGroupOptions::new(2, &registry) },
    )
    .unwrap();
    let at = |number: u64| {
        let samples = if number % 5 == 4 { 7 } else { SAMPLES };
        MadeUp { seed: 9, rows: &ROWS, num_dense: DENSE }.bags(number, samples)
    };
    group.prime(&at(0)).unwrap();
    let mut losses = Vec::new();
    for number in 1..=STEPS {
        let next = (number < STEPS).then(|| at(number));
        group.enqueue(StepRates { number, dense: 0.05, sparse: 0.1 }, next.as_ref()).unwrap();
        group.take_losses(&mut |step| losses.push(step.loss));
    }
    group.drain().unwrap();
    group.take_losses(&mut |step| losses.push(step.loss));
    let mut predictions = Vec::new();
    group.predict(&at(100), &mut |logits, _| predictions.extend_from_slice(logits)).unwrap();
    Outcome { losses, digest: weights_digest(&group).unwrap(), predictions }
}

#[test]
fn ranks_nodes_and_schedules_change_no_bit() {
    let alone = run(&config());
    assert!(alone.losses[STEPS as usize - 1] < alone.losses[0], "it learns: {:?}", alone.losses);
    for (ranks, per_node, exchange, schedule) in [
        (1, 0, AllToAll::Flat, ScheduleChoice::Overlapped),
        (2, 0, AllToAll::Flat, ScheduleChoice::Overlapped),
        (4, 2, AllToAll::Hierarchical, ScheduleChoice::Serial),
        (4, 0, AllToAll::Flat, ScheduleChoice::Overlapped),
    ] {
        let mut config = config();
        (config.run.ranks, config.comm.ranks_per_node) = (ranks, per_node);
        (config.comm.exchange, config.run.schedule) = (exchange, schedule);
        assert_eq!(run(&config), alone, "{ranks} ranks, {per_node} to a node, {schedule:?}");
    }
}

/// Micro-batches add up to the step over the whole batch, except for rounding.
#[test]
fn accumulated_micro_batches_are_one_batch() {
    let of = |accumulate| {
        let mut config = config();
        (config.train.batch_size, config.train.accumulate) = (SAMPLES / accumulate, accumulate);
        run(&config).losses
    };
    for (whole, parts) in of(1).iter().zip(of(3)) {
        assert!((whole - parts).abs() < 1e-5, "{whole}, {parts}");
    }
}

#[test]
fn cuda_trains_the_same_bits_in_every_schedule_and_the_processors_within_bounds() {
    if device().is_none() {
        return;
    }
    let on_device = |ranks, precision, schedule| {
        let mut config = config();
        (config.run.device, config.run.schedule) = (DeviceChoice::Cuda, schedule);
        (config.run.ranks, config.train.precision) = (ranks, precision);
        run(&config)
    };
    let cpu = run(&config());
    let most_ranks = if has_devices(2) { 2 } else { 1 };
    for ranks in 1..=most_ranks {
        let serial = on_device(ranks, Precision::F32, ScheduleChoice::Serial);
        for schedule in [ScheduleChoice::Overlapped, ScheduleChoice::Captured] {
            assert_eq!(
                on_device(ranks, Precision::F32, schedule),
                serial,
                "{ranks} ranks, {schedule:?}"
            );
        }
        // Adagrad's first steps turn the sign of a gradient that is nearly zero into a whole step:
        // losses show little of that.
        for (here, there) in cpu.losses.iter().zip(&serial.losses) {
            assert!((here - there).abs() < 2e-4, "{ranks} ranks: {there}, on the processor {here}");
        }
    }
    // In 16 bits with SGD: Adagrad would turn signs. Eight units of bf16 for losses of about 1.
    let sgd = |device, precision, schedule| {
        let mut config = config();
        config.optimizer.set_both("sgd").unwrap();
        config.optimizer.resolve().unwrap();
        (config.run.device, config.run.schedule, config.train.precision) =
            (device, schedule, precision);
        run(&config)
    };
    let cpu = sgd(DeviceChoice::Cpu, Precision::F32, ScheduleChoice::Serial);
    for precision in [Precision::Bf16, Precision::F16] {
        let captured = sgd(DeviceChoice::Cuda, precision, ScheduleChoice::Captured);
        assert_eq!(
            captured,
            sgd(DeviceChoice::Cuda, precision, ScheduleChoice::Serial),
            "{precision:?}"
        );
        let here = sgd(DeviceChoice::Cpu, precision, ScheduleChoice::Serial);
        for ((wide, here), there) in cpu.losses.iter().zip(&here.losses).zip(&captured.losses) {
            let bound = 8.0 * 2.0_f64.powi(-9);
            let fits = (wide - there).abs() < bound && (wide - here).abs() < bound;
            assert!(fits, "{precision:?}: {there}, on the processor {here}, there in f32 {wide}");
        }
    }
}

/// The preset with small tables and layers, on generated multi-hot ids: each step one launch.
#[test]
fn the_scaled_preset_trains_captured_as_on_the_processor() {
    if device().is_none() {
        return;
    }
    let place = Place::new("rows.txt");
    let losses = |name: &str, arguments: &[&str]| {
        let log = place.path(name);
        let run = Run::new("train").with(&["--preset", "criteo-terabyte-dcnv2", "--steps", "20"]);
        let run = run.path("--data", &place.train).path("--output-dir", &place.path("output"));
        let run = run.path("--log-json", &log).with(&SCALED).with(arguments);
        run.succeeds();
        let steps = events(&log).into_iter().filter(|event| event["event"] == "step");
        steps.map(|event| event["loss"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    let cpu = losses("cpu", &[]);
    let cuda = losses("cuda", &["--device", "cuda", "--schedule", "captured"]);
    assert_eq!((cpu.len(), cuda.len()), (20, 20));
    let off = cpu.iter().zip(&cuda).map(|(cpu, cuda)| (cpu - cuda).abs()).fold(0.0, f64::max);
    println!("largest difference of 20 losses: {off:.1e}");
    // Adagrad turns the sign of a gradient that is nearly zero into a whole step: losses show
    // little of that.
    assert!(off < 2e-4, "{off:.1e}: {cpu:?}, {cuda:?}");
}

/// What makes the preset fit a test.
const SCALED: [&str; 16] = [
    "--set",
    "tables.max_rows=300",
    "--set",
    "model.dim=8",
    "--set",
    "model.bottom=[16,8]",
    "--set",
    "model.top=[16,1]",
    "--set",
    "model.cross_rank=16",
    "--set",
    "train.batch_size=64",
    "--set",
    "train.log_every=1",
    "--set",
    "eval.batch_size=64",
];

fn train(place: &Place) -> Run {
    let run = place.train().with(&["--set", "sum_blocks=4", "--optimizer", "adagrad"]);
    run.with(&["--set", "model.interaction=cross", "--set", "model.cross_rank=9"])
}

/// Saved on four ranks and resumed on two, launched as processes: the weights of one rank that was
/// never interrupted.
#[test]
fn a_run_is_saved_resumed_launched_and_applied() {
    let place = Place::new("rows.txt");
    let expected = train(&place).succeeds().digest();
    let (saved, half) =
        (place.path("saved"), train(&place).with(&["--ranks", "4", "--set", "train.steps=9"]));
    half.path("--checkpoint-dir", &saved).succeeds();
    let other = train(&place).with(&["--resume", "--set", "model.cross_rank=8"]);
    other
        .path("--checkpoint-dir", &saved)
        .fails(1, &["cross(layers=3, rank=8)", "cross(layers=3, rank=9)"]);
    let resumed =
        train(&place).with(&["--resume", "--ranks", "2", "--set", "run.schedule=overlapped"]);
    let outcome = resumed.path("--checkpoint-dir", &saved).succeeds();
    assert!(outcome.stderr.contains("resumed at step 9"), "{}", outcome.stderr);
    assert_eq!(outcome.digest(), expected);

    assert_eq!(train(&place).with(&["--ranks", "4"]).launched(4).succeeds().digest(), expected);

    let predictions = place.path("predictions.csv");
    let predict = Run::new("predict").path("--checkpoint", &saved).path("--data", &place.valid);
    predict.path("--output", &predictions).succeeds();
    assert_eq!(std::fs::read_to_string(&predictions).unwrap().lines().count(), 301);

    // The original DLRM has no cross network: nothing is written that would load as another model.
    let export = Run::new("checkpoint").with(&["export", saved.to_str().unwrap()]);
    export.fails(2, &["exporting `dense.cross.0.", "the original DLRM has bottom and top layers"]);
    let exported = |name: &String| name.ends_with(".safetensors");
    assert!(
        !names(&saved).iter().any(exported) && !names(saved.parent().unwrap()).iter().any(exported)
    );
}
