//! Benchmarks of every op and of the whole iteration, each next to what the machine can do at most.
//!
//! ```text
//! cargo run --release -p headlong-benches -- [--only linear] [--threads 1] [--seconds 2]
//!     [--json [FILE]] [--smoke] [--isa avx2] [--against portable | --count]
//! ```
//!
//! `docs/benchmarking.md` says how to read the numbers.

mod floors;
mod harness;
mod hybrid_bytes;
mod machine;
mod ops;

use clap::Parser;
use harness::{Floor, Harness, Mode, Settings, floor_name};
use headlong::config::Instructions;
use headlong::system::machine::instruction_limit;
use std::path::{Path, PathBuf};

/// Benchmarks of every op and of the whole iteration.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run everything once on tiny data: it works, the numbers mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Run the benchmarks whose name contains this: parse, lookup, update, cuda_embedding,
    /// interaction, linear, iteration, hybrid_bytes.
    #[arg(long, default_value = "")]
    only: String,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Seconds a benchmark is measured for.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Append results to this file; without a value to `benches/results/<machine>.jsonl`.
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    json: Option<PathBuf>,
    /// Plain Criteo text file for `parse`, instead of a generated one.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Use at most this instruction set.
    #[arg(long)]
    isa: Option<Instructions>,
    /// Measure in turn with this instruction set, and report how many times as fast the best one
    /// is.
    #[arg(long, conflicts_with_all = ["smoke", "isa"])]
    against: Option<Instructions>,
    /// Run each benchmark once on tiny data, for a tool that counts instructions; see
    /// `cargo xtask bench-diff`.
    #[arg(long, conflicts_with_all = ["against", "json"])]
    count: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let machine = machine::Machine::here();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let json = arguments.json.map(|path| match path.as_os_str().is_empty() {
        true => kept.join(format!("{}.jsonl", machine.file_name())),
        false => path,
    });
    if let Some(other) = arguments.against {
        // Asked here once, that the comparison is with what was named.
        instruction_limit(other)?;
    }
    instruction_limit(arguments.isa.unwrap_or(Instructions::Auto))?.set();
    let mode = match arguments.against {
        Some(other) => Mode::Against(other),
        None if arguments.count => Mode::Count,
        None => Mode::Measure,
    };
    let mut harness = Harness::new(Settings {
        smoke: arguments.smoke || arguments.count,
        only: arguments.only,
        threads: arguments.threads,
        seconds: arguments.seconds,
        json,
        file: arguments.file,
        mode,
    });
    println!("{}, {} thread(s)", machine.name, arguments.threads);
    if mode == Mode::Measure {
        print_floors(&harness);
    }
    ops::run_all(&mut harness)?;
    hybrid_bytes::run(&mut harness)?;
    harness.keep()
}

fn print_floors(harness: &Harness) {
    for (floor, unit) in
        [(Floor::Arithmetic, "GFLOP/s"), (Floor::Read, "GB/s"), (Floor::Gather, "GB/s")]
    {
        let value = harness.floor(floor).unwrap_or(f64::NAN);
        println!("floor: {:<37} {value:>12.2} {unit}", floor_name(floor));
    }
}
