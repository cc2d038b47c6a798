//! How to train: sizes, ids, batches, rates, order, evaluations.

use super::{ColumnChoice, Facts, Kind, Setting};
use toml::Value;

/// Below so many rows a table is small: a wide net learns it by heart.
const SMALL_ROWS: u64 = 20_000;
/// Bytes that an id takes while a dictionary counts it.
const COUNTED_BYTES: f64 = 48.0;
/// Of a table's rows, one weight and one state of Adagrad.
const BYTES_PER_ELEMENT: f64 = 8.0;
/// Widths of vectors that are tried, where memory is short.
const DIMS: [u64; 4] = [64, 32, 16, 8];

/// Every setting of a run on such columns, with its reason. `values` are the different values of
/// each categorical column in all rows.
pub(super) fn settings(columns: &[ColumnChoice], values: &[u64], facts: &Facts) -> Vec<Setting> {
    let is_small = facts.rows < SMALL_ROWS;
    let mut settings = Vec::new();
    let mut set = |key, value: Value, reason: String| settings.push(Setting { key, value, reason });
    let rows = facts.rows;
    let about = if facts.is_whole { "" } else { "about " };
    let total: u64 = values.iter().sum();
    let budget = facts.usable_bytes as f64 / 2.0;
    let (mut dim, mut why) = match is_small {
        true => (16, format!("a small table ({about}{rows} rows)")),
        false => (64, format!("wide vectors helped on tables of {about}{rows} rows or so")),
    };
    let needed = |dim: u64| total as f64 * (dim as f64 * BYTES_PER_ELEMENT + COUNTED_BYTES);
    let fits = DIMS.into_iter().find(|&narrower| narrower <= dim && needed(narrower) <= budget);
    if let Some(narrower) = fits.filter(|&narrower| narrower < dim) {
        (dim, why) =
            (narrower, format!("{total} rows as wide as {dim} do not fit half the memory"));
    }
    let dim_of = fits.unwrap_or(DIMS[DIMS.len() - 1]);
    if fits.is_none() {
        (dim, why) = (dim_of, format!("the {total} different ids need more than half the memory"));
    }
    set("model.dim", integer(dim), why);
    let (bottom, top) = match is_small {
        true => (vec![32, dim], vec![32, 1]),
        false => (vec![128, dim], vec![256, 128, 1]),
    };
    if columns.iter().any(|column| column.kind == Kind::Dense) {
        set("model.bottom", integers(&bottom), "ends as wide as the vectors".to_owned());
    }
    let why = if is_small { "a wider net learns so few rows by heart" } else { "as measured" };
    set("model.top", integers(&top), why.to_owned());
    of_ids(fits.is_some(), values, (dim, budget), &mut set);
    of_lists(columns, &mut set);
    of_steps(facts, is_small, &mut set);
    settings
}

fn of_ids(
    fits: bool,
    values: &[u64],
    (dim, budget): (u64, f64),
    set: &mut impl FnMut(&'static str, Value, String),
) {
    let total: u64 = values.iter().sum();
    if fits {
        let why = format!("each id has a row of its own, and {total} or so fit memory");
        set("data.ids", "dictionary".into(), why);
        let why = "an id seen once shares a row with the others of its column";
        set("data.min_count", integer(2), why.to_owned());
        let why = "as many as the dictionary finds";
        set("tables.rows", "dictionary".into(), why.to_owned());
        return;
    }
    let why = "a dictionary of all ids does not fit memory: they share rows by their hash";
    set("data.ids", "hash".into(), why.to_owned());
    // Small tables have a row for each id; what is left is for the large ones.
    let all = budget / (dim as f64 * BYTES_PER_ELEMENT);
    let most = largest_rows(values, all as u64);
    let rows: Vec<u64> = values.iter().map(|&found| (found + found / 4).clamp(2, most)).collect();
    let why = format!("a quarter more than there are ids, at most {most}");
    set("tables.rows", integers(&rows), why);
}

/// The most rows of a table with which all together have no more than `all`.
fn largest_rows(values: &[u64], all: u64) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let mut left = all;
    for (at, found) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - at) as u64;
        let wanted = found + found / 4;
        if wanted > share {
            return share.max(2);
        }
        left -= wanted;
    }
    u64::MAX
}

fn of_lists(columns: &[ColumnChoice], set: &mut impl FnMut(&'static str, Value, String)) {
    let lists = columns.iter().filter(|column| column.kind == Kind::List);
    if let Some(longest) = lists.max_by_key(|column| column.longest) {
        let why = format!("the longest list seen, of `{}`", longest.name);
        set("tables.max_ids_per_sample", integer(longest.longest), why);
    }
}

fn of_steps(facts: &Facts, is_small: bool, set: &mut impl FnMut(&'static str, Value, String)) {
    let batch = if is_small { 32 } else { 128 };
    let steps = facts.rows.div_ceil(batch);
    set("train.batch_size", integer(batch), format!("about {steps} steps an epoch"));
    set("train.learning_rate", Value::Float(0.01), "as measured, with Adagrad".to_owned());
    let why = "rows of tables are seen less often than the net";
    set("train.sparse_learning_rate", Value::Float(0.02), why.to_owned());
    let (epochs, why) = match is_small {
        true => (4.0, "few steps an epoch"),
        false => (1.0, "a second one was worse wherever there were ids"),
    };
    set("train.epochs", Value::Float(epochs), why.to_owned());
    for key in ["optimizer.sparse.name", "optimizer.dense.name"] {
        set(key, "adagrad".into(), "as measured".to_owned());
    }
    if facts.decoded_bytes <= facts.usable_bytes / 4 {
        let why = "no two epochs alike, and files in order of time or label do no harm";
        set("data.order", "samples".into(), why.to_owned());
        let why = format!("about {} MiB once read", (facts.decoded_bytes >> 20).max(1));
        set("data.cache", "host".into(), why);
    } else {
        let why = format!("about {} GiB do not fit memory", facts.decoded_bytes >> 30);
        set("data.order", "sequential".into(), why);
    }
    if facts.has_valid {
        let why = "to see when it gets worse";
        set("eval.every", Value::Float(0.5), why.to_owned());
    }
}

fn integer(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

fn integers(numbers: &[u64]) -> Value {
    Value::Array(numbers.iter().copied().map(integer).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_by_small_tables_is_for_the_large_ones() {
        assert_eq!(largest_rows(&[100, 8, 1000], 10_000), u64::MAX);
        assert_eq!(largest_rows(&[8, 1_000_000, 2_000_000], 1010), 500);
        assert_eq!(largest_rows(&[], 5), u64::MAX);
    }
}
