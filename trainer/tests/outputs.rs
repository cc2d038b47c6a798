//! Where commands write: never through a link that somebody planted, and straight into what is no
//! file.

#![cfg(test)]

use crate::run_support::{Place, Run, names};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A checkpoint of a few steps.
fn checkpoint(place: &Place) -> PathBuf {
    let checkpoints = place.path("checkpoints");
    place.train().with(&["--steps", "3"]).path("--checkpoint-dir", &checkpoints).succeeds();
    checkpoints
}

fn predict(checkpoint: &Path, data: &Path, output: &str) -> Run {
    let run = Run::new("predict").path("--checkpoint", checkpoint).path("--data", data);
    run.with(&["--output", output, "--threads", "1"])
}

fn convert(data: &Path, to: &str, output: &Path) -> Run {
    Run::new("data").with(&["convert", "--to", to]).path("--data", data).path("--output", output)
}

#[test]
fn predictions_go_to_standard_output_to_pipes_and_to_devices() {
    let place = Place::new("rows.txt");
    let checkpoint = checkpoint(&place);
    let expected = place.path("p.csv");
    predict(&checkpoint, &place.valid, expected.to_str().unwrap()).succeeds();
    let expected = std::fs::read_to_string(expected).unwrap();
    for output in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let printed = predict(&checkpoint, &place.valid, output).succeeds();
        assert!(printed.stdout == expected, "{output}: {}", &printed.stdout[..200]);
    }
    predict(&checkpoint, &place.valid, "/dev/null").succeeds();
    assert!(!std::fs::metadata("/dev/null").unwrap().is_file());

    // Redirected to a file that has lines already, and by the shell to a pipe.
    let shell = |script: &str| {
        let arguments = predict(&checkpoint, &place.valid, "/dev/stdout").arguments().to_vec();
        let mut command = std::process::Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_headlong")]).args(arguments);
        let output = command.current_dir(place.path("")).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::write(place.path("log"), "before\n").unwrap();
    shell("\"$0\" \"$@\" >> log");
    assert!(std::fs::read_to_string(place.path("log")).unwrap() == format!("before\n{expected}"));
    shell(
        "\"$0\" \"${@:1:5}\" --output >(cat > piped) --threads 1; wait $!; for i in {1..100}; do \
           [ $(wc -c < piped) -ge $(wc -c < p.csv) ] && break; sleep 0.05; done",
    );
    assert!(std::fs::read_to_string(place.path("piped")).unwrap() == expected);
    let left: Vec<_> =
        names(&place.path("")).into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");

    // Formats that go back to their beginning need a file.
    convert(&place.valid, "csv", Path::new("/dev/stdout")).succeeds();
    let export = Run::new("checkpoint").with(&[
        "export",
        checkpoint.to_str().unwrap(),
        "--output",
        "/dev/stdout",
    ]);
    export.fails(2, &["--output /dev/stdout", "front to back"]);
    let export =
        Run::new("checkpoint").with(&["export", checkpoint.to_str().unwrap(), "--output", "-"]);
    export.fails(2, &["--output -: exported files are not written front to back"]);
}

#[test]
fn a_reader_that_goes_away_ends_the_prediction_in_silence() {
    let place = Place::new("rows.txt");
    let checkpoint = checkpoint(&place);
    let arguments = predict(&checkpoint, &place.train, "-").arguments().to_vec();
    let script = "set -o pipefail; \"$0\" \"$@\" | { exec <&-; sleep 2; }";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_headlong")]).args(arguments);
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("error"), "{errors}");
}

