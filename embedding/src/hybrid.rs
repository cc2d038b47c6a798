//! The hybrid embedding: frequent rows are replicated and trained data-parallel, infrequent rows
//! have one owner each and are trained model-parallel.
//!
//! Every rank trains on its slice of a batch and is one [`Owner`]. This crate says *what* must
//! travel and works on what has arrived; it sends nothing. One step, as a schedule drives it on
//! every rank at once:
//!
//! ```text
//!                    rank (its slice)                               owner (its rows)
//! route              ids → unique rows → places → requests
//!   ids              requests by owner             ── exchange ──►  requests by source
//! receive_requests                                                  → unique local rows
//! owner_lookup                                                      rows, in the requests' order
//!   vectors          recv_rows                     ◄── exchange ──  send_rows
//! lookup_replicated  bags of only frequent rows → vectors
//! pool               all other bags → vectors
//!                    … interaction, loss, and back …
//! reduce_rows        d_vectors → one gradient per requested row;
//!                    frequent rows → dense block
//!   gradients        to_owners                     ── exchange ──►  from_sources
//!   frequent block   ◄── deterministic all-reduce ──►
//! update_owned                                                      sum over sources, one step a row
//! update_replicated  one step per touched row, the same on every rank
//! ```
//!
//! The methods are the same wherever the rows are: on a single rank those that are for several do
//! nothing; on a device each enqueues its work and returns, and [`HybridSet::check_flags`] returns
//! what kernels found wrong.
//!
//! # The same bits, wherever rows lie
//!
//! Sums over samples keep the shape of [`crate::update`]: a rank adds up its own blocks, which are
//! a subtree; owner and all-reduce continue the tree over ranks, where a rank without the row is
//! left out or adds its +0. No partial sum is ever −0, as all start from +0. So weights and states
//! after a step do not depend on the partition, nor on the number of ranks that the same blocks are
//! spread over. Vectors are pooled in the order of the bag, wherever their rows come from.
//!
//! Under [`Deduplicate::Node`] the sources of requests are nodes, the proxies' part is
//! [`NodeProxy`], and requests are packed by rail.
//!
//! # Memory
//!
//! All buffers have the size of the worst case: no two ids of a slice equal, and all of them one
//! owner's. Buffers of exchanges are the caller's:
//! [`HybridSet::max_recv_elements`], [`HybridSet::max_send_elements`].

mod bags;
pub mod cost;
mod cuda;
mod lists;
mod merge;
mod node;
mod options;
mod owner_lookup;
mod partition;
mod pool;
mod receive;
mod reduce;
mod route;
mod set;
mod shape;
mod simd;
mod snapshot;
pub mod split;
pub mod statistics;
mod strips;
mod table;
pub mod traffic;
mod transfer;
mod update;

pub use cuda::DeviceSlots;
pub(crate) use cuda::{EXCHANGE, exchange_defines};
pub use node::NodeProxy;
pub use options::{Deduplicate, HybridOptions, PoolAt, SlotOptions, SlotTable, gradients_of};
pub(crate) use partition::mix;
pub use partition::{MAX_OWNERS, MAX_TABLE_ROWS, Owner, Partition, Place, TablePlacement};
pub use route::{HybridRoute, RankExchange};
pub use set::HybridSet;
pub use snapshot::copy_weights;
pub use strips::StripSizes;
