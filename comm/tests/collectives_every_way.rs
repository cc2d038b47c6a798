//! The same cases as for threads, over everything that carries the payload of processes, and over
//! the fabric of this process.

use crate::collectives_cases::{
    Kept, bits_of_the_tree, counts, lengths, move_everything, options, parts_of_any_size,
    reduce_everything,
};
use crate::tcp_support::{Way, over_every_way};
use headlong_comm::CommOptions;
use proptest::prelude::*;

over_every_way!(every_collective_in_any_way, sums_longer_than_a_ring);

fn every_collective_in_any_way(way: Way) {
    let job = Kept(way.job(4));
    let settings = ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::with_cases(8) };
    proptest!(settings, |(
        options in options(), len in lengths(), chunk in 1usize..700, counts in counts(4),
    )| {
        reduce_everything::<f32>(&job, &options, len);
        reduce_everything::<half::bf16>(&job, &options, len);
        reduce_everything::<u8>(&job, &options, len);
        move_everything::<u8>(&job, &options, 9 * len);
        move_everything::<u64>(&job, &options, len);
        parts_of_any_size(&job, &options, &counts);
        bits_of_the_tree(&job, &options, len, chunk);
    });
}

/// Messages of several megabytes, in pieces and at once: none fits into what a path holds.
fn sums_longer_than_a_ring(way: Way) {
    let job = Kept(way.job(4));
    for one_step_bytes in [None, Some(usize::MAX)] {
        let options = CommOptions { one_step_bytes, ..CommOptions::default() };
        bits_of_the_tree(&job, &options, 700_001, 400_000);
    }
}
