//! What travels between devices over NCCL, whose sizes the host says: little more than what is
//! needed, with the bits of exchanges that see what counts.

#![cfg(test)]

mod made_up;

use headlong::config::{
    AllToAll, Config, DeduplicateChoice, DeviceChoice, Precision, ScheduleChoice, TableRows,
    TransportChoice,
};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::plan::cluster::workload;
use headlong::state::digest::weights_digest;
use headlong_device::cuda::testing::{has_devices, nccl_message_bytes, nccl_operations};
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::traffic::Hops;
use headlong_embedding::hybrid::{Partition, Place, TablePlacement};
use headlong_planner::description::ClusterDescription;
use headlong_planner::frequencies::{Class, Frequencies};
use headlong_planner::placement::{Placing, Strategy};
use headlong_planner::workload::Source;
use headlong_reader::{Batch, Jagged};
use made_up::MadeUp;
use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;

/// More than ranks: some ranks are the first owner of two.
const TABLES: usize = 9;
const TABLE_ROWS: u64 = 20_000;
const DIM: usize = 32;
const RANKS: usize = 8;
/// Batches of every length, and the first one's again.
const STEPS: u64 = 13;

/// One id for each sample and table, few of them many times; the larger `concentration`, the more.
fn batch(number: u64, samples: usize, concentration: f32) -> Batch {
    let rows = [TABLE_ROWS; TABLES];
    let random = CounterRng::new(5, number);
    let draw = |index: usize| {
        let row = random.uniform(index as u64).powf(concentration) * TABLE_ROWS as f32;
        // Rows that lie next to each other are not of one owner.
        row as u64 * 7919 % TABLE_ROWS
    };
    let table = |table: usize| Jagged {
        values: (0..samples).map(|sample| draw(table * samples + sample)).collect(),
        offsets: (0..=samples as u32).collect(),
    };
    Batch {
        sparse: (0..TABLES).map(table).collect(),
        ..MadeUp { seed: number, rows: &rows, num_dense: 2 }.one_hot(samples)
    }
}

/// The batch with ids of rows of one owner alone.
fn of_one_owner(mut batch: Batch) -> Batch {
    for (table, bags) in batch.sparse.iter_mut().enumerate() {
        // Rows are divided by (row + table) mod ranks.
        let first = (RANKS - table % RANKS) % RANKS;
        let ranks = RANKS as u64;
        bags.values.iter_mut().for_each(|row| *row = *row / ranks * ranks + first as u64);
    }
    batch
}

/// The batch with no id for one sample of one table: one rank's share alone is unlike the plan.
fn without_an_id(mut batch: Batch) -> Batch {
    let (bags, sample) = (&mut batch.sparse[3], 2);
    bags.values.remove(sample);
    bags.offsets[sample + 1..].iter_mut().for_each(|offset| *offset -= 1);
    batch
}

fn config(samples: usize, ranks_per_node: usize, schedule: ScheduleChoice) -> Config {
    let mut config = Config::default();
    config.model.dim = DIM;
    config.model.bottom = vec![DIM];
    config.model.top = vec![8, 1];
    (config.data.num_dense, config.data.num_sparse) = (2, TABLES);
    config.tables.rows = TableRows::List(vec![TABLE_ROWS; TABLES]);
    (config.train.batch_size, config.eval.batch_size) = (samples, samples / 2);
    (config.run.device, config.run.schedule) = (DeviceChoice::Cuda, schedule);
    (config.run.ranks, config.comm.ranks_per_node) = (RANKS, ranks_per_node);
    let is_flat = ranks_per_node == 0;
    config.comm.exchange = if is_flat { AllToAll::Flat } else { AllToAll::Hierarchical };
    config.validate().unwrap();
    config
}

