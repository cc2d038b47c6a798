//! Jobs for the simulated network, the judge of how they end, and how one is played again.
//!
//! A case is three words: which job, which seed, with a fault or without. Everything else follows
//! from the seed, so the example `sim_replay` plays any case that a test has printed.

pub mod collectives;
pub mod fault;
pub mod messages;
pub mod playing;

use std::sync::Arc;
use std::time::Duration;

use fault::Faulty;
use headlong_comm::testing::sim::{FaultPlan, Random, Report, SimOptions, World};
use headlong_comm::transport::Transport;
use headlong_comm::{CommError, Rank, Topology};
pub use playing::Wrong;

/// How a rank may end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The transport says so.
    Comm(CommError),
    /// What came is not what was sent.
    Wrong(String),
}

impl From<CommError> for Failure {
    fn from(error: CommError) -> Self {
        Self::Comm(error)
    }
}

/// A rank that fails for a reason of its own, by the plan of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnFailure {
    pub rank: usize,
    /// Before which operation of the job.
    pub operation: u64,
}

/// What the ranks of a case do.
pub struct Job {
    pub name: &'static str,
    /// About how many exchanges a rank does.
    pub exchanges: u64,
    pub body: fn(&Case, Arc<dyn Transport>) -> Result<(), Failure>,
}

/// All jobs.
#[allow(dead_code, reason = "used by the example alone")]
pub const JOBS: &[Job] = &[messages::JOB, collectives::JOB];

/// One run that can be repeated.
pub struct Case {
    pub job: &'static Job,
    pub seed: u64,
    pub faulty: bool,
    pub wrong: Option<Wrong>,
    pub topology: Topology,
    pub own_failure: Option<OwnFailure>,
}

impl Case {
    /// The case of a seed.
    pub fn new(job: &'static Job, seed: u64, faulty: bool) -> Self {
        let mut random = Random::new(seed ^ 0x7090);
        let shapes: [&[usize]; 8] =
            [&[2], &[1, 1], &[3], &[2, 2], &[4], &[1, 3, 1], &[2, 2, 2, 2], &[3, 1, 4]];
        let topology =
            Topology::from_node_sizes(shapes[random.below(shapes.len() as u64) as usize]);
        let own = faulty && random.chance(15);
        let rank = random.below(topology.num_ranks() as u64) as usize;
        let operation = random.below(8);
        let own_failure = own.then_some(OwnFailure { rank, operation });
        Self { job, seed, faulty, wrong: None, topology, own_failure }
    }

    /// The same case with a fault.
    pub fn with(mut self, wrong: Wrong) -> Self {
        self.wrong = Some(wrong);
        self
    }

    /// What one rank does.
    pub fn body(&self, end: Arc<dyn Transport>) -> Result<(), Failure> {
        match self.wrong {
            Some(Wrong::Caller(fault)) => (self.job.body)(self, Arc::new(Faulty::new(end, fault))),
            _ => (self.job.body)(self, end),
        }
    }

    fn options(&self) -> SimOptions {
        let mut options = SimOptions::new(self.seed);
        if self.faulty && self.own_failure.is_none() {
            let ranks = self.topology.num_ranks();
            options.faults =
                FaultPlan::draw(self.seed, ranks, self.job.exchanges, options.deadline);
        }
        if let Some(Wrong::Transport(mutation)) = self.wrong {
            options.mutation = Some(mutation);
        }
        options
    }

    /// Runs the case.
    ///
    /// # Errors
    /// What is wrong with how it ended.
    pub fn run(&self) -> Result<Report, String> {
        let options = self.options();
        let deadline = options.deadline;
        let (results, report) = World::run(&self.topology, options, |end| self.body(end));
        self.judge(&results, &report, deadline)?;
        Ok(report)
    }

