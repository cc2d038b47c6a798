//! Tables that the configuration describes one by one: raw ids in hashed tables, through the built
//! program.

#![cfg(test)]

use crate::run_support::{Place, Run};
use serde_json::Value;
use std::path::Path;

/// The first id decides the label: it is asked for by raw id. Another such table has too few rows.
const TABLES: &str = r#"
[tables]
pooling = "mean"

[[table]]
name = "C1"
kind = "hashed"
rows = 2000
options = { min_count = 2 }

[[table]]
name = "C3"
kind = "hashed"
rows = 40
pooling = "sum"
options = { eviction = "lfu" }

[[table]]
name = "C4"
rows = 77
placement = "table_wise"
"#;

fn config(place: &Place, text: &str) -> std::path::PathBuf {
    let file = place.path("tables.toml");
    std::fs::write(&file, text).unwrap();
    file
}

/// All tables hashed, the third with too few rows for its ids.
fn all_hashed() -> String {
    let options = |number| match number {
        3 => "rows = 40\noptions = { eviction = \"lfu\" }",
        _ => "rows = 2000\noptions = { min_count = 2 }",
    };
    let entry = |number| {
        format!("[[table]]\nname = \"C{number}\"\nkind = \"hashed\"\n{}\n", options(number))
    };
    (1..=26).map(entry).collect()
}

fn auc(checkpoint: &Path, place: &Place) -> f64 {
    let eval = Run::new("eval")
        .path("--checkpoint", checkpoint)
        .path("--data", &place.train)
        .with(&["--json"]);
    let answer: Value = serde_json::from_str(&eval.succeeds().stdout).unwrap();
    answer["auc"].as_f64().unwrap()
}

#[test]
fn hashed_tables_learn_and_go_on_in_the_same_bits() {
    let place = Place::new("rows.txt");
    let train = place.train().path("--config", &config(&place, &all_hashed()));
    let train = train.with(&["--learning-rate", "0.1"]);
    let all = train.clone().with(&["--steps", "144"]);
    let whole = place.path("whole");
    let expected =
        all.clone().path("--checkpoint-dir", &whole).path("--valid", &place.valid).succeeds();
    // The integers alone do not tell clicks apart: the tables have learned the rows.
    let learned = auc(&whole, &place);
    assert!(learned > 0.95, "AUC {learned} of the rows that were trained on");
    // The evaluation of the run saw the same weights, and admitted nothing.
    assert_eq!(all.succeeds().digest(), expected.digest());

    let parts = train.path("--checkpoint-dir", &place.path("parts"));
    for steps in ["7", "60"] {
        parts.clone().with(&["--resume", "--steps", steps]).succeeds();
    }
    let last = parts.with(&["--resume", "--steps", "144"]).succeeds();
    assert_eq!(last.digest(), expected.digest());

    let checkpoint = whole.display().to_string();
    Run::new("checkpoint").with(&["verify", &checkpoint]).succeeds();
    let exported = place.path("model.safetensors");
    let export = Run::new("checkpoint").with(&["export", &checkpoint]).path("--output", &exported);
    assert_ne!(export.end().code, Some(0), "the original has no such tables");
}

/// With rows for all ids, ranks change nothing; what four ranks have saved, one resumes from.
#[test]
fn owners_of_raw_ids_train_like_one() {
    let place = Place::new("rows.txt");
    let text = TABLES.replace("rows = 40", "rows = 4000");
    let train =
        place.train().path("--config", &config(&place, &text)).with(&["--set", "sum_blocks=4"]);
    let expected = train.succeeds().digest();
    assert_eq!(train.clone().with(&["--ranks", "2"]).succeeds().digest(), expected);
    let saved = train.path("--checkpoint-dir", &place.path("saved"));
    saved.clone().with(&["--ranks", "4", "--set", "train.steps=11"]).succeeds();
    assert_eq!(saved.with(&["--ranks", "1", "--resume"]).succeeds().digest(), expected);
}

#[test]
fn wrong_tables_are_refused_with_their_names() {
    let place = Place::new("rows.txt");
    let fails = |text: &str, words: &[&str]| {
        place.train().path("--config", &config(&place, text)).fails(2, words);
    };
    fails("[[table]]\nname = \"C3\"\nknd = \"hashed\"\n", &["tables.toml:3", "table.kind"]);
    let of = |rest: &str| format!("[[table]]\nname = \"C3\"\nkind = \"hashed\"\n{rest}\n");
    fails(&of("placement = \"data_parallel\""), &["C3", "no replica"]);
    fails(
        &of("options = { min_cout = 2 }"),
        &["no option `min_cout`; it has: min_count, eviction"],
    );
    fails(
        "[[table]]\nname = \"C3\"\nkind = \"hashd\"\n",
        &["C3", "no table kind `hashd`; known kinds: dense, hashed: did you mean `hashed`?"],
    );
}

/// What this program cannot build is refused by every command that reads a configuration, before it
/// prints anything.
#[test]
fn kinds_that_are_not_registered_are_refused_before_a_plan_is_printed() {
    let place = Place::new("rows.txt");
    let text = "[[table]]\nname = \"C3\"\nkind = \"low_rank\"\ngrain = \"whole\"\n";
    let file = config(&place, text);
    for command in [&["train"][..], &["plan"], &["config", "check"], &["config", "show"]] {
        let run = Run::new(command[0])
            .with(&command[1..])
            .path("--config", &file)
            .path("--data", &place.train);
        let run = run.path("--output-dir", &place.path("output"));
        let ended = run.fails(2, &["C3", "no table kind `low_rank`", "known kinds: dense, hashed"]);
        assert_eq!(ended.stdout, "", "{command:?}");
        assert!(!place.path("output").exists(), "{command:?}");
    }
}
