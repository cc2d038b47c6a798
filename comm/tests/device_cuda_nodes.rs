//! Ranks of several nodes exchange inside the node first, then in one strip per remote node: the
//! same results, eager and captured, whatever the nodes; and what does not fit, or is not what was
//! expected, ends on every rank with a reason.

mod device_support;

use device_support::{
    Memory, WAYS, download, finish, has_devices, on_nodes, on_nodes_with, replay_all, uneven,
    upload,
};
use half::bf16;
use headlong_comm::testing::run_ranks;
use headlong_comm::{
    AllToAll, BetweenDevices, Blocks, CommError, CommOptions, DeviceSizes, Rank, SumLen, Topology,
};
use headlong_device::Stream;
use headlong_device::cuda::testing::{has_software_devices, nccl_message_bytes};
use headlong_device::cuda::{DeviceMemory, DevicePtr};
use std::process::Command;
use std::time::{Duration, Instant};

const NODES: [&[usize]; 5] = [&[2, 2], &[4, 4], &[3, 1], &[1, 2, 1], &[3, 2]];

#[test]
fn every_operation_on_every_shape_of_nodes() {
    if has_devices(8) {
        check_operations(&NODES);
    }
}

fn check_operations(shapes: &[&[usize]]) {
    for (&nodes, way) in shapes.iter().flat_map(|nodes| WAYS.map(|way| (nodes, way))) {
        on_nodes(way, nodes, |communicator, stream| {
            let (rank, ranks) = (communicator.rank().0, communicator.num_ranks());
            let collectives =
                communicator.attach_device(&stream).unwrap_or_else(|error| panic!("{error}"));
            let inside = if way == BetweenDevices::Nccl {
                "hierarchical: nccl"
            } else {
                "hierarchical: peer memory, nccl"
            };
            assert_eq!(collectives.name(), inside);
            for len in [1, 5, 1031] {
                let memory = Memory::new(&stream, ranks, len);
                memory.fill(rank, 1, ranks, len);
                memory.enqueue(&*collectives, &stream, len).expect("enqueued");
                finish(&*collectives, &stream).expect("done");
                memory.verify(rank, 1, ranks, len);
            }
            collectives.close().expect("closed");
        });
    }
}

#[test]
fn a_captured_exchange_between_nodes_exchanges_again_at_each_replay() {
    if !has_devices(4) {
        return;
    }
    for (nodes, way) in
        [&[2, 2][..], &[3, 1]].into_iter().flat_map(|nodes| WAYS.map(|way| (nodes, way)))
    {
        on_nodes(way, nodes, |communicator, stream| {
            let collectives = communicator.attach_device(&stream).expect("the ranks come together");
            replay_all(collectives, &stream, 4);
        });
    }
}

#[test]
fn sums_between_nodes_have_the_bits_of_sums_between_hosts() {
    if !has_devices(8) {
        return;
    }
    for (nodes, between_devices) in NODES.into_iter().flat_map(|nodes| WAYS.map(|way| (nodes, way)))
    {
        check_sum(nodes, CommOptions { between_devices, ..CommOptions::default() });
    }
}

/// Eager, and captured, in the same slots.
fn check_sum(nodes: &[usize], options: CommOptions) {
    let between_hosts = run_ranks(&Topology::from_node_sizes(nodes), |communicator| {
        let mut data = uneven(communicator.rank().0);
        communicator.all_reduce(&mut data).expect("summed");
        data
    });
    let name = format!("{nodes:?}, {options:?}");
    let sums = on_nodes_with(options, nodes, |communicator, stream| {
        let own = uneven(communicator.rank().0);
        let memory = upload(&stream, &own);
        let sums = SumLen::of_f32(own.len());
        let sizes = DeviceSizes { block_bytes: 64, sums, ..DeviceSizes::default() };
        let collectives = communicator.attach_device_for(&stream, sizes).expect("attached");
        let sum = || collectives.all_reduce(&stream, memory.ptr(), sums).expect("enqueued");
        sum();
        finish(&*collectives, &stream).expect("done");
        let eager = download(&memory);
        let captured = stream.cuda_body().capture(|| {
            sum();
            Ok(())
        });
        let captured = captured.expect("a graph");
        let captured_sum_of = |numbers: &[f32]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            memory.write(0, &bytes).expect("written");
            communicator.barrier().expect("all have written");
            captured.launch(stream.cuda_body());
            finish(&*collectives, &stream).expect("done");
            download(&memory)
        };
        let ones = captured_sum_of(&vec![1.0; own.len()]);
        assert!(ones.iter().all(|&sum| sum == communicator.num_ranks() as f32), "{ones:?}");
        assert_eq!(captured_sum_of(&own), eager);
        collectives.close().expect("closed");
        eager
    });
    assert_eq!(sums, between_hosts, "{name}");
}

