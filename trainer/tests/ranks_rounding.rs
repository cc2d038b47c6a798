//! Numbers of ranks that add up in another order than one rank: within rounding, which is derived
//! and not guessed.
//!
//! With SGD all weights stay within 1e-6 of one rank's. Adagrad divides by the root of what it has
//! seen, so that rounding of a tiny gradient moves a weight visibly: there each step is taken from
//! the same weights and states, and what comes out must lie between the results of the least and
//! the greatest gradient that f32 can give, by the f64 oracle's bounds.

#![cfg(test)]

use crate::bounded::{self, Matrix, Named, Number, U, gamma};
use headlong::config::{AllToAll, Config, IdsChoice, ScheduleChoice};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, comm_options};
use headlong::iteration::worker::StepRates;
use headlong_comm::testing::sim::Random;
use headlong_comm::{Communicator, Topology};
use headlong_device::Arena;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_reader::{Batch, Jagged};
use std::collections::BTreeMap;
use std::sync::Arc;

const STEPS: u64 = 20;
const DENSE: usize = 3;
const RATE: f32 = 0.05;

/// A model, its data and its ranks, drawn from a seed.
#[derive(Debug)]
struct Case {
    seed: u64,
    topology: Topology,
    rows: Vec<u64>,
    config: Config,
}

/// Weights and states by name.
type State = BTreeMap<String, Vec<f32>>;

impl Case {
    fn drawn(seed: u64, optimizer: &str) -> Self {
        let mut random = Random::new(seed);
        let mut pick = |count: usize| random.below(count as u64) as usize;
        // Mostly numbers that are no power of two, on one to four nodes of any size.
        let ranks = [3, 5, 6, 7, 3, 5, 6, 7, 2, 4, 8, 1][pick(12)];
        let mut nodes = vec![0; 1 + pick(ranks.min(4))];
        for rank in 0..ranks {
            let node = if rank < nodes.len() { rank } else { pick(nodes.len()) };
            nodes[node] += 1;
        }
        let dim = [2, 4][pick(2)];
        let mut config = Config::default();
        config.model.dim = dim;
        config.model.bottom = vec![1 + pick(6), dim];
        config.model.top = vec![1 + pick(6), 1];
        let rows: Vec<u64> = (0..1 + pick(4)).map(|_| [1, 3, 20, 120][pick(4)]).collect();
        (config.data.num_dense, config.data.num_sparse) = (DENSE, rows.len());
        config.tables.max_ids_per_sample = 3;
        let sum_blocks = ranks * [1, 2, 4][pick(3)];
        config.train.batch_size = sum_blocks + pick(30);
        config.eval.batch_size = 8;
        config.train.sum_blocks = Some(sum_blocks);
        config.train.accumulate = 1 + pick(2);
        config.train.seed = seed;
        config.run.ranks = ranks;
        config.run.schedule = [ScheduleChoice::Serial, ScheduleChoice::Overlapped][pick(2)];
        config.comm.exchange = [AllToAll::Flat, AllToAll::Hierarchical][pick(2)];
        config.comm.ids = [IdsChoice::Exchange, IdsChoice::Known][pick(2)];
        config.comm.deadline_s = 20.0;
        config.optimizer.set_both(optimizer).unwrap();
        config.optimizer.resolve().unwrap();
        config.validate().unwrap();
        Self { seed, topology: Topology::from_node_sizes(&nodes), rows, config }
    }

    fn group(&self) -> RankGroup {
        let specs = headlong::iteration::model::table_specs(&self.config, &self.rows);
        let ranks = self.topology.num_ranks();
        let mut random = Random::new(self.seed ^ 0x9a27);
        let placements = self.rows.iter().map(|&rows| {
            let owner = Owner(random.below(ranks as u64) as usize);
            match random.below(4) {
                0 => TablePlacement::DataParallel,
                1 => TablePlacement::TableWise(owner),
                2 => TablePlacement::by_formula(),
                _ => TablePlacement::RowWise {
                    frequent: (1..rows).step_by(3).collect(),
                    placed: vec![(0, owner)],
                },
            }
        });
        let partition = Partition::new(&specs, ranks, placements.collect()).unwrap();
        let registry = Registry::default();
        let options = RankGroupOptions {
            partition: Some(Arc::new(partition)),
            communicators: Some(Communicator::local(&self.topology, comm_options(&self.config))),
            ..RankGroupOptions::new(ranks, &registry)
        };
        RankGroup::build(&self.config, &self.rows, options).unwrap()
    }

