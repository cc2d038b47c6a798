//! Training on a CUDA device: the same weights as on the processor within bounds, the same bits
//! whatever the schedule. Where there is no device, the tests say so and pass; the software device
//! (docs/kernels.md) is one.

#![cfg(test)]

mod cuda_operations;
mod cuda_pooling;
mod made_up;

use headlong::config::{
    AllToAll, Compress, Config, DType, DeduplicateChoice, DeviceChoice, Precision, ScheduleChoice,
};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, comm_options, local_topology};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_comm::Communicator;
use headlong_device::cuda::testing::{device, driver_calls, has_devices};
use headlong_embedding::Registry;
use headlong_embedding::hybrid::Partition;
use headlong_reader::Batch;
use headlong_verbs::fake::{Fabric, NetworkModel};
use headlong_verbs::{VerbsRails, VerbsSettings};
use made_up::{MadeUp, mixed};
use std::sync::Arc;

const ROWS: [u64; 4] = [5, 40, 1, 900];
const DENSE: usize = 13;
const SAMPLES: usize = 24;
const STEPS: u64 = 12;
const MOST_IDS: usize = 3;

fn config(
    device: DeviceChoice,
    schedule: ScheduleChoice,
    optimizer: &str,
    accumulate: usize,
) -> Config {
    let mut config = Config::default();
    config.model.dim = 16;
    config.model.bottom = vec![32, 16];
    config.model.top = vec![24, 1];
    config.data.num_dense = DENSE;
    config.data.num_sparse = ROWS.len();
    config.tables.rows = headlong::config::TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = MOST_IDS;
    (config.train.batch_size, config.train.accumulate) = (SAMPLES / accumulate, accumulate);
    config.eval.batch_size = SAMPLES;
    (config.run.device, config.run.schedule) = (device, schedule);
    if optimizer == "lamb" {
        config.optimizer.set_both(optimizer).unwrap();
    } else {
        config.optimizer.set_both("sgd").unwrap();
        config.optimizer.sparse.name = optimizer.to_owned();
    }
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

fn batch(number: u64, samples: usize) -> Batch {
    MadeUp { seed: 21, rows: &ROWS, num_dense: DENSE }.bags(number, samples)
}

/// Tables planned for one id a sample, and a few batches in which ids are missing: these run
/// eagerly, between replays.
#[test]
fn batches_that_were_not_planned_for_change_no_bit() {
    if device().is_none() {
        return;
    }
    let of = |schedule| {
        let mut config = config(DeviceChoice::Cuda, schedule, "sgd", 1);
        config.tables.max_ids_per_sample = 1;
        config.validate().unwrap();
        let group =
            RankGroup::build(&config, &ROWS, RankGroupOptions::new(2, &Registry::default()))
                .unwrap();
        let at = |number: u64| {
            let mut batch = batch(number, SAMPLES);
            for (bags, rows) in batch.sparse.iter_mut().zip(ROWS) {
                let is_there = |sample: &u64| number % 5 != 3 || sample % 4 != 1;
                let ids = (0..SAMPLES as u64).filter(is_there);
                bags.values = ids.map(|sample| (sample * number) % rows).collect();
                let count = |end| (0..end).filter(is_there).count() as u32;
                bags.offsets = (0..=SAMPLES as u64).map(count).collect();
            }
            batch
        };
        group.prime(&at(0)).unwrap();
        for number in 1..=20 {
            group
                .enqueue(StepRates { number, dense: 0.05, sparse: 0.1 }, Some(&at(number)))
                .unwrap();
        }
        group.drain().unwrap();
        weights_digest(&group).unwrap()
    };
    assert_eq!(of(ScheduleChoice::Serial), of(ScheduleChoice::Captured));
}

/// Ranks of several nodes that exchange inside the node first, in one process: the bits of ranks
/// that all exchange with all.
#[test]
fn exchanges_inside_the_node_first_change_no_bit() {
    if !has_devices(8) {
        return;
    }
    use ScheduleChoice::{Captured, Serial};
    let of = |ranks, per_node, schedule| {
        let mut config = config(DeviceChoice::Cuda, schedule, "rowwise_adagrad", 1);
        (config.run.ranks, config.comm.ranks_per_node) = (ranks, per_node);
        config.comm.exchange = match (per_node, schedule) {
            (0, _) => AllToAll::Flat,
            // What several nodes do unasked.
            (_, Captured) => AllToAll::Auto,
            _ => AllToAll::Hierarchical,
        };
        config.validate().unwrap();
        run(&config)
    };
    for (ranks, others) in
        [(4, &[(2, Serial), (2, Captured), (3, Captured)][..]), (8, &[(4, Captured)])]
    {
        let flat = of(ranks, 0, Serial);
        for &(per_node, schedule) in others {
            let other = of(ranks, per_node, schedule);
            let what = format!("{ranks} ranks, {per_node} to a node, {schedule:?}");
            assert_eq!(flat.losses, other.losses, "{what}: losses");
            assert_eq!(flat.digest, other.digest, "{what}: weights and states");
            assert_eq!(flat.predictions, other.predictions, "{what}: predictions");
        }
    }
}

/// What a run left behind.
struct Outcome {
    losses: Vec<f64>,
    digest: String,
    predictions: Vec<f32>,
}

/// Some steps, every seventh batch short, with predictions in the middle and at the end.
fn run(config: &Config) -> Outcome {
    run_among(config, None)
}

/// As [`run`], over these communicators.
fn run_among(config: &Config, communicators: Option<Vec<Communicator>>) -> Outcome {
    run_and_move(config, communicators, None)
}

/// As [`run_among`]; half-way the rows move to where another partition wants them.
fn run_and_move(
    config: &Config,
    communicators: Option<Vec<Communicator>>,
    moves_to: Option<Arc<Partition>>,
) -> Outcome {
    let registry = Registry::default();
    let partition = (config.run.ranks > 1)
        .then(|| Arc::new(mixed(&table_specs(config, &ROWS), config.run.ranks)));
    let options =
        RankGroupOptions { partition, communicators, ..RankGroupOptions::new(2, &registry) };
    run_with(config, options, moves_to)
}

fn run_with(
    config: &Config,
    options: RankGroupOptions<'_>,
    moves_to: Option<Arc<Partition>>,
) -> Outcome {
    let mut group = RankGroup::build(config, &ROWS, options).unwrap();
    let at = |number: u64| batch(number, if number % 7 == 6 { 11 } else { SAMPLES });
    group.prime(&at(0)).unwrap();
    let (mut losses, mut predictions) = (Vec::new(), Vec::new());
    for number in 1..=STEPS {
        let next = (number < STEPS).then(|| at(number));
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        if let Some(partition) = moves_to.as_ref().filter(|_| number == STEPS / 2) {
            group.repartition(partition).unwrap();
        }
        group.enqueue(rates, next.as_ref()).unwrap();
        if number % 4 == 0 {
            let take = &mut |logits: &[f32], _: &[f32]| predictions.extend_from_slice(logits);
            group.predict(&at(100 + number), take).unwrap();
            group.predict(&at(6), take).unwrap();
        }
        group.take_losses(&mut |step| losses.push(step.loss));
    }
    group.drain().unwrap();
    group.take_losses(&mut |step| losses.push(step.loss));
    assert_eq!(losses.len() as u64, STEPS, "each step gives its loss once");
    Outcome { losses, digest: weights_digest(&group).unwrap(), predictions }
}

/// Four ranks on two nodes, whose devices drive the NICs of `fabric`.
fn over_nics(
    fabric: &Arc<Fabric>,
    exchange: AllToAll,
    precision: Precision,
) -> (Config, Vec<Communicator>) {
    let mut config = config(DeviceChoice::Cuda, ScheduleChoice::Captured, "rowwise_adagrad", 1);
    (config.run.ranks, config.comm.ranks_per_node) = (4, 2);
    (config.comm.exchange, config.train.precision) = (exchange, precision);
    config.validate().unwrap();
    let communicators = over_nics_of(fabric, &config);
    (config, communicators)
}

fn over_nics_of(fabric: &Arc<Fabric>, config: &Config) -> Vec<Communicator> {
    let communicators =
        Communicator::local(&local_topology(config), comm_options(config)).into_iter();
    let communicators = communicators.map(|communicator| {
        let node = communicator.topology().node_of(communicator.rank());
        let rails = VerbsRails::new(fabric.provider(node), VerbsSettings::default(), 1);
        communicator.with_rails(Arc::new(rails))
    });
    communicators.collect()
}

#[test]
fn a_captured_step_that_drives_nics_changes_no_bit_and_is_one_launch() {
    if !has_devices(4) {
        return;
    }
    let fabric = Fabric::rails(5, NetworkModel::ROUGH, 2, 2);
    for precision in [Precision::Bf16, Precision::F32] {
        let (mut config, communicators) = over_nics(&fabric, AllToAll::Hierarchical, precision);
        let by_nics = run_among(&config, Some(communicators));
        config.comm.deduplicate = DeduplicateChoice::Node;
        let merged = run_among(&config, Some(over_nics_of(&fabric, &config)));
        assert!(merged.losses == by_nics.losses, "{precision:?}: merged in nodes, losses");
        assert!(merged.digest == by_nics.digest, "{precision:?}: merged in nodes, weights");
        config.comm.deduplicate = DeduplicateChoice::Rank;
        (config.comm.exchange, config.comm.ranks_per_node) = (AllToAll::Flat, 0);
        let in_memory = run(&config);
        assert_eq!(in_memory.losses, by_nics.losses, "{precision:?}: losses");
        assert_eq!(in_memory.digest, by_nics.digest, "{precision:?}: weights and states");
        assert_eq!(in_memory.predictions, by_nics.predictions, "{precision:?}: predictions");
    }
    let (config, communicators) = over_nics(&fabric, AllToAll::Flat, Precision::F32);
    let registry = Registry::default();
    let options = RankGroupOptions {
        communicators: Some(communicators),
        ..RankGroupOptions::new(2, &registry)
    };
    let refused = RankGroup::build(&config, &ROWS, options).err().expect("NICs carry nothing");
    let text = headlong::error::chain(&refused);
    assert!(text.contains("verbs between devices") && text.contains("comm.exchange"), "{text}");

    let (_, communicators) = over_nics(&fabric, AllToAll::Auto, Precision::F32);
    let options = RankGroupOptions {
        communicators: Some(communicators),
        ..RankGroupOptions::new(2, &registry)
    };
    let group = RankGroup::build(&config, &ROWS, options).unwrap();
    group.prime(&batch(0, SAMPLES)).unwrap();
    let steps = |numbers: std::ops::Range<u64>| {
        for number in numbers {
            let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
            group.enqueue(rates, Some(&batch(number, SAMPLES))).unwrap();
        }
    };
    steps(1..7);
    let calls = || [c"cuGraphLaunch", c"cuLaunchKernel", c"cuMemcpyDtoHAsync_v2"].map(driver_calls);
    let before = calls();
    steps(7..15);
    let more = calls().map(|calls| calls.unwrap_or(0));
    if let [Some(launches), Some(kernels), Some(copies)] = before {
        let more = [more[0] - launches, more[1] - kernels, more[2] - copies];
        assert_eq!(
            more,
            [4 * 8, 0, 0],
            "launches of graphs and kernels, copies to the host, of eight steps of four ranks"
        );
    }
    group.drain().unwrap();
    assert_eq!(fabric.violations(), Vec::<String>::new());
}

#[test]
fn schedules_and_graphs_change_no_bit() {
    if device().is_none() {
        return;
    }
    for (optimizer, accumulate, dtype) in [
        ("sgd", 1, DType::F32),
        ("rowwise_adagrad", 2, DType::F32),
        ("adagrad", 1, DType::Bf16),
        ("lamb", 2, DType::F32),
    ] {
        let of = |schedule| {
            let mut config = config(DeviceChoice::Cuda, schedule, optimizer, accumulate);
            config.tables.dtype = dtype;
            run(&config)
        };
        let serial = of(ScheduleChoice::Serial);
        for schedule in [ScheduleChoice::Overlapped, ScheduleChoice::Captured] {
            let other = of(schedule);
            assert_eq!(serial.losses, other.losses, "{optimizer}, {schedule:?}: losses");
            assert_eq!(
                serial.digest, other.digest,
                "{optimizer}, {schedule:?}: weights and states"
            );
            assert_eq!(
                serial.predictions, other.predictions,
                "{optimizer}, {schedule:?}: predictions"
            );
        }
    }
}

/// Bounds: f32 products of up to 128 terms near 1 err by at most 128 · 2⁻²⁴ ≈ 8e-6 of their size;
/// over twelve steps at these rates losses near 0.7 stay far within 1e-5, logits of a few units
/// within 1e-4. Adagrad divides by roots of small numbers, which lets rounding grow tenfold.
fn assert_near(what: &str, cpu: &Outcome, cuda: &Outcome, widen: f64) {
    for (step, (cpu, cuda)) in cpu.losses.iter().zip(&cuda.losses).enumerate() {
        assert!(
            (cpu - cuda).abs() <= 1e-5 * widen,
            "{what}, step {}: loss {cuda}, not {cpu}",
            step + 1
        );
    }
    assert_eq!(cpu.predictions.len(), cuda.predictions.len());
    for (index, (cpu, cuda)) in cpu.predictions.iter().zip(&cuda.predictions).enumerate() {
        let off = f64::from((cpu - cuda).abs());
        assert!(off <= 1e-4 * widen, "{what}, logit {index}: {cuda}, not {cpu}");
    }
}

#[test]
fn losses_and_predictions_are_those_of_the_processor() {
    if device().is_none() {
        return;
    }
    for (optimizer, widen) in [("sgd", 1.0), ("adagrad", 10.0), ("rowwise_adagrad", 10.0)] {
        let of = |device| run(&config(device, ScheduleChoice::Serial, optimizer, 1));
        assert_near(optimizer, &of(DeviceChoice::Cpu), &of(DeviceChoice::Cuda), widen);
    }
}

/// Where each row has one id in a step, gradients differ from the processor's by rounding alone,
/// and rows of bf16 are rounded by the same numbers: they differ where rounding of the sum decides
/// which way, which is a 2⁻⁸ of few elements.
#[test]
fn narrow_rows_stay_near_those_of_the_processor_on_any_number_of_devices() {
    if device().is_none() {
        return;
    }
    let of = |device, ranks| {
        let mut config = config(device, ScheduleChoice::Serial, "sgd", 1);
        (config.tables.dtype, config.run.ranks) = (DType::Bf16, ranks);
        config.validate().unwrap();
        run(&config)
    };
    let cpu = of(DeviceChoice::Cpu, 1);
    for ranks in [1, 2] {
        if !has_devices(ranks) {
            continue;
        }
        let cuda = of(DeviceChoice::Cuda, ranks);
        for (cpu, cuda) in cpu.losses.iter().zip(&cuda.losses) {
            assert!((cpu - cuda).abs() < 1e-3, "{ranks} ranks: loss {cuda}, not {cpu}");
        }
    }
}

/// bf16 keeps eight bits: products of a few layers near 1 err by a few times 2⁻⁸, and the mean of
/// 24 losses by less.
#[test]
fn narrow_products_stay_near_and_are_narrow() {
    if device().is_none() {
        return;
    }
    let of = |precision| {
        let mut config = config(DeviceChoice::Cuda, ScheduleChoice::Captured, "sgd", 1);
        config.train.precision = precision;
        config.validate().unwrap();
        run(&config)
    };
    let (wide, narrow) = (of(Precision::F32), of(Precision::Bf16));
    assert_ne!(wide.losses, narrow.losses, "bf16 was asked for and f32 computed");
    for (wide, narrow) in wide.losses.iter().zip(&narrow.losses) {
        assert!((wide - narrow).abs() < 0.01, "loss {narrow} in bf16, {wide} in f32");
    }
}

/// The configuration of some ranks on devices of their own; none, with a line, where there are too
/// few.
fn among(ranks: usize, schedule: ScheduleChoice) -> Option<Config> {
    if !has_devices(ranks) {
        return None;
    }
    let mut config = config(DeviceChoice::Cuda, schedule, "rowwise_adagrad", 1);
    config.run.ranks = ranks;
    Some(config)
}

/// Weights, states, the batch that was routed and losses on their way move with the rows. The sum
/// of a row's gradients is taken over four owners' sources in another order than over four
/// replicas: there it is the same within rounding.
#[test]
fn rows_may_move_between_captured_steps() {
    for ranks in [2, 4] {
        let Some(config) = among(ranks, ScheduleChoice::Captured) else { return };
        let specs = table_specs(&config, &ROWS);
        let stayed = run(&config);
        for (moves_to, keeps_bits) in [
            (mixed(&specs, ranks), true),
            (Partition::row_wise(&specs, ranks), ranks == 2),
            (Partition::all_frequent(&specs, ranks), ranks == 2),
        ] {
            let moved = run_and_move(&config, None, Some(Arc::new(moves_to)));
            assert_near(&format!("{ranks} ranks"), &stayed, &moved, 10.0);
            if keeps_bits {
                assert_eq!(stayed.losses, moved.losses, "{ranks} ranks: losses");
                assert_eq!(stayed.digest, moved.digest, "{ranks} ranks: weights and states");
                assert_eq!(stayed.predictions, moved.predictions, "{ranks} ranks: predictions");
            }
        }
    }
}

/// As many vectors as lookups, or vectors of half the bytes: what ranks on the processor compute
/// with the same settings. Rounded to bf16, numbers that differ in the last bit may come to differ
/// by a 2⁻⁸ of themselves, few of them.
#[test]
fn other_ways_to_exchange_are_those_of_the_processor() {
    for (ranks, deduplicate, compress, widen) in [
        (2, DeduplicateChoice::Rank, Compress::Bf16, 100.0),
        (4, DeduplicateChoice::Off, Compress::None, 10.0),
        (4, DeduplicateChoice::Off, Compress::Bf16, 100.0),
        (2, DeduplicateChoice::Rank, Compress::F16, 100.0),
    ] {
        let Some(mut config) = among(ranks, ScheduleChoice::Captured) else { return };
        let plain = run(&config);
        (config.comm.deduplicate, config.comm.compress) = (deduplicate, Some(compress));
        config.validate().unwrap();
        let what = format!("{ranks} ranks, {deduplicate:?}, {compress:?}");
        let captured = run(&config);
        if compress != Compress::None {
            assert_ne!(captured.losses, plain.losses, "{what}: vectors are not rounded");
        }
        config.run.schedule = ScheduleChoice::Serial;
        let serial = run(&config);
        assert_eq!(serial.losses, captured.losses, "{what}, captured: losses");
        assert_eq!(serial.digest, captured.digest, "{what}, captured: weights and states");
        config.run.device = DeviceChoice::Cpu;
        assert_near(&what, &run(&config), &captured, widen);
    }
}

/// Products, vectors and sums in 16 bits: roundings differ where a number is near the middle of
/// two, and a sum that lacks a rank or a row would show.
#[test]
fn ranks_in_16_bits_stay_near_those_of_the_processor() {
    let precisions = [Precision::Bf16, Precision::F16];
    for (ranks, precision) in [2, 4].into_iter().flat_map(|ranks| precisions.map(|p| (ranks, p))) {
        if !has_devices(ranks) {
            return;
        }
        let mut config = config(DeviceChoice::Cuda, ScheduleChoice::Captured, "sgd", 1);
        (config.run.ranks, config.train.precision) = (ranks, precision);
        config.validate().unwrap();
        let captured = run(&config);
        config.run.schedule = ScheduleChoice::Serial;
        let serial = run(&config);
        assert_eq!(serial.losses, captured.losses, "{ranks} ranks, captured: losses");
        assert_eq!(serial.digest, captured.digest, "{ranks} ranks, captured: weights and states");
        config.run.device = DeviceChoice::Cpu;
        let cpu = run(&config);
        for (cpu, captured) in cpu.losses.iter().zip(&captured.losses) {
            let off = (cpu - captured).abs();
            assert!(off < 0.01, "{ranks} ranks: loss {captured}, not {cpu}");
        }
    }
}

/// A rank a device, meeting through NCCL: rows replicated, split and owned whole.
#[test]
fn ranks_on_devices_of_their_own_train_as_one_and_as_ranks_on_the_processor() {
    if device().is_none() {
        return;
    }
    let alone = run(&config(DeviceChoice::Cuda, ScheduleChoice::Captured, "rowwise_adagrad", 1));
    for ranks in [2, 4, 8] {
        if !has_devices(ranks) {
            continue;
        }
        let of = |device, schedule| {
            let mut config = config(device, schedule, "rowwise_adagrad", 1);
            config.run.ranks = ranks;
            config.validate().unwrap();
            run(&config)
        };
        let serial = of(DeviceChoice::Cuda, ScheduleChoice::Serial);
        let cpu = of(DeviceChoice::Cpu, ScheduleChoice::Serial);
        assert_near(&format!("{ranks} ranks and as many on the processor"), &cpu, &serial, 10.0);
        assert_near(&format!("{ranks} ranks and one"), &alone, &serial, 10.0);
        let captured = of(DeviceChoice::Cuda, ScheduleChoice::Captured);
        assert_eq!(serial.losses, captured.losses, "{ranks} ranks, captured: losses");
        assert_eq!(serial.digest, captured.digest, "{ranks} ranks, captured: weights and states");
        assert_eq!(
            serial.predictions, captured.predictions,
            "{ranks} ranks, captured: predictions"
        );
    }
}
