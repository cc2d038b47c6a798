//! What every number of a configuration may be: whole numbers lie in a range, all others are
//! finite.
//!
//! The upper ends are far above what anybody trains, and low enough that sizes derived from two or
//! three of them are numbers still: what those come to is for the plan to judge ([`crate::plan`]),
//! which counts without wrapping.

use super::Config;
use super::comm::MOST_SECONDS;
use crate::error::{Error, Result};
use clap::builder::RangedU64ValueParser;
use headlong_embedding::hybrid::{MAX_OWNERS, MAX_TABLE_ROWS};
use headlong_embedding::table::MAX_DIM;
use serde_json::Value;
use std::str::FromStr;

/// What a whole number may be, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The smallest.
    pub least: u64,
    /// The largest.
    pub most: u64,
}

/// Where nothing but TOML bounds a number.
const UNBOUNDED: u64 = i64::MAX as u64;
/// Samples of a batch: with 2³² ids of a table, positions fit 32 bits.
const SAMPLES: u64 = 1 << 30;
/// Ids of one bag.
const IDS: u64 = 1 << 20;
/// Elements of a layer.
const WIDTH: u64 = 1 << 20;
/// Layers of a stack.
const LAYERS: u64 = 1000;
/// Columns of a kind.
const COLUMNS: u64 = 10_000;
/// Rows of made-up data: 250 TB of text.
const ROWS_OF_TEXT: u64 = 1_000_000_000_000;
/// Threads of a process.
pub const MOST_THREADS: usize = 4096;

macro_rules! ranges {
    ($($path:literal: $least:expr, $most:expr;)*) => {
        /// The range of every key that holds whole numbers. Those of `comm.verbs` are with the
        /// settings of NICs.
        const RANGES: &[(&str, Range)] = &[$(($path, Range { least: $least, most: $most })),*];
    };
}

ranges! {
    "model.dim": 1, MAX_DIM as u64;
    "model.bottom": 1, WIDTH;
    "model.top": 1, WIDTH;
    "model.cross_layers": 1, LAYERS;
    "model.cross_rank": 1, WIDTH;
    "tables.rows": 1, MAX_TABLE_ROWS;
    "tables.max_rows": 1, UNBOUNDED;
    "tables.max_ids_per_sample": 1, IDS;
    "table.rows": 1, MAX_TABLE_ROWS;
    "data.num_dense": 0, COLUMNS;
    "data.num_sparse": 1, COLUMNS;
    "data.hotness": 0, IDS;
    "data.holdout_fold": 0, UNBOUNDED;
    "data.order_seed": 0, UNBOUNDED;
    "data.order_window": 1, 1 << 40;
    "data.min_count": 1, (1 << 31) - 2;
    "data.prefetch_batches": 1, 1 << 16;
    "multi_hot.sizes": 1, IDS;
    "multi_hot.seed": 0, u32::MAX as u64;
    "multi_hot.memory_mib": 0, UNBOUNDED;
    "synthetic.train_rows": 1, ROWS_OF_TEXT;
    "synthetic.valid_rows": 1, ROWS_OF_TEXT;
    "synthetic.seed": 0, UNBOUNDED;
    "train.batch_size": 1, SAMPLES;
    "train.accumulate": 1, 1 << 20;
    "train.steps": 1, UNBOUNDED;
    "train.warmup_steps": 0, UNBOUNDED;
    "train.decay_start_step": 0, UNBOUNDED;
    "train.decay_steps": 0, UNBOUNDED;
    "train.seed": 0, UNBOUNDED;
    "train.seeds": 1, 64;
    "train.sum_blocks": 1, SAMPLES;
    "train.loss_scale_interval": 1, u32::MAX as u64;
    "train.log_every": 1, UNBOUNDED;
    "eval.every": 0, UNBOUNDED;
    "eval.batch_size": 1, SAMPLES;
    "eval.patience": 1, UNBOUNDED;
    "checkpoint.save_every": 0, UNBOUNDED;
    "checkpoint.keep": 1, UNBOUNDED;
    "checkpoint.snapshot_every": 1, UNBOUNDED;
    "run.threads": 1, MOST_THREADS as u64;
    "run.ranks": 1, MAX_OWNERS as u64;
    "run.eval_ranks": 1, MAX_OWNERS as u64;
    "run.eval_processes": 1, MAX_OWNERS as u64;
    "comm.ranks_per_node": 0, MAX_OWNERS as u64;
    "hybrid.statistics_batches": 0, UNBOUNDED;
    "hybrid.max_replicated_bytes": 0, UNBOUNDED;
}

/// What the whole numbers of `path` may be; none for a key that holds something else.
pub fn range_of(path: &str) -> Option<Range> {
    RANGES.iter().find(|(key, _)| *key == path).map(|(_, range)| *range)
}

/// What a key of whole numbers takes, in words.
pub(crate) fn expected(path: &str) -> Option<String> {
    let range = range_of(path)?;
    Some(match path {
        "eval.every" => {
            format!("a whole number of steps, {range}, or a fraction of an epoch with a point")
        }
        "tables.rows" => format!("a number of rows, {range}, a list of them, or the name of one"),
        "model.bottom" | "model.top" | "data.hotness" => {
            format!("a list of whole numbers, each {range}")
        }
        "multi_hot.sizes" => format!("a list of whole numbers, each {range}, or \"mlperf\""),
        _ => format!("a whole number, {range}"),
    })
}

impl std::fmt::Display for Range {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.most {
            UNBOUNDED => write!(formatter, "at least {}", self.least),
            most => write!(formatter, "{} to {most}", self.least),
        }
    }
}

