//! Whole training steps on the simulated network: what a case is, how it ends well, and how it is
//! played again.
//!
//! A case is a seed, with a fault or without: ranks, nodes, model, optimiser, partition, exchange,
//! schedule, network model and fault all follow from it. Each rank reads its own data, as processes
//! do.

#[path = "../../../comm/tests/sim_cases/fault.rs"]
pub mod fault;
#[path = "../../../comm/tests/sim_cases/playing.rs"]
pub mod playing;

use fault::Faulty;
use headlong::config::{AllToAll, Config, DeduplicateChoice, IdsChoice, ScheduleChoice};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions, comm_options};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_comm::testing::sim::{FaultPlan, Random, Report, SimOptions, World};
use headlong_comm::transport::Transport;
use headlong_comm::{AllReduce, CommError, CommOptions, Communicator, Rank, Topology};
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_embedding::{Registry, TableSpec};
use headlong_reader::{Batch, Jagged};
pub use playing::Wrong;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Rows of the tables: few, so that ids are duplicated within bags, samples and ranks.
const ROWS: [u64; 4] = [5, 40, 1, 90];
const DENSE: usize = 3;
const DIM: usize = 4;
/// Steps of a run: the pipeline is full, weights of the second depend on gradients of the first.
const STEPS: u64 = 3;
/// About how many exchanges a rank does in a run whose all-reduces are done in one piece, and in
/// many.
const EXCHANGES: [u64; 2] = [36, 110];

/// What must come out the same whatever else a case is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Work {
    sum_blocks: usize,
    optimizer: &'static str,
    batch_size: usize,
}

/// Where rows lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hybrid {
    Off,
    Mixed,
    AllFrequent,
}

/// One run that can be repeated.
#[derive(Debug, Clone)]
pub struct Case {
    seed: u64,
    faulty: bool,
    wrong: Option<Wrong>,
    topology: Topology,
    work: Work,
    hybrid: Hybrid,
    exchange: AllToAll,
    ids: IdsChoice,
    deduplicate: DeduplicateChoice,
    schedule: ScheduleChoice,
    /// This rank finds bad data in the batch of this number.
    bad_data: Option<(usize, u64)>,
}

/// What a rank has at the end: losses of all steps, predictions, digest of all weights and states.
pub type Trained = (Vec<u64>, Vec<u32>, String);

impl Case {
    /// The case of a seed.
    pub fn new(seed: u64, faulty: bool) -> Self {
        let mut random = Random::new(seed ^ 0x57e9);
        let mut pick = |count: u64| random.below(count) as usize;
        let shapes: [&[usize]; 6] = [&[2, 2], &[2, 2], &[2, 2], &[3, 1], &[1, 1, 1, 1], &[4, 4]];
        let topology = Topology::from_node_sizes(shapes[pick(6)]);
        let ranks = topology.num_ranks();
        let sum_blocks = ranks * [1, 2][pick(2)];
        let deduplicate = match pick(4) {
            0 if sum_blocks == ranks => DeduplicateChoice::Off,
            1 => DeduplicateChoice::Node,
            _ => DeduplicateChoice::Rank,
        };
        let optimizer = ["sgd", "adagrad", "rowwise_adagrad"][pick(3)];
        let batch_size = [16, 21][pick(2)];
        let bad_data =
            (pick(100) < 10 && faulty).then(|| (pick(ranks as u64), pick(STEPS + 1) as u64));
        Self {
            seed,
            faulty,
            wrong: None,
            work: Work { sum_blocks, optimizer, batch_size },
            hybrid: [Hybrid::Off, Hybrid::Mixed, Hybrid::Mixed, Hybrid::AllFrequent][pick(4)],
            exchange: [AllToAll::Flat, AllToAll::Hierarchical][pick(2)],
            ids: [IdsChoice::Exchange, IdsChoice::Known][pick(2)],
            deduplicate,
            schedule: if ranks == 4 && pick(4) == 0 {
                ScheduleChoice::Overlapped
            } else {
                ScheduleChoice::Serial
            },
            bad_data,
            topology,
        }
    }

    /// The same case with a fault.
    pub fn with(mut self, wrong: Wrong) -> Self {
        self.wrong = Some(wrong);
        self
    }

    /// The command that plays this case again.
    #[allow(dead_code, reason = "not used by the example")]
    pub fn command(&self) -> String {
        let faulty = if self.faulty { " --faulty" } else { "" };
        let wrong = self.wrong.map_or(String::new(), |wrong| format!(" --fault {}", wrong.name()));
        let seed = self.seed;
        format!(
            "cargo run --release -p headlong --example simulated_run -- --seed \
             {seed}{faulty}{wrong}"
        )
    }

    /// Whether all-reduces are done in many pieces: frequent rows are then updated while the rest
    /// is on its way.
    fn small_pieces(&self) -> bool {
        (self.seed / 2).is_multiple_of(3)
    }

