//! The software CUDA device in the guest: rails between devices of two nodes drive real verbs.
//!
//! The guest has no compiler, so the kernels are compiled here, by the very checks that run there, over a fabric inside the process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::limit::Limit;
use super::packages;
use crate::cuda::Had;
use crate::cuda::softcuda::{self, Sanitizer};
use crate::process;

/// Devices of the guest: one for each rank of `comm-rxe rails`.
const DEVICES: &str = "4";

/// Puts the device and its compiled kernels into the guest below `base`, as `/test/softcuda` and `/test/cache`; or says why not.
pub fn put(root: &Path, target: &Path, base: &Path, comm_rxe: &Path, limit: &Limit) -> Result<Had> {
    let guest = base.join("guest");
    let (libraries, kernels) = (guest.join("test/softcuda"), guest.join("test/cache"));
    for folder in [&libraries, &kernels] {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
    }
    let built = match softcuda::build(root, target, Sanitizer::None)? {
        Had::Here(built) => built,
        Had::Not(reason) => return Ok(Had::Not(reason)),
    };
    let cache = base.join("kernels");
    let mut compile = process::command(comm_rxe, &["rails", "--fake"], root);
    compile.env("HEADLONG_CUDA_LIBS", &built).env("SOFTCUDA_DEVICES", DEVICES).env("XDG_CACHE_HOME", &cache);
    let compiled = limit.show("compiling the rails' kernels", compile)?;
    ensure!(compiled, "the checks of rails fail over a fabric inside the process");
    copy(&built, &libraries)?;
    copy(&cache, &kernels)?;
    for library in files_of(&libraries)? {
        if library.extension().is_some_and(|end| end != "so") {
            packages::copy_libraries_of(&base.join("root"), &library, &guest)?;
        }
    }
    Ok(Had::Here(libraries))
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for path in files_of(from)? {
        let to = to.join(path.file_name().context("a path of a folder has a name")?);
        match path.is_dir() {
            true => copy(&path, &to)?,
            false => drop(fs::copy(&path, &to).with_context(|| path.display().to_string())?),
        }
    }
    Ok(())
}