/// Rows of other ranks (of other nodes, where ranks of a node use each other's memory) that ranks
/// need for a batch, each row once a rank; where nodes merge, once a node.
fn rows_needed(
    partition: &Partition,
    batch: &Batch,
    (ranks_per_node, deduplicate): (usize, DeduplicateChoice),
) -> usize {
    let merged = if deduplicate == DeduplicateChoice::Node { ranks_per_node } else { 1 };
    let share = batch.num_samples / RANKS * merged;
    let node_of = |rank: usize| rank / ranks_per_node.max(1);
    let of_source = |source: usize| -> usize {
        let rank = source * merged;
        let distinct = batch.sparse.iter().enumerate().map(|(table, bags)| {
            let rows: HashSet<u64> =
                bags.values[source * share..(source + 1) * share].iter().copied().collect();
            let travels = |row: &u64| match partition.classify(table, *row) {
                Place::Infrequent { owner, .. } => node_of(owner.0) != node_of(rank),
                Place::Frequent { .. } => false,
            };
            rows.iter().filter(|row| travels(row)).count()
        });
        distinct.sum()
    };
    (0..RANKS / merged).map(of_source).sum()
}

/// A number of a vector has four bytes, and two where products take 16 bits.
fn bytes_of(config: &Config, vectors: usize, ids: usize, ways: usize) -> f64 {
    let number = if config.train.precision == Precision::F32 { 4 } else { 2 };
    (ways * vectors * DIM * number + ids * size_of::<u32>()) as f64
}

/// What the planner says that ids and vectors of a batch of [`batch`] are on links that are NCCL's,
/// `ways` ways, bytes.
fn planned_bytes(config: &Config, samples: usize, ranks_per_node: usize, ways: f64) -> f64 {
    let part = |row: u64| (row as f64 / TABLE_ROWS as f64).sqrt();
    let share = |row: u64| Class { rows: 1.0, share: part(row + 1) - part(row) };
    let frequencies = Frequencies((0..TABLE_ROWS).map(share).collect());
    let source = Source::Given(vec![frequencies; TABLES]);
    let registry = Registry::default();
    let workload = workload(config, &[TABLE_ROWS; TABLES], &source, &registry).unwrap();
    let workload = workload.with_batch(samples);
    let each = if ranks_per_node == 0 { RANKS } else { ranks_per_node };
    let cluster = ClusterDescription {
        nodes: RANKS / each,
        devices_per_node: each,
        ..ClusterDescription::built_in("dgx-a100").unwrap()
    };
    let practice = workload.program.practice(&workload, &cluster.shape(), true);
    let placing = Placing { workload: &workload, cluster: &cluster, practice: &practice };
    let traffic = placing.forecast(Strategy::RowWise).traffic;
    let crossing = |hops: Hops| if ranks_per_node == 0 { hops.total() } else { hops.inter };
    crossing(traffic.ids) + ways * crossing(traffic.vectors)
}

/// Each way to exchange, and each number format, once; the soak has the other pairs.
#[test]
fn little_more_travels_over_nccl_than_is_needed() {
    use DeduplicateChoice::{Node, Rank};
    use Precision::{Bf16, F16, F32};
    use ScheduleChoice::{Captured, Overlapped};
    check_bytes(&[(2, F16, Captured, Rank), (0, Bf16, Overlapped, Rank), (4, F32, Captured, Node)]);
}

#[test]
#[ignore = "a minute: cargo xtask soak"]
fn soak_little_more_travels_than_is_needed() {
    use DeduplicateChoice::{Node, Rank};
    use Precision::{Bf16, F32};
    use ScheduleChoice::{Captured, Overlapped};
    check_bytes(&[
        (0, F32, Captured, Rank),
        (4, F32, Captured, Rank),
        (2, F32, Overlapped, Rank),
        (2, Bf16, Captured, Rank),
        (2, Bf16, Overlapped, Node),
    ]);
}

/// Ranks a node, what products take, how steps run, and where equal rows are merged.
type Way = (usize, Precision, ScheduleChoice, DeduplicateChoice);

