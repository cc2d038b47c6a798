//! What a rank has for each of its peers, straight into their memory.

use super::Blocks;
use super::sum::MOST_OUTS;
use crate::readable::text;
use headlong_device::cuda::{Build, CudaStream, DevicePtr, Launch, Source};

/// Bytes of a chunk, as chunks.cuh has it.
pub(super) const CHUNK: usize = 4096;

static PUSH: Source = Source {
    name: "comm/push",
    text: concat!(include_str!("chunks.cuh"), include_str!("push.cu")),
};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct PushArgs {
    from: DevicePtr,
    to: [DevicePtr; MOST_OUTS],
    lengths: DevicePtr,
    stride: u64,
    capacity: u32,
    num_peers: u32,
    first: u32,
    unused: u32,
}

pub(super) fn build() -> Build {
    Build { source: &PUSH, defines: Vec::new() }
}

/// Loads the kernel: a captured call may not.
pub(super) fn load(cuda: &CudaStream) -> Result<(), String> {
    match cuda.kernel(&PUSH, &[], "push") {
        Some(_) => Ok(()),
        None => cuda.check().map_err(text),
    }
}

/// Enqueues that of the block for each peer what counts is copied to its place in `to`, beginning
/// with peer `first`.
///
/// # Panics
/// When there are more than [`MOST_OUTS`] peers.
pub(super) fn push(cuda: &CudaStream, blocks: &Blocks, to: &[DevicePtr], first: usize) {
    let mut args = PushArgs {
        from: blocks.from,
        to: [DevicePtr::NULL; MOST_OUTS],
        lengths: blocks.lengths,
        stride: blocks.stride as u64,
        capacity: blocks.bytes_per_peer as u32,
        num_peers: to.len() as u32,
        first: first as u32,
        unused: 0,
    };
    args.to[..to.len()].copy_from_slice(to);
    let pieces = to.len() * blocks.bytes_per_peer.div_ceil(CHUNK);
    let grid = pieces.min(4 * cuda.device().multiprocessors() as usize);
    cuda.run(&PUSH, &[], "push", Launch::new(grid as u32, 256), &args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(
            PushArgs, &PUSH, &[]; from, to, lengths, stride, capacity, num_peers, first
        );
    }
}
