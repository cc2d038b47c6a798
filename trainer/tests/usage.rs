//! Mistakes of usage: what a command names that is not there, sizes that cannot be, and what the
//! help says.

use crate::command_line::{refused, succeeds};
use crate::run_support::Run;
use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

#[test]
fn what_a_command_names_and_is_not_there_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, file, output) = (path("rows.txt"), path("X.safetensors"), path("out"));
    std::fs::write(&file, "weights").unwrap();
    let row = "1\t".to_owned() + &["1"; 13].join("\t") + "\t" + &["ab"; 26].join("\t") + "\n";
    std::fs::write(&data, row).unwrap();
    let nodir = path("nodir");
    let absent = ["is not a checkpoint: there is no such directory"];
    refused(
        &["eval", "--checkpoint", &nodir, "--data", &data],
        &[&absent[..], &["--checkpoint"]].concat(),
    );
    refused(
        &["predict", "--checkpoint", &nodir, "--data", &data, "--output", &path("a.csv")],
        &absent,
    );
    refused(&["checkpoint", "inspect", &nodir], &absent);
    refused(
        &["checkpoint", "inspect", folder.path().to_str().unwrap()],
        &["it has no manifest.json"],
    );
    for dry_run in [&["--dry-run"][..], &[]] {
        let train = ["train", "--preset", "tiny", "--output-dir", &output, "--init-from", &nodir];
        refused(&[&train, dry_run].concat(), &[&absent[..], &["--init-from"]].concat());
    }
    refused(
        &["eval", "--checkpoint", &file, "--data", &data],
        &["it is a file, expected a directory"],
    );
    for format in ["npy", "split"] {
        refused(
            &["data", "convert", "--data", &data, "--to", format, "--output", &output],
            &[if format == "npy" { "--dense-transform" } else { "--rows" }],
        );
    }
    refused(&["bench", "reader", &path("nofile")], &["nofile", "No such file"]);
    assert!(!Path::new(&output).exists(), "nothing is written before it is refused");
}

#[test]
fn sizes_of_benches_are_refused_where_they_do_not_fit() {
    let huge = "1000000000000000000";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "1\n").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, word) in [
        (&["embedding", "--ids", huge][..], "--ids"),
        (&["embedding", "--rows", huge], "--rows"),
        (&["embedding", "--dim", huge], "--dim"),
        (&["embedding", "--tables", huge], "--tables"),
        (&["embedding", "--threads", "9999"], "1 to 4096 threads"),
        (&["iteration", "--shape", "C3", "--batch-size", "1000000000"], "train.batch_size"),
        (&["all_reduce", "--ranks", "2", "-e", huge], "-e"),
        (&["all_reduce", "-n", huge], "-n 1000000000000000000: expected 1000000000 at most"),
        (&["barrier", "-w", huge], "-w"),
        (&["all_reduce", "-w", "1000000000"], "-w 1000000000: expected 1000000 at most"),
        (&["sendrecv", "-m", "1000000000"], "-m 1000000000: expected 1000000 at most"),
        (&["broadcast", "--ranks", "1000", "-n", "1000000000"], "lower `-e`, `-n` or `--ranks`"),
        (&["p2p", "write", "--nic", "fake", "-e", huge], "lower `-e` or `-n`"),
        (&["p2p", "write", "--nic", "fake", "-w", huge], "-w"),
        (&["reader", "--depth", huge, file], "--depth"),
        (&["reader", "--depth", "0", file], "--depth"),
        (&["reader", "--block-kib", "0", file], "--block-kib"),
        (&["exchange", "--ranks", "2", "--batches", huge], "--batches"),
        (
            &["exchange", "--data", file, "--ranks", "2", "--batch-size", "1000000000"],
            "lower train.batch_size",
        ),
        (&["exchange", "--ranks", "2", "--seconds-per-size", "inf"], "--seconds-per-size"),
        (&["all_reduce", "--seconds-per-size", "1e300"], "--seconds-per-size"),
        (&["all_reduce", "--most-seconds-per-size", "inf"], "--most-seconds-per-size"),
        (&["all_reduce", "--skew", "1e300"], "--skew"),
        (&["tune", "--seconds-per-size", "nan"], "--seconds-per-size"),
        (&["iteration", "--shape", "C2", "--seconds", "1e300"], "--seconds"),
        (&["embedding", "--seconds", "1e300"], "--seconds"),
    ] {
        refused(&[&["bench"], arguments].concat(), &[word]);
    }
}

