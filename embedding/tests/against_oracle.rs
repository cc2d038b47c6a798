//! Lookup and update against the slow, obvious version.

use crate::common::{Jagged, Pair, matrix, random_bags, views};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::simd::{Isa, Limit};
use headlong_device::testing::{small_integers, uniform};
use headlong_device::{DType, Stream};
use headlong_embedding::oracle::OracleTable;
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::{EmbeddingSet, Pooling, SetOptions, TableSpec};
use proptest::prelude::*;

/// Dims that are one strip, several, and a ragged tail; one-hot, bags and means.
fn specs() -> Vec<TableSpec> {
    let mean =
        |name, rows, dim| TableSpec { pooling: Pooling::Mean, ..TableSpec::new(name, rows, dim) };
    vec![
        TableSpec::new("a", 3, 16),
        TableSpec::new("b", 500, 128),
        TableSpec::new("c", 5000, 32),
        mean("d", 40, 64),
        TableSpec::new("e", 7, 5),
        mean("f", 300, 215),
        TableSpec::new("g", 1, 1),
    ]
}

fn specs_in(dtype: DType) -> Vec<TableSpec> {
    specs().into_iter().map(|spec| TableSpec { dtype, ..spec }).collect()
}

fn bags(seed: u64, samples: usize) -> Vec<Vec<Vec<u64>>> {
    let longest = [0, 0, 3, 4, 2, 6, 0];
    let specs = specs();
    specs
        .iter()
        .zip(longest)
        .map(|(spec, longest)| random_bags(seed, samples, spec.rows, longest))
        .collect()
}

#[test]
fn every_optimizer_gives_the_bits_of_the_oracle() {
    let stream = Stream::cpu(2);
    for optimizer in every_optimizer() {
        for (dtype, sum_blocks) in
            [(DType::F32, 1), (DType::F32, 4), (DType::F32, 7), (DType::Bf16, 4)]
        {
            let mut pair = Pair::new(&stream, &specs_in(dtype), optimizer, sum_blocks);
            for number in 1..=3 {
                let bags = bags(number, 600 + 7 * number as usize);
                pair.lookup(&stream, &bags);
                let d_vectors = uniform(number, bags[0].len() * pair.set.width());
                pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 0.1, number });
            }
            pair.assert_equal();
        }
    }
}

#[test]
fn integers_come_out_exact() {
    let stream = Stream::cpu(2);
    let specs: Vec<_> = specs().into_iter().filter(|spec| spec.pooling == Pooling::Sum).collect();
    for sum_blocks in [1, 8] {
        let mut pair =
            Pair::new(&stream, &specs, Optimizer::Sgd, sum_blocks).with_integer_weights();
        let bags: Vec<_> = specs.iter().map(|spec| random_bags(5, 900, spec.rows, 3)).collect();
        pair.lookup(&stream, &bags);
        let d_vectors = small_integers(3, 900 * pair.set.width());
        pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 1.0, number: 1 });
        pair.assert_equal();
        // Sums of integers do not depend on the order: the exact f64 sum is the same number.
        let part: Vec<_> =
            d_vectors.chunks(pair.set.width()).map(|row| row[..16].to_vec()).collect();
        let exact = pair.oracle[0].exact_gradients(&bags[0], &part);
        let start = small_integers(0, 3 * 16);
        for (row, (sum, _)) in exact {
            let mut got = vec![0.0; 16];
            pair.set.read_rows(0, 0, row, &mut got).unwrap();
            for column in 0..16 {
                assert_eq!(
                    f64::from(got[column]),
                    f64::from(start[row as usize * 16 + column]) - sum[column]
                );
            }
        }
    }
}

