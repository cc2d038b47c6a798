//! Everything that `headlong plan --cluster` answers.

use crate::description::{ClusterDescription, DeviceKind};
use crate::error::Result;
use crate::evaluation::{self, EvaluationForecast, Target};
use crate::placement::Placing;
use crate::practice::Practice;
use crate::search::{Candidate, search};
use crate::sensitivity::Sensitivity;
use crate::simulator::{Options, Run};
use crate::workload::{Precision, Workload};
use serde::Serialize;

/// Ranks that are simulated with chance, at most: each is as good as any other.
const SIMULATED_RANKS: usize = 256;
/// Micro-batches of a step that all of these run together, at most.
const SIMULATED_MICRO_BATCHES: usize = 4096;
/// Standard deviation of a stage's time. Assumed: what a quiet machine's collectives show between
/// medians and 90th percentiles.
const JITTER: f64 = 0.02;

/// A table, for answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableName {
    pub name: String,
    pub rows: u64,
}

/// What chance does to a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Simulated {
    pub step_us: f64,
    pub ranks: usize,
    /// Standard deviation of a stage's time, as a part of it.
    pub jitter: f64,
}

/// A published time to the target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PublishedTime {
    pub round: &'static str,
    pub us: f64,
    pub minutes: f64,
}

/// HugeCTR's DLRM on 14 DGX A100: mean minutes without best and worst run, median iterations
/// (mlcommons/training_results v1.0, v2.0).
const FOURTEEN_NODES: [PublishedTime; 2] = [
    PublishedTime { round: "MLPerf v1.0", us: 921.0, minutes: 0.987 },
    PublishedTime { round: "MLPerf v2.0", us: 563.0, minutes: 0.588 },
];

/// Samples of an evaluation batch of the ancestor's submissions on several nodes.
const ANCESTOR_EVAL_BATCH: usize = 1_792_000;

/// The ancestor on the same cluster.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ancestor {
    /// How it does a step.
    pub name: &'static str,
    pub batch_size: usize,
    pub step_us: f64,
    /// Predicted minutes to the target, where known.
    pub minutes: Option<f64>,
    /// The same where stages run one after another.
    pub one_by_one: (f64, Option<f64>),
    /// What was published of it on this cluster.
    pub published: Vec<PublishedTime>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterReport {
    pub cluster: ClusterDescription,
    /// The tables, in column order.
    pub tables: Vec<TableName>,
    /// How the program that trains does a step.
    pub practice: Practice,
    /// The plan.
    pub best: Candidate,
    /// All plans, best first.
    #[serde(skip)]
    pub considered: Vec<Candidate>,
    /// The same with chance.
    pub simulated: Option<Simulated>,
    /// What evaluations cost, where the samples are known.
    pub evaluation: Option<EvaluationForecast>,
    /// When training is done, where that is known.
    pub target: Option<Target>,
    /// What more of something would buy.
    pub sensitivities: Vec<Sensitivity>,
    /// The ancestor on the same cluster, for its two models.
    pub ancestor: Option<Ancestor>,
}