/// As [`uneven`], 16 of f32 and 1,000 of bf16, of which some are rounded at every addition.
fn mixed(rank: usize) -> (Vec<f32>, Vec<bf16>) {
    let numbers = uneven(rank).into_iter().cycle();
    let narrow = numbers.clone().skip(16).take(1000).map(bf16::from_f32);
    (numbers.take(16).collect(), narrow.collect())
}

/// The same as they lie in memory, in words.
fn words_of((exact, narrow): &(Vec<f32>, Vec<bf16>)) -> Vec<u32> {
    let word = |pair: &[bf16]| u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16;
    exact.iter().map(|number| number.to_bits()).chain(narrow.chunks(2).map(word)).collect()
}

#[test]
fn sums_of_bf16_have_the_bits_of_sums_between_hosts() {
    if !has_devices(8) {
        return;
    }
    check_bf16(&[&[2], &[3], &[8], &[4, 4], &[3, 1], &[1, 2, 1], &[2, 2, 2], &[1, 1, 1]]);
}

/// The least that runs every kernel of this crate.
#[test]
fn sums_of_bf16_on_two_nodes_of_two_have_the_bits_of_sums_between_hosts() {
    if has_devices(4) {
        check_bf16(&[&[2, 2]]);
    }
}

/// Nodes of twice the usual devices, and more nodes than a kernel takes parts of a sum. In a
/// process of its own, with as many software devices.
#[test]
fn large_nodes_and_many_nodes_exchange_by_node() {
    if has_software_devices(1) {
        let devices = (2 * MANY_NODES).to_string();
        run_alone("on_large_nodes_and_many_nodes", &[("SOFTCUDA_DEVICES", &devices)]);
    }
}

const MANY_NODES: usize = 33;

#[test]
#[ignore = "started by another test"]
fn on_large_nodes_and_many_nodes() {
    assert!(has_devices(2 * MANY_NODES));
    check_operations(&[&[9, 3], &[16, 16]]);
    check_bf16(&[&[9, 3]]);
    check_sum(&[16], CommOptions::default());
    // Parts of ranks, not of nodes, more than a kernel takes.
    for between_devices in WAYS {
        check_sum(&[3; 12], CommOptions { between_devices, ..CommOptions::default() });
    }
    for one_step_bytes in [None, Some(0)] {
        check_sum(&[2; MANY_NODES], CommOptions { one_step_bytes, ..CommOptions::default() });
    }
}

/// Runs an ignored test of this file in a process of its own, with these variables.
fn run_alone(name: &str, variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().expect("this file"));
    command.args(["--exact", name, "--ignored", "--nocapture"]).envs(variables.iter().copied());
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}{errors}");
}

