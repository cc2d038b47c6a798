//! Exporting a model, or an ensemble, as one ONNX file: columns as they are in the data go in, the
//! probability of a click and its logit come out.
//!
//! | input | type | |
//! |---|---|---|
//! | a dense column, by its name (`I1` … in Criteo's text) | f64 `[samples]` | NaN is a missing value |
//! | a categorical column (`C1` …) | i64 `[samples]` | ids as the reader has them, 2³² is a missing value |
//! | a column of lists | i64 `[samples, most]` | filled up with -1 |
//! | a part of a time (`seen_at.hour`) | i64 `[samples]` | its id, 0 is a missing value |
//!
//! Ids of tables of kind `hashed` that have no row read their initial values, which are computed.
//!
//! Outputs are `probability` and `logit`, f32 `[samples]`. Everything is computed in f32, except
//! transforms of numbers and means of probabilities, which are in f64 as here.

mod columns;
mod graph;
mod hashed;
mod proto;

use self::columns::{Columns, PADDING, Rows};
use self::graph::Graph;
use self::proto::Elem;
use super::hashed::{HashedTable, Numbered, held_ids};
use super::{Place, Places, prefix, write_weights};
use crate::config::{Config, Ids, Interaction, Pooling};
use crate::data;
use crate::error::{Error, Result};
use crate::run::dictionary::RunDictionary;
use crate::run::session::{config_of, restore_ids};
use crate::state::checkpoint::{Checkpoint, Layout, Section, TableLayout, TensorId};
use headlong_device::files::OutputFile;
use headlong_reader::hashing::MISSING_ID;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// More bytes of weights than this lie in a file of their own: messages end at 2 GiB.
const MOST_INSIDE: u64 = 1 << 30;
/// No graph of weights in a file of their own is larger, unless it has a huge dictionary.
const MOST_GRAPH: u64 = 1 << 30;

/// Writes a model, or the mean of the models of an ensemble, to `output`, and returns the bytes
/// written. Weights of more than 1 GiB lie next to it, in `output` with `.data` behind its name.
pub fn export(models: &[Checkpoint], output: &Path) -> Result<u64> {
    export_with(models, output, MOST_INSIDE)
}

/// As [`export`], with more than `most_inside` bytes of weights next to it.
pub fn export_with(models: &[Checkpoint], output: &Path, most_inside: u64) -> Result<u64> {
    let config = config_of(&models[0])?;
    let (graph, order) = graph_of(models, &config)?;
    let outside = (graph.weight_bytes() > most_inside).then(|| data_file(output));
    if let Some(data) = &outside {
        refuse_other_file(data, output)?;
    }
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let metadata = [
        ("headlong.missing_id", MISSING_ID.to_string()),
        ("headlong.padding", PADDING.to_string()),
    ];
    let places_outside = graph.places_outside();
    let written = graph.model(outside.as_ref().map(name).as_deref(), &metadata).written();
    let file = OutputFile::create(output).map_err(Error::io("write", output))?;
    let mut bytes = 0;
    for (at, part) in &written.bytes {
        file.write_at(part, *at).map_err(Error::io("write", output))?;
        bytes = bytes.max(at + part.len() as u64);
    }
    match outside {
        None => {
            let places = places(models, &order, &written.gaps);
            bytes = written.gaps.iter().map(|gap| gap.end).fold(bytes, u64::max);
            let file = write_weights(models, places, file, output)?;
            file.commit().map_err(Error::io("write", output))?;
        }
        Some(path) => {
            let places = places(models, &order, &places_outside);
            bytes += places_outside.last().map_or(0, |last| last.end);
            let data = OutputFile::create(&path).map_err(Error::io("write", &path))?;
            let data = write_weights(models, places, data, &path)?;
            data.commit().map_err(Error::io("write", &path))?;
            file.commit().map_err(Error::io("write", output))?;
        }
    }
    Ok(bytes)
}

/// Where the weights of a large model lie: `output` with `.data` behind its name.
pub fn data_file(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".data");
    name.into()
}

/// Refuses to replace a file that no one has named: only that of an earlier export, which the
/// graph at `output` names.
fn refuse_other_file(data: &Path, output: &Path) -> Result<()> {
    if data.symlink_metadata().is_err() {
        return Ok(());
    }
    let name = data.file_name().unwrap_or_default().as_encoded_bytes();
    let mut graph = Vec::new();
    // The graph of weights in another file is small.
    let read = File::open(output).and_then(|file| file.take(MOST_GRAPH).read_to_end(&mut graph));
    if read.is_ok() && graph.windows(name.len()).any(|part| part == name) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} is there, and is not of an earlier export: weights would replace it; remove it, or \
         name another --output",
        data.display()
    )))
}

