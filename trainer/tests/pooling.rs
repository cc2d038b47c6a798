//! Bags that are pooled at the owners of their rows: one rank equals many, a run resumes on another
//! number of ranks, and what travels is what the plan says, and less than rows would be.

#![cfg(test)]

use crate::made_up::MadeUp;
use crate::run_support::{Place, Run, last_event};
use headlong::config::{
    AllToAll, Config, DeviceChoice, PlacementName, PoolAtChoice, ScheduleChoice, Sharded,
    TableEntry,
};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, local_topology};
use headlong::iteration::worker::StepRates;
use headlong::plan::cluster::workload;
use headlong::plan::placement::{Placement, statistics_of};
use headlong::state::digest::weights_digest;
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::PoolAt;
use headlong_embedding::hybrid::traffic::{Cluster, Merge};
use headlong_planner::frequencies::Frequencies;
use headlong_planner::workload::Source;
use headlong_reader::{Batch, Jagged};
use serde_json::Value;

const ROWS: [u64; 4] = [5, 40, 1, 300];
const DENSE: usize = 3;
const STEPS: u64 = 12;

fn small(ranks: usize, pool_at: PoolAtChoice) -> Config {
    let mut config = Config::default();
    config.model.dim = 8;
    config.model.bottom = vec![12, 8];
    config.model.top = vec![9, 1];
    config.data.num_dense = DENSE;
    config.data.num_sparse = ROWS.len();
    config.tables.max_ids_per_sample = 3;
    config.train.batch_size = 31;
    config.train.sum_blocks = Some(8);
    config.eval.batch_size = 31;
    config.run.ranks = ranks;
    config.comm.pool_at = pool_at;
    config.comm.deadline_s = 20.0;
    config
}

/// Losses, digest of all weights and states, and predictions after some steps.
fn run(config: &Config) -> (Vec<u64>, String, Vec<u32>) {
    config.validate().unwrap();
    let registry = Registry::default();
    let options = RankGroupOptions::new(config.run.ranks, &registry);
    let group = RankGroup::build(config, &ROWS, options).unwrap();
    let made_up = MadeUp { seed: 9, rows: &ROWS, num_dense: DENSE };
    // Every fifth batch is short: some ranks have few samples or none.
    let batch = |number: u64| made_up.bags(number, if number % 5 == 4 { 3 } else { 31 });
    group.prime(&batch(0)).unwrap();
    let losses = (1..=STEPS).map(|number| {
        let next = (number < STEPS).then(|| batch(number));
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        group.step(rates, next.as_ref()).unwrap().to_bits()
    });
    let losses = losses.collect();
    let mut predictions = Vec::new();
    for number in [100, 104] {
        group
            .predict(&batch(number), &mut |logits, _| {
                predictions.extend(logits.iter().map(|x| x.to_bits()));
            })
            .unwrap();
    }
    (losses, weights_digest(&group).unwrap(), predictions)
}

#[test]
fn one_rank_equals_many() {
    let ways = [
        ("sgd", AllToAll::Flat, ScheduleChoice::Serial),
        ("rowwise_adagrad", AllToAll::Hierarchical, ScheduleChoice::Overlapped),
        ("lazy_adam", AllToAll::Flat, ScheduleChoice::Overlapped),
    ];
    for (optimizer, exchange, schedule) in ways {
        let of = |ranks, pool_at| {
            let mut config = small(ranks, pool_at);
            config.optimizer.sparse.name = optimizer.to_owned();
            config.optimizer.resolve().unwrap();
            (config.comm.exchange, config.run.schedule) = (exchange, schedule);
            config.comm.ranks_per_node = if ranks > 2 { 2 } else { 0 };
            config.table.push(TableEntry {
                name: "C2".to_owned(),
                placement: Some(PlacementName::RowWise),
                pooling: Some(headlong::config::Pooling::Mean),
                ..TableEntry::default()
            });
            run(&config)
        };
        let one = of(1, PoolAtChoice::Owner);
        for ranks in [2, 4, 8] {
            assert!(of(ranks, PoolAtChoice::Owner) == one, "{optimizer}, {ranks} ranks");
        }
        assert_ne!(of(1, PoolAtChoice::Rank), one, "sums have another shape");
    }
}

/// Many ids a sample, as DLRM-DCNv2 has: 40 of a table, 6 of another, one of a third.
const MANY: [(u64, usize); 3] = [(20_000, 40), (5_000, 6), (1_000, 1)];
const SAMPLES: usize = 512;

