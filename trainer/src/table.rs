//! What the author of an embedding table writes against, in one place: `use headlong::table::*`.
//!
//! A table is two types. A [`TableKind`] says what its tables can be and builds them; an
//! [`EmbeddingTable`] is the storage of one. [`check_table`] is the test of both. A [`Registry`]
//! gives the kind the name by which a configuration asks for it, and [`crate::main_with`] makes the
//! program. `docs/custom-tables.md` goes through all of it.

pub use headlong_device::optimizer::{Optimizer, StateSpec, StateWidth, Step};
pub use headlong_device::testing::CountingAllocator;
pub use headlong_device::{DType, Mat, MatMut, MatRef, Stream};
pub use headlong_embedding::cuda::{CudaStep, CudaTable, DeviceRows};
pub use headlong_embedding::init::InitialValues;
pub use headlong_embedding::testing::{check_table, check_table_on_cuda};
pub use headlong_embedding::{
    Abilities, EmbeddingError, EmbeddingTable, Entries, Grain, Init, Keys, MemoryNeeds, PlainRows,
    Pooling, Registry, Result, RowSink, RowSource, Rows, SavedRows, Shard, SparseStep, TableEnv,
    TableKind, TableSpec, TensorSpec,
};
