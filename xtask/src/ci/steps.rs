//! The steps of `cargo xtask ci`, in the order they run: the quickest to complain first.

use std::borrow::Borrow;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::{Outcome, Step, Workshop, book, clusters, device_steps, own_table, python, runner};
use crate::process::{self, cargo};
use crate::{bench_diff, rxe, tidy};

pub const STEPS: &[Step] = &[
    Step { name: "lock", what: "Cargo.lock is what the manifests ask for", run: lock },
    Step { name: "fmt", what: "the code is formatted", run: format },
    Step {
        name: "tidy",
        what: "the rules of the workspace",
        run: |workshop| tidy::run(&workshop.root).map(Outcome::from_success),
    },
    Step { name: "deny", what: "cargo-deny: licences, sources, bans", run: cargo_deny },
    Step { name: "advisories", what: "cargo-deny: known vulnerabilities", run: advisories },
    Step { name: "clippy", what: "lints, warnings denied", run: clippy },
    Step {
        name: "softcuda",
        what: "the software CUDA device, for the tests",
        run: device_steps::softcuda,
    },
    Step { name: "tests", what: "every test", run: runner::tests },
    Step { name: "doctests", what: "the examples in the documentation", run: doc_tests },
    Step { name: "docs", what: "the documentation builds, warnings denied", run: docs },
    Step { name: "examples", what: "every example of the trainer runs", run: examples },
    Step {
        name: "own-table",
        what: "the page on tables of one's own, followed in an empty folder",
        run: own_table::own_table,
    },
    Step {
        name: "python",
        what: "the Python package: its wheel is built, installed and tested",
        run: python::python,
    },
    Step {
        name: "book",
        what: "the documentation's site: its tutorials are followed, its links and search checked",
        run: book::book,
    },
    Step {
        name: "orders",
        what: "CUDA's rules and whole steps, in several orders",
        run: device_steps::orders,
    },
    Step {
        name: "kernels",
        what: "kernels compile for GPUs, and their machine code is what it must be",
        run: device_steps::kernels,
    },
    Step {
        name: "libraries",
        what: "the real NVRTC and cuBLASLt have what is called",
        run: device_steps::libraries,
    },
    Step { name: "nccl", what: "the real NCCL has what is called", run: device_steps::nccl },
    Step { name: "sanitizers", what: "kernels under sanitizers", run: device_steps::sanitizers },
    Step {
        name: "rxe",
        what: "verbs over Soft-RoCE, in an emulated machine",
        run: |workshop| rxe::step(&workshop.root, &workshop.target()),
    },
    Step {
        name: "clusters",
        what: "Slurm, torchrun and mpirun start training on two machines, which are namespaces",
        run: clusters::clusters,
    },
    Step { name: "benches", what: "every bench runs once, small", run: benches },
    Step {
        name: "bench-diff",
        what: "nothing takes more instructions than it did",
        run: |workshop| bench_diff::guard(&workshop.root, &workshop.target()),
    },
    Step { name: "features", what: "each feature builds alone", run: features },
    Step { name: "aarch64", what: "the program compiles for Linux on aarch64", run: aarch64 },
    Step { name: "musl", what: "the program compiles for musl, as a static one", run: musl },
    Step { name: "fuzz", what: "the target of libFuzzer compiles", run: fuzz },
    Step {
        name: "mutants",
        what: "damaged inputs of every format are read or refused",
        run: mutants,
    },
];

fn show(workshop: &Workshop, arguments: &[&str]) -> Result<Outcome> {
    process::show(cargo(arguments, &workshop.root)).map(Outcome::from_success)
}

