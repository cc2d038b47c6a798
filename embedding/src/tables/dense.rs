//! One row of memory per row index: the table of most models. Rows are f32 or bf16; on a CUDA
//! device, where they lie there, also f16.

use crate::checkpoint::{RowSink, RowSource, TensorSpec, rows_at_once};
use crate::error::{EmbeddingError, Result};
use crate::init::{fill_state, initialise};
use crate::kind::{Abilities, TableEnv, TableKind};
use crate::rows::{read_rows, write_rows};
use crate::table::{
    EmbeddingTable, Grain, Keys, MemoryNeeds, PlainRows, Rows, SparseStep, TableSpec,
};
use headlong_device::{ArenaPlan, DType, Mat, MatMut, MatRef, Stream};

/// Builds [`DenseTable`]s.
#[derive(Debug, Clone, Copy, Default)]
pub struct DenseKind;

impl TableKind for DenseKind {
    fn abilities(&self) -> Abilities {
        Abilities {
            grains: &[Grain::Rows],
            keys: &[Keys::RowIndices],
            dtypes: &[DType::F32, DType::Bf16, DType::F16],
            devices: &["cpu", "cuda"],
            options: Some(&[]),
        }
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
    /// Takes the memory and fills it where it lies ([`crate::init`]). Zeros are left to the system:
    /// rows of a zero tensor take no memory before they are written.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`] for raw ids and, on the CPU, for f16; [`EmbeddingError::Device`]
    /// for memory.
    pub fn new(spec: &TableSpec, env: &TableEnv) -> Result<Self> {
        spec.check()?;
        let refuse =
            |reason: String| Err(EmbeddingError::Spec { table: spec.name.clone(), reason });
        if spec.keys == Keys::RawIds {
            return refuse("a dense table is keyed by row indices, got keys = raw ids".to_owned());
        }
        let on_device = env.stream.as_cuda().is_some();
        if !matches!(spec.dtype, DType::F32 | DType::Bf16) && !on_device {
            return refuse(format!(
                "dense tables hold f32 or bf16 on the CPU, got dtype = {}",
                spec.dtype.name()
            ));
        }
        let tensors = spec.dense_tensors(env.optimizer);
        let mut plan = ArenaPlan::new(&format!("table {}", spec.name));
        let dtypes = std::iter::once(spec.dtype).chain(std::iter::repeat(DType::F32));
        let slots: Vec<_> = tensors
            .iter()
            .zip(dtypes)
            .map(|(tensor, dtype)| {
                plan.matrix(&tensor.name, dtype, tensor.rows as usize, tensor.cols)
            })
            .collect();
        let arena = plan.freeze_on(env.stream)?;
        let mut mats = slots.into_iter().map(|slot| arena.mat(slot));
        let weights = mats.next().expect("the weights are the first tensor of every table");
        let rows = PlainRows { weights, states: mats.collect() };
        initialise(env, spec, &rows.weights)?;
        for (mat, state) in rows.states.iter().zip(env.optimizer.states()) {
            fill_state(env, mat, state.initial)?;
        }
        Ok(Self { spec: spec.clone(), memory: spec.dense_memory(env.optimizer), tensors, rows })
    }

    /// One row of the weights and of each state, copied.
    fn copied_row(&self, row: u64) -> Result<Vec<Vec<f32>>> {
        let mats = std::iter::once(&self.rows.weights).chain(&self.rows.states);
        let read = |mat: &Mat| {
            let mut values = vec![0.0; mat.cols()];
            read_rows(mat, row, &mut values).map(|()| values)
        };
        mats.map(read).collect()
    }

    /// [`EmbeddingTable::apply`] on copies of rows, rounded to nearest: for tests and tools. Steps
    /// run in the set's kernels.
    fn apply_to_copies(&self, rows: Rows, gradients: MatRef, step: &SparseStep) -> Result<()> {
        for (entry, &row) in rows.indices().iter().enumerate() {
            let mut parts = self.copied_row(row)?;
            let mut each = parts.iter_mut().map(Vec::as_mut_slice);
            let (weights, first, second) = (each.next(), each.next(), each.next());
            let [weights, first, second] = [weights, first, second].map(Option::unwrap_or_default);
            step.optimizer.apply(step.step, weights, first, second, gradients.row(entry));
            for (mat, values) in
                std::iter::once(&self.rows.weights).chain(&self.rows.states).zip(&parts)
            {
                write_rows(mat, row, values)?;
            }
        }
        Ok(())
    }

    fn tensor_mats(&self) -> impl Iterator<Item = (&TensorSpec, &Mat)> {
        self.tensors.iter().zip(std::iter::once(&self.rows.weights).chain(&self.rows.states))
    }
}

/// Whether the host reaches the rows only by copies: they lie on a device, or are narrow.
fn is_copied(rows: &Mat) -> bool {
    rows.is_on_device() || rows.dtype() != DType::F32
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
        if is_copied(&self.rows.weights) {
            let mut entries = rows.indices().iter().enumerate();
            return entries.try_for_each(|(entry, &row)| {
                read_rows(&self.rows.weights, row, out.row_mut(entry))
            });
        }
        let weights = self.rows.weights.read::<f32>();
        for (entry, &row) in rows.indices().iter().enumerate() {
            out.row_mut(entry).copy_from_slice(weights.row(row as usize));
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
        if is_copied(&self.rows.weights) {
            return self.apply_to_copies(rows, gradients, step);
        }
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
            if is_copied(mat) {
                for (first, count) in runs(tensor) {
                    let mut run = vec![0.0; count as usize * tensor.cols];
                    read_rows(mat, first, &mut run)?;
                    sink.rows(tensor, first, &run)?;
                }
                continue;
            }
            let values = mat.read::<f32>();
            for (first, count) in runs(tensor) {
                let run =
                    &values.data()[first as usize * tensor.cols..][..count as usize * tensor.cols];
                sink.rows(tensor, first, run)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        for (tensor, mat) in self.tensor_mats() {
            if is_copied(mat) {
                for (first, count) in runs(tensor) {
                    let mut run = vec![0.0; count as usize * tensor.cols];
                    source.rows(tensor, first, &mut run)?;
                    write_rows(mat, first, &run)?;
                }
                continue;
            }
            let mut values = mat.write::<f32>();
            for (first, count) in runs(tensor) {
                let run = &mut values.data_mut()[first as usize * tensor.cols..]
                    [..count as usize * tensor.cols];
                source.rows(tensor, first, run)?;
            }
        }
        Ok(())
    }

    fn plain_rows(&self) -> Option<PlainRows> {
        Some(self.rows.clone())
    }
}
