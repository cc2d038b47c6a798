//! How to train: sizes, ids, batches, rates, order, evaluations.

use super::{ColumnChoice, Facts, Kind, Setting};
use toml::Value;

/// Below so many rows a table is small: a wide net learns it by heart.
const SMALL_ROWS: u64 = 10_000;
/// Below so many rows several models take seconds, and narrow vectors are enough where each id is
/// seen often. Measured up to 100,000.
const FEW_ROWS: u64 = 500_000;
/// Bytes that an id takes while a dictionary counts it.
const COUNTED_BYTES: f64 = 48.0;
/// Of a table's rows, one weight and one state of Adagrad.
const BYTES_PER_ELEMENT: f64 = 8.0;
/// Widths of vectors that are tried, where memory is short.
const DIMS: [u64; 3] = [32, 16, 8];

/// The shape of a net and how fast it learns, measured on tables of that kind.
struct Shape {
    dim: u64,
    bottom: &'static [u64],
    top: &'static [u64],
    /// Whether vectors enter the top network themselves, not their products.
    is_cat: bool,
    dense: Rate,
    sparse: Rate,
    /// So many of them, where these are kept: with products single ones differ more.
    models: u64,
    why: &'static str,
}

/// Adagrad's learning rate, and where its sum of squares begins: rows that are seen a few times,
/// and first steps, are not moved by a whole learning rate each time.
struct Rate {
    rate: f64,
    begin: f64,
}

const SMALL: Shape = Shape {
    dim: 8,
    bottom: &[64],
    top: &[64, 1],
    is_cat: true,
    dense: Rate { rate: 0.01, begin: 1e-3 },
    sparse: Rate { rate: 0.02, begin: 1e-4 },
    models: 3,
    why: "few rows, or ids that are seen often: best on tables like that",
};
const OF_IDS: Shape = Shape {
    dim: 32,
    bottom: &[64],
    top: &[64, 32, 1],
    is_cat: false,
    dense: Rate { rate: 0.02, begin: 1e-4 },
    sparse: Rate { rate: 0.05, begin: 1e-5 },
    models: 5,
    why: "best on tables with many ids",
};

/// Every setting of a run on such columns, with its reason. `values` are the different values of
/// each table in all rows.
pub(super) fn settings(columns: &[ColumnChoice], values: &[u64], facts: &Facts) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut set = |key, value: Value, reason: String| settings.push(Setting { key, value, reason });
    let dense = columns.iter().filter(|column| column.kind == Kind::Dense).count();
    let ids = columns.iter().filter(|c| matches!(c.kind, Kind::Categorical | Kind::List)).count();
    // Tables of parts and of bins come after those of ids.
    let largest = values[..ids].iter().copied().max().unwrap_or(0);
    let shape = if is_small(facts, largest) { SMALL } else { OF_IDS };
    let total: u64 = values.iter().sum();
    let budget = facts.usable_bytes as f64 / 2.0;
    let needed = |dim: u64| total as f64 * (dim as f64 * BYTES_PER_ELEMENT + COUNTED_BYTES);
    let mut dims = DIMS.into_iter().filter(|&dim| dim <= shape.dim);
    let fits = dims.find(|&dim| needed(dim) <= budget);
    let dim = fits.unwrap_or(DIMS[DIMS.len() - 1]);
    let why = match fits {
        Some(dim) if dim == shape.dim => shape.why.to_owned(),
        _ => format!("the vectors of {total} ids, and wider ones do not fit half the memory"),
    };
    set("model.dim", integer(dim), why);
    if dense > 0 {
        let bottom = [shape.bottom, &[dim]].concat();
        set("model.bottom", integers(&bottom), format!("{}; ends with model.dim", shape.why));
    }
    set("model.top", integers(shape.top), shape.why.to_owned());
    if shape.is_cat {
        set("model.interaction", "cat".into(), shape.why.to_owned());
    } else if values.len() + usize::from(dense > 0) < 2 {
        let why = "there are no two vectors to multiply with each other";
        set("model.interaction", "cat".into(), why.to_owned());
    }
    of_ids(fits.is_some(), values, (dim, budget), &mut set);
    of_lists(columns, &mut set);
    of_steps(facts, largest, &mut set);
    of_rates(&shape, &mut set);
    if facts.keeps_models && facts.rows < FEW_ROWS {
        let why = "their mean predicts better than one, and so few rows take seconds";
        set("train.seeds", integer(shape.models), why.to_owned());
    }
    of_order(facts, &mut set);
    settings
}

