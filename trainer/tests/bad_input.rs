//! Bad input, through the command line: each kind has an exit code and a message that names file
//! and line, or key.

#![cfg(test)]

use crate::run_support::{Place, Run, gzip, last_event, names, rows, steps};
use headlong::config::{Config, TableRows};
use headlong::iteration::lanes::Lanes;
use headlong::iteration::model::Model;
use headlong::iteration::trace::Recorder;
use headlong::iteration::worker::{RankWorker, StepRates};
use headlong_device::Stream;
use headlong_reader::{Batch, Jagged};
use std::path::Path;

/// Line 7 of the training file with one field replaced.
fn with_bad_field(place: &Place, field: usize, value: &str) -> String {
    let text = rows(500, 7);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut fields: Vec<&str> = lines[6].split('\t').collect();
    fields[field] = value;
    lines[6] = fields.join("\t");
    std::fs::write(&place.train, lines.join("\n") + "\n").unwrap();
    place.train.to_str().unwrap().to_owned()
}

#[test]
fn malformed_fields_name_file_line_and_column() {
    let place = Place::new("bad.txt");
    for (field, value, words) in [
        (0, "2", ["label", "expected 0 or 1", "\"2\""]),
        (0, "", ["label", "expected 0 or 1", "\"\""]),
        (3, "1.5", ["column I3", "expected an integer", "\"1.5\""]),
        (
            13,
            "99999999999999999999",
            ["column I13", "expected an integer", "\"99999999999999999999\""],
        ),
        (14, "zzzz", ["column C1", "hexadecimal", "\"zzzz\""]),
        (39, "123456789", ["column C26", "hexadecimal", "\"123456789\""]),
        (39, "1\t2", ["expected 40 tab-separated columns", "found 41", "line 7"]),
    ] {
        let file = with_bad_field(&place, field, value);
        let log = place.path("log.json");
        let run = place.train().path("--log-json", &log);
        run.fails(1, &[&format!("{file}, line 7: "), words[0], words[1], words[2]]);
        let event = last_event(&log, "error");
        assert_eq!(
            (event["file"].as_str(), event["line"].as_u64()),
            (Some(file.as_str()), Some(7)),
            "{event}"
        );
        assert_eq!(event["exit_code"], 1);
    }
    // A row without its last column, as an unlabelled file has it.
    let text = rows(500, 7).lines().map(|line| format!("{}\n", &line[2..])).collect::<String>();
    std::fs::write(&place.train, text).unwrap();
    place.train().fails(1, &["bad.txt, line 1: ", "expected 40", "found 39"]);
}

#[test]
fn commas_without_a_tab_hint_at_csv() {
    let place = Place::new("clicks.log");
    let csv = (0..80).fold("label,age,film\n".to_owned(), |text, row| {
        format!("{text}{},{},f{}\n", row % 2, row % 7, row % 5)
    });
    std::fs::write(&place.train, csv).unwrap();
    let hint = "line 1: expected 40 tab-separated columns, found 1 in \"label,age,film\" (is it \
                CSV? --data-format csv reads it; in `headlong data`, --from csv)";
    place.train().fails(1, &[hint]);
    let convert = Run::new("data").with(&["convert", "--to", "csv"]).path("--data", &place.train);
    let convert = convert.path("--output", &place.path("to.csv"));
    convert.fails(1, &[hint]);
    let columns = ["data.columns.label=\"label\"", "data.columns.dense=[\"age\"]"];
    let columns = [&columns[..], &["data.columns.categorical=[\"film\"]"]].concat();
    let read = columns.iter().fold(place.train(), |run, column| run.with(&["--set", column]));
    read.with(&["--data-format", "csv"]).succeeds();
}

#[test]
fn skipping_leaves_them_out_counts_and_reports_them() {
    let place = Place::new("bad.txt");
    let file = with_bad_field(&place, 20, "zzzz");
    let log = place.path("log.json");
    let run = place.train().path("--log-json", &log).with(&["--on-bad-row", "skip"]);
    let skipped = run.succeeds();
    assert!(skipped.stderr.contains(&format!(
        "1 bad row was skipped in the training data; the first: {file}, line 7"
    )));
    assert_eq!(last_event(&log, "warning")["skipped"], 1);
    assert_eq!(last_event(&log, "warning")["line"], 7);
    assert_eq!(last_event(&log, "done")["samples"], 499);

    let text = std::fs::read_to_string(&place.train).unwrap();
    let good: String = text
        .split_inclusive('\n')
        .enumerate()
        .filter(|(line, _)| *line != 6)
        .map(|(_, text)| text)
        .collect();
    std::fs::write(&place.train, good).unwrap();
    assert_eq!(
        place.train().succeeds().digest(),
        skipped.digest(),
        "skipping is the same as not having the row"
    );
}

