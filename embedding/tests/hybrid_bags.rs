//! Bags that are pooled at the owners of their rows: against sums written out part by part, on any
//! number of ranks; and the weights are those of bags that are pooled on the rank.

use crate::common::cases::{STEPS, batch, narrow, single_rank, sizes, specs};
use crate::common::ranks::{Bags, Batch, Ranks, Shape, Traffic, Variant};
use crate::common::{bits, matrix};
use headlong_device::Stream;
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_embedding::hybrid::{
    Deduplicate, HybridOptions, HybridSet, Owner, Partition, PoolAt, SlotOptions, TablePlacement,
};
use headlong_embedding::oracle::OracleTable;
use headlong_embedding::testing::every_optimizer;
use headlong_embedding::{Pooling, Registry, SetOptions, TableSpec};
use proptest::prelude::*;
use std::sync::Arc;

/// The tables of the other tests: one id a sample, bags with empty ones, means, weighted bags.
const POOL_AT: [PoolAt; 5] =
    [PoolAt::Rank, PoolAt::Owner, PoolAt::Owner, PoolAt::Owner, PoolAt::Owner];

/// Where rows lie: by formula, on one rank, and of the first table anywhere.
fn partition(specs: &[TableSpec], owners: usize, whole: u64) -> Partition {
    let placement = |table: usize| match table {
        0 => TablePlacement::RowWise { frequent: vec![1], placed: vec![(0, Owner(owners - 1))] },
        _ if whole >> table & 1 == 1 => TablePlacement::TableWise(Owner(table % owners)),
        _ => TablePlacement::by_formula(),
    };
    Partition::new(specs, owners, (0..specs.len()).map(placement).collect()).unwrap()
}

/// A vector for each row of a bag: the row times its weight.
struct Bag {
    rows: Vec<u64>,
    vectors: Vec<Vec<f32>>,
}

fn add(one: Option<Vec<f32>>, other: Option<Vec<f32>>) -> Option<Vec<f32>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.iter().zip(&other).map(|(a, b)| a + b).collect()),
        (one, other) => one.or(other),
    }
}

impl Bag {
    /// The sum over rows whose part is `first` modulo `step`: those that are `first` modulo twice
    /// as many, and the others. `None` where there is no such row.
    fn sum(&self, table: usize, first: usize, step: usize, num_parts: usize) -> Option<Vec<f32>> {
        if step < num_parts {
            let one = self.sum(table, first, 2 * step, num_parts);
            return add(one, self.sum(table, first + step, 2 * step, num_parts));
        }
        let part = |row: u64| (row as usize + table) % num_parts;
        let own = self.rows.iter().zip(&self.vectors).filter(|(row, _)| part(**row) == first);
        own.fold(None, |sum, (_, vector)| add(sum, Some(vector.clone())))
    }

    /// The sum over all parts: neighbours first, as far as `num_parts` is odd.
    fn whole(&self, table: usize, num_parts: usize) -> Option<Vec<f32>> {
        let odd = num_parts >> num_parts.trailing_zeros();
        let mut sums: Vec<_> = (0..odd).map(|one| self.sum(table, one, odd, num_parts)).collect();
        while sums.len() > 1 {
            let pair =
                |pair: &[Option<Vec<f32>>]| add(pair[0].clone(), pair.get(1).cloned().flatten());
            sums = sums.chunks(2).map(pair).collect();
        }
        sums.pop().flatten()
    }
}

/// The bag of one sample as `tables` hold its rows.
fn bag_of(tables: &mut OracleTable, bags: &Bags, sample: usize) -> Bag {
    let rows = bags.bags[sample].clone();
    let weight = |entry: usize| bags.weights.as_ref().map_or(1.0, |all| all[sample][entry]);
    let vector = |(entry, &row): (usize, &u64)| {
        tables.row(row).weights.iter().map(|value| value * weight(entry)).collect()
    };
    let vectors = rows.iter().enumerate().map(vector).collect();
    Bag { rows, vectors }
}

