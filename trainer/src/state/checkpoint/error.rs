//! What can go wrong with a checkpoint.

use std::path::{Path, PathBuf};

pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// An error of the caller that gives or takes the tensors.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong with a checkpoint. Every message names the file or the key, and what was
/// expected and found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or directory could not be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried: `read`, `write`, `rename`.
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The disk is full, or would be.
    #[error(
        "no space to save the checkpoint {}: it needs {} and {} free; the checkpoint before it is \
         untouched. Free some space{}, or name another `--checkpoint-dir`",
        path.display(), bytes(*needed), free_text(*free), keep_text(*keep)
    )]
    NoSpace {
        /// The checkpoint that was to be written.
        path: PathBuf,
        /// Bytes that the whole checkpoint needs.
        needed: u64,
        /// Bytes that were free, where the system says.
        free: Option<u64>,
        /// How many of the last checkpoints stay.
        keep: usize,
    },
    /// A process could not do its part of a save. All processes of it have this error, and have
    /// left the save together.
    #[error("rank {rank} could not do its part: {reason}")]
    NotWritten { rank: u64, reason: String },
    #[error(
        "another process is writing checkpoints to {}: stop it, or name another --checkpoint-dir",
        path.display()
    )]
    InUse { path: PathBuf },
    /// Processes of one machine do not see the same directory.
    #[error(
        "rank {rank} has another {} than the first rank of its machine: all of a machine need the \
         same folder (or comm.ranks_per_node says too much)", path.display()
    )]
    OtherFolder {
        path: PathBuf,
        /// The process that has.
        rank: u64,
    },
    /// The directory is no longer the one that was locked.
    #[error(
        "{} was moved or replaced since this run began, and may be another's: put it back, or name \
         another --checkpoint-dir", path.display()
    )]
    Replaced { path: PathBuf },
    /// A directory bears the name of a checkpoint in the making, and holds something else.
    #[error("{} is in the way of a checkpoint and holds other files: move it away", path.display())]
    InTheWay { path: PathBuf },
    /// The path holds no checkpoint.
    #[error("{} is not a checkpoint: {message}", path.display())]
    NotACheckpoint { path: PathBuf, message: String },
    /// A file of the checkpoint is not there.
    #[error("{} is missing from the checkpoint; {}", file.display(), HELP)]
    MissingFile { file: PathBuf },
    /// A file of the checkpoint is shorter or longer than it was when it was written.
    #[error(
        "{} is {}: it has {found} bytes and the manifest says {expected}; {}",
        file.display(), if found < expected { "truncated" } else { "too long" }, HELP
    )]
    WrongSize {
        file: PathBuf,
        /// Bytes according to the manifest.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// A file of the checkpoint is not what was written.
    #[error("{} is corrupted: checksum {found}, expected {expected}; {}", file.display(), HELP)]
    Corrupted {
        file: PathBuf,
        /// Checksum according to the manifest.
        expected: String,
        /// Checksum of the bytes in the file.
        found: String,
    },
    /// A manifest that cannot be understood.
    #[error("{}: {message}; {}", file.display(), HELP)]
    Manifest { file: PathBuf, message: String },
    /// A checkpoint of another format version.
    #[error(
        "{}: format version {found}, and this program reads version {supported}",
        file.display()
    )]
    UnknownVersion { file: PathBuf, found: u64, supported: u32 },
    #[error(
        "{} holds another model: `{key}` is {found} there and {expected} in this run",
        path.display()
    )]
    OtherModel {
        path: PathBuf,
        /// First key that differs, for example `model.tables[2].rows`.
        key: String,
        expected: String,
        found: String,
    },
    #[error(
        "{} was trained on data prepared otherwise: `{key}` is {found} there and {expected} in \
         this run; mixing them would silently ruin the predictions",
        path.display()
    )]
    OtherData {
        path: PathBuf,
        /// First key that differs, for example `data.dense_transform`.
        key: String,
        expected: String,
        found: String,
    },
    /// All files are as they were written, yet the tensors are not those that were saved.
    #[error("{}: the weights' digest is {found}, expected {expected}", path.display())]
    OtherDigest {
        path: PathBuf,
        /// Digest according to the manifest.
        expected: String,
        /// Digest of the tensors that were read.
        found: String,
    },
    /// Tensors that cannot be saved: an empty shape, or a name used twice.
    #[error("this model cannot be saved: {message}")]
    Layout { message: String },
    /// The caller that gives or takes the tensors failed.
    #[error("{tensor} could not be {action}")]
    Tensor {
        tensor: String,
        /// `read from the model` or `put into the model`.
        action: &'static str,
        source: Cause,
    },
    /// The processes that save or load a checkpoint together cannot go on.
    #[error("{what} could not be exchanged with the other processes")]
    Exchange {
        /// What one of them wanted to tell: `its rows`.
        what: &'static str,
        source: Cause,
    },
}

/// What to do about a damaged checkpoint.
const HELP: &str =
    "restore the file, or remove this checkpoint's directory to use the one before it";

impl CheckpointError {
    /// Wraps a file error: `result.map_err(CheckpointError::io("read", path))`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            std::io::ErrorKind::NotFound if action == "read" => Self::MissingFile { file: path },
            _ => Self::Io { action, path, source },
        }
    }

    /// The message with its cause, for a warning.
    pub(crate) fn with_cause(&self) -> String {
        std::error::Error::source(self)
            .map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }

    /// Whether the system said that no space is left.
    pub(crate) fn is_disk_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(
            self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded)
        )
    }
}

/// A number of bytes for people: `12.5 MiB (13107200 bytes)`.
pub(crate) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" {
        format!("{count} bytes")
    } else {
        format!("{value:.1} {unit} ({count} bytes)")
    }
}

/// What lowering `--keep` would do.
fn keep_text(keep: usize) -> &'static str {
    match keep {
        0 | 1 => "",
        _ => ", lower `--keep` (where space is short, older checkpoints go before a save)",
    }
}

fn free_text(free: Option<u64>) -> String {
    free.map_or_else(|| "an unknown amount is".to_owned(), |free| format!("{} are", bytes(free)))
}