/// Searches the plans of `workload` with each of `batch_sizes`; where there are none, as
/// configured, and with those whose convergence is known.
///
/// # Errors
/// [`crate::error::Error::DoesNotFit`] where no plan fits.
pub fn report(
    workload: &Workload,
    cluster: &ClusterDescription,
    batch_sizes: &[usize],
) -> Result<(ClusterReport, Workload)> {
    let practice = practice(workload, cluster);
    let mut sizes = batch_sizes.to_vec();
    if sizes.is_empty() {
        // Sizes whose convergence is known are as good as the configured one.
        sizes.push(workload.batch_size);
        sizes.extend(evaluation::known_batch_sizes(workload));
        sizes.sort_unstable();
        sizes.dedup();
    }
    let workloads: Vec<Workload> = sizes.iter().map(|&size| workload.with_batch(size)).collect();
    let mut considered: Vec<Candidate> = workloads
        .iter()
        .flat_map(|workload| search(workload, cluster, &practice).candidates)
        .collect();
    considered.sort_by(|one, other| {
        let (one, other) = (&one.forecast, &other.forecast);
        other.fits.cmp(&one.fits).then(other.samples_per_s.total_cmp(&one.samples_per_s))
    });
    let best = considered[0].clone();
    let least = considered.iter().map(|candidate| candidate.forecast.needed_bytes).min();
    least.unwrap_or_default().must_fit(best.forecast.available_bytes, || {
        "more nodes, `tables.max_rows`, or a smaller `train.batch_size` would help".to_owned()
    })?;
    let workload = workload.with_batch(best.batch_size);
    let placing = Placing { workload: &workload, cluster, practice: &practice };
    let (layout, step_us) = (&best.forecast.layout, best.forecast.step_us);
    let evaluation = placing.evaluation(layout, step_us);
    let report = ClusterReport {
        tables: workload
            .tables
            .iter()
            .map(|table| TableName { name: table.name.clone(), rows: table.rows })
            .collect(),
        simulated: simulated(&placing, &best),
        evaluation,
        target: placing.target(step_us, evaluation.as_ref()),
        sensitivities: placing.sensitivities(&best.forecast),
        ancestor: ancestor(&workload, cluster),
        practice: practice.clone(),
        cluster: cluster.clone(),
        best,
        considered,
    };
    Ok((report, workload))
}

/// What the program does with this configuration on this cluster.
pub fn practice(workload: &Workload, cluster: &ClusterDescription) -> Practice {
    let on_device = cluster.device.kind == DeviceKind::Gpu;
    workload.program.practice(workload, &cluster.shape(), on_device)
}

/// The plan's step with contention, jitter and what [`Options`] say, on ranks of which each is as
/// good as any other.
pub fn simulate(placing: &Placing<'_>, candidate: &Candidate, ranks: usize, steps: usize) -> Run {
    let seed = placing.workload.seed;
    let options = Options { contention: true, jitter: JITTER, steps, seed, ..placing.options() };
    placing.simulate_layout(&candidate.forecast.layout, ranks, &options)
}

fn simulated(placing: &Placing<'_>, best: &Candidate) -> Option<Simulated> {
    let micro_batches = placing.workload.micro_batches;
    let most = (SIMULATED_MICRO_BATCHES / micro_batches).clamp(1, SIMULATED_RANKS);
    let ranks = placing.cluster.num_devices().min(most);
    let run = simulate(placing, best, ranks, 6);
    Some(Simulated { step_us: run.step_us(), ranks, jitter: JITTER })
}

/// The ancestor with its own batch sizes, for the models it was published with.
fn ancestor(workload: &Workload, cluster: &ClusterDescription) -> Option<Ancestor> {
    let known = evaluation::known_batch_sizes(workload);
    if known.is_empty() || cluster.device.kind == DeviceKind::Cpu {
        return None;
    }
    let dlrm = workload.has_dot_products;
    let batch_size = if cluster.nodes > 1 { known[1] } else { known[0] };
    let mut workload = workload.with_batch(batch_size);
    workload.precision = Precision::F16;
    // As its submissions evaluated: 50 batches.
    workload.eval_batch_size = ANCESTOR_EVAL_BATCH;
    let practice =
        if dlrm { Practice::hugectr_hybrid() } else { Practice::hugectr_collection(cluster.nodes) };
    let placing = Placing { workload: &workload, cluster, practice: &practice };
    let searched = search(&workload, cluster, &practice);
    let best = searched.best()?;
    let evaluation = placing.evaluation(&best.forecast.layout, best.forecast.step_us);
    let minutes =
        |step_us| placing.target(step_us, evaluation.as_ref()).map(|target| target.minutes);
    let one_by_one: f64 = best.forecast.stages.iter().map(|stage| stage.us).sum();
    let is_headline =
        dlrm && cluster.name == "dgx-a100" && (cluster.nodes, cluster.devices_per_node) == (14, 8);
    Some(Ancestor {
        name: practice.name,
        batch_size,
        step_us: best.forecast.step_us,
        minutes: minutes(best.forecast.step_us),
        one_by_one: (one_by_one, minutes(one_by_one)),
        published: if is_headline { FOURTEEN_NODES.to_vec() } else { Vec::new() },
    })
}
