//! The flags of `headlong bench all_reduce` and its siblings: those of nccl-tests where they exist.

use super::backend::{Backend, RankIs};
use super::dtype::Dtype;
use super::measure::{Check, Effort};
use super::operation::{Operation, Place};
use super::statistics::{Average, PERCENTILES, samples_for};
use super::{device, nics};
use crate::commands::choice;
use crate::config::ranges::time;
use crate::config::seconds;
use crate::error::{Error, Result};
use crate::plan::Count;
use crate::report::output::JsonOutput;
use crate::system::machine::Machine;
use clap::{Args, Parser, ValueEnum};
use headlong_comm::{AllReduce, AllToAll, CommOptions, Compress, Topology};
use headlong_verbs::VerbsSettings;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of the collectives' benches.
#[derive(Debug, Clone, Args)]
pub struct CollectiveArguments {
    /// What to compare, one after the other: local (threads), shm, tcp, verbs, ucx (processes,
    /// which this command starts), nccl, peer (CUDA devices); what is not there is skipped with
    /// the reason
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "local")]
    pub backend: Vec<Backend>,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub ranks: usize,
    /// Ranks of a node, as far as plans and counters go; 0: all on one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ranks_per_node: usize,
    /// Smallest buffer of a rank: bytes, with K, M or G for powers of 1024
    #[arg(
        short = 'b',
        long = "min-bytes",
        alias = "minbytes",
        value_name = "BYTES",
        default_value = "1K"
    )]
    pub min_bytes: Bytes,
    /// Largest buffer of a rank
    #[arg(
        short = 'e',
        long = "max-bytes",
        alias = "maxbytes",
        value_name = "BYTES",
        default_value = "64M"
    )]
    pub max_bytes: Bytes,
    /// From one size to the next: so many times as large
    #[arg(
        short = 'f',
        long = "step-factor",
        alias = "stepfactor",
        value_name = "X",
        default_value_t = 4
    )]
    pub factor: usize,
    /// From one size to the next: so many bytes more
    #[arg(
        short = 'i',
        long = "step-bytes",
        alias = "stepbytes",
        value_name = "BYTES",
        conflicts_with = "factor"
    )]
    pub step: Option<Bytes>,
    /// Samples of each size and place; as many as fit into --seconds-per-size by default
    #[arg(short = 'n', long, alias = "iters", value_name = "N")]
    pub iterations: Option<usize>,
    /// Calls before the clock starts
    #[arg(short = 'w', long, alias = "warmup_iters", value_name = "N", default_value_t = 3)]
    pub warmup: usize,
    /// Calls of one sample, which is their mean
    #[arg(
        short = 'm',
        long = "agg-iters",
        alias = "agg_iters",
        value_name = "N",
        default_value_t = 1
    )]
    pub aggregate: usize,
    /// Everything this often, the backends in rotated order; samples are pooled
    #[arg(short = 'N', long, alias = "run_cycles", value_name = "N", default_value_t = 1)]
    pub rounds: usize,
    /// Element types: uint8, int32, uint32, int64, uint64, half, float, bfloat16, or all
    #[arg(
        short = 'd',
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "float",
        hide_possible_values = true
    )]
    pub datatype: Vec<Dtype>,
    /// How numbers are added up: sum is the only way
    #[arg(short = 'o', long = "redop", alias = "op", value_name = "sum", default_value = "sum")]
    pub reduction: Reduction,
    /// Where a broadcast begins
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    pub root: usize,
    /// Look at the data: after every timed call (every), in one more call after them (last or 1),
    /// never (off or 0). Exit code 1 if anything is wrong
    #[arg(
        short = 'c',
        long,
        value_name = "every|last|off",
        num_args = 0..=1,
        default_value = "last",
        default_missing_value = "last",
        hide_possible_values = true
    )]
    pub check: Check,
    /// The column `time` over ranks: 0 rank 0's mean, 1 the mean, 2 the smallest, 3 the largest of
    /// the ranks' means
    #[arg(
        short = 'a',
        long,
        value_name = "0|1|2|3",
        default_value = "1",
        hide_possible_values = true
    )]
    pub average: Average,
    /// 1: a barrier after each sample, outside of the clock, so that no rank runs ahead
    #[arg(
        short = 'z',
        long,
        value_name = "0|1",
        default_value_t = 0,
        value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub blocking: u8,
    /// On CUDA devices: capture the calls of a sample (-m) in a graph and launch it N times; 0: no
    /// graph
    #[arg(short = 'G', long = "cudagraph", value_name = "N", default_value_t = 0)]
    pub graph: usize,
    /// Each rank begins each sample up to this much later than it could, at random
    #[arg(long, value_name = "US", default_value_t = 0.0, value_parser = time)]
    pub skew: f64,
    /// Which results: in buffers of their own (out), in the buffer that was sent (in), or first
    /// one, then the other
    #[arg(long, value_name = "both|out|in", default_value = "both", hide_possible_values = true)]
    pub place: Places,
    /// Time for each size and place
    #[arg(long, value_name = "S", default_value_t = 0.6, value_parser = time)]
    pub seconds_per_size: f64,
    /// Go on, up to --most-seconds-per-size, until this percentile can be told: 99 takes 1,000
    /// samples, 99.9 takes 10,000
    #[arg(long, value_name = "P", default_value_t = 90.0)]
    pub percentile: f64,
    /// No size and place takes longer than this, except for its first 20 samples
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = time)]
    pub most_seconds_per_size: f64,
    /// Way of the parts of alltoall and alltoallv
    #[arg(
        long,
        value_name = "flat|hierarchical|auto",
        default_value = "auto",
        value_parser = choice::all_to_all(),
        hide_possible_values = true
    )]
    pub exchange: AllToAll,
    /// Tie each rank to a core of its own where there are enough: two ranks that share a core of an
    /// idle machine wait for each other
    #[arg(long, value_name = "auto|off", default_value = "auto", hide_possible_values = true)]
    pub bind: Bind,
    /// Largest all_reduce that takes one step; as measured by default
    #[arg(long, value_name = "BYTES", hide = true)]
    pub one_step_bytes: Option<Bytes>,
    /// Bytes of a larger all_reduce that are summed at a time
    #[arg(long, value_name = "BYTES", hide = true)]
    pub chunk_bytes: Option<Bytes>,
    /// A rank that does not come for this long ends the bench with exit code 3
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub deadline_s: f64,
    /// Processes on several machines may do without a secret: anyone who can reach rank 0 can join
    #[arg(long)]
    pub insecure: bool,
    /// Encrypt messages over TCP, as `comm.encrypt_data` does
    #[arg(long)]
    pub encrypt_data: bool,
    /// The whole command ends after this long with exit code 124; 0: never
    #[arg(short = 'T', long, value_name = "S", default_value_t = 0.0, value_parser = time)]
    pub timeout: f64,
    /// Print nccl-tests' columns and nothing else, for scripts that read them
    #[arg(long, conflicts_with = "json")]
    pub compat: bool,
    /// Draw latency and bandwidth by size
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// A JSON document of an earlier run; exit code 4 where a median has become slower than
    /// --max-regress allows
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// How much slower than the baseline a median may be
    #[arg(long, value_name = "X%", default_value = "5%", requires = "baseline")]
    pub max_regress: Percent,
    /// How NICs are used, as for `train`: comm.verbs.timeout=19
    #[arg(long = "set", value_name = "comm.verbs.KEY=VALUE")]
    pub set: Vec<String>,
    /// The same where a configuration says it
    #[arg(skip)]
    pub verbs: Option<VerbsSettings>,
    /// Nodes count for nothing in an all_reduce
    #[arg(skip)]
    pub flat_sums: bool,
    /// f32 travels as bf16 in an alltoallv
    #[arg(skip)]
    pub compress: bool,
    /// One rank of a job that this command has started
    #[arg(long, hide = true)]
    pub worker: Option<Backend>,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// How numbers are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reduction {
    /// The sum.
    Sum,
}