fn lock(workshop: &Workshop) -> Result<Outcome> {
    // The filter keeps cargo from downloading what only other platforms need.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments =
        ["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform];
    let finished = process::read(cargo(&arguments, &workshop.root), |line| !line.starts_with('{'))?;
    Ok(Outcome::from_success(finished.success))
}

fn format(workshop: &Workshop) -> Result<Outcome> {
    show(workshop, &["fmt", "--all", "--check", "--", "--color", "never"])
}

fn has_cargo_deny() -> bool {
    process::answers("cargo", &["deny", "--version"])
}

fn cargo_deny(workshop: &Workshop) -> Result<Outcome> {
    if !has_cargo_deny() {
        return Ok(Outcome::Skipped("cargo-deny is not installed".into()));
    }
    show(workshop, &["deny", "check", "licenses", "sources", "bans"])
}

fn advisories(workshop: &Workshop) -> Result<Outcome> {
    if !has_cargo_deny() {
        return Ok(Outcome::Skipped(
            "the advisory database is read by cargo-deny, which is not installed".into(),
        ));
    }
    let finished =
        process::read(cargo(&["deny", "check", "advisories"], &workshop.root), |_| true)?;
    let unreachable = ["failed to fetch", "failed to clone", "failed to open advisory database"];
    let is_unreachable =
        |line: &String| unreachable.iter().any(|reason| line.to_lowercase().contains(reason));
    if !finished.success && finished.lines.iter().any(is_unreachable) {
        return Ok(Outcome::Skipped("the advisory database cannot be reached".into()));
    }
    Ok(Outcome::from_success(finished.success))
}

fn clippy(workshop: &Workshop) -> Result<Outcome> {
    show(
        workshop,
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--release",
            "--keep-going",
            "--",
            "-D",
            "warnings",
        ],
    )
}

fn doc_tests(workshop: &Workshop) -> Result<Outcome> {
    // The examples of the files that `comm/simulated` copies run where they are from: cargo does
    // not heed `doctest = false` once `--doc` is given.
    let all = ["test", "--doc", "--workspace", "--exclude", "headlong-comm-simulated"];
    show(workshop, &[&all[..], &["--release", "--quiet"]].concat())
}

fn docs(workshop: &Workshop) -> Result<Outcome> {
    let mut command =
        cargo(&["doc", "--workspace", "--no-deps", "--release", "--keep-going"], &workshop.root);
    command.env("RUSTDOCFLAGS", "-D warnings");
    process::show(command).map(Outcome::from_success)
}

/// Runs every example of the trainer in a folder of its own, so that what it writes is not left in
/// the tree.
fn examples(workshop: &Workshop) -> Result<Outcome> {
    let packages = workshop.metadata.workspace_packages();
    let targets = packages
        .iter()
        .filter(|package| package.name == "headlong")
        .flat_map(|package| &package.targets);
    let names: Vec<&str> =
        targets.filter(|target| target.is_example()).map(|target| target.name.as_str()).collect();
    if !runner::build(workshop)? {
        return Ok(Outcome::Failed("they do not compile".into()));
    }
    let mut failed = Vec::new();
    for &name in &names {
        let folder = workshop.scratch().join("examples").join(name);
        // What an earlier run left would make a resumed run of this one.
        process::fresh_folder(&folder)?;
        let program = workshop.target().join("release/examples").join(name);
        if !process::show(process::command(program, &[], &folder))? {
            failed.push(name);
        }
    }
    Ok(all_of(&names, &failed, "examples"))
}

/// Passed where nothing failed, else failed with the names of what did.
fn all_of<Name: Borrow<str>>(all: &[Name], failed: &[Name], what: &str) -> Outcome {
    if failed.is_empty() {
        Outcome::Passed(format!("{} {what}", all.len()))
    } else {
        Outcome::Failed(format!("{} of {} {what}: {}", failed.len(), all.len(), failed.join(", ")))
    }
}

fn benches(workshop: &Workshop) -> Result<Outcome> {
    let program = process::built(&workshop.root, &workshop.target(), "headlong-benches")?;
    process::show(process::command(program, &["--smoke"], &workshop.root))
        .map(Outcome::from_success)
}

