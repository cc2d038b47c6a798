//! What can go wrong below the ops.

use std::sync::Arc;

/// Errors of the base crate. Clones: a sticky error is kept and returned each time.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of fields say it")]
pub enum DeviceError {
    /// The system refused memory that the plan asked for.
    #[error("arena `{arena}`: the system refused {bytes} bytes: {source}")]
    OutOfMemory { arena: String, bytes: usize, source: Arc<std::io::Error> },
    /// A device has less memory left than the plan asked for.
    #[error("`{what}` needs {bytes} bytes on {device}, which has {free} of {total} bytes free")]
    OutOfDeviceMemory { what: String, device: String, bytes: usize, free: usize, total: usize },
    /// The system gives fewer threads than are needed at once.
    #[error(
        "the system gives {given} threads where {wanted} have to run at once: raise its limit \
         (ulimit -u)"
    )]
    Threads { wanted: usize, given: usize },
    /// A device was named that this build or machine does not have.
    #[error("device `{device}` is not available: {reason}")]
    Unavailable { device: String, reason: String },
    /// The CUDA driver, or cuBLASLt, refused a call or reports an earlier failure of the device.
    #[error("{what}: {text} (code {code})")]
    Driver { what: String, code: i32, text: String },
    /// A kernel's source does not compile.
    #[error("kernel source `{kernel}` does not compile for {arch}:\n{log}")]
    Compile { kernel: String, arch: String, log: String },
    /// A file of the kernel cache cannot be read or written.
    #[error("kernel cache, {path}: {source}")]
    KernelCache { path: String, source: Arc<std::io::Error> },
    /// What was asked for is not possible in this state; says what to do instead.
    #[error("{what}: {reason}")]
    Misuse { what: String, reason: String },
}

/// Result of the base crate.
pub type Result<T> = std::result::Result<T, DeviceError>;
