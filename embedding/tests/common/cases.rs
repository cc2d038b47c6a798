//! Batches, partitions and whole runs, on one rank and on many.

use super::custom::registry;
use super::ranks::{Bags, Batch, Ranks, Shape, Traffic, Variant};
use super::{bits, matrix, random_bags};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::rng::CounterRng;
use headlong_device::testing::uniform;
use headlong_device::{DType, Stream};
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_embedding::{EmbeddingSet, Keys, Pooling, SetOptions, TableSpec};

pub fn specs() -> Vec<TableSpec> {
    let mean =
        |name, rows, dim| TableSpec { pooling: Pooling::Mean, ..TableSpec::new(name, rows, dim) };
    vec![
        TableSpec::new("a", 3, 16),
        TableSpec::new("b", 500, 20),
        mean("c", 40, 33),
        TableSpec::new("d", 300, 5),
        TableSpec::new("e", 1, 1),
    ]
}

/// Some of the tables in bf16, chosen by the bits of `which`.
pub fn narrow(mut specs: Vec<TableSpec>, which: u64) -> Vec<TableSpec> {
    let chosen = specs.iter_mut().enumerate().filter(|(table, _)| which >> table & 1 == 1);
    chosen.for_each(|(_, spec)| spec.dtype = DType::Bf16);
    specs
}

/// One-hot, bags with duplicates and empty ones, means, weights.
pub fn batch(specs: &[TableSpec], seed: u64, samples: usize) -> Vec<Bags> {
    let longest = [0, 0, 4, 3, 2];
    let tables = specs.iter().zip(longest).map(|(spec, longest)| {
        let mut bags = random_bags(seed, samples, spec.rows, longest);
        if spec.keys == Keys::RawIds {
            // Any 64 bits; the largest number among them.
            bags.iter_mut()
                .flatten()
                .for_each(|id| *id = (!*id).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::MAX);
            bags.iter_mut().flatten().take(1).for_each(|id| *id = u64::MAX);
        }
        let mut numbers = uniform(seed + 7, bags.concat().len()).into_iter();
        let weights =
            bags.iter().map(|bag| bag.iter().map(|_| numbers.next().unwrap()).collect()).collect();
        Bags { bags, weights: (spec.name == "d").then_some(weights) }
    });
    tables.collect()
}

/// Any mix of placements, drawn from `seed`.
pub fn partition(specs: &[TableSpec], owners: usize, seed: u64) -> Partition {
    let rng = CounterRng::new(seed, 77);
    let placements = specs.iter().enumerate().map(|(table, spec)| {
        let [kind, owner, share, _] = rng.bits(table as u64 * 1_000_000);
        match kind % 5 {
            0 => TablePlacement::DataParallel,
            1 => TablePlacement::TableWise(Owner(owner as usize % owners)),
            2 => TablePlacement::by_formula(),
            _ => {
                let (mut frequent, mut placed) = (Vec::new(), Vec::new());
                for row in 0..spec.rows {
                    let [what, owner, ..] = rng.bits(table as u64 * 1_000_000 + 1 + row);
                    match what % 8 {
                        what if what < share % 6 => frequent.push(row),
                        6 => placed.push((row, Owner(owner as usize % owners))),
                        _ => {}
                    }
                }
                TablePlacement::RowWise { frequent, placed }
            }
        }
    });
    Partition::new(specs, owners, placements.collect()).unwrap()
}

pub const STEPS: u64 = 3;

/// Vectors of every step, then all tensors, as bits.
pub type Outcome = (Vec<Vec<u32>>, Vec<Vec<u32>>);

pub fn sizes() -> [usize; 3] {
    [150, 61, 7]
}

pub fn single_rank(specs: &[TableSpec], optimizer: Optimizer, num_blocks: usize) -> Outcome {
    let stream = Stream::cpu(2);
    let max_ids = vec![600; specs.len()];
    let options = SetOptions {
        optimizer,
        seed: 11,
        max_samples: 150,
        max_ids: &max_ids,
        sum_blocks: num_blocks,
        frozen: false,
        narrow: None,
    };
    let set = EmbeddingSet::with_registry(&registry(), &stream, specs, &options).unwrap();
    let mut route = set.new_route().unwrap();
    let mut all_vectors = Vec::new();
    for number in 1..=STEPS {
        let samples = sizes()[number as usize - 1];
        let ids = Batch::new(&batch(specs, number, samples));
        let (_arena, vectors) =
            matrix(samples, set.width(), &vec![f32::NAN; samples * set.width()]);
        let (_arena, d_vectors) =
            matrix(samples, set.width(), &uniform(number, samples * set.width()));
        ids.with(|ids| {
            set.route(&stream, ids, &mut route).unwrap();
            set.lookup(&stream, ids, &vectors).unwrap();
        });
        set.update(&stream, &route, &d_vectors, &Step { learning_rate: 0.1, number }).unwrap();
        all_vectors.push(bits(vectors.read::<f32>().data()));
    }
    let mut tensors = Vec::new();
    // Tables keyed by raw ids show what they hold in their vectors single.
    for table in (0..specs.len()).filter(|&table| specs[table].keys == Keys::RowIndices) {
        for (index, tensor) in set.tensors(table).iter().enumerate() {
            let mut rows = vec![0.0; tensor.rows as usize * tensor.cols];
            set.read_rows(table, index, 0, &mut rows).unwrap();
            tensors.push(bits(&rows));
        }
    }
    (all_vectors, tensors)
}

pub fn ranks(
    specs: &[TableSpec],
    optimizer: Optimizer,
    num_blocks: usize,
    partition: Partition,
    variant: Variant,
) -> Outcome {
    let max_samples = 150;
    let shape =
        Shape { specs, optimizer, pool_at: &[], num_blocks, max_samples, max_ids: 600, threads: 2 };
    let mut ranks = Ranks::new(&registry(), &shape, partition, variant);
    let mut all_vectors = Vec::new();
    let mut traffic = Traffic::default();
    for number in 1..=STEPS {
        let samples = sizes()[number as usize - 1];
        all_vectors.push(bits(&ranks.forward(&batch(specs, number, samples), &mut traffic)));
        let d_vectors = uniform(number, samples * ranks.sets[0].width());
        ranks.backward(samples, &d_vectors, &Step { learning_rate: 0.1, number }, &mut traffic);
    }
    (all_vectors, ranks.all_bits())
}
