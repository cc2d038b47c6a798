//! Between devices, sums for the ranks that have the parts, gathered again, are the sums for all
//! ranks: the same bits, whatever carries them, eager and captured.

mod device_support;

use device_support::{WAYS, download, finish, has_devices, on_nodes_with, upload};
use half::bf16;
use headlong_comm::{AllToAll, CommOptions, Communicator, DeviceSizes, Parts, SumLen};
use headlong_device::cuda::testing;
use headlong_device::{DType, Stream};

const LEN: usize = 4096 + 32;

/// Where parts begin: some are longer than others, and one is empty.
fn bounds(ranks: usize) -> Vec<usize> {
    let start = |rank: usize| match rank {
        0 | 1 => rank * 160,
        _ => 160 + (rank - 2) * (LEN / ranks) / 32 * 32,
    };
    (0..ranks).map(start).chain([LEN]).collect()
}

fn number(rank: usize, round: usize, index: usize) -> f32 {
    (rank as f32 + 1.1).powf(((index + round) % 97) as f32 / 9.0) / 3.0
}

/// The words of a rank's numbers.
fn words(dtype: DType, rank: usize, round: usize) -> Vec<f32> {
    let number = |index| number(rank, round, index);
    match dtype {
        DType::F32 => (0..LEN).map(number).collect(),
        _ => {
            let bits = |index| u32::from(bf16::from_f32(number(index)).to_bits());
            (0..LEN / 2).map(|at| f32::from_bits(bits(2 * at) | bits(2 * at + 1) << 16)).collect()
        }
    }
}

/// What is in memory after sums for all; and after sums for the ranks that have the parts, this
/// rank's; and when these are gathered. By round: the first is eager, the others are replayed.
fn sums(communicator: &Communicator, stream: &Stream, dtype: DType) -> Vec<[Vec<u32>; 3]> {
    let (rank, bounds) = (communicator.rank().0, bounds(communicator.num_ranks()));
    let longest = bounds.windows(2).map(|part| part[1] - part[0]).max().expect("there are parts");
    let (sums, narrow) = match dtype {
        DType::F32 => (SumLen::of_f32(LEN), 0),
        _ => (SumLen { exact: 0, narrow: LEN }, longest),
    };
    let part = SumLen { exact: longest, narrow };
    let sizes = DeviceSizes { block_bytes: 400, rail_bytes: 0, sums, part };
    let collectives = communicator.attach_device_for(stream, sizes).expect("attached");
    let [whole, reduced, gathered] =
        [(); 3].map(|()| upload(stream, &vec![0.0; words(dtype, 0, 0).len()]));
    let cuda = stream.cuda_body();
    let body = || {
        cuda.copy(reduced.ptr(), whole.ptr(), sums.bytes());
        collectives.all_reduce(stream, whole.ptr(), sums).expect("enqueued");
        let parts = Parts { data: reduced.ptr(), dtype, bounds: &bounds };
        collectives.reduce_to_parts(stream, parts).expect("enqueued");
        cuda.copy(gathered.ptr(), reduced.ptr(), sums.bytes());
        let parts = Parts { data: gathered.ptr(), ..parts };
        collectives.gather_parts(stream, parts).expect("enqueued");
        Ok(())
    };
    let graph = cuda.capture(body).expect("a graph");
    let mut run = |round| {
        whole.write(0, testing::bytes_of(&words(dtype, rank, round))).expect("a write");
        match round {
            0 => body().expect("enqueued"),
            _ => graph.launch(cuda),
        }
        finish(&*collectives, stream).expect("done");
        let words =
            sums.bytes() / LEN * bounds[rank] / 4..sums.bytes() / LEN * bounds[rank + 1] / 4;
        let bits = |memory| download(memory).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        [bits(&whole), bits(&reduced)[words].to_vec(), bits(&gathered)]
    };
    let found = (0..3).map(&mut run).collect();
    collectives.close().expect("closed");
    found
}

