//! A table of one's own, written as in a crate of one's own: quotient-remainder embeddings, after Shi et al., "Compositional
//! embeddings using complementary partitions for memory-efficient recommendation systems" (2019, arXiv:1909.02107).
//!
//! Row `i` is `quotient[i / m] ⊙ remainder[i mod m]`: two small matrices instead of one large one, and no two rows are the same
//! pair. docs/custom-tables.md walks through this file.
//!
//! ```text
//! cargo run --release -p headlong --example 03_custom_table
//! ```

use headlong::config::Config;
use headlong::crew::{Crew, CrewOptions};
use headlong::preset::preset;
use headlong::report::Reporter;
use headlong::session::{Session, Start};
use headlong::train::Prepared;
use headlong_device::optimizer::{Optimizer, StateWidth};
use headlong_device::{DType, MatMut, MatRef, Stream};
use headlong_embedding::testing::check_table;
use headlong_embedding::{
    Abilities, EmbeddingTable, Grain, Keys, MemoryNeeds, Registry, Result, RowSink, RowSource, Rows,
    SparseStep, TableEnv, TableKind, TableSpec, TensorSpec,
};
use std::collections::BTreeMap;

/// Builds the tables.
struct QuotientRemainder;

impl TableKind for QuotientRemainder {
    fn abilities(&self) -> Abilities {
        Abilities {
            grains: &[Grain::Whole],
            keys: &[Keys::RowIndices],
            dtypes: &[DType::F32],
            devices: &["cpu"],
            options: Some(&["buckets"]),
        }
    }

    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        let buckets = buckets(spec).unwrap_or(spec.rows);
        let rows = spec.rows.div_ceil(buckets) + buckets;
        TableSpec { rows, ..spec.clone() }.dense_memory(optimizer)
    }

    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        spec.check()?;
        let buckets = buckets(spec)?;
        let mut parts = [("quotient", spec.rows.div_ceil(buckets)), ("remainder", buckets)]
            .map(|(name, rows)| Part::new(name, rows, spec.dim, env.optimizer));
        // The quotient starts as the rows of a dense table would, the remainder near 1: so does their product.
        let values = env.initial_values(spec);
        values.fill(0, &mut parts[0].tensors[0].1);
        let first_of_remainder = parts[0].tensors[0].1.len() as u64;
        values.fill(first_of_remainder, &mut parts[1].tensors[0].1);
        parts[1].tensors[0].1.iter_mut().for_each(|value| *value += 1.0);
        Ok(Box::new(Table { spec: spec.clone(), memory: self.memory(spec, env.optimizer), buckets, parts }))
    }
}

/// Rows of the remainder: the option `buckets`, or the number that makes both parts about as large.
fn buckets(spec: &TableSpec) -> Result<u64> {
    let square = (spec.rows as f64).sqrt().ceil() as u64;
    Ok(spec.option("buckets", square)?.clamp(1, spec.rows.max(1)))
}

/// One of the two matrices: the weights, then the optimiser's states.
struct Part {
    dim: usize,
    tensors: Vec<(TensorSpec, Vec<f32>)>,
}

impl Part {
    fn new(name: &str, rows: u64, dim: usize, optimizer: &Optimizer) -> Self {
        let tensor = |name: String, cols: usize, value: f32| {
            (TensorSpec { name, rows, cols }, vec![value; rows as usize * cols])
        };
        let states = optimizer.states().into_iter().map(|state| {
            let cols = if state.width == StateWidth::PerRow { 1 } else { dim };
            tensor(format!("{name}.{}", state.name), cols, state.initial)
        });
        Self { dim, tensors: std::iter::once(tensor(name.to_owned(), dim, 0.0)).chain(states).collect() }
    }

    fn row(&self, row: u64) -> &[f32] {
        &self.tensors[0].1[row as usize * self.dim..][..self.dim]
    }

    /// One step on each row that has a gradient.
    fn step(&mut self, gradients: &BTreeMap<u64, Vec<f32>>, step: &SparseStep) {
        for (&row, gradient) in gradients {
            let mut rows = self.tensors.iter_mut().map(|(tensor, values)| {
                let cols = tensor.cols;
                &mut values[row as usize * cols..][..cols]
            });
            let weights = rows.next().unwrap_or_default();
            let (first, second) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
            step.optimizer.apply(step.step, weights, first, second, gradient);
        }
    }
}

struct Table {
    spec: TableSpec,
    memory: MemoryNeeds,
    buckets: u64,
    parts: [Part; 2],
}

