//! What can go wrong in the life of an id.

use headlong_device::DeviceError;

/// Errors of embedding tables.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of fields say it")]
pub enum EmbeddingError {
    /// Memory or device trouble below.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A table's description cannot be built.
    #[error("table `{table}`: {reason}")]
    Spec { table: String, reason: String },
    /// No table of this kind is registered.
    #[error("table `{table}`: no table kind `{kind}`; known kinds: {known}")]
    UnknownKind { table: String, kind: String, known: String },
    /// A batch brought another number of tables than the set has.
    #[error("the batch has ids of {found} tables, the set has {expected} tables")]
    TableCount { expected: usize, found: usize },
    /// The tables of one batch disagree on the number of samples.
    #[error("table `{table}`: ids of {found} samples in a batch of {expected}")]
    SampleCount { table: String, expected: usize, found: usize },
    /// A batch is larger than the capacity that was planned.
    #[error("table `{table}`: {found} {what} in one batch, planned for at most {capacity}")]
    Capacity { table: String, what: &'static str, found: usize, capacity: usize },
    /// On a device, a rank asks one owner for more rows than its slot has room for.
    #[error(
        "table `{table}`: with it a batch asks for {found} {what} of one owner, and a slot has \
         room for {capacity}: train on smaller batches"
    )]
    SlotFull { table: String, what: &'static str, found: u64, capacity: u64 },
    /// A row index lies outside its table.
    #[error(
        "table `{table}`: row index {index} in sample {sample} of the batch is out of range, the \
         table has {rows} rows"
    )]
    IdOutOfRange { table: String, index: u64, sample: usize, rows: u64 },
    /// Weights came with bags that cannot be weighted, or another number of them.
    #[error("table `{table}`: weights of bags: {reason}")]
    Weights { table: String, reason: String },
    /// A table cannot be placed like this.
    #[error("table `{table}`: placement: {reason}")]
    Placement { table: String, reason: String },
    /// Another rank asked its owner for a row that the owner does not keep: the ranks disagree on
    /// the partition.
    #[error(
        "table `{table}`: source {source_index} asks for local row {row}, this owner keeps {rows} \
         rows: ranks disagree on the partition"
    )]
    RowNotOwned { table: String, source_index: usize, row: u64, rows: u64 },
    /// Rows were asked for that a tensor does not have.
    #[error("table `{table}`, tensor `{tensor}`: rows {first_row}+{count} of {rows}")]
    RowRange { table: String, tensor: String, first_row: u64, count: u64, rows: u64 },
    /// A tensor was named that the table does not have.
    #[error("table `{table}` has no tensor `{tensor}`; it has {known}")]
    UnknownTensor { table: String, tensor: String, known: String },
    /// What takes or gives saved rows failed.
    #[error("table `{table}`, tensor `{tensor}`: saved rows: {source}")]
    Storage { table: String, tensor: String, source: Box<dyn std::error::Error + Send + Sync> },
}

impl EmbeddingError {
    /// Refuses a batch of table `table` that is larger than planned.
    pub(crate) fn check_capacity(
        table: &str,
        what: &'static str,
        found: usize,
        capacity: usize,
    ) -> Result<()> {
        if found <= capacity {
            return Ok(());
        }
        Err(Self::Capacity { table: table.to_owned(), what, found, capacity })
    }
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
            | Self::RowNotOwned { table, .. }
            | Self::RowRange { table, .. } => Some(table),
            _ => None,
        }
    }
}
