//! `cargo xtask ledger`: keeps what the planner says of each kernel of a step. Tests hold it
//! against what is kept, and against what the software device counts.

use std::path::Path;

use anyhow::{Result, bail};

use crate::process::{self, cargo};

pub fn run(root: &Path, options: &[&str]) -> Result<bool> {
    if !matches!(options, [] | ["--accept"]) {
        bail!("`ledger` takes --accept, not `{}`", options.join(" "));
    }
    let mut arguments = vec!["run", "--release", "--quiet", "-p", "headlong-planner"];
    arguments.extend(["--example", "ledger", "--"]);
    arguments.extend(["benches/results/ledger.txt", "docs/performance-gpu.md"]);
    arguments.extend(options);
    process::show(cargo(&arguments, root))
}
