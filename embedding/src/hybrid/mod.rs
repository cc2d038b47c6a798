//! hybrid
mod partition;
pub use partition::{MAX_OWNERS, Owner, Partition, Place, TablePlacement};
