//! `cargo xtask kernels`: every kernel compiles for every architecture, without a warning, spills
//! no register, and its machine code is what it must be.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Had, lint, nvrtc};
use crate::process;

/// Architectures that releases are made for: A100, H100 and H200, B200.
pub const ARCHITECTURES: &str = "sm_80,sm_90a,sm_100";

/// Settings whose kernels are compiled besides those of the presets: what several ranks exchange in
/// 16 bits. Most are the presets' and lie in the folder already.
const NARROW: [&str; 5] = ["--set", "train.precision=bf16", "--set", "run.ranks=8", "--reuse"];

pub fn run(root: &Path, target: &Path) -> Result<bool> {
    match check(root, target)? {
        Had::Here(_) => Ok(true),
        Had::Not(reason) => bail!("kernels cannot be checked, because {reason}"),
    }
}

/// Compiles everything into `target/kernels` and lints what came of it; an error where something is
/// not as it should be, and the reason where the compiler or the disassembler cannot be had.
pub fn check(root: &Path, target: &Path) -> Result<Had> {
    let compiler = match nvrtc::folder(root, target)? {
        Had::Here(compiler) => compiler,
        not => return Ok(not),
    };
    let output = target.join("kernels");
    // What older sources left is not linted.
    process::fresh_folder(&output)?;
    let documents = [output.join("presets.json"), output.join("narrow.json")];
    let mut compiles = true;
    for (document, settings) in documents.iter().zip([&[][..], &NARROW]) {
        let document = document.display().to_string();
        let settings = [settings, &["--json-file", &document]].concat();
        compiles &= build((root, target), &compiler, ARCHITECTURES, &output, &settings)?;
    }
    if !compiles {
        bail!("some kernel does not compile, or spills");
    }
    lint::check(root, target, &output, &documents)
}

/// `headlong kernels build` of all presets with these settings; warnings and spills are errors.
pub fn build(
    (root, target): (&Path, &Path),
    compiler: &Path,
    architectures: &str,
    output: &Path,
    settings: &[&str],
) -> Result<bool> {
    let program = process::built(root, target, "headlong")?;
    let mut command = process::command(program, &["kernels", "build"], root);
    command.args(["--check", "--arch", architectures, "--output"]).arg(output).args(settings);
    command.env("HEADLONG_CUDA_LIBS", compiler);
    process::show(command)
}
