//! Metrics over parts of the data: the values of columns, groups, tenths by prediction; and ids
//! that the model does not know.

use crate::config::{Config, Ids};
use crate::error::{Error, Result};
use crate::metrics::runs::{Group, not_a_number};
use crate::metrics::{EvalMetrics, Scores, Tally};
use crate::report::count;
use headlong_reader::formats::carried::Carried;
use headlong_reader::{Batch, Reader, ReaderState, SkipReport};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;

/// Most values of a column that are shown one by one; the others are shown as one.
const MOST_SHOWN: usize = 20;
const OTHERS: &str = "(others)";

/// Scores of parts of the data, as they come.
pub struct Slices {
    carried: Carried,
    by: Vec<String>,
    group: Option<String>,
    /// Of each column, that of groups last: the scores of each value.
    scores: Vec<HashMap<String, Scores>>,
    row: Vec<String>,
}

impl Slices {
    /// Nothing yet; `carried` has columns `by`, and behind them that of groups.
    pub fn new(carried: Carried, by: Vec<String>, group: Option<String>) -> Self {
        let scores = vec![HashMap::new(); by.len() + usize::from(group.is_some())];
        Self { carried, by, group, scores, row: Vec::new() }
    }

    /// Adds the next samples, as many as there are logits.
    pub fn push(&mut self, logits: &[f32], labels: &[f32]) -> Result<()> {
        for (&logit, &label) in logits.iter().zip(labels) {
            next_row(&mut self.carried, &mut self.row)?;
            for (value, scores) in self.row.drain(..).zip(&mut self.scores) {
                scores.entry(value).or_default().push(logit, label);
            }
        }
        Ok(())
    }

