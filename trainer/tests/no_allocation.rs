//! A step allocates nothing, once the first ones have settled the buffers. One test alone in its
//! binary: the counter counts every thread of the process.

#![cfg(test)]

mod made_up;

use headlong::config::{Config, DType, Sharded, TableRows};
use headlong::iteration::lanes::Lanes;
use headlong::iteration::model::Model;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::trace::Recorder;
use headlong::iteration::worker::{RankWorker, StepRates};
use headlong_device::Stream;
use headlong_device::testing::{CountingAllocator, allocations};
use headlong_embedding::Registry;
use headlong_reader::Batch;
use made_up::MadeUp;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SAMPLES: usize = 96;
const DENSE: usize = 13;
const TABLES: usize = 26;
const ROWS: u64 = 300;

fn config(optimizer: &str, accumulate: usize) -> Config {
    let mut config = Config::default();
    config.tables.rows = TableRows::Each(ROWS);
    (config.train.batch_size, config.train.accumulate) = (SAMPLES / accumulate, accumulate);
    config.optimizer.set_both(optimizer).unwrap();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

fn batch(seed: u64) -> Batch {
    MadeUp { seed, rows: &[ROWS; TABLES], num_dense: DENSE }.one_hot(SAMPLES)
}

fn allocations_of_steps(config: &Config, threads: usize) -> u64 {
    let stream = Stream::cpu(threads);
    let model = Model::new(config, &[ROWS; TABLES], &stream).unwrap();
    let mut worker = RankWorker::new(model, Lanes::serial(stream).unwrap(), Recorder::off());
    let batches: Vec<Batch> = (0..4).map(batch).collect();
    worker.prime(&batches[0]).unwrap();
    let mut logits = 0.0;
    let mut steps = |numbers: std::ops::Range<u64>| {
        let before = allocations();
        for number in numbers {
            let rates = StepRates { number: number + 1, dense: 0.01, sparse: 0.01 };
            let at = |number: u64| &batches[(number % batches.len() as u64) as usize];
            worker.step(rates, Some(at(number))).unwrap();
            if number % 5 == 0 {
                worker.predict(at(number + 2)).unwrap();
                worker.logits(SAMPLES, &mut |found| logits += f64::from(found[0]));
            }
        }
        allocations() - before
    };
    steps(0..12);
    let counted = steps(12..40);
    assert!(logits.is_finite());
    counted
}

/// The same of two ranks that divide the dense optimiser or do not, and clip where that goes
/// together.
fn allocations_of_two_ranks(optimizer: &str, sharded: Sharded) -> u64 {
    let mut config = config(optimizer, 1);
    config.run.ranks = 2;
    config.optimizer.dense.sharded = Some(sharded);
    config.train.clip_norm = (optimizer == "adam").then_some(0.01);
    config.validate().unwrap();
    let registry = Registry::default();
    let options = RankGroupOptions::new(2, &registry);
    let group = RankGroup::build(&config, &[ROWS; TABLES], options).unwrap();
    let batches: Vec<Batch> = (0..4).map(batch).collect();
    let counted = group.all(|worker| {
        worker.prime(&batches[0])?;
        let mut steps = |numbers: std::ops::Range<u64>| -> headlong::error::Result<u64> {
            for number in numbers {
                let rates = StepRates { number: number + 1, dense: 0.01, sparse: 0.01 };
                worker.step(rates, Some(&batches[(number % 4) as usize]))?;
            }
            // The other rank has stopped, too, and begins again only when both have counted.
            worker.model().communicator.barrier().unwrap();
            let counted = allocations();
            worker.model().communicator.barrier().unwrap();
            Ok(counted)
        };
        let before = steps(0..12)?;
        Ok(steps(12..40)? - before)
    });
    counted.unwrap()
}

#[test]
fn a_warm_step_allocates_nothing() {
    for optimizer in ["sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "ftrl"] {
        for (threads, accumulate) in [(1, 1), (2, 1), (2, 3)] {
            let counted = allocations_of_steps(&config(optimizer, accumulate), threads);
            println!(
                "{optimizer}, {threads} threads, accumulate {accumulate}: {counted} allocations"
            );
            assert_eq!(counted, 0, "{optimizer}, {threads} threads, accumulate {accumulate}");
        }
    }
    let (whole, divided) = (Sharded::Never, Sharded::Always);
    for (optimizer, sharded) in
        [("adagrad", whole), ("adagrad", divided), ("adam", divided), ("lamb", divided)]
    {
        let counted = allocations_of_two_ranks(optimizer, sharded);
        assert_eq!(counted, 0, "{optimizer} on two ranks, {sharded:?} divided");
    }
    let mut narrow = config("adagrad", 1);
    narrow.tables.dtype = DType::Bf16;
    assert_eq!(allocations_of_steps(&narrow, 2), 0, "rows of bf16");
}