/// A sum of n f32 terms in any order errs by at most (n - 1)·u·Σ|term| to first order, u = 2⁻²⁴;
/// the mean's factor and the subtraction from the weight add one rounding each.
#[test]
fn summed_gradients_lie_within_the_bound_of_the_exact_sum() {
    let stream = Stream::cpu(2);
    let mut pair = Pair::new(&stream, &specs(), Optimizer::Sgd, 4);
    let bags = bags(9, 2000);
    let d_vectors = uniform(4, 2000 * pair.set.width());
    let mut before = pair.oracle.clone();
    pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 1.0, number: 1 });
    let mut column = 0;
    for (table, spec) in specs().iter().enumerate() {
        let rows = d_vectors.chunks(pair.set.width());
        let part: Vec<_> = rows.map(|row| row[column..column + spec.dim].to_vec()).collect();
        let terms = bags[table].iter().map(Vec::len).sum::<usize>() as f64;
        for (row, (sum, magnitude)) in before[table].exact_gradients(&bags[table], &part) {
            let mut got = vec![0.0; spec.dim];
            pair.set.read_rows(table, 0, row, &mut got).unwrap();
            for i in 0..spec.dim {
                let weight = f64::from(before[table].row(row).weights[i]);
                let bound = (terms + 2.0) * 2.0_f64.powi(-24) * (magnitude[i] + weight.abs());
                let error = (weight - sum[i] - f64::from(got[i])).abs();
                assert!(error <= bound, "table {table}, row {row}: error {error} above {bound}");
            }
        }
        column += spec.dim;
    }
}

/// Weights after two steps, as bits.
fn weights_after_two_steps(threads: usize, optimizer: Optimizer, dtype: DType) -> Vec<u32> {
    let stream = Stream::cpu(threads);
    let specs = specs_in(dtype);
    let mut pair = Pair::new(&stream, &specs, optimizer, 4);
    for number in 1..=2 {
        let bags = bags(number, 3000);
        let d_vectors = uniform(number, 3000 * pair.set.width());
        pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 0.1, number });
    }
    pair.weight_bits()
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    let adagrad = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
    let rowwise = every_optimizer()[2];
    for (optimizer, dtype) in [(adagrad, DType::F32), (rowwise, DType::F32), (rowwise, DType::Bf16)]
    {
        let one = weights_after_two_steps(1, optimizer, dtype);
        for threads in [2, 3, 5] {
            assert!(one == weights_after_two_steps(threads, optimizer, dtype), "{threads} threads");
        }
        for isa in [Isa::Portable, Isa::Avx2] {
            let two = || weights_after_two_steps(2, optimizer, dtype);
            assert!(one == Limit::at_most(isa).run(two), "{}", isa.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Few rows, long bags: the same row many times in one bag and in many samples.
    #[test]
    fn heavy_duplicates(
        bags in proptest::collection::vec(proptest::collection::vec(0_u64..4, 0..9), 1..70),
        sum_blocks in 1_usize..20,
        mean: bool,
        dim in 1_usize..40,
    ) {
        let stream = Stream::cpu(2);
        let pooling = if mean { Pooling::Mean } else { Pooling::Sum };
        let specs = [TableSpec { pooling, ..TableSpec::new("t", 4, dim) }];
        let mut pair = Pair::new(
            &stream,
            &specs,
            Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 },
            sum_blocks,
        );
        let d_vectors = uniform(2, bags.len() * dim);
        let bags = [bags];
        pair.lookup(&stream, &bags);
        pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 0.5, number: 1 });
        pair.lookup(&stream, &bags);
        pair.assert_equal();
    }

    /// Any batch is grouped by row, samples in order, nothing lost.
    #[test]
    fn routes_group_by_row(
        bags in proptest::collection::vec(
            proptest::collection::vec(0_u64..40_000_000, 0..4), 1..200
        ),
        modulus in prop_oneof![
            Just(1_u64), Just(3), Just(2048), Just(2049), Just(648_000), Just(40_000_000)
        ],
    ) {
        let stream = Stream::cpu(1);
        let bags: Vec<Vec<u64>> =
            bags.iter().map(|bag| bag.iter().map(|id| id % modulus).collect()).collect();
        let spec =
            TableSpec { init: headlong_embedding::Init::Zeros, ..TableSpec::new("t", modulus, 1) };
        let mut pair = Pair::new(&stream, &[spec], Optimizer::Sgd, 1);
        let ids = [Jagged::new(&bags)];
        pair.set.route(&stream, &views(&ids), &mut pair.route).unwrap();
        let mut expected = std::collections::BTreeMap::<u64, Vec<u32>>::new();
        for (sample, bag) in bags.iter().enumerate() {
            bag.iter().for_each(|&row| expected.entry(row).or_default().push(sample as u32));
        }
        let route = pair.route.table(0);
        prop_assert_eq!(route.rows().to_vec(), expected.keys().copied().collect::<Vec<_>>());
        for (index, samples) in expected.values().enumerate() {
            prop_assert_eq!(route.segment(index), &samples[..]);
        }
    }
}

