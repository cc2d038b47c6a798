//! Steps about CUDA that need no GPU: the software device, its rules, the compile gate, sanitizers.

use std::path::Path;
use std::thread;

use anyhow::Result;

use super::{Outcome, Workshop};
use crate::cuda::softcuda::Sanitizer;
use crate::cuda::test_programs::{self, TestProgram};
use crate::cuda::{Had, kernels, nvrtc, softcuda};
use crate::process;

/// Orders in which the software device runs what may run in any order, besides that of the step
/// `tests`.
const SEEDS: [&str; 2] = ["1", "2"];

/// Test programs that run in each of these orders: a forgotten wait shows in some.
const ORDERED: [&str; 3] = ["conformance", "cuda", "cuda_tables"];

pub fn softcuda(workshop: &Workshop) -> Result<Outcome> {
    Ok(match softcuda::build(&workshop.root, &workshop.target(), Sanitizer::None)? {
        Had::Here(folder) => Outcome::Passed(folder.display().to_string()),
        Had::Not(reason) => Outcome::Skipped(reason),
    })
}

pub fn kernels(workshop: &Workshop) -> Result<Outcome> {
    Ok(match nvrtc::folder(&workshop.root, &workshop.target())? {
        Had::Here(compiler) => {
            Outcome::from_success(kernels::check(&workshop.root, &workshop.target(), &compiler)?)
        }
        Had::Not(reason) => Outcome::Skipped(reason),
    })
}

/// The file that pins what the software device and a GPU have in common, and whole iterations, in
/// several orders.
pub fn orders(workshop: &Workshop) -> Result<Outcome> {
    let Had::Here(device) = softcuda::build(&workshop.root, &workshop.target(), Sanitizer::None)?
    else {
        return Ok(Outcome::Skipped("softcuda cannot be built".into()));
    };
    let programs = test_programs::build(&workshop.root, &["headlong-device", "headlong"])?;
    // Both orders at once: each has one test at a time.
    let failed: Vec<String> = thread::scope(|scope| {
        let (device, programs) = (&device, &programs);
        let of_seed = |seed| scope.spawn(move || in_order(workshop, device, programs, seed));
        let running = SEEDS.map(of_seed);
        running
            .map(|thread| thread.join().expect("no order panics"))
            .into_iter()
            .collect::<Result<Vec<_>>>()
    })?
    .concat();
    Ok(match failed.is_empty() {
        true => Outcome::Passed(format!("{} programs, {} seeds", ORDERED.len(), SEEDS.len())),
        false => Outcome::Failed(failed.join(", ")),
    })
}

/// Runs all programs in the order of `seed`; what failed.
fn in_order(
    workshop: &Workshop,
    device: &Path,
    programs: &[TestProgram],
    seed: &str,
) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for name in ORDERED {
        let Some(program) = programs.iter().find(|program| program.name == name) else {
            failed.push(format!("the test program {name} is absent"));
            continue;
        };
        // One test at a time, as on a GPU: some count the driver's calls, which are all the
        // process's.
        let arguments = ["--quiet", "--test-threads", "1"];
        let mut command = process::command(&program.path, &arguments, &program.folder);
        command.env("HEADLONG_CUDA_LIBS", device).env("SOFTCUDA_DEVICES", softcuda::DEVICES);
        command.env("XDG_CACHE_HOME", workshop.scratch().join("cache")).env("SOFTCUDA_SEED", seed);
        if !process::show(command)? {
            failed.push(format!("{name} with SOFTCUDA_SEED={seed}"));
        }
    }
    Ok(failed)
}

/// Tests under sanitizers: a test program, and the words that choose its tests, at least one test
/// each.
struct Watched {
    package: &'static str,
    program: &'static str,
    filters: &'static [&'static str],
}

/// Small tests of each kind of kernel: every instance costs a compilation by g++ with the
/// sanitizer.
const WATCHED: &[Watched] = &[
    Watched {
        package: "headlong-mlp",
        program: "headlong_mlp",
        filters: &[
            "cat::tests::cuda_tests::side",
            "dot::tests::cuda_tests::aligned",
            "linear::tests::cuda_tests::agrees",
            "loss::tests::cuda_tests::agrees",
        ],
    },
    Watched {
        package: "headlong-embedding",
        program: "cuda_single_rank",
        filters: &["hot_rows_add_up"],
    },
    Watched {
        package: "headlong-comm",
        program: "device_cuda",
        filters: &["memory_at_odd_addresses"],
    },
];

/// Tests of kernels with every access watched: addresses and undefined behaviour, then races.
pub fn sanitizers(workshop: &Workshop) -> Result<Outcome> {
    if !process::answers("g++", &["--version"]) {
        return Ok(Outcome::Skipped(
            "g++, which builds softcuda with a sanitizer, is not installed".into(),
        ));
    }
    let mut packages: Vec<&str> = WATCHED.iter().map(|watched| watched.package).collect();
    packages.dedup();
    let programs = test_programs::build(&workshop.root, &packages)?;
    let (mut failed, mut ran) = (Vec::new(), 0);
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        let device = match softcuda::build(&workshop.root, &workshop.target(), sanitizer)? {
            Had::Here(device) => device,
            Had::Not(reason) => return Ok(Outcome::Skipped(reason)),
        };
        for watched in WATCHED {
            let Some(program) = programs.iter().find(|program| program.name == watched.program)
            else {
                failed.push(format!("{} is absent", watched.program));
                continue;
            };
            ran += watched.filters.len();
            if !run_watched(workshop, &device, sanitizer, program, watched.filters)? {
                failed.push(format!(
                    "{} ({})",
                    watched.program,
                    sanitizer.name().unwrap_or("plain")
                ));
            }
        }
    }
    Ok(match failed.is_empty() {
        true => Outcome::Passed(format!("{ran} tests")),
        false => Outcome::Failed(failed.join(", ")),
    })
}

/// Runs the chosen tests; false also where a filter chooses none.
fn run_watched(
    workshop: &Workshop,
    device: &Path,
    sanitizer: Sanitizer,
    program: &TestProgram,
    filters: &[&str],
) -> Result<bool> {
    let script = workshop.root.join("device/softcuda/run-sanitized.sh");
    let mut command = process::command("sh", &[], &program.folder);
    command.arg(script).args(sanitizer.name()).arg(&program.path).args(filters);
    command.env("SOFTCUDA_SANITIZED_LIBS", device).env("SOFTCUDA_DEVICES", "2");
    command.env("XDG_CACHE_HOME", workshop.scratch().join("cache"));
    let finished = process::read(command, |_| true)?;
    let is_enough = |line: &String| {
        let passed = line
            .strip_prefix("test result: ok. ")
            .and_then(|rest| rest.split(' ').next()?.parse().ok());
        passed.is_some_and(|passed: usize| passed >= filters.len())
    };
    Ok(finished.success && finished.lines.iter().any(is_enough))
}
