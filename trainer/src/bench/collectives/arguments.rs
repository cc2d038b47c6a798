//! The flags of `headlong bench all_reduce` and its siblings.

use super::measure::Effort;
use crate::cli::JsonOutput;
use crate::error::{Error, Result};
use clap::{Args, ValueEnum};
use headlong_comm::{AllToAll, CommOptions, Topology};
use std::time::Duration;

/// Arguments of the collectives' benches.
#[derive(Debug, Clone, Args)]
pub struct CollectiveArguments {
    /// Transports, one after the other: local (threads), tcp (processes, which this command starts)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "local")]
    pub backend: Vec<Backend>,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub ranks: usize,
    /// Ranks of a node, as far as plans and counters go; 0: all on one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ranks_per_node: usize,
    /// Smallest buffer of a rank: bytes, with K, M or G for powers of 1024
    #[arg(short = 'b', long = "min-bytes", value_name = "BYTES", default_value = "1K")]
    pub min_bytes: Bytes,
    /// Largest buffer of a rank
    #[arg(short = 'e', long = "max-bytes", value_name = "BYTES", default_value = "64M")]
    pub max_bytes: Bytes,
    /// From one size to the next
    #[arg(short = 'f', long = "step-factor", value_name = "X", default_value_t = 4)]
    pub factor: usize,
    /// Timed calls of each size; as many as fit into --seconds-per-size by default
    #[arg(short = 'n', long, value_name = "N")]
    pub iterations: Option<usize>,
    /// Calls before the clock starts
    #[arg(short = 'w', long, value_name = "N", default_value_t = 3)]
    pub warmup: usize,
    /// Time for each size
    #[arg(long, value_name = "S", default_value_t = 0.6)]
    pub seconds_per_size: f64,
    /// Call once on known numbers first and count the wrong ones; exit code 1 if there are any
    #[arg(long)]
    pub check: bool,
    /// Way of the parts of alltoall and alltoallv
    #[arg(long, value_name = "flat|hierarchical|auto", default_value = "auto")]
    pub exchange: Way,
    /// Tie each rank to a core of its own where there are enough: two ranks that share a core of an idle machine wait for each
    /// other
    #[arg(long, value_name = "auto|off", default_value = "auto")]
    pub bind: Bind,
    /// Largest all_reduce that takes one step; as measured by default
    #[arg(long, value_name = "BYTES", hide = true)]
    pub one_step_bytes: Option<Bytes>,
    /// Bytes of a larger all_reduce that are summed at a time
    #[arg(long, value_name = "BYTES", hide = true)]
    pub chunk_bytes: Option<Bytes>,
    /// A rank that does not come for this long ends the bench
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub deadline_s: f64,
    /// One rank of a job that this command has started
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

/// A transport that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Ranks are threads of this process.
    Local,
    /// Ranks are processes joined over TCP.
    Tcp,
}

impl Backend {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Local => "local",
            Backend::Tcp => "tcp",
        }
    }
}

/// Way of the parts of an all-to-all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Straight.
    Flat,
    /// Inside the node, then across.
    Hierarchical,
    /// Hierarchical where that can help.
    Auto,
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
    /// Ties the calling thread to the core of its rank. Where the system refuses, the thread stays as it is.
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
        let number: usize = digits.parse().map_err(|_| format!("expected bytes, found `{text}`"))?;
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| format!("`{text}` is too large"))
    }
}

impl CollectiveArguments {
    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let refuse = |reason: &str| Err(Error::Usage(reason.to_owned()));
        match self {
            _ if self.ranks == 0 => refuse("--ranks is above 0"),
            _ if self.min_bytes.0 == 0 || self.max_bytes.0 < self.min_bytes.0 => {
                refuse("-b is above 0 and not above -e")
            }
            _ if self.factor < 2 => refuse("-f is at least 2"),
            _ if self.iterations == Some(0) => refuse("-n is above 0"),
            _ if !positive(self.seconds_per_size) || !positive(self.deadline_s) => {
                refuse("--seconds-per-size and --deadline-s are above 0")
            }
            _ => Ok(()),
        }
    }

    /// The sizes, rising: whole elements.
    pub fn sizes(&self) -> Vec<usize> {
        let next = |&bytes: &usize| bytes.checked_mul(self.factor).filter(|&next| next <= self.max_bytes.0);
        std::iter::successors(Some(self.min_bytes.0), next).map(|bytes| bytes.next_multiple_of(4)).collect()
    }

    /// Ranks and nodes.
    pub fn topology(&self) -> Topology {
        Topology::with_ranks_per_node(self.ranks, self.ranks_per_node)
    }

    /// How long and how often.
    pub fn effort(&self) -> Effort {
        Effort {
            warm_up: self.warmup,
            iterations: self.iterations,
            seconds: self.seconds_per_size,
            check: self.check,
        }
    }

    /// How the communicators work.
    pub fn options(&self) -> CommOptions {
        let defaults = CommOptions::default();
        CommOptions {
            all_to_all: match self.exchange {
                Way::Flat => AllToAll::Flat,
                Way::Hierarchical => AllToAll::Hierarchical,
                Way::Auto => AllToAll::Auto,
            },
            one_step_bytes: self.one_step_bytes.map(|bytes| bytes.0),
            chunk_bytes: self.chunk_bytes.map_or(defaults.chunk_bytes, |bytes| bytes.0),
            deadline: Duration::from_secs_f64(self.deadline_s),
            ..defaults
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_and_without_units() {
        for (text, bytes) in [("12", 12), ("1K", 1024), ("4m", 4 << 20), ("2GiB", 2 << 30), ("8kb", 8192)] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "K", "1.5M", "3T", "-1", "99999999999G"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }
}
