//! `cargo xtask bench-diff`: has anything become slower? Without a quiet machine, and without
//! trusting a clock.
//!
//! - The instructions of every benchmark's body, counted by callgrind on the paths that it knows
//!   (AVX2 and portable), are compared with the counts that were kept ([`counts`]).
//! - The paths that it does not know are compared with our own AVX2 path, in turn in the same
//!   process ([`paths`]).
//! - With `--peers PYTHON`, whole training steps are compared with PyTorch's and FBGEMM's; that
//!   needs a quiet machine ([`peers`]).

mod counts;
mod paths;
mod peers;

use std::path::Path;

use anyhow::{Result, bail};

use crate::ci::Outcome;
use crate::process;

const PROGRAM: &str = "headlong-benches";

/// Runs the guards as the command line asks; `Ok(false)` where something became slower.
pub fn run(root: &Path, target: &Path, options: &[&str]) -> Result<bool> {
    match options {
        [] => Ok(report(guard(root, target)?)),
        ["--keep"] => Ok(report(counts::keep(root, &process::built(root, target, PROGRAM)?)?)),
        ["--peers", python] => Ok(report(peers::run(root, python)?)),
        other => bail!("`bench-diff` takes --keep or --peers PYTHON, not `{}`", other.join(" ")),
    }
}

pub fn guard(root: &Path, target: &Path) -> Result<Outcome> {
    let program = process::built(root, target, PROGRAM)?;
    Ok(counts::check(root, &program)?.and(paths::check(root, &program)?))
}

/// Prints what was found; whether that is no fault.
fn report(outcome: Outcome) -> bool {
    match &outcome {
        Outcome::Passed(remark) => println!("bench-diff: {remark}"),
        Outcome::Skipped(reason) => println!("bench-diff: skipped, because {reason}"),
        Outcome::Failed(fault) => println!("bench-diff: FAULT: {fault}"),
    }
    !matches!(outcome, Outcome::Failed(_))
}
