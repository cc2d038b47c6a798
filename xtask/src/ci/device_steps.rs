//! Steps about CUDA that need no GPU: the software device, its rules, the compile gate, sanitizers.

use std::path::Path;

use anyhow::Result;

use super::{Outcome, Workshop};
use crate::cuda::softcuda::Sanitizer;
use crate::cuda::test_programs::{self, TestProgram};
use crate::cuda::{Had, kernels, nvrtc, softcuda};
use crate::process;

/// Orders in which the software device runs what may run in any order.
const SEEDS: [&str; 3] = ["1", "2", "3"];

/// Builds the software device for the steps behind.
pub fn softcuda(workshop: &Workshop) -> Result<Outcome> {
    Ok(match softcuda::build(&workshop.root, &workshop.target(), Sanitizer::None)? {
        Had::Here(folder) => Outcome::Passed(folder.display().to_string()),
        Had::Not(reason) => Outcome::Skipped(reason),
    })
}

/// Every kernel, compiled by NVIDIA's compiler.
pub fn kernels(workshop: &Workshop) -> Result<Outcome> {
    Ok(match nvrtc::folder(&workshop.root, &workshop.target())? {
        Had::Here(compiler) => {
            Outcome::from_success(kernels::check(&workshop.root, &workshop.target(), &compiler)?)
        }
        Had::Not(reason) => Outcome::Skipped(reason),
    })
}

/// The file that pins what the software device and a GPU have in common, in several orders.
pub fn conformance(workshop: &Workshop) -> Result<Outcome> {
    let Had::Here(device) = softcuda::build(&workshop.root, &workshop.target(), Sanitizer::None)? else {
        return Ok(Outcome::Skipped("softcuda cannot be built".into()));
    };
    let programs = test_programs::build(&workshop.root, &["headlong-device"])?;
    let Some(program) = programs.iter().find(|program| program.name == "conformance") else {
        return Ok(Outcome::Failed("device/tests/conformance.rs is absent".into()));
    };
    let mut failed = Vec::new();
    for seed in SEEDS {
        let mut command = process::command(&program.path, &["--quiet"], &program.folder);
        command.env("HEADLONG_CUDA_LIBS", &device).env("SOFTCUDA_DEVICES", softcuda::DEVICES);
        command.env("XDG_CACHE_HOME", workshop.scratch().join("cache")).env("SOFTCUDA_SEED", seed);
        if !process::show(command)? {
            failed.push(seed);
        }
    }
    Ok(match failed.is_empty() {
        true => Outcome::Passed(format!("{} seeds", SEEDS.len())),
        false => Outcome::Failed(format!("SOFTCUDA_SEED={}", failed.join(", "))),
    })
}

/// Tests of ops under a sanitizer: a package, and the words that choose its tests.
struct Watched {
    package: &'static str,
    filters: &'static [&'static str],
}

/// One test of each kind of kernel: each costs a compilation by g++ with the sanitizer.
const WATCHED: &[Watched] = &[
    Watched { package: "headlong-embedding", filters: &["cuda"] },
    Watched { package: "headlong-mlp", filters: &["cuda"] },
];

/// Tests of ops with every access watched: addresses and undefined behaviour, then races between threads of a kernel.
pub fn sanitizers(workshop: &Workshop) -> Result<Outcome> {
    let script = workshop.root.join("device/softcuda/run-sanitized.sh");
    if !script.exists() {
        return Ok(Outcome::Skipped("device/softcuda/run-sanitized.sh is absent".into()));
    }
    let packages: Vec<&str> = WATCHED.iter().map(|watched| watched.package).collect();
    let programs = test_programs::build(&workshop.root, &packages)?;
    let mut failed = Vec::new();
    let mut ran = 0;
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        let Had::Here(device) = softcuda::build(&workshop.root, &workshop.target(), sanitizer)? else {
            return Ok(Outcome::Skipped("softcuda cannot be built".into()));
        };
        for watched in WATCHED {
            let folder = watched.package.trim_start_matches("headlong-");
            let unit = programs.iter().find(|program| program.package == folder);
            let Some(program) = unit else { continue };
            ran += 1;
            if !run_watched(workshop, &script, &device, sanitizer, program, watched.filters)? {
                failed.push(format!("{folder} ({})", sanitizer.name().unwrap_or("plain")));
            }
        }
    }
    Ok(match failed.is_empty() {
        true => Outcome::Passed(format!("{ran} programs")),
        false => Outcome::Failed(failed.join(", ")),
    })
}

fn run_watched(
    workshop: &Workshop,
    script: &Path,
    device: &Path,
    sanitizer: Sanitizer,
    program: &TestProgram,
    filters: &[&str],
) -> Result<bool> {
    let mut command = process::command("sh", &[], &program.folder);
    command.arg(script).args(sanitizer.name()).arg(device).arg(&program.path).args(filters);
    command.env("XDG_CACHE_HOME", workshop.scratch().join("cache"));
    process::show(command)
}