#[test]
fn settings_that_cannot_work_are_refused_by_plan_as_by_train() {
    let admitted = ["--set", "data.ids=admitted", "--set"];
    for (settings, words) in [
        ([&admitted[..], &["data.cache=host"]].concat(), ["data.ids", "data.cache = \"host\""]),
        ([&admitted[..], &["data.order=batches"]].concat(), ["data.ids", "data.order = \"batch"]),
        (vec!["--epochs", "1e300"], ["train.epochs", "1000000000 at most"]),
    ] {
        for command in ["plan", "train"] {
            refused(&[&[command, "--preset", "tiny"][..], &settings].concat(), &words);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("rows.csv");
    std::fs::write(&table, "y,a\n1,x\n").unwrap();
    let columns = ["data.columns.label=\"y\"", "data.columns.categorical=[\"a\"]"];
    let named = [columns[0], columns[1], "tables.rows=10", admitted[1]];
    let data = ["--data", table.to_str().unwrap()];
    let named = named.map(|setting| ["--set", setting]).concat();
    refused(&[&["plan"][..], &data, &named].concat(), &["data.ids = \"admitted\"", "csv"]);
    let ranks = ["plan", "--preset", "tiny", "--ranks", "2", "--transport", "tcp"];
    assert!(succeeds(&ranks).contains("`headlong launch -n 2 -- train …`"));
}

#[test]
fn what_is_wrong_with_options_is_said_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, empty) = (path("rows.txt"), path("mark.txt"));
    let (drawn, output) = (path("drawn.hld"), path("nodir/rows.hld"));
    crate::run_support::write(Path::new(&data), &crate::run_support::rows(3, 1));
    let draw = ["data", "multi-hot", "--data", &data, "--to", "headlong", "--output", &drawn];
    for (sizes, words) in [
        ("2", ["--sizes: expected 26 counts, one for each column"]),
        ("1048577", ["1048577 is not in 1..=1048576"]),
    ] {
        let more = ["--rows", "criteo-terabyte", "--sizes", sizes];
        refused(&[&draw[..], &more].concat(), &words);
    }
    let make =
        ["data", "build-dictionary", "--data", &data, "--output", &output, "--memory-mib", "0"];
    refused(&make, &["--memory-mib"]);
    let nodir = format!("there is no folder {}", path("nodir"));
    let convert = ["convert", "--data", &data, "--to", "headlong", "--output", &output];
    let said = Run::new("data").with(&convert).fails(1, &[&nodir]).stderr;
    assert!(!said.contains("lock"), "{said}");
    std::fs::write(&empty, "\u{feff}").unwrap();
    for command in ["verify", "inspect"] {
        Run::new("data").with(&[command, &empty]).fails(1, &["empty"]);
    }
    Run::new("train").with(&["--data", &empty]).fails(1, &["empty"]);
}

#[test]
fn no_share_of_a_pipe_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let make =
        Run::new("data").with(&["build-dictionary", "--data", "-"]).path("--output", folder.path());
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut make = make.command();
    make.stdin(reader).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = make.spawn().unwrap();
    drop(make);
    writer.write_all(crate::run_support::rows(500, 1).as_bytes()).unwrap();
    drop(writer);
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    assert!(said.contains("file 1 of 1") && !said.contains('%'), "{said}");
}

#[test]
fn help_lists_what_can_matter() {
    let help = succeeds(&["plan", "--help"]);
    for flag in [
        "--resume",
        "--data-changed",
        "--trace",
        "--init-from",
        "--mllog",
        "--log-json",
        "--dry-run",
    ] {
        assert!(!help.contains(flag), "{flag}: {help}");
        assert!(succeeds(&["train", "--help"]).contains(flag), "{flag}");
    }
    assert!(help.contains("criteo-terabyte-dcnv2") && help.contains("Parquet"), "{help}");
    // A command line of `train` is taken as it is.
    succeeds(&["plan", "--preset", "tiny", "--resume", "--checkpoint-dir", "c", "--log-json", "l"]);
    refused(
        &["train", "--optimizer", "adamw"],
        &["sgd, adagrad, rowwise_adagrad, lazy_adam, ftrl, adam, lamb", "did you mean \"adam\"?"],
    );
}

#[test]
fn a_device_that_is_not_here_can_be_planned_for() {
    if Path::new("/dev/nvidiactl").exists() {
        println!("skipped, because this machine has an NVIDIA driver");
        return;
    }
    let text = succeeds(&["plan", "--device", "cuda", "--ranks", "4"]);
    assert!(
        text.contains("there is none here; assumed are those of `--cluster dgx-h100`"),
        "{text}"
    );
    assert!(text.contains("assumed device of dgx-h100"), "{text}");
}
