//! What Headlong's own choices change against the ancestor's, one after the other, by simulation:
//! from the ancestor's step to the one that is trained today.

use crate::description::ClusterDescription;
use crate::forecast::Forecast;
use crate::placement::{Placing, Strategy};
use crate::practice::Practice;
use crate::search;
use crate::workload::Workload;
use headlong_embedding::hybrid::split::HybridMode;
use serde::Serialize;

/// One choice on top of all before it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chosen {
    pub what: &'static str,
    /// Microseconds of a step since then.
    pub step_us: f64,
    /// What this choice adds; below zero, it saves time.
    pub change_us: f64,
}

/// Takes a choice of ours, the second, into a practice.
type Change = fn(&mut Practice, &Practice);

const STEPS: [(&str, Change); 11] = [
    ("each node reads its own slice", |practice, ours| {
        practice.reads_whole_batch = ours.reads_whole_batch;
    }),
    ("the whole step is one graph", |practice, ours| practice.captured = ours.captured),
    ("hybrid split by cost, equal infrequent ids merged, ids exchanged", |practice, ours| {
        practice.hybrid = ours.hybrid;
        practice.whole_table_bytes = ours.whole_table_bytes;
        practice.variant = ours.variant;
    }),
    ("a vector for each row, not for each bag", |practice, ours| {
        practice.pools_at_owner = ours.pools_at_owner;
        if ours.num_pooled() == 0 {
            practice.bags = ours.bags.clone();
        }
    }),
    ("of some tables, a vector for each bag and owner", |practice, ours| {
        practice.bags = ours.bags.clone();
    }),
    (IN_BF16, |practice, ours| practice.wire_bytes = ours.wire_bytes),
    ("slots between devices; over NCCL, strips of one length", |practice, ours| {
        (practice.packing, practice.strips) = (ours.packing, ours.strips);
    }),
    ("sums travel as f32", |practice, ours| practice.sum_bytes = ours.sum_bytes),
    ("small sums of a node go to all others in one step", |practice, ours| {
        practice.all_reduce = ours.all_reduce;
    }),
    (
        "replicated rows move in a stage of their own; on one node under the dense sums",
        |practice, ours| practice.sums = ours.sums,
    ),
    ("a step begins when the one before has ended", |practice, ours| practice.border = ours.border),
];

/// The step at which the workload, too, becomes ours.
const IN_BF16: &str = "bf16 in place of f16, without loss scaling";

/// A step of both programs.
#[derive(Debug, Clone, Copy)]
pub struct Compared<'a> {
    pub cluster: &'a ClusterDescription,
    /// The step as the ancestor did it, in f16, and how.
    pub ancestor: (&'a Workload, &'a Practice),
    /// As it is trained today.
    pub ours: (&'a Workload, &'a Practice),
}

impl Compared<'_> {
    /// The ancestor's step, and what each of our choices makes of it. A choice that both have made
    /// is left out. The last is the step that is trained today.
    ///
    /// # Panics
    /// Where the programs differ in what no choice of the list says.
    pub fn choices(&self) -> Vec<Chosen> {
        let (mut workload, mut practice) = (self.ancestor.0, self.ancestor.1.clone());
        let mut step_us = self.fastest(workload, &practice).step_us;
        let mut chosen = vec![Chosen { what: "the ancestor's step", step_us, change_us: 0.0 }];
        for (what, change) in STEPS {
            let before = practice.clone();
            change(&mut practice, self.ours.1);
            if what == IN_BF16 {
                workload = self.ours.0;
            } else if practice == before {
                continue;
            }
            let then = self.fastest(workload, &practice).step_us;
            chosen.push(Chosen { what, step_us: then, change_us: then - step_us });
            step_us = then;
        }
        practice.name = self.ours.1.name;
        assert_eq!(&practice, self.ours.1, "the list says all that we do otherwise");
        chosen
    }

    /// The plan of the step that is trained today.
    pub fn today(&self) -> Forecast {
        self.fastest(self.ours.0, self.ours.1)
    }

    /// Divided by rows, or with the best split.
    fn fastest(&self, workload: &Workload, practice: &Practice) -> Forecast {
        let placing = Placing { workload, cluster: self.cluster, practice };
        let divided = placing.forecast(Strategy::RowWise);
        let is_hybrid = practice.hybrid == HybridMode::Auto;
        let hybrid = search::best_hybrid(&placing).filter(|best| is_hybrid && best.fits);
        match hybrid {
            Some(hybrid) if hybrid.step_us < divided.step_us => hybrid,
            _ => divided,
        }
    }
}
