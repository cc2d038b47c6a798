//! The hybrid embedding: frequent rows are replicated and trained data-parallel, infrequent rows
//! have one owner each and are trained model-parallel.
//!
//! Every rank trains on its slice of a batch and is one [`Owner`]. This room says *what* must
//! travel and works on what has arrived; it sends nothing. One step, as a schedule drives it on
//! every rank at once:
//!
//! ```text
//!                    rank (its slice)                                owner (its rows)
//! route              ids → unique rows → places; requests by owner
//!   ids              request_counts, requests      ── exchange ──►   asked_counts, asked
//! accept                                                             asked → unique local rows, parts by source
//! answer                                                             rows, in the order asked
//!   vectors          received                      ◄── exchange ──   answers
//! lookup_frequent    bags of frequent rows alone → vectors
//! pool               all other bags → vectors
//!                    … interaction, loss, and back …
//! reduce             d_vectors → one gradient per requested row; frequent rows → dense block
//!   gradients        to_owners                     ── exchange ──►   from_sources
//!   frequent block   ◄── ordered all-reduce ──►
//! update_infrequent                                                  sum over sources, one optimiser step per row
//! update_frequent    one optimiser step per touched row, the same on every rank
//! ```
//!
//! # The same bits, wherever rows lie
//!
//! Sums over samples keep the shape of [`crate::update`]: a rank adds up its own blocks, which are
//! a subtree; owner and all-reduce continue the tree over ranks, where a rank without the row is
//! left out or adds its +0. No partial sum is ever −0, as all start from +0. So weights and states
//! after a step do not depend on the partition, nor on the number of ranks that the same blocks are
//! spread over. Vectors are pooled in the order of the bag whatever side their rows come from.
//!
//! # Beside the plan
//!
//! * [`HybridRoute::id_exchange`] returns a `Result`: counts come from other ranks and are checked
//!   against what was planned.
//! * [`Deduplicate::Node`] tells owners that their sources are nodes; the proxies' part is
//!   [`NodeProxy`], and requests are packed by rail.
//! * "Sources" are ranks, or nodes under [`Deduplicate::Node`].
//! * [`HybridSet::update_frequent`] updates a row with the range that holds the last element of its
//!   gradient.
//!
//! # Memory
//!
//! All buffers have the size of the worst case: no two ids of a slice equal, and all of them one
//! owner's. [`HybridSet::memory`] counts them. Buffers of exchanges are the caller's:
//! [`HybridSet::max_requested_elements`], [`HybridSet::max_asked_elements`].

mod accept;
mod alone;
mod answer;
pub mod cost;
mod cuda;
mod merge;
mod node;
mod partition;
mod pool;
mod reduce;
mod route;
mod set;
mod shape;
mod snapshot;
pub mod split;
pub mod statistics;
pub mod traffic;
mod transfer;
mod update;
mod vector;

pub use cuda::DeviceSlots;
pub(crate) use cuda::EXCHANGE;
pub use node::{NodeProxy, RankExchange};
pub(crate) use partition::mix;
pub use partition::{MAX_OWNERS, MAX_TABLE_ROWS, Owner, Partition, Place, TablePlacement};
pub use route::{HybridRoute, IdExchange};
pub use set::{DEFAULT_SLOT_FACTOR, Deduplicate, HybridOptions, HybridSet};
pub use snapshot::copy_weights;
