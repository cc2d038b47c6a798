//! Plays one case of the tests under the simulated network again and prints its history.
//!
//! `cargo run --release -p headlong-comm --example sim_replay -- --job messages --seed 17 --faulty`

#[path = "mod.rs"]
mod sim_cases;

use std::process::ExitCode;

use sim_cases::{Case, JOBS, playing};

fn main() -> ExitCode {
    playing::main("sim_replay --job NAME --seed NUMBER [--faulty] [--fault NAME]", |arguments| {
        let job = match arguments.job {
            None => Some(&JOBS[0]),
            Some(ref name) => JOBS.iter().find(|job| job.name == name),
        };
        let job = job.ok_or_else(|| format!("no job `{}`", arguments.job.unwrap_or_default()))?;
        let case = Case::new(job, arguments.seed, arguments.faulty);
        Ok(Case { wrong: arguments.fault, ..case }.play())
    })
}
