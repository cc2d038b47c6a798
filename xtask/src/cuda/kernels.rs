//! `cargo xtask kernels`: every kernel compiles for every architecture, without a warning, and
//! spills no register.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Had, nvrtc};
use crate::process::{self, cargo};

/// Architectures that releases are made for: A100, H100 and H200, B200.
pub const ARCHITECTURES: &str = "sm_80,sm_90a,sm_100";

pub fn run(root: &Path, target: &Path) -> Result<bool> {
    match nvrtc::folder(root, target)? {
        Had::Here(compiler) => check(root, target, &compiler),
        Had::Not(reason) => bail!("kernels cannot be compiled, because {reason}"),
    }
}

/// Compiles everything into `target/kernels` with the compiler in `compiler`.
pub fn check(root: &Path, target: &Path, compiler: &Path) -> Result<bool> {
    build(root, compiler, ARCHITECTURES, &target.join("kernels"))
}

/// `headlong kernels build`, with warnings and spills as errors.
pub fn build(root: &Path, compiler: &Path, architectures: &str, output: &Path) -> Result<bool> {
    let mut command =
        cargo(&["run", "--release", "--quiet", "-p", "headlong", "--", "kernels", "build"], root);
    command.args(["--check", "--arch", architectures, "--output"]).arg(output);
    command.env("HEADLONG_CUDA_LIBS", compiler);
    process::show(command)
}
