//! Steps about CUDA that need no GPU: the software device, its rules, the compile gate, sanitizers.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Result;

use super::{Outcome, Workshop};
use crate::cuda::softcuda::Sanitizer;
use crate::cuda::test_programs::{self, TestProgram};
use crate::cuda::{Had, kernels, libraries, softcuda};
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
    Ok(match kernels::check(&workshop.root, &workshop.target())? {
        Had::Here(_) => Outcome::from_success(true),
        Had::Not(reason) => Outcome::Skipped(reason),
    })
}

/// cuBLASLt and NVRTC where they are here already, or `REQUIRE=libraries` has them fetched.
pub fn libraries(workshop: &Workshop) -> Result<Outcome> {
    real_libraries(workshop, "libraries", &libraries::BLAS_PART)
}

/// The same of NCCL, and `REQUIRE=nccl`.
pub fn nccl(workshop: &Workshop) -> Result<Outcome> {
    real_libraries(workshop, "nccl", &libraries::NCCL_PART)
}

fn real_libraries(workshop: &Workshop, name: &str, part: &libraries::Part) -> Result<Outcome> {
    let (root, target) = (&workshop.root, &workshop.target());
    match part.missing(target) {
        None => part.check(root, target).map(Outcome::Passed),
        Some(_) if workshop.required.wants(name) => {
            part.fetch_and_check(root, target).map(Outcome::Passed)
        }
        Some(reason) => Ok(Outcome::Skipped(reason)),
    }
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

/// Tests under sanitizers: a test program, the words that choose its tests, at least one test each,
/// and the files whose kernels they run.
struct Watched {
    package: &'static str,
    program: &'static str,
    filters: &'static [&'static str],
    kernels: &'static [&'static str],
}

/// Small tests of every file of kernels: every instance costs a compilation by g++ with the
/// sanitizer.
const WATCHED: &[Watched] = &[
    Watched {
        package: "headlong-device",
        program: "headlong_device",
        filters: &["pieces::tests::a_captured_copy", "trial::tests::a_digest"],
        kernels: &["device/cuda/digest.cu", "device/cuda/pieces.cu"],
    },
    Watched {
        package: "headlong-mlp",
        program: "headlong_mlp",
        filters: &[
            "cat::tests::cuda_tests::side",
            "cross::tests::cuda_tests::a_side_stream",
            "dot::tests::cuda_tests::aligned",
            "dot::tests::cuda_sixteen_bits::vectors_in_sixteen_bits",
            "finite::tests::cuda_tests::the_first_place",
            "linear::tests::cuda_tests::agrees",
            "loss::tests::cuda_tests::agrees",
            "loss_scale::tests::what_is_not_finite",
            "optim::tests::cuda_tests::a_nan_gradient",
            "optim::tests::cuda_tests::lamb_takes_norms",
        ],
        kernels: &[
            "mlp/src/finite/finite.cu",
            "mlp/src/interaction/cat/cat.cu",
            "mlp/src/interaction/cross/cross.cu",
            "mlp/src/interaction/dot/dot.cu",
            "mlp/src/interaction/dot/tensor.cu",
            "mlp/src/linear/linear.cu",
            "mlp/src/loss/loss.cu",
            "mlp/src/loss_scale/loss_scale.cu",
            "mlp/src/optim/optim.cu",
        ],
    },
    Watched {
        package: "headlong-embedding",
        program: "headlong_embedding",
        filters: &["init::tests::cuda_tests", "tiles_wait_for"],
        kernels: &["embedding/src/init/init.cu", "embedding/src/route/cuda/look_back.cu"],
    },
    Watched {
        package: "headlong-embedding",
        program: "cuda_single_rank",
        filters: &["hot_rows_add_up"],
        kernels: &[
            "embedding/src/lookup/lookup.cu",
            "embedding/src/route/route.cu",
            "embedding/src/route/sort.cu",
            "embedding/src/update/update.cu",
        ],
    },
    Watched {
        package: "headlong-embedding",
        program: "cuda_ranks",
        filters: &["sums_of_owners_travel_as_bf16"],
        kernels: &["embedding/src/hybrid/exchange.cu"],
    },
    Watched {
        package: "headlong-comm",
        program: "device_cuda",
        filters: &["a_captured_exchange", "memory_at_odd_addresses", "numbers_are_rounded"],
        kernels: &["comm/src/device/narrow.cu", "comm/src/device/push.cu"],
    },
    Watched {
        package: "headlong-comm",
        program: "device_cuda_nodes",
        filters: &["sums_of_bf16_on_two_nodes"],
        kernels: &["comm/src/device/hierarchical/strips.cu", "comm/src/device/sum.cu"],
    },
    Watched {
        package: "headlong-verbs",
        program: "device_cuda_rails",
        filters: &["a_captured_step_drives"],
        kernels: &["comm/verbs/src/rails/rail.cu"],
    },
];

