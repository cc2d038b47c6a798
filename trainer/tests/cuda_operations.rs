//! Exchanges between devices have as many operations as the planner counts.

use headlong_comm::device::sums_in_two_steps;
use headlong_comm::testing::run_ranks_with;
use headlong_comm::{BetweenDevices, Blocks, CommOptions, DeviceSizes, Parts, SumLen, Topology};
use headlong_device::cuda::testing::{driver_calls, has_devices, nccl_operations};
use headlong_device::cuda::{CudaDevice, DeviceMemory, DevicePtr};
use headlong_device::pool::Pool;
use headlong_device::{DType, Stream};
use headlong_embedding::hybrid::traffic::AllReduce;
use headlong_planner::practice::{Packing, Practice, Strips};
use std::sync::Arc;

const RANKS: usize = 8;

/// What the planner says that follows each other on a rank's stream in an exchange is what does.
#[test]
fn exchanges_have_as_many_operations_as_the_planner_counts() {
    if !has_devices(RANKS) {
        return;
    }
    for (nodes, is_nccl, len) in [
        (vec![8], false, 1 << 12),
        (vec![8], true, 1 << 12),
        (vec![4, 4], false, 1 << 12),
        (vec![4, 4], true, 1 << 12),
        (vec![2, 2, 2, 2], false, 1 << 20),
        (vec![2, 2, 2, 2], true, 1 << 20),
    ] {
        let topology = Topology::from_node_sizes(&nodes);
        let by_node = nodes.len() > 1;
        let practice = Practice {
            packing: Packing::Slots { by_node },
            strips: Strips { inside: is_nccl, between: by_node },
            ..Practice::plain()
        };
        let way = match sums_in_two_steps(&topology, len) {
            true => AllReduce::Hierarchical,
            false => AllReduce::HierarchicalDirect,
        };
        assert_eq!(way == AllReduce::Hierarchical, nodes.len() == 4);
        let [reduced, gathered] = practice.parts_operations(nodes.len());
        let [exchanged, summed] =
            [practice.all_to_all_operations(), practice.all_reduce_operations(way)];
        let halves = if by_node { practice.halves_operations() } else { 0 };
        let expected = [exchanged, summed, reduced, gathered, halves];
        let counted = operations_of_exchanges(&topology, is_nccl, len);
        assert_eq!(counted, expected.map(|each| each * RANKS), "{nodes:?}, NCCL inside: {is_nccl}");
    }
}

/// Of all ranks, in an all-to-all, in a sum of `len` numbers, in one of which each has a part, and
/// when parts are gathered, and in the two halves of an exchange, where nodes make them: kernels,
/// groups of NCCL, and barriers in memory.
fn operations_of_exchanges(topology: &Topology, is_nccl: bool, len: usize) -> [usize; 5] {
    let between_devices = if is_nccl { BetweenDevices::Nccl } else { BetweenDevices::Auto };
    let options = CommOptions { between_devices, ..CommOptions::default() };
    let waits = topology.node_size(0) - 1;
    let count = || -> usize {
        let [kernels, words] = [c"cuLaunchKernel", c"cuStreamWaitValue32_v2"].map(driver_calls);
        let barriers = words.unwrap() as usize / waits;
        kernels.unwrap() as usize + nccl_operations().unwrap() as usize + barriers
    };
    let counts = run_ranks_with(topology, options, |communicator| {
        let device = CudaDevice::open(communicator.rank().0 as u32).unwrap();
        let stream = Stream::cuda(&device, Arc::new(Pool::new(1))).unwrap();
        let sizes = DeviceSizes {
            block_bytes: 64,
            rail_bytes: 64,
            sums: SumLen::of_f32(len),
            part: SumLen::of_f32(len / RANKS),
        };
        let bounds: Vec<usize> = (0..=RANKS).map(|rank| rank * len / RANKS).collect();
        let collectives = communicator.attach_device_for(&stream, sizes).unwrap();
        let [from, to] = ["from", "to"].map(|name| DeviceMemory::new(&device, name, 512).unwrap());
        let sums = DeviceMemory::new(&device, "sums", 4 * len).unwrap();
        let parts = Parts { data: sums.ptr(), dtype: DType::F32, bounds: &bounds };
        let counted = |work: &dyn Fn()| {
            communicator.barrier().unwrap();
            let before = count();
            communicator.barrier().unwrap();
            work();
            stream.synchronize().unwrap();
            communicator.barrier().unwrap();
            count() - before
        };
        let counts = [
            counted(&|| collectives.all_to_all(&stream, from.ptr(), to.ptr(), 64).unwrap()),
            counted(&|| collectives.all_reduce_f32(&stream, sums.ptr(), len).unwrap()),
            counted(&|| collectives.reduce_to_parts(&stream, parts).unwrap()),
            counted(&|| collectives.gather_parts(&stream, parts).unwrap()),
            counted(&|| {
                let Some(halves) = collectives.by_node() else { return };
                let (from, to, stride, lengths) = (from.ptr(), to.ptr(), 64, DevicePtr::NULL);
                let blocks = Blocks { from, to, stride, bytes_per_peer: 64, lengths };
                halves.all_to_all_inside(&stream, blocks).unwrap();
                halves.all_to_all_across(&stream, blocks).unwrap();
            }),
        ];
        communicator.barrier().unwrap();
        collectives.close().unwrap();
        counts
    });
    counts[0]
}
