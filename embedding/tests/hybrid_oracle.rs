//! Every op of the hybrid embedding, at every stage, against the oracle that holds all ranks.

use crate::common::bits;
use crate::common::cases::{batch, narrow, partition, specs};
use crate::common::ranks::{Bags, Ranks, Shape, Traffic, Variant};
use headlong_device::optimizer::Step;
use headlong_device::testing::uniform;
use headlong_embedding::hybrid::{Deduplicate, Owner, Partition};
use headlong_embedding::oracle::{OracleBags, OracleRanks};
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::{Registry, TableSpec};
use proptest::prelude::*;

fn oracle_bags(tables: &[Bags]) -> Vec<OracleBags> {
    tables.iter().map(|t| OracleBags { bags: t.bags.clone(), weights: t.weights.clone() }).collect()
}

/// Steps on both sides, compared after each stage.
fn check(
    specs: &[TableSpec],
    partition: Partition,
    blocks_per_rank: usize,
    optimizer: usize,
    variant: Variant,
    batches: &[Vec<Bags>],
) {
    let optimizer = every_optimizer()[optimizer];
    let num_ranks = partition.num_owners();
    let num_blocks = num_ranks * blocks_per_rank;
    let unique = variant.deduplicate != Deduplicate::Off;
    let mut oracle = OracleRanks::new(specs, optimizer, 11, partition.clone(), num_blocks, unique);
    let shape = Shape {
        specs,
        optimizer,
        pool_at: &[],
        num_blocks,
        max_samples: 150,
        max_ids: 600,
        threads: 2,
    };
    let mut ranks = Ranks::new(&Registry::default(), &shape, partition, variant);
    for (number, tables) in (1..).zip(batches) {
        let step = Step { learning_rate: 0.1, number };
        let samples = tables[0].bags.len();
        let bags = oracle_bags(tables);
        let mut traffic = Traffic::default();
        let vectors = ranks.forward(tables, &mut traffic);
        check_forward(&mut oracle, &bags, &traffic, &vectors);
        let width = ranks.sets[0].width();
        let d_vectors = uniform(number, samples * width);
        ranks.backward(samples, &d_vectors, &step, &mut traffic);
        let d_vectors: Vec<Vec<f32>> = d_vectors.chunks(width).map(<[f32]>::to_vec).collect();
        check_backward(&mut oracle, &bags, &traffic, &d_vectors, &step);
        check_rows(&mut oracle, &ranks, specs);
    }
}

fn check_forward(
    oracle: &mut OracleRanks,
    bags: &[OracleBags],
    traffic: &Traffic,
    vectors: &[f32],
) {
    let mut expected_vectors = Vec::new();
    for rank in 0..traffic.requests.len() {
        let requests: Vec<u64> =
            oracle.requests(rank, bags).iter().map(|request| request.local_row).collect();
        assert_eq!(traffic.requests[rank], requests, "route: requests of rank {rank}");
        let received: Vec<u64> = oracle
            .received_requests(Owner(rank), bags)
            .iter()
            .map(|(_, request)| request.local_row)
            .collect();
        assert_eq!(traffic.received[rank], received, "what owner {rank} receives");
        assert_eq!(
            bits(&traffic.send_rows[rank]),
            bits(&oracle.owner_lookup(Owner(rank), bags)),
            "answer of owner {rank}"
        );
        assert_eq!(
            bits(&traffic.recv_rows[rank]),
            bits(&oracle.recv_rows(rank, bags)),
            "what rank {rank} receives"
        );
        expected_vectors.extend(oracle.pool(rank, bags));
    }
    assert_eq!(bits(vectors), bits(&expected_vectors), "pool");
}

