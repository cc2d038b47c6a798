//! f32 as bf16, for sums in 16 bits.

use headlong_device::Stream;
use headlong_device::cuda::{Build, CudaStream, DevicePtr, Launch, Source};

static NARROW: Source = Source { name: "comm/narrow", text: include_str!("narrow.cu") };
const ROUND: &str = "round_to_bf16";
const BLOCK: u32 = 256;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct NarrowArgs {
    from: DevicePtr,
    to: DevicePtr,
    groups: u64,
}

/// The kernel, for builds ahead of time.
pub fn kernels() -> Vec<Build> {
    vec![Build { source: &NARROW, defines: Vec::new() }]
}

/// Loads the kernel, which a captured call may not; a failure stays with the stream.
pub fn load(stream: &Stream) {
    stream.cuda_body().kernel(&NARROW, &[], ROUND);
}

/// Enqueues that the numbers at `to` become the `len` f32 at `from`, rounded to bf16: to nearest,
/// ties to even.
///
/// # Panics
/// When they are no groups of four.
pub fn round(stream: &Stream, from: DevicePtr, to: DevicePtr, len: usize) {
    assert!(len.is_multiple_of(4), "{len} numbers are no groups of four");
    let cuda: &CudaStream = stream.cuda_body();
    let groups = len as u64 / 4;
    let most = 4 * u64::from(cuda.device().multiprocessors());
    let blocks = groups.div_ceil(u64::from(BLOCK)).clamp(1, most);
    let args = NarrowArgs { from, to, groups };
    cuda.run(&NARROW, &[], ROUND, Launch::new(blocks as u32, BLOCK), &args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(NarrowArgs, &NARROW, &[]; from, to, groups);
    }
}