fn many(number: u64) -> Batch {
    let random = CounterRng::new(5, number);
    let mut counter = 0;
    let mut uniform = || {
        counter += 1;
        f64::from(random.uniform(counter))
    };
    let sparse = MANY.map(|(rows, ids)| Jagged {
        values: (0..SAMPLES * ids).map(|_| (uniform().powi(2) * rows as f64) as u64).collect(),
        offsets: (0..=SAMPLES).map(|sample| (sample * ids) as u32).collect(),
    });
    Batch {
        num_samples: SAMPLES,
        labels: (0..SAMPLES).map(|sample| f32::from(sample % 3 == 0)).collect(),
        dense: vec![0.5; SAMPLES * DENSE],
        sparse: sparse.to_vec(),
        ..Batch::default()
    }
}

/// A configuration of [`MANY`] on two nodes of two ranks.
fn of_many(pool_at: PoolAtChoice) -> Config {
    let mut config = small(4, pool_at);
    config.model.dim = 32;
    config.model.bottom = vec![32];
    config.data.num_sparse = MANY.len();
    config.data.hotness = MANY.map(|(_, ids)| ids as u32).to_vec();
    config.train.batch_size = SAMPLES;
    config.train.sum_blocks = None;
    config.comm.ranks_per_node = 2;
    config.optimizer.dense.sharded = Some(Sharded::Never);
    config
}

/// (predicted, counted) bytes of a step, inside and between nodes, and where bags were pooled.
fn bytes(pool_at: PoolAtChoice) -> ([(f64, f64); 2], Vec<PoolAt>) {
    let config = of_many(pool_at);
    let rows = MANY.map(|(rows, _)| rows);
    let batches: Vec<Batch> = (0..20).map(many).collect();
    let statistics = statistics_of(&config, &rows, &batches[..16]);
    let (topology, registry) = (local_topology(&config), Registry::default());
    let placement =
        Placement::new(&config, &rows, &topology, Some(&statistics), &registry).unwrap();
    let config = placement.decide(&config);
    assert_eq!(config.pooled_at(), placement.pool_at);
    let partition = Some(placement.partition);
    let options = RankGroupOptions { partition, ..RankGroupOptions::new(4, &registry) };
    let group = RankGroup::build(&config, &rows, options).unwrap();
    let trained = &batches[16..];
    group.prime(&trained[0]).unwrap();
    for number in 1..=trained.len() {
        let rates = StepRates { number: number as u64, dense: 0.01, sparse: 0.01 };
        group.step(rates, Some(&trained[number % trained.len()])).unwrap();
    }
    let counted = group.sent_per_step().unwrap().unwrap();
    let predicted = placement.split.unwrap().traffic.total();
    let hops = [(predicted.intra, counted.intra_node), (predicted.inter, counted.inter_node)];
    (hops, placement.pool_at)
}

#[test]
fn what_travels_is_what_the_plan_says_and_less_than_rows() {
    let (on_the_rank, places) = bytes(PoolAtChoice::Rank);
    assert_eq!(places, [PoolAt::Rank; 3]);
    let (by_cost, places) = bytes(PoolAtChoice::Auto);
    // Six ids a bag are nearly four owners; forty are four.
    assert_eq!(places[0], PoolAt::Owner);
    assert_eq!(places[2], PoolAt::Rank, "one id a sample is no bag");
    for (predicted, counted) in on_the_rank.into_iter().chain(by_cost) {
        println!("predicted {predicted:.0}, counted {counted:.0}");
        assert!((predicted / counted - 1.0).abs() < 0.05, "{predicted} predicted, {counted} sent");
    }
    for (rank, owner) in on_the_rank.into_iter().zip(by_cost) {
        println!("on the rank {:.0}, by cost {:.0}", rank.1, owner.1);
        assert!(owner.1 < 0.75 * rank.1, "{} bytes, on the rank {}", owner.1, rank.1);
    }
}