/// Test programs, and the words that choose their tests under sanitizers.
pub fn sanitized_tests() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    WATCHED.iter().map(|watched| (watched.program, watched.filters))
}

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
    let mut devices = Vec::new();
    for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
        match softcuda::build(&workshop.root, &workshop.target(), sanitizer)? {
            Had::Here(device) => devices.push((sanitizer, device)),
            Had::Not(reason) => return Ok(Outcome::Skipped(reason)),
        }
    }
    // Both at once: each compiles one kernel after the other.
    let failed: Vec<String> = thread::scope(|scope| {
        let programs = &programs;
        let of = |(sanitizer, device): (Sanitizer, PathBuf)| {
            scope.spawn(move || under(workshop, sanitizer, &device, programs))
        };
        let running: Vec<_> = devices.into_iter().map(of).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no sanitizer panics"))
            .collect::<Result<Vec<_>>>()
    })?
    .concat();
    let ran = 2 * WATCHED.iter().map(|watched| watched.filters.len()).sum::<usize>();
    let num_files: usize = WATCHED.iter().map(|watched| watched.kernels.len()).sum();
    Ok(match failed.is_empty() {
        true => Outcome::Passed(format!("{ran} tests of {num_files} files of kernels")),
        false => Outcome::Failed(failed.join(", ")),
    })
}

/// Runs all of them under one sanitizer; what failed.
fn under(
    workshop: &Workshop,
    sanitizer: Sanitizer,
    device: &Path,
    programs: &[TestProgram],
) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for watched in WATCHED {
        let Some(program) = programs.iter().find(|program| program.name == watched.program) else {
            failed.push(format!("{} is absent", watched.program));
            continue;
        };
        if !run_watched(workshop, device, sanitizer, program, watched.filters)? {
            failed.push(format!(
                "{} ({}): kernels of {}",
                watched.program,
                sanitizer.name().unwrap_or("plain"),
                watched.kernels.join(", ")
            ));
        }
    }
    Ok(failed)
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
    command.env("SOFTCUDA_SANITIZED_LIBS", device).env("SOFTCUDA_DEVICES", softcuda::DEVICES);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::text;

    /// Files of kernels, tests' own apart, that are not among those watched; and those watched that
    /// are not there.
    fn differences<'a>(files: &[&'a str], watched: &[&'a str]) -> Vec<&'a str> {
        let of_product =
            |path: &&str| path.ends_with(".cu") && !path.split('/').any(|part| part == "tests");
        let files: Vec<&str> = files.iter().copied().filter(of_product).collect();
        let only_in = |some: &[&'a str], others: &[&str]| -> Vec<&'a str> {
            some.iter().copied().filter(|path| !others.contains(path)).collect()
        };
        [only_in(&files, watched), only_in(watched, &files)].concat()
    }

    #[test]
    fn a_file_without_a_watched_test_is_found() {
        let watched = ["a/src/x.cu", "a/src/y.cu"];
        let cases: [(&[&str], &[&str]); 4] = [
            (&["a/src/x.cu", "a/src/y.cu"], &[]),
            (&["a/src/x.cu", "a/src/y.cu", "a/tests/z.cu", "a/src/z.cuh", "a/src/z.rs"], &[]),
            (&["a/src/x.cu", "a/src/y.cu", "a/src/tests.cu"], &["a/src/tests.cu"]),
            (&["a/src/y.cu", "a/src/x/x.cu"], &["a/src/x/x.cu", "a/src/x.cu"]),
        ];
        for (files, expected) in cases {
            assert_eq!(differences(files, &watched), expected, "{files:?}");
        }
    }

    #[test]
    fn every_file_of_kernels_is_watched() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        let files = text::read_tree(root).expect("sources");
        let files: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let watched: Vec<&str> =
            WATCHED.iter().flat_map(|watched| watched.kernels).copied().collect();
        let found = differences(&files, &watched);
        assert!(found.is_empty(), "not watched by the step `sanitizers`, or not there: {found:?}");
    }
}
