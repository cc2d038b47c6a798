//! Collectives allocate nothing, once each has been called.

use headlong_comm::testing::run_ranks_with;
use headlong_comm::{AllToAll, CommOptions, Communicator, Rank, Result, Topology};
use headlong_device::testing::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// What a rank sends and receives, made before anything is counted.
struct Buffers {
    data: Vec<f32>,
    all: Vec<f32>,
    counts: Vec<usize>,
}

fn everything(communicator: &Communicator, buffers: &mut Buffers) -> Result<()> {
    let Buffers { data, all, counts } = buffers;
    communicator.all_reduce(&mut data[..40])?;
    communicator.all_reduce(data)?;
    communicator.all_reduce_ring(data)?;
    communicator.all_reduce_chunks(data, 1000, &mut |_, _| {})?;
    communicator.broadcast(Rank(1), data)?;
    communicator.reduce_scatter(all, data)?;
    communicator.all_gather(data, all)?;
    communicator.all_to_all(data, &mut all[..data.len()])?;
    communicator.all_to_all_v(data, counts, all.split_at_mut(data.len()).0, counts)?;
    communicator.barrier()
}

#[test]
fn nothing_after_the_first_call() {
    for all_to_all in [AllToAll::Flat, AllToAll::Hierarchical] {
        let options =
            CommOptions { all_to_all, one_step_bytes: Some(1000), ring_bytes: 1, ..CommOptions::default() };
        let counted = run_ranks_with(&Topology::from_node_sizes(&[2, 2]), options, |communicator| {
            let len = 40_000;
            let mut buffers =
                Buffers { data: vec![1.0; len], all: vec![1.0; 4 * len], counts: vec![len / 4; 4] };
            for _ in 0..2 {
                everything(communicator, &mut buffers)?;
            }
            communicator.barrier()?;
            let before = allocations();
            // All have read the counter before any of them goes on, and have stopped before any of them reads it again.
            communicator.barrier()?;
            for _ in 0..3 {
                everything(communicator, &mut buffers)?;
            }
            let counted = allocations() - before;
            communicator.barrier()?;
            Ok::<_, headlong_comm::CommError>(counted)
        });
        assert_eq!(counted, vec![Ok(0); 4], "{all_to_all:?}");
    }
}
