//! The test runner: cargo-nextest where it is installed, else `cargo test`; and the skips that
//! tests report.

use std::process::Command;

use anyhow::Result;

use super::{Outcome, Workshop};
use crate::cuda::{Had, softcuda};
use crate::process::{self, Finished, cargo};

/// What a test prints when it cannot run here. Note: it may come after the runner's own
/// `test NAME ... `.
const SKIP_MARK: &str = "skipped, because ";

/// Runs every test of the workspace and judges the skips they report.
pub fn tests(workshop: &Workshop) -> Result<Outcome> {
    let has_nextest = process::answers("cargo", &["nextest", "--version"]);
    if !has_nextest && let Some(name) = workshop.required.forbids("nextest is not installed") {
        return Ok(Outcome::Failed(format!("REQUIRE={name}, but cargo-nextest is not installed")));
    }
    // By itself: what building takes is no part of the tests' time.
    if !build(workshop)? {
        return Ok(Outcome::Failed("they could not be built".into()));
    }
    let finished = if has_nextest { run_nextest(workshop)? } else { run_cargo_test(workshop)? };
    let log = workshop.scratch().join("tests.log");
    process::write_lines(&log, &finished.lines)?;
    println!("the tests' own output: {}", log.display());

    let skips = skips_of(&finished.lines);
    let mut forbidden = Vec::new();
    for reason in &skips {
        println!("a test was skipped, because {reason}");
        forbidden.extend(
            workshop.required.forbids(reason).map(|name| format!("REQUIRE={name}: {reason}")),
        );
    }
    let summary = summary_of(&finished.lines, finished.success);
    Ok(match (finished.success, forbidden.is_empty()) {
        (true, true) => Outcome::Passed(summary),
        (true, false) => Outcome::Failed(forbidden.join("; ")),
        (false, _) => Outcome::Failed(format!("{summary}{}", failures_of(&finished.lines))),
    })
}

/// Builds every test, and with them the examples and programs of the workspace: one package alone
/// would have dependencies with other features, and all of them would be compiled once more.
pub fn build(workshop: &Workshop) -> Result<bool> {
    let arguments = ["test", "--release", "--workspace", "--no-run", "--quiet"];
    process::show(cargo(&arguments, &workshop.root))
}

/// A line for each test that failed, with where it panicked and the first two lines of why, from
/// nextest's output: what a reader needs who has the end of CI's output only.
fn failures_of(lines: &[String]) -> String {
    let mut shown = String::new();
    for (at, line) in lines.iter().enumerate() {
        let text = line.trim_start();
        let status = STATUS.iter().find(|word| text.starts_with(**word));
        let failed = status.is_some_and(|word| !["PASS [", "SLOW [", "Summary ["].contains(word));
        if text.starts_with("Summary [") {
            break;
        }
        if failed {
            let its_own = lines[at + 1..]
                .iter()
                .take_while(|line| !STATUS.iter().any(|word| line.trim_start().starts_with(word)));
            shown += &format!("\n  {text}");
            for line in its_own.skip_while(|line| !line.contains("panicked at")).take(3) {
                shown += &format!("\n    {}", line.trim());
            }
        }
    }
    shown
}

/// Successful tests' output goes to the log only, so it is asked for and then hidden. Twice as many
/// tests run at once as there are cores: many wait for a rank that is lost, or for a deadline.
fn run_nextest(workshop: &Workshop) -> Result<Finished> {
    let arguments = [
        "nextest",
        "run",
        "--release",
        "--workspace",
        "--no-fail-fast",
        "--success-output",
        "immediate",
    ];
    let mut command = cargo(&arguments, &workshop.root);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    command.args(["--test-threads", &(2 * cores).to_string()]);
    let mut filter = SuccessFilter::default();
    process::read(with_a_device(command, workshop)?, |line| filter.shows(line))
}

/// The command with the software CUDA device in its environment, where it can be built and no GPU
/// is asked for. Its kernels are kept in the scratch folder, not in the user's.
pub fn with_a_device(mut command: Command, workshop: &Workshop) -> Result<Command> {
    if workshop.required.wants("cuda") {
        return Ok(command);
    }
    let built = softcuda::build(&workshop.root, &workshop.target(), softcuda::Sanitizer::None)?;
    if let Had::Here(folder) = built {
        command.env("HEADLONG_CUDA_LIBS", folder).env("SOFTCUDA_DEVICES", softcuda::DEVICES);
        command.env("XDG_CACHE_HOME", workshop.scratch().join("cache"));
    }
    Ok(command)
}

