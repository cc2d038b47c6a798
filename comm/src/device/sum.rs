//! The sum of parts that lie anywhere a device can reach, in the tree of [`crate::element`].

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

fn defines(num_parts: usize) -> [Define; 1] {
    [Define::new("PARTS", num_parts as i64)]
}

pub(super) fn build(num_parts: usize) -> Build {
    Build { source: &SUM, defines: defines(num_parts).to_vec() }
}

/// Loads the instance for so many parts: a captured call may not.
pub(super) fn load(cuda: &CudaStream, num_parts: usize) -> Result<(), String> {
    match cuda.kernel(&SUM, &defines(num_parts), "sum_parts") {
        Some(_) => Ok(()),
        None => cuda.check().map_err(|error| error.to_string()),
    }
}

/// Enqueues that each of `outs` becomes the sum of `parts`, `len` numbers each, which are the
/// leaves of the tree from left to right.
///
/// # Panics
/// When there are more parts or places than [`MOST_PARTS`] and [`MOST_OUTS`].
pub(super) fn sum(
    cuda: &CudaStream,
    parts: &[Place],
    outs: &[Place],
    len: usize,
    turns: Option<Turns>,
) {
    let bits = |places: &[Place]| {
        places.iter().enumerate().fold(0, |bits, (at, place)| bits | u64::from(place.turns) << at)
    };
    let is_aligned = parts.iter().chain(outs).all(|place| place.at.0.is_multiple_of(16));
    let groups = if is_aligned { len as u64 / 4 } else { 0 };
    let mut args = SumArgs {
        parts: [DevicePtr::NULL; MOST_PARTS],
        outs: [DevicePtr::NULL; MOST_OUTS],
        turning_parts: bits(parts),
        turning_outs: bits(outs),
        sequence: turns.map_or(DevicePtr::NULL, |turns| turns.sequence),
        refused: turns.map_or(DevicePtr::NULL, |turns| turns.refused),
        slot_bytes: turns.map_or(0, |turns| turns.slot_bytes as u64),
        len: len as u64,
        groups,
        num_slots: turns.map_or(1, |turns| turns.num_slots as u32),
        num_outs: outs.len() as u32,
    };
    args.parts[..parts.len()].iter_mut().zip(parts).for_each(|(to, part)| *to = part.at);
    args.outs[..outs.len()].iter_mut().zip(outs).for_each(|(to, out)| *to = out.at);
    let threads = if is_aligned { groups.max(1) } else { len as u64 };
    let blocks = threads.div_ceil(256).min(4 * u64::from(cuda.device().multiprocessors()));
    cuda.run(&SUM, &defines(parts.len()), "sum_parts", Launch::new(blocks as u32, 256), &args);
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(
            SumArgs, &SUM, &defines(2);
            parts, outs, turning_parts, turning_outs, sequence, refused, slot_bytes, len, groups,
            num_slots, num_outs
        );
    }
}
