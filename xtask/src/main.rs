//! `cargo xtask`: the project's own tools.
//!
//! - `cargo xtask ci`: everything a change has to pass, in one run;
//! - `cargo xtask tidy`: the rules of the workspace that neither rustc nor clippy knows;
//! - `cargo xtask softcuda`: the software CUDA device, for tests without a GPU;
//! - `cargo xtask kernels`: every CUDA kernel compiled for every architecture, and its machine code
//!   held against what it must be, without a GPU;
//! - `cargo xtask libraries`: NVIDIA's real libraries, opened without a GPU;
//! - `cargo xtask gpu-bundle`: everything that a machine with a GPU has to run, in one folder;
//! - `cargo xtask rxe`: verbs over Soft-RoCE, in an emulated machine;
//! - `cargo xtask ledger`: bytes, launches and predicted times of each kernel of a step;
//! - `cargo xtask bench-diff`: has anything become slower;
//! - `cargo xtask book-preprocessor`: what mdBook calls for the documentation's site;
//! - `cargo xtask soak`: the long tests, with their log kept.
//!
//! It imports no crate of the workspace, so that it builds, and can complain, while they do not.

mod bench_diff;
mod book_preprocessor;
mod ci;
mod cuda;
mod ledger;
mod process;
mod require;
mod rxe;
mod soak;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "cargo xtask COMMAND

  ci [--list] [--only STEP]...   run every check (or the named steps), then print what each took
  tidy                           crates, sizes, unwrap, unsafe, environment, to-dos
  softcuda                       builds the software CUDA device into target/softcuda
  kernels                        compiles all CUDA kernels for sm_80, sm_90a, sm_100; no warnings, \
                    no spills;
                                 lints their machine code: loads in flight, widths, occupancy
  libraries                      the real NVRTC, cuBLASLt and NCCL (730 MB of wheels): symbols, \
                    numbers, answers
  gpu-bundle [--rehearse]        gathers what a machine with a GPU has to run in \
                    target/gpu-bundle;
                                 --rehearse: and runs it on the software device
  rxe [--full | --two-guests | --linked | --cuda] [--steps N]
                                 verbs over Soft-RoCE in an emulated machine; --two-guests: \
                    between two of them, log kept;
                                 --full: 10,000 steps in one, then two, log kept; --linked: \
                    against the crate `ibverbs`;
                                 --cuda: training on software devices whose captured step drives \
                    the NICs
  ledger [--accept]              keeps bytes, launches and predicted times of each kernel in
                                 benches/results/ledger.txt; refuses more of them unless accepted
  bench-diff [--keep | --peers PYTHON]
                                 instruction counts against the kept ones, AVX-512 against AVX2; \
                    --keep: keeps today's counts;
                                 --peers: training against PyTorch and FBGEMM of that python, on a \
                    quiet machine
  soak [--only NAME]             the long tests (200 kills, a million mutants of each format, an \
                    epoch on
                                 1 to 8 software devices: hours); keeps
                                 benches/results/soak-DATE.log

REQUIRE=NAME[,NAME...] turns the skip of that name into a failure: nextest, cargo-deny, advisories,
data, python, numpy, mpirun, fuzz, aarch64, musl, cuda, hostcuda, nvrtc, libraries, rxe,
valgrind, wheel, book.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs one command; `Ok(false)` says that it ran and found fault.
fn run(arguments: &[String]) -> anyhow::Result<bool> {
    let root = workspace_root();
    let mut words = arguments.iter().map(String::as_str);
    let command = words.next().unwrap_or("help");
    let rest: Vec<&str> = words.collect();
    match (command, rest.as_slice()) {
        ("ci", options) => ci::run(&root, options),
        ("tidy", []) => tidy::run(&root),
        ("softcuda", []) => cuda::softcuda::run(&root, &target_folder(&root)?),
        ("kernels", []) => cuda::kernels::run(&root, &target_folder(&root)?),
        ("libraries", []) => cuda::libraries::run(&root, &target_folder(&root)?),
        ("gpu-bundle", []) => cuda::bundle::run(&root, &target_folder(&root)?),
        ("gpu-bundle", ["--rehearse"]) => cuda::bundle::rehearse(&root, &target_folder(&root)?),
        ("rxe", options) => rxe::run(&root, &target_folder(&root)?, options),
        ("ledger", options) => ledger::run(&root, options),
        ("bench-diff", options) => bench_diff::run(&root, &target_folder(&root)?, options),
        ("book-preprocessor", options) => {
            book_preprocessor::run(&root, &target_folder(&root)?, options)
        }
        ("soak", []) => soak::run(&root, &target_folder(&root)?, None),
        ("soak", ["--only", name]) => soak::run(&root, &target_folder(&root)?, Some(name)),
        ("help" | "--help" | "-h", _) => {
            print!("{HELP}");
            Ok(true)
        }
        (command, []) => anyhow::bail!("unknown command `{command}`\n\n{HELP}"),
        (command, rest) => anyhow::bail!("`{command}` takes no `{}`\n\n{HELP}", rest.join(" ")),
    }
}

fn target_folder(root: &Path) -> anyhow::Result<PathBuf> {
    let manifest = root.join("Cargo.toml");
    let metadata =
        cargo_metadata::MetadataCommand::new().manifest_path(manifest).no_deps().exec()?;
    Ok(metadata.target_directory.into_std_path_buf())
}

/// The folder that holds the workspace's `Cargo.toml`.
fn workspace_root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.parent().expect("xtask/ lies in the workspace's root").to_path_buf()
}