/// The weights of `order` lie in `ranges`.
fn places(
    models: &[Checkpoint],
    order: &[(usize, TensorId)],
    ranges: &[Range<u64>],
) -> Vec<Places> {
    let mut places = vec![Places::new(); models.len()];
    for ((model, id), range) in order.iter().zip(ranges) {
        let rows = rows_and_width(&models[*model].manifest().layout, *id).0;
        let row_bytes = (range.end - range.start) / rows.max(1);
        places[*model].insert(*id, Place { start: range.start, end: range.end, row_bytes });
    }
    places
}

fn rows_and_width(layout: &Layout, id: TensorId) -> (u64, u64) {
    match id.section {
        Section::Dense => {
            let shape = &layout.dense[id.index].shape;
            (shape[0], shape[1..].iter().product())
        }
        Section::Tables => (layout.tables[id.index].rows, layout.tables[id.index].dim),
    }
}

/// The graph, and whose numbers each of its weights are.
fn graph_of(models: &[Checkpoint], config: &Config) -> Result<(Graph, Vec<(usize, TensorId)>)> {
    refuse_others(&models[0].manifest().layout, config)?;
    let tables = &models[0].manifest().state.model.tables;
    let table_rows: Vec<u64> = tables.iter().map(|table| table.rows).collect();
    let listed = listed_ids(&models[0], config, &table_rows)?;
    let mut graph = Graph::default();
    let columns = columns::add(&mut graph, config, &table_rows, &listed)?;
    let mut network = Network { graph, config, columns, order: Vec::new() };
    let mut logits = Vec::new();
    for (number, model) in models.iter().enumerate() {
        let (layout, prefix) = (&model.manifest().layout, prefix(models, number));
        let (held, seed) = (held_ids(model)?, config_of(model)?.train.seed);
        let of_ids = table_rows.iter().enumerate().zip(held);
        let of_ids = of_ids.map(|((column, &rows), held)| {
            HashedTable::of(config, column, rows, seed).map(|table| (table, held))
        });
        let of = Model { layout, number, prefix, of_ids: of_ids.collect() };
        logits.push(network.logit(&of)?);
    }
    let Network { mut graph, order, .. } = network;
    outputs(&mut graph, &logits);
    Ok((graph, order))
}

/// Of each column, the ids that have a row of their own, and which; nothing where rows are computed
/// from ids.
fn listed_ids(model: &Checkpoint, config: &Config, table_rows: &[u64]) -> Result<Vec<Numbered>> {
    Ok(match config.data.ids {
        Ids::Dictionary => {
            let dictionary = RunDictionary::of_checkpoint(model, config)?;
            let columns = dictionary.columns().iter();
            columns.map(|column| column.ids.iter().copied().zip(1..).collect()).collect()
        }
        Ids::Admitted => {
            let mut mapper = data::id_mapper(config, table_rows)?;
            restore_ids(model, &mut mapper)?;
            let columns = mapper.admission().into_iter();
            columns
                .flat_map(|ids| (0..table_rows.len()).map(|column| ids.rows_of_ids(column)))
                .collect()
        }
        Ids::Hash | Ids::Modulo | Ids::Rows => Vec::new(),
    })
}

/// Refuses what a graph has no words for.
fn refuse_others(layout: &Layout, config: &Config) -> Result<()> {
    let unsupported = |feature: String, reason: &str| {
        Err(Error::Unsupported { feature, reason: reason.to_owned() })
    };
    let is_other = |(column, table): &(usize, &TableLayout)| {
        let is_hashed = HashedTable::of(config, *column, 1, 0).is_some();
        table.by_id != is_hashed || table.name.contains('.')
    };
    if let Some((_, table)) = layout.tables.iter().enumerate().find(is_other) {
        let feature = format!("exporting table {} to ONNX", table.name);
        let reason = "only tables of the kinds `dense` and `hashed` have rows that a graph can \
                      look up";
        return unsupported(feature, reason);
    }
    if !config.multi_hot.sizes.counts()?.is_empty() {
        return unsupported("exporting multi_hot.sizes to ONNX".to_owned(), "its ids are drawn");
    }
    let outputs = [PROBABILITY, LOGIT].map(str::to_owned);
    let mut seen = HashSet::from(outputs);
    let inputs = config.dense_names().into_iter().chain(config.table_names());
    match inputs
        .into_iter()
        .find(|name| name.starts_with("headlong/") || !seen.insert(name.clone()))
    {
        Some(name) => unsupported(
            format!("exporting a model with a column `{name}` to ONNX"),
            "an output, another input or a part of the graph has that name",
        ),
        None => Ok(()),
    }
}

