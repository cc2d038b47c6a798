//! A run at the shape of Criteo Terabyte on data whose truth is known: it climbs steadily to the
//! best possible AUC, through two interruptions, and its MLPerf log keeps the rules. The soak run
//! has 20 million rows and tables of up to five million, the one of every push 400,000 and 50,000.

#![cfg(test)]

use crate::mllog_rules::{lines, published_checker, violations};
use crate::run_support::{Run, events, last_event, signal, wait_until};
use headlong::config::preset::TERABYTE_40M_CARDINALITIES;
use headlong_reader::synthetic::SyntheticOptions;
use std::path::Path;

/// How large a run is, and how steady.
struct Shape {
    rows: u64,
    scale: f64,
    max_table_rows: u64,
    batch_size: u64,
    /// What an evaluation may lie below the one before.
    most_fall: f64,
}

impl Shape {
    /// Terabyte's cardinalities, capped, with room for the distinct ids that the data has: hashed
    /// ids seldom share a row.
    fn table_rows(&self) -> Vec<u64> {
        let distinct =
            SyntheticOptions { scale: self.scale, ..SyntheticOptions::default() }.cardinalities();
        let rows = TERABYTE_40M_CARDINALITIES.iter().zip(distinct);
        rows.map(|(&rows, distinct)| rows.min(self.max_table_rows).max(4 * distinct).max(1024))
            .collect()
    }

    fn run(&self, folder: &Path, log: &Path, mllog: &Path) -> Run {
        let settings = [
            ("tables.rows", format!("{:?}", self.table_rows())),
            ("synthetic.train_rows", self.rows.to_string()),
            ("synthetic.scale", self.scale.to_string()),
            ("train.batch_size", self.batch_size.to_string()),
            ("train.log_every", (self.rows / self.batch_size / 100).to_string()),
            ("eval.every", "0.1".to_owned()),
            ("checkpoint.save_every", (self.rows / self.batch_size / 4).to_string()),
        ];
        let run = Run::new("train").with(&["--preset", "tiny"]);
        let run = settings
            .iter()
            .fold(run, |run, (key, value)| run.with(&["--set", &format!("{key}={value}")]));
        let run =
            run.path("--output-dir", folder).path("--checkpoint-dir", &folder.join("checkpoints"));
        run.path("--log-json", log).path("--mllog", mllog).with(&["--resume"])
    }

    /// Interrupted twice, at a third and at two thirds, and resumed.
    fn trains_to_the_best(&self) {
        let folder = tempfile::tempdir().unwrap();
        let (log, mllog) = (folder.path().join("log.json"), folder.path().join("mlperf.log"));
        let run = self.run(folder.path(), &log, &mllog);
        let steps = self.rows / self.batch_size;
        for part in [1, 2] {
            let mut child = run.start();
            let at = || {
                events(&log).iter().filter_map(|event| event["step"].as_u64()).max().unwrap_or(0)
            };
            while at() < steps * part / 3 && child.try_wait().unwrap().is_none() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            signal(&child, "TERM");
            let mut code = None;
            wait_until("the end of the interrupted run", || {
                code = child.try_wait().unwrap();
                code.is_some()
            });
            assert_eq!(
                code.and_then(|code| code.code()),
                Some(143),
                "the signal came too late to prove anything"
            );
        }
        let ended = run.succeeds();
        assert!(ended.stderr.contains("resumed at step"), "{}", ended.stderr);
        self.climbs_steadily(&log, &ended.stdout);
        assert_eq!(violations(&lines(&mllog)), [] as [&str; 0]);
        published_checker(&mllog, "2.1.0");
    }

    fn climbs_steadily(&self, log: &Path, said: &str) {
        let evaluations = events(log).into_iter().filter(|event| event["event"] == "eval");
        let found: Vec<_> = evaluations
            .map(|event| (event["step"].as_u64().unwrap(), event["auc"].as_f64().unwrap()))
            .collect();
        println!("{found:?}");
        assert!(found.len() >= 10 && found.is_sorted_by_key(|(step, _)| *step), "{found:?}");
        for pair in found.windows(2) {
            assert!(pair[1].1 >= pair[0].1 - self.most_fall, "an evaluation falls: {pair:?}");
        }
        let last = last_event(log, "done")["last_eval"]["auc"].as_f64().unwrap();
        let best = said
            .split("best possible AUC ")
            .nth(1)
            .and_then(|text| text.split(',').next())
            .unwrap();
        let best: f64 = best.parse().unwrap();
        println!("last {last:.5}, best possible {best:.5}");
        assert!(
            best - last <= 0.01,
            "the last evaluation, {last}, is {:.5} below the best possible",
            best - last
        );
    }
}

#[test]
fn a_small_run_climbs_steadily_to_the_best_possible() {
    let shape = Shape {
        rows: 400_000,
        scale: 0.001,
        max_table_rows: 50_000,
        batch_size: 128,
        most_fall: 0.002,
    };
    shape.trains_to_the_best();
}

#[test]
#[ignore = "an hour: cargo xtask soak --only planted"]
fn soak_ground_truth_at_terabyte_shape() {
    let shape = Shape {
        rows: 20_000_000,
        scale: 0.05,
        max_table_rows: 5_000_000,
        batch_size: 1024,
        most_fall: 0.002,
    };
    shape.trains_to_the_best();
}
