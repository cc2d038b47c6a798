//! Real rows: every vector of every batch is counted.

use super::{Auto, Line, SGD, SHAPES, fewest_bytes, predicted};
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::cost::Costs;
use headlong_embedding::hybrid::split::{Split, SplitOptions, split};
use headlong_embedding::hybrid::statistics::{Collector, Statistics, StatisticsOptions};
use headlong_embedding::hybrid::traffic::{
    AllReduce, Cluster, Exchange, Hops, ID_BYTES, IdSource, Merge, all_reduce, count_bytes,
    count_vectors, optimum,
};
use headlong_embedding::hybrid::{Partition, Place};
use headlong_reader::{Batch, CriteoTextReader, IdMapper, IdPolicy, Position, Reader, TextOptions};
use std::collections::HashMap;
use std::path::Path;

/// Where the sample of Criteo's Kaggle rows lies, next to the project.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo/train.txt.gz");

/// Distinct values of C1 to C26 in the full Kaggle data, at most a million: rows of the tables that
/// ids are hashed into.
pub(super) const TABLE_ROWS: [u64; 26] = [
    1460, 583, 1_000_000, 1_000_000, 305, 24, 12_517, 633, 3, 93_145, 5683, 1_000_000, 3194, 27,
    14_992, 1_000_000, 10, 5652, 2173, 4, 1_000_000, 18, 15, 286_181, 105, 142_572,
];
pub(super) const DIM: usize = 16;
pub(super) const BATCH_SIZE: usize = 2048;
/// Batches that the split is made from; the others are counted.
const STATISTICS_BATCHES: usize = 24;

pub(super) struct Real {
    pub(super) specs: Vec<TableSpec>,
    pub(super) statistics: Statistics,
    /// The batches after them.
    pub(super) held_out: Vec<Batch>,
}

impl Real {
    /// Reads them; or says why there are none.
    pub(super) fn read(smoke: bool) -> anyhow::Result<Result<Self, String>> {
        if !Path::new(FILE).exists() {
            return Ok(Err(format!("{FILE} is absent")));
        }
        let mut batches = read()?;
        let specs: Vec<_> = (1..)
            .zip(TABLE_ROWS)
            .map(|(column, rows)| TableSpec::new(&format!("C{column}"), rows, DIM))
            .collect();
        let mut held_out = batches.split_off(STATISTICS_BATCHES.min(batches.len() / 2));
        held_out.truncate(if smoke { 2 } else { usize::MAX });
        Ok(Ok(Self { statistics: collect(&specs, &batches), specs, held_out }))
    }
}

pub(super) fn lines(real: &Real, smoke: bool) -> anyhow::Result<Vec<Line>> {
    let shapes = if smoke { &SHAPES[..1] } else { &SHAPES[..] };
    let line = |&(nodes, each): &(usize, usize)| {
        line(&real.specs, &real.statistics, &real.held_out, Cluster::even(nodes, each))
    };
    shapes.iter().map(line).collect()
}

fn read() -> anyhow::Result<Vec<Batch>> {
    let ids = IdMapper::new(IdPolicy::Hash { function: Default::default() }, &TABLE_ROWS)?;
    let options = TextOptions { batch_size: BATCH_SIZE, epochs: Some(1), ..TextOptions::default() };
    let mut reader = CriteoTextReader::open(&[FILE.into()], ids, &options, &Position::default())?;
    let (mut batch, mut batches) = (Batch::default(), Vec::new());
    while reader.next(&mut batch)? {
        if batch.num_samples == BATCH_SIZE {
            batches.push(batch.clone());
        }
    }
    Ok(batches)
}

fn collect(specs: &[TableSpec], batches: &[Batch]) -> Statistics {
    let mut collector = Collector::new(specs, &StatisticsOptions::default());
    for batch in batches {
        batch
            .sparse
            .iter()
            .enumerate()
            .for_each(|(table, bags)| collector.add(table, &bags.values));
        collector.end_batch(BATCH_SIZE);
    }
    collector.finish()
}

