//! Plays one case of the tests under the simulated network again and prints its history.
//!
//! `cargo run --release -p headlong-comm --example sim_replay -- --job messages --seed 17 --faulty`

#[path = "mod.rs"]
mod sim_cases;

use std::process::ExitCode;

use sim_cases::{Case, JOBS, Wrong};

const USAGE: &str = "sim_replay --job NAME --seed NUMBER [--faulty] [--fault NAME]";

fn main() -> ExitCode {
    let case = match parse(std::env::args().skip(1)) {
        Ok(case) => case,
        Err(reason) => {
            eprintln!("{reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match case.play() {
        Ok(_) => println!("nothing is wrong"),
        Err(wrong) => {
            println!("WRONG: {wrong}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Case, String> {
    let (mut job, mut seed, mut faulty, mut fault) = (&JOBS[0], 0, false, None);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--job" => {
                let name = value()?;
                job = JOBS
                    .iter()
                    .find(|job| job.name == name)
                    .ok_or_else(|| format!("no job `{name}`"))?;
            }
            "--seed" => seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?,
            "--faulty" => faulty = true,
            "--fault" => {
                let name = value()?;
                let found = Wrong::all().find(|wrong| wrong.name() == name);
                fault = Some(found.ok_or_else(|| format!("no fault `{name}`"))?);
            }
            other => return Err(format!("what is `{other}`?")),
        }
    }
    let case = Case::new(job, seed, faulty);
    Ok(match fault {
        Some(fault) => case.with(fault),
        None => case,
    })
}
