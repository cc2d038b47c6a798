//! What can go wrong in the life of an id.

use headlong_device::DeviceError;

/// Errors of embedding tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddingError {
    /// Memory or device trouble below.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A table's description cannot be built.
    #[error("table `{table}`: {reason}")]
    Spec {
        /// Name of the table.
        table: String,
        /// What is wrong, what was found and what would do.
        reason: String,
    },
    /// No table of this kind is registered.
    #[error("table `{table}`: no table kind `{kind}`; known kinds: {known}")]
    UnknownKind {
        /// Name of the table.
        table: String,
        /// The kind asked for.
        kind: String,
        /// Registered kinds, comma separated.
        known: String,
    },
    /// A batch brought another number of tables than the set has.
    #[error("the batch has ids of {found} tables, the set has {expected} tables")]
    TableCount {
        /// Tables of the set.
        expected: usize,
        /// Tables of the batch.
        found: usize,
    },
    /// The tables of one batch disagree on the number of samples.
    #[error("table `{table}`: ids of {found} samples in a batch of {expected}")]
    SampleCount {
        /// Name of the table.
        table: String,
        /// Samples of the batch: of its first table, or rows of the vectors' matrix.
        expected: usize,
        /// Samples of this table.
        found: usize,
    },
    /// A batch is larger than the capacity that was planned.
    #[error("table `{table}`: {found} {what} in one batch, planned for at most {capacity}")]
    Capacity {
        /// Name of the table.
        table: String,
        /// Ids or samples.
        what: &'static str,
        /// Number in the batch.
        found: usize,
        /// Number planned for.
        capacity: usize,
    },
    /// On a device, a rank asks one owner for more rows than its slot has room for.
    #[error(
        "table `{table}`: with it a batch asks for {found} {what} of one owner, and a slot has \
         room for {capacity}: raise comm.slot_factor"
    )]
    SlotFull {
        /// Name of the table that did not fit any more.
        table: String,
        /// Rows, or numbers of their vectors.
        what: &'static str,
        /// Those of it and of the tables before it.
        found: u64,
        /// How many a slot has room for.
        capacity: u64,
    },
    /// A row index lies outside its table.
    #[error(
        "table `{table}`: row index {index} in sample {sample} of the batch is out of range, the \
         table has {rows} rows"
    )]
    IdOutOfRange {
        /// Name of the table.
        table: String,
        /// The row index as it came.
        index: u64,
        /// Sample within the batch.
        sample: usize,
        /// Rows of the table; valid indices are below.
        rows: u64,
    },
    /// Weights came with bags that cannot be weighted, or another number of them.
    #[error("table `{table}`: weights of bags: {reason}")]
    Weights {
        /// Name of the table.
        table: String,
        /// What was found and what would do.
        reason: String,
    },
    /// A table cannot be placed like this.
    #[error("table `{table}`: placement: {reason}")]
    Placement {
        /// Name of the table.
        table: String,
        /// What is wrong, and what would do.
        reason: String,
    },
    /// Another rank asked its owner for a row that the owner does not keep: the ranks disagree on
    /// the partition.
    #[error(
        "table `{table}`: source {source_index} asks for local row {row}, this owner keeps {rows} \
         rows: ranks disagree on the partition"
    )]
    AskedRow {
        /// Name of the table.
        table: String,
        /// Which of the sources asked.
        source_index: usize,
        /// The local row asked for.
        row: u64,
        /// Local rows there are.
        rows: u64,
    },
    /// Rows were asked for that a tensor does not have.
    #[error("table `{table}`, tensor `{tensor}`: rows {first_row}+{count} of {rows}")]
    RowRange {
        /// Name of the table.
        table: String,
        /// Name of the tensor.
        tensor: String,
        /// First row asked for.
        first_row: u64,
        /// Rows asked for.
        count: u64,
        /// Rows there are.
        rows: u64,
    },
    /// A tensor was named that the table does not have.
    #[error("table `{table}` has no tensor `{tensor}`; it has {known}")]
    UnknownTensor {
        /// Name of the table.
        table: String,
        /// The tensor asked for.
        tensor: String,
        /// Tensors there are, comma separated.
        known: String,
    },
    /// What takes or gives saved rows failed.
    #[error("table `{table}`, tensor `{tensor}`: saved rows: {source}")]
    Storage {
        /// Name of the table.
        table: String,
        /// Name of the tensor.
        tensor: String,
        /// What happened there.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, EmbeddingError>;

impl EmbeddingError {
    /// The table that it is about, where it is about one.
    pub fn table(&self) -> Option<&str> {
        match self {
            Self::Spec { table, .. }
            | Self::UnknownKind { table, .. }
            | Self::SampleCount { table, .. }
            | Self::Capacity { table, .. }
            | Self::SlotFull { table, .. }
            | Self::IdOutOfRange { table, .. }
            | Self::Weights { table, .. }
            | Self::Placement { table, .. }
            | Self::AskedRow { table, .. }
            | Self::RowRange { table, .. } => Some(table),
            _ => None,
        }
    }
}
