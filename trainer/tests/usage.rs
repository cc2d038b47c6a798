//! Mistakes of usage: what a command names that is not there, sizes that cannot be, and what the
//! help says.

use crate::command_line::{refused, succeeds};
use std::path::Path;

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
        (&["p2p", "write", "--card", "fake", "-e", huge], "lower `-e` or `-n`"),
        (&["p2p", "write", "--card", "fake", "-w", huge], "-w"),
        (&["reader", "--depth", huge, file.to_str().unwrap()], "--depth"),
    ] {
        refused(&[&["bench"], arguments].concat(), &[word]);
    }
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
        &["sgd, adagrad, rowwise_adagrad, lazy_adam, ftrl, adam", "did you mean \"adam\"?"],
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
