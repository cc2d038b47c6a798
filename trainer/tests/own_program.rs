//! A program of one's own, with a kind of tables of its own: the example `05_own_program`.

#![cfg(test)]

use crate::run_support::{Place, Run};
use std::path::{Path, PathBuf};

const PROGRAM: &str = "05_own_program";

/// The third table is of the new kind; what the kind leaves no choice of need not be said.
fn config(place: &Place) -> PathBuf {
    let text = "[[table]]\nname = \"C3\"\nkind = \"quotient_remainder\"\noptions = { buckets = 7 }\n";
    let file = place.path("own.toml");
    std::fs::write(&file, text).unwrap();
    file
}

fn train(place: &Place) -> Run {
    place.train().by_example(PROGRAM).path("--config", &config(place))
}

fn apply(command: &str, place: &Place, checkpoint: &Path) -> Run {
    Run::new(command).path("--checkpoint", checkpoint).path("--data", &place.valid)
}

#[test]
fn every_command_knows_the_kind() {
    let place = Place::new("rows.txt");
    let file = config(&place);
    let with_config = |words: &[&str]| {
        Run::new(words[0]).with(&words[1..]).by_example(PROGRAM).path("--config", &file).succeeds().stdout
    };
    let shown = with_config(&["config", "show"]);
    assert!(shown.contains("kind = \"quotient_remainder\"\ngrain = \"whole\"\nkeys = \"rows\""), "{shown}");
    assert!(with_config(&["config", "check"]).contains("no faults found"));
    assert!(with_config(&["plan"]).contains("fits"));

    let whole = place.path("whole");
    let expected = train(&place).path("--checkpoint-dir", &whole).path("--valid", &place.valid).succeeds();
    let parts = train(&place).path("--checkpoint-dir", &place.path("parts"));
    parts.clone().with(&["--steps", "9"]).succeeds();
    assert_eq!(parts.with(&["--resume"]).succeeds().digest(), expected.digest());
    let evaluated = train(&place).path("--valid", &place.valid).with(&["--eval-ranks", "1"]);
    assert_eq!(evaluated.succeeds().digest(), expected.digest());

    let answer = apply("eval", &place, &whole).by_example(PROGRAM).succeeds().stdout;
    assert!(answer.contains("AUC"), "{answer}");
    let predictions = place.path("predictions.csv");
    apply("predict", &place, &whole).by_example(PROGRAM).path("--output", &predictions).succeeds();
    assert_eq!(std::fs::read_to_string(&predictions).unwrap().lines().count(), 301);

    let stock = apply("eval", &place, &whole).fails(2, &["C3", "no table kind `quotient_remainder`"]);
    assert_eq!(stock.stdout, "");
    let predictions = place.path("others.csv");
    apply("predict", &place, &whole).path("--output", &predictions).fails(2, &["no table kind"]);
}

#[test]
fn it_is_called_by_its_own_name() {
    let script = Run::new("completions").with(&["bash"]).by_example(PROGRAM).succeeds().stdout;
    assert!(script.starts_with(&format!("_{PROGRAM}() {{")), "{script}");
    let usage = Run::new("train").with(&["--nonsense"]).by_example(PROGRAM).end();
    assert_eq!(usage.code, Some(2));
    assert!(usage.stderr.contains(PROGRAM), "{}", usage.stderr);
}
