//! Power, clocks and what holds them back, as `nvidia-smi` says. Nothing is changed.

use super::Finding;
use super::system::System;

/// Reasons that are trouble, by their bit: idle (1), application clocks (2) and the power limit (4)
/// are not.
const HELD_BACK: [(u64, &str); 4] = [
    (0x8, "a hardware slowdown"),
    (0x20, "the temperature (by the driver)"),
    (0x40, "the temperature (by the hardware)"),
    (0x80, "the power supply's brake"),
];

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let lines = system.smi.as_deref().unwrap_or_default().lines();
    lines.filter(|line| !line.trim().is_empty()).flat_map(gpu).collect()
}

fn gpu(line: &str) -> Vec<Finding> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, limit, default, clock, most, reasons, persistence, errors] = fields[..] else {
        return vec![Finding::ok("GPU state", format!("nvidia-smi: {line}"))];
    };
    let found = format!(
        "GPU {index}: power limit {limit} W of {default} W, clock {clock} MHz of {most} MHz"
    );
    let number = |text: &str| text.parse::<f64>().ok();
    let bits = u64::from_str_radix(reasons.trim_start_matches("0x"), 16).unwrap_or(0);
    let held: Vec<&str> =
        HELD_BACK.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, why)| *why).collect();
    let mut findings = Vec::new();
    if !held.is_empty() {
        findings.push(Finding::warn(
            "GPU state",
            format!("{found}, held back by {}", held.join(", ")),
            "the GPU is slower than its peers, and every step waits for the slowest rank",
            "look at cooling and power supply (nvidia-smi -q -d PERFORMANCE)",
        ));
    }
    if number(limit).zip(number(default)).is_some_and(|(limit, default)| limit < default * 0.99) {
        findings.push(Finding::warn(
            "GPU power",
            format!("GPU {index}: the power limit is {limit} W, its default {default} W"),
            "dense layers are slower; with unequal limits every step waits for the lowest",
            "if no one has lowered it on purpose, as root: nvidia-smi -i N --power-limit=DEFAULT",
        ));
    }
    if persistence == "Disabled" {
        findings.push(Finding::warn(
            "GPU state",
            format!("GPU {index}: persistence mode is off"),
            "the first step of every run waits seconds for the driver",
            "start nvidia-persistenced",
        ));
    }
    if errors.parse::<u64>().is_ok_and(|errors| errors > 0) {
        findings.push(Finding::fail(
            "GPU memory",
            format!("GPU {index}: {errors} errors of its memory that could not be corrected"),
            "results may be wrong, or the run ends with a CUDA error",
            "reset or replace the GPU (nvidia-smi -q -d ECC)",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("GPU state", found));
    }
    findings
}
