//! `headlong bench all_reduce` and its siblings, as a user calls them.

use serde_json::Value;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headlong"));
    command.arg("bench").args(arguments).output().expect("the program was built with this test")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = bench(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("the program writes text")
}

#[test]
fn every_collective_is_right_over_threads() {
    let operations = [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "alltoall",
        "alltoallv",
        "sendrecv",
        "barrier",
    ];
    for operation in operations {
        let common = [
            operation, "--ranks", "3", "-b", "1000", "-e", "300K", "-f", "16", "-n", "20", "--check",
            "--json",
        ];
        let document: Value = serde_json::from_str(&succeeds(&common)).expect("one JSON document");
        let rows = document["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), if operation == "barrier" { 1 } else { 3 }, "{document}");
        for row in rows {
            assert_eq!((row["op"].as_str(), row["wrong"].as_u64()), (Some(operation), Some(0)), "{row}");
            assert_eq!((row["procs"].as_u64(), row["reps"].as_u64()), (Some(3), Some(20)), "{row}");
            assert!(
                row["p50_us"].as_f64() > Some(0.0) && row["max_us"].as_f64() >= row["p50_us"].as_f64(),
                "{row}"
            );
        }
    }
}

#[test]
fn processes_are_started_and_leave() {
    let text = succeeds(&[
        "alltoallv",
        "--backend",
        "local,tcp",
        "--ranks",
        "3",
        "--ranks-per-node",
        "2",
        "-e",
        "16K",
        "-n",
        "20",
        "--check",
    ]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows.iter().map(|row| row[0]).collect::<Vec<_>>(),
        ["1024", "4096", "16384"].repeat(2),
        "{text}"
    );
    assert!(
        rows.iter().all(|row| row.len() == 14 && row[8] == "0"),
        "fourteen columns, nothing wrong: {text}"
    );
    assert!(text.contains("over local, 3 ranks") && text.contains("over tcp, 3 ranks"), "{text}");
}

#[test]
fn tune_writes_costs_with_what_was_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("costs.toml");
    let path = file.to_str().expect("a path of text");
    let printed = succeeds(&["tune", "-e", "64K", "--seconds-per-size", "0.002", "--output", path]);
    assert_eq!(printed, "");
    let text = std::fs::read_to_string(&file).expect("the file is there");
    let costs: headlong_embedding::hybrid::cost::Costs = toml::from_str(&text).expect("costs");
    let sizes: Vec<f64> = costs.intra.all_to_all.points().iter().map(|&(bytes, _)| bytes).collect();
    assert_eq!(sizes, [512.0, 2048.0, 8192.0, 32768.0], "half of a rank's buffer leaves it");
}

#[test]
fn wrong_usage_is_refused() {
    let wrong: [&[&str]; 4] = [
        &["all_reduce", "-b", "4K", "-e", "1K"],
        &["all_reduce", "--ranks", "0"],
        &["tune", "--ranks", "1"],
        &["barrier", "--backend", "tcp", "--worker"],
    ];
    for arguments in wrong {
        let output = bench(arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}
