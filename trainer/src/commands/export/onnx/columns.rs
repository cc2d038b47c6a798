//! What a reader does with columns, as a graph: numbers to what the bottom network sees, ids to
//! rows. A missing number is NaN, a missing id 2³²; lists are filled up with -1.

use super::graph::{Graph, SAMPLES};
use super::proto::{self, Elem};
use crate::commands::export::hashed::Numbered;
use crate::config::{Config, Ids};
use crate::error::{Error, Result};
use headlong_reader::DenseTransform;
use headlong_reader::columns::{BinnedColumn, Bins, ColumnFunction};
use headlong_reader::hashing::MISSING_ID;

/// What fills lists of ids up.
pub const PADDING: i64 = -1;

/// Rows of one table.
#[derive(Debug)]
pub struct Rows {
    /// One of each sample, or several.
    pub rows: String,
    /// Of several: 1.0 where there is one, 0.0 where a list is filled up.
    pub mask: Option<String>,
}

/// Inputs of all columns, and what becomes of them.
#[derive(Debug)]
pub struct Columns {
    /// What the bottom network takes, where there is one.
    pub dense: Option<String>,
    /// Of each table.
    pub rows: Vec<Rows>,
    /// Any of the inputs, to tell the number of samples from.
    pub first: String,
}

/// Adds the inputs. Where ids are looked up, `listed` has for each column those with a row of their
/// own, and which.
pub fn add(
    graph: &mut Graph,
    config: &Config,
    table_rows: &[u64],
    listed: &[Numbered],
) -> Result<Columns> {
    let names = config.dense_names();
    let functions = functions(config)?;
    let numbers: Vec<String> =
        names.iter().map(|name| graph.input(name, Elem::F64, &[SAMPLES])).collect();
    let seen: Vec<String> = numbers
        .iter()
        .zip(&functions)
        .map(|(input, function)| number(graph, input, function))
        .collect();
    let binned = config.dense_columns().map(|columns| columns.bins.clone()).unwrap_or_default();
    let num_ids = config.data.num_sparse - binned.len();
    let mut ids = Vec::new();
    for column in 0..num_ids {
        ids.push(input_ids(graph, config, column));
    }
    let of_bins = binned.iter().map(|binned| (bins(graph, &numbers[binned.column], binned), None));
    ids.extend(of_bins);
    let first = numbers.iter().chain(ids.iter().map(|(ids, _)| ids)).next().cloned();
    let mut rows = Vec::new();
    for (column, (ids, mask)) in ids.into_iter().enumerate() {
        let found = rows_of(graph, config, (column, table_rows[column]), &ids, listed);
        // What fills up stands for no row: any one will do.
        let found = match &mask {
            Some(mask) => {
                let is_id = graph.cast(mask, Elem::I64);
                graph.node("Mul", &[&found, &is_id])
            }
            None => found,
        };
        rows.push(Rows { rows: found, mask });
    }
    let dense = (!seen.is_empty()).then(|| graph.concat(&seen));
    let first = first.ok_or_else(|| Error::Unsupported {
        feature: "exporting a model without columns".to_owned(),
        reason: "it predicts from nothing".to_owned(),
    })?;
    Ok(Columns { dense, rows, first })
}

/// What becomes of each dense column.
fn functions(config: &Config) -> Result<Vec<ColumnFunction>> {
    let transform = config.data.dense_transform;
    if transform == DenseTransform::FileMinimum {
        return Err(Error::Unsupported {
            feature: "exporting data.dense_transform = \"file-minimum\" to ONNX".to_owned(),
            reason: "what a number becomes depends on the whole file it is in".to_owned(),
        });
    }
    let alike = vec![ColumnFunction { transform, standard: None }; config.data.num_dense];
    Ok(config.dense_columns().map_or(alike, |columns| columns.functions.clone()))
}

