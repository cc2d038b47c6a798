use super::*;
use crate::metrics::EvalMetrics;
use serde_json::json;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn metrics() -> EvalMetrics {
    EvalMetrics {
        auc: Some(0.75),
        logloss: Some(0.5),
        ne: None,
        accuracy: 0.8,
        base_rate: 0.25,
        mean_prediction: Some(0.24),
        calibration: Some(0.96),
        calibration_error: None,
        eval_samples: 1000,
    }
}

/// A whole run, every event once.
fn run(reporter: &mut Reporter) {
    let start = Start {
        version: "0.1.0".into(),
        command: "headlong train".into(),
        config: json!({}),
        plan: json!({}),
        data: DataSummary::default(),
        seed: 7,
    };
    reporter.start(&start).unwrap();
    let at = At { step: 100, samples: 12_800 };
    reporter.advance(at, Some(0.5));
    let step = Step {
        loss: 0.5,
        learning_rate: 0.02,
        samples_per_s: 1234.5,
        data_wait_share: 0.01,
        eval_share: 0.0,
        scaling: None,
    };
    reporter.step(at, &step).unwrap();
    let eval = Eval { metrics: metrics(), eval_s: 0.25, known_at_step: Some(103) };
    reporter.eval(at, &eval).unwrap();
    let checkpoint = Checkpoint { path: "c/step-100".into(), bytes: 10, seconds: 0.1 };
    reporter.checkpoint(at, &checkpoint).unwrap();
    reporter.snapshot(at, &Snapshot { bytes: 10, seconds: 0.01 }).unwrap();
    let place = json!({"file": "a.gz", "line": 3}).as_object().unwrap().clone();
    reporter.warning("a bad row", place).unwrap();
    reporter
        .error(&Error::NotFinite { step: 100, what: "loss".into(), value: f64::NAN }, Map::new())
        .unwrap();
    let done = Done {
        reason: "finished".into(),
        wall_s: 1.0,
        samples_per_s: 12_800.0,
        peak_rss_bytes: 5,
        exchange_bytes_per_step: None,
        weights_digest: "00ff".into(),
        data_bytes_read: None,
        eval_share: 0.25,
        eval_step: Some(100),
        last_eval: None,
        best_eval: None,
    };
    reporter.done(at, &done).unwrap();
}

#[test]
fn the_log_has_the_promised_keys() {
    let shared = Shared::default();
    let log = JsonLog::new(Box::new(shared.clone()), "log".into(), Instant::now());
    run(&mut Reporter::quiet(Some(log)));
    let lines = shared.lines();
    let promised: [(&str, &[&str]); 8] = [
        ("start", &["version", "command", "config", "plan", "data", "seed"]),
        ("step", &["loss", "learning_rate", "samples_per_s", "data_wait_share", "eval_share"]),
        (
            "eval",
            &[
                "auc",
                "logloss",
                "ne",
                "accuracy",
                "base_rate",
                "mean_prediction",
                "calibration",
                "calibration_error",
                "eval_samples",
                "eval_s",
            ],
        ),
        ("checkpoint", &["path", "bytes", "seconds"]),
        ("snapshot", &["bytes", "seconds"]),
        ("warning", &["message", "file", "line"]),
        ("error", &["message", "exit_code"]),
        ("done", &["reason", "wall_s", "samples_per_s", "peak_rss_bytes", "weights_digest"]),
    ];
    assert_eq!(lines.len(), promised.len());
    for (line, (event, keys)) in lines.iter().zip(promised) {
        assert_eq!(line["event"], event);
        assert!(line["time_s"].as_f64().unwrap() >= 0.0);
        for key in keys {
            assert!(line.get(key).is_some(), "{event} lacks {key}: {line}");
        }
        if event != "start" {
            assert_eq!(
                (line["step"].as_u64(), line["samples"].as_u64()),
                (Some(100), Some(12_800)),
                "{event}"
            );
        }
    }
}

#[test]
fn lines_begin_alike_and_names_are_escaped() {
    let shared = Shared::default();
    let mut log = JsonLog::new(Box::new(shared.clone()), "log".into(), Instant::now());
    log.set_position(At { step: 3, samples: 9 });
    log.write("warning", &json!({"message": "a \"quoted\"\nline", "odd \"key\"": 1})).unwrap();
    let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
    assert!(text.starts_with("{\"event\":\"warning\",\"time_s\":"), "{text}");
    assert_eq!(text.lines().count(), 1);
    let line = &shared.lines()[0];
    assert_eq!(
        (line["message"].as_str(), line["odd \"key\""].as_u64()),
        (Some("a \"quoted\"\nline"), Some(1))
    );
    assert_eq!((line["step"].as_u64(), line["samples"].as_u64()), (Some(3), Some(9)));
}

