//! Embedding tables: what a recommendation model knows of each category, looked up, pooled and
//! updated.
//!
//! This crate decides which rows a batch needs, where they lie and how they change. It never sends
//! a byte and never knows where a batch came from: `comm` moves vectors, `reader` makes ids, and
//! the schedule in `trainer` joins them.
//!
//! # The life of an id
//!
//! ```text
//! raw id       0x68fd1e64 in the file; hashed, or mapped by a dictionary or an admission list
//!   ↓
//! row index    below TableSpec::rows, the same on every rank         [ids]     Ids, JaggedRef
//!   ↓
//! owner        the rank that holds the row, or all of them           [hybrid]  Partition, Place
//!   ↓
//! local row    where the owner keeps it (one rank: the row index)    [route]   Route: unique rows
//!   ↓
//! vector       the bag's rows, pooled: one per sample and table      [lookup]  samples × Σ dim
//!   ↓          … interaction, loss, and back …
//! gradient     summed over the samples of a row, in a fixed order    [update]  one per unique row
//!   ↓
//! update       one step of the sparse optimiser, once per row        [update]  weights and states
//! ```
//!
//! Three words, never mixed: a raw **id** becomes a **row index** and lies at a **local row** of
//! its owner. Ids may run ahead of weights, weights never: [`EmbeddingSet::route`] reads no
//! weights, so it may take the next batch already.
//!
//! # Where things are
//!
//! * [`set`]: [`EmbeddingSet`], all tables of one rank; what the schedule calls.
//! * [`hybrid`]: [`hybrid::HybridSet`], the tables of one rank among many: frequent rows on all
//!   ranks, the others with one owner each; the statistics, costs and split that choose which.
//! * [`route`], [`lookup`], [`update`]: the ops; the head of each states formula, shapes and
//!   errors.
//! * [`table`]: [`TableSpec`], and the trait [`EmbeddingTable`] that the author of a table writes;
//!   [`tables`]: ours; [`registry`]: kinds by name; [`testing`]: the suite that any table must
//!   pass.
//! * [`cuda`]: the same on a CUDA device; what the author of a table writes for one,
//!   [`cuda::CudaTable`], and the list of kernels.
//! * [`init`]: initial values, a function of seed, table and row; [`checkpoint`]: rows on their way
//!   to files.
//! * [`oracle`]: the slow, obvious version of all of it, all ranks in one object.
//!
//! ```
//! use headlong_device::optimizer::{Optimizer, Step};
//! use headlong_device::{ArenaPlan, DType, JaggedRef, Stream};
//! use headlong_embedding::{EmbeddingSet, SetOptions, TableSpec};
//!
//! let stream = Stream::cpu(2);
//! let specs = [TableSpec::new("city", 1000, 16), TableSpec::new("device", 10, 16)];
//! let options = SetOptions {
//!     optimizer: Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 },
//!     seed: 1,
//!     max_samples: 3,
//!     max_ids: &[3, 6],
//!     sum_blocks: 1,
//!     frozen: false,
//!     narrow: None,
//! };
//! let set = EmbeddingSet::new(&stream, &specs, &options)?;
//! let mut route = set.new_route()?;
//! let mut plan = ArenaPlan::new("activations");
//! let vectors = plan.matrix("vectors", DType::F32, 3, set.width());
//! let vectors = plan.freeze()?.mat(vectors);
//!
//! // Three samples: one city each; no, one and two devices.
//! let cities = JaggedRef::new(&[7, 999, 7], &[0, 1, 2, 3]);
//! let devices = JaggedRef::new(&[4, 4, 9], &[0, 0, 1, 3]);
//! let ids = [cities, devices];
//! set.route(&stream, &ids[..], &mut route)?;
//! set.lookup(&stream, &ids[..], &vectors)?;
//! assert_eq!(route.table(0).rows(), [7, 999]);
//! assert_eq!(route.table(0).segment(0), [0, 2]);
//!
//! // Here the dense model would turn vectors into gradients.
//! set.update(&stream, &route, &vectors, &Step { learning_rate: 0.1, number: 1 })?;
//! # Ok::<(), headlong_embedding::EmbeddingError>(())
//! ```

pub mod checkpoint;
pub mod cuda;
pub mod error;
pub mod hybrid;
pub mod ids;
pub mod init;
mod kind;
pub mod lookup;
pub mod oracle;
pub mod registry;
pub mod route;
mod rows;
pub mod set;
mod simd;
mod slot;
pub mod table;
pub mod tables;
pub mod testing;
pub mod update;

pub use checkpoint::{RowSink, RowSource, SavedRows, TensorSpec};
pub use error::{EmbeddingError, Result};
pub use ids::Ids;
pub use kind::{Abilities, Shard, TableEnv, TableKind};
pub use registry::Registry;
pub use route::{Route, TableRoute};
pub use set::{EmbeddingSet, SetOptions};
pub use table::{
    EmbeddingTable, Entries, Grain, Init, Keys, MemoryNeeds, PlainRows, Pooling, Rows, SparseStep,
    TableSpec,
};
