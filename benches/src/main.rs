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
use std::path::Path;

/// Benchmarks of every op and of the whole iteration.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
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
    let machine = machine::Machine::here();
    let mut settings = Settings { mode, ..arguments.settings };
    settings.smoke |= arguments.count;
    if settings.json.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        settings.json = Some(kept.join(format!("{}.jsonl", machine.file_name())));
    }
    let threads = settings.threads;
    let mut harness = Harness::new(settings);
    println!("{}, {threads} thread(s)", machine.name);
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