    /// One rank that sums over so many blocks.
    fn alone(&self, sum_blocks: usize) -> RankGroup {
        let mut config = self.config.clone();
        (config.run.ranks, config.train.sum_blocks) = (1, Some(sum_blocks));
        RankGroup::build(&config, &self.rows, RankGroupOptions::new(1, &Registry::default()))
            .unwrap()
    }

    /// Bags of none to three ids, few of them frequent; every fourth batch is short.
    fn batch(&self, number: u64) -> Batch {
        let mut random = Random::new(self.seed << 20 ^ number);
        let full = self.config.train.batch_size * self.config.train.accumulate;
        let samples = if number % 4 == 3 { 1 + random.below(full as u64) as usize } else { full };
        let sparse = self.rows.iter().map(|&rows| {
            let mut bags = Jagged { values: Vec::new(), offsets: vec![0].into() };
            for _ in 0..samples {
                for _ in 0..[1, 1, 0, 3][random.below(4) as usize] {
                    let among = if random.chance(50) { rows.min(2) } else { rows };
                    bags.values.push(random.below(among));
                }
                bags.offsets.push(bags.values.len() as u32);
            }
            bags
        });
        let sparse = sparse.collect();
        Batch {
            num_samples: samples,
            labels: (0..samples).map(|_| random.below(2) as f32).collect(),
            dense: (0..samples * DENSE).map(|_| random.below(1000) as f32 / 500.0 - 1.0).collect(),
            sparse,
            ..Batch::default()
        }
    }

    fn describe(&self, number: u64) -> String {
        let (config, samples) = (&self.config, self.batch(number).num_samples);
        format!(
            "seed {}: {:?}, {} blocks, {samples} samples of {}, tables {:?}, {:?}, {:?}, {:?}",
            self.seed,
            self.topology,
            config.train.sum_blocks.unwrap_or(0),
            config.train.batch_size,
            self.rows,
            config.comm,
            config.run.schedule,
            config.model,
        )
    }

    fn step(&self, group: &RankGroup, number: u64, rate: f32) -> f64 {
        group.prime(&self.batch(number)).unwrap();
        group.step(StepRates { number, dense: rate, sparse: rate }, None).unwrap()
    }

    /// Weights and states as the oracle takes them.
    fn matrices(&self, state: &State) -> Named {
        let matrix = |(name, values): (&String, &Vec<f32>)| {
            let first = if name.starts_with("bottom") { DENSE } else { self.top_in() };
            let widths: &[usize] = if name.starts_with("bottom") {
                &self.config.model.bottom
            } else {
                &self.config.model.top
            };
            let cols = match name.split('.').collect::<Vec<_>>()[..] {
                ["table", _] => self.config.model.dim,
                [_, "0", "weight"] => first,
                [_, layer, "weight"] => widths[layer.parse::<usize>().unwrap() - 1],
                _ => values.len(),
            };
            (name.clone(), Matrix::exact(cols, values))
        };
        state.iter().filter(|(name, _)| !name.ends_with(".state")).map(matrix).collect()
    }

    fn top_in(&self) -> usize {
        let features = 1 + self.rows.len();
        self.config.model.dim + features * (features - 1) / 2
    }
}

fn slots(arena: &Arena, suffix: &str) -> State {
    arena
        .mats()
        .map(|mat| (format!("{}{suffix}", mat.name()), mat.read::<f32>().data().to_vec()))
        .collect()
}