/// Which results are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Places {
    /// Both, the library's own form first.
    Both,
    /// Out of place.
    Out,
    /// In place.
    In,
}

impl Places {
    pub fn has(self, place: Place) -> bool {
        matches!(
            (self, place),
            (Places::Both, _) | (Places::Out, Place::Out) | (Places::In, Place::In)
        )
    }
}

/// Whether ranks are tied to cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Bind {
    /// Where there is a core for each.
    Auto,
    /// The system places them.
    Off,
}

impl Bind {
    /// Ties the calling thread to the core of its rank. Where the system refuses, the thread stays
    /// as it is.
    pub fn tie(self, rank: usize, num_ranks: usize) {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
        if self == Bind::Off || (allowed.count() as usize) < num_ranks {
            return;
        }
        let mut own = rustix::thread::CpuSet::new();
        let cores = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
        cores.skip(rank).take(1).for_each(|core| own.set(core));
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
}

/// A number of bytes on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let shift = match unit.trim_end_matches("IB").trim_end_matches('B') {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return Err(format!("expected bytes, with K, M or G, found `{text}`")),
        };
        let number: usize =
            digits.parse().map_err(|_| format!("expected bytes, found `{text}`"))?;
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| format!("`{text}` is too large"))
    }
}

/// A share on the command line: `5%` or `5`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(pub f64);

