//! `headlong data convert` and `headlong bench reader`, as a user types them.

use crate::python_support::python;
use std::path::Path;
use std::process::{Command, Output};

fn headlong(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headlong"))
        .args(arguments)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .output()
        .expect("the program was built with this test")
}

fn text_of(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
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
        let there =
            ["data", "convert", "--data", &path("a.txt"), "--to", to, "--output", &path(name)];
        let output = headlong(&there);
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(
            text_of(&output).contains("5,000 samples of criteo written as"),
            "{}",
            text_of(&output)
        );
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
        assert!(
            std::fs::read(path("a.txt")).unwrap() == std::fs::read(path("b.txt")).unwrap(),
            "{to}"
        );
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
    let output = headlong(&[
        "data",
        "convert",
        "--data",
        &path("a.txt"),
        "--to",
        "npy",
        "--output",
        &path("day_0"),
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text_of(&output).contains("(--dense-transform \"ln(x+1)\")"), "{}", text_of(&output));
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

/// Ends with exit code 2, saying `words`, and writes nothing.
fn refused(folder: &Path, arguments: &[&str], words: &str) {
    let names = || crate::run_support::names(folder);
    let before = names();
    let output =
        Command::new(env!("CARGO_BIN_EXE_headlong")).args(arguments).current_dir(folder).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
    assert!(text_of(&output).contains(words), "{}", text_of(&output));
    assert_eq!(names(), before);
}

#[test]
fn integers_are_written_as_raw_only_where_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 10);
    let raw =
        ["--data", &path("a.txt"), "--to", "raw", "--rows", "1000", "--output", &path("a.raw")];
    refused(
        folder.path(),
        &[&["data", "convert"][..], &raw].concat(),
        "(--dense-transform \"ln(x+1)\"), or that another program reads integers (--integers)",
    );
    let ones = ["1"; 26].join(",");
    let verify = ["data", "verify", &path("a.raw"), "--from", "raw", "--hotness", &ones];
    convert(&[&raw[..], &["--integers"]].concat());
    let output = headlong(&[&verify[..], &["--integers"]].concat());
    assert!(output.status.success(), "{}", text_of(&output));
    // Read as numbers they are refused, by `train`, too.
    let output = headlong(&verify);
    assert_eq!(output.status.code(), Some(1));
    let words = "record 2, column I2: expected a number, found 1e-45, probably the integer 1 read \
                 as a float: if so, convert it with";
    assert!(
        text_of(&output).contains("a.raw: ") && text_of(&output).contains(words),
        "{}",
        text_of(&output)
    );
    let hotness = format!("data.hotness=[{ones}]");
    let train = [
        "train",
        "--data",
        &path("a.raw"),
        "--preset",
        "tiny",
        "--set",
        "data.format=raw",
        "--set",
    ];
    let output = headlong(&[&train[..], &[&hotness, "--set", "data.ids=modulo"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text_of(&output).contains(words), "{}", text_of(&output));
    // As the message says.
    let again = ["--from", "raw", "--hotness", &ones, "--integers", "--dense-transform", "ln(x+1)"];
    let to = ["--data", &path("a.raw"), "--to", "raw", "--output", &path("b.raw")];
    convert(&[&to[..], &again].concat());
    convert(&[&raw[..6], &["--dense-transform", "ln(x+1)", "--output", &path("c.raw")]].concat());
    assert!(std::fs::read(path("b.raw")).unwrap() == std::fs::read(path("c.raw")).unwrap());
}

#[test]
fn text_goes_to_standard_output_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 3000);
    convert(&["--data", &path("a.txt"), "--to", "csv", "--output", &path("a.csv")]);
    let expected = std::fs::read(path("a.csv")).unwrap();
    let to = |output: &str, format: &str| {
        let arguments =
            ["data", "convert", "--data", &path("a.txt"), "--to", format, "--output", output];
        arguments.map(str::to_owned)
    };
    for (output, format) in [("-", "csv"), ("/dev/stdout", "csv"), ("-", "criteo")] {
        let arguments = to(output, format);
        let written = headlong(&arguments.each_ref().map(String::as_str));
        assert!(written.status.success(), "{}", text_of(&written));
        let expected =
            if format == "csv" { &expected } else { &std::fs::read(path("a.txt")).unwrap() };
        assert!(written.stdout == *expected, "{output} {format}");
        let said = String::from_utf8_lossy(&written.stderr).into_owned();
        assert!(said.contains("3,000 samples of criteo written as"), "{said}");
    }
    let script = "set -o pipefail; \"$0\" \"$@\" | head -n 1";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_headlong")]).args(to("-", "csv"));
    let written = shell.output().unwrap();
    assert!(written.status.success(), "{}", text_of(&written));
    let refuse = |output: &str, format: &str, more: &[&str], words: &str| {
        let arguments = to(output, format);
        refused(
            folder.path(),
            &[&arguments.each_ref().map(String::as_str)[..], more].concat(),
            words,
        );
    };
    let options = ["--rows", "1000", "--dense-transform", "ln(x+1)"];
    for format in ["npy", "split"] {
        refuse("-", format, &options, "several files, which standard output cannot hold");
    }
    refuse("-", "csv", &["--json"], "use --json-file");
    // What is not compressed does not get the name of what is.
    refuse("x.csv.gz", "csv", &[], "`--output - | gzip > x.csv.gz`");
    refuse("x.TSV.ZST", "csv", &[], "`--output - | zstd > x.TSV.ZST`");
    for (output, format) in
        [("x.gz", "headlong"), ("x.zst", "npy"), ("x.gz", "split"), ("x.gz", "parquet")]
    {
        refuse(output, format, &options, "nothing is compressed here: name a file without .");
    }
    assert!(!Path::new("-").exists());
}