    /// Runs the case and prints what happened.
    ///
    /// # Errors
    /// What is wrong with how it ended.
    #[allow(dead_code, reason = "used by the example alone")]
    pub fn play(&self) -> Result<Report, String> {
        let options = SimOptions { keep_trace: true, ..self.options() };
        println!(
            "topology {:?}, faults {:?}, own failure {:?}",
            self.topology, options.faults, self.own_failure
        );
        let (world, ends) = World::new(&self.topology, &options);
        let results: Vec<_> = std::thread::scope(|scope| {
            let start = |end| scope.spawn(move || self.body(end));
            let threads: Vec<_> = ends.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank has panicked")).collect()
        });
        world.trace().iter().for_each(|line| println!("{line}"));
        let report = world.report();
        results.iter().enumerate().for_each(|(rank, result)| println!("rank {rank}: {result:?}"));
        println!("{report:#?}");
        self.judge(&results, &report, options.deadline)?;
        Ok(report)
    }

    /// The command that plays this case again.
    pub fn command(&self) -> String {
        let faulty = if self.faulty { " --faulty" } else { "" };
        let mutation =
            self.wrong.map_or(String::new(), |wrong| format!(" --fault {}", wrong.name()));
        let (job, seed) = (self.job.name, self.seed);
        format!(
            "cargo run --release -p headlong-comm --example sim_replay -- --job {job} --seed \
             {seed}{faulty}{mutation}"
        )
    }

    /// What each rank may end with: the right result, or the job's first error, which names the
    /// true culprit.
    fn judge(
        &self,
        results: &[Result<(), Failure>],
        report: &Report,
        deadline: Duration,
    ) -> Result<(), String> {
        if let Some(deadlock) = &report.deadlock {
            return Err(format!("deadlock: {deadlock}"));
        }
        let wrong = results.iter().enumerate().find_map(|(rank, result)| match result {
            Err(Failure::Wrong(what)) => Some(format!("rank {rank}: {what}")),
            _ => None,
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        let planned = report.faults.iter().filter_map(|fault| fault.culprit(deadline));
        let culprits: Vec<Rank> =
            planned.chain(self.own_failure.map(|own| Rank(own.rank))).collect();
        for (rank, result) in results.iter().enumerate() {
            let Err(Failure::Comm(error)) = result else { continue };
            let culprit =
                error.culprit().ok_or_else(|| format!("rank {rank} names no one: {error}"))?;
            if !culprits.contains(&culprit) {
                return Err(format!(
                    "rank {rank} blames the wrong one, {culprits:?} it was: {error}"
                ));
            }
            // Who dies knows nothing of what the others make of it.
            let same = report.first_error.as_ref() == Some(error);
            if !same && culprit != Rank(rank) {
                return Err(format!("rank {rank}: {error}; first was {:?}", report.first_error));
            }
        }
        let bound = deadline * 4 + Duration::from_secs(10);
        if report.virtual_time > bound {
            return Err(format!("took {:?} of virtual time", report.virtual_time));
        }
        Ok(())
    }
}

/// Runs the cases of many seeds on both cores.
///
/// # Panics
/// When one ends wrongly, with the command that plays it again.
#[allow(dead_code, reason = "not used by the example")]
pub fn run_all(
    job: &'static Job,
    seeds: std::ops::Range<u64>,
    faulty: fn(u64) -> bool,
) -> Vec<Report> {
    playing::run_all(seeds, |seed| {
        let case = Case::new(job, seed, faulty(seed));
        case.run().map_err(|wrong| format!("{wrong}\nplay it again: {}", case.command()))
    })
}

/// Some seed shows that a fault has been made.
///
/// # Panics
/// When none does.
#[allow(dead_code, reason = "not used by the example")]
pub fn assert_found(job: &'static Job, wrong: Wrong, faulty: bool, seeds: u64) {
    let found = (0..seeds).find_map(|seed| {
        let found = Case::new(job, seed, faulty).with(wrong).run().err()?;
        Some((seed, found))
    });
    let (seed, found) =
        found.unwrap_or_else(|| panic!("{wrong:?} is not noticed within {seeds} seeds"));
    println!("{wrong:?}: seed {seed}: {:.200}", found);
}