#[test]
fn bad_rows_of_validation_and_prediction_are_named_or_counted_too() {
    let place = Place::new("rows.txt");
    let checkpoints = place.path("checkpoints");
    place.train().path("--checkpoint-dir", &checkpoints).succeeds();
    let valid = std::fs::read_to_string(&place.valid).unwrap() + "no row\n";
    std::fs::write(&place.valid, valid).unwrap();
    let named = [place.valid.to_str().unwrap(), "line 301", "expected 40"];
    let with_valid = place.train().path("--valid", &place.valid);
    with_valid.fails(1, &named);
    let skipped = with_valid.with(&["--on-bad-row", "skip"]).succeeds();
    assert!(
        skipped.stderr.contains("1 bad row was skipped in the validation data"),
        "{}",
        skipped.stderr
    );

    let eval = Run::new("eval").path("--checkpoint", &checkpoints).path("--data", &place.valid);
    let output = place.path("predictions.csv");
    let predict =
        Run::new("predict").path("--checkpoint", &checkpoints).path("--data", &place.valid);
    let predict = predict.path("--output", &output);
    for run in [eval, predict] {
        run.fails(1, &named);
        assert!(!output.exists(), "a failed prediction leaves no file");
        let skipped = run.with(&["--on-bad-row", "skip"]).succeeds();
        assert!(skipped.stderr.contains("1 bad row was skipped"), "{}", skipped.stderr);
    }
    assert_eq!(std::fs::read_to_string(&output).unwrap().lines().count(), 301);
}

/// Rows are read ahead of the steps; none of these is known to be needed.
#[test]
fn a_bad_row_that_no_step_needs_is_neither_an_error_nor_skipped() {
    let place = Place::new("rows.txt");
    let text = rows(500, 7);
    let all: Vec<&str> = text.lines().collect();
    // Batches have 64 rows: three steps need 192 of them.
    for good in [192, 200, 300, 499] {
        let bad = [&all[..good], &["bad"], &all[good..]].concat().join("\n");
        std::fs::write(&place.train, bad).unwrap();
        let ended = place.train().with(&["--steps", "3"]).succeeds();
        assert!(!ended.stderr.contains("skipped"), "{good}: {}", ended.stderr);
        if good < 256 {
            place.train().with(&["--steps", "4"]).fails(1, &[&format!("line {}", good + 1)]);
        }
    }
}

/// The steps before the bad row are not lost.
#[test]
fn a_bad_row_late_in_the_data_loses_no_steps() {
    let place = Place::new("rows.txt");
    let text = std::fs::read_to_string(&place.train).unwrap();
    let bad = text.lines().count() + 1;
    std::fs::write(&place.train, format!("{text}bad\n")).unwrap();
    let checkpoints = place.path("checkpoints");
    let run = place.train().path("--checkpoint-dir", &checkpoints);
    run.fails(1, &[&format!("line {bad}")]);
    let saved = steps(&checkpoints);
    assert!(saved.len() == 1 && saved[0] > 0, "{saved:?}");
    // The same row again, before any step: there is nothing new to save.
    let manifest = checkpoints.join(&names(&checkpoints)[1]).join("manifest.json");
    let before = std::fs::read(&manifest).unwrap();
    let other = place.path("other.txt");
    std::fs::write(&other, text.lines().next().unwrap()).unwrap();
    let resumed = run.clone().with(&["--resume"]);
    let changed =
        place.train_without_data().path("--data", &other).path("--checkpoint-dir", &checkpoints);
    for again in [resumed.clone(), changed.with(&["--resume", "--data-changed"])] {
        let said = again.fails(1, &[""]).stderr;
        assert!(!said.contains("checkpoint ") && !said.contains("was not saved"), "{said}");
        assert_eq!(std::fs::read(&manifest).unwrap(), before);
    }
    resumed.with(&["--on-bad-row", "skip"]).succeeds();
}

/// What is lost is said to people and to the log, whichever rank has failed.
#[test]
fn steps_that_were_not_saved_are_named() {
    let place = Place::new("rows.txt");
    let text = std::fs::read_to_string(&place.train).unwrap();
    std::fs::write(&place.train, format!("{text}bad\n")).unwrap();
    let (log, checkpoints) = (place.path("log.json"), place.path("checkpoints"));
    let run = place.train().path("--checkpoint-dir", &checkpoints).path("--log-json", &log);
    // The rows that are counted first are good.
    let run = run.with(&["--save-every", "5", "--set", "hybrid.statistics_batches=1"]);
    let failed = run.launched(2).end();
    let last = *steps(&checkpoints).last().unwrap();
    let lost = format!("the last that this run has saved: step {last}");
    assert!(failed.stderr.contains(&lost), "{}", failed.stderr);
    let message = last_event(&log, "warning")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("was not saved") && message.ends_with(&lost), "{message}");
}