/// As [`ColumnFunction::number`], in a column of its own.
fn number(graph: &mut Graph, input: &str, function: &ColumnFunction) -> String {
    let zero = graph.double(0.0);
    let is_missing = graph.node("IsNaN", &[input]);
    let present = graph.node("Where", &[&is_missing, &zero, input]);
    let mut value = match function.transform {
        DenseTransform::LnPlus1 => logarithm(graph, &present, 0.0, 1.0),
        DenseTransform::LnPlus3 => logarithm(graph, &present, -2.0, 3.0),
        DenseTransform::Identity | DenseTransform::FileMinimum => present,
    };
    if let Some((mean, scale)) = function.standard {
        let (mean, scale) = (graph.double(mean), graph.double(scale));
        value = graph.node("Sub", &[&value, &mean]);
        value = graph.node("Div", &[&value, &scale]);
        value = graph.node("Where", &[&is_missing, &zero, &value]);
    }
    let value = graph.cast(&value, Elem::F32);
    let axis = graph.integers(&[1]);
    graph.node("Unsqueeze", &[&value, &axis])
}

/// `ln(max(x, floor) + shift)`.
fn logarithm(graph: &mut Graph, value: &str, floor: f64, shift: f64) -> String {
    let (floor, shift) = (graph.double(floor), graph.double(shift));
    let value = graph.node("Max", &[value, &floor]);
    let value = graph.node("Add", &[&value, &shift]);
    graph.node("Log", &[&value])
}

/// As [`Bins::id`].
fn bins(graph: &mut Graph, input: &str, binned: &BinnedColumn) -> String {
    let is_missing = graph.node("IsNaN", &[input]);
    let zero = graph.double(0.0);
    let present = graph.node("Where", &[&is_missing, &zero, input]);
    let bin = match &binned.bins {
        Bins::Ln2 => bin_by_logarithm(graph, &present),
        Bins::Edges(edges) => bin_by_edges(graph, &present, edges),
    };
    let none = graph.integer(0);
    graph.node("Where", &[&is_missing, &none, &bin])
}

fn bin_by_edges(graph: &mut Graph, value: &str, edges: &[f64]) -> String {
    let (edges, axis, one) = (graph.doubles(edges), graph.integers(&[1]), graph.integer(1));
    let value = graph.node("Unsqueeze", &[value, &axis]);
    let reached = graph.node("GreaterOrEqual", &[&value, &edges]);
    let reached = graph.cast(&reached, Elem::I64);
    let not_kept = vec![proto::integer("keepdims", 0)];
    let count = graph.node_with("ReduceSum", &[&reached, &axis], not_kept);
    graph.node("Add", &[&count, &one])
}

fn bin_by_logarithm(graph: &mut Graph, value: &str) -> String {
    let [zero, one, two, minus_one, five, most] =
        [0.0, 1.0, 2.0, -1.0, 5.0, f64::from(i32::MAX)].map(|number| graph.double(number));
    let twice_whole = |graph: &mut Graph, value: &str, more: &str| {
        let whole = graph.node("Floor", &[value]);
        let twice = graph.node("Mul", &[&whole, &two]);
        graph.node("Add", &[&twice, more])
    };
    // Of numbers that this part is not for, too: what it gives for them is not taken.
    let above_one = graph.node("Max", &[value, &one]);
    let logarithm = graph.node("Log", &[&above_one]);
    let squared = graph.node("Mul", &[&logarithm, &logarithm]);
    let large = twice_whole(graph, &squared, &five);
    let negative = graph.node("Neg", &[value]);
    let negative = graph.node("Min", &[&negative, &most]);
    let small = twice_whole(graph, &negative, &zero);
    let between = graph.node("Max", &[value, &zero]);
    let between = graph.node("Min", &[&between, &two]);
    let between = twice_whole(graph, &between, &one);
    let is_small = graph.node("LessOrEqual", &[value, &minus_one]);
    let is_large = graph.node("Greater", &[value, &two]);
    let bin = graph.node("Where", &[&is_small, &small, &between]);
    let bin = graph.node("Where", &[&is_large, &large, &bin]);
    graph.cast(&bin, Elem::I64)
}

