//! Benchmarks of every op and of the whole iteration, each beside what the machine can do at most.
//!
//! ```text
//! cargo run --release -p headlong-benches -- [--only linear] [--threads 1] [--seconds 2] [--json [FILE]] [--smoke]
//! ```
//!
//! `docs/benchmarking.md` says how to read the numbers.

mod floors;
mod harness;
mod hybrid_bytes;
mod machine;
mod ops;

use clap::Parser;
use harness::{Floor, Harness, Settings, floor_name};
use std::path::{Path, PathBuf};

/// Benchmarks of every op and of the whole iteration.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run everything once on tiny data: it works, the numbers mean nothing.
    #[arg(long)]
    smoke: bool,
    /// Run the benchmarks whose name contains this: parse, lookup, update, cuda_embedding, interaction, linear, iteration, hybrid_bytes.
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
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let machine = machine::Machine::here();
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let json = arguments.json.map(|path| match path.as_os_str().is_empty() {
        true => kept.join(format!("{}.jsonl", machine.file_name())),
        false => path,
    });
    let mut harness = Harness::new(Settings {
        smoke: arguments.smoke,
        only: arguments.only,
        threads: arguments.threads,
        seconds: arguments.seconds,
        json,
        file: arguments.file,
    });
    println!("{}, {} thread(s)", machine.name, arguments.threads);
    for (floor, unit) in [(Floor::Arithmetic, "GFLOP/s"), (Floor::Read, "GB/s"), (Floor::Gather, "GB/s")] {
        let value = harness.floor(floor).unwrap_or(f64::NAN);
        println!("floor: {:<37} {value:>12.2} {unit}", floor_name(floor));
    }
    ops::run_all(&mut harness)?;
    hybrid_bytes::run(&mut harness)?;
    harness.keep()
}