/// By the same bytes, which plans for clusters that are not here count, too.
#[test]
fn devices_decide_as_processors_do_and_so_does_the_plan_of_a_cluster() {
    let rows = MANY.map(|(rows, _)| rows);
    let batches: Vec<Batch> = (0..16).map(many).collect();
    let registry = Registry::default();
    let decided = |device| {
        let mut config = of_many(PoolAtChoice::Auto);
        (config.run.device, config.comm.exchange) = (device, AllToAll::Flat);
        let statistics = statistics_of(&config, &rows, &batches);
        let topology = local_topology(&config);
        let placement =
            Placement::new(&config, &rows, &topology, Some(&statistics), &registry).unwrap();
        let choices: Vec<_> =
            placement.split.unwrap().tables.iter().map(|table| table.pooling).collect();
        let counted = statistics.tables.iter().map(Frequencies::counted).collect();
        let step = workload(&config, &rows, &Source::Given(counted), &registry).unwrap();
        let on_device = device == DeviceChoice::Cuda;
        let practice = step.program.practice(&step, &Cluster::even(2, 2), on_device);
        for bags in &practice.bags {
            let (planned, found) = (bags.choice, choices[bags.table].unwrap());
            assert_eq!((bags.at, planned.at), (placement.pool_at[bags.table], found.at));
            for (planned, found) in
                [(planned.rank_bytes, found.rank_bytes), (planned.owner_bytes, found.owner_bytes)]
            {
                assert!((planned / found - 1.0).abs() < 0.03, "{planned} planned, {found} found");
            }
        }
        assert_eq!(practice.bags.len(), 2, "one id a sample is no bag");
        assert_eq!(practice.variant.merge, Merge::Rank, "nodes would merge rows");
        (placement.pool_at, choices)
    };
    let (processor, device) = (decided(DeviceChoice::Cpu), decided(DeviceChoice::Cuda));
    assert_eq!(processor, device);
    assert_eq!(processor.0[0], PoolAt::Owner);
}

/// By cost, on one rank as on four, half of the way on four and the rest on two; and the plan says
/// what is chosen.
/// The program over rows of `place`, with bags of up to ten ids, in four sum blocks.
fn program(place: &Place, command: &str, pool_at: &str) -> Run {
    const SIZES: &str = "3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,2,10,7,4,3,1,1";
    let run = Run::new(command).path("--data", &place.train).path("--valid", &place.valid);
    run.path("--output-dir", &place.path("output"))
        .with(&["--set", "model.dim=8", "--set", "model.bottom=[16,8]"])
        .with(&["--set", "model.top=[16,1]", "--set", "tables.rows=1000"])
        .with(&["--set", "train.batch_size=64", "--set", "data.ids=modulo"])
        .with(&["--set", &format!("multi_hot.sizes=[{SIZES}]"), "--set", "sum_blocks=4"])
        .with(&["--set", "multi_hot.distribution=uniform"])
        .with(&["--set", &format!("comm.pool_at={pool_at}")])
}

/// What applies a model adds up rows in as many parts as training did.
#[test]
fn an_evaluation_of_the_checkpoint_is_the_last_one_of_the_run() {
    let place = Place::new("rows.txt");
    let (saved, log) = (place.path("saved"), place.path("log"));
    let train = program(&place, "train", "owner").with(&["--ranks", "2", "--steps", "9"]);
    train.path("--checkpoint-dir", &saved).path("--log-json", &log).succeeds();
    let eval = Run::new("eval").path("--checkpoint", &saved).path("--data", &place.valid);
    let applied: Value = serde_json::from_str(&eval.with(&["--json"]).succeeds().stdout).unwrap();
    let trained = last_event(&log, "eval");
    assert_eq!((&applied["auc"], &applied["logloss"]), (&trained["auc"], &trained["logloss"]));
}

#[test]
fn a_run_is_resumed_on_another_number_of_ranks() {
    let place = Place::new("rows.txt");
    let train = |command: &str| program(&place, command, "auto");
    let plan = train("plan").with(&["--ranks", "4"]).succeeds();
    let said = &plan.stdout;
    assert!(said.contains("bags become vectors: at the owner, of "), "{said}");
    assert!(said.contains("C21") && said.contains(" a step in place of "), "{said}");
    let expected = train("train").succeeds().digest();
    let saved = place.path("saved");
    let half = train("train").with(&["--ranks", "4", "--set", "train.steps=9"]);
    half.path("--checkpoint-dir", &saved).succeeds();
    let rest = train("train").with(&["--resume", "--ranks", "2"]);
    assert_eq!(rest.path("--checkpoint-dir", &saved).succeeds().digest(), expected);
    let rank = train("train").with(&["--set", "comm.pool_at=rank"]);
    assert_ne!(rank.succeeds().digest(), expected, "sums have another shape");
}
