//! What `headlong::{Config, Session}` promise to a program of one's own.

use crate::run_support::{Run, rows, write};
use headlong::{Config, Error, Session};
use std::path::Path;

/// A small model on text in `folder`, which saves there.
fn config(folder: &Path) -> Config {
    let mut config = Config::preset("tiny").unwrap();
    let train = folder.join("train.txt");
    let set = [
        "model.dim=4".to_owned(),
        "model.bottom=[8,4]".to_owned(),
        "model.top=[8,1]".to_owned(),
        "train.batch_size=64".to_owned(),
        format!("data.train=[{train:?}]"),
        "synthetic.enabled=false".to_owned(),
    ];
    write(&train, &rows(1_000, 1));
    config.set_all(&set).unwrap();
    (config.run.threads, config.run.output_dir) = (Some(1), folder.to_owned());
    config.checkpoint.dir = Some(folder.join("checkpoints"));
    config
}

#[test]
fn a_resumed_session_ends_as_one_that_was_never_stopped_and_predicts_as_the_program() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut session = Session::open(&config(whole.path())).unwrap();
    session.train().unwrap();
    let expected = session.weights_digest().unwrap();

    let mut part = config(parts.path());
    part.train.steps = Some(7);
    let mut session = Session::open(&part).unwrap();
    session.train().unwrap();
    session.save().unwrap();
    drop(session);
    part.train.steps = None;
    let mut session = Session::builder(&part).resume().open().unwrap();
    assert_eq!(session.steps(), 7);
    session.train().unwrap();
    assert_eq!(session.weights_digest().unwrap(), expected);

    // The program predicts the same from what the session has saved.
    let checkpoint = session.save().unwrap();
    let data = parts.path().join("train.txt");
    let csv = parts.path().join("predictions.csv");
    let predict = Run::new("predict").path("--checkpoint", &checkpoint).path("--data", &data);
    predict.path("--output", &csv).succeeds();
    let csv = std::fs::read_to_string(&csv).unwrap();
    let of_program = csv.lines().skip(1).map(|line| line.split(',').nth(1).unwrap());
    let of_program: Vec<f32> = of_program.map(|text| text.parse().unwrap()).collect();
    assert_eq!(session.predict([&data]).unwrap(), of_program);
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[test]
fn what_a_session_cannot_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut small = config(folder.path());
    small.train.steps = Some(2);
    let said = |opened: Result<Session, Error>, words: &str| {
        let text = causes(&opened.err().expect("it is refused"));
        assert!(text.contains(words), "{text}");
    };
    let mut processes = small.clone();
    processes.set_all(&["run.ranks=2", "run.transport=tcp"]).unwrap();
    said(Session::open(&processes), "joins processes");
    let mut evaluated = small.clone();
    evaluated.run.eval_ranks = Some(1);
    said(Session::open(&evaluated), "no validation data");
    said(Session::builder(&small).weights_of(folder.path().join("nowhere")).open(), "nowhere");

    let mut session = Session::open(&small).unwrap();
    session.train().unwrap();
    let saved = session.save().unwrap();
    drop(session);
    said(Session::open(&small), "holds an earlier run's checkpoints");
    let mut other = small.clone();
    other.set_all(&["model.loss=mse"]).unwrap();
    said(Session::builder(&other).resume().open(), "model.loss");

    small.checkpoint.dir = None;
    let mut session = Session::builder(&small).weights_of(saved).open().unwrap();
    assert_eq!(session.steps(), 0);
    let text = session.save().unwrap_err().to_string();
    assert!(text.contains("checkpoint.dir"), "{text}");
    let text = causes(&session.predict([folder.path().join("absent.txt")]).unwrap_err());
    assert!(text.contains("absent.txt"), "{text}");
}

#[test]
fn what_a_builder_cannot_resume_or_train_on_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let small = config(folder.path());
    let said = |opened: Result<Session, Error>, words: &str| {
        let text = causes(&opened.err().expect("it is refused"));
        assert!(text.contains(words), "{text}");
    };
    said(Session::open(&Config::default()), "no training file is named");
    said(Session::builder(&small).resume().weights_of(folder.path()).open(), "weights_of");
    let nowhere = Config { checkpoint: Default::default(), ..small };
    said(Session::builder(&nowhere).resume().open(), "checkpoint.dir");
}

/// A column that another run has called otherwise would be read as another table.
#[test]
fn a_run_is_not_resumed_with_other_columns() {
    let folder = tempfile::tempdir().unwrap();
    let train = folder.path().join("train.csv");
    let lines: String =
        (0..200).map(|i| format!("{},{},u{},p{}\n", i % 2, i, i % 7, i % 5)).collect();
    write(&train, &format!("clicked,price,user,page\n{lines}"));
    let mut named = config(folder.path());
    let set = [
        format!("data.train=[{train:?}]"),
        "data.columns.label=clicked".to_owned(),
        "data.columns.dense=[\"price\"]".to_owned(),
        "data.columns.categorical=[\"user\",\"page\"]".to_owned(),
        "tables.rows=100".to_owned(),
        "train.steps=2".to_owned(),
    ];
    named.set_all(&set).unwrap();
    let mut session = Session::open(&named).unwrap();
    session.train().unwrap();
    session.save().unwrap();
    drop(session);
    assert_eq!(Session::builder(&named).resume().open().unwrap().steps(), 2);
    named.set_all(&["data.columns.categorical=[\"page\",\"user\"]"]).unwrap();
    let text = causes(&Session::builder(&named).resume().open().err().expect("it is refused"));
    assert!(text.contains("data.columns.categorical"), "{text}");
}

#[test]
fn a_session_that_has_failed_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let bad = config(folder.path());
    let train = folder.path().join("train.txt");
    let text = rows(1_000, 1);
    let lines: Vec<_> = text.lines().collect();
    let lines = [&lines[..701], &["damaged"], &lines[702..]].concat();
    write(&train, &format!("{}\n", lines.join("\n")));
    let mut session = Session::open(&bad).unwrap();
    let text = causes(&session.train().unwrap_err());
    assert!(text.contains("line 702"), "{text}");
    let steps = session.steps();
    let again = session.train().unwrap_err().to_string();
    assert!(again.contains("failed before") && again.contains("line 702"), "{again}");
    // The steps before the line can be saved, and are not called finished.
    let saved = session.save().unwrap();
    let manifest = std::fs::read_to_string(saved.join("manifest.json")).unwrap();
    assert!(steps > 0 && !manifest.contains("\"finished\": \"finished\""), "{manifest}");

    let other = tempfile::tempdir().unwrap();
    let mut steep = config(other.path());
    steep.train.learning_rate = 1e30;
    let mut session = Session::open(&steep).unwrap();
    session.train().unwrap_err();
    let text = session.save().unwrap_err().to_string();
    assert!(text.contains("failed before"), "{text}");
    assert!(
        !other
            .path()
            .join("checkpoints")
            .read_dir()
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_string_lossy().starts_with("step-") })
    );
}
