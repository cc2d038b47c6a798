//! Bags that are pooled at the owners of their rows, between devices: no way to exchange and no
//! schedule changes a bit, and what travels is what the plan says, and less than rows would be.

use super::made_up::MadeUp;
use super::{Outcome, SAMPLES, assert_near, config, over_nics_of, run_with};
use headlong::config::{
    AllToAll, Config, DeviceChoice, PoolAtChoice, Precision, ScheduleChoice, TableEntry,
    TransportChoice,
};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::plan::cluster::workload;
use headlong_device::cuda::testing::{device, has_devices, nccl_message_bytes};
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_planner::description::ClusterDescription;
use headlong_planner::placement::{Placing, Strategy};
use headlong_planner::workload::Source;
use headlong_reader::{Batch, Jagged};
use headlong_verbs::fake::{Fabric, NetworkModel};
use std::sync::Arc;

/// Bags of all tables but the first are pooled at the owner.
fn pooled(ranks: usize, schedule: ScheduleChoice, optimizer: &str) -> Config {
    let mut config = config(DeviceChoice::Cuda, schedule, optimizer, 1);
    config.run.ranks = ranks;
    config.train.sum_blocks = Some(8);
    config.comm.pool_at = PoolAtChoice::Owner;
    let on_the_rank = Some(PoolAtChoice::Rank);
    config.table.push(TableEntry {
        name: "C1".to_owned(),
        pool_at: on_the_rank,
        ..TableEntry::default()
    });
    config.table.push(TableEntry {
        name: "C2".to_owned(),
        pooling: Some(headlong::config::Pooling::Mean),
        ..TableEntry::default()
    });
    config.validate().unwrap();
    config
}

/// Hot rows of the first table, and of the others one owner each, by formula and of the whole.
fn partition(config: &Config) -> Option<Arc<Partition>> {
    let ranks = config.run.ranks;
    let placements = vec![
        TablePlacement::RowWise { frequent: vec![1, 3], placed: vec![(0, Owner(ranks - 1))] },
        TablePlacement::by_formula(),
        TablePlacement::TableWise(Owner(ranks - 1)),
        TablePlacement::by_formula(),
    ];
    let specs = table_specs(config, &super::ROWS);
    (ranks > 1).then(|| Arc::new(Partition::new(&specs, ranks, placements).unwrap()))
}

fn run(config: &Config) -> Outcome {
    config.validate().unwrap();
    let registry = Registry::default();
    let partition = partition(config);
    run_with(config, RankGroupOptions { partition, ..RankGroupOptions::new(2, &registry) }, None)
}

#[test]
fn owners_that_pool_change_no_bit_of_any_schedule_or_exchange() {
    if !has_devices(4) {
        return;
    }
    use ScheduleChoice::{Captured, Overlapped, Serial};
    let expect = |what: &str, one: &Outcome, other: &Outcome| {
        assert_eq!(one.losses, other.losses, "{what}: losses");
        assert_eq!(one.digest, other.digest, "{what}: weights and states");
        assert_eq!(one.predictions, other.predictions, "{what}: predictions");
    };
    for optimizer in ["sgd", "rowwise_adagrad"] {
        let serial = run(&pooled(4, Serial, optimizer));
        for (schedule, per_node) in [(Overlapped, 0), (Captured, 0), (Captured, 2)] {
            let mut config = pooled(4, schedule, optimizer);
            config.comm.ranks_per_node = per_node;
            let is_flat = per_node == 0;
            config.comm.exchange = if is_flat { AllToAll::Flat } else { AllToAll::Hierarchical };
            expect(&format!("{optimizer}, {schedule:?}, {per_node}"), &serial, &run(&config));
        }
        let mut on_the_rank = pooled(4, Serial, optimizer);
        on_the_rank.comm.pool_at = PoolAtChoice::Rank;
        assert_ne!(run(&on_the_rank).digest, serial.digest, "sums have another shape");
    }
    // NCCL's own sums have an order of their own.
    for precision in [Precision::F32, Precision::Bf16] {
        let over_nccl = |schedule| {
            let mut config = pooled(4, schedule, "sgd");
            (config.run.transport, config.train.precision) = (TransportChoice::Nccl, precision);
            run(&config)
        };
        expect(&format!("NCCL, {precision:?}"), &over_nccl(Serial), &over_nccl(Captured));
    }
}

#[test]
fn owners_that_pool_drive_nics_and_change_no_bit() {
    if !has_devices(4) {
        return;
    }
    let fabric = Fabric::rails(5, NetworkModel::ROUGH, 2, 2);
    let mut config = pooled(4, ScheduleChoice::Captured, "sgd");
    let in_memory = run(&config);
    (config.comm.ranks_per_node, config.comm.exchange) = (2, AllToAll::Hierarchical);
    config.validate().unwrap();
    let registry = Registry::default();
    let options = RankGroupOptions {
        partition: partition(&config),
        communicators: Some(over_nics_of(&fabric, &config)),
        ..RankGroupOptions::new(2, &registry)
    };
    let by_nics = run_with(&config, options, None);
    assert_eq!(in_memory.losses, by_nics.losses);
    assert_eq!(in_memory.digest, by_nics.digest);
    assert_eq!(in_memory.predictions, by_nics.predictions);
}

