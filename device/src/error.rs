//! What can go wrong below the ops.

/// Errors of the base crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system refused memory that the plan asked for.
    #[error("arena `{arena}`: the system refused {bytes} bytes: {source}")]
    OutOfMemory {
        /// Name of the arena that asked.
        arena: String,
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A device has less memory left than the plan asked for.
    #[error("`{what}` needs {bytes} bytes on {device}, which has {free} of {total} bytes free")]
    OutOfDeviceMemory {
        /// Name of the arena or buffer that asked.
        what: String,
        /// The device, by ordinal and name.
        device: String,
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that were free.
        free: usize,
        /// Bytes the device has.
        total: usize,
    },
    /// The system gives fewer threads than are needed at once.
    #[error(
        "the system gives {given} threads where {wanted} have to run at once: raise its limit \
         (ulimit -u)"
    )]
    Threads {
        /// How many are needed.
        wanted: usize,
        /// How many there are.
        given: usize,
    },
    /// A device was named that this build or machine does not have.
    #[error("device `{device}` is not available: {reason}")]
    Unavailable {
        /// The device as the user named it.
        device: String,
        /// Why it cannot be used, and what would help.
        reason: String,
    },
    /// The CUDA driver, or cuBLASLt, refused a call or reports an earlier failure of the device.
    #[error("{what}: {text} (code {code})")]
    Driver {
        /// What was being done: the call, and the kernel or buffer it was for.
        what: String,
        /// The driver's code.
        code: i32,
        /// The code's name and the driver's description of it.
        text: String,
    },
    /// A kernel's source does not compile.
    #[error("kernel source `{kernel}` does not compile for {arch}:\n{log}")]
    Compile {
        /// Name of the source.
        kernel: String,
        /// Architecture it was compiled for.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A file of the kernel cache cannot be read or written.
    #[error("kernel cache, {path}: {source}")]
    KernelCache {
        /// The file or folder.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// What was asked for is not possible in this state; says what to do instead.
    #[error("{what}: {reason}")]
    Misuse {
        /// What was asked for.
        what: String,
        /// Why not, and what to do.
        reason: String,
    },
}

impl DeviceError {
    /// The same error once more: a sticky error is kept and returned each time.
    pub(crate) fn again(&self) -> Self {
        let io = |source: &std::io::Error| std::io::Error::new(source.kind(), source.to_string());
        match self {
            Self::OutOfMemory { arena, bytes, source } => {
                Self::OutOfMemory { arena: arena.clone(), bytes: *bytes, source: io(source) }
            }
            Self::OutOfDeviceMemory { what, device, bytes, free, total } => {
                Self::OutOfDeviceMemory {
                    what: what.clone(),
                    device: device.clone(),
                    bytes: *bytes,
                    free: *free,
                    total: *total,
                }
            }
            Self::Threads { wanted, given } => Self::Threads { wanted: *wanted, given: *given },
            Self::Unavailable { device, reason } => {
                Self::Unavailable { device: device.clone(), reason: reason.clone() }
            }
            Self::Driver { what, code, text } => {
                Self::Driver { what: what.clone(), code: *code, text: text.clone() }
            }
            Self::Compile { kernel, arch, log } => {
                Self::Compile { kernel: kernel.clone(), arch: arch.clone(), log: log.clone() }
            }
            Self::KernelCache { path, source } => {
                Self::KernelCache { path: path.clone(), source: io(source) }
            }
            Self::Misuse { what, reason } => {
                Self::Misuse { what: what.clone(), reason: reason.clone() }
            }
        }
    }
}

/// Result of the base crate.
pub type Result<T> = std::result::Result<T, DeviceError>;