    fn config(&self) -> Config {
        let mut config = self.work.config(self.topology.num_ranks());
        config.run.schedule = self.schedule;
        config.comm.exchange = self.exchange;
        config.comm.ids = self.ids;
        config.comm.deduplicate = self.deduplicate;
        config.validate().expect("the case can work");
        config
    }

    fn partition(&self, config: &Config) -> Partition {
        let specs = headlong::iteration::model::table_specs(config, &ROWS);
        let ranks = self.topology.num_ranks();
        match self.hybrid {
            Hybrid::Off => Partition::row_wise(&specs, ranks),
            Hybrid::AllFrequent => Partition::all_frequent(&specs, ranks),
            Hybrid::Mixed => mixed(&specs, ranks),
        }
    }

    fn options(&self) -> SimOptions {
        let mut options = SimOptions::new(self.seed);
        if self.faulty && self.bad_data.is_none() {
            let ranks = self.topology.num_ranks();
            let exchanges = EXCHANGES[usize::from(self.small_pieces())];
            options.faults = FaultPlan::draw(self.seed, ranks, exchanges, options.deadline);
        }
        if let Some(Wrong::Transport(mutation)) = self.wrong {
            options.mutation = Some(mutation);
        }
        options
    }

    /// What one rank does.
    fn train(
        &self,
        config: &Config,
        partition: &Arc<Partition>,
        end: Arc<dyn Transport>,
    ) -> headlong::Result<Trained> {
        let rank = end.rank().0;
        let end = match self.wrong {
            Some(Wrong::Caller(fault)) => Arc::new(Faulty::new(end, fault)),
            _ => end,
        };
        let options = CommOptions {
            all_reduce: [AllReduce::Flat, AllReduce::Auto][self.seed as usize / 8 % 2],
            chunk_bytes: if self.small_pieces() { 64 } else { 512 << 10 },
            one_step_bytes: (self.small_pieces() || (self.seed / 4).is_multiple_of(2)).then_some(0),
            ..comm_options(config)
        };
        let communicator = Communicator::new(end, options);
        let registry = Registry::default();
        let options = RankGroupOptions {
            partition: Some(Arc::clone(partition)),
            communicators: Some(vec![communicator]),
            ..RankGroupOptions::new(1, &registry)
        };
        let group = RankGroup::build(config, &ROWS, options)?;
        let at = |number: u64| {
            let mut batch = self.work.batch(number);
            if self.bad_data == Some((rank, number)) {
                batch.sparse[1].values.fill(ROWS[1] + 7);
            }
            batch
        };
        let trained = train_steps(&group, at)?;
        group.close()?;
        Ok(trained)
    }

    /// Runs the case.
    ///
    /// # Errors
    /// What is wrong with how it ended.
    #[allow(dead_code, reason = "not used by the example")]
    pub fn run(&self) -> Result<Report, String> {
        let (results, report, _) = self.simulate(false);
        self.judge(&results, &report)?;
        Ok(report)
    }

    /// Runs the case and prints what happened.
    ///
    /// # Errors
    /// What is wrong with how it ended.
    #[allow(dead_code, reason = "used by the example alone")]
    pub fn play(&self) -> Result<Report, String> {
        println!("{self:#?}\nfaults {:?}", self.options().faults);
        let (results, report, trace) = self.simulate(true);
        trace.iter().for_each(|line| println!("{line}"));
        results.iter().enumerate().for_each(|(rank, result)| println!("rank {rank}: {result:?}"));
        println!("{report:#?}");
        self.judge(&results, &report)?;
        Ok(report)
    }

