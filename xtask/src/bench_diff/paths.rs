//! AVX-512 next to our own AVX2, in turn in one process: a ratio that a busy machine moves little.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::ci::Outcome;
use crate::process::{self, command};

/// Benchmarks, as `--only` takes them, and the least times as fast that AVX-512 has to be.
/// Processors that add 512 bits in two halves (Zen 4) gain nothing from wide additions, and AVX2's
/// products have the same loop: there the largest and the narrowest of f32 are equal, give or take
/// a tenth (0.93 to 1.27 and 0.95 to 1.03 in two runs). So these bars say "not slower", with room
/// for a noisy minute.
const BARS: [(&str, f64); 4] = [
    ("linear/forward", 0.85),
    ("linear/backward", 0.85),
    ("linear/bf16", 0.95),
    ("interaction", 0.95),
];

/// The same where products of bf16 have instructions of their own, for one that memory does not
/// bound.
const BAR_OF_BF16: (&str, f64) = ("linear/bf16 forward 2048x1024x1024", 1.5);

/// The same where tiles of bf16 are multiplied (AMX): seven times was measured.
const BAR_OF_TILES: (&str, f64) = ("linear/tiles of bf16 forward 2048x1024x1024", 3.0);

/// What pairs were measured on. Intel's processors with these instructions gain less from them:
/// 1.15 to 1.22 times on a Xeon with AMX, and 0.82 in "backward data 2048x13x512" (2026-11-27, five
/// runs). There the bars stand below that: with AMX products go to tiles.
const VENDOR: &str = "AuthenticAMD";
const ELSEWHERE: f64 = 0.7;

/// The least for a benchmark of bf16 on this processor.
fn least_here(only: &str, least: f64, cpuinfo: &str) -> f64 {
    let is_elsewhere = !cpuinfo.contains(VENDOR);
    if only.starts_with("linear/bf16") && is_elsewhere { least * ELSEWHERE } else { least }
}

fn has_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Measures all of [`BARS`], and [`BAR_OF_BF16`] and [`BAR_OF_TILES`] where they hold.
pub fn check(root: &Path, program: &Path) -> Result<Outcome> {
    let mut slow = Vec::new();
    let mut compared = 0;
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of_pairs = has_bf16().then_some(BAR_OF_BF16);
    let of_tiles = cpuinfo.contains("amx_bf16").then_some(BAR_OF_TILES);
    for (only, least) in BARS.into_iter().chain(of_pairs).chain(of_tiles) {
        let least = least_here(only, least, &cpuinfo);
        let arguments = ["--against", "avx2", "--only", only, "--seconds", "0.4"];
        let finished = process::read(command(program, &arguments, root), |_| false)?;
        if finished.lines.iter().any(|line| line.contains("this processor has no")) {
            return Ok(Outcome::Skipped(
                "this processor has no AVX2 path to compare with".to_owned(),
            ));
        }
        ensure!(finished.success, "{only} failed:\n{}", finished.lines.join("\n"));
        let ratios: Vec<(f64, &String)> = finished
            .lines
            .iter()
            .filter_map(|line| ratio_of(line).map(|ratio| (ratio, line)))
            .collect();
        ensure!(!ratios.is_empty(), "no benchmark is called {only}");
        if !ratios.iter().any(|(_, line)| line.contains("with avx512")) {
            return Ok(Outcome::Skipped("this processor has no AVX-512".to_owned()));
        }
        compared += ratios.len();
        for (ratio, line) in ratios {
            println!("{line}");
            if ratio < least {
                slow.push(format!("{} (at least {least} is asked)", line.trim()));
            }
        }
    }
    Ok(match slow.as_slice() {
        [] => {
            Outcome::Passed(format!("AVX-512 holds its bars against AVX2 in {compared} benchmarks"))
        }
        slow => Outcome::Failed(slow.join("; ")),
    })
}

/// The ratio in `NAME … 1.234 times as fast with … as with …`.
fn ratio_of(line: &str) -> Option<f64> {
    line.split(" times as fast")
        .next()?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
        .filter(|_| line.contains(" times as fast"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_of_a_line_is_found() {
        assert_eq!(
            ratio_of("linear/forward 32x13x512    1.250 times as fast with avx512 as with avx2"),
            Some(1.25)
        );
        assert_eq!(ratio_of("floor: 12.5 GB/s"), None);
    }
}