/// As many sum blocks on any number of devices and on the processor: sums of bags have one shape,
/// those over samples differ by rounding.
#[test]
fn owners_that_pool_come_near_one_device_and_the_processor() {
    if device().is_none() {
        return;
    }
    for (optimizer, widen) in [("sgd", 1.0), ("rowwise_adagrad", 10.0)] {
        let one = run(&pooled(1, ScheduleChoice::Captured, optimizer));
        let mut on_host = pooled(1, ScheduleChoice::Serial, optimizer);
        on_host.run.device = DeviceChoice::Cpu;
        assert_near(optimizer, &run(&on_host), &one, widen);
        for ranks in [2, 4, 8].into_iter().filter(|&ranks| has_devices(ranks)) {
            let several = run(&pooled(ranks, ScheduleChoice::Captured, optimizer));
            assert_near(&format!("{optimizer}, {ranks} ranks"), &one, &several, widen);
        }
    }
}

const RANKS: usize = 8;
/// Of eight owners a bag of 40 ids has nearly all, one of 6 about half.
const MANY: [(u64, usize); 3] = [(20_000, 40), (5_000, 6), (20_000, 1)];
const SHARE: usize = SAMPLES * 16;

fn many(number: u64) -> Batch {
    let random = CounterRng::new(5, number);
    let samples = RANKS * SHARE;
    let table = |(table, &(rows, ids)): (usize, &(u64, usize))| {
        let draw = |index: usize| {
            (f64::from(random.uniform((table << 32 | index) as u64)) * rows as f64) as u64
        };
        Jagged {
            values: (0..samples * ids).map(draw).collect(),
            offsets: (0..=samples).map(|sample| (sample * ids) as u32).collect(),
        }
    };
    Batch {
        sparse: MANY.iter().enumerate().map(table).collect(),
        ..MadeUp { seed: number, rows: &MANY.map(|(rows, _)| rows), num_dense: 2 }.one_hot(samples)
    }
}

/// Bytes of a step over NCCL: counted, where the device counts them, and planned.
fn bytes(pool_at: PoolAtChoice) -> (Option<f64>, f64) {
    let mut config = config(DeviceChoice::Cuda, ScheduleChoice::Overlapped, "sgd", 1);
    (config.data.num_dense, config.data.num_sparse) = (2, MANY.len());
    config.data.hotness = MANY.map(|(_, ids)| ids as u32).to_vec();
    let rows = MANY.map(|(rows, _)| rows);
    config.tables.rows = headlong::config::TableRows::List(rows.to_vec());
    config.tables.max_ids_per_sample = 1;
    (config.train.batch_size, config.eval.batch_size) = (RANKS * SHARE, RANKS * SHARE);
    (config.run.ranks, config.run.transport) = (RANKS, TransportChoice::Nccl);
    (config.comm.pool_at, config.comm.exchange) = (pool_at, AllToAll::Flat);
    config.validate().unwrap();
    let registry = Registry::default();
    let step = workload(&config, &rows, &Source::PowerLaw(0.0), &registry).unwrap();
    let cluster = ClusterDescription {
        nodes: 1,
        devices_per_node: RANKS,
        ..ClusterDescription::built_in("dgx-a100").unwrap()
    };
    let practice = step.program.practice(&step, &cluster.shape(), true);
    let placing = Placing { workload: &step, cluster: &cluster, practice: &practice };
    let planned = placing.forecast(Strategy::RowWise).traffic;
    let planned = (planned.ids + planned.vectors + planned.gradients).total();
    let specs = table_specs(&config, &rows);
    let partition = Some(Arc::new(Partition::row_wise(&specs, RANKS)));
    let options = RankGroupOptions { partition, ..RankGroupOptions::new(RANKS, &registry) };
    let group = RankGroup::build(&config, &rows, options).unwrap();
    group.prime(&many(0)).unwrap();
    let step = |number| {
        let before = nccl_message_bytes();
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        group.enqueue(rates, Some(&many(number))).unwrap();
        group.drain().unwrap();
        Some((nccl_message_bytes()? - before?) as f64)
    };
    // Those of the first step are in strips that were not yet known.
    step(1);
    let counted: Option<f64> = (2..5).map(step).sum();
    (counted.map(|bytes| bytes / 3.0), planned)
}

#[test]
fn what_owners_that_pool_send_is_what_the_plan_says_and_less_than_rows() {
    if !has_devices(RANKS) {
        return;
    }
    let (rank, owner) = (bytes(PoolAtChoice::Rank), bytes(PoolAtChoice::Owner));
    for (counted, planned) in [rank, owner] {
        let Some(counted) = counted else { return };
        println!("{counted} counted, {planned} planned");
        assert!((planned / counted - 1.0).abs() < 0.06, "{counted} counted, {planned} planned");
    }
    assert!(owner.1 < 0.6 * rank.1, "{owner:?}, on the rank {rank:?}");
}
