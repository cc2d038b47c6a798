//! Our own format: it says what it holds, and a flipped bit is found where it is.
//!
//! ```text
//! HLDATA01 · u64 bytes of the header · header (JSON) · zeros up to a multiple of 4096
//! blocks of `samples_per_block` samples (the last has what is left), each ending with the XXH3-64 of its other bytes
//! index: u64 end of every block · u64 samples · u64 blocks · u64 start of the index · XXH3-64 of the index · HLDATEND
//! ```
//!
//! A block has, column after column, `labels` (a byte each), `dense` (`i32` or `f32`), and for each categorical column a byte that says
//! how wide its ids are here (4 or 8 bytes), the `u32` offsets of a varying one, and the ids. All numbers are little-endian.

mod read;
mod write;

pub use read::{HeadlongSource, is_headlong};
pub use write::HeadlongSink;

use serde::{Deserialize, Serialize};

use crate::samples::DataSchema;

const MAGIC: &[u8; 8] = b"HLDATA01";
const END: &[u8; 8] = b"HLDATEND";
/// Numbers behind the index' ends of blocks: samples, blocks, start, checksum; and the last magic.
const TAIL_BYTES: usize = 4 * 8 + 8;
/// Blocks begin at a multiple of this.
const BLOCKS_FROM: u64 = 4096;

/// Samples that share a checksum.
pub const SAMPLES_PER_BLOCK: u32 = 4096;

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// 1.
    pub format_version: u32,
    /// The columns.
    pub schema: DataSchema,
    /// Samples of every block but the last.
    pub samples_per_block: u32,
    /// Where the ids come from: `raw`, or the fingerprint of the dictionary that made rows of them.
    pub ids: String,
}

#[cfg(test)]
mod tests;
