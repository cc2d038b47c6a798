//! Trains a few steps on the simulated network and prints everything that happened: which rank
//! called when, which bytes were under way, what failed. A failing seed of the test `simulated`
//! prints the arguments to use here.
//!
//! `cargo run --release -p headlong --example simulated_run -- --seed 17 --faulty`

#[path = "../tests/simulation/mod.rs"]
mod simulation;

use simulation::{Case, playing};
use std::process::ExitCode;

fn main() -> ExitCode {
    playing::main("simulated_run [--seed NUMBER] [--faulty] [--fault NAME]", |arguments| {
        let case = Case::new(arguments.seed, arguments.faulty);
        Ok(arguments.fault.map_or(case.clone(), |fault| case.with(fault)).play())
    })
}
