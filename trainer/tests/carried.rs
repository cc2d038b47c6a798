//! Columns that the model does not see: carried into predictions, groups and slices of `eval`; and
//! rows of CSV that are left out.

#![cfg(test)]

use crate::run_support::{Ended, Place, Run};
use serde_json::Value;
use std::path::PathBuf;

const CONFIG: &str = r#"
[data]
ids = "dictionary"
min_count = 2
on_bad_row = "skip"

[data.columns]
label = "clicked"
categorical = ["page"]
carry = ["session", "later"]
group = "user"
ignored = ["country"]
separator = ";"

[model]
dim = 4
top = [4, 1]

[tables]
rows = "dictionary"

[train]
batch_size = 32
"#;

/// Rows of which every hundredth is bad; pages begin with `prefix`.
fn csv(rows: u64, prefix: &str) -> String {
    let line = |row: u64| {
        let page = row * row % 13;
        let country = ["NO", "SE, or so", ""][(row % 3) as usize];
        let clicked = u8::from(page > 5 || row.is_multiple_of(4));
        let bad = if row % 100 == 50 { "9;9\n" } else { "" };
        format!("{bad}{clicked};s{row};u{};{prefix}{page};{country}\n", row % 11)
    };
    format!("clicked;session;user;page;country\n{}", (0..rows).map(line).collect::<String>())
}

/// A trained model, in `checkpoints`.
fn trained() -> Place {
    let place = Place::new("rows.txt");
    let write = |name: &str, text: &str| std::fs::write(place.path(name), text).unwrap();
    write("clicks.toml", CONFIG);
    write("clicks.csv", &csv(1000, "/"));
    write("new.csv", &csv(250, "/"));
    let train = Run::new("train").path("--config", &place.path("clicks.toml"));
    let train = train.path("--data", &place.path("clicks.csv"));
    let train = train.path("--checkpoint-dir", &place.path("checkpoints"));
    let ended = train.path("--output-dir", &place.path("out")).succeeds();
    assert!(ended.stderr.contains("10 bad rows"), "{}", ended.stderr);
    place
}

fn on(place: &Place, command: &str, data: &str) -> Run {
    let run = Run::new(command).path("--checkpoint", &place.path("checkpoints"));
    run.path("--data", &place.path(data))
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn predictions_carry_the_columns_of_their_rows() {
    let place = trained();
    let output = place.path("p.csv");
    let predict = on(&place, "predict", "new.csv").path("--output", &output);
    let ended = predict.succeeds();
    assert!(ended.stderr.contains("2 bad rows"), "{}", ended.stderr);
    let text = std::fs::read_to_string(&output).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines.len()), ("row,probability,logit,session", 251));
    for (row, line) in lines[1..].iter().enumerate() {
        assert!(line.starts_with(&format!("{row},")), "{line}");
        assert!(line.ends_with(&format!(",s{row}")), "{line}");
    }
    let asked =
        on(&place, "predict", "new.csv").with(&["--output", "-", "--carry", "country", "user"]);
    let text = asked.succeeds().stdout;
    assert_eq!(text.lines().next(), Some("row,probability,logit,country,user"));
    assert!(text.lines().nth(2).unwrap().ends_with(",\"SE, or so\",u1"), "{text}");
    let probabilities = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(',').nth(1).unwrap().to_owned()).collect()
    };
    let whole = std::fs::read_to_string(&output).unwrap();
    assert_eq!(probabilities(&text), probabilities(&whole));
    on(&place, "predict", "new.csv")
        .with(&["--output", "-", "--carry", "contry"])
        .fails(1, &["expected a column `contry`, found `clicked`, `session`"]);
    on(&place, "predict", "new.csv")
        .with(&["--output", "-", "--carry", "user", "user"])
        .fails(2, &["data.columns.carry", "`user` is named twice"]);
    // What training carried need not be there.
    std::fs::write(place.path("few.csv"), "page\n/3\n").unwrap();
    let few = on(&place, "predict", "few.csv").with(&["--output", "-"]).succeeds().stdout;
    assert_eq!(few.lines().next(), Some("row,probability,logit"));
    assert_eq!(few.lines().count(), 2);
    // Nor need training have what is carried: such columns are of the files to predict on.
    std::fs::write(place.path("later.csv"), "page;later\n/3;x\n").unwrap();
    let later = on(&place, "predict", "later.csv").with(&["--output", "-"]).succeeds().stdout;
    assert_eq!(later.lines().next(), Some("row,probability,logit,later"));
    let twice = Run::new("train").path("--config", &place.path("clicks.toml"));
    twice
        .path("--data", &place.path("clicks.csv"))
        .with(&["--set", "data.columns.carry=[\"a\", \"a\"]", "--dry-run"])
        .fails(2, &["data.columns.carry", "`a` is named twice"]);
}

#[test]
fn evaluations_are_taken_by_column_and_within_groups() {
    let place = trained();
    let eval = |arguments: &[&str]| on(&place, "eval", "new.csv").with(arguments).succeeds();
    let ended = eval(&["--by", "country"]);
    assert!(ended.stdout.contains("AUC by `user`"), "{}", ended.stdout);
    assert!(ended.stdout.contains("SE, or so"), "{}", ended.stdout);
    assert!(!ended.stderr.contains("without a row"), "{}", ended.stderr);
    let found = json(&eval(&["--by", "country", "--json"]));
    assert_eq!(found["grouped_auc"]["groups"], 11);
    let slices = found["slices"]["country"].as_array().unwrap();
    let samples: u64 = slices.iter().map(|slice| slice["eval_samples"].as_u64().unwrap()).sum();
    assert_eq!((slices.len(), samples), (3, 250));
    assert_eq!(slices[0]["value"], "NO");
    let tenths = found["tenths"].as_array().unwrap();
    let samples: u64 = tenths.iter().map(|tenth| tenth["samples"].as_u64().unwrap()).sum();
    assert_eq!(samples, 250);
    assert!(found["unseen_ids"]["C1 (`page`)"].is_number(), "{found}");
    // Within a page all predictions are equal.
    let by_page = json(&eval(&["--group", "page", "--json"]))["grouped_auc"]["auc"].as_f64();
    assert!(by_page.is_none_or(|auc| auc == 0.5), "{by_page:?}");
}

/// Pages that training has seen as "/3" and evaluation calls "page 3".
#[test]
fn ids_that_are_written_otherwise_are_noticed() {
    let place = trained();
    std::fs::write(place.path("other.csv"), csv(250, "page ")).unwrap();
    let ended = on(&place, "eval", "other.csv").succeeds();
    let words = "ids without a row of their own";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert!(ended.stderr.contains("C1 (`page`) 100 %"), "{}", ended.stderr);
}

/// Bad rows of CSV train as if they were not there, whatever the order.
#[test]
fn rows_that_are_skipped_change_no_bit() {
    let place = Place::new("rows.txt");
    let write = |name: &str, text: &str| {
        std::fs::write(place.path(name), text).unwrap();
        place.path(name)
    };
    let config = write("clicks.toml", CONFIG);
    let bad = write("bad.csv", &csv(500, "/"));
    let good = write("good.csv", &csv(500, "/").replace("9;9\n", ""));
    let train = |data: &PathBuf, order: &[&str]| {
        let run = Run::new("train").path("--config", &config).path("--data", data).with(order);
        run.path("--output-dir", &place.path("out")).succeeds().digest()
    };
    for order in [&["--set", "data.order=samples"][..], &["--holdout", "0.2"]] {
        assert_eq!(train(&bad, order), train(&good, order), "{order:?}");
        std::fs::remove_dir_all(place.path("out")).unwrap();
    }
}
