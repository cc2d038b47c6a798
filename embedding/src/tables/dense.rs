//! One row of memory per row index: the table of most models.

use crate::checkpoint::{RowSink, RowSource, TensorSpec, rows_at_once};
use crate::error::{EmbeddingError, Result};
use crate::registry::{Abilities, TableEnv, TableKind};
use crate::table::{EmbeddingTable, Grain, Keys, MemoryNeeds, PlainRows, Rows, SparseStep, TableSpec};
use headlong_device::{ArenaPlan, DType, Mat, MatMut, MatRef, Stream};

/// Elements that one task of the initialisation writes: a mebibyte, and a multiple of the generator's group.
const INIT_CHUNK: usize = 1 << 18;

/// Builds [`DenseTable`]s.
#[derive(Debug, Clone, Copy, Default)]
pub struct DenseKind;

impl TableKind for DenseKind {
    fn abilities(&self) -> Abilities {
        Abilities { grains: &[Grain::Rows], keys: &[Keys::RowIndices], devices: &["cpu"], options: Some(&[]) }
    }

    fn shows_rows(&self) -> bool {
        true
    }

    fn build(&self, spec: &TableSpec, env: &TableEnv) -> Result<Box<dyn EmbeddingTable>> {
        Ok(Box::new(DenseTable::new(spec, env)?))
    }
}

/// Rows in one arena on huge pages, weights first, then each optimiser state.
#[derive(Debug)]
pub struct DenseTable {
    spec: TableSpec,
    memory: MemoryNeeds,
    tensors: Vec<TensorSpec>,
    rows: PlainRows,
}

impl DenseTable {
    /// Takes the memory and fills it, in parallel on the stream's pool. Zeros are left to the system: rows of a zero
    /// tensor take no memory before they are written.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`] for raw ids and for element types other than f32, [`EmbeddingError::Device`] for memory.
    pub fn new(spec: &TableSpec, env: &TableEnv) -> Result<Self> {
        spec.check()?;
        let refuse = |reason: String| Err(EmbeddingError::Spec { table: spec.name.clone(), reason });
        if spec.keys == Keys::RawIds {
            return refuse("a dense table is asked with row indices, got keys = raw ids".to_owned());
        }
        if spec.dtype != DType::F32 {
            return refuse(format!("dense tables hold f32 on the CPU, got dtype = {}", spec.dtype.name()));
        }
        let tensors = spec.dense_tensors(env.optimizer);
        let mut plan = ArenaPlan::new(&format!("table {}", spec.name));
        let slots: Vec<_> = tensors
            .iter()
            .map(|tensor| plan.matrix(&tensor.name, DType::F32, tensor.rows as usize, tensor.cols))
            .collect();
        let arena = plan.freeze()?;
        let mut mats = slots.into_iter().map(|slot| arena.mat(slot));
        let weights = mats.next().expect("the weights are the first tensor of every table");
        let rows = PlainRows { weights, states: mats.collect() };
        let table = Self { spec: spec.clone(), memory: spec.dense_memory(env.optimizer), tensors, rows };
        table.initialise(env);
        Ok(table)
    }

    fn initialise(&self, env: &TableEnv) {
        let pool = env.stream.pool();
        let values = env.initial_values(&self.spec);
        if !values.are_zero() && env.shard.is_some() {
            let dim = self.spec.dim;
            let rows_at_once = (INIT_CHUNK / dim).max(1);
            pool.chunks_mut(self.rows.weights.write::<f32>().data_mut(), rows_at_once * dim, |chunk, out| {
                let first = (chunk * rows_at_once) as u64;
                values.fill_rows(dim, |index| env.row_of_local(first + index), out);
            });
        } else if !values.are_zero() {
            pool.chunks_mut(self.rows.weights.write::<f32>().data_mut(), INIT_CHUNK, |chunk, out| {
                values.fill((chunk * INIT_CHUNK) as u64, out);
            });
        }
        for (mat, state) in self.rows.states.iter().zip(env.optimizer.states()) {
            if state.initial != 0.0 {
                pool.chunks_mut(mat.write::<f32>().data_mut(), INIT_CHUNK, |_, out| out.fill(state.initial));
            }
        }
    }

    fn tensor_mats(&self) -> impl Iterator<Item = (&TensorSpec, &Mat)> {
        self.tensors.iter().zip(std::iter::once(&self.rows.weights).chain(&self.rows.states))
    }
}

/// `(first row, rows)` of each run of rows that travels at once.
fn runs(tensor: &TensorSpec) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (rows, step) = (tensor.rows, rows_at_once(tensor.cols));
    (0..rows.div_ceil(step)).map(move |run| (run * step, step.min(rows - run * step)))
}

impl EmbeddingTable for DenseTable {
    fn spec(&self) -> &TableSpec {
        &self.spec
    }

    fn memory(&self) -> MemoryNeeds {
        self.memory
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        self.tensors.clone()
    }

    fn lookup(&mut self, _stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        let weights = self.rows.weights.read::<f32>();
        for (entry, &row) in rows.indices().iter().enumerate() {
            out.row_mut(entry).copy_from_slice(weights.row(row as usize));
        }
        Ok(())
    }

    fn apply(&mut self, _stream: &Stream, rows: Rows, gradients: MatRef, step: &SparseStep) -> Result<()> {
        let mut weights = self.rows.weights.write::<f32>();
        let mut first = self.rows.states.first().map(|mat| mat.write::<f32>());
        let mut second = self.rows.states.get(1).map(|mat| mat.write::<f32>());
        for (entry, &row) in rows.indices().iter().enumerate() {
            let row = row as usize;
            step.optimizer.apply(
                step.step,
                weights.row_mut(row),
                first.as_mut().map_or(&mut [], |state| state.row_mut(row)),
                second.as_mut().map_or(&mut [], |state| state.row_mut(row)),
                gradients.row(entry),
            );
        }
        Ok(())
    }

    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        for (tensor, mat) in self.tensor_mats() {
            let values = mat.read::<f32>();
            for (first, count) in runs(tensor) {
                let run = &values.data()[first as usize * tensor.cols..][..count as usize * tensor.cols];
                sink.rows(tensor, first, run)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        for (tensor, mat) in self.tensor_mats() {
            let mut values = mat.write::<f32>();
            for (first, count) in runs(tensor) {
                let run =
                    &mut values.data_mut()[first as usize * tensor.cols..][..count as usize * tensor.cols];
                source.rows(tensor, first, run)?;
            }
        }
        Ok(())
    }

    fn plain_rows(&self) -> Option<PlainRows> {
        Some(self.rows.clone())
    }
}
