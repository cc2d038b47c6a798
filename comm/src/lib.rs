//! How bytes travel between ranks.
//!
//! What it is for: the topology of a run, the rendezvous of its ranks, the plans of its exchanges and the transports that
//! carry them.
//!
//! What it will never do: look inside the bytes it moves, beyond their element type for reductions.
//!
//! Its words: a **rank** is one of the workers that train one model together; a **node** is a machine with several ranks; the
//! **topology** says which rank lives on which node.
//!
//! **Order contract.** All ranks call the same collectives in the same order, because all of them walk the same list of
//! stages. A run of one rank calls none: that is what is filled in today.
//!
//! ```
//! use headlong_comm::{Rank, Topology};
//!
//! let alone = Topology::single();
//! assert_eq!(alone.num_ranks(), 1);
//! assert_eq!(alone.node_of(Rank(0)), 0);
//! ```

pub mod error;
pub mod topology;
pub mod transport;

pub use error::{CommError, Result};
pub use topology::{Rank, Topology};