fn check_bytes(ways: &[Way]) {
    if !has_devices(RANKS) {
        return;
    }
    const SAMPLES: usize = RANKS * 1536;
    use Precision::F32;
    for &(ranks_per_node, precision, schedule, deduplicate) in ways {
        let mut config = config(SAMPLES, ranks_per_node, schedule);
        (config.train.precision, config.comm.deduplicate) = (precision, deduplicate);
        let merging = (ranks_per_node, deduplicate);
        if ranks_per_node == 0 {
            config.run.transport = TransportChoice::Nccl;
        }
        let planned = planned_bytes(&config, SAMPLES, ranks_per_node, 2.0);
        let specs = table_specs(&config, &[TABLE_ROWS; TABLES]);
        let partition = Arc::new(Partition::row_wise(&specs, RANKS));
        let registry = Registry::default();
        let options = RankGroupOptions {
            partition: Some(Arc::clone(&partition)),
            ..RankGroupOptions::new(RANKS, &registry)
        };
        let group = RankGroup::build(&config, &[TABLE_ROWS; TABLES], options).unwrap();
        let batches: Vec<Batch> = (0..4).map(|number| batch(number, SAMPLES, 2.0)).collect();
        let needed: Vec<usize> =
            batches.iter().map(|batch| rows_needed(&partition, batch, merging)).collect();
        let step = |number: usize| {
            let rates = StepRates { number: number as u64 + 1, dense: 0.05, sparse: 0.1 };
            let before = nccl_message_bytes();
            group.enqueue(rates, Some(&batches[number + 1])).unwrap();
            group.drain().unwrap();
            let sent = nccl_message_bytes()? - before?;
            Some((sent as f64, bytes_of(&config, needed[number], needed[number + 1], 2)))
        };
        group.prime(&batches[0]).unwrap();
        let steps: Vec<(f64, f64)> = (0..batches.len() - 1).filter_map(step).collect();
        let ratios: Vec<f64> = steps.iter().map(|(sent, needed)| sent / needed).collect();
        let what =
            format!("{ranks_per_node} ranks a node, {precision:?}, {schedule:?}, {deduplicate:?}");
        println!("{what}: {ratios:.3?} of what is needed");
        assert!(ratios.iter().all(|ratio| (0.95..1.15).contains(ratio)), "{what}: {ratios:?}");
        let mean = steps.iter().map(|(sent, _)| sent).sum::<f64>() / steps.len() as f64;
        println!("{what}: {mean} bytes a step, planned {planned}");
        assert!(steps.is_empty() || (mean / planned - 1.0).abs() < 0.05, "{mean}, {planned}");

        let evaluate = |number: u64| {
            let batch = batch(number, SAMPLES / 2, 2.0);
            let needed = rows_needed(&partition, &batch, merging);
            let before = nccl_message_bytes();
            (batch, needed, before)
        };
        // Of half as many bytes the logits are a part that shows: each goes to all others, or to
        // each other node.
        let others = RANKS / ranks_per_node.max(1) - 1;
        let gathered = if precision != F32 { (SAMPLES / 2 * 4 * others) as f64 } else { 0.0 };
        // Between all ranks they are no messages.
        let messages = if ranks_per_node == 0 { 0.0 } else { gathered };
        let planned = planned_bytes(&config, SAMPLES / 2, ranks_per_node, 1.0) + messages;
        let mut of_plan: Vec<f64> = Vec::new();
        for number in 20..22 {
            let (batch, needed, before) = evaluate(number);
            group.evaluate(&batch).unwrap();
            let (Some(before), Some(after)) = (before, nccl_message_bytes()) else { continue };
            let needed = bytes_of(&config, needed, needed, 1) + gathered;
            let ratio = (after - before) as f64 / needed;
            println!("{what}, evaluation {number}: {ratio:.3}");
            assert!((0.95..1.15).contains(&ratio), "{number}: {ratio}");
            of_plan.push((after - before) as f64 / planned);
        }
        // A class more or less is up to a sixteenth.
        let mean = of_plan.iter().sum::<f64>() / of_plan.len().max(1) as f64;
        println!("{what}: evaluations are {of_plan:.3?} of the plan");
        assert!(of_plan.is_empty() || (mean - 1.0).abs() < 0.05, "{what}: {of_plan:?}");
    }
}