impl Config {
    /// Refuses the first number that lies outside of its key's range, or is none.
    pub(super) fn validate_numbers(&self) -> Result<()> {
        let shown =
            serde_json::to_value(self).expect("every field of a configuration has a JSON form");
        // In the order of the ranges: of several, a rank or a batch is named before what follows
        // from it.
        for (path, range) in RANGES {
            let found = path.split('.').try_fold(&shown, |value, name| value.get(name));
            found.map_or(Ok(()), |found| range.check(path, found))?;
        }
        let range = range_of("table.rows").expect("the rows of an entry have a range");
        for entry in &self.table {
            let key = || format!("rows of [[table]] {}", entry.name);
            entry.rows.map_or(Ok(()), |rows| range.check(&key(), &Value::from(rows)))?;
        }
        refuse_no_number("", &shown)
    }
}

impl Range {
    /// Whether a number lies in it.
    pub fn contains(self, number: u64) -> bool {
        (self.least..=self.most).contains(&number)
    }

    /// `found` is a number or a list of numbers; what is neither is judged elsewhere.
    fn check(&self, path: &str, found: &Value) -> Result<()> {
        match found {
            Value::Array(items) => items.iter().try_for_each(|item| self.check(path, item)),
            Value::Number(number) if !number.is_f64() => match number.as_u64() {
                Some(number) if self.contains(number) => Ok(()),
                Some(number) if number > self.most => {
                    let Self { least, most } = self;
                    Err(Error::config(path, format!("expected {least} to {most}, found {number}")))
                }
                _ => Err(Error::config(path, format!("expected {self}, found {number}"))),
            },
            _ => Ok(()),
        }
    }
}

/// JSON has neither NaN nor infinities and holds `null` for them. What is not set is left out.
fn refuse_no_number(path: &str, value: &Value) -> Result<()> {
    match value {
        Value::Null => {
            Err(Error::config(path, "expected a finite number, found NaN or an infinity"))
        }
        Value::Object(entries) => entries.iter().try_for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            refuse_no_number(&path, value)
        }),
        Value::Array(items) => items.iter().try_for_each(|item| refuse_no_number(path, item)),
        _ => Ok(()),
    }
}

/// The whole number of `key` on the command line; its range is checked with the configuration.
pub(crate) fn whole<T: FromStr>(
    key: &'static str,
) -> impl Fn(&str) -> std::result::Result<T, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("expected {}", expected(key).unwrap_or_default()))
}

/// A number of threads on the command line.
pub(crate) fn threads(text: &str) -> std::result::Result<usize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=MOST_THREADS).contains(threads));
    threads.ok_or_else(|| format!("expected 1 to {MOST_THREADS} threads"))
}

/// A whole number on the command line, from 1 to `most`.
pub(crate) fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// A time on the command line: finite, and no longer than settings may be.
pub(crate) fn time(text: &str) -> std::result::Result<f64, String> {
    let found = text.parse().ok().filter(|found| (0.0..=MOST_SECONDS).contains(found));
    found.ok_or_else(|| format!("expected a number from 0 to {MOST_SECONDS}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::KEYS;

    fn set(settings: &[&str]) -> Result<()> {
        let mut config = Config::default();
        config.set_all(settings)?;
        config.validate_numbers()
    }

    #[test]
    fn every_key_of_whole_numbers_has_a_range_and_holds_it() {
        for path in KEYS.iter().map(|key| key.path).filter(|path| !path.starts_with("comm.verbs."))
        {
            // What a key takes tells what it holds.
            let takes = |text: &str| Config::default().set_all(&[format!("{path}={text}")]).is_ok();
            let (list, word) = (takes("[3]") && !takes("[\"a\"]"), takes("abcd"));
            let whole = list || !word && takes("3") && !takes("3.5");
            let whole = whole || ["tables.rows", "eval.every"].contains(&path);
            assert_eq!(range_of(path).is_some(), whole, "{path}");
            let Some(Range { least, most }) = range_of(path) else { continue };
            let write = |number: u64| match list && path != "tables.rows" {
                true => format!("{path}=[{number}]"),
                false => format!("{path}={number}"),
            };
            for inside in [least, most] {
                set(&[&write(inside)]).unwrap_or_else(|error| panic!("{path} = {inside}: {error}"));
            }
            for outside in [least.checked_sub(1), most.checked_add(1)].into_iter().flatten() {
                let message = set(&[&write(outside)]).expect_err(path).to_string();
                assert!(message.contains(path) && message.contains("expected"), "{message}");
                assert!(message.contains(&outside.to_string()), "{message}");
            }
        }
        let known = |path: &str| KEYS.iter().any(|key| key.path == path) || path == "table.rows";
        assert!(RANGES.iter().all(|(path, _)| known(path)), "a range of a key that there is not");
    }

    #[test]
    fn every_other_number_is_finite_used_or_not() {
        for path in ["train.decay_power", "train.clip_norm", "synthetic.scale"] {
            for text in ["nan", "inf", "-inf"] {
                let message = set(&[&format!("{path}={text}")]).unwrap_err().to_string();
                assert!(message.contains(path) && message.contains("finite"), "{message}");
            }
        }
        assert!(set(&["eval.every=nan"]).unwrap_err().to_string().contains("eval.every"));
    }

    #[test]
    fn rows_of_one_table_have_a_range_too() {
        let text = format!("[[table]]\nname = \"C3\"\nrows = {}\n", MAX_TABLE_ROWS + 1);
        let message = Config::from_toml(&text, "a.toml").unwrap().validate_numbers().unwrap_err();
        assert!(message.to_string().contains("C3"), "{message}");
    }
}
