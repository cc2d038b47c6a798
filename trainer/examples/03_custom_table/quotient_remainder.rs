//! Quotient-remainder embeddings, after Shi et al., "Compositional embeddings using complementary
//! partitions for memory-efficient recommendation systems" (2019, arXiv:1909.02107).
//!
//! Row `i` is `quotient[i / m] ⊙ remainder[i mod m]`: two small matrices instead of one large one,
//! and no two rows are the same pair.

use headlong::table::*;
use std::collections::BTreeMap;

/// Builds the tables.
pub struct QuotientRemainder;

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

    fn check(&self, spec: &TableSpec) -> Result<()> {
        spec.check()?;
        buckets(spec).map(drop)
    }

    fn memory(&self, spec: &TableSpec, optimizer: &Optimizer) -> MemoryNeeds {
        let buckets = buckets(spec).unwrap_or(spec.rows);
        let rows = spec.rows.div_ceil(buckets) + buckets;
        TableSpec { rows, ..spec.clone() }.dense_memory(optimizer)
    }

    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        self.check(spec)?;
        let buckets = buckets(spec)?;
        let mut parts = [("quotient", spec.rows.div_ceil(buckets)), ("remainder", buckets)]
            .map(|(name, rows)| Part::new(name, rows, spec.dim, env.optimizer));
        // The quotient starts as the rows of a dense table would, the remainder near 1: so does
        // their product.
        let values = env.initial_values(spec);
        values.fill(0, &mut parts[0].tensors[0].1);
        let first_of_remainder = parts[0].tensors[0].1.len() as u64;
        values.fill(first_of_remainder, &mut parts[1].tensors[0].1);
        parts[1].tensors[0].1.iter_mut().for_each(|value| *value += 1.0);
        Ok(Box::new(Table {
            spec: spec.clone(),
            memory: self.memory(spec, env.optimizer),
            buckets,
            parts,
        }))
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
        Self {
            dim,
            tensors: std::iter::once(tensor(name.to_owned(), dim, 0.0)).chain(states).collect(),
        }
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
            let (first, second) =
                (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
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

    fn apply(
        &mut self,
        _stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        // Rows are unique, their halves are not: each half sums its gradients, in the order of the
        // rows, and takes one step.
        let mut sums = [BTreeMap::new(), BTreeMap::new()];
        for (entry, &row) in rows.indices().iter().enumerate() {
            let places = self.places(row);
            for half in 0..2 {
                let other = self.parts[1 - half].row(places[1 - half]);
                let sum: &mut Vec<f32> =
                    sums[half].entry(places[half]).or_insert_with(|| vec![0.0; self.spec.dim]);
                for ((sum, gradient), other) in sum.iter_mut().zip(gradients.row(entry)).zip(other)
                {
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