#[test]
fn what_is_not_a_number_is_null() {
    let shared = Shared::default();
    let mut log = JsonLog::new(Box::new(shared.clone()), "log".into(), Instant::now());
    log.write("step", &json!({"loss": 1.0})).unwrap();
    let step = Step {
        loss: f64::NAN,
        learning_rate: 0.0,
        samples_per_s: 0.0,
        data_wait_share: 0.0,
        eval_share: 0.0,
        scaling: None,
    };
    log.write("step", &step).unwrap();
    assert_eq!(shared.lines()[1]["loss"], Value::Null);
}

#[test]
fn a_resumed_run_appends() {
    let folder = tempfile::tempdir().unwrap();
    let target = LogTarget::File(folder.path().join("log.jsonl"));
    for (resumed, lines) in [(false, 1), (true, 2), (false, 1)] {
        let mut log = JsonLog::open(&target, resumed, Instant::now()).unwrap();
        log.write("warning", &json!({"message": "m"})).unwrap();
        let text = std::fs::read_to_string(folder.path().join("log.jsonl")).unwrap();
        assert_eq!(text.lines().count(), lines);
    }
}

#[test]
fn a_log_that_cannot_be_opened_names_its_file() {
    let target = LogTarget::File("/nonexistent/log.jsonl".into());
    let message = chain(&Reporter::new(Some(&target), false).unwrap_err());
    assert!(message.contains("/nonexistent/log.jsonl"), "{message}");
}

#[test]
fn an_auc_of_a_half_is_worth_a_warning() {
    let shared = Shared::default();
    let log = JsonLog::new(Box::new(shared.clone()), "log".into(), Instant::now());
    let mut reporter = Reporter::quiet(Some(log));
    for (auc, eval_samples) in [(0.75, 20_000), (0.502, 100), (0.502, 20_000)] {
        let metrics = EvalMetrics { auc: Some(auc), ne: Some(1.0), eval_samples, ..metrics() };
        reporter.eval(At::default(), &Eval { metrics, eval_s: 0.1, known_at_step: None }).unwrap();
    }
    let events: Vec<String> = shared.lines().iter().map(|line| line["event"].to_string()).collect();
    assert_eq!(events.join(" "), "\"eval\" \"eval\" \"eval\" \"warning\"");
}

#[test]
fn the_time_left_follows_the_pace() {
    let mut reporter = Reporter::quiet(None);
    assert_eq!(reporter.seconds_left(), None);
    reporter.advance(At::default(), Some(0.5));
    assert_eq!(reporter.seconds_left(), None);
    std::thread::sleep(Duration::from_millis(20));
    reporter.advance(At::default(), Some(0.75));
    let left = reporter.seconds_left().unwrap();
    assert!((0.02..5.0).contains(&left), "{left}");
}

#[test]
fn an_evaluation_names_the_base_rate_next_to_accuracy_and_prediction() {
    let text = eval_text(&Eval { metrics: metrics(), eval_s: 0.25, known_at_step: Some(103) });
    for fact in [
        "AUC 0.75000",
        "NE undefined",
        "calibration 0.960",
        "calibration error undefined",
        "click rate 25.00 % (predicted 24.00 %)",
        "accuracy 80.00 % (always \"no\" 75.00 %)",
    ] {
        assert!(text.split("  ").any(|found| found == fact), "{fact}: {text}");
    }
}

#[test]
fn this_process_has_resident_memory() {
    assert!(crate::system::machine::peak_rss_bytes() > 1 << 20);
}

/// Takes so many bytes and no more.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0 = self.0.checked_sub(data.len()).ok_or(ErrorKind::StorageFull)?;
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_log_that_takes_no_more_ends_before_the_first_step_alone() {
    let log = |room| JsonLog::new(Box::new(Full(room)), "log".into(), Instant::now());
    assert!(log(10).write("start", &json!({})).is_err());
    let mut full = log(60);
    full.write("start", &json!({})).unwrap();
    full.set_position(At { step: 3, samples: 384 });
    for _ in 0..3 {
        full.write("step", &json!({})).unwrap();
    }
}
