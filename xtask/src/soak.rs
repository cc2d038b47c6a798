//! `cargo xtask soak`: the tests too long for every push, with their output kept next to the bench
//! results.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use crate::cuda::Had;
use crate::cuda::softcuda::{self, Sanitizer};
use crate::process::{self, cargo};

/// The longest that a long test may take.
const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// One long test: it is `#[ignore]`d in one of the package's test programs and called here by name.
struct LongTest {
    package: &'static str,
    program: &'static str,
    name: &'static str,
}

const LONG_TESTS: &[LongTest] = &[
    LongTest { package: "headlong", program: "all", name: "kill::soak_200" },
    LongTest { package: "headlong", program: "all", name: "concurrent::soak_two_processes" },
    LongTest { package: "headlong-mutation", program: "all", name: "soak_mutants" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_1" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_2" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_4" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_8" },
    LongTest {
        package: "headlong",
        program: "all",
        name: "planted::soak_planted_truth_at_terabyte_shape",
    },
    LongTest { package: "headlong", program: "all", name: "evaluation::soak_evaluation_cost" },
    LongTest { package: "headlong", program: "all", name: "evaluation::soak_eval_ranks_cost" },
];

/// Runs the long tests whose names hold `only`, all of them without it, and keeps their output as
/// `benches/results/soak-DATE.log`. With `only`, the name of the log ends in it: `cuda_epoch` is
/// the epoch on all numbers of devices, `cuda_epoch_8` on eight. Tests of CUDA run on the software
/// device, where it can be built.
///
/// # Errors
/// No test of that name; a log that cannot be written.
pub fn run(root: &Path, target: &Path, only: Option<&str>) -> Result<bool> {
    let chosen = |test: &&LongTest| only.is_none_or(|only| test.name.contains(only));
    ensure!(
        LONG_TESTS.iter().any(|test| chosen(&test)),
        "no long test has `{}` in its name",
        only.unwrap_or("")
    );
    let device = softcuda::build(root, target, Sanitizer::None)?;
    if let Had::Not(reason) = &device {
        println!("soak: no software device, because {reason}");
    }
    let date = today()?;
    let mut lines = about_this_machine("cargo xtask soak", root);
    let mut passed = true;
    for test in LONG_TESTS.iter().filter(chosen) {
        let started = Instant::now();
        let arguments = [
            "test",
            "--release",
            "-p",
            test.package,
            "--test",
            test.program,
            "--",
            "--ignored",
            "--exact",
            "--nocapture",
            test.name,
        ];
        let mut command = cargo(&arguments, root);
        if let Had::Here(device) = &device {
            command.env("HEADLONG_CUDA_LIBS", device).env("SOFTCUDA_DEVICES", softcuda::DEVICES);
        }
        let finished = process::read_within(LIMIT, command, |_| true)?;
        // A name that matches nothing passes with "0 passed": that is a failure of this list.
        let ran = finished.lines.iter().any(|line| line.starts_with("test result: ok. 1 passed"));
        passed &= finished.success && ran;
        lines.push(format!("\n$ cargo {}", arguments.join(" ")));
        lines.extend(finished.lines);
        let verdict = if finished.success && ran { "passed" } else { "FAILED" };
        lines.push(format!("{}: {verdict} in {:.0} s", test.name, started.elapsed().as_secs_f64()));
    }
    let part = only.map_or(String::new(), |only| format!("-{only}"));
    let log = root.join(format!("benches/results/soak-{date}{part}.log"));
    process::write_lines(&log, &lines)?;
    println!("soak: {}; log kept in {}", if passed { "passed" } else { "FAILED" }, log.display());
    Ok(passed)
}

/// The first lines of a log: what ran, when, of which commit, where.
pub fn about_this_machine(command: &str, root: &Path) -> Vec<String> {
    vec![
        format!("{command}, {}", today().unwrap_or_default()),
        format!("commit: {}", answer("git", &["rev-parse", "HEAD"], root)),
        format!("machine: {}", answer("uname", &["-srm"], root)),
        format!("rustc: {}", answer("rustc", &["--version"], root)),
    ]
}

/// Today's date, as `YYYY-MM-DD` (UTC).
pub fn today() -> Result<String> {
    let now =
        SystemTime::now().duration_since(UNIX_EPOCH).context("the clock stands before 1970")?;
    Ok(civil_date(now.as_secs() / 86_400))
}

/// What `program` prints, on one line; `unknown` where it does not run.
fn answer(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_string()
        }
        _ => "unknown".into(),
    }
}

/// The date, as `YYYY-MM-DD`, of the day `days` days after 1970-01-01 (Gregorian calendar, UTC).
fn civil_date(days: u64) -> String {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    format!("{year:04}-{:02}-{:02}", month + 1, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil_date(0), "1970-01-01");
        assert_eq!(civil_date(59), "1970-03-01");
        assert_eq!(civil_date(11_016), "2000-02-29");
        assert_eq!(civil_date(20_088), "2024-12-31");
        assert_eq!(civil_date(20_089), "2025-01-01");
    }
}