fn line(
    specs: &[TableSpec],
    statistics: &Statistics,
    held_out: &[Batch],
    cluster: Cluster,
) -> anyhow::Result<Line> {
    let mut options = SplitOptions::new(specs, cluster.clone(), BATCH_SIZE as u64, &SGD);
    // The dense network of the Criteo Kaggle model (13-512-256-64-16, 512-256-1): 0.48 M
    // parameters.
    options.dense_bytes = 1_900_000;
    let (costs, fewest) = fewest_bytes(&options);
    let hybrid = split(statistics, &costs, &fewest)?;
    let auto = split(statistics, &Costs::tcp(), &options)?;
    let (nodes, row_bytes) = (cluster.num_nodes() as f64, DIM as f64 * 4.0);
    let nothing = Partition::row_wise(specs, cluster.num_ranks());
    let count = |partition: &Partition, merge| {
        count(&cluster, partition, merge, Exchange::Flat, held_out).inter
    };
    let both_ways = |vectors: f64| 2.0 * vectors * row_bytes / nodes;
    let frequent = |split: &Split, way| {
        let buffer = split.frequent_rows() as f64 * (row_bytes + 4.0);
        all_reduce(&cluster, way, buffer).inter / nodes
    };
    let owners =
        |split: &Split| Partition::new(specs, cluster.num_ranks(), split.placements.clone());
    let way = Costs::tcp().all_reduce_way(&cluster, f64::INFINITY);
    let asked = count(&owners(&auto)?, auto.variant.merge);
    let ids = if auto.variant.ids == IdSource::Known { 0.0 } else { asked * ID_BYTES };
    let counts = count_bytes(&cluster, auto.variant, specs.len()).inter;
    Ok(Line {
        data: "kaggle",
        batch_size: BATCH_SIZE as u64,
        pure: both_ways(count(&nothing, Merge::Off)),
        rank: both_ways(count(&nothing, Merge::Rank)),
        node: both_ways(count(&nothing, Merge::Node)),
        hybrid: both_ways(count(&owners(&hybrid)?, Merge::Off))
            + frequent(&hybrid, AllReduce::Hierarchical),
        hybrid_rows: hybrid.frequent_rows(),
        optimum: optimum(&cluster, rates(held_out).into_iter()) * row_bytes,
        auto: Auto {
            variant: auto.variant,
            frequent_rows: auto.frequent_rows(),
            bytes: both_ways(asked) + (ids + counts) / nodes + frequent(&auto, way),
            predicted: predicted(&auto, &cluster),
        },
        cluster,
    })
}

fn count(
    cluster: &Cluster,
    partition: &Partition,
    merge: Merge,
    exchange: Exchange,
    batches: &[Batch],
) -> Hops {
    let ranks = cluster.num_ranks();
    let all = batches.iter().flat_map(|batch| batch.sparse.iter().enumerate());
    let sum: Hops = all
        .map(|(table, bags)| {
            let rows = &bags.values;
            let slice =
                |rank: usize| &rows[rank * rows.len() / ranks..(rank + 1) * rows.len() / ranks];
            let slices: Vec<_> = (0..ranks).map(slice).collect();
            let owner_of = |row: u64| match partition.classify(table, row) {
                Place::Frequent(_) => None,
                Place::Infrequent { owner, .. } => Some(owner.0),
            };
            count_vectors(cluster, merge, exchange, &slices, &owner_of)
        })
        .sum();
    sum * (1.0 / batches.len() as f64)
}

/// (λ, 1) of every row in these batches, as they were counted there: with hindsight, so the optimum
/// is a little too low.
fn rates(batches: &[Batch]) -> Vec<(f64, f64)> {
    let mut counts = HashMap::<(usize, u64), u64>::new();
    for (table, bags) in batches.iter().flat_map(|batch| batch.sparse.iter().enumerate()) {
        bags.values.iter().for_each(|&row| *counts.entry((table, row)).or_default() += 1);
    }
    counts.into_values().map(|count| (count as f64 / batches.len() as f64, 1.0)).collect()
}
