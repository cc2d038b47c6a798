//! Plays the history of a seed again and prints its events.
//!
//! `cargo run --release -p headlong-comm-simulated --example play_history -- --seed 17`

use headlong_comm_simulated::histories::Case;
use headlong_comm_simulated::mistakes::MISTAKES;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (seed, name) = match words[..] {
        ["--seed", seed] => (seed, None),
        ["--seed", seed, "--mistake", name] => (seed, Some(name)),
        _ => return usage(),
    };
    let Ok(seed) = seed.parse() else { return usage() };
    let mut case = Case::new(seed).with_lines();
    if let Some(name) = name {
        let Some(mistake) = MISTAKES.iter().find(|one| one.name == name) else { return usage() };
        case = case.with_mistake(mistake.name);
    }
    println!("{case:#?}");
    match case.play() {
        Ok(report) => {
            report.lines.iter().for_each(|line| println!("{line}"));
            println!("{:?}\nnothing is wrong: {} events", report.faults, report.events);
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("play_history --seed NUMBER [--mistake NAME]");
    ExitCode::from(2)
}