/// All weights and states, put together from the ranks.
fn read(group: &RankGroup) -> State {
    let mut state = State::new();
    for rank in 0..group.len() {
        let worker = group.worker(rank);
        let model = worker.model();
        for (table, spec) in model.tables.specs().iter().enumerate() {
            for (tensor, described) in model.tables.tensors(table).iter().enumerate() {
                let name = format!("table.{table}{}", ["", ".state"][tensor]);
                let values = state
                    .entry(name)
                    .or_insert_with(|| vec![0.0; spec.rows as usize * described.cols]);
                model.tables.export_rows(table, tensor, 0, values).unwrap();
            }
        }
        if rank == 0 {
            state.extend(slots(&model.weights, ""));
            model.dense_states.iter().for_each(|states| state.extend(slots(states, ".state")));
        }
    }
    state
}

fn write(group: &RankGroup, state: &State) {
    for rank in 0..group.len() {
        let worker = group.worker(rank);
        let model = worker.model();
        for table in 0..model.tables.specs().len() {
            for tensor in 0..model.tables.tensors(table).len() {
                let values = &state[&format!("table.{table}{}", ["", ".state"][tensor])];
                model.tables.import_rows(table, tensor, 0, values).unwrap();
            }
        }
        for (arena, suffix) in [(Some(&model.weights), ""), (model.dense_states.first(), ".state")]
        {
            for mat in arena.into_iter().flat_map(Arena::mats) {
                let values = &state[&format!("{}{suffix}", mat.name())];
                mat.write::<f32>().data_mut().copy_from_slice(values);
            }
        }
    }
    group.weights_changed();
}

/// What Adagrad makes of the least and the greatest gradient: the least and the greatest weight,
/// then state.
fn adagrad(weight: f64, state: f64, gradient: Number, rate: f64) -> [(f64, f64); 2] {
    let (least, greatest) = (gradient.value - gradient.error, gradient.value + gradient.error);
    // Rises with the gradient.
    let moved = |g: f64| rate * g / ((state + g * g).sqrt() + 1e-10);
    let slack = |moved: f64| gamma(8) * moved.abs() + U * weight.abs().max((weight - moved).abs());
    let (down, up) = (moved(greatest), moved(least));
    let squares = [least * least, greatest * greatest];
    let most = state + squares[0].max(squares[1]);
    let fewest =
        state + if least < 0.0 && greatest > 0.0 { 0.0 } else { squares[0].min(squares[1]) };
    [
        (weight - down - slack(down), weight - up + slack(up)),
        (fewest * (1.0 - gamma(3)), most * (1.0 + gamma(3))),
    ]
}

/// How many weights and states lie outside of what Adagrad can make of the gradients.
fn outside(before: &State, after: &State, gradients: &Named, rate: f64) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, gradient) in gradients {
        let state_name = format!("{name}.state");
        for (at, &gradient) in gradient.numbers().iter().enumerate() {
            let of = |state: &State, name: &str| f64::from(state[name][at]);
            let limits = adagrad(of(before, name), of(before, &state_name), gradient, rate);
            for (name, (least, greatest)) in [name, &state_name].into_iter().zip(limits) {
                let found = of(after, name);
                if !(least..=greatest).contains(&found) {
                    wrong.push(format!("{name}[{at}] is {found}, not in {least}..{greatest}"));
                }
            }
        }
    }
    wrong
}

#[test]
fn with_sgd_any_number_of_ranks_stays_within_a_millionth() {
    let mut widest = 0.0_f32;
    for seed in 0..40 {
        let case = Case::drawn(seed, "sgd");
        let (group, alone) = (case.group(), case.alone(1));
        for number in 1..=STEPS {
            let losses = (case.step(&group, number, RATE), case.step(&alone, number, RATE));
            assert!(
                (losses.0 - losses.1).abs() <= 1e-6,
                "{losses:?} in step {number} of {}",
                case.describe(number)
            );
        }
        let (found, expected) = (read(&group), read(&alone));
        for (name, values) in &expected {
            for (found, expected) in found[name].iter().zip(values) {
                widest = widest.max((found - expected).abs());
                assert!(
                    (found - expected).abs() <= 1e-6,
                    "{name}: {found} and {expected} of {}",
                    case.describe(0)
                );
            }
        }
    }
    println!("farthest apart: {widest:e}");
    assert!(widest > 0.0, "other orders of addition have other bits");
}

