//! Every collective against a slow oracle, over random topologies, lengths and options.

use crate::collectives_cases::{
    Ranks as _, Threads, bits_of_the_tree, counts, lengths, move_everything, options,
    parts_of_any_size, reduce_everything,
};
use headlong_comm::tuning::{Measurement, Tuning};
use headlong_comm::{
    AllReduce, AllToAll, Collective, CommOptions, Communicator, Compress, Rank, Topology,
};
use proptest::prelude::*;
use std::sync::Arc;

fn topologies() -> impl Strategy<Value = Topology> {
    prop::collection::vec(0usize..4, 1..9).prop_map(Topology::from_node_of)
}

/// Runs `work` on new threads; what each did must have worked.
fn run<R: Send>(
    topology: &Topology,
    options: &CommOptions,
    work: impl Fn(&Communicator) -> headlong_comm::Result<R> + Sync,
) -> Vec<R> {
    Threads(topology.clone()).run(options, work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sums_are_right(topology in topologies(), options in options(), len in lengths()) {
        let job = Threads(topology);
        reduce_everything::<f32>(&job, &options, len);
        reduce_everything::<half::f16>(&job, &options, len);
        reduce_everything::<half::bf16>(&job, &options, len);
        reduce_everything::<u8>(&job, &options, len);
        reduce_everything::<u32>(&job, &options, len);
        reduce_everything::<u64>(&job, &options, len);
        reduce_everything::<i32>(&job, &options, len);
        reduce_everything::<i64>(&job, &options, len);
    }

    #[test]
    fn bytes_arrive(topology in topologies(), options in options(), len in lengths()) {
        let job = Threads(topology);
        move_everything::<f32>(&job, &options, len);
        move_everything::<u8>(&job, &options, 9 * len);
        move_everything::<u64>(&job, &options, len);
        move_everything::<half::bf16>(&job, &options, len);
    }

    #[test]
    fn parts_of_any_size_arrive(
        (topology, counts) in topologies().prop_flat_map(|topology| {
            let counts = counts(topology.num_ranks());
            (Just(topology), counts)
        }),
        options in options(),
    ) {
        parts_of_any_size(&Threads(topology), &options, &counts);
    }

    #[test]
    fn the_tree_decides_the_bits(
        ranks in 1usize..9,
        node in 0usize..5,
        options in options(),
        len in lengths(),
        chunk in 1usize..700,
    ) {
        bits_of_the_tree(
            &Threads(Topology::with_ranks_per_node(ranks, node)),
            &options,
            len,
            chunk,
        );
    }
}

#[test]
fn compressed_vectors_are_rounded_once_wherever_they_go() {
    type Round = fn(f32) -> f32;
    let bf16: Round = |value| half::bf16::from_f32(value).to_f32();
    let f16: Round = |value| half::f16::from_f32(value).to_f32();
    let topology = Topology::from_node_sizes(&[2, 1]);
    // The last but one is below what f16 holds, the last one beyond it.
    let value = |from: usize, to: usize, i: usize| {
        let plain = ((from * 100 + to * 10 + i) as f32).sqrt();
        [plain, plain, plain, 1e-9, 7e4 + plain][i]
    };
    for all_to_all in [AllToAll::Flat, AllToAll::Hierarchical] {
        for (compress, full_range, round) in [
            (Compress::Bf16, false, bf16),
            (Compress::Bf16, true, bf16),
            (Compress::F16, false, f16),
            (Compress::F16, true, bf16),
        ] {
            let options = CommOptions { all_to_all, compress, ..CommOptions::default() };
            let counters = run(&topology, &options, |communicator| {
                let me = communicator.rank().0;
                let send: Vec<f32> =
                    (0..3).flat_map(|to| (0..5).map(move |i| value(me, to, i))).collect();
                let mut recv = vec![0.0; 15];
                match full_range {
                    false => communicator.all_to_all_v(&send, &[5; 3], &mut recv, &[5; 3]),
                    true => {
                        communicator.all_to_all_v_in_full_range(&send, &[5; 3], &mut recv, &[5; 3])
                    }
                }?;
                let expected: Vec<f32> = (0..3)
                    .flat_map(|from| (0..5).map(move |i| round(value(from, me, i))))
                    .collect();
                assert_eq!(recv, expected, "{compress:?}, in full range: {full_range}");
                Ok(communicator.counters())
            });
            let crossed: u64 = counters.iter().map(|counters| counters.inter_node_bytes()).sum();
            assert_eq!(crossed, 4 * 5 * 2, "two bytes for each of the numbers between the nodes");
        }
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
            assert_eq!(communicator.counters().of(Collective::AllToAll), total);
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
            communicator.reset_counters();
            let (mut data, mut done) = (vec![1.0; 2048], |_, _: &mut [f32]| {});
            communicator.all_reduce_chunks_as_bf16(&mut data, 2048, &mut done)?;
            let narrow = communicator.counters().inter_node_bytes();
            assert_eq!(narrow, inter / 2, "as bf16, {all_reduce:?}");
            Ok(())
        });
    }
}