/// Losses, predictions and a digest of all weights and states after batches that need strips of
/// other lengths than the ones before.
fn run(
    ranks_per_node: usize,
    schedule: ScheduleChoice,
    transport: TransportChoice,
    (precision, deduplicate): (Precision, DeduplicateChoice),
) -> Trained {
    let mut config = config(RANKS * 48, ranks_per_node, schedule);
    (config.run.transport, config.train.precision) = (transport, precision);
    config.comm.deduplicate = deduplicate;
    config.validate().unwrap();
    train(&config, false)
}

type Trained = (Vec<f64>, Vec<f32>, String);

fn train(config: &Config, has_skewed: bool) -> Trained {
    let samples = config.train.batch_size;
    let registry = Registry::default();
    let options = RankGroupOptions::new(RANKS, &registry);
    let group = RankGroup::build(config, &[TABLE_ROWS; TABLES], options).unwrap();
    let concentrations = [1.0, 1.0, 40.0, 40.0, 3.0, 1.0, 3.0, 3.0, 40.0, 1.0, 1.0, 9.0];
    let at = |number: u64| {
        let batch = batch(number, samples, concentrations[number as usize % 12]);
        match number % 5 {
            4 => without_an_id(batch),
            2 if has_skewed => of_one_owner(batch),
            _ => batch,
        }
    };
    group.prime(&at(0)).unwrap();
    let (mut losses, mut predictions) = (Vec::new(), Vec::new());
    for number in 1..=STEPS {
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        group.enqueue(rates, (number < STEPS).then(|| at(number)).as_ref()).unwrap();
        if number % 6 == 0 {
            let take = &mut |logits: &[f32], _: &[f32]| predictions.extend_from_slice(logits);
            let predicted = batch(number, samples / 2, concentrations[number as usize % 12]);
            group.predict(&predicted, take).unwrap();
        }
        group.take_losses(&mut |step| losses.push(step.loss));
    }
    group.drain().unwrap();
    group.take_losses(&mut |step| losses.push(step.loss));
    assert_eq!(losses.len(), STEPS as usize);
    (losses, predictions, weights_digest(&group).unwrap())
}

/// Batches that need strips of other lengths than the ones before, up and down, so that requests
/// are cut and asked for again, and graphs are captured, kept, used again and given up. In some an
/// id is missing, of one rank's share: what one rank replays, all replay. Nodes that merge equal
/// rows have the bits of ranks that ask for themselves.
#[test]
fn strips_of_any_length_change_no_bit() {
    if !has_devices(RANKS) {
        return;
    }
    use DeduplicateChoice::{Node, Rank};
    use ScheduleChoice::{Captured, Overlapped, Serial};
    use TransportChoice::{Auto, Nccl};
    // NCCL's own sums have an order of their own: between ranks that all exchange with all, steps
    // are compared with serial ones, between nodes with exchanges that see what counts.
    let over_nccl = run(0, Serial, Nccl, (Precision::F32, Rank));
    let in_memory = run(0, Serial, Auto, (Precision::F32, Rank));
    for (ranks_per_node, schedule, transport, deduplicate, expected) in [
        (0, Overlapped, Nccl, Rank, &over_nccl),
        (0, Captured, Nccl, Rank, &over_nccl),
        (0, Captured, Auto, Rank, &in_memory),
        (4, Captured, Auto, Rank, &in_memory),
        (2, Captured, Nccl, Rank, &in_memory),
        (2, Captured, Nccl, Node, &in_memory),
        (4, Captured, Auto, Node, &in_memory),
    ] {
        let what = format!("{ranks_per_node} a node, {schedule:?}, {transport:?}, {deduplicate:?}");
        let (losses, predictions, digest) =
            run(ranks_per_node, schedule, transport, (Precision::F32, deduplicate));
        assert_eq!(losses, expected.0, "{what}: losses");
        assert_eq!(predictions, expected.1, "{what}: predictions");
        assert_eq!(digest, expected.2, "{what}: weights and states");
    }
}