const PROBABILITY: &str = "probability";
const LOGIT: &str = "logit";

/// The logit of the mean of the models' probabilities, as predictions have it.
fn outputs(graph: &mut Graph, logits: &[String]) {
    let logit = match logits {
        [logit] => logit.clone(),
        all => {
            let (mut clicks, mut none) = (Vec::new(), Vec::new());
            for logit in all {
                let logit = graph.cast(logit, Elem::F64);
                let opposite = graph.node("Neg", &[&logit]);
                clicks.push(graph.node("Sigmoid", &[&logit]));
                none.push(graph.node("Sigmoid", &[&opposite]));
            }
            let [clicks, none] = [clicks, none].map(|all| {
                let mut all = all.into_iter();
                let first = all.next().unwrap_or_default();
                let sum = all.fold(first, |sum, next| graph.node("Add", &[&sum, &next]));
                graph.node("Log", &[&sum])
            });
            let logit = graph.node("Sub", &[&clicks, &none]);
            graph.cast(&logit, Elem::F32)
        }
    };
    let wide = graph.cast(&logit, Elem::F64);
    let probability = graph.node("Sigmoid", &[&wide]);
    let probability = graph.cast(&probability, Elem::F32);
    graph.output(&probability, PROBABILITY, Elem::F32);
    graph.output(&logit, LOGIT, Elem::F32);
}

/// One model of an ensemble.
struct Model<'a> {
    layout: &'a Layout,
    number: usize,
    prefix: String,
    /// Of tables of raw ids: what their initial values are, and the ids that they hold.
    of_ids: Vec<Option<(HashedTable, Numbered)>>,
}

/// The layers, behind the columns.
struct Network<'a> {
    graph: Graph,
    config: &'a Config,
    columns: Columns,
    order: Vec<(usize, TensorId)>,
}