fn run_cargo_test(workshop: &Workshop) -> Result<Finished> {
    println!("cargo-nextest is not installed: using cargo test");
    let arguments = [
        "test",
        "--release",
        "--workspace",
        "--all-targets",
        "--no-fail-fast",
        "--",
        "--show-output",
    ];
    process::read(with_a_device(cargo(&arguments, &workshop.root), workshop)?, |_| true)
}

/// How nextest begins the line of a test, or of all of them.
const STATUS: [&str; 9] = [
    "PASS [",
    "FAIL [",
    "SLOW [",
    "LEAK [",
    "ABORT [",
    "SIGSEGV [",
    "SIGKILL [",
    "TIMEOUT [",
    "Summary [",
];

/// Hides the captured output of tests that passed, which nextest prints indented below their line.
#[derive(Default)]
struct SuccessFilter {
    below_passed: bool,
}

impl SuccessFilter {
    fn shows(&mut self, line: &str) -> bool {
        let text = line.trim_start();
        if let Some(word) = STATUS.iter().find(|word| text.starts_with(**word)) {
            self.below_passed = *word == "PASS [";
            return true;
        }
        !self.below_passed || text.starts_with("────────────")
    }
}

/// The reasons of all skips, each once, in the order of the alphabet.
fn skips_of(lines: &[String]) -> Vec<String> {
    let reason =
        |line: &String| line.split_once(SKIP_MARK).map(|(_, reason)| reason.trim().to_string());
    let mut reasons: Vec<String> = lines.iter().filter_map(reason).collect();
    reasons.sort();
    reasons.dedup();
    reasons
}

/// The runner's closing words: nextest's summary, or the sum of all `test result:` lines; and that
/// it was ended, where it has failed and none of it says why.
fn summary_of(lines: &[String], has_succeeded: bool) -> String {
    if let Some(line) = lines.iter().rev().find(|line| line.trim_start().starts_with("Summary [")) {
        return line.split_once(']').map_or(line.as_str(), |(_, counts)| counts).trim().to_string();
    }
    let count = |line: &str, what: &str| -> usize {
        let before = line.split(what).next().unwrap_or("");
        before.split_whitespace().next_back().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let results: Vec<&str> =
        lines.iter().filter_map(|line| line.strip_prefix("test result:")).collect();
    let sum = |what| results.iter().map(|line| count(line, what)).sum::<usize>();
    let failed = sum(" failed");
    let end = if has_succeeded || failed > 0 { "" } else { ", then they were ended" };
    format!("{} passed, {failed} failed, {} ignored{end}", sum(" passed"), sum(" ignored"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_string).collect()
    }

    const NEXTEST: &str = "    Starting 2 tests across 1 binary
        PASS [   0.003s] (1/2) xtask tidy::tests::a
  stdout ───

    running 1 test
    skipped, because /data/criteo is absent
    test tidy::tests::a ... skipped, because python has no torch
    ok

        FAIL [   0.004s] (2/2) xtask tidy::tests::b
  stderr ───

    thread 'tidy::tests::b' panicked at xtask/src/tidy.rs:7:9:
    assertion failed
    note: a backtrace

────────────
     Summary [   0.010s] 2 tests run: 1 passed, 1 failed, 0 skipped
        FAIL [   0.004s] xtask tidy::tests::b";

    #[test]
    fn output_of_passing_tests_is_hidden_and_of_failing_ones_shown() {
        let mut filter = SuccessFilter::default();
        let shown: Vec<String> =
            lines(NEXTEST).into_iter().filter(|line| filter.shows(line)).collect();
        assert!(!shown.iter().any(|line| line.contains("running 1 test")));
        assert!(shown.iter().any(|line| line.contains("assertion failed")));
        assert!(shown.iter().any(|line| line.contains("Summary [")));
    }

    #[test]
    fn skips_and_the_summary_are_read_from_the_output() {
        assert_eq!(skips_of(&lines(NEXTEST)), ["/data/criteo is absent", "python has no torch"]);
        assert_eq!(
            summary_of(&lines(NEXTEST), false),
            "2 tests run: 1 passed, 1 failed, 0 skipped"
        );
        let failures = failures_of(&lines(NEXTEST));
        assert!(
            failures.starts_with("\n  FAIL [   0.004s] (2/2) xtask tidy::tests::b\n    thread")
        );
        assert!(failures.contains("tidy.rs:7:9:\n    assertion failed"), "{failures}");
        assert_eq!(failures.matches("FAIL").count(), 1, "the summary's list is not repeated");
        let plain = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n\
                     test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured";
        assert_eq!(summary_of(&lines(plain), false), "7 passed, 2 failed, 1 ignored");
        let ended = summary_of(&lines("test result: ok. 3 passed; 0 failed; 0 ignored"), false);
        assert_eq!(ended, "3 passed, 0 failed, 0 ignored, then they were ended");
    }
}
