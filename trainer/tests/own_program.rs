//! A program of one's own, with a kind of tables of its own: the example `05_own_program`.

#![cfg(test)]

use crate::run_support::{Place, Run};
use std::path::{Path, PathBuf};

const PROGRAM: &str = "05_own_program";

/// The third table is of the new kind; what the kind leaves no choice of need not be said.
fn config(place: &Place) -> PathBuf {
    let text =
        "[[table]]\nname = \"C3\"\nkind = \"quotient_remainder\"\noptions = { buckets = 7 }\n";
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
        Run::new(words[0])
            .with(&words[1..])
            .by_example(PROGRAM)
            .path("--config", &file)
            .succeeds()
            .stdout
    };
    let shown = with_config(&["config", "show"]);
    assert!(
        shown.contains("kind = \"quotient_remainder\"\ngrain = \"whole\"\nkeys = \"rows\""),
        "{shown}"
    );
    assert!(with_config(&["config", "check"]).contains("no faults found"));
    assert!(with_config(&["plan"]).contains("fits"));

    let whole = place.path("whole");
    let expected =
        train(&place).path("--checkpoint-dir", &whole).path("--valid", &place.valid).succeeds();
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

    let stock =
        apply("eval", &place, &whole).fails(2, &["C3", "no table kind `quotient_remainder`"]);
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

/// The same run as threads and as processes, wherever the table lies; what one number of ranks has
/// saved, another resumes from.
#[test]
fn rows_that_share_storage_train_in_several_processes() {
    let place = Place::new("rows.txt");
    let file = place.path("own.toml");
    let placed = |placement: &str| {
        let text = std::fs::read_to_string(config(&place)).unwrap();
        std::fs::write(&file, format!("{text}placement = \"{placement}\"\n")).unwrap();
        place
            .train()
            .path("--config", &file)
            .by_example(PROGRAM)
            .with(&["--set", "train.sum_blocks=2"])
    };
    let expected = placed("auto").succeeds().digest();
    for placement in ["auto", "table_wise", "data_parallel"] {
        let train = || placed(placement);
        assert_eq!(
            train().with(&["--ranks", "2"]).succeeds().digest(),
            expected,
            "{placement}: threads"
        );
        let saved = place.path(&format!("saved-{placement}"));
        let first = train().path("--checkpoint-dir", &saved).with(&["--steps", "9"]);
        let first = first.path("--valid", &place.valid).with(&["--eval-every", "4"]);
        let nine_steps = first.launched(2).succeeds().digest();
        assert_eq!(
            train().with(&["--steps", "9"]).succeeds().digest(),
            nine_steps,
            "{placement}: nine steps"
        );
        let resumed =
            || train().path("--checkpoint-dir", &saved).with(&["--resume", "--keep", "9"]);
        assert_eq!(resumed().launched(2).succeeds().digest(), expected, "{placement}: processes");
        let last = saved.join("step-000000024");
        apply("eval", &place, &last).by_example(PROGRAM).succeeds();
        std::fs::remove_dir_all(&last).unwrap();
        assert_eq!(
            resumed().succeeds().digest(),
            expected,
            "{placement}: one rank resumes from two"
        );
        Run::new("checkpoint").with(&["verify", last.to_str().unwrap()]).succeeds();
    }
    // What one rank has saved, two processes go on from.
    let saved = place.path("saved");
    placed("table_wise").path("--checkpoint-dir", &saved).with(&["--steps", "9"]).succeeds();
    let resumed = placed("table_wise").path("--checkpoint-dir", &saved).with(&["--resume"]);
    assert_eq!(
        resumed
            .with(&["--eval-ranks", "1"])
            .path("--valid", &place.valid)
            .launched(2)
            .succeeds()
            .digest(),
        expected
    );
}

/// What is one's own is planned as it says, wherever the rows lie, and trained so.
#[test]
fn two_thousand_million_rows_are_planned_as_their_kind_says() {
    let place = Place::new("rows.txt");
    let file = place.path("own.toml");
    let text = "[[table]]\nname = \"C3\"\nkind = \"quotient_remainder\"\nrows = 2_000_000_000\n";
    let plan_of = |options: &str, more: &[&str]| {
        std::fs::write(&file, format!("{text}options = {{ {options} }}\n")).unwrap();
        let train = place.train().path("--config", &file).by_example(PROGRAM).with(more);
        let words: Vec<&str> = train.arguments()[1..].iter().map(String::as_str).collect();
        Run::new("plan").by_example(PROGRAM).with(&words).with(&["--json"])
    };
    // Rows of both matrices, dim 8, Adagrad.
    let bytes = (44_721 + 44_722) * 8 * 4 * 2;
    for ranks in ["1", "2"] {
        let plan: serde_json::Value =
            serde_json::from_str(&plan_of("", &["--ranks", ranks]).succeeds().stdout).unwrap();
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let table = &plan["tables"][2];
        assert_eq!(number(&table["rows"]), 2_000_000_000);
        assert_eq!(number(&table["weight_bytes"]), bytes / 2);
        assert!(number(&table["bytes"]) < 2 * bytes, "{table}");
        assert!(number(&plan["bytes_per_rank"]) < 200 << 20, "{}", plan["bytes_per_rank"]);
        assert_eq!(plan["fits"], true);
        if ranks == "2" {
            let of_rank = number(&plan["hybrid"]["tables"][2]["bytes_per_rank"]);
            assert_eq!(of_rank, bytes, "it lies on one rank, whole");
        }
        let train = place.train().path("--config", &file).by_example(PROGRAM);
        train.with(&["--ranks", ranks, "--set", "train.sum_blocks=2", "--steps", "3"]).succeeds();
    }
    // A value that no table can be built with is refused before there is a plan.
    let ended = plan_of("buckets = \"few\"", &[]).fails(2, &["C3", "option buckets", "got few"]);
    assert_eq!(ended.stdout, "");
    let check = Run::new("config").with(&["check"]).by_example(PROGRAM).path("--config", &file);
    check.fails(2, &["C3", "option buckets", "got few"]);
}