impl Network<'_> {
    fn logit(&mut self, model: &Model<'_>) -> Result<String> {
        let bottom = match self.columns.dense.clone() {
            Some(dense) => self.layers(model, "bottom", dense, true)?,
            None => self.zeros(),
        };
        let mut vectors = vec![bottom];
        for table in 0..self.columns.rows.len() {
            vectors.push(self.pooled(model, table));
        }
        let met = match self.config.model.interaction {
            Interaction::Dot => self.dots(&vectors),
            Interaction::Cat => self.graph.concat(&vectors),
            Interaction::Cross => {
                let whole = self.graph.concat(&vectors);
                self.crossed(model, whole)?
            }
        };
        let logit = self.layers(model, "top", met, false)?;
        let axis = self.graph.integers(&[1]);
        Ok(self.graph.node("Squeeze", &[&logit, &axis]))
    }

    /// In the place of a bottom network that there is not.
    fn zeros(&mut self) -> String {
        let graph = &mut self.graph;
        let (zero, first) = (graph.float(0.0), graph.integers(&[0]));
        let shape = graph.node("Shape", &[&self.columns.first]);
        let samples = graph.node("Gather", &[&shape, &first]);
        let dim = graph.integers(&[self.config.model.dim as i64]);
        let both = vec![proto::integer("axis", 0)];
        let shape = graph.node_with("Concat", &[&samples, &dim], both);
        graph.node("Expand", &[&zero, &shape])
    }

    /// The pooled vectors of a table.
    fn pooled(&mut self, model: &Model<'_>, table: usize) -> String {
        let layout = &model.layout.tables[table];
        let what = if layout.by_id { "entry" } else { "weight" };
        let name = format!("{}table.{}.{what}", model.prefix, layout.name);
        let id = TensorId { section: Section::Tables, index: table, state: None };
        let weights = self.weights(model, id, name, &[layout.rows, layout.dim]);
        let Rows { rows, mask } = &self.columns.rows[table];
        let graph = &mut self.graph;
        let vectors = match &model.of_ids[table] {
            Some((of_ids, held)) => {
                let dim = self.config.model.dim;
                let ids = hashed::IdsOf { ids: rows, axes: 1 + usize::from(mask.is_some()) };
                hashed::vectors(graph, (of_ids, dim), &weights, held, &ids)
            }
            None => graph.node("Gather", &[&weights, rows]),
        };
        let Some(mask) = mask else { return vectors };
        let (last, middle) = (graph.integers(&[2]), graph.integers(&[1]));
        let factors = graph.node("Unsqueeze", &[mask, &last]);
        let vectors = graph.node("Mul", &[&vectors, &factors]);
        let not_kept = || vec![proto::integer("keepdims", 0)];
        let sum = graph.node_with("ReduceSum", &[&vectors, &middle], not_kept());
        match self.config.table_spec(table, layout.rows).pooling {
            Pooling::Sum => sum,
            Pooling::Mean => {
                let one = graph.float(1.0);
                let count = graph.node_with("ReduceSum", &[&factors, &middle], not_kept());
                let count = graph.node("Max", &[&count, &one]);
                graph.node("Div", &[&sum, &count])
            }
        }
    }

    /// The bottom's output, and the products of all pairs of vectors.
    fn dots(&mut self, vectors: &[String]) -> String {
        let (num, dim) = (vectors.len() as i64, self.config.model.dim as i64);
        let graph = &mut self.graph;
        let side_by_side = graph.concat(vectors);
        let shape = graph.integers(&[-1, num, dim]);
        let stack = graph.node("Reshape", &[&side_by_side, &shape]);
        let order = vec![proto::integers("perm", &[0, 2, 1])];
        let transposed = graph.node_with("Transpose", &[&stack], order);
        let products = graph.node("MatMul", &[&stack, &transposed]);
        let shape = graph.integers(&[-1, num * num]);
        let products = graph.node("Reshape", &[&products, &shape]);
        let below: Vec<i64> = (0..num).flat_map(|i| (0..i).map(move |j| i * num + j)).collect();
        let below = graph.integers(&below);
        let axis = vec![proto::integer("axis", 1)];
        let pairs = graph.node_with("Gather", &[&products, &below], axis);
        graph.concat(&[vectors[0].clone(), pairs])
    }

    /// `x ← x₀ ⊙ (W·(V·x) + b) + x`, layer by layer.
    fn crossed(&mut self, model: &Model<'_>, whole: String) -> Result<String> {
        let mut x = whole.clone();
        for layer in 0..self.config.model.cross_layers {
            let name = |what: &str| format!("cross.{layer}.{what}");
            let inner = self.product(model, &x, (&name("v.weight"), None))?;
            let h = self.product(model, &inner, (&name("w.weight"), Some(&name("w.bias"))))?;
            let product = self.graph.node("Mul", &[&whole, &h]);
            x = self.graph.node("Add", &[&product, &x]);
        }
        Ok(x)
    }

    /// A stack of layers; a ReLU is behind each, except the last one unless `last_has_relu`.
    fn layers(
        &mut self,
        model: &Model<'_>,
        stack: &str,
        mut x: String,
        last_has_relu: bool,
    ) -> Result<String> {
        let widths =
            if stack == "bottom" { &self.config.model.bottom } else { &self.config.model.top };
        for layer in 0..widths.len() {
            let name = |what: &str| format!("{stack}.{layer}.{what}");
            x = self.product(model, &x, (&name("weight"), Some(&name("bias"))))?;
            if last_has_relu || layer + 1 < widths.len() {
                x = self.graph.node("Relu", &[&x]);
            }
        }
        Ok(x)
    }

    /// `x·Wᵀ + b`.
    fn product(
        &mut self,
        model: &Model<'_>,
        x: &str,
        (weight, bias): (&str, Option<&str>),
    ) -> Result<String> {
        let weight = self.parameter(model, weight)?;
        let mut inputs = vec![x, &weight];
        let bias = bias.map(|bias| self.parameter(model, bias)).transpose()?;
        inputs.extend(bias.as_deref());
        Ok(self.graph.node_with("Gemm", &inputs, vec![proto::integer("transB", 1)]))
    }

    fn parameter(&mut self, model: &Model<'_>, name: &str) -> Result<String> {
        let all = &model.layout.dense;
        let Some(index) = all.iter().position(|parameter| parameter.name == name) else {
            let message = format!("the checkpoint has no parameter `{name}`");
            return Err(Error::config("DIR", message));
        };
        let id = TensorId { section: Section::Dense, index, state: None };
        Ok(self.weights(model, id, format!("{}{name}", model.prefix), &all[index].shape))
    }

    fn weights(&mut self, model: &Model<'_>, id: TensorId, name: String, shape: &[u64]) -> String {
        self.order.push((model.number, id));
        self.graph.weights(&name, shape)
    }
}