/// To divided sums and back goes what a large all-reduce sends: one half each way.
#[test]
fn parts_cross_once_for_each_node() {
    let topology = Topology::from_node_sizes(&[4, 4]);
    for (all_reduce, inter) in [(AllReduce::Flat, 4096), (AllReduce::Auto, 1024)] {
        let options = CommOptions { all_reduce, ..CommOptions::default() };
        run(&topology, &options, |communicator| {
            let bounds: Vec<usize> = (0..9).map(|rank| rank * 256).collect();
            let (counted, mut data) = (|| communicator.counters(), vec![1.0f32; 2048]);
            communicator.reduce_to_parts(&mut data, &bounds)?;
            let reduced = counted();
            assert_eq!(reduced.of(Collective::ReduceScatter), reduced.total());
            communicator.gather_parts(&mut data, &bounds)?;
            let gathered = counted() - reduced;
            assert_eq!(gathered.of(Collective::AllGather), gathered.total());
            communicator.reduce_to_parts_as_bf16(&mut data, &bounds)?;
            let narrow = (counted() - gathered - reduced).inter_node_bytes();
            let sent = [reduced.inter_node_bytes(), gathered.inter_node_bytes(), narrow * 2];
            assert_eq!(sent, [inter; 3], "{all_reduce:?}");
            Ok(())
        });
    }
}

/// What was measured decides how sums are made, each time for its own number of bytes; what is
/// given by hand comes first.
#[test]
fn sums_are_made_as_was_measured() {
    let measured = |algorithm: &str, points: &[(u64, f64)]| Measurement {
        operation: "all_reduce".into(),
        backend: "local".into(),
        device: None,
        algorithm: algorithm.into(),
        nodes: 1,
        ranks: 4,
        points: points.to_vec(),
    };
    let two_steps = measured("two_steps", &[(1, 1.0), (1 << 20, 9.0)]);
    let direct = measured("direct", &[(1, 9.0), (1 << 20, 1.0)]);
    let tuning =
        Arc::new(Tuning { measurements: vec![two_steps, direct], ..Tuning::new("upside down") });
    let tuned = CommOptions { tuning: Some(tuning), ..CommOptions::default() };
    let by_hand = CommOptions { one_step_bytes: Some(usize::MAX), ..tuned.clone() };
    // Of 4 KiB, two steps send a quarter to each peer, twice; one step sends all of it to each.
    for (options, len, sent) in
        [(&tuned, 1 << 10, 6 << 10), (&tuned, 1 << 18, 3 << 20), (&by_hand, 1 << 10, 12 << 10)]
    {
        run(&Topology::one_node(4), options, |communicator| {
            communicator.all_reduce(&mut vec![1.0f32; len])?;
            assert_eq!(communicator.counters().intra_node_bytes(), sent, "{len} elements");
            Ok(())
        });
    }
}

/// More than 64 ranks on aligned nodes exchange what is small, too, inside the node and then along
/// the rail, unless the size of one step is given by hand.
#[test]
fn many_ranks_exchange_by_nodes_and_rails() {
    let topology = Topology::from_node_sizes(&[4; 18]);
    let (ranks, levels) = (72_u32, 3 + 17);
    let messages = |communicator: &Communicator| {
        let sent = communicator.counters().total();
        communicator.reset_counters();
        sent.intra_node_messages + sent.inter_node_messages
    };
    let by_hand = CommOptions { one_step_bytes: Some(64), ..CommOptions::default() };
    for (options, of_a_sum) in [(CommOptions::default(), 2 * levels), (by_hand, 71)] {
        run(&topology, &options, |communicator| {
            let me = communicator.rank().0 as u32;
            communicator.barrier()?;
            assert_eq!(messages(communicator), levels);
            let mut all = vec![0; 72];
            communicator.all_gather(&[me], &mut all)?;
            assert!(all.iter().copied().eq(0..ranks));
            assert_eq!(messages(communicator), levels);
            let mut sum = [me];
            communicator.all_reduce(&mut sum)?;
            assert_eq!((sum, messages(communicator)), ([71 * 36], of_a_sum));
            // From a rank in the middle: straight to all, and in segments.
            for len in [5, 20_000] {
                let mut data: Vec<u32> = (0..len).map(|at| if me == 30 { at } else { 0 }).collect();
                communicator.broadcast(Rank(30), &mut data)?;
                assert!(data.into_iter().eq(0..len), "{len} words at rank {me}");
            }
            Ok(())
        });
    }
}

/// Numbers that a sum would change come out with the bits that their holders have, one or all.
#[test]
fn what_ranks_hold_is_put_together_bit_for_bit() {
    let expected = [-0.0, f32::from_bits(0x7fc0_1234), 1.5, f32::MIN_POSITIVE / 4.0];
    let got = run(&Topology::one_node(3), &CommOptions::default(), |communicator| {
        let me = communicator.rank().0;
        let holds = |at: usize| at == 3 || at == me;
        let mut data = [0, 1, 2, 3].map(|at| if holds(at) { expected[at] } else { 0.0 });
        communicator.put_together(&mut data)?;
        Ok(data.map(f32::to_bits))
    });
    assert!(got.iter().all(|bits| *bits == expected.map(f32::to_bits)), "{got:x?}");
}
