//! One rank equals many: loss and every weight and state, bit for bit, whatever the ranks, nodes,
//! partition, exchange, schedule.
//!
//! Batches are made up from a seed, with few rows and so with many duplicates, inside bags and
//! between samples; some are short, so that the last ranks get nothing.

#![cfg(test)]

use crate::made_up::{MadeUp, mixed};
use headlong::config::{
    AllToAll, Config, DType, DeduplicateChoice, IdsChoice, Precision, ScheduleChoice,
};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::Partition;
use headlong_reader::Batch;
use std::sync::Arc;

const DENSE: usize = 3;
const DIM: usize = 8;
const ROWS: [u64; 4] = [5, 40, 1, 300];
const STEPS: u64 = 20;

/// A run: everything that must not matter, and the number of ranks.
#[derive(Debug, Clone)]
struct Case {
    ranks: usize,
    ranks_per_node: usize,
    sum_blocks: usize,
    dtype: DType,
    precision: Precision,
    hybrid: Hybrid,
    exchange: AllToAll,
    ids: IdsChoice,
    deduplicate: DeduplicateChoice,
    schedule: ScheduleChoice,
    threads: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Hybrid {
    Off,
    Mixed,
    AllFrequent,
}

impl Case {
    fn alone(sum_blocks: usize) -> Self {
        Self {
            ranks: 1,
            ranks_per_node: 0,
            sum_blocks,
            dtype: DType::F32,
            precision: Precision::F32,
            hybrid: Hybrid::Off,
            exchange: AllToAll::Flat,
            ids: IdsChoice::Exchange,
            deduplicate: DeduplicateChoice::Rank,
            schedule: ScheduleChoice::Serial,
            threads: 1,
        }
    }

    /// A case drawn from a seed, on `ranks` ranks.
    fn drawn(seed: u64, ranks: usize, sum_blocks: usize) -> Self {
        let random = CounterRng::new(seed, 77);
        let mut counter = 0;
        let mut pick = |count: usize| {
            counter += 1;
            random.bits(counter)[0] as usize % count
        };
        Self {
            ranks,
            ranks_per_node: pick(ranks + 1),
            sum_blocks,
            dtype: DType::F32,
            precision: Precision::F32,
            hybrid: [Hybrid::Off, Hybrid::Mixed, Hybrid::AllFrequent][pick(3)],
            exchange: [AllToAll::Flat, AllToAll::Hierarchical][pick(2)],
            ids: [IdsChoice::Exchange, IdsChoice::Known][pick(2)],
            deduplicate: if ranks == sum_blocks && pick(3) == 0 {
                DeduplicateChoice::Off
            } else {
                [DeduplicateChoice::Rank, DeduplicateChoice::Node][pick(2)]
            },
            schedule: [ScheduleChoice::Serial, ScheduleChoice::Overlapped][pick(2)],
            threads: ranks * (1 + pick(2)),
        }
    }

    fn config(&self, optimizer: &str, batch_size: usize) -> Config {
        let mut config = Config::default();
        config.model.dim = DIM;
        config.model.bottom = vec![12, DIM];
        config.model.top = vec![9, 1];
        config.data.num_dense = DENSE;
        config.data.num_sparse = ROWS.len();
        config.tables.max_ids_per_sample = 3;
        config.tables.dtype = self.dtype;
        config.train.batch_size = batch_size;
        config.train.precision = self.precision;
        config.train.sum_blocks = Some(self.sum_blocks);
        config.eval.batch_size = batch_size;
        config.run.ranks = self.ranks;
        config.run.schedule = self.schedule;
        config.comm.ranks_per_node = self.ranks_per_node;
        config.comm.exchange = self.exchange;
        config.comm.ids = self.ids;
        config.comm.deduplicate = self.deduplicate;
        config.comm.deadline_s = 20.0;
        let dense = if ["sgd", "lamb"].contains(&optimizer) { optimizer } else { "adagrad" };
        config.optimizer.set_both(dense).unwrap();
        if optimizer != "lamb" {
            config.optimizer.sparse.name = optimizer.to_owned();
        }
        config.optimizer.resolve().unwrap();
        config.validate().unwrap();
        config
    }