/// The first batch, which meets initial values, against sums that are written out.
fn check_first_batch(specs: &[TableSpec], num_ranks: usize, num_blocks: usize, whole: u64) {
    let partition = partition(specs, num_ranks, whole);
    let optimizer = every_optimizer()[0];
    let shape = Shape {
        specs,
        optimizer,
        pool_at: &POOL_AT,
        num_blocks,
        max_samples: 150,
        max_ids: 600,
        threads: 2,
    };
    let mut ranks = Ranks::new(&Registry::default(), &shape, partition.clone(), Variant::default());
    let tables = batch(specs, 5, 97);
    let mut traffic = Traffic::default();
    let vectors = ranks.forward(&tables, &mut traffic);
    let width = ranks.sets[0].width();
    let bounds = ranks.bounds(97);
    let mut sent: Vec<Vec<Vec<f32>>> = vec![vec![Vec::new(); num_ranks]; num_ranks];
    let mut column = 0;
    for (table, (spec, bags)) in specs.iter().zip(&tables).enumerate() {
        let mut rows = OracleTable::new(spec, optimizer, 11, table as u64);
        for rank in 0..num_ranks {
            for sample in bounds[rank]..bounds[rank + 1] {
                let bag = bag_of(&mut rows, bags, sample);
                let got = &vectors[sample * width + column..][..spec.dim];
                if POOL_AT[table] == PoolAt::Owner {
                    let factor = match spec.pooling {
                        Pooling::Mean => 1.0 / bag.rows.len().max(1) as f32,
                        Pooling::Sum => 1.0,
                    };
                    let sum = bag.whole(table, num_blocks).unwrap_or_else(|| vec![0.0; spec.dim]);
                    let expected: Vec<f32> = sum.iter().map(|sum| sum * factor).collect();
                    assert_eq!(bits(got), bits(&expected), "table {table}, sample {sample}");
                }
                for owner in (0..num_ranks).filter(|_| POOL_AT[table] == PoolAt::Owner) {
                    let part = match whole >> table & 1 {
                        1 if owner == table % num_ranks => bag.whole(table, num_blocks),
                        1 => None,
                        _ => bag.sum(table, owner, num_ranks, num_blocks),
                    };
                    sent[owner][rank].extend(part.into_iter().flatten());
                }
            }
        }
        column += spec.dim;
    }
    // What an owner sends of the first table, whose rows are unique, comes before.
    for (owner, sent) in sent.iter().enumerate() {
        let counts = ranks.routes[owner].vector_exchange().0.to_vec();
        let mut rest = &traffic.send_rows[owner][..];
        for (rank, expected) in sent.iter().enumerate() {
            let (own, others) = rest.split_at(counts[rank]);
            let of_bags = &own[own.len() - expected.len()..];
            assert_eq!(of_bags.len(), expected.len());
            // Table after table in both.
            assert_eq!(bits(of_bags), bits(expected), "owner {owner} to rank {rank}");
            rest = others;
        }
    }
}

/// Vectors of every step and all tensors, on `num_ranks` ranks.
fn trained(
    specs: &[TableSpec],
    optimizer: Optimizer,
    (num_ranks, num_blocks): (usize, usize),
    whole: u64,
    deduplicate: Deduplicate,
) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    if num_ranks == 1 {
        return trained_on_one(specs, optimizer, num_blocks);
    }
    let shape = Shape {
        specs,
        optimizer,
        pool_at: &POOL_AT,
        num_blocks,
        max_samples: 150,
        max_ids: 600,
        threads: 2,
    };
    let variant = Variant { deduplicate, ..Variant::default() };
    let partition = partition(specs, num_ranks, whole);
    let mut ranks = Ranks::new(&Registry::default(), &shape, partition, variant);
    let (mut vectors, mut traffic) = (Vec::new(), Traffic::default());
    for number in 1..=STEPS {
        let samples = sizes()[number as usize - 1];
        vectors.push(bits(&ranks.forward(&batch(specs, number, samples), &mut traffic)));
        let d_vectors = uniform(number, samples * ranks.sets[0].width());
        ranks.backward(samples, &d_vectors, &Step { learning_rate: 0.1, number }, &mut traffic);
    }
    (vectors, ranks.all_bits())
}

fn options<'a>(
    specs: &[TableSpec],
    optimizer: Optimizer,
    max_ids: &'a [usize],
    (partition, sum_blocks): (Partition, usize),
) -> HybridOptions<'a> {
    assert_eq!(max_ids.len(), specs.len());
    HybridOptions {
        set: SetOptions {
            optimizer,
            seed: 11,
            max_samples: 150,
            max_ids,
            sum_blocks,
            frozen: false,
            narrow: None,
        },
        partition: Arc::new(partition),
        owner: Owner(0),
        deduplicate: Deduplicate::Rank,
        pool_at: &POOL_AT,
        slots: SlotOptions::default(),
    }
}

