//! The best plans: batch sizes, placements and splits, under what the user allows.

use crate::description::ClusterDescription;
use crate::forecast::Forecast;
use crate::placement::{Placing, Strategy};
use crate::practice::Practice;
use crate::workload::{TableLoad, Workload};
use headlong_embedding::hybrid::split::HybridMode;
use serde::Serialize;

/// Rows become frequent from so many lookups a step on: powers of two, and the one that the first
/// round has found refined.
const FEWEST_LOOKUPS: f64 = 0.25;
const MOST_LOOKUPS: f64 = 65_536.0;

/// A plan that was considered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    pub batch_size: usize,
    /// What it comes to.
    pub forecast: Forecast,
}

/// Every plan that was considered for one batch size, best first; what does not fit comes last.
#[derive(Debug, Clone, PartialEq)]
pub struct Searched {
    /// One of each strategy.
    pub candidates: Vec<Candidate>,
}

impl Searched {
    /// The fastest that fits.
    pub fn best(&self) -> Option<&Candidate> {
        self.candidates.first().filter(|candidate| candidate.forecast.fits)
    }
}

/// Compares all strategies for `workload` as it is.
pub fn search(workload: &Workload, cluster: &ClusterDescription, practice: &Practice) -> Searched {
    let placing = Placing { workload, cluster, practice };
    let alone = cluster.num_devices() == 1;
    let mut strategies = vec![Strategy::RowWise];
    if !alone {
        strategies.push(Strategy::TableWise);
        strategies.push(Strategy::DataParallel);
        let most = cluster.devices_per_node.min(workload.dim / 16).max(2);
        strategies.push(Strategy::ColumnWise { parts: most });
    }
    let mut forecasts: Vec<Forecast> =
        strategies.into_iter().map(|strategy| placing.forecast(strategy)).collect();
    if let (HybridMode::Rows(rows), false) = (practice.hybrid, alone) {
        let at_least = placing.fewest_lookups_of(rows);
        forecasts = vec![placing.forecast(Strategy::Hybrid { at_least })];
    }
    if practice.hybrid == HybridMode::Auto && !alone {
        forecasts.extend(best_hybrid(&placing));
    }
    forecasts.sort_by(|one, other| {
        other.fits.cmp(&one.fits).then(one.step_us.total_cmp(&other.step_us))
    });
    let batch_size = workload.batch_size;
    Searched {
        candidates: forecasts
            .into_iter()
            .map(|forecast| Candidate { batch_size, forecast })
            .collect(),
    }
}

/// The fastest hybrid split that fits; where none fits, the one that needs least.
pub(super) fn best_hybrid(placing: &Placing<'_>) -> Option<Forecast> {
    let mut best: Option<Forecast> = None;
    let mut consider = |at_least: f64| {
        let found = placing.forecast(Strategy::Hybrid { at_least });
        let better = best.as_ref().is_none_or(|best| match (found.fits, best.fits) {
            (true, true) => found.step_us < best.step_us,
            (false, false) => found.needed_bytes < best.needed_bytes,
            (fits, _) => fits,
        });
        if better {
            best = Some(found);
        }
    };
    let mut at_least = FEWEST_LOOKUPS;
    while at_least <= MOST_LOOKUPS {
        consider(at_least);
        at_least *= 4.0;
    }
    let rough = best.as_ref().and_then(|best| match best.layout.strategy {
        Strategy::Hybrid { at_least } => Some(at_least),
        _ => None,
    })?;
    let mut consider = |at_least: f64| {
        let found = placing.forecast(Strategy::Hybrid { at_least });
        if best
            .as_ref()
            .is_some_and(|best| found.fits && (!best.fits || found.step_us < best.step_us))
        {
            best = Some(found);
        }
    };
    for factor in [0.35, 0.5, 0.7, 1.4, 2.0, 2.8] {
        consider(rough * factor);
    }
    best
}

impl Placing<'_> {
    /// How often the last of the `rows` most frequent rows of all tables is looked up in a step.
    fn fewest_lookups_of(&self, rows: u64) -> f64 {
        let classes = |table: &TableLoad| {
            let step = table.hotness * self.workload.samples;
            let classes = table.frequencies.0.iter();
            classes.map(|class| (class.share * step, class.rows)).collect::<Vec<_>>()
        };
        let mut all: Vec<(f64, f64)> = self.workload.tables.iter().flat_map(classes).collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut left = rows as f64;
        let last = all.iter().find(|(_, rows)| {
            left -= rows;
            left <= 0.0
        });
        // A billionth less: what is compared has been divided and multiplied again.
        last.map_or(0.0, |&(lookups, _)| lookups * (1.0 - 1e-9))
    }
}