/// Whether a narrow net learns more of the table than a wide one. `largest` are the different ids
/// of the column that has most.
fn is_small(facts: &Facts, largest: u64) -> bool {
    facts.rows < SMALL_ROWS || facts.rows < FEW_ROWS && largest <= facts.rows / 200
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

fn of_steps(facts: &Facts, largest: u64, set: &mut impl FnMut(&'static str, Value, String)) {
    let batch = match facts.rows {
        0..50_000 => 32,
        50_000..500_000 => 64,
        500_000..5_000_000 => 256,
        _ => 2048,
    };
    let steps = facts.rows.div_ceil(batch);
    set("train.batch_size", integer(batch), format!("about {steps} steps an epoch"));
    let (epochs, why) = match facts.rows {
        0..SMALL_ROWS => (5.0, "few rows, few steps".to_owned()),
        _ if is_small(facts, largest) => (4.0, "each id is seen often".to_owned()),
        rows if largest <= rows / 200 => (2.0, "each id is seen often".to_owned()),
        _ => (1.0, format!("a second one learns ids by heart where there are {largest}")),
    };
    set("train.epochs", Value::Float(epochs), why);
    if !facts.has_valid {
        let why = "to see how good it is, without --valid";
        set("data.holdout", Value::Float(0.1), why.to_owned());
    }
    set("eval.every", Value::Float(0.5), "to see where it is best".to_owned());
    let why = "and to keep those weights, where there is a folder for checkpoints";
    set("eval.patience", integer(3), why.to_owned());
}

fn of_rates(shape: &Shape, set: &mut impl FnMut(&'static str, Value, String)) {
    let (dense, sparse) = (&shape.dense, &shape.sparse);
    set("train.learning_rate", Value::Float(dense.rate), "as measured, with Adagrad".to_owned());
    let why = "more: a row is seen less often than the net";
    set("train.sparse_learning_rate", Value::Float(sparse.rate), why.to_owned());
    for key in ["optimizer.sparse.name", "optimizer.dense.name"] {
        set(key, "adagrad".into(), "best of those measured".to_owned());
    }
    let why = "a row seen once or twice is not moved by a whole learning rate each time";
    set("optimizer.sparse.initial_accumulator", Value::Float(sparse.begin), why.to_owned());
    let why = "nor is the net by its first steps";
    set("optimizer.dense.initial_accumulator", Value::Float(dense.begin), why.to_owned());
}

fn of_order(facts: &Facts, set: &mut impl FnMut(&'static str, Value, String)) {
    if facts.decoded_bytes <= facts.usable_bytes / 4 {
        let why = "no two epochs alike, and files in order of time or label do no harm";
        set("data.order", "samples".into(), why.to_owned());
        let why = format!("about {} MiB once read", (facts.decoded_bytes >> 20).max(1));
        set("data.cache", "host".into(), why);
    } else {
        let why = format!("about {} GiB do not fit memory", facts.decoded_bytes >> 30);
        set("data.order", "sequential".into(), why);
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
    fn narrow_nets_are_for_few_rows_and_frequent_ids() {
        let facts = |rows| Facts {
            rows,
            has_valid: true,
            keeps_models: true,
            usable_bytes: 1 << 34,
            decoded_bytes: 1 << 20,
        };
        for (rows, ids, dim, models, epochs) in [
            (5000, 3000, 8, Some(3), 5.0),
            (40_000, 100, 8, Some(3), 4.0),
            (40_000, 1000, 32, Some(5), 1.0),
            (1_000_000, 1000, 32, None, 2.0),
            (1_000_000, 100_000, 32, None, 1.0),
        ] {
            let column = ColumnChoice {
                name: "c".to_owned(),
                kind: Kind::Categorical,
                reason: String::new(),
                num_values: ids,
                longest: 1,
                missing_share: 0.0,
                number: None,
                list_separator: None,
                parts: Vec::new(),
            };
            let found = settings(&[column], &[ids], &facts(rows));
            let of = |key| found.iter().find(|one| one.key == key).map(|one| one.value.clone());
            assert_eq!(of("model.dim"), Some(integer(dim)), "{rows} rows");
            assert_eq!(of("train.seeds"), models.map(integer), "{rows} rows");
            assert_eq!(of("train.epochs"), Some(Value::Float(epochs)), "{rows} rows");
        }
    }

    #[test]
    fn what_is_left_by_small_tables_is_for_the_large_ones() {
        assert_eq!(largest_rows(&[100, 8, 1000], 10_000), u64::MAX);
        assert_eq!(largest_rows(&[8, 1_000_000, 2_000_000], 1010), 500);
        assert_eq!(largest_rows(&[], 5), u64::MAX);
    }
}
