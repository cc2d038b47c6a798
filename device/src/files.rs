//! Files of commands: written whole or not at all, by one process at a time, and read with a bound.
//!
//! | type | is |
//! |---|---|
//! | [`OutputFile`] | a file that appears under its name when it is complete |
//! | [`GrowingFile`] | a log that grows while a run lasts |
//! | [`FolderLock`] | who may read and who may write what lies in a folder |
//! | [`open_regular`], [`read_bounded`] | what a file may be, and how long |

mod growing;
mod lock;
mod output;
mod read;

pub use growing::GrowingFile;
pub use lock::FolderLock;
pub(crate) use lock::open_to_lock;
pub use output::{OutputFile, is_stdout};
pub use read::{open_regular, read_bounded};

use std::io;

/// The error of a second writer of one file.
pub(crate) fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "it is being written by another process")
}
