//! What Headlong's own choices change against the ancestor's, one after the other, by simulation.

use crate::description::ClusterDescription;
use crate::placement::{Placing, Strategy};
use crate::practice::Practice;
use crate::search;
use crate::workload::Workload;
use headlong_embedding::hybrid::traffic::{Exchange, IdSource, Merge, Variant};
use serde::Serialize;

/// One choice on top of all before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chosen {
    pub what: &'static str,
    /// Microseconds of a step since then.
    pub step_us: f64,
    /// Of all time that was gained, what this choice has gained: 0.5 is half. Negative: it costs
    /// time.
    pub share: f64,
}

type Change = fn(&mut Practice);

/// From the ancestor's step to ours. The wire stays f16, so that choices are compared and not
/// element types.
const STEPS: [(&str, Change); 4] = [
    ("reads each slice once", |practice| practice.reads_whole_batch = false),
    ("the whole step is one graph", |practice| practice.captured = true),
    ("hybrid split by cost, equal infrequent ids merged", |practice| {
        (practice.hybrid, practice.whole_table_bytes) = (true, 0);
        let ids = IdSource::Exchange;
        practice.variant = Variant { merge: Merge::Rank, exchange: Exchange::Hierarchical, ids };
    }),
    ("dense optimiser divided among ranks", |practice| practice.shards_optimizer = true),
];

/// The ancestor's step, and what each of our choices makes of it. A choice that the ancestor has
/// made already is left out. Bags of many ids are pooled where the ancestor pools them: by the
/// owner.
pub fn choices(
    workload: &Workload,
    cluster: &ClusterDescription,
    ancestor: &Practice,
) -> Vec<Chosen> {
    let mut practice = ancestor.clone();
    let us = |practice: &Practice| {
        let placing = Placing { workload, cluster, practice };
        let divided = placing.forecast(Strategy::RowWise).step_us;
        let hybrid = search::best_hybrid(&placing).filter(|best| practice.hybrid && best.fits);
        hybrid.map_or(divided, |best| best.step_us.min(divided))
    };
    let first = us(&practice);
    let mut chosen = vec![Chosen { what: "the ancestor's step", step_us: first, share: 0.0 }];
    for (what, change) in STEPS {
        let before = practice.clone();
        change(&mut practice);
        if practice != before {
            chosen.push(Chosen { what, step_us: us(&practice), share: 0.0 });
        }
    }
    let gained = first - chosen[chosen.len() - 1].step_us;
    for index in 1..chosen.len() {
        let part = chosen[index - 1].step_us - chosen[index].step_us;
        chosen[index].share = if gained.abs() > 1e-9 { part / gained } else { 0.0 };
    }
    chosen
}