#[test]
fn an_id_beyond_the_format_is_refused_by_column_and_number() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("a.csv"), "label,I1,C1,C2\n1,0.5,3,14695981039346656037\n").unwrap();
    for (to, most) in [("raw", "4294967295"), ("npy", "2147483647")] {
        let output = headlong(&[
            "data",
            "convert",
            "--data",
            &path("a.csv"),
            "--to",
            to,
            "--output",
            &path("x"),
        ]);
        assert_eq!(output.status.code(), Some(1));
        let words = format!(
            "record 1: column C2: expected an id of at most {most}, found 14695981039346656037: \
             --rows makes rows of ids"
        );
        assert!(text_of(&output).contains(&words), "{}", text_of(&output));
    }
}

#[test]
fn files_that_are_read_together_are_inspected_with_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 20);
    // Headers of 128 bytes; labels and ids of four bytes, numbers of four or two, rows of two.
    let arrays = 3 * 128 + 20 * (4 + 13 * 4 + 26 * 4);
    for (to, output, named, bytes) in [
        ("npy", "day_0", "day_0", arrays),
        ("npy", "day_1", "day_1_labels.npy", arrays),
        ("split", "day/train", "day/train", 20 * (1 + 13 * 2 + 26 * 2)),
    ] {
        let options = ["--dense-transform", "ln(x+1)", "--rows", "1000"];
        convert(
            &[&["--data", &path("a.txt"), "--to", to, "--output", &path(output)][..], &options]
                .concat(),
        );
        let found = headlong(&["data", "inspect", &path(named)]);
        let text = text_of(&found).replace(',', "");
        assert!(text.contains(&format!(" {bytes} bytes ({to})")), "{text}");
    }
}

/// Runs a script of `tests/python` on a folder, which must agree.
fn agrees(python: &Path, script: &str, what: &str, folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    let output = Command::new(python)
        .arg(script)
        .arg(what)
        .arg(folder)
        .output()
        .expect("python can be started");
    assert!(output.status.success(), "{}", text_of(&output));
}

