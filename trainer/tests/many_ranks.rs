//! Jobs of as many ranks as large clusters have, on one machine: the example `many_ranks` holds
//! what they take against what the plan says, and their weights against those of one rank. CI runs
//! it with 128 ranks, as every example.

#![cfg(test)]

use std::process::Command;

#[test]
#[ignore = "minutes: cargo xtask soak"]
fn soak_1024_ranks() {
    let words = "run --release -p headlong --example many_ranks -- \
                 --ranks 1024 --per-node 32 --processes 4 --steps 20";
    let mut program = Command::new(env!("CARGO"));
    let output = program.args(words.split_whitespace()).output().expect("cargo is there");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let together = text.split("together in ").nth(1).and_then(|rest| rest.split(' ').next());
    let seconds: f64 = together.and_then(|seconds| seconds.parse().ok()).expect("a time");
    assert!(seconds <= 30.0, "1,024 ranks came together in {seconds} s, at most 30 are allowed");
}
