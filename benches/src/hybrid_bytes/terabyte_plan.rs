//! Frequencies like those of the Terabyte logs: a split from counts of draws, judged by the rates
//! that they were drawn with.

use super::{Auto, Line, SGD, SHAPES, fewest_bytes, predicted};
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::TablePlacement;
use headlong_embedding::hybrid::cost::Costs;
use headlong_embedding::hybrid::split::{Split, SplitOptions, split};
use headlong_embedding::hybrid::statistics::{Collector, Statistics, StatisticsOptions};
use headlong_embedding::hybrid::traffic::{
    AllReduce, Cluster, Exchange, Hops, ID_BYTES, IdSource, Merge, Rate, all_reduce, count_bytes,
    optimum, vectors,
};
use headlong_planner::terabyte::{Batches, Law};

const DIM: usize = 128;
const ROW_BYTES: f64 = DIM as f64 * 4.0;
const STATISTICS_BATCHES: u64 = 20;
/// MLPerf's batch sizes: on one node, and on 8 and 14.
const SMALL_BATCH: u64 = 55_296;
const LARGE_BATCH: u64 = 71_680;
/// Parameters of MLPerf's dense network, as f32.
const DENSE_BYTES: u64 = 2_369_537 * 4;

/// Hands the lines of the table to `keep`.
pub(super) fn lines(smoke: bool, keep: &mut dyn FnMut(&Line)) {
    let near: &[_] = &[(SMALL_BATCH, &SHAPES[..3]), (LARGE_BATCH, &SHAPES[..])];
    let far: &[_] = &[(LARGE_BATCH, &SHAPES[2..4])];
    let cases = [("terabyte", Batches::Neighbours, near), ("shuffled", Batches::FromAllDays, far)];
    for (data, batches, sizes) in cases.into_iter().take(if smoke { 1 } else { 2 }) {
        let laws = Law::all(batches);
        let specs: Vec<_> = (1..)
            .zip(&laws)
            .map(|(column, law)| TableSpec::new(&format!("C{column}"), law.rows, DIM))
            .collect();
        let statistics = draw(&specs, &laws, if smoke { 1 } else { STATISTICS_BATCHES });
        for &(batch_size, shapes) in if smoke { &sizes[..1] } else { sizes } {
            for &(nodes, each) in shapes {
                let cluster = Cluster::even(nodes, each);
                keep(
                    &Plan { data, specs: &specs, laws: &laws, batch_size, cluster }
                        .line(&statistics),
                );
            }
        }
    }
}

fn draw(specs: &[TableSpec], laws: &[Law], num_batches: u64) -> Statistics {
    let mut collector = Collector::new(specs, &StatisticsOptions::default());
    let mut rows = vec![0; SMALL_BATCH as usize];
    for batch in 0..num_batches {
        for (table, law) in laws.iter().enumerate() {
            law.draw(table as u64, batch * SMALL_BATCH, &mut rows);
            collector.add(table, &rows);
        }
        collector.end_batch(rows.len());
    }
    collector.finish()
}

struct Plan<'a> {
    data: &'static str,
    specs: &'a [TableSpec],
    laws: &'a [Law],
    batch_size: u64,
    cluster: Cluster,
}

impl Plan<'_> {
    fn line(self, statistics: &Statistics) -> Line {
        let mut options =
            SplitOptions::new(self.specs, self.cluster.clone(), self.batch_size, &SGD);
        options.dense_bytes = DENSE_BYTES;
        let (costs, fewest) = fewest_bytes(&options);
        let made = |costs: &Costs, options: &SplitOptions<'_>| {
            split(statistics, costs, options)
                .expect("statistics of these tables, no limit of memory")
        };
        let hybrid = made(&costs, &fewest);
        let auto = made(&Costs::gpus(), &options);
        let nodes = self.cluster.num_nodes() as f64;
        let both_ways = |merge| 2.0 * self.all_rows(merge).inter * ROW_BYTES / nodes;
        Line {
            data: self.data,
            batch_size: self.batch_size,
            pure: both_ways(Merge::Off),
            rank: both_ways(Merge::Rank),
            node: both_ways(Merge::Node),
            hybrid: self.bytes(&hybrid, AllReduce::Hierarchical, false),
            hybrid_rows: hybrid.frequent_rows(),
            optimum: optimum(&self.cluster, self.rates()) * ROW_BYTES,
            auto: Auto {
                variant: auto.variant,
                frequent_rows: auto.frequent_rows(),
                bytes: self.bytes(
                    &auto,
                    Costs::gpus().all_reduce_way(&self.cluster, f64::INFINITY),
                    true,
                ),
                predicted: predicted(&auto, &self.cluster),
            },
            cluster: self.cluster,
        }
    }

    fn rates(&self) -> impl Iterator<Item = (f64, f64)> {
        let batch = self.batch_size as f64;
        self.laws
            .iter()
            .flat_map(|law| &law.bins)
            .map(move |bin| (bin.share * batch, bin.len as f64))
    }

    /// Vectors in one direction with nothing frequent.
    fn all_rows(&self, merge: Merge) -> Hops {
        let vectors = |(lambda, rows)| {
            vectors(&self.cluster, merge, Exchange::Flat, Rate::known(lambda)) * rows
        };
        self.rates().map(vectors).sum()
    }

    /// Bytes that leave a node with this split, by the true rates; with ids and counts where the
    /// run would send them.
    fn bytes(&self, split: &Split, way: AllReduce, with_ids: bool) -> f64 {
        let (batch, merge) = (self.batch_size as f64, split.variant.merge);
        let one = |lambda: f64| vectors(&self.cluster, merge, Exchange::Flat, Rate::known(lambda));
        let mut travelling = self.all_rows(merge);
        for (law, placement) in self.laws.iter().zip(&split.placements) {
            let frequent = match placement {
                TablePlacement::DataParallel => (0..law.rows).collect(),
                TablePlacement::RowWise { frequent, .. } => frequent.clone(),
                _ => Vec::new(),
            };
            let gone = frequent.iter().map(|&row| one(law.share(row) * batch)).sum::<Hops>();
            travelling = travelling - gone;
        }
        let buffer = split.frequent_rows() as f64 * (ROW_BYTES + 4.0);
        let mut bytes =
            2.0 * travelling.inter * ROW_BYTES + all_reduce(&self.cluster, way, buffer).inter;
        if with_ids {
            bytes += count_bytes(&self.cluster, split.variant, self.specs.len()).inter;
            bytes += if split.variant.ids == IdSource::Known {
                0.0
            } else {
                travelling.inter * ID_BYTES
            };
        }
        bytes / self.cluster.num_nodes() as f64
    }
}
