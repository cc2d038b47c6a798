//! Every collective against a slow oracle, over random topologies, lengths and options.

use headlong_comm::testing::run_ranks_with;
use headlong_comm::{AllReduce, AllToAll, CommOptions, Communicator, Compress, Element, Rank, Topology};
use proptest::prelude::*;
use std::time::Duration;

fn topologies() -> impl Strategy<Value = Topology> {
    prop::collection::vec(0usize..4, 1..9).prop_map(Topology::from_node_of)
}

/// Small steps and chunks, so that short data goes every way.
fn options() -> impl Strategy<Value = CommOptions> {
    let ways = prop_oneof![Just(AllToAll::Flat), Just(AllToAll::Hierarchical), Just(AllToAll::Auto)];
    let one_step = prop_oneof![Just(None), Just(Some(0)), Just(Some(300))];
    let reduces = prop_oneof![Just(AllReduce::Flat), Just(AllReduce::Auto)];
    (ways, reduces, one_step, 1usize..2000).prop_map(
        |(all_to_all, all_reduce, one_step_bytes, chunk_bytes)| CommOptions {
            all_to_all,
            all_reduce,
            one_step_bytes,
            chunk_bytes,
            ring_bytes: 64,
            deadline: Duration::from_secs(20),
            ..CommOptions::default()
        },
    )
}

/// Lengths around nothing, around segments, and above what is copied into a slot.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..5, 30usize..300, 2000usize..3000]
}

/// Numbers whose sums are exact, in any order, and fit into every type.
fn small<T: From<u8>>(rank: usize, i: usize) -> T {
    T::from(((rank * 7 + i * 3) % 5) as u8)
}

fn sums<T: From<u8> + std::ops::Add<Output = T>>(ranks: usize, len: usize) -> Vec<T> {
    (0..len)
        .map(|i| (0..ranks).map(|rank| small::<T>(rank, i)).reduce(|a, b| a + b).expect("at least one rank"))
        .collect()
}

/// Runs `work` on all ranks; what each did must have worked.
fn run<R: Send>(
    topology: &Topology,
    options: &CommOptions,
    work: impl Fn(&Communicator) -> headlong_comm::Result<R> + Sync,
) -> Vec<R> {
    let results = run_ranks_with(topology, options.clone(), work);
    results.into_iter().map(|result| result.unwrap_or_else(|error| panic!("{error}"))).collect()
}

fn reduce_everything<T: Element + From<u8> + std::ops::Add<Output = T>>(
    topology: &Topology,
    options: &CommOptions,
    len: usize,
) {
    let ranks = topology.num_ranks();
    run(topology, options, |communicator| {
        let me = communicator.rank().0;
        let mine: Vec<T> = (0..len).map(|i| small(me, i)).collect();
        let mut data = mine.clone();
        communicator.all_reduce(&mut data)?;
        assert_eq!(data, sums::<T>(ranks, len), "all_reduce");
        data.copy_from_slice(&mine);
        communicator.all_reduce_ring(&mut data)?;
        assert_eq!(data, sums::<T>(ranks, len), "ring");
        let all: Vec<T> = (0..len * ranks).map(|i| small(me, i)).collect();
        communicator.reduce_scatter(&all, &mut data)?;
        assert_eq!(data, sums::<T>(ranks, len * ranks)[me * len..][..len], "reduce_scatter");
        Ok(())
    });
}

fn move_everything<T: Element + From<u8>>(topology: &Topology, options: &CommOptions, len: usize) {
    let ranks = topology.num_ranks();
    let part = |rank: usize| -> Vec<T> { (0..len).map(|i| small(rank, i)).collect() };
    run(topology, options, |communicator| {
        let me = communicator.rank().0;
        let mut all = vec![T::default(); ranks * len];
        communicator.all_gather(&part(me), &mut all)?;
        let gathered: Vec<T> = (0..ranks).flat_map(part).collect();
        assert_eq!(all, gathered, "all_gather");
        for root in 0..ranks {
            let mut data = part(me);
            communicator.broadcast(Rank(root), &mut data)?;
            assert_eq!(data, part(root), "broadcast from {root}");
        }
        let (next, previous) = (Rank((me + 1) % ranks), Rank((me + ranks - 1) % ranks));
        let mut received = vec![T::default(); len];
        communicator.send_receive(Some((next, &part(me)[..])), Some((previous, &mut received[..])))?;
        assert_eq!(received, part(previous.0), "send_receive");
        communicator.barrier()
    });
}