/// Batches that ask one owner for all rows, between batches that ask all alike: beyond every class
/// of strips that has come, eight times as long as an even share.
#[test]
fn a_batch_of_one_owners_rows_is_trained_on_as_any_other() {
    if !has_devices(RANKS) {
        return;
    }
    use DeduplicateChoice::{Node, Rank};
    use ScheduleChoice::{Captured, Serial};
    let of = |ranks_per_node, schedule, transport, deduplicate| {
        let mut config = config(RANKS * 100, ranks_per_node, schedule);
        (config.run.transport, config.train.precision) = (transport, Precision::Bf16);
        config.comm.deduplicate = deduplicate;
        train(&config, true)
    };
    let expected = of(0, Serial, TransportChoice::Auto, Rank);
    for (ranks_per_node, transport, deduplicate) in
        [(4, TransportChoice::Auto, Rank), (2, TransportChoice::Nccl, Node)]
    {
        let got = of(ranks_per_node, Captured, transport, deduplicate);
        assert!(got == expected, "{ranks_per_node} ranks a node, {transport:?}, {deduplicate:?}");
    }
}

/// Where there are replicated rows, a step has one exchange more: without them none of nothing.
#[test]
fn replicated_rows_cost_one_exchange_more() {
    if !has_devices(RANKS) {
        return;
    }
    let operations = |first_table: TablePlacement| {
        let mut config = config(RANKS * 8, 0, ScheduleChoice::Serial);
        config.run.transport = TransportChoice::Nccl;
        let specs = table_specs(&config, &[TABLE_ROWS; TABLES]);
        let mut placements = vec![TablePlacement::by_formula(); TABLES];
        placements[0] = first_table;
        let partition = Partition::new(&specs, RANKS, placements).unwrap();
        let registry = Registry::default();
        let options = RankGroupOptions {
            partition: Some(Arc::new(partition)),
            ..RankGroupOptions::new(RANKS, &registry)
        };
        let group = RankGroup::build(&config, &[TABLE_ROWS; TABLES], options).unwrap();
        group.prime(&batch(0, RANKS * 8, 2.0)).unwrap();
        let step = |number: u64| {
            let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
            group.enqueue(rates, Some(&batch(number, RANKS * 8, 2.0))).unwrap();
            group.drain().unwrap();
        };
        step(1);
        let before = nccl_operations()?;
        step(2);
        Some((nccl_operations()? - before) as usize / RANKS)
    };
    let without = operations(TablePlacement::by_formula());
    let (Some(without), Some(with)) = (without, operations(TablePlacement::DataParallel)) else {
        return;
    };
    // Ids, vectors, gradients of rows, and dense gradients.
    assert_eq!([without, with], [4, 5]);
}

/// In the order that `SOFTCUDA_SEED` says.
#[test]
#[ignore = "started by another test, with a seed"]
fn strips_in_one_order() {
    let way = (Precision::F32, DeduplicateChoice::Rank);
    let (_, _, digest) = run(2, ScheduleChoice::Captured, TransportChoice::Nccl, way);
    println!("weights {digest}");
}

#[test]
#[ignore = "likewise"]
fn merged_strips_in_one_order() {
    let way = (Precision::F32, DeduplicateChoice::Node);
    let (_, _, digest) = run(2, ScheduleChoice::Captured, TransportChoice::Nccl, way);
    println!("weights {digest}");
}