impl std::str::FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: Result<f64, _> = text.trim_end_matches('%').trim().parse();
        let number = number.ok().filter(|number| number.is_finite() && *number >= 0.0);
        number.map(Percent).ok_or_else(|| format!("expected a share like 5%, found `{text}`"))
    }
}

/// Ranks of a bench, at most.
const MOST_RANKS: usize = 1024;
/// Sizes of a bench, at most.
const MOST_SIZES: usize = 10_000;
/// Samples of one size, at most.
const MOST_SAMPLES: usize = 1_000_000_000;
/// Calls that are no samples of their own: before the first, and in each.
const MOST_CALLS: usize = 1_000_000;
/// Times of a sample that are kept: a rank's begin and end, as they are and from all ranks.
const TIMES_PER_RANK: u64 = 2;
/// The same, of what all ranks have of a sample in the end.
const TIMES_OF_ALL: u64 = 4;

impl CollectiveArguments {
    /// Whether `backend` can be measured here, as far as can be known before anything is started.
    pub fn can_measure(&self, backend: Backend, operations: &[Operation]) -> Result<(), String> {
        match backend.rank_is() {
            RankIs::Device(_) => {
                let pairs = operations.iter().flat_map(|&operation| {
                    self.dtypes().into_iter().map(move |dtype| (operation, dtype))
                });
                pairs
                    .into_iter()
                    .try_for_each(|(operation, dtype)| device::supports(operation, dtype))?;
                device::has_devices(self.ranks)
            }
            _ if self.graph > 0 => Err("-G captures work of CUDA devices".to_owned()),
            _ => Ok(()),
        }
    }