fn convert(arguments: &[&str]) {
    let output = headlong(&[&["data", "convert"], arguments].concat());
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn pyarrow_reads_what_is_written_and_the_other_way_round() {
    let Some(python) = python(&["numpy", "pyarrow"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 3000);
    for (to, output) in [("parquet", "a.parquet"), ("csv", "a.csv")] {
        convert(&["--data", &path("a.txt"), "--to", to, "--output", &path(output)]);
    }
    agrees(&python, "formats.py", "write", folder.path());
    convert(&["--data", &path("day_1"), "--to", "parquet", "--output", &path("m.parquet")]);
    agrees(&python, "arrow_files.py", "read", folder.path());

    agrees(&python, "arrow_files.py", "write", folder.path());
    convert(&["--data", &path("w.parquet"), "--to", "csv", "--output", &path("w.csv")]);
    agrees(&python, "arrow_files.py", "compare", folder.path());
}

#[test]
fn numpy_reads_what_is_written_and_the_other_way_round() {
    let Some(python) = python(&["numpy"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 3000);
    let from = path("a.txt");
    convert(&["--data", &from, "--to", "mlperf", "--output", &path("a.bin")]);
    for (to, output) in [("npy", path("day_0")), ("split", path("split/train"))] {
        let options = ["--dense-transform", "ln(x+1)", "--rows", "1000"];
        convert(&[&["--data", &from, "--to", to, "--output", &output][..], &options].concat());
    }
    agrees(&python, "formats.py", "read", folder.path());

    agrees(&python, "formats.py", "write", folder.path());
    convert(&[
        "--data",
        &path("day_1"),
        "--from",
        "npy",
        "--to",
        "raw",
        "--output",
        &path("found.raw"),
    ]);
    assert!(
        std::fs::read(path("expected.raw")).unwrap() == std::fs::read(path("found.raw")).unwrap()
    );
}

#[test]
fn every_format_is_verified_to_its_last_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    write_text(&folder.path().join("a.txt"), 5000);
    for (to, name) in
        [("headlong", "a.hld"), ("parquet", "a.parquet"), ("csv", "a.csv"), ("mlperf", "a.bin")]
    {
        convert(&["--data", &path("a.txt"), "--to", to, "--output", &path(name)]);
        let output =
            headlong(&["data", "verify", "--from", to, "--integers", "--json", &path(name)]);
        assert!(output.status.success(), "{}", text_of(&output));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&document["samples"], &document["clicks"]),
            (&5000.into(), &2500.into()),
            "{to}"
        );
        assert_eq!(document["click_rate"], 0.5);
        assert_eq!(
            (&document["dense"][1]["least"], &document["dense"][1]["largest"]),
            (&0.0.into(), &96.0.into())
        );
        assert_eq!(document["sparse"][25]["largest"], 4999 * 31 + 25);
    }
    // The sums of the files, one of them wrong; MD5 of nothing is that of an empty file.
    std::fs::write(path("empty"), "").unwrap();
    let sum = "d41d8cd98f00b204e9800998ecf8427e";
    std::fs::write(path("sums"), format!("{sum}  ./empty\n{sum} *a.hld\n")).unwrap();
    let output = headlong(&["data", "verify", "--md5", &path("sums"), &path("a.hld")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text_of(&output).contains(&format!("a.hld: MD5 expected {sum}, found ")),
        "{}",
        text_of(&output)
    );
    let output = headlong(&["data", "verify", "--md5", &path("sums"), &path("a.csv")]);
    assert!(text_of(&output).contains("has no line for a.csv"), "{}", text_of(&output));

    let mut bytes = std::fs::read(path("a.hld")).unwrap();
    bytes[300_000] ^= 4;
    std::fs::write(path("a.hld"), bytes).unwrap();
    let output = headlong(&["data", "verify", &path("a.hld")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text_of(&output).contains("a.hld: block 0 (samples 0 to 4095): checksum"),
        "{}",
        text_of(&output)
    );
}
