//! hybrid
mod partition;
pub mod statistics;
pub use partition::{MAX_OWNERS, Owner, Partition, Place, TablePlacement};