#[test]
fn files_that_are_no_files() {
    let place = Place::new("rows.txt");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let on = |file: &Path| {
        let run = Run::new("train").with(&["--set", "tables.rows=100"]).path("--data", file);
        run.path("--output-dir", &place.path("output"))
    };
    let missing = place.path("missing.txt");
    on(&missing).fails(2, &["data.train", &path(&missing), "No such file"]);
    let folder = place.path("folder");
    std::fs::create_dir(&folder).unwrap();
    on(&folder).fails(2, &["data.train", &path(&folder), "is a directory"]);
    on(&place.train)
        .path("--valid", &folder)
        .fails(2, &["data.valid", &path(&folder), "is a directory"]);
    let empty = place.path("empty.txt");
    std::fs::write(&empty, "").unwrap();
    on(&empty).fails(1, &[&path(&empty), "is empty"]);
    on(&place.train).path("--valid", &empty).fails(1, &[&path(&empty), "is empty"]);
    let truncated = place.path("truncated.gz");
    let stored = gzip(&rows(1500, 7));
    std::fs::write(&truncated, &stored[..stored.len() / 2]).unwrap();
    on(&truncated).fails(1, &[&path(&truncated), "truncated", "after line"]);
    let mut damaged = stored;
    let middle = damaged.len() / 2;
    damaged[middle..middle + 64].fill(0xff);
    let corrupt = place.path("corrupt.gz");
    std::fs::write(&corrupt, damaged).unwrap();
    on(&corrupt).fails(1, &[&path(&corrupt), "corrupt.gz"]);
    // Skipping lines is no licence to lose the rest of a file.
    on(&truncated).with(&["--on-bad-row", "skip"]).fails(1, &["truncated"]);
}

#[test]
fn a_loss_that_is_no_number_names_step_and_layer() {
    let place = Place::new("rows.txt");
    let log = place.path("log.json");
    let run = place.train().path("--log-json", &log).with(&[
        "--learning-rate",
        "1e30",
        "--optimizer",
        "sgd",
    ]);
    let failed = run.fails(1, &["in step ", "lower the learning rate"]);
    assert!(
        ["output of layer", "output of the", "vector of table", "logit"]
            .iter()
            .any(|place| failed.stderr.contains(place)),
        "{}",
        failed.stderr
    );
    let event = last_event(&log, "error");
    assert!(
        event["step"].as_u64().is_some_and(|step| step >= 1) && event["place"].is_string(),
        "{event}"
    );
}

#[test]
fn plans_that_do_not_fit_and_contradictions_are_refused_before_anything_is_taken() {
    let place = Place::new("rows.txt");
    let huge = ["--set", "tables.rows=4000000000", "--set", "tables.max_rows=4000000000"];
    let run = || {
        Run::new("train").path("--data", &place.train).path("--output-dir", &place.path("output"))
    };
    run().with(&huge).fails(2, &["tables.max_rows", "available"]);
    run()
        .with(&["--set", "tables.rowz=4"])
        .fails(2, &["unknown key `tables.rowz`", "did you mean `tables.rows`"]);
    run().with(&["--epochs", "2", "--steps", "4"]).fails(2, &["--epochs", "--steps"]);
    run().with(&["--resume"]).fails(2, &["--resume", "--checkpoint-dir"]);
    run().with(&["--seed", "1", "--set", "train.seed=2"]).fails(2, &["--seed", "train.seed"]);
    let both =
        run().path("--init-from", &place.path("a")).path("--checkpoint-dir", &place.path("b"));
    both.with(&["--resume"]).fails(2, &["--init-from", "--resume"]);
    run().with(&["--set", "model.bottom=[8]"]).fails(2, &["model.bottom", "model.dim"]);
    let nowhere =
        run().path("--init-from", &place.path("nowhere")).with(&["--set", "tables.rows=100"]);
    nowhere.fails(2, &["--init-from", "nowhere", "no such directory"]);
}

/// Through the library: the reader never gives such ids.
#[test]
fn an_id_out_of_range_names_table_sample_and_row() {
    let mut config = Config::default();
    (config.data.num_dense, config.data.num_sparse) = (2, 3);
    (config.tables.rows, config.train.batch_size, config.model.dim) = (TableRows::Each(10), 4, 16);
    let stream = Stream::cpu(1);
    let model = Model::new(&config, &[10, 10, 10], &stream).unwrap();
    let mut worker = RankWorker::new(model, Lanes::serial(stream).unwrap(), Recorder::off());
    let batch = |bad: Option<u64>| Batch {
        num_samples: 4,
        labels: vec![0.0, 1.0, 0.0, 1.0],
        dense: vec![0.5; 8],
        sparse: (0..3)
            .map(|table| Jagged {
                values: vec![1, 2, if table == 1 { bad.unwrap_or(9) } else { 9 }, 3],
                offsets: vec![0, 1, 2, 3, 4].into(),
            })
            .collect(),
        ..Batch::default()
    };
    let refused = |error: headlong::Error| {
        let message = headlong::error::chain(&error);
        for word in ["C2", "row index 10", "sample 2", "10 rows"] {
            assert!(message.contains(word), "{word} is not in: {message}");
        }
        assert_eq!(error.exit_code(), 1);
    };
    refused(worker.prime(&batch(Some(10))).unwrap_err());
    refused(worker.predict(&batch(Some(10))).unwrap_err());
    let rates = StepRates { number: 1, dense: 0.1, sparse: 0.1 };
    worker.prime(&batch(None)).unwrap();
    refused(worker.step(rates, Some(&batch(Some(10)))).unwrap_err());
}
