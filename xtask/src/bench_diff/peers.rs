//! Whole training steps next to PyTorch's and FBGEMM's on the same cores, against the ratios that
//! were kept.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::ci::Outcome;
use crate::process::{self, At as _, command};

/// Where ratios are kept, from the workspace's root: lines as `compare.py` prints them.
const KEPT: &str = "benches/results/peer-ratios.txt";

/// Part of a kept ratio that today's may fall short by: rounds on one quiet machine differ so much.
const TOLERANCE: f64 = 0.08;

/// Our samples per second over the best peer's in one case.
struct Ratio {
    case: String,
    ratio: f64,
}

/// Runs every case that was kept, ours and theirs in turn, with `python`'s PyTorch and FBGEMM.
pub fn run(root: &Path, python: &str) -> Result<Outcome> {
    let path = root.join(KEPT);
    let text = fs::read_to_string(&path).at(&path)?;
    let kept: Vec<Ratio> = text.lines().filter_map(ratio_of).collect();
    ensure!(!kept.is_empty(), "{KEPT} has no line `ratio SHAPE BATCH TYPE THREADS RATIO PEER`");
    process::build(root, "headlong")?;
    let mut short = Vec::new();
    for was in &kept {
        let now = measure(root, python, &was.case)?;
        println!("{}: {now:.2} times the best peer, kept {:.2}", was.case, was.ratio);
        if now < was.ratio * (1.0 - TOLERANCE) {
            short.push(format!("{}: {now:.2}, kept {:.2}", was.case, was.ratio));
        }
    }
    Ok(match short.as_slice() {
        [] => Outcome::Passed(format!("{} ratios to the best peer as kept or higher", kept.len())),
        short => Outcome::Failed(format!(
            "further behind or less far ahead than kept: {}",
            short.join("; ")
        )),
    })
}

fn measure(root: &Path, python: &str, case: &str) -> Result<f64> {
    let words: Vec<&str> = case.split(' ').collect();
    let &[shape, batch, dtype, threads] = words.as_slice() else {
        anyhow::bail!("{KEPT}: `{case}` is not SHAPE BATCH TYPE THREADS");
    };
    let mut compare = command(
        python,
        &["benches/peers/compare.py", "--shape", shape, "--batch-size", batch],
        root,
    );
    compare.args(["--dtype", dtype, "--threads", threads]);
    let finished = process::read(compare, |_| true)?;
    let ratio = finished.lines.iter().find_map(|line| ratio_of(line));
    let ratio = ratio.with_context(|| format!("compare.py printed no ratio for {case}"))?;
    Ok(ratio.ratio)
}

/// Reads `ratio SHAPE BATCH TYPE THREADS RATIO PEER`.
fn ratio_of(line: &str) -> Option<Ratio> {
    let words: Vec<&str> = line.strip_prefix("ratio ")?.split(' ').collect();
    let ratio = words.get(4)?.parse().ok()?;
    Some(Ratio { case: words[..4].join(" "), ratio })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_read_with_its_case() {
        let ratio = ratio_of("ratio C1 2048 bf16 2 1.420 fbgemm, medium").unwrap();
        assert_eq!((ratio.case.as_str(), ratio.ratio), ("C1 2048 bf16 2", 1.42));
        assert!(ratio_of("C1, batch 2048").is_none());
        assert!(ratio_of("ratio C1 2048").is_none());
    }
}
