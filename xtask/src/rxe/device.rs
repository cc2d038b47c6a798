//! The software CUDA device in the guest: rails between devices of two nodes drive real verbs.
//!
//! The guest has no compiler, so the kernels are compiled here, by the very checks that run there,
//! over a fabric inside the process; those of training by the run whose weights the guest's have to
//! be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::limit::Limit;
use super::packages;
use crate::cuda::Had;
use crate::cuda::softcuda::{self, Sanitizer};
use crate::process::{self, At as _};

/// Devices of the guest: one for each rank of `rxe rails`.
const DEVICES: &str = "4";

/// Training with a device for each rank. The split is given, because one that is computed counts
/// with the speed of what carries.
const TRAINING: [&str; 18] = [
    "--preset",
    "tiny",
    "--device",
    "cuda",
    "--schedule",
    "captured",
    "--hybrid",
    "rows=100",
    "--batch-size",
    "32",
    "--steps",
    "3",
    "--set",
    "synthetic.train_rows=256",
    "--set",
    "synthetic.valid_rows=64",
    "--set",
    "comm.exchange=hierarchical",
];

pub enum Placed {
    /// Everything; words for the script, by their names: how it runs [`TRAINING`], and the weights
    /// that it has to come to.
    With(Words),
    /// Nothing, for this reason.
    Not(String),
}

pub type Words = Vec<(&'static str, String)>;

/// Puts the device and its compiled kernels into the guest below `base`, as `/test/softcuda` and
/// `/test/cache`, with those of training where it `trains`; or says why not.
pub fn put(
    (root, target, base): (&Path, &Path, &Path),
    programs: &Path,
    trains: bool,
    limit: &Limit,
) -> Result<Placed> {
    let guest = base.join("guest");
    let (libraries, kernels) = (guest.join("test/softcuda"), guest.join("test/cache"));
    for folder in [&libraries, &kernels] {
        if folder.exists() {
            fs::remove_dir_all(folder).at(folder)?;
        }
    }
    let built = match softcuda::build(root, target, Sanitizer::None)? {
        Had::Here(built) => built,
        Had::Not(reason) => return Ok(Placed::Not(reason)),
    };
    let cache = base.join("kernels");
    let with_device = |mut command: Command| {
        command
            .env("HEADLONG_CUDA_LIBS", &built)
            .env("SOFTCUDA_DEVICES", DEVICES)
            .env("XDG_CACHE_HOME", &cache);
        command
    };
    let rails = with_device(process::command(programs.join("rxe"), &["rails", "--fake"], root));
    let compiled = limit.show("compiling the rails' kernels", rails)?;
    ensure!(compiled, "the checks of rails fail over a fabric inside the process");
    let mut words = Words::new();
    if trains {
        let command = with_device(process::command(programs.join("headlong"), &["train"], root));
        words.push(("rxe_weights", train(command, base, limit)?));
        words.push(("rxe_options", TRAINING.join(",")));
    }
    copy(&built, &libraries)?;
    copy(&cache, &kernels)?;
    for library in files_of(&libraries)? {
        if library.extension().is_some_and(|end| end != "so") {
            packages::copy_libraries_of(&base.join("root"), &library, &guest)?;
        }
    }
    Ok(Placed::With(words))
}

/// Trains as threads of one process, whose nodes reach each other's memory: the weights.
fn train(mut command: Command, base: &Path, limit: &Limit) -> Result<String> {
    let output = base.join("trained");
    if output.exists() {
        fs::remove_dir_all(&output).at(&output)?;
    }
    command
        .args(TRAINING)
        .args(["--ranks", DEVICES, "--set", "comm.ranks_per_node=2", "--output-dir"])
        .arg(&output);
    let trained = process::read_within(limit.left(), command, |_| false)?;
    let weights =
        trained.lines.iter().find_map(|line| line.strip_prefix("weights ")).map(str::to_owned);
    weights.filter(|_| trained.success).with_context(|| {
        format!(
            "training on software devices, as threads of one process: {}",
            trained.lines.join("\n")
        )
    })
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).at(folder)?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).at(to)?;
    for path in files_of(from)? {
        let to = to.join(path.file_name().context("a path of a folder has a name")?);
        match path.is_dir() {
            true => copy(&path, &to)?,
            false => drop(fs::copy(&path, &to).at(&path)?),
        }
    }
    Ok(())
}
