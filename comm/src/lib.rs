//! How bytes travel between ranks.
//!
//! What it is for: the topology of a run, the rendezvous of its ranks, the plans of its exchanges
//! and the transports that carry them.
//!
//! What it will never do: look inside the bytes it moves, beyond their element type for reductions.
//!
//! Its words: a **rank** is one of the workers that train one model together; a **node** is a
//! machine with several ranks; the **topology** says which rank lives on which node.
//!
//! **Order contract.** All ranks call the same collectives in the same order, because all of them
//! walk the same list of stages. Ranks that do not find out at their next step: it carries number
//! and kind of the operation.
//!
//! **Sums.** [`Communicator::all_reduce`] adds each element up in one fixed tree over ranks
//! ([`element`]): the bits depend neither on the transport nor on the algorithm nor on who adds.
//!
//! **Failure.** Every wait for a peer has a deadline, which does not run while a rank reports that
//! it is busy with its disk or its data. The first error of any rank ends the job, names its
//! culprit where it is known, and is what every later call on every rank answers.
//!
//! ```
//! use headlong_comm::{Topology, testing::run_ranks};
//!
//! let sums = run_ranks(&Topology::from_node_sizes(&[2, 2]), |communicator| {
//!     let mut data = [communicator.rank().0 as f32, 1.0];
//!     communicator.all_reduce(&mut data)?;
//!     Ok::<_, headlong_comm::CommError>(data)
//! });
//! assert!(sums.iter().all(|sum| sum == &Ok([6.0, 4.0])));
//! ```

pub mod catch;
mod collectives;
mod communicator;
pub mod counters;
pub mod demand;
pub mod device;
pub mod element;
pub mod error;
pub mod launcher_env;
pub mod operation;
mod options;
mod plan;
pub mod readable;
pub mod rendezvous;
mod scratch;
mod system;
pub mod testing;
pub mod topology;
pub mod transport;
pub mod tuning;
mod views;

pub use communicator::{Busy, Communicator, ConnectRails, Sealed};
pub use counters::{Counters, Traffic};
pub use device::{Blocks, ByNode, DeviceCollectives, DeviceSizes, Parts, SumLen};
pub use element::Element;
pub use error::{CommError, Result};
pub use operation::Collective;
pub use options::{
    AllReduce, AllToAll, BetweenDevices, CommOptions, Compress, Feature, NcclOptions,
};
pub use topology::{Rank, Topology};
