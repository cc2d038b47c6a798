//! Collectives between devices give what the same collectives between hosts give: eager, captured,
//! and one after another.

mod device_support;

use device_support::{
    Memory, TURN, WAYS, download, has_devices, on_devices, replay_all, stream_on, uneven, upload,
};
use half::bf16;
use headlong_comm::device::narrow;
use headlong_comm::testing::run_ranks;
use headlong_comm::{BetweenDevices, Communicator, DeviceCollectives, Rank, Topology};
use headlong_device::{Stream, cuda};
use std::sync::PoisonError;

/// Longer than what the software NCCL moves at once, and no multiple of anything.
const LENGTHS: [usize; 4] = [1, 5, 1031, 40_009];

fn attach(communicator: &Communicator, stream: &Stream) -> Box<dyn DeviceCollectives> {
    communicator.attach_device(stream).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_operation_at_every_number_of_ranks() {
    for (ranks, way) in [1_u32, 2, 3, 4].into_iter().flat_map(|ranks| WAYS.map(|way| (ranks, way)))
    {
        if !has_devices(ranks as usize) {
            return;
        }
        on_devices(way, ranks, 0, |communicator, stream| {
            let (rank, ranks) = (communicator.rank().0, ranks as usize);
            let collectives = attach(communicator, &stream);
            assert_eq!((collectives.rank().0, collectives.num_ranks()), (rank, ranks));
            let name = if way == BetweenDevices::Nccl { "nccl" } else { "peer memory" };
            assert_eq!(collectives.name(), if ranks == 1 { "one rank" } else { name });
            for len in LENGTHS {
                let memory = Memory::new(&stream, ranks, len);
                memory.fill(rank, 1, ranks, len);
                memory.enqueue(&*collectives, &stream, len).unwrap();
                stream.synchronize().unwrap();
                collectives.check().unwrap();
                memory.verify(rank, 1, ranks, len);
            }
            collectives.close().unwrap();
        });
    }
}

#[test]
fn a_captured_exchange_exchanges_again_at_each_replay() {
    if !has_devices(3) {
        return;
    }
    for way in WAYS {
        on_devices(way, 3, 0, |communicator, stream| {
            replay_all(attach(communicator, &stream), &stream, 4)
        });
    }
}

#[test]
fn nothing_to_exchange_is_no_work() {
    if !has_devices(2) {
        return;
    }
    for way in WAYS {
        on_devices(way, 2, 0, |communicator, stream| {
            let collectives = attach(communicator, &stream);
            let memory = upload(&stream, &[1.0]);
            let at = memory.ptr();
            collectives.all_to_all(&stream, at, at, 0).unwrap();
            collectives.all_reduce_f32(&stream, at, 0).unwrap();
            collectives.all_gather(&stream, at, at, 0).unwrap();
            collectives.broadcast(&stream, Rank(1), at, 0).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(download(&memory), [1.0]);
            collectives.close().unwrap();
        });
    }
}

fn sums(way: BetweenDevices, ranks: u32) -> Vec<Vec<f32>> {
    on_devices(way, ranks, 0, |communicator, stream| {
        let own = uneven(communicator.rank().0);
        let memory = upload(&stream, &own);
        let collectives = attach(communicator, &stream);
        collectives.all_reduce_f32(&stream, memory.ptr(), own.len()).expect("enqueued");
        stream.synchronize().expect("done");
        collectives.close().expect("closed");
        download(&memory)
    })
}

#[test]
fn sums_have_the_same_bits_on_all_ranks() {
    if !has_devices(4) {
        return;
    }
    for sums in WAYS.map(|way| sums(way, 4)) {
        assert!(sums.iter().all(|sum| sum == &sums[0]));
        for (index, sum) in sums[0].iter().enumerate() {
            let exact: f64 = (0..4).map(|rank| f64::from(uneven(rank)[index])).sum();
            let bound = 4.0 * exact * f64::from(f32::EPSILON);
            assert!((f64::from(*sum) - exact).abs() <= bound, "{sum} {exact}");
        }
    }
}

#[test]
fn sums_in_each_others_memory_have_the_bits_of_sums_between_hosts() {
    for ranks in [2_u32, 3, 5, 7, 8] {
        if !has_devices(ranks as usize) {
            return;
        }
        let between_hosts = run_ranks(&Topology::one_node(ranks as usize), |communicator| {
            let mut data = uneven(communicator.rank().0);
            communicator.all_reduce(&mut data).unwrap();
            data
        });
        assert_eq!(sums(BetweenDevices::Auto, ranks), between_hosts);
    }
}

#[test]
fn memory_at_odd_addresses_is_summed_number_by_number() {
    if !has_devices(2) {
        return;
    }
    let sums = on_devices(BetweenDevices::Auto, 2, 0, |communicator, stream| {
        let own = uneven(communicator.rank().0);
        let memory = upload(&stream, &own);
        let collectives = attach(communicator, &stream);
        collectives.all_reduce_f32(&stream, memory.ptr().offset(4), own.len() - 2).unwrap();
        stream.synchronize().unwrap();
        collectives.close().unwrap();
        (own, download(&memory))
    });
    let (first, second) = (&sums[0].0, &sums[1].0);
    for (own, sum) in &sums {
        assert_eq!((sum[0], sum[96]), (own[0], own[96]));
        assert!((1..96).all(|index| sum[index] == first[index] + second[index]));
    }
}

/// Ties, what becomes infinite, and more groups than a block has threads.
#[test]
fn numbers_are_rounded_as_hosts_round_them() {
    if !has_devices(1) {
        return;
    }
    let stream = stream_on(0);
    let mut numbers: Vec<f32> = (0..4 * 261).map(|at| (at as f32 + 0.1).powi(3)).collect();
    numbers[..4].copy_from_slice(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::MAX, -0.0]);
    let (from, to) = (upload(&stream, &numbers), upload(&stream, &vec![7.0; numbers.len() / 2]));
    narrow::load(&stream);
    narrow::round(&stream, from.ptr(), to.ptr(), numbers.len());
    stream.synchronize().unwrap();
    let bits = |number: f32| u32::from(bf16::from_f32(number).to_bits());
    let expected: Vec<u32> =
        numbers.chunks(2).map(|pair| bits(pair[0]) | bits(pair[1]) << 16).collect();
    assert_eq!(download(&to).into_iter().map(f32::to_bits).collect::<Vec<_>>(), expected);
}

