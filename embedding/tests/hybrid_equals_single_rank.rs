//! N owners in one process and a single rank, with the same blocks: the same bits, whatever the
//! partition.

use crate::common::cases::{STEPS, narrow, partition, ranks, single_rank, specs};
use crate::common::ranks::Variant;
use headlong_device::optimizer::Optimizer;
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::{Deduplicate, Partition};
use headlong_embedding::testing::every_optimizer;
use proptest::prelude::*;

fn check(
    which_narrow: u64,
    optimizer: Optimizer,
    num_ranks: usize,
    blocks_per_rank: usize,
    partition: impl Fn(&[TableSpec]) -> Partition,
    variant: Variant,
) {
    let specs = narrow(specs(), which_narrow);
    let num_blocks = num_ranks * blocks_per_rank;
    let (vectors, tensors) = single_rank(&specs, optimizer, num_blocks);
    let (got_vectors, got_tensors) =
        ranks(&specs, optimizer, num_blocks, partition(&specs), variant);
    for step in 0..STEPS as usize {
        assert!(vectors[step] == got_vectors[step], "vectors of step {}", step + 1);
    }
    for (index, (expected, got)) in tensors.iter().zip(&got_tensors).enumerate() {
        assert!(expected == got, "tensor {index}");
    }
}

#[test]
fn every_optimizer_and_the_usual_partitions() {
    for optimizer in every_optimizer() {
        check(0, optimizer, 4, 2, |specs| Partition::row_wise(specs, 4), Variant::default());
        check(
            0,
            optimizer,
            4,
            2,
            |specs| Partition::all_frequent(specs, 4),
            Variant { chunk: 37, ..Variant::default() },
        );
        let known = Variant { known: true, ..Variant::default() };
        for which_narrow in [0, u64::MAX] {
            check(which_narrow, optimizer, 4, 2, |specs| partition(specs, 4, 3), known);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_partition_of_any_number_of_ranks(
        seed: u64,
        num_ranks in 2_usize..9,
        log_blocks in 0_u32..3,
        optimizer in 0_usize..5,
        known: bool,
        off: bool,
        chunk in 1_usize..5000,
    ) {
        let blocks = if off { 1 } else { 1 << log_blocks };
        let deduplicate = if off { Deduplicate::Off } else { Deduplicate::Rank };
        let variant = Variant { deduplicate, known, chunk };
        check(
            seed,
            every_optimizer()[optimizer],
            num_ranks,
            blocks,
            |specs| partition(specs, num_ranks, seed),
            variant,
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Proxies of nodes in between.
    #[test]
    fn any_partition_with_deduplication_by_node(
        seed: u64,
        num_nodes in 1_usize..5,
        log_ranks in 0_u32..3,
        log_blocks in 0_u32..2,
        optimizer in 0_usize..5,
    ) {
        let ranks = 1 << log_ranks;
        let num_ranks = (num_nodes * ranks).max(2);
        let ranks = if num_ranks == num_nodes * ranks { ranks } else { 2 };
        let variant = Variant { deduplicate: Deduplicate::Node { ranks }, ..Variant::default() };
        check(
            seed,
            every_optimizer()[optimizer],
            num_ranks,
            1 << log_blocks,
            |specs| partition(specs, num_ranks, seed),
            variant,
        );
    }
}