/// Flags that name an output, given a file that the command reads by another name: refused before
/// anything is touched. (That each output is not the command's own data, by whatever name, is among
/// the cases of `odd_files`.)
#[test]
fn no_output_is_an_input() {
    let place = Place::new("rows.txt");
    let checkpoint = checkpoint(&place);
    let step = checkpoint.join("step-000000003");
    let (valid, manifest, config) =
        (&place.valid, step.join("manifest.json"), place.path("config.toml"));
    std::fs::write(&config, "[train]\nbatch_size = 64\n").unwrap();
    std::fs::write(place.path("sums.md5"), "").unwrap();
    let [hard, soft] = ["hard.txt", "soft.txt"].map(|name| place.path(name));
    std::fs::hard_link(valid, &hard).unwrap();
    symlink(valid, &soft).unwrap();
    let dictionary = place.path("dictionary/dictionary.hld");
    std::fs::create_dir(place.path("dictionary")).unwrap();
    std::fs::copy(valid, &dictionary).unwrap();

    let train =
        |flag: &str, path: &Path| place.train_without_data().path("--data", valid).path(flag, path);
    let data = |command: &str| Run::new("data").with(&[command]);
    let export = Run::new("checkpoint").with(&["export", checkpoint.to_str().unwrap()]);
    let inspect = Run::new("checkpoint").with(&["inspect", checkpoint.to_str().unwrap()]);
    let make = |output: &Path| data("make").path("--data", &dictionary).path("--output", output);
    let bench = |words: &[&str]| Run::new("bench").with(words);
    let small = ["all_reduce", "--backend", "local", "-n", "2", "-e", "1K"];
    let cases: Vec<(Run, &Path, &str)> = vec![
        (place.train().path("--valid", valid).path("--trace", valid), valid, "--valid"),
        (train("--config", &config).path("--trace", &config), &config, "--config"),
        (
            place
                .train()
                .with(&["--resume"])
                .path("--checkpoint-dir", &checkpoint)
                .path("--mllog", &manifest),
            &manifest,
            "--checkpoint-dir",
        ),
        (
            train("--init-from", &checkpoint).path("--trace", &step.join("new")),
            &manifest,
            "--init-from",
        ),
        (
            predict(&checkpoint, valid, step.join("p.csv").to_str().unwrap()),
            &manifest,
            "--checkpoint",
        ),
        (convert(valid, "csv", &place.path("new.csv")).path("--json-file", &hard), valid, "--data"),
        (
            data("multi-hot")
                .with(&["--to", "raw", "--rows", "100"])
                .path("--data", valid)
                .path("--output", &soft),
            valid,
            "--data",
        ),
        (
            data("verify")
                .with(&[valid.to_str().unwrap()])
                .path("--md5", &place.path("sums.md5"))
                .path("--json-file", &place.path("sums.md5")),
            valid,
            "--md5",
        ),
        (make(&place.path("dictionary")), &dictionary, "--data"),
        (export.path("--output", &step.join("model.safetensors")), &manifest, "DIR"),
        (inspect.path("--json-file", &manifest), &manifest, "DIR"),
        (bench(&["reader", valid.to_str().unwrap()]).path("--json-file", valid), valid, "FILE"),
        (bench(&small).path("--baseline", valid).path("--plot", valid), valid, "--baseline"),
        (bench(&["forecast"]).path("--tuning", valid).path("--write", valid), valid, "--tuning"),
    ];
    for (run, file, flag) in cases {
        let before = std::fs::read(file).unwrap();
        run.fails(2, &[flag, "name another file"]);
        assert!(std::fs::read(file).unwrap() == before, "{:?}", run.arguments());
    }
    let both = place.path("both");
    train("--log-json", &both)
        .path("--mllog", &both)
        .fails(2, &["--mllog", "--log-json", "writes"]);
    // The history is of the run that has made the checkpoint.
    assert!(!both.exists() && names(&place.path("output")) == ["history.jsonl"]);
    // A folder of split files onto itself.
    let split = place.path("split/train");
    let spec = ["--dense-transform", "ln(x+1)", "--rows", "1000"];
    convert(valid, "split", &split).with(&spec).succeeds();
    convert(&split, "split", &split).fails(2, &["--output", "--data"]);
    convert(&split, "split", &place.path("split/test")).succeeds();
}

/// A shell may have made standard output the file that is read; what would be printed or written to
/// `-` would destroy it, or never end.
#[test]
fn standard_output_is_no_input() {
    let place = Place::new("rows.txt");
    let checkpoint = checkpoint(&place);
    let valid = &place.valid;
    let before = std::fs::read(valid).unwrap();
    let to_dash = Path::new("-");
    let log = place.train_without_data().path("--data", valid).with(&["--log-json", "-"]);
    let inspect = Run::new("data").with(&["inspect", valid.to_str().unwrap()]);
    let launched = log.clone().launched(2);
    for (run, redirection) in [
        (convert(valid, "criteo", to_dash), ">>"),
        (convert(to_dash, "criteo", to_dash), "< \"$0\" >>"),
        (predict(&checkpoint, valid, "-"), "1<>"),
        (log, ">>"),
        (launched.clone(), ">>"),
        (inspect.clone().with(&["--json"]), ">>"),
        (inspect, ">>"),
    ] {
        let script = format!("ulimit -f 1000; exec \"$1\" \"${{@:2}}\" {redirection} \"$0\"");
        let mut shell = std::process::Command::new("bash");
        shell.arg("-c").arg(&script).arg(valid).arg(env!("CARGO_BIN_EXE_headlong"));
        let ended = shell.args(run.arguments()).current_dir(place.path("")).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{:?} {redirection}: {said}", run.arguments());
        let ranks = if run.arguments() == launched.arguments() { 2 } else { 1 };
        assert_eq!(said.matches("/dev/stdout is the file that").count(), ranks, "{said}");
        assert!(std::fs::read(valid).unwrap() == before, "{:?} {redirection}", run.arguments());
    }
}