#[test]
fn with_adagrad_every_step_stays_within_the_bounds_of_its_gradients() {
    let (mut checked, mut refused) = (0, 0);
    for seed in 100..130 {
        let case = Case::drawn(seed, "adagrad");
        let (group, alone) = (case.group(), case.alone(1));
        for number in 1..=STEPS {
            let before = read(&group);
            write(&alone, &before);
            let exact = bounded::step(&case.matrices(&before), &case.batch(number));
            let losses = [case.step(&group, number, RATE), case.step(&alone, number, RATE)];
            let Some((loss, gradients)) = exact else {
                refused += 1;
                continue;
            };
            checked += 1;
            for (who, found) in [("all ranks", losses[0]), ("one rank", losses[1])] {
                let off = (found - loss.value).abs();
                assert!(
                    off <= loss.error,
                    "{who}, step {number}: loss off by {off} of {} in {case:?}",
                    loss.error
                );
            }
            for (who, group) in [("all ranks", &group), ("one rank", &alone)] {
                let wrong = outside(&before, &read(group), &gradients, f64::from(RATE));
                assert!(
                    wrong.is_empty(),
                    "{who}, step {number} of {}: {wrong:?}",
                    case.describe(number)
                );
            }
        }
    }
    println!("{checked} steps checked, in {refused} a unit lay too near to zero");
    assert!(checked > 20 * refused, "{refused} of {checked} steps could not be judged");
}

/// Ranks of any number on nodes of any size, short batches of any length: with the same blocks, one
/// rank has the same bits.
#[test]
fn the_same_blocks_have_the_same_bits() {
    for seed in 200..240 {
        let mut case = Case::drawn(seed, ["sgd", "adagrad"][seed as usize % 2]);
        let sum_blocks = case.config.train.sum_blocks.unwrap();
        // Each rank adds up its own micro-batches: another shape than one rank's
        // (docs/numerics.md).
        case.config.train.accumulate = 1;
        let (group, alone) = (case.group(), case.alone(sum_blocks));
        for number in 1..=STEPS {
            let losses = [&group, &alone].map(|group| case.step(group, number, RATE).to_bits());
            assert_eq!(losses[0], losses[1], "step {number} of {}", case.describe(number));
        }
        let bits = |state: State| {
            let bits = |(name, values): (String, Vec<f32>)| {
                (name, values.into_iter().map(f32::to_bits).collect())
            };
            state.into_iter().map(bits).collect::<BTreeMap<String, Vec<u32>>>()
        };
        assert!(
            bits(read(&group)) == bits(read(&alone)),
            "weights or states of {}",
            case.describe(0)
        );
    }
}

/// The bounds are too narrow for a real mistake: half a percent of the learning rate, or one
/// sample's share of a gradient.
#[test]
fn the_bounds_catch_mistakes() {
    let case = Case::drawn(100, "adagrad");
    let group = case.group();
    case.step(&group, 1, RATE);
    let before = read(&group);
    let (_, gradients) =
        bounded::step(&case.matrices(&before), &case.batch(2)).expect("every unit passes or not");
    case.step(&group, 2, RATE * 1.005);
    assert!(
        !outside(&before, &read(&group), &gradients, f64::from(RATE)).is_empty(),
        "a wrong learning rate"
    );
    write(&group, &before);
    let mut batch = case.batch(2);
    batch.labels[0] = 1.0 - batch.labels[0];
    group.prime(&batch).unwrap();
    group.step(StepRates { number: 2, dense: RATE, sparse: RATE }, None).unwrap();
    assert!(
        !outside(&before, &read(&group), &gradients, f64::from(RATE)).is_empty(),
        "a wrong label"
    );
}
