//! Exchanges with compression between devices: f32 travels as bf16, rounded to nearest with ties to
//! even, as between hosts ([`Compress::Bf16`](crate::Compress)).
//!
//! Two passes over what counts, one on each side, and memory of half the blocks' size for both.

use super::{Blocks, DeviceCollectives};
use crate::error::{CommError, Result};
use headlong_device::Stream;
use headlong_device::cuda::{Build, CudaStream, DeviceMemory, DevicePtr, Launch, Source};

static NARROW: Source = Source { name: "comm/narrow", text: include_str!("narrow.cu") };

const BLOCK: u32 = 256;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NarrowArgs {
    wide: DevicePtr,
    narrow: DevicePtr,
    lengths: DevicePtr,
    narrow_lengths: DevicePtr,
    groups: u64,
    used_groups: u64,
    num_blocks: u32,
    unused: u32,
}

/// The kernels, for builds ahead of time.
pub fn kernels() -> Vec<Build> {
    vec![Build { source: &NARROW, defines: Vec::new() }]
}

/// One rank's memory for exchanges of f32 as bf16.
///
/// Peers write into it as into other blocks: it lives as long as they may.
pub struct Narrow {
    from: DeviceMemory,
    to: DeviceMemory,
    lengths: DeviceMemory,
    block_bytes: usize,
}

impl Narrow {
    /// Room for blocks of up to `block_bytes` bytes of f32, one for each rank of `collectives`.
    ///
    /// # Errors
    /// [`CommError::Device`]: memory that the device refuses, a kernel that does not load.
    pub fn new(
        collectives: &dyn DeviceCollectives,
        stream: &Stream,
        block_bytes: usize,
    ) -> Result<Self> {
        let (cuda, ranks) = (stream.cuda_body(), collectives.num_ranks());
        let block_bytes = block_bytes.next_multiple_of(16);
        let take = |what, bytes| DeviceMemory::new(cuda.device(), what, bytes);
        let made = take("vectors to send in bf16", ranks * block_bytes / 2).and_then(|from| {
            let to = take("vectors received in bf16", ranks * block_bytes / 2)?;
            let lengths = take("lengths of vectors in bf16", ranks * size_of::<u32>())?;
            // A captured call may not load what it needs.
            for entry in ["narrow_blocks", "widen_blocks"] {
                cuda.kernel(&NARROW, &[], entry);
            }
            cuda.check().map(|()| Self { from, to, lengths, block_bytes })
        });
        made.map_err(|error| CommError::Device {
            seen_by: collectives.rank(),
            operation: "making room for vectors in bf16".to_owned(),
            reason: error.to_string(),
        })
    }

    /// As [`DeviceCollectives::all_to_all_v`] of f32. `arriving`: per rank the bytes of f32 that
    /// count of what comes, u32 on the device, or null: all. What a rank has for itself is rounded
    /// like all else.
    ///
    /// # Panics
    /// When blocks are longer than planned, or not made of whole groups of four numbers.
    pub fn all_to_all_v(
        &self,
        collectives: &dyn DeviceCollectives,
        stream: &Stream,
        blocks: Blocks,
        arriving: DevicePtr,
    ) -> Result<()> {
        let Blocks { stride, bytes_per_peer: bytes, .. } = blocks;
        assert!(
            bytes <= stride && stride <= self.block_bytes,
            "{bytes} of {stride} bytes for a rank, and room for {}",
            self.block_bytes
        );
        assert!(
            (bytes | stride).is_multiple_of(16),
            "{bytes} of {stride} bytes for a rank are no groups of four numbers"
        );
        let (cuda, num_blocks) = (stream.cuda_body(), collectives.num_ranks() as u32);
        let args = NarrowArgs {
            wide: blocks.from,
            narrow: self.from.ptr(),
            lengths: blocks.lengths,
            narrow_lengths: self.lengths.ptr(),
            groups: stride as u64 / 16,
            used_groups: bytes as u64 / 16,
            num_blocks,
            unused: 0,
        };
        run(cuda, "narrow_blocks", &args);
        let narrow = Blocks {
            from: self.from.ptr(),
            to: self.to.ptr(),
            stride: stride / 2,
            bytes_per_peer: bytes / 2,
            lengths: self.lengths.ptr(),
        };
        collectives.all_to_all_v(stream, narrow)?;
        let (wide, narrow, narrow_lengths) = (blocks.to, self.to.ptr(), DevicePtr::NULL);
        run(
            cuda,
            "widen_blocks",
            &NarrowArgs { wide, narrow, lengths: arriving, narrow_lengths, ..args },
        );
        Ok(())
    }
}

/// Enqueues that the numbers at `to` become the `len` f32 at `from`, rounded to bf16: to nearest,
/// ties to even.
///
/// # Panics
/// When they are no groups of four.
pub fn round(stream: &Stream, from: DevicePtr, to: DevicePtr, len: usize) {
    assert!(len.is_multiple_of(4), "{len} numbers are no groups of four");
    let (lengths, narrow_lengths, groups) = (DevicePtr::NULL, DevicePtr::NULL, len as u64 / 4);
    let (wide, narrow, used_groups) = (from, to, groups);
    let (num_blocks, unused) = (1, 0);
    run(
        stream.cuda_body(),
        "narrow_blocks",
        &NarrowArgs {
            wide,
            narrow,
            lengths,
            narrow_lengths,
            groups,
            used_groups,
            num_blocks,
            unused,
        },
    );
}

fn run(cuda: &CudaStream, entry: &'static str, args: &NarrowArgs) {
    let threads = (args.used_groups * u64::from(args.num_blocks)).max(1);
    let blocks =
        threads.div_ceil(u64::from(BLOCK)).min(8 * u64::from(cuda.device().multiprocessors()));
    cuda.run(&NARROW, &[], entry, Launch::new(blocks as u32, BLOCK), args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(
            NarrowArgs, &NARROW, &[];
            wide, narrow, lengths, narrow_lengths, groups, used_groups, num_blocks
        );
    }
}
