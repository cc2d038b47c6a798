//! Embedding tables: the life of an id, from row index to update.

pub mod checkpoint;
pub mod error;
pub mod ids;
pub mod init;
pub mod lookup;
pub mod registry;
pub mod route;
pub mod set;
pub mod table;
pub mod tables;
pub mod update;

pub use checkpoint::{RowSink, RowSource, TensorSpec};
pub use error::{EmbeddingError, Result};
pub use ids::Ids;
pub use registry::{Registry, TableEnv, TableKind};
pub use route::{Route, TableRoute};
pub use set::{EmbeddingSet, SetOptions};
pub use table::{
    EmbeddingTable, Grain, Init, Keys, MemoryNeeds, PlainRows, Pooling, Rows, SparseStep, TableSpec,
};
