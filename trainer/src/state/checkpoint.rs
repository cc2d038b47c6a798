//! Checkpoints: saved so that a crash at any moment leaves the one before it intact, and read so
//! that no wrong byte is ever believed. `docs/formats.md` describes the files.
//!
//! A checkpoint is a directory `step-000001234` with `manifest.json` and safetensors files of dense
//! parameters and of row ranges of tables. It depends on no rank count: tables are saved by their
//! global rows.
//!
//! The life of a checkpoint: [`CheckpointSource`] gives the values → written aside to
//! `.tmp-step-000001234` → every file and the directory flushed to the disk → renamed → older ones
//! removed by [`retention`]. The newest complete directory is the one to resume from; there is no
//! pointer to go stale.

mod difference;
mod directory;
mod error;
mod files;
mod layout;
mod load;
mod machines;
pub mod manifest;
mod mirrored;
mod read;
mod remover;
pub mod retention;
mod shard;
mod tensor_file;
mod together;
mod write;

pub use difference::{Difference, first_difference};
pub use directory::{
    CheckpointDirectory, Cleaned, DirectoryOptions, SaveReport, best, member_name, members, newest,
    newest_part, open, steps,
};
pub use error::{Cause, CheckpointError, Result};
pub use files::{FileWriter, Files, SystemFiles};
pub use layout::{
    CheckpointSink, CheckpointSource, DenseLayout, DenseState, Layout, Peers, Portion, Processes,
    RowState, Section, TableLayout, Tensor, TensorId,
};
pub use load::Select;
pub use machines::{gather_mirrored, have_a_folder_each, is_first_of_machine};
pub use manifest::{
    DataFingerprint, FORMAT_VERSION, FileEntry, LossScaleState, MANIFEST_FILE, Manifest,
    ModelFingerprint, OptimizerFingerprint, RandomState, SavedState, TableFingerprint, TrainedFile,
};
pub use mirrored::{Mirrored, save_mirrored};
pub use read::{Checkpoint, step_name};
pub use shard::{Content, DEFAULT_SHARD_BYTES, RowRange};
pub use together::take_part_in_save;
pub use write::{Blob, BlobWriter, Snapshot};