/// More tables than are opened at once.
#[test]
fn seventy_tables() {
    let stream = Stream::cpu(2);
    let specs: Vec<_> =
        (0..70).map(|t| TableSpec::new(&format!("t{t}"), 2 + t, 1 + t as usize % 18)).collect();
    let bags: Vec<_> =
        specs.iter().map(|spec| random_bags(1, 40, spec.rows, spec.rows % 3)).collect();
    let mut pair = Pair::new(
        &stream,
        &specs,
        Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 },
        3,
    );
    let d_vectors = uniform(2, 40 * pair.set.width());
    pair.update(&stream, &bags, &d_vectors, &Step { learning_rate: 0.5, number: 1 });
    pair.lookup(&stream, &bags);
    pair.assert_equal();
}

/// With one row in all samples of eight blocks, the tree is visible: the sum of one block in order
/// would give other bits.
#[test]
fn blocks_are_added_in_the_tree() {
    let stream = Stream::cpu(2);
    let values = [1.0e8_f32, 3.0, -1.0e8, 3.0, 3.0, 1.0e8, 3.0, -5.0e7];
    let by_tree = ((1.0e8_f32 + 3.0) + (-1.0e8 + 3.0)) + ((3.0 + 1.0e8) + (3.0 - 5.0e7));
    let in_order = values.iter().fold(0.0_f32, |sum, x| sum + x);
    assert_ne!(by_tree, in_order);
    for (sum_blocks, expected) in [(8, by_tree), (1, in_order)] {
        let spec = TableSpec { init: headlong_embedding::Init::Zeros, ..TableSpec::new("t", 2, 1) };
        let mut pair = Pair::new(&stream, &[spec], Optimizer::Sgd, sum_blocks);
        pair.update(&stream, &[vec![vec![1]; 8]], &values, &Step { learning_rate: 1.0, number: 1 });
        let mut got = [0.0];
        pair.set.read_rows(0, 0, 1, &mut got).unwrap();
        assert_eq!(got, [-expected], "{sum_blocks} blocks");
    }
}

#[test]
fn a_frozen_set_stays_and_an_empty_batch_is_fine() {
    let stream = Stream::cpu(2);
    let specs = [TableSpec::new("t", 10, 4)];
    let options = SetOptions {
        optimizer: Optimizer::Sgd,
        seed: 1,
        max_samples: 8,
        max_ids: &[8],
        sum_blocks: 2,
        frozen: true,
        narrow: None,
    };
    let set = EmbeddingSet::new(&stream, &specs, &options).unwrap();
    let mut route = set.new_route().unwrap();
    let step = Step { learning_rate: 1.0, number: 1 };
    for samples in [0, 1, 8] {
        let ids = [Jagged::new(&vec![vec![3]; samples])];
        let (_arena, d_vectors) = matrix(samples, 4, &vec![1.0; samples * 4]);
        set.route(&stream, &views(&ids), &mut route).unwrap();
        set.update(&stream, &route, &d_vectors, &step).unwrap();
        set.lookup(&stream, &views(&ids), &d_vectors).unwrap();
    }
    let mut got = [0.0; 4];
    set.read_rows(0, 0, 3, &mut got).unwrap();
    assert_eq!(got[..], OracleTable::new(&specs[0], Optimizer::Sgd, 1, 0).row(3).weights);
    let thawed =
        EmbeddingSet::new(&stream, &specs, &SetOptions { frozen: false, ..options }).unwrap();
    let none = [Jagged::new(&[])];
    let (_arena, nothing) = matrix(0, 4, &[]);
    thawed.route(&stream, &views(&none), &mut route).unwrap();
    thawed.update(&stream, &route, &nothing, &step).unwrap();
}
