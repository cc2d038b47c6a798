//! The bytes that a plan predicts, from statistics of other batches, against what leaves the
//! transports: on real rows where they are present, on synthetic ones of the same format else.

#![cfg(test)]

use headlong::config::{
    AllToAll, Config, DeduplicateChoice, HybridMode, IdsChoice, Precision, Sharded,
};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::plan::placement::{Placement, statistics_of};
use headlong_device::pool::Pool;
use headlong_embedding::Registry;
use headlong_reader::synthetic::{SyntheticOptions, generate};
use headlong_reader::{Batch, CriteoTextReader, IdMapper, IdPolicy, Position, Reader, TextOptions};
use std::path::{Path, PathBuf};

const BATCH_SIZE: usize = 2048;
/// Batches that statistics are made from, and batches that are trained on after them.
const COUNTED: usize = 24;
const TRAINED: usize = 6;
const MOST_ROWS: u64 = 100_000;

/// Batches of real or synthetic rows, ids hashed into tables of the Kaggle data's sizes, the
/// largest cut to 100,000 rows.
fn batches() -> (Vec<u64>, Vec<Batch>) {
    let real =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo/train.txt.gz"));
    let folder = tempfile::tempdir().unwrap();
    let (file, synthetic): (PathBuf, _) = if real.exists() {
        (real.to_owned(), None)
    } else {
        println!("{} is absent: synthetic rows", real.display());
        let rows = (BATCH_SIZE * (COUNTED + TRAINED + 1)) as u64;
        let options = SyntheticOptions {
            seed: 3,
            train_rows: rows,
            valid_rows: 1,
            scale: 0.003,
            gzip: false,
        };
        let report = generate(&options, folder.path(), &Pool::new(2), &mut |_| {}).unwrap();
        (report.train_file, Some(folder))
    };
    let rows: Vec<u64> = headlong::config::preset::KAGGLE_CARDINALITIES
        .iter()
        .map(|&rows| rows.min(MOST_ROWS))
        .collect();
    let ids = IdMapper::new(IdPolicy::Hash { function: Default::default() }, &rows).unwrap();
    let options = TextOptions { batch_size: BATCH_SIZE, epochs: Some(1), ..TextOptions::default() };
    let mut reader =
        CriteoTextReader::open(&[file.into()], ids, &options, &Position::default()).unwrap();
    let mut batches = Vec::new();
    for _ in 0..COUNTED + TRAINED {
        let mut batch = Batch::default();
        assert!(reader.next(&mut batch).unwrap() && batch.num_samples == BATCH_SIZE);
        batches.push(batch);
    }
    drop(synthetic);
    (rows, batches)
}

/// A small model of four ranks.
fn config() -> Config {
    let mut config = Config::default();
    config.model.dim = 8;
    config.model.bottom = vec![8];
    config.model.top = vec![1];
    config.train.batch_size = BATCH_SIZE;
    config.eval.batch_size = 64;
    config.run.ranks = 4;
    config.comm.deadline_s = 60.0;
    config.train.sum_blocks = Some(4);
    config
}

/// (predicted, counted) bytes of a step inside and between nodes.
fn bytes(config: &Config, rows: &[u64], batches: &[Batch]) -> [(f64, f64); 2] {
    let statistics = statistics_of(config, rows, &batches[..COUNTED]);
    let placement = Placement::new(
        config,
        rows,
        &headlong::iteration::ranks::local_topology(config),
        Some(&statistics),
        &Registry::default(),
    )
    .unwrap();
    let config = placement.decide(config);
    let registry = Registry::default();
    let partition = Some(placement.partition);
    let group = RankGroup::build(
        &config,
        rows,
        RankGroupOptions { partition, ..RankGroupOptions::new(4, &registry) },
    )
    .unwrap();
    let trained = &batches[COUNTED..];
    group.prime(&trained[0]).unwrap();
    for number in 1..=trained.len() {
        let rates = StepRates { number: number as u64, dense: 0.01, sparse: 0.01 };
        group.step(rates, Some(&trained[number % trained.len()])).unwrap();
    }
    let counted = group.sent_per_step().unwrap().unwrap();
    let split = placement.split.unwrap();
    println!("{:?}, {} frequent rows: {:?}", split.variant, split.frequent_rows(), split.traffic);
    let predicted = split.traffic.total();
    [(predicted.intra, counted.intra_node), (predicted.inter, counted.inter_node)]
}

#[test]
fn predictions_from_other_batches_are_within_five_percent_of_the_counters() {
    let (rows, batches) = batches();
    let one_node = config();
    let mut two_nodes = config();
    two_nodes.comm.ranks_per_node = 2;
    let known = |config: &Config| {
        let mut config = config.clone();
        config.comm.ids = IdsChoice::Known;
        config
    };
    let in_precision = |precision| {
        move |config: &Config| {
            let mut config = config.clone();
            config.train.precision = precision;
            config
        }
    };
    let (in_bf16, in_f16) = (in_precision(Precision::Bf16), in_precision(Precision::F16));
    // A dense network whose bytes would show.
    let divided = |config: &Config| {
        let mut config = config.clone();
        config.model.top = vec![256, 64, 1];
        config.optimizer.dense.sharded = Some(Sharded::Always);
        config
    };
    let with = |config: &Config, hybrid, deduplicate, exchange| {
        let mut config = config.clone();
        config.run.hybrid = hybrid;
        (config.comm.deduplicate, config.comm.exchange) = (deduplicate, exchange);
        config
    };
    let (auto, flat) = (DeduplicateChoice::Auto, AllToAll::Flat);
    let cases = [
        one_node.clone(),
        with(&one_node, HybridMode::Off, auto, flat),
        known(&with(&one_node, HybridMode::Rows(3000), auto, flat)),
        with(&one_node, HybridMode::Rows(500), DeduplicateChoice::Off, flat),
        two_nodes.clone(),
        with(&two_nodes, HybridMode::Rows(500), DeduplicateChoice::Node, flat),
        with(&two_nodes, HybridMode::Rows(500), DeduplicateChoice::Rank, AllToAll::Hierarchical),
        known(&with(&two_nodes, HybridMode::Rows(500), DeduplicateChoice::Rank, flat)),
        in_bf16(&one_node),
        in_bf16(&with(&two_nodes, HybridMode::Rows(3000), DeduplicateChoice::Node, flat)),
        divided(&one_node),
        divided(&two_nodes),
        in_bf16(&divided(&with(&two_nodes, HybridMode::Rows(3000), auto, flat))),
        in_f16(&with(&two_nodes, HybridMode::Rows(3000), DeduplicateChoice::Node, flat)),
    ];
    for config in cases {
        for (predicted, counted) in bytes(&config, &rows, &batches) {
            let ratio = if counted == 0.0 { 1.0 + predicted } else { predicted / counted };
            println!("predicted {predicted:.0}, counted {counted:.0}: {ratio:.4}");
            let (hybrid, comm) = (config.run.hybrid, &config.comm);
            assert!(
                (ratio - 1.0).abs() < 0.05,
                "{hybrid:?} {comm:?}: {predicted} predicted, {counted} counted"
            );
        }
    }
}