    fn partition(&self) -> Arc<Partition> {
        let specs = headlong::iteration::model::table_specs(&self.config("sgd", 8), &ROWS);
        Arc::new(match self.hybrid {
            Hybrid::Off => Partition::row_wise(&specs, self.ranks),
            Hybrid::AllFrequent => Partition::all_frequent(&specs, self.ranks),
            Hybrid::Mixed => mixed(&specs, self.ranks),
        })
    }
}

fn batch(number: u64, samples: usize) -> Batch {
    MadeUp { seed: 9, rows: &ROWS, num_dense: DENSE }.bags(number, samples)
}

/// Losses, digest of all weights and states, and predictions after some steps.
fn run(case: &Case, optimizer: &str, batch_size: usize) -> (Vec<u64>, String, Vec<u32>) {
    run_and_move(case, optimizer, batch_size, None)
}

/// The same; half-way the rows move to where another partition wants them.
fn run_and_move(
    case: &Case,
    optimizer: &str,
    batch_size: usize,
    moves_to: Option<Arc<Partition>>,
) -> (Vec<u64>, String, Vec<u32>) {
    let config = case.config(optimizer, batch_size);
    let registry = Registry::default();
    let options = RankGroupOptions {
        partition: Some(case.partition()),
        ..RankGroupOptions::new(case.threads, &registry)
    };
    let mut group = RankGroup::build(&config, &ROWS, options).unwrap();
    // Every fifth batch is short: some ranks have few samples or none.
    let samples =
        |number: u64| if number % 5 == 4 { 1 + number as usize % batch_size } else { batch_size };
    let at = |number: u64| batch(number, samples(number));
    group.prime(&at(0)).unwrap();
    let losses = (1..=STEPS).map(|number| {
        let next = (number < STEPS).then(|| at(number));
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        if let Some(partition) = moves_to.as_ref().filter(|_| number == STEPS / 2) {
            group.repartition(partition).unwrap();
        }
        group.step(rates, next.as_ref()).unwrap().to_bits()
    });
    let losses: Vec<u64> = losses.collect();
    let mut predictions = Vec::new();
    for number in [100, 104] {
        group
            .predict(&at(number), &mut |logits, _| {
                predictions.extend(logits.iter().map(|x| x.to_bits()))
            })
            .unwrap();
    }
    (losses, weights_digest(&group).unwrap(), predictions)
}

fn check(case: &Case, optimizer: &str, batch_size: usize) {
    let Case { dtype, precision, sum_blocks, .. } = *case;
    let alone = Case { dtype, precision, ..Case::alone(sum_blocks) };
    let alone = run(&alone, optimizer, batch_size);
    let found = run(case, optimizer, batch_size);
    assert_eq!(alone.0, found.0, "losses of {case:?}, {optimizer}, batches of {batch_size}");
    assert_eq!(alone.1, found.1, "weights of {case:?}, {optimizer}, batches of {batch_size}");
    assert_eq!(alone.2, found.2, "predictions of {case:?}, {optimizer}, batches of {batch_size}");
}

#[test]
fn any_number_of_ranks_with_eight_blocks() {
    for (seed, ranks) in [2, 4, 8, 2, 4, 8, 2, 4, 8, 8].into_iter().enumerate() {
        let optimizer = ["sgd", "adagrad", "rowwise_adagrad", "lazy_adam", "lamb"][seed % 5];
        check(&Case::drawn(seed as u64, ranks, 8), optimizer, [24, 31, 8][seed % 3]);
    }
}

/// Rows of bf16 are rounded stochastically: with the same random bits wherever they lie and on any
/// rank.
#[test]
fn rows_of_bf16_on_any_number_of_ranks() {
    for (seed, ranks) in [2, 4, 8, 4].into_iter().enumerate() {
        let case = Case { dtype: DType::Bf16, ..Case::drawn(40 + seed as u64, ranks, 8) };
        check(&case, ["sgd", "rowwise_adagrad"][seed % 2], [24, 31][seed % 2]);
    }
}

#[test]
fn odd_numbers_of_ranks_with_a_block_each() {
    for (seed, ranks) in [3, 5, 6, 7, 3, 5].into_iter().enumerate() {
        let optimizer = ["adagrad", "sgd"][seed % 2];
        check(&Case::drawn(100 + seed as u64, ranks, ranks), optimizer, [25, 40][seed % 2]);
    }
}

/// In bf16 and f16 vectors and gradients travel in 16 bits: one rank rounds what several would
/// send.
#[test]
fn in_bf16_on_any_number_of_ranks() {
    in_sixteen_bits_on_any_number_of_ranks(Precision::Bf16);
}

#[test]
fn in_f16_on_any_number_of_ranks() {
    in_sixteen_bits_on_any_number_of_ranks(Precision::F16);
}

fn in_sixteen_bits_on_any_number_of_ranks(precision: Precision) {
    let narrow = |case| Case { precision, ..case };
    for (seed, ranks) in [2, 4, 8, 2, 4, 8].into_iter().enumerate() {
        let case = narrow(Case::drawn(200 + seed as u64, ranks, 8));
        check(&case, ["sgd", "adagrad"][seed % 2], [24, 31, 8][seed % 3]);
    }
    for (seed, ranks) in [3, 5, 6, 7].into_iter().enumerate() {
        let case = narrow(Case::drawn(300 + seed as u64, ranks, ranks));
        check(&case, ["adagrad", "sgd"][seed % 2], [25, 40][seed % 2]);
    }
    let narrow_rows = Case { dtype: DType::Bf16, ..Case::drawn(400, 4, 8) };
    check(&narrow(narrow_rows), "rowwise_adagrad", 24);
}

#[test]
fn every_way_to_exchange_gives_the_same_bits() {
    every_way_gives_the_same_bits(Precision::F32);
}

#[test]
fn every_way_to_exchange_gives_the_same_bits_in_bf16() {
    every_way_gives_the_same_bits(Precision::Bf16);
}

#[test]
fn every_way_to_exchange_gives_the_same_bits_in_f16() {
    every_way_gives_the_same_bits(Precision::F16);
}

fn every_way_gives_the_same_bits(precision: Precision) {
    let plain = Case { ranks: 4, ranks_per_node: 2, precision, ..Case::alone(4) };
    for hybrid in [Hybrid::Off, Hybrid::Mixed, Hybrid::AllFrequent] {
        for (exchange, ids) in [
            (AllToAll::Flat, IdsChoice::Exchange),
            (AllToAll::Hierarchical, IdsChoice::Known),
            (AllToAll::Hierarchical, IdsChoice::Exchange),
        ] {
            for deduplicate in
                [DeduplicateChoice::Off, DeduplicateChoice::Rank, DeduplicateChoice::Node]
            {
                check(&Case { hybrid, exchange, ids, deduplicate, ..plain.clone() }, "adagrad", 16);
            }
        }
    }
}

/// Rows that move in the middle of a run, weights, states and the routed batch with them, change no
/// bit.
#[test]
fn rows_may_move_between_steps() {
    let plain = Case { ranks: 4, ranks_per_node: 2, ..Case::alone(4) };
    let alone = run(&Case::alone(4), "adagrad", 16);
    for (from, to, deduplicate) in [
        (Hybrid::Off, Hybrid::Mixed, DeduplicateChoice::Rank),
        (Hybrid::Mixed, Hybrid::AllFrequent, DeduplicateChoice::Node),
        (Hybrid::AllFrequent, Hybrid::Off, DeduplicateChoice::Rank),
    ] {
        for ids in [IdsChoice::Exchange, IdsChoice::Known] {
            let case = Case { hybrid: from, deduplicate, ids, ..plain.clone() };
            let partition = Case { hybrid: to, ..case.clone() }.partition();
            assert_eq!(
                alone,
                run_and_move(&case, "adagrad", 16, Some(partition)),
                "{case:?} to {to:?}"
            );
        }
    }
}