/// Whatever carries them, in one step or in two, with one node or several, bf16 are rounded where
/// hosts round them; the f32 before them are not.
fn check_bf16(shapes: &[&[usize]]) {
    for &nodes in shapes {
        let between_hosts = run_ranks(&Topology::from_node_sizes(nodes), |communicator| {
            let mut sums = mixed(communicator.rank().0);
            communicator.all_reduce(&mut sums.0).expect("f32 is summed");
            communicator.all_reduce(&mut sums.1).expect("bf16 is summed");
            words_of(&sums)
        });
        let (by_node, flat) = (AllToAll::Auto, AllToAll::Flat);
        for (way, one_step_bytes, all_to_all) in [
            (WAYS[0], None, by_node),
            (WAYS[0], Some(0), by_node),
            (WAYS[0], None, flat),
            (WAYS[1], None, by_node),
            (WAYS[1], Some(0), by_node),
            (WAYS[1], None, flat),
        ] {
            let options = CommOptions {
                between_devices: way,
                one_step_bytes,
                all_to_all,
                ..CommOptions::default()
            };
            let sums = on_nodes_with(options, nodes, |communicator, stream| {
                let own = mixed(communicator.rank().0);
                let memory = words(&stream, &words_of(&own));
                let sums = SumLen { exact: own.0.len(), narrow: own.1.len() };
                let sizes = DeviceSizes { block_bytes: 64, sums, ..DeviceSizes::default() };
                let collectives = communicator.attach_device_for(&stream, sizes).expect("attached");
                let sum = || collectives.all_reduce(&stream, memory.ptr(), sums).expect("enqueued");
                let captured = stream.cuda_body().capture(|| {
                    sum();
                    Ok(())
                });
                captured.expect("a graph").launch(stream.cuda_body());
                finish(&*collectives, &stream).expect("done");
                collectives.close().expect("closed");
                download(&memory).into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            let name = format!("{nodes:?}, {way:?}, {one_step_bytes:?}, {all_to_all:?}");
            assert_eq!(sums, between_hosts, "{name}");
        }
    }
}

/// From three nodes on, a node's sum may be divided among the nodes instead of sent to all.
#[test]
fn sums_in_two_steps_have_the_same_bits_and_send_less() {
    if !has_devices(8) {
        return;
    }
    for nodes in [&[2, 2, 2][..], &[2, 2, 2, 2]] {
        for way in WAYS {
            let sums = |one_step_bytes, len: usize| {
                let options = CommOptions {
                    between_devices: way,
                    one_step_bytes: Some(one_step_bytes),
                    ..CommOptions::default()
                };
                let ranks = on_nodes_with(options, nodes, |communicator, stream| {
                    // Nothing of this is sent before all ranks have come together.
                    let before = nccl_message_bytes();
                    let numbers = uneven(communicator.rank().0).into_iter().cycle();
                    let memory = upload(&stream, &numbers.take(len).collect::<Vec<_>>());
                    let collectives = communicator.attach_device(&stream).expect("attached");
                    collectives.all_reduce_f32(&stream, memory.ptr(), len).expect("enqueued");
                    finish(&*collectives, &stream).expect("done");
                    collectives.close().expect("closed");
                    (download(&memory), before, nccl_message_bytes())
                });
                let before = ranks.iter().filter_map(|rank| rank.1).min();
                let after = ranks.iter().filter_map(|rank| rank.2).max();
                let sent = after.zip(before).map(|(after, before)| after - before);
                (ranks.into_iter().map(|rank| rank.0).collect::<Vec<_>>(), sent)
            };
            for len in [1, 5, 37, 300, 2003] {
                let ((one, bytes_of_one), (two, bytes_of_two)) =
                    (sums(usize::MAX, len), sums(0, len));
                assert_eq!(one, two, "{nodes:?}, {way:?}, {len} numbers");
                if let (Some(one), Some(two), 2003) = (bytes_of_one, bytes_of_two, len) {
                    println!("{nodes:?}, {way:?}: {one} bytes in one step, {two} in two");
                    assert!(two < one);
                }
            }
        }
    }
}

#[test]
fn a_captured_sum_in_two_steps_adds_up_again_at_each_replay() {
    if !has_devices(6) {
        return;
    }
    for between_devices in WAYS {
        let one_step_bytes = Some(0);
        let options = CommOptions { between_devices, one_step_bytes, ..CommOptions::default() };
        on_nodes_with(options, &[2, 2, 2], |communicator, stream| {
            let collectives = communicator.attach_device(&stream).expect("the ranks come together");
            replay_all(collectives, &stream, 4);
        });
    }
}

/// Room of a block, in numbers.
const ROOM: usize = 1500;

fn count_of(from: usize, to: usize, round: usize) -> usize {
    match (from * 7 + to * 3 + round * 5) % 6 {
        0 => 0,
        1 => ROOM,
        step => (step * 331 + from) % ROOM,
    }
}

fn number(from: usize, to: usize, index: usize) -> f32 {
    (from * 100_000 + to * 10_000 + index) as f32
}

fn words(stream: &Stream, words: &[u32]) -> DeviceMemory {
    let floats: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
    upload(stream, &floats)
}

#[test]
fn blocks_arrive_as_far_as_they_count() {
    if !has_devices(8) {
        return;
    }
    for (nodes, way) in NODES.into_iter().flat_map(|nodes| WAYS.map(|way| (nodes, way))) {
        on_nodes(way, nodes, |communicator, stream| {
            let (rank, ranks) = (communicator.rank().0, communicator.num_ranks());
            let collectives = communicator.attach_device(&stream).unwrap();
            let numbers =
                (0..ranks * ROOM).map(|at| number(rank, at / ROOM, at % ROOM)).collect::<Vec<_>>();
            let (from, to) =
                (upload(&stream, &numbers), upload(&stream, &vec![-1.0; ranks * ROOM]));
            for round in 0..3 {
                let counts: Vec<u32> =
                    (0..ranks).map(|to| 4 * count_of(rank, to, round) as u32).collect();
                let lengths = words(&stream, &counts);
                let blocks = Blocks {
                    from: from.ptr(),
                    to: to.ptr(),
                    stride: 4 * ROOM,
                    bytes_per_peer: 4 * ROOM,
                    lengths: lengths.ptr(),
                };
                collectives.all_to_all_v(&stream, blocks).unwrap();
                finish(&*collectives, &stream).unwrap();
                let arrived = download(&to);
                for source in 0..ranks {
                    let expected: Vec<f32> = (0..count_of(source, rank, round))
                        .map(|at| number(source, rank, at))
                        .collect();
                    assert_eq!(
                        arrived[source * ROOM..][..expected.len()],
                        expected,
                        "{source} to {rank}"
                    );
                }
            }
            collectives.close().unwrap();
        });
    }
}

/// An exchange in two halves, inside nodes and then along rails, with strips as long as a block has
/// room for and half as long: eager, and captured.
#[test]
fn blocks_arrive_inside_nodes_and_along_rails() {
    if !has_devices(8) {
        return;
    }
    let shapes = [&[2, 2][..], &[4, 4], &[2, 2, 2, 2], &[1, 1, 1]];
    for (nodes, way) in shapes.into_iter().flat_map(|nodes| WAYS.map(|way| (nodes, way))) {
        let all_to_all = AllToAll::Auto;
        let options = CommOptions { between_devices: way, all_to_all, ..CommOptions::default() };
        on_nodes_with(options, nodes, |communicator, stream| {
            let sizes = DeviceSizes { rail_bytes: 4 * ROOM, ..DeviceSizes::default() };
            let collectives = communicator.attach_device_for(&stream, sizes).expect("attached");
            let Some(halves) = collectives.by_node() else {
                assert_eq!(nodes[0], 1, "{}", collectives.name());
                return;
            };
            let (rank, each) = (communicator.rank().0, nodes[0]);
            let (node, place) = (rank / each, rank % each);
            let inside: Vec<usize> = (0..each).map(|peer| node * each + peer).collect();
            let rail: Vec<usize> = (0..nodes.len()).map(|node| node * each + place).collect();
            for (across, peers) in [(false, inside), (true, rail)] {
                let of_all = |block: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
                    (0..peers.len() * ROOM).map(|at| block(peers[at / ROOM], at % ROOM)).collect()
                };
                let from = upload(&stream, &of_all(&|to, at| number(rank, to, at)));
                for (round, room) in [(0, ROOM), (1, ROOM), (2, ROOM / 2)] {
                    let count = |from: usize, to: usize| count_of(from, to, round).min(room);
                    let to = upload(&stream, &of_all(&|_, _| -1.0));
                    let counts: Vec<u32> =
                        peers.iter().map(|&to| 4 * count(rank, to) as u32).collect();
                    let lengths = words(&stream, &counts);
                    let blocks = Blocks {
                        from: from.ptr(),
                        to: to.ptr(),
                        stride: 4 * ROOM,
                        bytes_per_peer: 4 * room,
                        lengths: lengths.ptr(),
                    };
                    let exchange = || match across {
                        false => halves.all_to_all_inside(&stream, blocks),
                        true => halves.all_to_all_across(&stream, blocks),
                    };
                    if round == 1 {
                        let captured = stream.cuda_body().capture(|| {
                            exchange().expect("enqueued");
                            Ok(())
                        });
                        captured.expect("a graph").launch(stream.cuda_body());
                    } else {
                        exchange().expect("enqueued");
                    }
                    finish(&*collectives, &stream).expect("done");
                    let arrived = download(&to);
                    for (index, &source) in peers.iter().enumerate() {
                        let expected: Vec<f32> =
                            (0..count(source, rank)).map(|at| number(source, rank, at)).collect();
                        let found = &arrived[index * ROOM..][..expected.len()];
                        assert_eq!(found, expected, "{nodes:?}, {way:?}: {source} to {rank}");
                    }
                }
            }
            collectives.close().expect("closed");
        });
    }
}

/// What each rank says of an exchange in which rank 1 claims more for the last rank than a block
/// has room for.
fn one_block_too_long(nodes: &[usize], way: BetweenDevices) -> Vec<(CommError, Vec<f32>)> {
    on_nodes(way, nodes, |communicator, stream| {
        let (rank, ranks) = (communicator.rank().0, communicator.num_ranks());
        let collectives = communicator.attach_device(&stream).expect("the ranks come together");
        let from = upload(&stream, &vec![7.0; ranks * 4]);
        let to = upload(&stream, &vec![-1.0; ranks * 4 + 4]);
        let mut counts = vec![16; ranks];
        if rank == 1 {
            counts[ranks - 1] = 20;
        }
        let lengths = words(&stream, &counts);
        let blocks = Blocks {
            from: from.ptr(),
            to: to.ptr(),
            stride: 16,
            bytes_per_peer: 16,
            lengths: lengths.ptr(),
        };
        let enqueued = collectives.all_to_all_v(&stream, blocks);
        let mut told = enqueued.and_then(|()| finish(&*collectives, &stream));
        // Ranks that have nothing to do with the block hear of it from the others.
        let since = Instant::now();
        while told.is_ok() {
            assert!(since.elapsed() < Duration::from_secs(20), "rank {rank} hears of no error");
            std::thread::sleep(Duration::from_millis(2));
            told = collectives.check();
        }
        let _ = stream.synchronize();
        let end = (told.expect_err("a strip that does not fit is an error"), download(&to));
        keep_for_peers((collectives, from, lengths));
        end
    })
}

/// After a failure no one knows when peers have ended: what they may still read or write stays
/// where it is.
fn keep_for_peers<T>(memory: T) {
    std::mem::forget(memory);
}

#[test]
fn a_block_that_is_too_long_is_named_on_all_ranks_and_writes_nothing_outside() {
    if !has_devices(4) {
        return;
    }
    for (nodes, way) in
        [&[2, 2][..], &[3, 1]].into_iter().flat_map(|nodes| WAYS.map(|way| (nodes, way)))
    {
        let ends = one_block_too_long(nodes, way);
        let text = ends[0].0.to_string();
        assert!(text.contains("has 20 bytes") || text.contains("of rank 1 has 20 bytes"), "{text}");
        assert!(text.contains("room for 16"), "{text}");
        for (error, to) in &ends {
            assert_eq!(error, &ends[0].0);
            assert!(to[16..].iter().all(|&canary| canary == -1.0), "{to:?}");
            assert!(to[..16].iter().all(|&value| value == 7.0 || value == -1.0));
        }
        // Of the exchange in which something was refused, the strip's receiver uses nothing that
        // crossed.
        let last = &ends[3].1;
        assert!(last[4..8].iter().all(|&value| value == -1.0), "{last:?}");
    }
}

#[test]
fn nodes_in_different_exchanges_find_it_in_the_strips() {
    if !has_devices(4) {
        return;
    }
    let ends = on_nodes(BetweenDevices::Auto, &[2, 2], |communicator, stream| {
        let collectives = communicator.attach_device(&stream).unwrap();
        let (from, to) = (upload(&stream, &[1.0; 16]), upload(&stream, &[-1.0; 16]));
        let enqueued = match communicator.rank() {
            Rank(0 | 1) => collectives.all_to_all(&stream, from.ptr(), to.ptr(), 16),
            _ => collectives.all_gather(&stream, from.ptr(), to.ptr(), 16),
        };
        let told = enqueued.and_then(|()| finish(&*collectives, &stream));
        let _ = stream.synchronize();
        let end = (told.unwrap_err().to_string(), download(&to));
        keep_for_peers((collectives, from));
        end
    });
    for (rank, (text, to)) in ends.iter().enumerate() {
        assert!(text.contains("is in another exchange"), "{text}");
        let others = if rank < 2 { 8..16 } else { 0..8 };
        assert!(to[others].iter().all(|&value| value == -1.0));
    }
}

/// Ranks that expect blocks of different lengths, as if one had chosen another class of strips. In
/// a process of its own, since NCCL's failure stays with devices.
#[test]
fn ranks_that_disagree_about_a_length_all_end_with_an_error() {
    if !has_devices(4) {
        return;
    }
    for name in ["a_rank_of_two_nodes_disagrees", "a_rank_of_one_node_disagrees"] {
        run_alone(name, &[]);
    }
}

#[test]
#[ignore = "started by another test"]
fn a_rank_of_two_nodes_disagrees() {
    a_rank_disagrees(&[2, 2]);
}

#[test]
#[ignore = "started by another test"]
fn a_rank_of_one_node_disagrees() {
    a_rank_disagrees(&[4]);
}

fn a_rank_disagrees(nodes: &[usize]) {
    for way in WAYS {
        let ends = on_nodes(way, nodes, |communicator, stream| {
            let collectives = communicator.attach_device(&stream).expect("the ranks come together");
            let (from, to) = (upload(&stream, &[1.0; 64]), upload(&stream, &[-1.0; 64]));
            let lengths = words(&stream, &[16; 4]);
            let blocks = Blocks {
                from: from.ptr(),
                to: to.ptr(),
                stride: 64,
                bytes_per_peer: if communicator.rank() == Rank(2) { 32 } else { 16 },
                lengths: lengths.ptr(),
            };
            let enqueued = collectives.all_to_all_v(&stream, blocks);
            let mut told = enqueued.and_then(|()| finish(&*collectives, &stream));
            let since = Instant::now();
            while told.is_ok() && since.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(2));
                told = collectives.check();
            }
            let _ = stream.synchronize();
            keep_for_peers((collectives, from, to, lengths));
            told.map_err(|error| error.to_string())
        });
        assert!(ends.iter().all(Result::is_err), "{nodes:?}, {way:?}: {ends:?}");
    }
}

#[test]
fn more_than_room_was_made_for_is_refused_before_it_is_enqueued() {
    if !has_devices(3) {
        return;
    }
    let sizes = DeviceSizes { block_bytes: 64, sums: SumLen::of_f32(8), ..DeviceSizes::default() };
    for of_sum in [false, true] {
        let texts = on_nodes(BetweenDevices::Auto, &[2, 1], |communicator, stream| {
            let collectives = communicator.attach_device_for(&stream, sizes).unwrap();
            let memory = upload(&stream, &[0.0; 96]);
            let (from, to) = (memory.ptr(), DevicePtr(memory.ptr().0 + 192));
            let refused = match of_sum {
                false => collectives.all_to_all(&stream, from, to, 68),
                true => collectives.all_reduce_f32(&stream, from, 9),
            };
            refused.unwrap_err().to_string()
        });
        let expected = if of_sum {
            "numbers of 36 bytes, and room was made for 32"
        } else {
            "of 68 bytes, and room was made for 64"
        };
        assert!(texts.iter().all(|text| text.contains(expected)), "{texts:?}");
    }
}
