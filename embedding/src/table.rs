//! What a table is ([`TableSpec`]) and what the author of one writes ([`EmbeddingTable`]).

use crate::checkpoint::{RowSink, RowSource, SavedRows, TensorSpec};
use crate::error::{EmbeddingError, Result};
use headlong_device::optimizer::{Optimizer, StateWidth, Step};
use headlong_device::{DType, Mat, MatMut, MatRef, Stream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod on_device;

pub use on_device::{CudaStep, CudaTable, DeviceRows};

/// Widest row: the reduced gradient of one row lives on a thread's stack.
pub const MAX_DIM: usize = 2048;

/// How the rows of one bag become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The sum of the rows; zeros for an empty bag.
    #[default]
    Sum,
    /// The sum times the reciprocal of the number of ids; zeros for an empty bag.
    Mean,
}

/// What may be placed or replicated on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grain {
    /// Every row stands for itself: rows may be split over owners and replicated.
    #[default]
    Rows,
    /// Rows share storage: the table moves as one piece or not at all.
    Whole,
}

/// What the table is keyed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Keys {
    /// Row indices below [`TableSpec::rows`].
    #[default]
    #[serde(rename = "rows")]
    RowIndices,
    /// Raw 64-bit ids, which the table maps to rows itself.
    #[serde(rename = "ids")]
    RawIds,
}

/// Values of the weights before the first step. They depend only on seed, table and row.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub enum Init {
    /// Uniform in ±1/√rows, as published for DLRM (`dlrm_s_pytorch.py`, `create_emb`).
    #[default]
    UniformByRows,
    /// Uniform in ±bound.
    Uniform {
        /// Half the width of the range.
        bound: f32,
    },
    /// All zero; takes no memory before rows are first written.
    Zeros,
}

/// One table: what it holds and how it is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSpec {
    /// Name in configuration, errors and checkpoints.
    pub name: String,
    /// Kind in the [`crate::registry::Registry`]; `dense` is one row of memory per row index.
    pub kind: String,
    /// Number of rows.
    pub rows: u64,
    /// Elements of a row and of a pooled vector.
    pub dim: usize,
    /// Element type of the stored weights.
    pub dtype: DType,
    /// How bags become vectors.
    pub pooling: Pooling,
    /// What may be placed on its own.
    pub grain: Grain,
    /// Row indices or raw ids.
    pub keys: Keys,
    /// Values before the first step.
    pub init: Init,
    /// Settings that only this kind of table has, by name: `min_count` of `hashed`, say.
    pub options: BTreeMap<String, String>,
}

impl TableSpec {
    /// A dense f32 table with sum pooling, keyed by row indices, initialised as DLRM's tables
    /// are.
    pub fn new(name: &str, rows: u64, dim: usize) -> Self {
        Self {
            name: name.to_owned(),
            kind: "dense".to_owned(),
            rows,
            dim,
            dtype: DType::F32,
            pooling: Pooling::default(),
            grain: Grain::default(),
            keys: Keys::default(),
            init: Init::default(),
            options: BTreeMap::new(),
        }
    }

    pub(crate) fn refused(&self, reason: impl Into<String>) -> EmbeddingError {
        EmbeddingError::Spec { table: self.name.clone(), reason: reason.into() }
    }

    /// The setting `name` of this kind of table, or `default` where it is not given.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`] for a value that is no `T`.
    pub fn option<T: std::str::FromStr + std::fmt::Display>(
        &self,
        name: &str,
        default: T,
    ) -> Result<T> {
        let Some(text) = self.options.get(name) else { return Ok(default) };
        text.parse().map_err(|_| {
            self.refused(format!("option {name}: expected a value such as {default}, got {text}"))
        })
    }

