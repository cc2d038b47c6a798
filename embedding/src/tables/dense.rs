//! One row of memory per row index: the table of most models. Rows are f32 or bf16; on a CUDA
//! device, where they lie there, also f16.

use crate::checkpoint::{RowSink, RowSource, TensorSpec, rows_at_once};
use crate::error::Result;
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
    /// [`EmbeddingError::Spec`](crate::EmbeddingError::Spec) for raw ids and, on the CPU, for f16;
    /// [`EmbeddingError::Device`](crate::EmbeddingError::Device) for memory.
    pub fn new(spec: &TableSpec, env: &TableEnv) -> Result<Self> {
        spec.check()?;
        if spec.keys == Keys::RawIds {
            return Err(spec.refused("a dense table is keyed by row indices, got keys = raw ids"));
        }
        let on_device = env.stream.as_cuda().is_some();
        if !matches!(spec.dtype, DType::F32 | DType::Bf16) && !on_device {
            let found = spec.dtype.name();
            return Err(spec.refused(format!(
                "dense tables hold f32 or bf16 on the CPU, got dtype = {found}"
            )));
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

    // Note: steps run in the set's kernels. This, on copies of rows, is for tests and tools.
    fn lookup(&mut self, _stream: &Stream, rows: Rows, mut out: MatMut) -> Result<()> {
        let mut entries = rows.indices().iter().enumerate();
        entries.try_for_each(|(entry, &row)| read_rows(&self.rows.weights, row, out.row_mut(entry)))
    }

    fn apply(
        &mut self,
        _stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()> {
        let mut parts = [const { Vec::new() }; 3];
        for (entry, &row) in rows.indices().iter().enumerate() {
            for (part, (tensor, mat)) in parts.iter_mut().zip(self.tensor_mats()) {
                part.resize(tensor.cols, 0.0);
                read_rows(mat, row, part)?;
            }
            let [weights, first, second] = &mut parts;
            step.optimizer.apply(step.step, weights, first, second, gradients.row(entry));
            for (part, (_, mat)) in parts.iter().zip(self.tensor_mats()) {
                write_rows(mat, row, part)?;
            }
        }
        Ok(())
    }

    fn save(&self, sink: &mut dyn RowSink) -> Result<()> {
        for (tensor, mat) in self.tensor_mats() {
            for (first, count) in runs(tensor) {
                let mut run = vec![0.0; count as usize * tensor.cols];
                read_rows(mat, first, &mut run)?;
                sink.rows(tensor, first, &run)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, source: &mut dyn RowSource) -> Result<()> {
        for (tensor, mat) in self.tensor_mats() {
            for (first, count) in runs(tensor) {
                let mut run = vec![0.0; count as usize * tensor.cols];
                source.rows(tensor, first, &mut run)?;
                write_rows(mat, first, &run)?;
            }
        }
        Ok(())
    }

    fn plain_rows(&self) -> Option<PlainRows> {
        Some(self.rows.clone())
    }
}