const SET_ASIDE: [(&str, &str); 1] = [(
    "headlong-verbs/verbs-linked",
    "its build needs cmake, libclang-dev and libibverbs-dev: the step `rxe` has it where they are",
)];

/// Builds each feature of each package alone, and each package without its default features.
fn features(workshop: &Workshop) -> Result<Outcome> {
    let mut built = Vec::new();
    let mut failed = Vec::new();
    for package in workshop.metadata.workspace_packages() {
        let own = package.features.keys().filter(|feature| *feature != "default");
        let bare = package.features.contains_key("default").then_some("");
        for feature in bare.into_iter().chain(own.map(String::as_str)) {
            let name = format!("{}/{feature}", package.name);
            if let Some((_, reason)) = SET_ASIDE.iter().find(|(set_aside, _)| *set_aside == name) {
                println!("{name}: set aside, because {reason}");
                continue;
            }
            let mut command =
                cargo(&["check", "--release", "--quiet", "--no-default-features"], &workshop.root);
            command.args(["-p", package.name.as_str(), "--features", feature]);
            if !process::show(command)? {
                failed.push(name.clone());
            }
            built.push(name);
        }
    }
    Ok(all_of(&built, &failed, "features"))
}

fn aarch64(workshop: &Workshop) -> Result<Outcome> {
    compiles_for(workshop, "aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc")
}

fn musl(workshop: &Workshop) -> Result<Outcome> {
    compiles_for(workshop, &format!("{}-unknown-linux-musl", std::env::consts::ARCH), "musl-gcc")
}

/// Checks that the program compiles for `target`, where its standard library and a C compiler for
/// zstd are installed.
fn compiles_for(workshop: &Workshop, target: &str, compiler: &str) -> Result<Outcome> {
    let sysroot =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output()?;
    let libraries = String::from_utf8_lossy(&sysroot.stdout).trim().to_string();
    if !Path::new(&libraries).is_dir() {
        return Ok(Outcome::Skipped(format!("the standard library of {target} is not installed")));
    }
    let is_own = target == format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    if !is_own && !process::answers(compiler, &["--version"]) {
        return Ok(Outcome::Skipped(format!(
            "{compiler} is not installed, for {target} (zstd is C)"
        )));
    }
    show(workshop, &["check", "--release", "--quiet", "-p", "headlong", "--target", target])
}

/// Seconds of a processor for each format: 31 of them on two processors take 40 s. 60 s a format
/// would be 16 minutes, which the half hour of CI has no room for.
const SHARE_S: &str = "2.5";

/// Reads mutants of each format for [`SHARE_S`], always the same ones in the same order;
/// `cargo xtask soak --only mutants` reads ten million others.
fn mutants(workshop: &Workshop) -> Result<Outcome> {
    if !runner::build(workshop)? {
        return Ok(Outcome::Failed("it does not compile".into()));
    }
    let program = workshop.target().join("release/headlong-mutation");
    let keep = workshop.target().join("mutants").display().to_string();
    let arguments =
        ["run", "--mutants", "10000000", "--seconds", SHARE_S, "--jobs", "2", "--keep", &keep];
    process::show(process::command(program, &arguments, &workshop.root)).map(Outcome::from_success)
}

/// Checks that the fuzz target compiles. It runs by hand, for as long as one likes: see
/// CONTRIBUTING.md.
fn fuzz(workshop: &Workshop) -> Result<Outcome> {
    if !workshop.root.join("fuzz/Cargo.toml").exists() {
        return Ok(Outcome::Skipped("fuzz/Cargo.toml is absent".into()));
    }
    // In the same folder and profile: most of what they are made of has been checked for `clippy`.
    let arguments =
        ["check", "--release", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"];
    let mut command = cargo(&arguments, &workshop.root);
    // Nothing is linked: without a library of one's own, libFuzzer would be compiled.
    command
        .arg(workshop.target())
        .env("CUSTOM_LIBFUZZER_PATH", workshop.scratch().join("libfuzzer.a"));
    process::show(command).map(Outcome::from_success)
}