    /// Says what is wrong with the description, if anything.
    ///
    /// # Errors
    /// [`EmbeddingError::Spec`] for no rows, a dim outside `1..=`[`MAX_DIM`], or more elements than
    /// an address space holds.
    pub fn check(&self) -> Result<()> {
        // Two bits are left for the bytes of an element, one for the sign of pointer offsets.
        let elements = u128::from(self.rows) * self.dim as u128;
        if self.rows == 0 {
            Err(self.refused("a table has at least one row, got rows = 0"))
        } else if self.dim == 0 || self.dim > MAX_DIM {
            Err(self.refused(format!("dim lies in 1..={MAX_DIM}, got {}", self.dim)))
        } else if elements >= 1 << 60 {
            let reason = format!("{} rows of {} elements are more than 2^60", self.rows, self.dim);
            Err(self.refused(reason))
        } else {
            Ok(())
        }
    }

    /// Memory of this table stored densely, one row of memory per row, with the state of
    /// `optimizer`.
    pub fn dense_memory(&self, optimizer: &Optimizer) -> MemoryNeeds {
        MemoryNeeds {
            weight_bytes: self.rows.saturating_mul((self.dim * self.dtype.bytes()) as u64),
            state_bytes: optimizer.state_bytes(self.rows, self.dim),
            work_bytes: 0,
        }
    }

    /// The tensors of this table stored densely: the weights, then each state of `optimizer`, all
    /// f32.
    pub fn dense_tensors(&self, optimizer: &Optimizer) -> Vec<TensorSpec> {
        let weight = TensorSpec { name: "weight".to_owned(), rows: self.rows, cols: self.dim };
        let states = optimizer.states();
        let state_tensors = states.iter().map(|state| TensorSpec {
            name: state.name.to_owned(),
            rows: self.rows,
            cols: match state.width {
                StateWidth::PerElement => self.dim,
                StateWidth::PerRow => 1,
            },
        });
        std::iter::once(weight).chain(state_tensors).collect()
    }
}

/// Bytes of host memory, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryNeeds {
    /// Weights of the rows.
    pub weight_bytes: u64,
    /// State of the sparse optimiser.
    pub state_bytes: u64,
    /// Work space sized by the batch: routes and staging.
    pub work_bytes: u64,
}

impl MemoryNeeds {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.weight_bytes.saturating_add(self.state_bytes).saturating_add(self.work_bytes)
    }
}

impl std::iter::Sum for MemoryNeeds {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            weight_bytes: sum.weight_bytes.saturating_add(part.weight_bytes),
            state_bytes: sum.state_bytes.saturating_add(part.state_bytes),
            work_bytes: sum.work_bytes.saturating_add(part.work_bytes),
        })
    }
}

/// Local rows of one table, in the order in which their vectors or gradients lie.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    indices: &'a [u64],
}

impl<'a> Rows<'a> {
    /// The rows `indices`.
    pub fn new(indices: &'a [u64]) -> Self {
        Self { indices }
    }

    /// The row indices; each is below the table's number of rows.
    pub fn indices(&self) -> &'a [u64] {
        self.indices
    }
}

/// What an update brings: which formula, how fast, and how often so far.
#[derive(Debug, Clone, Copy)]
pub struct SparseStep<'a> {
    /// The formula and its constants.
    pub optimizer: &'a Optimizer,
    /// Learning rate and step number.
    pub step: &'a Step,
}

/// Rows that lie in plain f32 matrices, one matrix row per table row: what the fused paths of a set
/// work on.
#[derive(Debug, Clone)]
pub struct PlainRows {
    /// `rows × dim`.
    pub weights: Mat,
    /// One matrix per state of the optimiser, in the order of [`Optimizer::states`]: `rows × dim`,
    /// or `rows × 1`.
    pub states: Vec<Mat>,
}

/// What a table keyed by raw ids holds, by id: owners differ from run to run, ids do not. The
/// first tensor of such a table begins each row with the id ([`crate::checkpoint::id_to_floats`]);
/// all tensors have one row for each id, in rising order of ids.
pub trait Entries {
    /// The ids held here, rising.
    fn ids(&self) -> Vec<u64>;

    /// Copies the row of each of `ids` in tensor number `tensor` to `out`, where the id is held
    /// here; other rows of `out` stay as they are.
    fn read(&self, tensor: usize, ids: &[u64], out: &mut [f32]);

    /// Forgets everything, as before the first step.
    fn clear(&mut self);

