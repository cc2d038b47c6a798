//! What CUDA needs where there is no GPU: the software device, the compiler from its wheel, and the
//! bundle for a machine that has a GPU. `docs/kernels.md` says what each of them can show.

pub mod bundle;
pub mod kernels;
pub mod libraries;
mod lint;
pub mod nvrtc;
pub mod softcuda;
pub mod test_programs;
mod wheels;

use std::path::PathBuf;

/// Something that can be had here, or the reason why not.
pub enum Had {
    Here(PathBuf),
    /// Why it is not to be had here: the end of "skipped, because …".
    Not(String),
}
