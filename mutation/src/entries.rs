//! Functions that take any bytes and say by a panic what should not be: the bodies of the libFuzzer
//! targets.

mod checkpoint_manifest;
mod criteo_line;
mod rendezvous_frame;

pub use checkpoint_manifest::{checkpoint_manifest, signed_manifest};
pub use criteo_line::criteo_line;
pub use rendezvous_frame::{control_stream, rendezvous_frame};