    fn simulate(&self, keep_trace: bool) -> (Vec<headlong::Result<Trained>>, Report, Vec<String>) {
        let config = self.config();
        let partition = Arc::new(self.partition(&config));
        let (world, ends) =
            World::new(&self.topology, &SimOptions { keep_trace, ..self.options() });
        let results = std::thread::scope(|scope| {
            let start = |end| scope.spawn(|| self.train(&config, &partition, end));
            let threads: Vec<_> = ends.into_iter().map(start).collect();
            let joined: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            joined
                .into_iter()
                .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        (results, world.report(), world.trace())
    }

    /// A rank ends with the bits of one rank alone, or with the job's first error, which names the
    /// true culprit.
    fn judge(&self, results: &[headlong::Result<Trained>], report: &Report) -> Result<(), String> {
        let expected = self.work.alone();
        let wrong = results
            .iter()
            .position(|result| result.as_ref().is_ok_and(|trained| *trained != expected));
        if let Some(rank) = wrong {
            return Err(format!("rank {rank} has {:?} instead of {expected:?}", results[rank]));
        }
        if let Some(deadlock) = &report.deadlock {
            return Err(format!("deadlock: {deadlock}"));
        }
        let deadline = self.options().deadline;
        let planned = report.faults.iter().filter_map(|fault| fault.culprit(deadline));
        let culprits: Vec<Rank> =
            planned.chain(self.bad_data.map(|(rank, _)| Rank(rank))).collect();
        for (rank, result) in results.iter().enumerate() {
            let Err(error) = result else { continue };
            if culprits.contains(&Rank(rank)) {
                // It has an error of its own, or has died.
                continue;
            }
            let Some(error) = comm_error(error) else {
                return Err(format!("rank {rank}: {error:?}"));
            };
            if report.first_error.as_ref() != Some(error) {
                return Err(format!("rank {rank}: {error}; first was {:?}", report.first_error));
            }
            if !error.culprit().is_some_and(|culprit| culprits.contains(&culprit)) {
                return Err(format!(
                    "rank {rank} blames the wrong one, {culprits:?} it was: {error}"
                ));
            }
        }
        let bound = deadline * 4 + Duration::from_secs(10);
        if report.virtual_time > bound {
            return Err(format!("took {:?} of virtual time", report.virtual_time));
        }
        Ok(())
    }
}

/// The transport's error in a chain of causes.
fn comm_error(error: &headlong::Error) -> Option<&CommError> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

fn train_steps(group: &RankGroup, at: impl Fn(u64) -> Batch) -> headlong::Result<Trained> {
    group.prime(&at(0))?;
    let mut losses = Vec::new();
    for number in 1..=STEPS {
        let next = (number < STEPS).then(|| at(number));
        losses.push(
            group.step(StepRates { number, dense: 0.05, sparse: 0.1 }, next.as_ref())?.to_bits(),
        );
    }
    let mut predictions = Vec::new();
    group.predict(&at(STEPS), &mut |logits, _| {
        predictions.extend(logits.iter().map(|logit| logit.to_bits()))
    })?;
    let failed = |error| headlong::Error::Communication {
        context: "the digest".to_owned(),
        source: Box::new(error),
    };
    let digest = weights_digest(group).map_err(failed)?;
    Ok((losses, predictions, digest))
}

impl Work {
    fn config(&self, ranks: usize) -> Config {
        let mut config = Config::default();
        config.model.dim = DIM;
        config.model.bottom = vec![DIM];
        config.model.top = vec![5, 1];
        config.data.num_dense = DENSE;
        config.data.num_sparse = ROWS.len();
        config.tables.max_ids_per_sample = 3;
        config.train.batch_size = self.batch_size;
        config.train.sum_blocks = Some(self.sum_blocks);
        config.eval.batch_size = self.batch_size;
        config.run.ranks = ranks;
        let dense = if self.optimizer == "rowwise_adagrad" { "adagrad" } else { self.optimizer };
        config.optimizer.set_both(dense).expect("a known optimiser");
        self.optimizer.clone_into(&mut config.optimizer.sparse.name);
        config.optimizer.resolve().expect("its settings are the defaults");
        config
    }

    /// The result of one rank, and of the local transport, which must agree. Made once for each
    /// kind of work.
    fn alone(&self) -> Trained {
        static KNOWN: Mutex<Option<HashMap<Work, Trained>>> = Mutex::new(None);
        if let Some(known) = KNOWN.lock().expect("no panic").get_or_insert_default().get(self) {
            return known.clone();
        }
        let alone = self.train_locally(1);
        assert_eq!(
            alone,
            self.train_locally(4),
            "the local transport gives the bits of one rank: {self:?}"
        );
        KNOWN.lock().expect("no panic").get_or_insert_default().insert(*self, alone.clone());
        alone
    }

    fn train_locally(&self, ranks: usize) -> Trained {
        let config = self.config(ranks);
        let registry = Registry::default();
        let group = RankGroup::build(&config, &ROWS, RankGroupOptions::new(ranks, &registry))
            .expect("it can be built");
        train_steps(&group, |number| self.batch(number)).expect("nothing fails")
    }

    /// Batch number `number`, the same on every rank: bags of none to three ids, few of them
    /// frequent; one is so short that some ranks have no sample of it, and one gives the last rank
    /// more samples than a whole one.
    fn batch(&self, number: u64) -> Batch {
        let mut random = Random::new(number);
        let samples = [self.batch_size, 3, 10, self.batch_size][number as usize % 4];
        let sparse = ROWS.iter().map(|&rows| {
            let mut bags = Jagged { values: Vec::new(), offsets: vec![0].into() };
            for _ in 0..samples {
                for _ in 0..[1, 1, 0, 3][random.below(4) as usize] {
                    let among = if random.chance(50) { rows.min(3) } else { rows };
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
}

/// One table replicated, one with one owner, the others split.
fn mixed(specs: &[TableSpec], ranks: usize) -> Partition {
    let last = Owner(ranks - 1);
    let placements = vec![
        TablePlacement::DataParallel,
        TablePlacement::RowWise {
            frequent: vec![2, 0, 9],
            placed: vec![(1, last), (39, Owner(0))],
        },
        TablePlacement::TableWise(last),
        TablePlacement::RowWise {
            frequent: (0..60).step_by(7).collect(),
            placed: vec![(1, Owner(0))],
        },
    ];
    Partition::new(specs, ranks, placements).expect("the placements are valid")
}