fn trained_on_one(
    specs: &[TableSpec],
    optimizer: Optimizer,
    num_blocks: usize,
) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let stream = Stream::cpu(2);
    let options = options(specs, optimizer, &[600; 5], (Partition::row_wise(specs, 1), num_blocks));
    let set = HybridSet::new(&Registry::default(), &stream, specs, &options).unwrap();
    let mut route = set.new_route().unwrap();
    let mut all_vectors = Vec::new();
    for number in 1..=STEPS {
        let samples = sizes()[number as usize - 1];
        let ids = Batch::new(&batch(specs, number, samples));
        let zeros = vec![f32::NAN; samples * set.width()];
        let (_arena, vectors) = matrix(samples, set.width(), &zeros);
        let (_arena, d_vectors) =
            matrix(samples, set.width(), &uniform(number, samples * set.width()));
        ids.with(|ids| {
            set.route(&stream, ids, 1, &mut route).unwrap();
            set.pool(&stream, ids, &route, &vectors, &vectors).unwrap();
        });
        all_vectors.push(bits(vectors.read::<f32>().data()));
        let step = Step { learning_rate: 0.1, number };
        set.update_owned(&stream, &route, &d_vectors, &vectors, &step).unwrap();
    }
    let tensors = (0..specs.len()).flat_map(|table| {
        let set = &set;
        set.tensors(table).iter().enumerate().map(move |(index, tensor)| {
            let mut rows = vec![0.0; tensor.rows as usize * tensor.cols];
            set.export_rows(table, index, 0, &mut rows).unwrap();
            bits(&rows)
        })
    });
    (all_vectors, tensors.collect())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn sums_have_the_shape_of_their_parts(
        seed: u64, num_ranks in 2_usize..9, log_blocks in 0_u32..4, whole: u64,
    ) {
        check_first_batch(&narrow(specs(), seed), num_ranks, num_ranks << log_blocks, whole);
    }

    /// The same blocks on fewer ranks: the same bits. And rows move as if ranks pooled.
    #[test]
    fn any_number_of_ranks_gives_the_same_bits(
        seed: u64, odd in 0_usize..3, log_ranks in 0_u32..4, log_blocks in 0_u32..3,
        optimizer in 0_usize..5, whole: u64,
    ) {
        let specs = narrow(specs(), seed);
        let optimizer = every_optimizer()[optimizer];
        let num_ranks = ([1, 3, 5][odd] << log_ranks).clamp(1, 16);
        let num_blocks = num_ranks << log_blocks;
        let (vectors, tensors) =
            trained(&specs, optimizer, (num_ranks, num_blocks), whole, Deduplicate::Rank);
        let fewer = num_ranks >> num_ranks.trailing_zeros();
        for ranks in [1, fewer, fewer * 2].into_iter().filter(|ranks| num_ranks % ranks == 0) {
            let (others, other_tensors) =
                trained(&specs, optimizer, (ranks, num_blocks), !whole, Deduplicate::Rank);
            prop_assert!(vectors == others, "vectors of {} and {} ranks", num_ranks, ranks);
            prop_assert!(tensors == other_tensors, "rows of {} and {} ranks", num_ranks, ranks);
        }
        let (_, on_the_rank) = single_rank(&specs, optimizer, num_blocks);
        prop_assert!(tensors == on_the_rank, "rows of bags that are pooled on the rank");
    }
}

/// One table of two ids a bag, on two ranks.
fn two_ranks(change: impl Fn(&mut TableSpec), partition: Option<TablePlacement>) -> Vec<HybridSet> {
    let mut spec = TableSpec::new("t", 10, 4);
    change(&mut spec);
    let placement = partition.unwrap_or(TablePlacement::by_formula());
    let specs = [spec];
    let partition = Partition::new(&specs, 2, vec![placement]).unwrap();
    let set = |rank| {
        let mut options = options(&specs, every_optimizer()[0], &[8], (partition.clone(), 1));
        (options.owner, options.pool_at) = (Owner(rank), &[PoolAt::Owner]);
        HybridSet::new(&Registry::default(), &Stream::cpu(1), &specs, &options)
    };
    let sets: Result<Vec<_>, _> = (0..2).map(set).collect();
    sets.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn requests_are_checked_by_the_owner() {
    let sets = two_ranks(|_| (), None);
    let stream = Stream::cpu(1);
    let header = 1 << 63 | 1 << 40;
    let id = |row: u64| row << 32 | u64::from(1.0_f32.to_bits());
    for (words, row) in [
        (vec![header, id(4), header | 1, id(5)], Some(5)),
        (vec![id(3)], Some(3)),
        (vec![header, id(4), id(0)], None),
        (vec![header], None),
    ] {
        let mut route = sets[0].new_route().unwrap();
        let empty = Batch::new(&[Bags::plain(vec![vec![]; 2])]);
        empty.with(|ids| sets[0].route(&stream, ids, 2, &mut route).unwrap());
        route.recv_counts_mut()[1] = words.len() as u32;
        route.id_exchange().unwrap().receive.copy_from_slice(&words);
        let found = sets[0].receive_requests(&stream, &mut route);
        match row {
            None => found.unwrap(),
            Some(row) => {
                let error = found.unwrap_err().to_string();
                let expected = format!("table `t`: source 1 asks for local row {row}, ");
                assert!(error.starts_with(&expected), "{error}");
                assert_eq!(route.vector_exchange().0.iter().sum::<usize>(), 0, "nothing is sent");
            }
        }
    }
}

#[test]
#[should_panic(expected = "its bags cannot be pooled at the owner: every row has one owner")]
fn frequent_rows_are_refused() {
    two_ranks(|_| (), Some(TablePlacement::RowWise { frequent: vec![3], placed: vec![] }));
}

#[test]
#[should_panic(expected = "its bags cannot be pooled at the owner: the owner pools bags of tables")]
fn tables_keyed_by_raw_ids_are_refused() {
    two_ranks(
        |spec| (spec.kind, spec.keys) = ("hashed".to_owned(), headlong_embedding::Keys::RawIds),
        None,
    );
}