    /// What was found: text, and fields of a JSON document.
    pub fn finish(mut self) -> (String, Vec<(&'static str, Value)>) {
        let (mut text, mut fields) = (String::new(), Vec::new());
        let of_group = self.group.take().zip(self.scores.get_mut(self.by.len()));
        if let Some((column, scores)) = of_group {
            let grouped = Grouped::of(scores.values_mut());
            text += &grouped.to_text(&column);
            fields.push(("grouped_auc", grouped.to_json(&column)));
        }
        let mut tables = serde_json::Map::new();
        for (column, scores) in self.by.iter().zip(self.scores) {
            let rows = rows_of(scores);
            text += &table(column, &rows);
            let json = |(value, metrics): &(String, EvalMetrics)| {
                let mut document = json!(metrics);
                document["value"] = json!(value);
                document
            };
            tables.insert(column.clone(), rows.iter().map(json).collect());
        }
        if !tables.is_empty() {
            fields.push(("slices", Value::Object(tables)));
        }
        (text, fields)
    }
}

/// The next row of carried columns, which are as long as the data.
pub fn next_row(carried: &mut Carried, row: &mut Vec<String>) -> Result<()> {
    match carried.next(row).map_err(Error::failed("a column cannot be carried"))? {
        true => Ok(()),
        false => {
            let message = "a file has changed while it was read: it has fewer rows than before";
            Err(Error::config("--data", message))
        }
    }
}

/// The metrics of each value, those with most samples first; of the rest in one.
fn rows_of(scores: HashMap<String, Scores>) -> Vec<(String, EvalMetrics)> {
    let mut all: Vec<(String, Scores)> = scores.into_iter().collect();
    all.sort_by(|(a, scores_a), (b, scores_b)| {
        scores_b.num_samples().cmp(&scores_a.num_samples()).then_with(|| a.cmp(b))
    });
    if all.len() > MOST_SHOWN + 1 {
        let mut others = Scores::default();
        all.drain(MOST_SHOWN..).for_each(|(_, scores)| others.absorb(&scores));
        all.push((OTHERS.to_owned(), others));
    }
    all.into_iter().map(|(value, mut scores)| (value, EvalMetrics::of(&scores.tally()))).collect()
}

fn table(column: &str, rows: &[(String, EvalMetrics)]) -> String {
    let shown = |value: &str| match value {
        "" => "(missing)".to_owned(),
        value => value.chars().take(40).collect(),
    };
    let width = rows.iter().map(|(value, _)| shown(value).chars().count());
    let width = width.chain([column.chars().count()]).max().unwrap_or(0);
    let mut text = format!(
        "{column:<width$} {:>13} {:>8} {:>10} {:>8} {:>9}\n",
        "samples", "clicks %", "predicted", "AUC", "log loss"
    );
    for (value, metrics) in rows {
        let _ = writeln!(
            text,
            "{:<width$} {:>13} {:>8.2} {:>10} {:>8} {:>9}",
            shown(value),
            count(metrics.eval_samples),
            100.0 * metrics.base_rate,
            number(metrics.mean_prediction.map(|mean| 100.0 * mean), 2),
            number(metrics.auc, 5),
            number(metrics.logloss, 5)
        );
    }
    text
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

/// The mean of the groups' own AUC, weighted by samples, or by these samples' weights; groups of
/// one class have none.
struct Grouped {
    auc: Option<f64>,
    groups: u64,
    of_one_class: u64,
}

impl Grouped {
    fn of<'a>(groups: impl Iterator<Item = &'a mut Scores>) -> Self {
        let (mut shares, mut weights, mut all, mut none) = (Vec::new(), Vec::new(), 0, 0);
        for scores in groups {
            all += 1;
            let tally = scores.tally();
            match tally.auc() {
                Some(auc) => {
                    weights.push(tally.weight());
                    shares.push(auc * tally.weight());
                }
                None => none += 1,
            }
        }
        // The order of a hash table changes no bit.
        let [shares, weights] = [shares, weights].map(|mut each| {
            each.sort_by(f64::total_cmp);
            each.iter().sum::<f64>()
        });
        let auc = (all > none).then(|| shares / weights);
        Self { auc, groups: all, of_one_class: none }
    }

    fn to_text(&self, column: &str) -> String {
        format!(
            "AUC by `{column}` {}: mean over {} groups, weighted by samples; {} of one class are \
             left out\n",
            number(self.auc, 5),
            count(self.groups - self.of_one_class),
            count(self.of_one_class)
        )
    }

    fn to_json(&self, column: &str) -> Value {
        json!({
            "column": column,
            "auc": self.auc,
            "groups": self.groups,
            "groups_of_one_class": self.of_one_class,
        })
    }
}

/// A tenth of the samples: those whose predictions are next to each other.
#[derive(Debug, PartialEq)]
pub struct Tenth {
    pub samples: u64,
    /// What they weigh, in a unit that all tenths have.
    pub weight: f64,
    pub mean_prediction: f64,
    /// Share of clicks.
    pub rate: f64,
}

/// Tenths of all samples, by weight, from the lowest predictions to the highest. Equal predictions
/// are not divided, so that there may be fewer.
pub fn tenths(scores: &mut Scores) -> Vec<Tenth> {
    let is_number = |group: &Group| group.key != not_a_number();
    let groups: Vec<Group> =
        scores.runs().in_groups(|groups, _| groups.filter(is_number).collect());
    let all: u64 = groups.iter().map(|group| group.positives + group.negatives).sum();
    let (mut parts, mut before) = (vec![Vec::new(); 10], 0);
    for group in groups {
        let here = group.positives + group.negatives;
        // Where its middle lies.
        let part = (10 * (2 * before + here) / (2 * all).max(1)).min(9);
        parts[part as usize].push(group);
        before += here;
    }
    let tenth = |groups: Vec<_>| {
        // Shares are the same in any unit.
        let tally = Tally::of(&mut groups.into_iter(), 0);
        let metrics = EvalMetrics::of(&tally);
        Some(Tenth {
            samples: metrics.eval_samples,
            weight: tally.weight(),
            mean_prediction: metrics.mean_prediction?,
            rate: metrics.base_rate,
        })
    };
    parts.into_iter().filter(|groups| !groups.is_empty()).filter_map(tenth).collect()
}

/// Tenths as fields of a JSON document.
pub fn tenths_to_json(tenths: &[Tenth]) -> Value {
    let json = |tenth: &Tenth| {
        json!({
            "samples": tenth.samples,
            "mean_prediction": tenth.mean_prediction,
            "base_rate": tenth.rate,
        })
    };
    tenths.iter().map(json).collect()
}

/// Counts the ids that a model has no row for, on their way to it.
pub struct Unseen {
    reader: Box<dyn Reader>,
    /// Of each column, ids that share the row of rare and unknown ones, and all ids.
    counts: Vec<[u64; 2]>,
}

impl Unseen {
    /// Counts what `reader` gives.
    pub fn in_all_of(reader: Box<dyn Reader>) -> Self {
        Self { reader, counts: Vec::new() }
    }

