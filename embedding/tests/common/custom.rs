//! Tables of other authors: a dense one that hides its rows, one keyed by raw ids, one whose rows
//! share storage.

use headlong_device::optimizer::StateWidth;
use headlong_device::{MatMut, MatRef, Stream};
use headlong_embedding::init::InitialValues;
use headlong_embedding::*;
use std::collections::HashMap;

/// The default kinds, and `hidden`, `raw` and `shared`.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register("hidden", |spec: &TableSpec, env: &TableEnv| {
        let dense = TableSpec { kind: "dense".to_owned(), ..spec.clone() };
        let inner = Registry::default().kind(&dense)?.build(&dense, env)?;
        let table: Box<dyn EmbeddingTable> = Box::new(Hidden { spec: spec.clone(), inner });
        Ok(table)
    });
    registry.register("raw", |spec: &TableSpec, env: &TableEnv| {
        let states = env.optimizer.states();
        let width = |state: StateWidth| if state == StateWidth::PerRow { 1 } else { spec.dim };
        let states = states.iter().map(|state| vec![state.initial; width(state.width)]).collect();
        let table: Box<dyn EmbeddingTable> = Box::new(Raw {
            spec: spec.clone(),
            initial: env.initial_values(spec),
            states,
            rows: HashMap::new(),
        });
        Ok(table)
    });
    registry.register("shared", |spec: &TableSpec, env: &TableEnv| {
        assert!(env.shard.is_none(), "a whole table is built whole");
        let table: Box<dyn EmbeddingTable> = Box::new(Shared::new(spec, env));
        Ok(table)
    });
    registry
}

/// What these tables do not do: they are never saved here.
macro_rules! never_saved {
    () => {
        fn memory(&self) -> MemoryNeeds {
            MemoryNeeds::default()
        }
        fn tensors(&self) -> Vec<TensorSpec> {
            Vec::new()
        }
        fn save(&self, _sink: &mut dyn RowSink) -> Result<()> {
            Ok(())
        }
        fn load(&mut self, _source: &mut dyn RowSource) -> Result<()> {
            Ok(())
        }
    };
}

/// A dense table that hides its rows, so that the set has to go through the trait.
struct Hidden {
    spec: TableSpec,
    inner: Box<dyn EmbeddingTable>,
}

impl EmbeddingTable for Hidden {
    fn memory(&self) -> MemoryNeeds {
        self.inner.memory()
    }
    fn tensors(&self) -> Vec<TensorSpec> {
        self.inner.tensors()
    }
    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        self.inner.save(sink)
    }
    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        self.inner.load(source)
    }
    fn spec(&self) -> &TableSpec {
        &self.spec
    }
    fn lookup(&mut self, stream: &Stream, rows: Rows, out: MatMut) -> Result<()> {
        self.inner.lookup(stream, rows, out)
    }
    fn apply(
        &mut self,
        stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        assert!(rows.indices().is_sorted_by(|a, b| a < b), "rows are unique and rising");
        self.inner.apply(stream, rows, gradients, step)
    }
}

/// Any id has a row, made when first asked for.
struct Raw {
    spec: TableSpec,
    initial: InitialValues,
    states: Vec<Vec<f32>>,
    rows: HashMap<u64, (Vec<f32>, Vec<Vec<f32>>)>,
}

impl Raw {
    fn row(&mut self, id: u64) -> &mut (Vec<f32>, Vec<Vec<f32>>) {
        let dim = self.spec.dim;
        self.rows.entry(id).or_insert_with(|| {
            let mut weights = vec![0.0; dim];
            self.initial.fill((id >> 8) * dim as u64, &mut weights);
            (weights, self.states.clone())
        })
    }
}

impl EmbeddingTable for Raw {
    never_saved!();
    fn spec(&self) -> &TableSpec {
        &self.spec
    }
    fn lookup(&mut self, _stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        for (entry, &id) in rows.indices().iter().enumerate() {
            out.row_mut(entry).copy_from_slice(&self.row(id).0);
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
        assert!(rows.indices().is_sorted_by(|a, b| a < b), "ids are unique and rising");
        for (entry, &id) in rows.indices().iter().enumerate() {
            let (weights, states) = self.row(id);
            let mut states = states.iter_mut();
            let first = states.next().map_or(&mut [][..], |state| state);
            let second = states.next().map_or(&mut [][..], |state| state);
            step.optimizer.apply(step.step, weights, first, second, gradients.row(entry));
        }
        Ok(())
    }
}

/// Quotient and remainder: the vector of a row is the sum of two, which it shares with other rows.
/// Plain descent.
struct Shared {
    spec: TableSpec,
    parts: Vec<f32>,
    side: u64,
}

impl Shared {
    fn tensor(&self) -> TensorSpec {
        TensorSpec { name: "weight".to_owned(), rows: 2 * self.side, cols: self.spec.dim }
    }
}

impl Shared {
    fn new(spec: &TableSpec, env: &TableEnv) -> Self {
        let side = (spec.rows as f64).sqrt().ceil() as u64;
        let mut parts = vec![0.0; (2 * side) as usize * spec.dim];
        env.initial_values(spec).fill(0, &mut parts);
        Self { spec: spec.clone(), parts, side }
    }

    fn starts(&self, row: u64) -> [usize; 2] {
        [row / self.side, self.side + row % self.side].map(|part| part as usize * self.spec.dim)
    }
}

impl EmbeddingTable for Shared {
    fn memory(&self) -> MemoryNeeds {
        MemoryNeeds::default()
    }
    fn tensors(&self) -> Vec<TensorSpec> {
        vec![self.tensor()]
    }
    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        sink.rows(&self.tensor(), 0, &self.parts)
    }
    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        source.rows(&self.tensor(), 0, &mut self.parts)
    }
    fn spec(&self) -> &TableSpec {
        &self.spec
    }
    fn lookup(&mut self, _stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        for (entry, &row) in rows.indices().iter().enumerate() {
            let [quotient, remainder] = self.starts(row);
            for (column, out) in out.row_mut(entry).iter_mut().enumerate() {
                *out = self.parts[quotient + column] + self.parts[remainder + column];
            }
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
        // Note: not linear in the parts, so that an apply in two pieces would give other bits.
        let norm: f32 = (0..rows.indices().len()).map(|entry| gradients.row(entry)[0].abs()).sum();
        let rate = step.step.learning_rate / (1.0 + norm);
        for (entry, &row) in rows.indices().iter().enumerate() {
            for start in self.starts(row) {
                let part = &mut self.parts[start..start + self.spec.dim];
                part.iter_mut().zip(gradients.row(entry)).for_each(|(w, g)| *w -= rate * g);
            }
        }
        Ok(())
    }
}