/// The element number `i` of those that go from one rank to another.
fn routed(from: usize, to: usize, i: usize) -> u64 {
    (from * 1000 + to) as u64 * 1_000_000 + i as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sums_are_right(topology in topologies(), options in options(), len in lengths()) {
        reduce_everything::<f32>(&topology, &options, len);
        reduce_everything::<half::f16>(&topology, &options, len);
        reduce_everything::<half::bf16>(&topology, &options, len);
        reduce_everything::<u8>(&topology, &options, len);
        reduce_everything::<u32>(&topology, &options, len);
        reduce_everything::<u64>(&topology, &options, len);
        reduce_everything::<i32>(&topology, &options, len);
        reduce_everything::<i64>(&topology, &options, len);
    }

    #[test]
    fn bytes_arrive(topology in topologies(), options in options(), len in lengths()) {
        move_everything::<f32>(&topology, &options, len);
        move_everything::<u8>(&topology, &options, 9 * len);
        move_everything::<u64>(&topology, &options, len);
        move_everything::<half::bf16>(&topology, &options, len);
    }

    #[test]
    fn parts_of_any_size_arrive(
        (topology, counts) in topologies().prop_flat_map(|topology| {
            let ranks = topology.num_ranks();
            let count = prop_oneof![Just(0usize), 1usize..9, 500usize..900];
            (Just(topology), prop::collection::vec(prop::collection::vec(count, ranks), ranks))
        }),
        options in options(),
    ) {
        let ranks = topology.num_ranks();
        run(&topology, &options, |communicator| {
            let me = communicator.rank().0;
            let send: Vec<u64> = (0..ranks).flat_map(|to| (0..counts[me][to]).map(move |i| routed(me, to, i))).collect();
            let from = |from: usize| (0..counts[from][me]).map(move |i| routed(from, me, i));
            let expected: Vec<u64> = (0..ranks).flat_map(from).collect();
            let recv_counts: Vec<usize> = (0..ranks).map(|from| counts[from][me]).collect();
            let mut recv = vec![u64::MAX; expected.len()];
            for _ in 0..2 {
                recv.fill(u64::MAX);
                communicator.all_to_all_v(&send, &counts[me], &mut recv, &recv_counts)?;
                assert_eq!(recv, expected);
            }
            let len = counts[0][0];
            let send: Vec<u64> = (0..ranks).flat_map(|to| (0..len).map(move |i| routed(me, to, i))).collect();
            let expected: Vec<u64> = (0..ranks).flat_map(|from| (0..len).map(move |i| routed(from, me, i))).collect();
            let mut recv = vec![u64::MAX; ranks * len];
            communicator.all_to_all(&send, &mut recv)?;
            assert_eq!(recv, expected);
            Ok(())
        });
    }

    /// The bits of the sum are those of the tree over ranks, in whatever way it is made.
    #[test]
    fn the_tree_decides_the_bits(
        ranks in 1usize..9,
        node in 0usize..5,
        options in options(),
        len in lengths(),
        chunk in 1usize..700,
    ) {
        let power = |rank: usize, i: usize| 10f32.powi((rank as i32 * 5 + i as i32) % 7);
        let value = |rank: usize, i: usize| ((rank * 131 + i) as f32).sin() * power(rank, i);
        let expected: Vec<u32> =
            (0..len).map(|i| tree(&(0..ranks).map(|rank| value(rank, i)).collect::<Vec<_>>()).to_bits()).collect();
        run(&Topology::with_ranks_per_node(ranks, node), &options, |communicator| {
            let mine: Vec<f32> = (0..len).map(|i| value(communicator.rank().0, i)).collect();
            let bits = |data: &[f32]| data.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let mut data = mine.clone();
            communicator.all_reduce(&mut data)?;
            assert_eq!(bits(&data), expected);
            data.copy_from_slice(&mine);
            let mut final_bits = Vec::new();
            communicator.all_reduce_chunks(&mut data, chunk, &mut |range, data| {
                assert_eq!((range.start, data.len()), (final_bits.len(), len), "rising, nothing left out, all of it shown");
                final_bits.extend(bits(&data[range]));
            })?;
            assert_eq!(final_bits, expected);
            Ok(())
        });
    }
}

