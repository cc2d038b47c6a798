//! NVIDIA's run-time compiler, from its wheel: compiling kernels for a GPU needs no GPU.

use std::path::Path;

use anyhow::{Context, Result};

use super::Had;
use super::wheels::Wheel;

/// The version that the PyTorch wheels of CUDA 13.0 bring along.
pub const WHEEL: Wheel = Wheel {
    name: "nvrtc",
    package: "nvidia-cuda-nvrtc==13.0.88",
    file: "nvidia/cu13/lib/libnvrtc.so.13",
    members: &["nvidia/"],
};

/// The folder with the library, fetched into `target/nvrtc` where it is not there yet.
pub fn folder(root: &Path, target: &Path) -> Result<Had> {
    Ok(match WHEEL.fetch(root, target)? {
        Had::Here(library) => {
            Had::Here(library.parent().context("the library lies in a folder")?.to_path_buf())
        }
        not => not,
    })
}