fn check_backward(
    oracle: &mut OracleRanks,
    bags: &[OracleBags],
    traffic: &Traffic,
    d_vectors: &[Vec<f32>],
    step: &Step,
) {
    let num_ranks = traffic.requests.len();
    for rank in 0..num_ranks {
        let sent = oracle.to_owners(rank, bags, d_vectors);
        assert_eq!(bits(&traffic.gradients[rank]), bits(&sent), "reduce: gradients of rank {rank}");
        let block = oracle.frequent_block(rank, bags, d_vectors);
        assert_eq!(
            bits(&traffic.blocks[rank]),
            bits(&block),
            "reduce: frequent block of rank {rank}"
        );
        let arrived = oracle.from_ranks(Owner(rank), bags, d_vectors);
        assert_eq!(bits(&traffic.arrived[rank]), bits(&arrived), "gradients for owner {rank}");
    }
    let block = oracle.all_reduce(bags, d_vectors);
    assert_eq!(bits(&traffic.frequent), bits(&block), "all-reduce");
    for rank in 0..num_ranks {
        oracle.update_owned(Owner(rank), bags, d_vectors, step);
        oracle.update_frequent(rank, &block, step);
    }
}

/// Weights and states of every row, on every rank that holds it.
fn check_rows(oracle: &mut OracleRanks, ranks: &Ranks, specs: &[TableSpec]) {
    for (rank, set) in ranks.sets.iter().enumerate() {
        for (table, spec) in specs.iter().enumerate() {
            for tensor in 0..set.tensors(table).len() {
                let cols = set.tensors(table)[tensor].cols;
                let mut got = vec![f32::NAN; spec.rows as usize * cols];
                set.export_rows(table, tensor, 0, &mut got).expect("dense tables show their rows");
                for (row, got) in (0..).zip(got.chunks(cols)) {
                    match oracle.row(rank, table, row) {
                        None => assert!(
                            got.iter().all(|x| x.is_nan()),
                            "rank {rank} holds row {row} of table {table}"
                        ),
                        Some(expected) => assert_eq!(
                            bits(got),
                            bits(&expected[tensor]),
                            "rank {rank}, table {table}, tensor {tensor}, row {row}"
                        ),
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_stage_of_any_partition(
        seed: u64,
        num_ranks in 2_usize..9,
        log_blocks in 0_u32..3,
        optimizer in 0_usize..5,
        known: bool,
        off: bool,
        samples in proptest::collection::vec(0_usize..90, 2),
    ) {
        let specs = narrow(specs(), seed);
        let variant = Variant {
            deduplicate: if off { Deduplicate::Off } else { Deduplicate::Rank },
            known,
            ..Variant::default()
        };
        let batches: Vec<_> =
            (1..).zip(samples).map(|(number, samples)| batch(&specs, number, samples)).collect();
        let blocks = if off { 1 } else { 1 << log_blocks };
        check(&specs, partition(&specs, num_ranks, seed), blocks, optimizer, variant, &batches);
    }

    /// Few rows, long bags: the same row many times in one bag, in many samples, on all ranks.
    #[test]
    fn heavy_duplicates(
        bags in proptest::collection::vec(
            proptest::collection::vec((0_u64..4, -2.0_f32..2.0), 0..9), 1..60
        ),
        weighted: bool,
        seed: u64,
        num_ranks in 2_usize..6,
        log_blocks in 0_u32..3,
        off: bool,
    ) {
        let specs = [TableSpec::new("t", 4, 7)];
        let weights =
            bags.iter().map(|bag| bag.iter().map(|(_, weight)| *weight).collect()).collect();
        let rows = bags.iter().map(|bag| bag.iter().map(|(row, _)| *row).collect()).collect();
        let table = Bags { bags: rows, weights: weighted.then_some(weights) };
        let deduplicate = if off { Deduplicate::Off } else { Deduplicate::Rank };
        let blocks = if off { 1 } else { 1 << log_blocks };
        let variant = Variant { deduplicate, ..Variant::default() };
        check(
            &specs,
            partition(&specs, num_ranks, seed),
            blocks,
            1,
            variant,
            &[vec![table.clone()], vec![table]],
        );
    }
}
