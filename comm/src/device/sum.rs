//! The sum of parts that lie anywhere a device can reach, in the tree of [`crate::element`]: of
//! f32, and of bf16 after them.

use super::SumLen;
use headlong_device::cuda::{Build, CudaStream, Define, DevicePtr, Launch, Source};

pub(super) const MOST_PARTS: usize = 64;

/// The most places that a sum is written to: the devices of one machine.
pub(super) const MOST_OUTS: usize = 8;

static SUM: Source = Source { name: "comm/sum", text: include_str!("sum.cu") };

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SumArgs {
    parts: [DevicePtr; MOST_PARTS],
    outs: [DevicePtr; MOST_OUTS],
    turning_parts: u64,
    turning_outs: u64,
    sequence: DevicePtr,
    refused: DevicePtr,
    slot_bytes: u64,
    len: u64,
    groups: u64,
    exact_groups: u64,
    num_slots: u32,
    num_outs: u32,
}

/// Slots that exchanges use in turns: where the number of the exchange is found, and how far slots
/// are apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    pub(super) sequence: DevicePtr,
    /// A word that is not 0 where what came must not be used.
    pub(super) refused: DevicePtr,
    pub(super) slot_bytes: usize,
    pub(super) num_slots: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Its address; where it takes turns, in the first slot.
    pub(super) at: DevicePtr,
    /// Whether it lies in slots.
    pub(super) turns: bool,
}

impl Place {
    pub(super) fn fixed(at: DevicePtr) -> Self {
        Self { at, turns: false }
    }
}

/// For so many parts; with bf16 among the numbers, or all f32.
fn defines(num_parts: usize, narrow: bool) -> [Define; 2] {
    [Define::new("PARTS", num_parts as i64), Define::new("NARROW", i64::from(narrow))]
}

pub(super) fn builds(num_parts: usize) -> [Build; 2] {
    let instance = |narrow| defines(num_parts, narrow).to_vec();
    [false, true].map(|narrow| Build { source: &SUM, defines: instance(narrow) })
}

/// Loads the instances for so many parts, with bf16 among them where there will be some: a captured
/// call may not.
pub(super) fn load(cuda: &CudaStream, num_parts: usize, narrow: bool) -> Result<(), String> {
    let load = |narrow| cuda.kernel(&SUM, &defines(num_parts, narrow), "sum_parts").is_some();
    match load(false) && (!narrow || load(true)) {
        true => Ok(()),
        false => cuda.check().map_err(|error| error.to_string()),
    }
}

/// Enqueues that each of `outs` becomes the sum of `parts`, `len` numbers each, which are the
/// leaves of the tree from left to right; nothing where there are none.
///
/// # Panics
/// When there are more parts or places than [`MOST_PARTS`] and [`MOST_OUTS`]; when places of bf16
/// are not aligned to 16 bytes.
pub(super) fn sum(
    cuda: &CudaStream,
    parts: &[Place],
    outs: &[Place],
    len: SumLen,
    turns: Option<Turns>,
) {
    if len.bytes() == 0 {
        return;
    }
    let bits = |places: &[Place]| {
        places.iter().enumerate().fold(0, |bits, (at, place)| bits | u64::from(place.turns) << at)
    };
    let is_aligned = parts.iter().chain(outs).all(|place| place.at.0.is_multiple_of(16));
    let (narrow, bytes) = (len.narrow > 0, len.bytes() as u64);
    assert!(is_aligned || !narrow, "bf16 are added up in groups of 16 bytes");
    let groups = if is_aligned { bytes / 16 } else { 0 };
    let mut args = SumArgs {
        parts: [DevicePtr::NULL; MOST_PARTS],
        outs: [DevicePtr::NULL; MOST_OUTS],
        turning_parts: bits(parts),
        turning_outs: bits(outs),
        sequence: turns.map_or(DevicePtr::NULL, |turns| turns.sequence),
        refused: turns.map_or(DevicePtr::NULL, |turns| turns.refused),
        slot_bytes: turns.map_or(0, |turns| turns.slot_bytes as u64),
        len: bytes / 4,
        groups,
        exact_groups: len.exact as u64 / 4,
        num_slots: turns.map_or(1, |turns| turns.num_slots as u32),
        num_outs: outs.len() as u32,
    };
    args.parts[..parts.len()].iter_mut().zip(parts).for_each(|(to, part)| *to = part.at);
    args.outs[..outs.len()].iter_mut().zip(outs).for_each(|(to, out)| *to = out.at);
    let threads = if is_aligned { groups.max(1) } else { bytes / 4 };
    let blocks = threads.div_ceil(256).min(4 * u64::from(cuda.device().multiprocessors()));
    let (defines, launch) = (defines(parts.len(), narrow), Launch::new(blocks as u32, 256));
    cuda.run(&SUM, &defines, "sum_parts", launch, &args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(
            SumArgs, &SUM, &defines(2, true);
            parts, outs, turning_parts, turning_outs, sequence, refused, slot_bytes, len, groups,
            exact_groups, num_slots, num_outs
        );
    }
}
