//! `cargo xtask soak`: the tests too long for every push, with their output kept next to the bench
//! results.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::cuda::softcuda::{self, Sanitizer};
use crate::cuda::{Had, bundle};
use crate::process::{self, cargo};

/// The longest that a long test may take.
const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// One long test: it is `#[ignore]`d in one of the package's test programs and called here by name.
/// A program that is none, but a command of this one, has no tests of its own.
struct LongTest {
    package: &'static str,
    program: &'static str,
    name: &'static str,
}

/// The bundle for a GPU, from first to last, on the software device.
const REHEARSAL: LongTest =
    LongTest { package: "xtask", program: "gpu-bundle", name: "rehearsal_of_the_gpu_bundle" };

impl LongTest {
    /// What cargo is called with.
    fn arguments(&self) -> Vec<&'static str> {
        if self.package == "xtask" {
            return vec!["run", "--release", "-p", "xtask", "--", self.program, "--rehearse"];
        }
        let test = ["test", "--release", "-p", self.package, "--test", self.program];
        [&test[..], &["--", "--ignored", "--exact", "--nocapture", self.name]].concat()
    }

    /// Whether the output is that of a test that ran: a name that matches nothing passes with "0
    /// passed", which is a failure of the list.
    fn ran(&self, lines: &[String]) -> bool {
        let passed = |line: &String| {
            line.starts_with("test result: ok. 1 passed") || line.starts_with(bundle::PASSED)
        };
        lines.iter().any(passed)
    }
}

const LONG_TESTS: &[LongTest] = &[
    LongTest { package: "headlong", program: "all", name: "kill::soak_200" },
    LongTest {
        package: "headlong",
        program: "all",
        name: "launch_faults::soak_200_kills_of_ranks_that_save",
    },
    LongTest {
        package: "headlong",
        program: "all",
        name: "elastic::soak_200_kills_during_recovery",
    },
    LongTest { package: "headlong", program: "all", name: "concurrent::soak_two_processes" },
    LongTest {
        package: "headlong",
        program: "all",
        name: "saving_histories::soak_saving_histories",
    },
    LongTest { package: "headlong-comm-simulated", program: "histories", name: "soak_histories" },
    LongTest { package: "headlong", program: "all", name: "many_ranks::soak_1024_ranks" },
    LongTest { package: "headlong-mutation", program: "all", name: "soak_mutants" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_f32_1" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_f32_2" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_f32_4" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_f32_8" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_bf16_1" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_bf16_2" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_bf16_4" },
    LongTest { package: "headlong", program: "cuda_epoch", name: "soak_cuda_epoch_bf16_8" },
    LongTest { package: "headlong", program: "cuda_strips", name: "soak_strips_in_200_orders" },
    LongTest {
        package: "headlong",
        program: "cuda_strips",
        name: "soak_little_more_travels_than_is_needed",
    },
    LongTest {
        package: "headlong",
        program: "all",
        name: "planted::soak_ground_truth_at_terabyte_shape",
    },
    LongTest { package: "headlong", program: "all", name: "evaluation::soak_evaluation_cost" },
    LongTest { package: "headlong", program: "all", name: "evaluation::soak_eval_ranks_cost" },
    REHEARSAL,
];

/// Runs the long tests whose names hold `only`, all of them without it, and keeps their output as
/// `benches/results/soak-DATE.log`. With `only`, the name of the log ends in it: `cuda_epoch` is
/// the epoch on all numbers of devices, `cuda_epoch_8` on eight. Tests of CUDA run on the software
/// device, where it can be built.
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
    let date = today(root);
    let mut lines = about_this_machine("cargo xtask soak", root);
    let mut passed = true;
    for test in LONG_TESTS.iter().filter(chosen) {
        let started = Instant::now();
        let arguments = test.arguments();
        let mut command = cargo(&arguments, root);
        if let Had::Here(device) = &device {
            command.env("HEADLONG_CUDA_LIBS", device).env("SOFTCUDA_DEVICES", softcuda::DEVICES);
        }
        let finished = process::read_within(LIMIT, command, |_| true)?;
        let ran = test.ran(&finished.lines);
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
        format!("{command}, {}", today(root)),
        format!("commit: {}", answer("git", &["rev-parse", "HEAD"], root)),
        format!("machine: {}", answer("uname", &["-srm"], root)),
        format!("rustc: {}", answer("rustc", &["--version"], root)),
    ]
}

/// Today's date, as `YYYY-MM-DD` (UTC).
pub fn today(root: &Path) -> String {
    answer("date", &["-u", "+%F"], root)
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