impl Table {
    /// The row of each part.
    fn places(&self, row: u64) -> [u64; 2] {
        [row / self.buckets, row % self.buckets]
    }
}

impl EmbeddingTable for Table {
    fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn memory(&self) -> MemoryNeeds {
        self.memory
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        self.parts.iter().flat_map(|part| &part.tensors).map(|(tensor, _)| tensor.clone()).collect()
    }

    fn lookup(&mut self, _stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        for (entry, &row) in rows.indices().iter().enumerate() {
            let [quotient, remainder] = self.places(row);
            let product = self.parts[0].row(quotient).iter().zip(self.parts[1].row(remainder));
            out.row_mut(entry).iter_mut().zip(product).for_each(|(out, (a, b))| *out = a * b);
        }
        Ok(())
    }

    fn apply(&mut self, _stream: &Stream, rows: Rows, gradients: MatRef, step: &SparseStep) -> Result<()> {
        // Rows are unique, their halves are not: each half sums its gradients, in the order of the rows, and takes one step.
        let mut sums = [BTreeMap::new(), BTreeMap::new()];
        for (entry, &row) in rows.indices().iter().enumerate() {
            let places = self.places(row);
            for half in 0..2 {
                let other = self.parts[1 - half].row(places[1 - half]);
                let sum: &mut Vec<f32> =
                    sums[half].entry(places[half]).or_insert_with(|| vec![0.0; self.spec.dim]);
                for ((sum, gradient), other) in sum.iter_mut().zip(gradients.row(entry)).zip(other) {
                    *sum += gradient * other;
                }
            }
        }
        self.parts.iter_mut().zip(&sums).for_each(|(part, sums)| part.step(sums, step));
        Ok(())
    }

    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        let mut tensors = self.parts.iter().flat_map(|part| &part.tensors);
        tensors.try_for_each(|(tensor, values)| sink.rows(tensor, 0, values))
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        let mut tensors = self.parts.iter_mut().flat_map(|part| &mut part.tensors);
        tensors.try_for_each(|(tensor, values)| source.rows(tensor, 0, values))
    }
}

/// The tables that are of the new kind; a file given to a program would say the same.
const TABLES: &str = r#"
[[table]]
name = "C3"
kind = "quotient_remainder"
grain = "whole"
options = { buckets = 200 }

[[table]]
name = "C12"
kind = "quotient_remainder"
grain = "whole"
"#;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.register("quotient_remainder", QuotientRemainder);

    // Does it keep the promises of a table? Anything wrong ends the program and names the promise.
    let mut spec = TableSpec::new("ads", 5000, 16);
    (spec.kind, spec.grain) = ("quotient_remainder".to_owned(), Grain::Whole);
    check_table(registry.kind(&spec)?, &spec);
    println!("the table conforms");

    let folder = tempfile::tempdir()?;
    let mut config = preset("tiny")?;
    config.set_all(&["synthetic.train_rows=40_000", "synthetic.valid_rows=10_000"])?;
    config.table = Config::from_toml(TABLES, "tables")?.table;
    config.run.output_dir = folder.path().to_owned();
    config.checkpoint.dir = Some(folder.path().join("checkpoints"));
    config.validate()?;

    let threads = 2;
    let prepared = Prepared::new(&config, None, threads, &Reporter::quiet(None))?;
    let crew = Crew::build(&config, &prepared.table_rows, CrewOptions::new(threads, &registry))?;
    for (column, name) in [(2, "C3"), (11, "C12")] {
        let spec = config.table_spec(column, prepared.table_rows[column]);
        let [ours, dense] = [
            registry.kind(&spec)?.memory(&spec, &Optimizer::Sgd).weight_bytes,
            spec.dense_memory(&Optimizer::Sgd).weight_bytes,
        ];
        println!("{name}: {} rows in {ours} bytes instead of {dense}", spec.rows);
    }
    let data = prepared.session_data(&config, threads)?;
    let mut session = Session::open(&config, crew, data, &Start::Fresh)?;
    while let Some(step) = session.step()? {
        if session.steps().is_multiple_of(20) {
            println!("step {:>3}  loss {:.4}", session.steps(), step.loss);
        }
    }
    let auc = session.evaluate()?.and_then(|metrics| metrics.auc).ok_or("there is no validation data")?;
    let saved = session.save(Some("finished"))?.ok_or("there is no folder of checkpoints")?;
    println!("AUC {auc:.4}; {} bytes in {}", saved.bytes, saved.path.display());
    Ok(())
}