fn tree(parts: &[f32]) -> f32 {
    let mut parts = parts.to_vec();
    let mut distance = 1;
    while distance < parts.len() {
        for into in (0..parts.len() - distance).step_by(2 * distance) {
            parts[into] += parts[into + distance];
        }
        distance *= 2;
    }
    parts[0]
}

#[test]
fn compressed_vectors_are_rounded_once_wherever_they_go() {
    for all_to_all in [AllToAll::Flat, AllToAll::Hierarchical] {
        let options = CommOptions { all_to_all, compress: Compress::Bf16, ..CommOptions::default() };
        let topology = Topology::from_node_sizes(&[2, 1]);
        let value = |from: usize, to: usize, i: usize| ((from * 100 + to * 10 + i) as f32).sqrt();
        let counters = run(&topology, &options, |communicator| {
            let me = communicator.rank().0;
            let send: Vec<f32> = (0..3).flat_map(|to| (0..5).map(move |i| value(me, to, i))).collect();
            let mut recv = vec![0.0; 15];
            communicator.all_to_all_v(&send, &[5; 3], &mut recv, &[5; 3])?;
            let rounded = |from: usize, i: usize| half::bf16::from_f32(value(from, me, i)).to_f32();
            let expected: Vec<f32> = (0..3).flat_map(|from| (0..5).map(move |i| rounded(from, i))).collect();
            assert_eq!(recv, expected);
            Ok(communicator.counters())
        });
        let crossed: u64 = counters.iter().map(|counters| counters.inter_node_bytes()).sum();
        assert_eq!(crossed, 4 * 5 * 2, "two bytes for each of the numbers between the nodes");
    }
}

#[test]
fn counters_split_at_the_node() {
    let topology = Topology::from_node_sizes(&[2, 2]);
    let flat = CommOptions { all_to_all: AllToAll::Flat, ..CommOptions::default() };
    let hierarchical = CommOptions { all_to_all: AllToAll::Hierarchical, ..CommOptions::default() };
    for (options, intra, inter_messages) in [(flat, 12, 2), (hierarchical, 24, 1)] {
        run(&topology, &options, |communicator| {
            let mut recv = [0u32; 12];
            communicator.all_to_all(&[7u32; 12], &mut recv)?;
            let total = communicator.counters().total();
            assert_eq!((total.intra_node_bytes, total.inter_node_bytes), (intra, 24));
            assert_eq!(total.inter_node_messages, inter_messages);
            assert_eq!(communicator.counters().of(headlong_comm::Collective::AllToAll), total);
            communicator.reset_counters();
            assert_eq!(communicator.counters(), headlong_comm::Counters::default());
            Ok(())
        });
    }
}

/// Between nodes a hierarchical sum sends what a flat one sends, divided by the ranks of a node.
#[test]
fn large_sums_cross_once_for_each_node() {
    let topology = Topology::from_node_sizes(&[4, 4]);
    for (all_reduce, inter) in [(AllReduce::Flat, 8192), (AllReduce::Auto, 2048)] {
        let options = CommOptions { all_reduce, one_step_bytes: Some(0), ..CommOptions::default() };
        run(&topology, &options, |communicator| {
            communicator.all_reduce(&mut vec![1.0f32; 2048])?;
            assert_eq!(communicator.counters().inter_node_bytes(), inter, "{all_reduce:?}");
            Ok(())
        });
    }
}