#[test]
fn a_dry_run_and_a_plan_write_nothing() {
    let place = Place::new("rows.txt");
    let before = names(&place.path(""));
    let dictionary = ["--set", "data.ids=dictionary", "--set", "tables.rows=dictionary"];
    let log = place.path("old.json");
    for (run, what) in [
        (place.train_without_data(), "synthetic data"),
        (place.train(), "hashed ids"),
        (place.train().with(&dictionary), "a dictionary"),
        (place.train().with(&["--ranks", "2"]), "statistics"),
        (place.train_without_data().with(&["--ranks", "2"]), "both"),
    ] {
        let run = run.with(&["--steps", "2"]);
        let dry =
            run.clone().with(&["--dry-run"]).path("--checkpoint-dir", &place.path("checkpoints"));
        let dry =
            dry.path("--trace", &place.path("trace.json")).path("--mllog", &place.path("ml.log"));
        let printed = dry.path("--log-json", &log).succeeds();
        assert!(
            printed.stdout.contains("plan of") && !printed.stderr.contains("writing"),
            "{what}"
        );
        run.of_command("plan").succeeds();
        assert_eq!(names(&place.path("")), before, "{what}");
    }
    // What an earlier run has left is used, and stays as it is.
    let run = place
        .train()
        .with(&dictionary)
        .with(&["--ranks", "2", "--steps", "2"])
        .path("--log-json", &log);
    run.succeeds();
    let (before, logged) = (names(&place.path("output")), std::fs::read(&log).unwrap());
    let printed = run.with(&["--dry-run"]).succeeds().stdout;
    assert!(!printed.contains("the dictionary decides"), "{printed}");
    assert_eq!((names(&place.path("output")), std::fs::read(&log).unwrap()), (before, logged));
}

/// A file in the checkpoint's own folder would make it one that is never counted or removed.
#[test]
fn an_export_goes_next_to_the_checkpoint_even_from_inside() {
    let place = Place::new("rows.txt");
    let step = checkpoint(&place).join("step-000000003");
    let before = names(&step);
    let mut export = Run::new("checkpoint").with(&["export", "."]).command();
    assert!(export.current_dir(&step).status().unwrap().success());
    assert_eq!(names(&step), before);
    assert!(step.with_extension("safetensors").exists());
}

#[test]
fn several_processes_predict_and_evaluate_once_and_refuse_to_write_one_file_twice() {
    let place = Place::new("rows.txt");
    let checkpoint = checkpoint(&place);
    let [alone, together] = ["alone.csv", "together.csv"].map(|name| place.path(name));
    predict(&checkpoint, &place.train, alone.to_str().unwrap()).succeeds();
    let ended =
        predict(&checkpoint, &place.train, together.to_str().unwrap()).launched(3).succeeds();
    assert!(
        ended.stderr.contains("`predict` is the work of one process: rank 0 of 3 does it"),
        "{}",
        ended.stderr
    );
    assert!(std::fs::read(&alone).unwrap() == std::fs::read(&together).unwrap());
    let eval = Run::new("eval").path("--checkpoint", &checkpoint).path("--data", &place.valid);
    let printed = eval.launched(3).succeeds().stdout;
    assert_eq!(printed.matches("AUC").count(), 1, "{printed}");
    let plan = Run::new("plan").with(&["--preset", "tiny"]);
    let ended = plan.path("--json-file", &place.path("plan.json")).launched(3).succeeds();
    assert!(ended.stderr.contains("`plan` is the work of one process"), "{}", ended.stderr);
    assert!(std::fs::read_to_string(place.path("plan.json")).unwrap().ends_with("}\n"));
    let export = Run::new("checkpoint").with(&["export", checkpoint.to_str().unwrap()]);
    for run in [
        convert(&place.valid, "csv", &place.path("v.csv")),
        export.clone().path("--output", &place.path("e.safetensors")),
        export,
        Run::new("data")
            .with(&["make"])
            .path("--data", &place.valid)
            .path("--output", &place.path("made")),
    ] {
        run.launched(3).fails(2, &["3 processes would all write", "run it without a launcher"]);
    }
    assert!(["v.csv", "e.safetensors", "made"].iter().all(|name| !place.path(name).exists()));
}
