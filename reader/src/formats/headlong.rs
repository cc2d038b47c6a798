//! Our own format: it says what it holds, and a flipped bit is found where it is.
//!
//! ```text
//! HLDATA02 · u64 bytes of the header · header (JSON) · zeros · XXH3-64 of all that, ending at a multiple of 4096
//! blocks of `samples_per_block` samples (the last has what is left), each ending with the XXH3-64 of its other bytes
//! index: u64 end of every block · u64 samples · u64 blocks · u64 start of the index · XXH3-64 of the index · HLDATEND
//! ```
//!
//! A block has, column after column, `labels` (a byte each, or an `f32` that has its weight in it,
//! where samples have weights: [`headlong_device::label`]), `dense` (`i32` or `f32`), and for each
//! categorical column a byte that says how wide its ids are here (4 or 8 bytes), the `u32` offsets
//! of a varying one, and the ids. All numbers are little-endian.

mod read;
mod write;

pub use read::{HeadlongSource, is_headlong};
pub use write::HeadlongSink;

use serde::{Deserialize, Serialize};

use crate::samples::DataSchema;

const MAGIC: &[u8; 8] = b"HLDATA02";
/// Files of version 1: their header has no checksum.
const MAGIC_1: &[u8; 8] = b"HLDATA01";
/// What is written; every version up to it is read.
const VERSION: u32 = 2;
const END: &[u8; 8] = b"HLDATEND";
/// Numbers after the index' ends of blocks: samples, blocks, start, checksum; and the last magic.
const TAIL_BYTES: usize = 4 * 8 + 8;
const BLOCKS_FROM: u64 = 4096;

/// The longest header and the longest block: bounds what a damaged file can ask for.
const MOST_HEADER_BYTES: u64 = 16 << 20;
const MOST_BLOCK_BYTES: u64 = 256 << 20;

/// Samples that share a checksum.
pub const SAMPLES_PER_BLOCK: u32 = 4096;

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of the file; what is written has the newest.
    pub format_version: u32,
    /// The columns.
    pub schema: DataSchema,
    /// Samples of every block but the last.
    pub samples_per_block: u32,
    /// Where the ids come from: `raw`, or the fingerprint of the dictionary that made rows of them.
    pub ids: String,
}

impl Header {
    /// The header of a file to be written.
    pub fn new(schema: DataSchema, ids: &str) -> Self {
        Self {
            format_version: VERSION,
            schema,
            samples_per_block: SAMPLES_PER_BLOCK,
            ids: ids.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
