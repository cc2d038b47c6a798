//! `headlong data convert` and `headlong bench reader`, as a user types them.

use std::path::Path;
use std::process::{Command, Output};

fn headlong(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headlong"))
        .args(arguments)
        .output()
        .expect("the program was built with this test")
}

fn text_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn write_text(path: &Path, rows: usize) {
    let line = |row: usize| {
        let dense: String = (0..13).map(|column| format!("\t{}", row * column % 97)).collect();
        let sparse: String = (0..26).map(|column| format!("\t{:08x}", row * 31 + column)).collect();
        format!("{}{dense}{sparse}\n", row % 2)
    };
    std::fs::write(path, (0..rows).map(line).collect::<String>()).expect("a small file");
}

#[test]
fn text_becomes_records_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 5000);
    for (to, name) in [("headlong", "a.hld"), ("mlperf", "a.bin")] {
        let there = ["data", "convert", "--data", &path("a.txt"), "--to", to, "--output", &path(name)];
        let output = headlong(&there);
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(text_of(&output).contains("5,000 samples of criteo written as"), "{}", text_of(&output));
        let back = [
            "data",
            "convert",
            "--data",
            &path(name),
            "--from",
            to,
            "--to",
            "criteo",
            "--output",
            &path("b.txt"),
        ];
        let output = headlong(&back);
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(std::fs::read(path("a.txt")).unwrap() == std::fs::read(path("b.txt")).unwrap(), "{to}");
    }
    let output = headlong(&["bench", "reader", &path("a.hld"), "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["samples"], 5000, "{document}");
}

#[test]
fn what_does_not_fit_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 10);
    let output =
        headlong(&["data", "convert", "--data", &path("a.txt"), "--to", "npy", "--output", &path("day_0")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text_of(&output).contains("name the dense transform"), "{}", text_of(&output));
    let rows = [
        "data",
        "convert",
        "--data",
        &path("a.txt"),
        "--to",
        "headlong",
        "--output",
        &path("a"),
        "--rows",
        "3,4",
    ];
    let output = headlong(&rows);
    assert_eq!(output.status.code(), Some(2));
    assert!(text_of(&output).contains("expected 26 counts of at least 1"), "{}", text_of(&output));
}

/// A python with numpy, where there is one.
fn python() -> Option<&'static str> {
    let found = Command::new("python3").args(["-c", "import numpy"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some("python3");
    }
    println!("skipped, because no python3 with numpy was found");
    None
}

#[test]
fn numpy_reads_what_is_written_and_the_other_way_round() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 3000);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/formats.py");
    let numpy = |what: &str| {
        let output = Command::new(python).args([script, what, &path("")]).output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output));
    };
    let convert = |arguments: &[&str]| {
        let output = headlong(&[&["data", "convert"], arguments].concat());
        assert!(output.status.success(), "{}", text_of(&output));
    };
    let from = path("a.txt");
    convert(&["--data", &from, "--to", "mlperf", "--output", &path("a.bin")]);
    for (to, output) in [("npy", path("day_0")), ("split", path("split/train"))] {
        let options = ["--dense-transform", "ln(x+1)", "--rows", "1000"];
        convert(&[&["--data", &from, "--to", to, "--output", &output][..], &options].concat());
    }
    numpy("read");

    numpy("write");
    convert(&["--data", &path("day_1"), "--from", "npy", "--to", "raw", "--output", &path("found.raw")]);
    assert!(std::fs::read(path("expected.raw")).unwrap() == std::fs::read(path("found.raw")).unwrap());
}
