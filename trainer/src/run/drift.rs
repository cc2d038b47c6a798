//! Drift: the rows that are frequent now may not be those that were frequent when the rows were
//! placed.
//!
//! A session that is asked to look (`hybrid.repartition_drift`) counts the rows of every batch it
//! trains on. At an evaluation it compares the share of lookups that the frequent rows served with
//! the share expected when they were chosen, and where that has fallen by more than the threshold,
//! it makes the split again from what it counted.

use crate::config::{Config, DeduplicateChoice};
use crate::error::Result;
use crate::iteration::model::table_specs;
use crate::iteration::ranks::RankGroup;
use crate::plan::placement::{Placement, count};
use headlong_embedding::hybrid::statistics::{Collector, Statistics, StatisticsOptions};
use headlong_embedding::hybrid::{Partition, Place};
use headlong_reader::Batch;
use serde::Serialize;

/// What a look at the frequent rows has found, where they were chosen again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Drift {
    /// Share of lookups that the frequent rows were expected to serve.
    pub expected: f64,
    /// Share that they served since the last look.
    pub measured: f64,
    pub frequent_rows: u64,
    /// Share of the same lookups that these would have served.
    pub covered_share: f64,
}

#[derive(Debug)]
pub struct DriftWatch {
    table_rows: Vec<u64>,
    collector: Collector,
    expected: f64,
}

impl DriftWatch {
    /// A watch over frequent rows that are expected to serve the share `expected` of all lookups.
    pub fn new(config: &Config, table_rows: &[u64], expected: f64) -> Self {
        Self { table_rows: table_rows.to_vec(), collector: collector(config, table_rows), expected }
    }

    /// Counts the rows of a batch of all ranks.
    pub fn count(&mut self, batch: &Batch) {
        count(&mut self.collector, batch);
    }

    /// Looks at what was counted since the last look; places the rows of `group` again where that
    /// pays. Returns what was found and the statistics that the rows are placed by now.
    pub fn look(
        &mut self,
        config: &Config,
        group: &mut RankGroup,
    ) -> Result<Option<(Drift, Statistics)>> {
        let counted = std::mem::replace(&mut self.collector, collector(config, &self.table_rows));
        if counted.num_samples() == 0 {
            return Ok(None);
        }
        let statistics = counted.finish();
        let measured = covered_share(&statistics, &group.partition());
        if self.expected - measured <= config.hybrid.repartition_drift {
            return Ok(None);
        }
        let decided = decided(config, group);
        let topology = group.first().model().communicator.topology().clone();
        let placement = Placement::new(
            &decided,
            &self.table_rows,
            &topology,
            Some(&statistics),
            &group.registry(),
        )?;
        group.repartition(&placement.partition)?;
        let frequent_rows = placement.split.as_ref().map_or(0, |split| split.frequent_rows());
        let covered_share = covered_share(&statistics, &placement.partition);
        let drift = Drift { expected: self.expected, measured, frequent_rows, covered_share };
        self.expected = covered_share;
        Ok(Some((drift, statistics)))
    }
}

fn collector(config: &Config, table_rows: &[u64]) -> Collector {
    Collector::new(&table_specs(config, table_rows), &StatisticsOptions::default())
}

/// `config`, with the way of exchanging that the group was built for: rows move, buffers do not
/// change their kind.
fn decided(config: &Config, group: &RankGroup) -> Config {
    let mut config = config.clone();
    let comm = group.first().model().config.comm.clone();
    // A group that was built without a split has decided nothing, and merges on each rank.
    let deduplicate = match comm.deduplicate {
        DeduplicateChoice::Auto => DeduplicateChoice::Rank,
        decided => decided,
    };
    config.comm = crate::config::CommConfig { deduplicate, ..comm };
    config
}

/// Share of the counted lookups whose rows are frequent. Lookups that a sketch could not count
/// singly count as infrequent.
pub fn covered_share(statistics: &Statistics, partition: &Partition) -> f64 {
    let (mut covered, mut all) = (0, 0);
    for (table, counted) in statistics.tables.iter().enumerate() {
        all += counted.lookups;
        let frequent = counted.counted.iter().filter(|row| {
            counted.rows.is_some()
                && matches!(partition.classify(table, row.row), Place::Frequent(_))
        });
        covered += frequent.map(|row| row.count).sum::<u64>();
    }
    if all == 0 { 0.0 } else { covered.min(all) as f64 / all as f64 }
}