    /// What a command line without any option gives.
    pub fn defaults() -> Self {
        #[derive(Parser)]
        struct Defaults {
            #[command(flatten)]
            arguments: CollectiveArguments,
        }
        Defaults::parse_from(["bench"]).arguments
    }

    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let refuse = |reason: &str| Err(Error::Usage(reason.to_owned()));
        let counts = [("--ranks", self.ranks), ("-m", self.aggregate), ("-N", self.rounds)];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return refuse(&format!("{name} is above 0"));
        }
        let most = [
            ("-n", self.iterations.unwrap_or(0), MOST_SAMPLES),
            ("-w", self.warmup, MOST_CALLS),
            ("-m", self.aggregate, MOST_CALLS),
            ("-N", self.rounds, MOST_CALLS),
            ("-G", self.graph, MOST_CALLS),
        ];
        if let Some((name, count, most)) = most.iter().find(|(_, count, most)| count > most) {
            return refuse(&format!("{name} {count}: expected {most} at most"));
        }
        match self {
            _ if self.min_bytes.0 == 0 || self.max_bytes.0 < self.min_bytes.0 => {
                refuse("-b is above 0 and not above -e")
            }
            _ if self.factor < 2 => refuse("-f is at least 2"),
            _ if self.step == Some(Bytes(0)) => refuse("-i is above 0"),
            _ if self.iterations == Some(0) => refuse("-n is above 0"),
            _ if self.root >= self.ranks => {
                refuse(&format!("-r {}: there are {} ranks", self.root, self.ranks))
            }
            _ if !positive(self.seconds_per_size) => refuse("--seconds-per-size is above 0"),
            _ if !(0.0..100.0).contains(&self.percentile) => refuse("--percentile is below 100"),
            _ if self.graph > 0 && self.check == Check::Every => {
                refuse("-c every looks at single calls, -G launches graphs of several: use -c last")
            }
            _ if self.ranks > MOST_RANKS => refuse(&format!("--ranks is {MOST_RANKS} at most")),
            _ if self.step.is_some_and(|step| {
                (self.max_bytes.0 - self.min_bytes.0) / step.0 > MOST_SIZES
            }) =>
            {
                refuse(&format!("-i: from -b to -e there are {MOST_SIZES} sizes at most"))
            }
            _ => {
                seconds("--deadline-s", self.deadline_s)?;
                self.nics().map(drop)
            }
        }
    }

    /// Refuses buffers of `ranks_here` ranks that this machine has no memory for: what a rank
    /// sends, what it gets, and what it should have got; and the times of the samples asked for.
    /// `remedy` says what to lower.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`].
    pub fn check_memory(&self, ranks_here: usize, remedy: &str) -> Result<()> {
        let buffers = Count::from(self.max_bytes.0) * 3_u64;
        let times = TIMES_PER_RANK * (self.ranks as u64 + 1) + TIMES_OF_ALL;
        let samples = Count::from(self.effort().iterations.unwrap_or(0)) * times * 8_u64;
        let needed = (buffers + samples) * ranks_here;
        Ok(needed.must_fit(Machine::detect().usable_bytes(), || remedy.to_owned())?)
    }

    /// How NICs are used.
    ///
    /// # Errors
    /// A key or a value that cannot work.
    pub fn nics(&self) -> Result<VerbsSettings> {
        match &self.verbs {
            Some(settings) => Ok(settings.clone()),
            None => nics::settings(&self.set),
        }
    }

    /// The sizes, rising.
    pub fn sizes(&self) -> Vec<usize> {
        let next = |&bytes: &usize| match self.step {
            Some(step) => bytes.checked_add(step.0),
            None => bytes.checked_mul(self.factor),
        };
        let fits = |bytes: &usize| *bytes <= self.max_bytes.0;
        std::iter::successors(Some(self.min_bytes.0), |bytes| next(bytes).filter(fits)).collect()
    }

    /// The element types, each once.
    pub fn dtypes(&self) -> Vec<Dtype> {
        if self.datatype.contains(&Dtype::All) {
            Dtype::EACH.to_vec()
        } else {
            self.datatype.clone()
        }
    }

    /// Ranks and nodes.
    pub fn topology(&self) -> Topology {
        Topology::with_ranks_per_node(self.ranks, self.ranks_per_node)
    }

    /// How long and how often.
    pub fn effort(&self) -> Effort {
        let is_captured = self.graph > 0;
        Effort {
            warm_up: self.warmup,
            iterations: if is_captured { Some(self.graph) } else { self.iterations },
            aggregate: if is_captured { 1 } else { self.aggregate },
            captured: if is_captured { self.aggregate } else { 1 },
            seconds: self.seconds_per_size,
            needed: samples_for(self.percentile.max(PERCENTILES[0])),
            most_seconds: self.most_seconds_per_size,
            check: self.check,
            barrier: self.blocking == 1,
            skew_us: self.skew,
        }
    }

    /// How the communicators work.
    pub fn options(&self, backend: Backend) -> CommOptions {
        let defaults = CommOptions::default();
        CommOptions {
            all_to_all: self.exchange,
            one_step_bytes: self.one_step_bytes.map(|bytes| bytes.0),
            chunk_bytes: self.chunk_bytes.map_or(defaults.chunk_bytes, |bytes| bytes.0),
            deadline: Duration::try_from_secs_f64(self.deadline_s).unwrap_or(Duration::MAX),
            all_reduce: if self.flat_sums { AllReduce::Flat } else { AllReduce::Auto },
            compress: if self.compress { Compress::Bf16 } else { Compress::None },
            between_devices: match backend.rank_is() {
                RankIs::Device(way) => way,
                _ => defaults.between_devices,
            },
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that makes no buffers of `-e` bytes is not refused for them, nor a rank for those
    /// of other machines.
    #[test]
    fn memory_is_looked_at_where_buffers_are_made() {
        let with = |bytes| CollectiveArguments {
            ranks: MOST_RANKS,
            max_bytes: Bytes(bytes),
            ..CollectiveArguments::defaults()
        };
        with(1 << 60).check().unwrap();
        assert!(with(1 << 60).check_memory(1, "`-e`").unwrap_err().to_string().contains("`-e`"));
        with(1 << 20).check_memory(1, "").unwrap();
    }

    #[test]
    fn bytes_with_and_without_units() {
        for (text, bytes) in
            [("12", 12), ("1K", 1024), ("4m", 4 << 20), ("2GiB", 2 << 30), ("8kb", 8192)]
        {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!("7.5%".parse(), Ok(Percent(7.5)));
        assert!("-1%".parse::<Percent>().is_err() && "much".parse::<Percent>().is_err());
        for text in ["", "K", "1.5M", "3T", "-1", "99999999999G"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