    /// Takes rows of tensor number `tensor`. The first tensor brings ids in, and may drop some by
    /// the table's own rule where there is no room; rows of other tensors whose ids are not held
    /// are passed over.
    ///
    /// # Errors
    /// [`EmbeddingError::Storage`] for rows of the first tensor that do not begin with their id.
    fn write(&mut self, tensor: usize, ids: &[u64], values: &[f32]) -> Result<()>;
}

fn tensor_number(spec: &TableSpec, tensors: &[TensorSpec], tensor: usize) -> Result<TensorSpec> {
    tensors.get(tensor).cloned().ok_or_else(|| EmbeddingError::UnknownTensor {
        table: spec.name.clone(),
        tensor: format!("number {tensor}"),
        known: tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

/// The local storage of one table, as its author writes it. Routing, pooling, the reduction of
/// gradients over duplicates, placement and the schedule are ours.
///
/// [`crate::testing::check_table`] is the conformance suite.
pub trait EmbeddingTable: Send {
    /// What the table is.
    fn spec(&self) -> &TableSpec;

    /// Memory that the table holds.
    fn memory(&self) -> MemoryNeeds;

    /// The tensors that [`Self::save`] writes, in its order.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Writes one vector per entry of `rows` (which may repeat): `out` is `rows × dim`.
    fn lookup(&mut self, stream: &Stream, rows: Rows, out: MatMut) -> Result<()>;

    /// Applies one step: `rows` are unique, row `i` of `gradients` (`rows × dim`) is the summed
    /// gradient of entry `i`.
    fn apply(
        &mut self,
        stream: &Stream,
        rows: Rows,
        gradients: MatRef,
        step: &SparseStep,
    ) -> Result<()>;

    /// Hands all tensors to `sink`, in runs of rows.
    fn save(&self, sink: &mut dyn RowSink) -> Result<()>;

    /// Takes all tensors back from `source`.
    fn load(&mut self, source: &mut dyn RowSource) -> Result<()>;

    /// Copies rows of tensor number `tensor` of [`Self::tensors`], from `first_row` on, to `out`: a
    /// whole number of rows. What a checkpoint of many ranks is written by. This one goes through
    /// [`Self::save`] for every call: right for every table, slow for large ones, whose authors
    /// write their own.
    ///
    /// # Errors
    /// [`EmbeddingError::UnknownTensor`], [`EmbeddingError::Storage`].
    fn read_rows(&self, tensor: usize, first_row: u64, out: &mut [f32]) -> Result<()> {
        let mut saved = SavedRows::default();
        self.save(&mut saved)?;
        let tensor = tensor_number(self.spec(), &self.tensors(), tensor)?;
        RowSource::rows(&mut saved, &tensor, first_row, out)
    }

    /// Overwrites rows of tensor number `tensor`, from `first_row` on. This one saves the table,
    /// changes what was saved, and loads it again.
    fn write_rows(&mut self, tensor: usize, first_row: u64, values: &[f32]) -> Result<()> {
        let mut saved = SavedRows::default();
        self.save(&mut saved)?;
        let tensor = tensor_number(self.spec(), &self.tensors(), tensor)?;
        saved.overwrite(&tensor, first_row, values)?;
        self.load(&mut saved)
    }

    /// What a table keyed by raw ids holds, id by id; `None` for tables of row indices.
    fn entries(&self) -> Option<&dyn Entries> {
        None
    }

    /// As [`Self::entries`], for writing.
    fn entries_mut(&mut self) -> Option<&mut dyn Entries> {
        None
    }

    /// The table's CUDA body, of one built on a CUDA device ([`crate::TableEnv::stream`])
    /// that does not show plain rows there. Such tables hold f32 and are on one rank as a whole.
    /// Kinds that build them list `cuda` among [`crate::Abilities::devices`].
    fn cuda(&self) -> Option<&dyn CudaTable> {
        None
    }

    /// Fast path: where the rows lie, for a table whose lookup is a copy of a row and whose update
    /// is the optimiser's formula on that row. The set then pools straight from the rows, and
    /// reduces and updates in one pass, over tiles of all tables at once, without calling `lookup`
    /// and `apply`.
    fn plain_rows(&self) -> Option<PlainRows> {
        None
    }
}