/// Steps in whose graphs streams run far ahead of each other, in 200 ways.
#[test]
#[ignore = "half an hour: cargo xtask soak"]
fn soak_strips_in_200_orders() {
    if !has_devices(RANKS) {
        return;
    }
    let way = (Precision::F32, DeduplicateChoice::Rank);
    let (_, _, expected) = run(0, ScheduleChoice::Serial, TransportChoice::Auto, way);
    for seed in 1..=200 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // In every other one nodes merge equal rows.
        let names = ["strips_in_one_order", "merged_strips_in_one_order"];
        command.args(["--exact", names[seed % 2], "--ignored", "--nocapture"]);
        let output = command.env("SOFTCUDA_SEED", seed.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_right = text.contains(&format!("weights {expected}"));
        assert!(output.status.success() && is_right, "seed {seed}: {text}{errors}");
    }
    println!("200 orders of {STEPS} steps: the same weights and states, {expected}");
}

/// As [`strips_of_any_length_change_no_bit`], of vectors that travel as bf16 or f16.
#[test]
fn strips_in_16_bits_change_no_bit() {
    if !has_devices(RANKS) {
        return;
    }
    use DeduplicateChoice::{Node, Rank};
    use Precision::{Bf16, F16};
    use ScheduleChoice::{Captured, Overlapped, Serial};
    use TransportChoice::{Auto, Nccl};
    // Ranks add up bf16 themselves, in the one tree, wherever it travels. All ways but one move f16
    // as they do bf16.
    let in_bf16 = [
        (2, Captured, Nccl, Rank),
        (0, Captured, Auto, Rank),
        (0, Captured, Nccl, Rank),
        (2, Overlapped, Auto, Node),
        (4, Captured, Nccl, Node),
    ];
    for (precision, ways) in [(Bf16, &in_bf16[..]), (F16, &in_bf16[..1])] {
        let expected = run(0, Serial, Auto, (precision, Rank));
        for &(ranks_per_node, schedule, transport, deduplicate) in ways {
            let got = run(ranks_per_node, schedule, transport, (precision, deduplicate));
            let what = format!("{ranks_per_node} a node, {schedule:?}, {transport:?}");
            assert!(got == expected, "{precision:?}, {what}, {deduplicate:?}");
        }
    }
}

/// Where all rows are frequent and all samples short, sums are what travels between nodes.
#[test]
fn sums_in_16_bits_send_half_the_bytes() {
    if !has_devices(RANKS) {
        return;
    }
    const SAMPLES: usize = RANKS * 8;
    let sent = [Precision::F32, Precision::Bf16, Precision::F16].map(|precision| {
        let mut config = config(SAMPLES, 2, ScheduleChoice::Captured);
        config.train.precision = precision;
        let specs = table_specs(&config, &[TABLE_ROWS; TABLES]);
        let registry = Registry::default();
        let options = RankGroupOptions {
            partition: Some(Arc::new(Partition::all_frequent(&specs, RANKS))),
            ..RankGroupOptions::new(RANKS, &registry)
        };
        let group = RankGroup::build(&config, &[TABLE_ROWS; TABLES], options).unwrap();
        group.prime(&batch(0, SAMPLES, 2.0)).unwrap();
        let step = |number| {
            let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
            group.enqueue(rates, Some(&batch(number, SAMPLES, 2.0))).unwrap();
            group.drain().unwrap();
        };
        step(1);
        let before = nccl_message_bytes();
        step(2);
        nccl_message_bytes().zip(before).map(|(after, before)| after - before)
    });
    let [Some(wide), Some(narrow), Some(in_f16)] = sent else { return };
    println!("{wide} bytes in f32, {narrow} in bf16, {in_f16} in f16");
    let half = narrow as f64 / wide as f64;
    assert!((0.48..0.56).contains(&half), "{wide} bytes in f32, {narrow} in bf16");
    assert_eq!(in_f16, narrow, "of sums of gradients");
}
