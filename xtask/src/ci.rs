//! `cargo xtask ci`: every check a change has to pass, one after another, all of them even where
//! one fails.

mod book;
mod clusters;
mod device_steps;
mod own_table;
mod pages;
mod python;
mod runner;
mod steps;

pub use device_steps::sanitized_tests;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::process;
use crate::require::Required;

pub enum Outcome {
    /// It ran and found nothing, with a remark for the closing table.
    Passed(String),
    /// It ran and found fault, or could not run.
    Failed(String),
    /// It could not run here, with the reason.
    Skipped(String),
}

impl Outcome {
    /// Passed or failed, without a remark.
    pub fn from_success(success: bool) -> Self {
        if success { Self::Passed(String::new()) } else { Self::Failed(String::new()) }
    }

    /// Both in one: a fault outweighs a skip, and a skip what passed.
    pub fn and(self, other: Self) -> Self {
        let joined = |one: &str, other: &str| format!("{one}; {other}");
        match (self, other) {
            (Self::Failed(one), Self::Failed(other)) => Self::Failed(joined(&one, &other)),
            (Self::Failed(fault), _) | (_, Self::Failed(fault)) => Self::Failed(fault),
            (Self::Skipped(one), Self::Skipped(other)) => Self::Skipped(joined(&one, &other)),
            (Self::Skipped(reason), _) | (_, Self::Skipped(reason)) => Self::Skipped(reason),
            (Self::Passed(one), Self::Passed(other)) => Self::Passed(joined(&one, &other)),
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Passed(_) => "passed",
            Self::Failed(_) => "FAILED",
            Self::Skipped(_) => "skipped",
        }
    }

    fn remark(&self) -> String {
        match self {
            Self::Passed(remark) | Self::Failed(remark) => remark.clone(),
            Self::Skipped(reason) => format!("because {reason}"),
        }
    }
}

/// What every step may look at.
pub struct Workshop {
    pub root: PathBuf,
    /// What `cargo metadata` says of the workspace's own packages.
    pub metadata: Metadata,
    pub required: Required,
}

impl Workshop {
    /// The folder for what the steps leave behind: logs, and whatever an example writes.
    pub fn scratch(&self) -> PathBuf {
        self.target().join("ci")
    }

    pub fn target(&self) -> PathBuf {
        self.metadata.target_directory.as_std_path().to_path_buf()
    }
}

/// One check: its name for `--only`, what it is, and how it runs.
pub struct Step {
    name: &'static str,
    what: &'static str,
    run: fn(&Workshop) -> Result<Outcome>,
}

impl Step {
    /// Whether it leaves a core of two idle for long: such steps run at once where one follows the
    /// other.
    fn has_one_core(&self) -> bool {
        ["own-table", "python", "sanitizers", "rxe", "clusters"].contains(&self.name)
    }
}

struct Report {
    name: &'static str,
    took: Duration,
    /// Of the programs that ended meanwhile, on all cores.
    cpu: Duration,
    outcome: Outcome,
}

/// Runs the steps named by `--only`, or all; `Ok(false)` where one failed.
pub fn run(root: &Path, options: &[&str]) -> Result<bool> {
    if options == ["--list"] {
        steps::STEPS.iter().for_each(|step| println!("{:<12} {}", step.name, step.what));
        return Ok(true);
    }
    let chosen = choose(options)?;
    let manifest = root.join("Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()
        .context("cargo metadata")?;
    let workshop =
        Workshop { root: root.into(), metadata, required: Required::from_environment()? };
    let started = Instant::now();
    let both = |one: &&Step, next: &&Step| [one, next].iter().all(|step| step.has_one_core());
    let together = chosen.chunk_by(both).flat_map(|steps| run_together(steps, &workshop));
    let reports: Vec<Report> = together.collect();
    print_table(&reports);
    let count = |word| reports.iter().filter(|report| report.outcome.word() == word).count();
    let (passed, failed, skipped) = (count("passed"), count("FAILED"), count("skipped"));
    let seconds = started.elapsed().as_secs_f64();
    println!("ci: {passed} steps passed, {failed} failed, {skipped} skipped, in {seconds:.0} s");
    Ok(failed == 0)
}

fn choose(options: &[&str]) -> Result<Vec<&'static Step>> {
    let mut names = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        match (*word, words.next()) {
            ("--only", Some(name)) => names.push(*name),
            _ => bail!("`ci` takes --list or --only STEP, not `{word}`"),
        }
    }
    if names.is_empty() {
        return Ok(steps::STEPS.iter().collect());
    }
    let find = |name: &&str| steps::STEPS.iter().find(|step| step.name == *name);
    names
        .iter()
        .map(|name| find(name).with_context(|| format!("no step `{name}`; see --list")))
        .collect()
}

fn run_together(steps: &[&'static Step], workshop: &Workshop) -> Vec<Report> {
    if let [step] = steps {
        return vec![run_step(step, workshop)];
    }
    thread::scope(|scope| {
        let running: Vec<_> =
            steps.iter().map(|step| scope.spawn(|| run_step(step, workshop))).collect();
        running.into_iter().map(|thread| thread.join().expect("no step panics")).collect()
    })
}

fn run_step(step: &'static Step, workshop: &Workshop) -> Report {
    println!("\n== {}: {}", step.name, step.what);
    let started = Instant::now();
    let cpu_before = process::cpu_of_ended();
    let outcome =
        (step.run)(workshop).unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
    let outcome = match outcome {
        Outcome::Skipped(reason) => {
            println!("{}: skipped, because {reason}", step.name);
            match workshop.required.forbids(&reason) {
                Some(name) => {
                    Outcome::Failed(format!("REQUIRE={name}, but skipped, because {reason}"))
                }
                None => Outcome::Skipped(reason),
            }
        }
        outcome => outcome,
    };
    let cpu = process::cpu_of_ended().saturating_sub(cpu_before);
    Report { name: step.name, took: started.elapsed(), cpu, outcome }
}

fn print_table(reports: &[Report]) {
    println!("\n{:<12} {:>8} {:>8}  outcome", "step", "seconds", "CPU s");
    for Report { name, took, cpu, outcome } in reports {
        let line = format!(
            "{name:<12} {:>8.1} {:>8.1}  {:<7} {}",
            took.as_secs_f64(),
            cpu.as_secs_f64(),
            outcome.word(),
            outcome.remark()
        );
        println!("{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name_and_unknown_names_refused() {
        assert_eq!(choose(&[]).unwrap().len(), steps::STEPS.len());
        let names: Vec<&str> = choose(&["--only", "fmt", "--only", "tidy"])
            .unwrap()
            .iter()
            .map(|step| step.name)
            .collect();
        assert_eq!(names, ["fmt", "tidy"]);
        assert!(choose(&["--only", "tidyy"]).is_err());
        assert!(choose(&["tidy"]).is_err());
    }

    #[test]
    fn a_failing_step_is_reported_and_does_not_end_the_run() {
        let metadata_command = |root: &Path| {
            MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec().unwrap()
        };
        let root = crate::workspace_root();
        let workshop = Workshop {
            metadata: metadata_command(&root),
            root,
            required: Required::from_environment().unwrap(),
        };
        static BROKEN: Step =
            Step { name: "broken", what: "fails", run: |_| bail!("the reason it could not run") };
        let report = run_step(&BROKEN, &workshop);
        assert_eq!(report.outcome.word(), "FAILED");
        assert_eq!(report.outcome.remark(), "the reason it could not run");
    }
}