/// The ids of a column, and where they are a list, the mask of what fills it up.
fn input_ids(graph: &mut Graph, config: &Config, column: usize) -> (String, Option<String>) {
    let name = config.table_names().into_iter().nth(column);
    let is_list = match &name {
        Some(name) => config.data.columns.lists.contains(name),
        None => config.max_ids_per_sample(column) > 1,
    };
    let name = name.unwrap_or_else(|| format!("C{}", column + 1));
    if !is_list {
        return (graph.input(&name, Elem::I64, &[SAMPLES]), None);
    }
    let most = format!("ids of {name}");
    let ids = graph.input(&name, Elem::I64, &[SAMPLES, &most]);
    let padding = graph.integer(PADDING);
    let is_padding = graph.node("Equal", &[&ids, &padding]);
    let is_id = graph.node("Not", &[&is_padding]);
    let mask = graph.cast(&is_id, Elem::F32);
    (ids, Some(mask))
}

/// As the reader's mapper has them; of tables of raw ids, the ids.
fn rows_of(
    graph: &mut Graph,
    config: &Config,
    (column, rows): (usize, u64),
    ids: &str,
    listed: &[Numbered],
) -> String {
    match config.data.ids {
        _ if config.is_raw(column) => ids.to_owned(),
        Ids::Hash => hashed(graph, ids, column, rows),
        Ids::Rows => ids.to_owned(),
        Ids::Modulo => modulo(graph, ids, rows),
        Ids::Dictionary | Ids::Admitted => {
            let (keys, values): (Vec<i64>, Vec<i64>) =
                listed[column].iter().map(|&(id, row)| (id as i64, row as i64)).unzip();
            match keys.is_empty() {
                true => {
                    let zero = graph.integer(0);
                    graph.node("Mul", &[ids, &zero])
                }
                false => graph.look_up(ids, &keys, &values),
            }
        }
    }
}

/// As [`headlong_reader::hashing::hashed_row`].
fn hashed(graph: &mut Graph, ids: &str, column: usize, rows: u64) -> String {
    let salt = (column as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let salt = graph.integer(salt as i64);
    // Integers that have a sign are added and multiplied, others shifted: runtimes have no more.
    let mut word = graph.node("Add", &[ids, &salt]);
    let by_33 = graph.unsigned(33);
    for factor in [Some(0xff51_afd7_ed55_8ccd_u64), Some(0xc4ce_b9fe_1a85_ec53), None] {
        let bits = graph.cast(&word, Elem::U64);
        let shifted = shift_right(graph, &bits, &by_33);
        let mixed = graph.node("BitwiseXor", &[&bits, &shifted]);
        word = graph.cast(&mixed, Elem::I64);
        if let Some(factor) = factor {
            let factor = graph.integer(factor as i64);
            word = graph.node("Mul", &[&word, &factor]);
        }
    }
    let (by_32, rows) = (graph.unsigned(32), graph.integer(rows as i64));
    let upper = |graph: &mut Graph, word: &str| {
        let bits = graph.cast(word, Elem::U64);
        let shifted = shift_right(graph, &bits, &by_32);
        graph.cast(&shifted, Elem::I64)
    };
    let fraction = upper(graph, &word);
    let product = graph.node("Mul", &[&fraction, &rows]);
    upper(graph, &product)
}

pub(super) fn shift_right(graph: &mut Graph, bits: &str, by: &str) -> String {
    graph.node_with("BitShift", &[bits, by], vec![proto::string("direction", "RIGHT")])
}

/// `id mod rows`; a missing value is the id 0.
fn modulo(graph: &mut Graph, ids: &str, rows: u64) -> String {
    let (missing, zero, rows) =
        (graph.integer(MISSING_ID as i64), graph.integer(0), graph.unsigned(rows));
    let is_missing = graph.node("Equal", &[ids, &missing]);
    let present = graph.node("Where", &[&is_missing, &zero, ids]);
    let bits = graph.cast(&present, Elem::U64);
    let row = graph.node("Mod", &[&bits, &rows]);
    graph.cast(&row, Elem::I64)
}
