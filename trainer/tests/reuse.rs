//! What an earlier run has left is used again for the same data, and for no other.

#![cfg(test)]

use crate::run_support::{Place, Run, names, rows, write};
use std::fmt::Write as _;
use std::path::Path;

/// A table with a header: columns `a` and `b` of ids that have nothing in common.
fn table(count: u64, first: &str, second: &str, shift: u64) -> String {
    let mut text = format!("label,{first},{second}\n");
    for row in 0..count {
        let ids = [1000 + (row + shift) % 7, 2000 + row % 11];
        let id = |name: &str| ids[usize::from(name == "b")];
        writeln!(text, "{},{},{}", row % 3 / 2, id(first), id(second)).unwrap();
    }
    text
}

/// `headlong train` of that table, with a dictionary in the output folder.
fn train(place: &Place, data: &Path, columns: &str) -> Run {
    let categorical = format!("data.columns.categorical={columns}");
    Run::new("train")
        .path("--data", data)
        .path("--output-dir", &place.path("out"))
        .with(&[
            "--set",
            "data.columns.label='label'",
            "--set",
            &categorical,
            "--set",
            "data.ids=dictionary",
        ])
        .with(&["--set", "tables.rows=dictionary", "--set", "data.min_count=1", "--steps", "3"])
        .with(&[
            "--set",
            "model.dim=4",
            "--set",
            "model.top=[4,1]",
            "--batch-size",
            "16",
            "--threads",
            "1",
        ])
}

#[test]
fn a_dictionary_is_reused_for_the_same_data_alone() {
    let place = Place::new("rows.txt");
    let data = place.path("clicks.csv");
    write(&data, &table(400, "a", "b", 0));
    let run = |columns: &str| train(&place, &data, columns).succeeds().stderr;
    assert!(run("['a','b']").contains("building the dictionary"));
    assert!(run("['a','b']").contains("made earlier from the same files"));
    // The same file, the other order of columns.
    let again = run("['b','a']");
    assert!(again.contains("`data.columns.categorical[0]` was \"a\", is \"b\""), "{again}");
    assert!(
        again.contains("counted again") && again.contains("building the dictionary"),
        "{again}"
    );
    assert!(run("['a','b']").contains("building the dictionary"));
    // Written again with as many bytes.
    let length = std::fs::metadata(&data).unwrap().len();
    write(&data, &table(400, "a", "b", 1));
    assert_eq!(std::fs::metadata(&data).unwrap().len(), length);
    let again = run("['a','b']");
    assert!(again.contains("clicks.csv is not the file that was counted"), "{again}");
    // Another number of columns: what is left does not fit, and what is named is refused.
    let fewer = ["--set", "data.columns.ignored=['b']"];
    let again = train(&place, &data, "['a']").with(&fewer).succeeds().stderr;
    assert!(again.contains("building the dictionary"), "{again}");
    let named = format!("data.dictionary='{}'", place.path("out/dictionary").display());
    train(&place, &data, "['a','b']")
        .with(&["--set", &named])
        .fails(2, &["data.dictionary", "expected 2 columns (data.num_sparse)", "has 1"]);
    let plan = train(&place, &data, "['a','b']").with(&["--set", &named]).of_command("plan");
    plan.fails(2, &["data.dictionary", "expected 2 columns"]);
}

#[test]
fn a_dictionary_that_was_made_beforehand_serves_a_run_of_the_same_files() {
    let place = Place::new("rows.txt");
    let folder = place.path("output/dictionary");
    let make = Run::new("data")
        .with(&["make", "--min-count", "2", "--max-rows", "1000000"])
        .path("--data", &place.train);
    make.path("--output", &folder).succeeds();
    let dictionary =
        ["--set", "data.ids=dictionary", "--set", "tables.rows=dictionary", "--steps", "3"];
    let train = |min_count: &str| {
        let rule = format!("data.min_count={min_count}");
        place.train().with(&dictionary).with(&["--set", &rule]).succeeds().stderr
    };
    let found = train("2");
    assert!(found.contains("made earlier"), "{found}");
    let again = train("3");
    assert!(again.contains("`rule.min_count` was 2, is 3"), "{again}");
}

#[test]
fn statistics_are_counted_again_for_other_data_of_the_same_length() {
    let place = Place::new("rows.txt");
    let ranks = place.train().with(&["--ranks", "2", "--steps", "3"]);
    let kept = || {
        names(&place.path("output")).iter().filter(|name| name.starts_with("statistics-")).count()
    };
    assert!(ranks.succeeds().stderr.contains("counted the rows"));
    assert!(ranks.succeeds().stderr.contains("statistics of"));
    assert_eq!(kept(), 1);
    // One id becomes another one.
    let text = rows(1500, 7);
    let (first, rest) = text.split_once('\n').unwrap();
    let (before, _) = first.rsplit_once('\t').unwrap();
    let id = if first.ends_with("00000001") { "00000002" } else { "00000001" };
    let changed = format!("{before}\t{id}\n{rest}");
    assert_eq!(changed.len(), text.len(), "the last column of the first row is an id");
    write(&place.train, &changed);
    assert!(ranks.succeeds().stderr.contains("counted the rows"));
    // Another way to make rows of ids, and another order of batches.
    assert!(
        ranks
            .clone()
            .with(&["--set", "data.ids=modulo"])
            .succeeds()
            .stderr
            .contains("counted the rows")
    );
    assert_eq!(kept(), 3);
}

#[test]
fn synthetic_data_is_said_to_be_written_when_it_is() {
    let place = Place::new("rows.txt");
    let rows =
        ["--set", "synthetic.train_rows=640", "--set", "synthetic.valid_rows=64", "--steps", "2"];
    let train = place.train_without_data().with(&rows).with(&["--threads", "1"]);
    let said = |run: &Run| run.succeeds().stderr.contains("writing synthetic");
    assert!(said(&train));
    assert!(!said(&train), "made earlier");
    assert!(said(&train.clone().with(&["--set", "synthetic.seed=5"])));
    // A file that somebody has changed, to the same length.
    let data = place.path("output/synthetic-data/train.txt");
    let mut bytes = std::fs::read(&data).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&data, bytes).unwrap();
    assert!(said(&train.with(&["--set", "synthetic.seed=5"])));
}
