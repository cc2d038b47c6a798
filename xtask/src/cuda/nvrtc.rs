//! NVIDIA's run-time compiler, from its wheel: compiling kernels for a GPU needs no GPU.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Had;
use crate::process::{self, At as _};

/// The wheel: the version that the PyTorch wheels of CUDA 13.0 bring along.
const WHEEL: &str = "nvidia-cuda-nvrtc==13.0.88";
const LIBRARY: &str = "nvidia/cu13/lib/libnvrtc.so.13";

/// The folder with the library, fetched into `target/nvrtc` where it is not there yet.
pub fn folder(root: &Path, target: &Path) -> Result<Had> {
    let home = target.join("nvrtc");
    let library = home.join(LIBRARY);
    let lib = library.parent().context("the library lies in a folder")?.to_path_buf();
    if library.is_file() {
        return Ok(Had::Here(lib));
    }
    if !process::answers("python3", &["-m", "pip", "--version"]) {
        return Ok(Had::Not("pip, which fetches the nvrtc wheel, is not installed".into()));
    }
    let downloads = home.join("download");
    fs::create_dir_all(&downloads).at(&downloads)?;
    let mut fetch = process::command("python3", &["-m", "pip", "download", "--quiet"], root);
    fetch.args(["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest"]);
    fetch.arg(&downloads).arg(WHEEL);
    if !process::show(fetch)? {
        return Ok(Had::Not(format!("the nvrtc wheel ({WHEEL}) cannot be fetched")));
    }
    for entry in fs::read_dir(&downloads)?.flatten() {
        // A wheel is a zip archive; Python can read it everywhere.
        let mut unpack = process::command("python3", &["-m", "zipfile", "-e"], root);
        unpack.arg(entry.path()).arg(&home);
        if !process::show(unpack)? {
            anyhow::bail!("{} cannot be unpacked", entry.path().display());
        }
    }
    fs::remove_dir_all(&downloads).at(&downloads)?;
    anyhow::ensure!(library.is_file(), "the wheel {WHEEL} has no {LIBRARY}");
    Ok(Had::Here(lib))
}
