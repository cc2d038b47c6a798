//! Plays the history of a seed again and prints its events.
//!
//! `cargo run --release -p headlong-comm-simulated --example play_history -- --seed 17`

use headlong_comm_simulated::histories::Case;
use headlong_comm_simulated::mistakes::MISTAKES;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (seed, name) = match words[..] {
        ["--from", first, "--to", last] => return play_many(first, last),
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

/// Plays many, and says of each that is wrong what is.
fn play_many(first: &str, last: &str) -> ExitCode {
    let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>()) else {
        return usage();
    };
    let (begin, mut num_wrong) = (Instant::now(), 0);
    for seed in first..last {
        if let Err(wrong) = Case::new(seed).play() {
            num_wrong += 1;
            println!("{seed}: {}", wrong.lines().last().unwrap_or_default());
        }
    }
    println!("{num_wrong} of {} are wrong, {:.1?}", last - first, begin.elapsed());
    ExitCode::from(u8::from(num_wrong > 0))
}

fn usage() -> ExitCode {
    eprintln!("play_history --seed NUMBER [--mistake NAME] | --from NUMBER --to NUMBER");
    ExitCode::from(2)
}