    /// Columns, by name, and the share of ids that have no row of their own: those that training
    /// has seen less than `data.min_count` times, or not at all. Only ids that a dictionary or
    /// admission maps have such a row.
    pub fn shares(&self, config: &Config) -> Vec<(String, f64)> {
        if !matches!(config.data.ids, Ids::Dictionary | Ids::Admitted) {
            return Vec::new();
        }
        let columns = config.data.num_sparse - config.num_binned();
        let raw = config.raw_columns();
        let share = |(column, &[shared, all]): (usize, &[u64; 2])| {
            let is_told = all > 0 && !raw.contains(&column);
            is_told.then(|| (config.column_name(column), shared as f64 / all as f64))
        };
        self.counts.iter().take(columns).enumerate().filter_map(share).collect()
    }
}

impl Reader for Unseen {
    fn next(&mut self, batch: &mut Batch) -> headlong_reader::Result<bool> {
        let more = self.reader.next(batch)?;
        if more {
            self.counts.resize(batch.sparse.len(), [0; 2]);
            for ([shared, all], bags) in self.counts.iter_mut().zip(&batch.sparse) {
                *shared += bags.values.iter().filter(|row| **row == 0).count() as u64;
                *all += bags.values.len() as u64;
            }
        }
        Ok(more)
    }

    fn state(&self) -> &ReaderState {
        self.reader.state()
    }

    fn skip_report(&self) -> SkipReport {
        self.reader.skip_report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_weighted_by_samples_and_need_both_classes() {
        let mut groups = [Scores::default(), Scores::default(), Scores::default()];
        groups[0].extend(&[1.0, 0.0], &[1.0, 0.0]);
        groups[1].extend(&[0.0, 1.0, 0.5, 0.7], &[1.0, 0.0, 0.0, 1.0]);
        groups[2].extend(&[0.3; 9], &[0.0; 9]);
        let grouped = Grouped::of(groups.iter_mut());
        // 2 samples of AUC 1, 4 of AUC 1/4.
        assert_eq!(grouped.auc, Some((2.0 + 4.0 * 0.25) / 6.0));
        assert_eq!((grouped.groups, grouped.of_one_class), (3, 1));
        assert_eq!(Grouped::of([].into_iter()).auc, None);
    }

    #[test]
    fn tenths_are_of_neighbours_and_do_not_divide_equal_ones() {
        let logits: Vec<f32> = (0..100).map(|index| (index * 37 % 100) as f32 / 10.0).collect();
        let labels: Vec<f32> = logits.iter().map(|&logit| f32::from(logit >= 5.0)).collect();
        let mut scores = Scores::default();
        scores.extend(&logits, &labels);
        let found = tenths(&mut scores);
        let rates: Vec<f64> = found.iter().map(|tenth| tenth.rate).collect();
        assert_eq!(rates, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert!(found.iter().all(|tenth| tenth.samples == 10));
        assert!((found[0].mean_prediction - 0.61).abs() < 0.01, "{found:?}");
        let mut equal = Scores::default();
        equal.extend(&[0.0; 7], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(tenths(&mut equal).len(), 1);
        assert_eq!(tenths(&mut Scores::default()), []);
    }

    #[test]
    fn values_beyond_the_largest_are_shown_as_one() {
        let mut scores = HashMap::new();
        for value in 0..30_usize {
            let of_value: &mut Scores = scores.entry(format!("v{value:02}")).or_default();
            of_value.extend(&vec![0.0; 40 - value], &vec![1.0; 40 - value]);
        }
        let rows = rows_of(scores);
        assert_eq!((rows.len(), &*rows[0].0, &*rows[20].0), (21, "v00", OTHERS));
        assert_eq!(rows[20].1.eval_samples, (11..=20).sum::<u64>());
        let text = table("country", &rows[..1]);
        assert!(text.contains("v00") && text.contains("100.00") && text.contains('-'), "{text}");
    }
}