#[test]
fn parts_of_sums_have_the_bits_of_sums_and_are_gathered() {
    if !has_devices(8) {
        return;
    }
    let shapes: [&[usize]; 10] =
        [&[1], &[2], &[3], &[8], &[2, 2], &[4, 4], &[3, 1], &[1, 2, 1], &[2, 2, 2], &[1, 1, 1]];
    for (nodes, dtype) in
        shapes.into_iter().flat_map(|nodes| [DType::F32, DType::Bf16].map(|dtype| (nodes, dtype)))
    {
        for (way, all_to_all) in WAYS
            .into_iter()
            .flat_map(|way| [AllToAll::Auto, AllToAll::Flat].map(|all_to_all| (way, all_to_all)))
        {
            let options =
                CommOptions { between_devices: way, all_to_all, ..CommOptions::default() };
            let found = on_nodes_with(options, nodes, |communicator, stream| {
                let found = sums(communicator, &stream, dtype);
                (communicator.rank().0, found)
            });
            let name = format!("{nodes:?}, {dtype:?}, {way:?}, {all_to_all:?}");
            let words = |at: usize| at * dtype.bytes() / 4;
            let bounds = bounds(found.len());
            for (rank, rounds) in found {
                for (round, [whole, part, gathered]) in rounds.into_iter().enumerate() {
                    let own = &whole[words(bounds[rank])..words(bounds[rank + 1])];
                    assert!(part == own, "rank {rank}, round {round}: {name}");
                    assert!(gathered == whole, "rank {rank}, round {round}: {name}");
                }
            }
        }
    }
}

/// Three nodes of two ranks: both halves together send what sums in two steps send, a part and a
/// header to each of the rail both ways; where NCCL is inside nodes, too, three parts to the peer.
#[test]
fn parts_between_nodes_are_all_that_crosses() {
    if !has_devices(6) {
        return;
    }
    const PART: usize = 320;
    for (way, inside) in [(WAYS[0], 0), (WAYS[1], 3 * 4 * PART)] {
        let options = CommOptions { between_devices: way, ..CommOptions::default() };
        let counts = on_nodes_with(options, &[2, 2, 2], |communicator, stream| {
            // Nothing of this is sent before all ranks have come together.
            let before = testing::nccl_message_bytes();
            let bounds: Vec<usize> = (0..=6).map(|rank| rank * PART).collect();
            let sizes = DeviceSizes { part: SumLen::of_f32(PART), ..DeviceSizes::default() };
            let collectives = communicator.attach_device_for(&stream, sizes).expect("attached");
            let memory = upload(&stream, &[1.0; 6 * PART]);
            let parts = Parts { data: memory.ptr(), dtype: DType::F32, bounds: &bounds };
            collectives.reduce_to_parts(&stream, parts).expect("enqueued");
            collectives.gather_parts(&stream, parts).expect("enqueued");
            finish(&*collectives, &stream).expect("done");
            collectives.close().expect("closed");
            assert_eq!(download(&memory), [6.0; 6 * PART]);
            (before, testing::nccl_message_bytes())
        });
        let before = counts.iter().filter_map(|count| count.0).min();
        let after = counts.iter().filter_map(|count| count.1).max();
        let Some((before, after)) = before.zip(after) else { return };
        let expected = 6 * 2 * (2 * (4 * PART + 128) + inside);
        assert_eq!(after - before, expected as u64, "{way:?}");
    }
}

/// What is gathered need not be numbers to be added up.
#[test]
fn parts_of_any_type_keep_their_bits() {
    if !has_devices(4) {
        return;
    }
    for (way, all_to_all) in
        WAYS.into_iter().flat_map(|way| [AllToAll::Auto, AllToAll::Flat].map(|all| (way, all)))
    {
        let options = CommOptions { between_devices: way, all_to_all, ..CommOptions::default() };
        on_nodes_with(options, &[2, 2], |communicator, stream| {
            let (rank, bounds) = (communicator.rank().0, [0, 2, 2, 10, 12]);
            // Numbers that are no numbers, and zeros with signs.
            let word = |at: usize| [0x7fa0_0001 + at as u32, 0x8000_0000][at % 2];
            let own = |at: &usize| (2 * bounds[rank]..2 * bounds[rank + 1]).contains(at);
            let mine = (0..24).map(|at| f32::from_bits(if own(&at) { word(at) } else { 7 }));
            let memory = upload(&stream, &mine.collect::<Vec<_>>());
            let sizes = DeviceSizes { part: SumLen::of_f32(16), ..DeviceSizes::default() };
            let collectives = communicator.attach_device_for(&stream, sizes).expect("attached");
            let parts = Parts { data: memory.ptr(), dtype: DType::U64, bounds: &bounds };
            collectives.gather_parts(&stream, parts).expect("enqueued");
            finish(&*collectives, &stream).expect("done");
            collectives.close().expect("closed");
            let found = download(&memory).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(found, (0..24).map(word).collect::<Vec<_>>(), "{way:?}, {all_to_all:?}");
        });
    }
}
