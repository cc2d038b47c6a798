//! Tables of other authors, divided among owners: they train as on a single rank, bit for bit.

use crate::common::cases::{STEPS, ranks, single_rank};
use crate::common::ranks::Variant;
use headlong_device::optimizer::Optimizer;
use headlong_embedding::hybrid::{Deduplicate, Owner, Partition, TablePlacement};
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::{Grain, Keys, Pooling, TableSpec};

fn check(
    specs: &[TableSpec],
    optimizer: Optimizer,
    num_ranks: usize,
    partition: Partition,
    variant: Variant,
) {
    let blocks = if variant.deduplicate == Deduplicate::Off { num_ranks } else { 2 * num_ranks };
    let (vectors, tensors) = single_rank(specs, optimizer, blocks);
    let (got_vectors, got_tensors) = ranks(specs, optimizer, blocks, partition, variant);
    for step in 0..STEPS as usize {
        assert!(vectors[step] == got_vectors[step], "vectors of step {}", step + 1);
    }
    assert!(tensors == got_tensors);
}

fn variants(num_ranks: usize) -> Vec<Variant> {
    let plain = Variant::default();
    let known = Variant { known: true, ..plain };
    let off = Variant { deduplicate: Deduplicate::Off, ..plain };
    let chunked = Variant { chunk: 100, ..plain };
    let mut variants = vec![plain, known, off, chunked, Variant { known: true, ..off }];
    if num_ranks.is_power_of_two() {
        variants.push(Variant { deduplicate: Deduplicate::Node { ranks: 2 }, ..plain });
    }
    variants
}

fn of_kind(kind: &str, spec: TableSpec) -> TableSpec {
    TableSpec { kind: kind.to_owned(), ..spec }
}

#[test]
fn tables_that_hide_their_rows() {
    let mean = TableSpec { pooling: Pooling::Mean, ..TableSpec::new("c", 40, 33) };
    // Next to a dense one, as positions in the buffers must not depend on the kind.
    let specs = [
        of_kind("hidden", TableSpec::new("a", 30, 16)),
        TableSpec::new("b", 500, 20),
        of_kind("hidden", mean),
        of_kind("hidden", TableSpec::new("d", 300, 5)),
    ];
    for num_ranks in [2, 3, 4] {
        let mixed = vec![
            TablePlacement::DataParallel,
            TablePlacement::by_formula(),
            TablePlacement::RowWise { frequent: (0..13).collect(), placed: vec![(39, Owner(0))] },
            TablePlacement::TableWise(Owner(1)),
        ];
        for variant in variants(num_ranks) {
            let optimizer = every_optimizer()[num_ranks];
            let mixed = Partition::new(&specs, num_ranks, mixed.clone()).unwrap();
            check(&specs, optimizer, num_ranks, mixed, variant);
            check(&specs, optimizer, num_ranks, Partition::row_wise(&specs, num_ranks), variant);
        }
    }
}

#[test]
fn tables_keyed_by_raw_ids() {
    let raw = |spec: TableSpec| of_kind("raw", TableSpec { keys: Keys::RawIds, ..spec });
    // Ids far beyond the number of rows, which is a capacity here.
    let specs = [
        raw(TableSpec::new("a", 1 << 50, 3)),
        TableSpec::new("b", 500, 20),
        raw(TableSpec { pooling: Pooling::Mean, ..TableSpec::new("c", 5000, 4) }),
        raw(TableSpec::new("d", 100, 5)),
        of_kind("hashed", TableSpec { keys: Keys::RawIds, ..TableSpec::new("e", 4096, 6) }),
    ];
    for num_ranks in [2, 3, 4] {
        for variant in variants(num_ranks) {
            let optimizer = every_optimizer()[num_ranks];
            check(
                &specs,
                optimizer,
                num_ranks,
                Partition::all_frequent(&specs, num_ranks),
                variant,
            );
            let placements = vec![
                TablePlacement::TableWise(Owner(1)),
                TablePlacement::by_formula(),
                TablePlacement::by_formula(),
                TablePlacement::by_formula(),
                TablePlacement::by_formula(),
            ];
            let partition = Partition::new(&specs, num_ranks, placements).unwrap();
            check(&specs, optimizer, num_ranks, partition, variant);
        }
    }
}

#[test]
fn tables_whose_rows_share_storage() {
    let whole = |spec: TableSpec| of_kind("shared", TableSpec { grain: Grain::Whole, ..spec });
    let specs = [
        whole(TableSpec::new("a", 30, 16)),
        whole(TableSpec::new("b", 500, 20)),
        TableSpec::new("c", 40, 3),
    ];
    for num_ranks in [2, 3, 4] {
        for variant in variants(num_ranks) {
            check(
                &specs,
                Optimizer::Sgd,
                num_ranks,
                Partition::row_wise(&specs, num_ranks),
                variant,
            );
            check(
                &specs,
                Optimizer::Sgd,
                num_ranks,
                Partition::all_frequent(&specs, num_ranks),
                variant,
            );
        }
    }
}
