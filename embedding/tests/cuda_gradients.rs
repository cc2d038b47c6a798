//! Gradients of vectors in bf16 move rows as the same numbers in f32 do, bit for bit: on one rank
//! and on several, where owners pool bags and where they do not.

use super::common::device::{Plan, SingleRank, assert_bits};
use super::common::device_ranks::{Ranks, Ways};
use super::common::{cases, random_bags, ranks::Bags};
use headlong_device::cuda::testing::stream;
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{DType, Stream, bf16};
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::{Partition, PoolAt, SlotOptions};
use headlong_embedding::testing::every_optimizer;

/// As of `cases`, with these dims, and rows of this type.
fn specs(dims: [usize; 5], dtype: DType) -> Vec<TableSpec> {
    let of = |(spec, dim)| TableSpec { dim, dtype, ..spec };
    cases::specs().into_iter().zip(dims).map(of).collect()
}

/// One id, some in bags of up to 70, so that rows have several chunks; weights, where owners do not
/// pool.
fn batch(specs: &[TableSpec], ways: &Ways, number: u64, samples: usize) -> Vec<Bags> {
    let mut batch = cases::batch(specs, number, samples);
    batch[1] = Bags::plain(random_bags(number, samples, specs[1].rows, 70));
    if !ways.pool_at.is_empty() {
        batch.iter_mut().for_each(|bags| bags.weights = None);
    }
    batch
}

/// What two steps leave of all tables, on one rank and on four.
fn steps(
    stream: &Stream,
    specs: &[TableSpec],
    (optimizer, ways): (Optimizer, &Ways),
    gradients: DType,
) -> Vec<Vec<f32>> {
    let max_ids = [150, 150 * 70, 600, 600, 600];
    let plan = Plan { specs, optimizer, max_samples: 150, max_ids: &max_ids, frozen: false };
    let mut single = SingleRank::new(stream, &plan);
    let partition = match ways.pool_at {
        [] => cases::partition(specs, 4, 1),
        _ => Partition::row_wise(specs, 4),
    };
    let mut several = Ranks::with(ways, stream, &plan, partition);
    (single.gradients, several.gradients) = (gradients, gradients);
    for (number, samples) in [(1, 150), (2, 61)] {
        let bags = batch(specs, ways, number, samples);
        let vectors = single.forward(&bags);
        several.forward(&bags);
        assert_eq!(several.check_flags(), [""; 0]);
        let numbers: Vec<f32> =
            uniform(number, vectors.len()).into_iter().map(bf16::nearest).collect();
        let step = Step { learning_rate: 0.1, number };
        single.backward(&numbers, &step);
        several.backward(&numbers, &step);
    }
    [single.tensors(), several.tensors()].concat()
}

#[test]
fn bf16_moves_rows_as_the_same_numbers_in_f32_do() {
    let Some(stream) = stream() else { return };
    use PoolAt::{Owner, Rank};
    let pool_at = [Rank, Owner, Owner, Owner, Rank];
    for (index, optimizer) in every_optimizer().into_iter().enumerate() {
        // Of instances for one dim and for any, of rows in f32 and in bf16.
        let dims = [[128; 5], [16; 5], [16, 20, 33, 5, 1]][index % 3];
        let specs = specs(dims, [DType::F32, DType::Bf16][index / 2 % 2]);
        let slots = [DType::F32, DType::Bf16][index % 2];
        let slots = SlotOptions { dtype: slots, ..SlotOptions::default() };
        for pool_at in [&[][..], &pool_at] {
            let ways = Ways { slots, pool_at, ..Ways::default() };
            let of = |dtype| steps(&stream, &specs, (optimizer, &ways), dtype);
            let (got, expected) = (of(DType::Bf16), of(DType::F32));
            for (tensor, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_bits(got, expected, &format!("{optimizer:?}, {pool_at:?}, tensor {tensor}"));
            }
        }
    }
}
