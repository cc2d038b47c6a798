//! What `tune` prints in the end. No time is in it: interrupted or not, it is the same text.

use super::journal::{Journal, Line, RESULTS, Scored, Task};
use super::plan::Plan;
use super::score::{in_words, name, value};
use super::search::{Compared, Found};
use crate::metrics::EvalMetric;
use crate::report::count;
use std::fmt::Write as _;

/// Trials that are shown, besides those that are compared.
const MOST_LINES: usize = 20;

/// Everything: the trials, the comparison, the final score.
pub fn text(journal: &Journal, plan: &Plan, found: &Found, metric: EvalMetric) -> String {
    let mut text = trials(journal, plan, found, metric);
    text.push_str(&comparison(&found.compared, plan, metric));
    text.push_str(&last_words(found, metric));
    text
}

fn trials(journal: &Journal, plan: &Plan, found: &Found, metric: EvalMetric) -> String {
    let line = |trial, epochs| journal.line(&Task { trial, scored: Scored::Fold(0), epochs });
    let reached =
        |trial: usize| plan.rungs.iter().filter(|&&epochs| line(trial, epochs).is_some()).count();
    let best = |trial: usize| {
        let scores = plan.rungs.iter().filter_map(|&epochs| line(trial, epochs)?.score(metric));
        scores.fold(f64::NEG_INFINITY, f64::max)
    };
    let mut order: Vec<usize> = (0..found.settings.len()).collect();
    order.sort_by(|&one, &other| best(other).total_cmp(&best(one)).then(one.cmp(&other)));
    let is_named =
        |trial: usize| trial == 0 || found.compared.iter().any(|compared| compared.trial == trial);
    let mut place = 0;
    order.retain(|&trial| {
        place += 1;
        place <= MOST_LINES || is_named(trial)
    });
    let left_out = found.settings.len() - order.len();
    let samples = journal.lines().iter().find_map(|line| Some(line.metrics?.eval_samples));
    let mut text = format!(
        "{} of fold 0 ({} rows held out) after so many epochs\n{:>5}",
        name(metric),
        count(samples.unwrap_or(0)),
        "trial"
    );
    for epochs in &plan.rungs {
        let _ = write!(text, "  {epochs:>7}");
    }
    text.push_str("  outcome    other than the base\n");
    for trial in order {
        let _ = write!(text, "{trial:>5}");
        for &epochs in &plan.rungs {
            let of = line(trial, epochs);
            let shown = match of.map(|line| (line.metrics, &line.error)) {
                Some((Some(metrics), _)) => {
                    value(&metrics, metric).map_or("none".to_owned(), |value| format!("{value:.5}"))
                }
                Some((None, Some(_))) => "failed".to_owned(),
                _ => String::new(),
            };
            let _ = write!(text, "  {shown:>7}");
        }
        let outcome = outcome(trial, reached(trial), plan, found);
        let settings = match trial {
            0 => "(the base)".to_owned(),
            _ => found.settings[trial].in_words(),
        };
        text.push_str(format!("  {outcome:<9}  {settings}").trim_end());
        text.push('\n');
    }
    if left_out > 0 {
        let _ = writeln!(text, "      {left_out} more in {RESULTS}");
    }
    text
}

fn outcome(trial: usize, reached: usize, plan: &Plan, found: &Found) -> String {
    if trial == found.best.0 {
        return "best".to_owned();
    }
    if found.compared.iter().any(|compared| compared.trial == trial) {
        return "compared".to_owned();
    }
    match reached < plan.rungs.len() {
        true => format!("stopped {reached}"),
        false => "finished".to_owned(),
    }
}

fn comparison(compared: &[Compared], plan: &Plan, metric: EvalMetric) -> String {
    if compared.is_empty() {
        return "\nno trial is better than the base on fold 0\n".to_owned();
    }
    let better = match metric {
        EvalMetric::Auc => "AUC above",
        EvalMetric::LogLoss => "log loss below",
    };
    let mut text = format!(
        "\n{better} the base's on other folds (mean ± standard error)\n{:>5}  {:>7}  {:>5}\n",
        "trial", "epochs", "folds"
    );
    for of in compared {
        let folds = of.differences.len();
        let verdict = match of.is_better() {
            _ if (folds as u64) < plan.folds => "stopped",
            true => "better",
            false => "not surely better",
        };
        let _ = writeln!(
            text,
            "{:>5}  {:>7}  {folds:>5}  {:+.5} ± {:.5}  {verdict}",
            of.trial,
            of.epochs,
            of.mean(),
            of.standard_error()
        );
    }
    text
}

/// The scores on rows that no trial has seen.
fn last_words(found: &Found, metric: EvalMetric) -> String {
    let [base, best] = &found.finals;
    let line = |line: &Line| {
        let metrics = line.metrics.map(|metrics| {
            format!(
                "{}  {}  rows {}",
                in_words(&metrics, EvalMetric::Auc),
                in_words(&metrics, EvalMetric::LogLoss),
                count(metrics.eval_samples)
            )
        });
        metrics.unwrap_or_else(|| "no score".to_owned())
    };
    let score = |line: &Line| line.score(metric).unwrap_or(f64::NEG_INFINITY);
    let verdict = match found.best.0 {
        _ if best == base => "the base stays: no trial is surely better",
        _ if score(best) > score(base) => "tuned is better there, too",
        _ => "there, tuned is not better than the base",
    };
    format!(
        "\non rows that no trial has seen:\n base  {}\ntuned  {}  (trial {}, {} epochs)\n\
         {verdict}\n",
        line(base),
        line(best),
        found.best.0,
        found.best.1
    )
}