/// NCCL's own thread launches into a stream that this thread captures: seen with one rank, which
/// needs one device.
#[test]
fn nccl_is_captured_with_one_rank() {
    if !has_devices(1) {
        return;
    }
    let found = match cuda::Library::Nccl.find().path {
        Ok(path) => path,
        Err(reason) => return println!("skipped, because {reason}"),
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let search = nccl_rs::Search::in_directories([found]);
    let library = nccl_rs::Library::open(&search).unwrap();
    let stream = stream_on(0);
    let id = nccl_rs::UniqueId::new(&library).unwrap();
    let comm = nccl_rs::Comm::init(&library, &id, 0, 1, nccl_rs::Config::default()).unwrap();
    let numbers = uneven(0);
    let [from, to] = [&numbers, &vec![0.0; numbers.len()]].map(|data| upload(&stream, data));
    let cuda = stream.cuda_body();
    let data = nccl_rs::Data {
        from: from.ptr().0,
        to: to.ptr().0,
        count: numbers.len(),
        kind: nccl_rs::DataType::F32,
        stream: cuda.raw(),
    };
    // SAFETY: the memory outlives the stream's work, which is waited for below.
    let sum = || comm.group(|group| unsafe { group.all_reduce(data, nccl_rs::ReduceOp::SUM) });
    // Connections are made at the first call, which no capture allows.
    sum().unwrap();
    stream.synchronize().unwrap();
    let mut enqueued = Ok(());
    let graph = cuda.capture(|| {
        cuda.fill_bytes(to.ptr(), 0, 4 * numbers.len());
        enqueued = sum();
        Ok(())
    });
    enqueued.unwrap();
    let graph = graph.unwrap();
    for replay in 0..3 {
        cuda.fill_bytes(to.ptr(), 0xff, 4 * numbers.len());
        graph.launch(cuda);
        stream.synchronize().unwrap();
        comm.check().unwrap();
        assert_eq!(download(&to), numbers, "replay {replay}");
    }
    comm.close().unwrap();
}
