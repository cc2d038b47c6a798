//! Trains a few steps on the simulated network and prints everything that happened: which rank
//! called when, which bytes were under way, what failed. A failing seed of the test `simulated`
//! prints the arguments to use here.
//!
//! `cargo run --release -p headlong --example simulated_run -- --seed 17 --faulty`

#[path = "../tests/simulation/mod.rs"]
mod simulation;

use simulation::{Case, Wrong};
use std::process::ExitCode;

const USAGE: &str = "simulated_run [--seed NUMBER] [--faulty] [--fault NAME]";

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
    let (mut seed, mut faulty, mut fault) = (0, false, None);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
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
    let case = Case::new(seed, faulty);
    Ok(match fault {
        Some(fault) => case.with(fault),
        None => case,
    })
}
