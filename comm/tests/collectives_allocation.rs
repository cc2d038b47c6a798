//! Collectives allocate nothing, once each has been called.

mod tcp_support;

use headlong_comm::testing::{run_communicators, run_ranks_with};
use headlong_comm::{AllToAll, CommOptions, Communicator, Rank, Result, Topology};
use headlong_device::testing::{CountingAllocator, allocations};
use std::time::Duration;
use tcp_support::Way;

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
    communicator.all_reduce_chunks(data, 1000, &mut |_, _| {})?;
    communicator.broadcast(Rank(1), data)?;
    communicator.reduce_scatter(all, data)?;
    let bounds = [0, data.len() / 2, data.len() / 2, data.len() - 5, data.len()];
    communicator.reduce_to_parts(data, &bounds)?;
    communicator.reduce_to_parts_as_bf16(data, &bounds)?;
    communicator.gather_parts(data, &bounds)?;
    communicator.all_gather(data, all)?;
    communicator.all_to_all(data, &mut all[..data.len()])?;
    communicator.all_to_all_v(data, counts, all.split_at_mut(data.len()).0, counts)?;
    communicator.barrier()
}

/// Buffers, and every operation called twice.
fn warm(communicator: &Communicator, len: usize) -> Result<Buffers> {
    let mut buffers =
        Buffers { data: vec![1.0; len], all: vec![1.0; 4 * len], counts: vec![len / 4; 4] };
    for _ in 0..2 {
        everything(communicator, &mut buffers)?;
    }
    Ok(buffers)
}

/// What all threads of the process allocate while every operation is called three times.
fn count(communicator: &Communicator, buffers: &mut Buffers) -> Result<u64> {
    communicator.barrier()?;
    let before = allocations();
    // All have read the counter before any of them continues, and have stopped before any of them
    // reads it again.
    communicator.barrier()?;
    for _ in 0..3 {
        everything(communicator, buffers)?;
    }
    let counted = allocations() - before;
    communicator.barrier()?;
    Ok(counted)
}

// One test: the counter counts for the whole process.
#[test]
fn nothing_after_the_first_call() {
    nothing_between_threads();
    nothing_over_the_paths_of_processes();
}

fn nothing_between_threads() {
    for all_to_all in [AllToAll::Flat, AllToAll::Hierarchical] {
        let options =
            CommOptions { all_to_all, one_step_bytes: Some(1000), ..CommOptions::default() };
        let counted =
            run_ranks_with(&Topology::from_node_sizes(&[2, 2]), options, |communicator| {
                let mut buffers = warm(communicator, 40_000)?;
                count(communicator, &mut buffers)
            });
        assert_eq!(counted, vec![Ok(0); 4], "{all_to_all:?}");
    }
}

/// The control plane's threads wake up now and then, and allocate: of several looks, one must find
/// nothing at all.
fn nothing_over_the_paths_of_processes() {
    for way in [Way::Tcp, Way::Shm, Way::Mixed] {
        let options = CommOptions { one_step_bytes: Some(1000), ..CommOptions::default() };
        let port = tcp_support::reserve_port();
        let mut all = way.job_options(4, port.port);
        for options in &mut all {
            (options.deadlines.heartbeat, options.deadlines.silence) =
                (Duration::from_secs(30), Duration::from_secs(120));
        }
        let ends = way
            .join_all(all)
            .into_iter()
            .map(|end| Communicator::new(end, options.clone()))
            .collect();
        let counted = run_communicators(ends, |communicator| {
            let mut buffers = warm(communicator, 4000)?;
            (0..40).map(|_| count(communicator, &mut buffers)).collect::<Result<Vec<u64>>>()
        });
        let counted = counted.into_iter().collect::<Result<Vec<_>>>().expect("all is well");
        let quiet = (0..40).any(|look| counted.iter().all(|rank| rank[look] == 0));
        assert!(quiet, "{way:?}: {counted:?}");
    }
}
