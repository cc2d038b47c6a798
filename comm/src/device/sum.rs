//! The sum of parts that lie anywhere a device can reach, in the tree of [`crate::element`]: of
//! f32, and of bf16 after them.

use super::SumLen;
use headlong_device::cuda::{Build, CudaStream, Define, DevicePtr, Launch, Source};

/// The most places that a sum is written to: the devices of one machine.
pub(super) const MOST_OUTS: usize = 16;

/// The most parts that a kernel takes: a power of two, so that as many neighbours are a subtree.
/// Longer sums need no kernels that those of one machine have not.
const MOST_PARTS: usize = MOST_OUTS;

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
    /// Whether it may be on its way to other ranks: it is not written then.
    pub(super) is_sent: bool,
}

impl Place {
    pub(super) fn fixed(at: DevicePtr) -> Self {
        Self { at, turns: false, is_sent: false }
    }

    pub(super) fn in_slot(at: DevicePtr) -> Self {
        Self { at, turns: true, is_sent: false }
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
pub(super) fn load(cuda: &CudaStream, mut num_parts: usize, narrow: bool) -> Result<(), String> {
    let load_one =
        |num_parts, narrow| cuda.kernel(&SUM, &defines(num_parts, narrow), "sum_parts").is_some();
    let load = |num_parts| load_one(num_parts, false) && (!narrow || load_one(num_parts, true));
    let mut all = true;
    while num_parts > MOST_PARTS {
        // Whole groups, and what is left of the last one, unless that is itself a sum.
        let left = (num_parts - 1) % MOST_PARTS + 1;
        all = all && load(MOST_PARTS) && (left == 1 || load(left));
        num_parts = num_parts.div_ceil(MOST_PARTS);
    }
    match all && load(num_parts) {
        true => Ok(()),
        false => cuda.check().map_err(|error| error.to_string()),
    }
}

/// Enqueues that each of `outs` becomes the sum of `parts`, `len` numbers each, which are the
/// leaves of the tree from left to right; nothing where there are none. Of more than
/// [`MOST_PARTS`], some are lost, none that is sent.
///
/// # Panics
/// When there are more places than [`MOST_OUTS`]; when places of bf16 are not aligned to 16 bytes;
/// when nothing of [`MOST_PARTS`] neighbours may be lost.
pub(super) fn sum(
    cuda: &CudaStream,
    parts: &[Place],
    outs: &[Place],
    len: SumLen,
    turns: Option<Turns>,
) {
    if parts.len() <= MOST_PARTS {
        return sum_neighbours(cuda, parts, outs, len, turns);
    }
    let sum_of = |neighbours: &[Place]| match neighbours {
        [single] => *single,
        _ => {
            let lost = neighbours.iter().find(|place| !place.is_sent);
            let lost = *lost.expect("a rank sends one of the parts");
            sum_neighbours(cuda, neighbours, &[lost], len, turns);
            lost
        }
    };
    let sums: Vec<Place> = parts.chunks(MOST_PARTS).map(sum_of).collect();
    sum(cuda, &sums, outs, len, turns);
}

/// As [`sum`], of at most [`MOST_PARTS`].
fn sum_neighbours(
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
    use crate::element::Element;
    use half::bf16;
    use headlong_device::Stream;
    use headlong_device::cuda::CudaDevice;
    use headlong_device::cuda::testing::{download, has_devices, layout_test, upload};
    use headlong_device::pool::Pool;
    use std::sync::Arc;
    use zerocopy::IntoBytes;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(
            SumArgs, &SUM, &defines(2, true);
            parts, outs, turning_parts, turning_outs, sequence, refused, slot_bytes, len, groups,
            exact_groups, num_slots, num_outs
        );
    }

    #[test]
    fn more_parts_than_a_kernel_takes_are_added_up_in_the_same_tree() {
        if !has_devices(1) {
            return;
        }
        let device = CudaDevice::open(0).unwrap();
        let stream = Stream::cuda(&device, Arc::new(Pool::new(1))).unwrap();
        for count in [33_usize, 65, 130] {
            let number = |part: usize, at: usize| {
                bf16::from_f32((part as f32 + 1.1).powf(at as f32 / 8.0 - 1.0))
            };
            let parts: Vec<Vec<bf16>> =
                (0..count).map(|part| (0..16).map(|at| number(part, at)).collect()).collect();
            let words = |part: &Vec<bf16>| -> Vec<f32> {
                let pairs = part.chunks(2);
                let words = pairs
                    .map(|pair| u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16);
                words.map(f32::from_bits).collect()
            };
            let all: Vec<f32> = parts.iter().flat_map(words).collect();
            let memory = upload(&device, &all).unwrap();
            // The sum of the first group is not put where something is on its way.
            let place = |part: usize| Place {
                is_sent: part == 0,
                ..Place::fixed(memory.ptr().offset(32 * part))
            };
            let places: Vec<Place> = (0..count).map(place).collect();
            let len = SumLen { exact: 0, narrow: 16 };
            sum(stream.cuda_body(), &places, &[places[7]], len, None);
            stream.synchronize().unwrap();
            let mut expected = parts[0].clone();
            let others: Vec<&[u8]> = parts[1..].iter().map(|part| part.as_bytes()).collect();
            bf16::add_in_tree(&mut expected, 0, &others);
            let found = download::<f32>(&memory).unwrap();
            let bits = |words: &[f32]| words.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found[8 * 7..8 * 8]), bits(&words(&expected)), "{count} parts");
            assert_eq!(bits(&found[..8]), bits(&words(&parts[0])), "what is sent");
        }
    }
}
