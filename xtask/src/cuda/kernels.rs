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

/// Settings whose kernels are compiled besides those of the presets: what several ranks exchange in
/// 16 bits.
const NARROW: [&str; 4] = ["--set", "train.precision=bf16", "--set", "run.ranks=8"];

/// Compiles everything into `target/kernels` with the compiler in `compiler`.
pub fn check(root: &Path, target: &Path, compiler: &Path) -> Result<bool> {
    let output = target.join("kernels");
    let presets = build(root, compiler, ARCHITECTURES, &output, &[])?;
    Ok(build(root, compiler, ARCHITECTURES, &output, &NARROW)? && presets)
}

/// `headlong kernels build` of all presets with these settings; warnings and spills are errors.
pub fn build(
    root: &Path,
    compiler: &Path,
    architectures: &str,
    output: &Path,
    settings: &[&str],
) -> Result<bool> {
    let mut command =
        cargo(&["run", "--release", "--quiet", "-p", "headlong", "--", "kernels", "build"], root);
    command.args(["--check", "--arch", architectures, "--output"]).arg(output).args(settings);
    command.env("HEADLONG_CUDA_LIBS", compiler);
    process::show(command)
}
