//! What others have published, as data, and how far our predictions of it are: two points of each
//! generation of devices are fitted, all others are held out.

use crate::description::ClusterDescription;
use crate::placement::{Layout, Placing, Strategy};
use crate::practice::{Captured, Practice};
use crate::search;
use crate::workload::Workload;
use headlong_embedding::hybrid::split::HybridMode;
use serde::Serialize;

/// The two models of MLPerf training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Model {
    /// DLRM, one-hot: rounds 0.7 to 2.1.
    Dlrm,
    /// DLRM-DCNv2, multi-hot: rounds 3.0 to 6.0.
    Dcnv2,
}

/// A generation of devices, which shares its fitted constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Generation {
    /// A100.
    Ampere,
    /// H100, H200.
    Hopper,
    /// GB200, GB300: nothing is fitted, Hopper's constants are taken.
    Blackwell,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    pub model: Model,
    /// On what.
    pub generation: Generation,
    /// The built-in cluster it ran on.
    pub cluster: &'static str,
    pub nodes: usize,
    /// Devices of a node; where a cluster's nodes are one network of fast links, of all.
    pub devices_per_node: usize,
    pub batch_size: usize,
    /// Median microseconds of an iteration in training blocks, from the raw logs.
    pub us: f64,
    /// The round of MLPerf training.
    pub round: &'static str,
    pub submitter: &'static str,
    pub role: Role,
}

/// What a point is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A constant is fitted on it.
    Fitted,
    HeldOut,
    /// Held out, and looked at once, when all else was decided.
    Fresh,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::HeldOut => "held out",
            Self::Fresh => "held out, fresh",
        }
    }
}

const fn point(
    (model, generation): (Model, Generation),
    cluster: &'static str,
    (nodes, devices_per_node): (usize, usize),
    (batch_size, us): (usize, f64),
    (round, role): (&'static str, Role),
) -> Point {
    let submitter = "NVIDIA";
    Point {
        model,
        generation,
        cluster,
        nodes,
        devices_per_node,
        batch_size,
        us,
        round,
        submitter,
        role,
    }
}

impl Point {
    const fn by(self, submitter: &'static str) -> Self {
        Self { submitter, ..self }
    }
}

use Generation::{Ampere, Blackwell, Hopper};
use Model::{Dcnv2, Dlrm};
use Role::{Fitted, Fresh, HeldOut};

/// Medians over training blocks of submissions with HugeCTR (mlcommons/training_results: v2.0,
/// v2.1, v4.0, v5.0, v6.0). Those of v5.0 are the median block of the first run: NVIDIA's 7,957 ms
/// between evaluations for 3,793 iterations, and 2,225 ms for 1,551; HPE's (Cray XD670) 11,872 ms
/// for 3,200 on 8 GPUs, 10,790 for 3,200 on 16 and 5,675 for 1,598 on 32; Supermicro's
/// (ARS-121GL-NBO) 2,013 ms for 1,551. Those of v6.0 are 1.940 and 1.262 ms of its logs.
pub const POINTS: [Point; 17] = [
    point((Dlrm, Ampere), "dgx-a100", (1, 8), (55_296, 1355.0), ("v2.0", Fitted)),
    point((Dlrm, Ampere), "dgx-a100", (8, 8), (71_680, 614.0), ("v2.0", HeldOut)),
    point((Dlrm, Ampere), "dgx-a100", (14, 8), (71_680, 563.0), ("v2.0", Fitted)),
    point((Dlrm, Hopper), "dgx-h100", (1, 8), (55_296, 855.0), ("v2.1", HeldOut)),
    point((Dlrm, Hopper), "dgx-h100", (4, 8), (71_680, 481.0), ("v2.1", HeldOut)),
    point((Dcnv2, Hopper), "dgx-h100", (1, 8), (55_296, 3529.0), ("v4.0", Fitted)),
    point((Dcnv2, Hopper), "dgx-h100", (8, 8), (135_168, 2412.0), ("v4.0", HeldOut)),
    point((Dcnv2, Hopper), "dgx-h100", (16, 8), (135_168, 1828.0), ("v4.0", Fitted)),
    point((Dcnv2, Hopper), "dgx-h200", (1, 8), (55_296, 3269.0), ("v4.0", HeldOut)),
    point((Dcnv2, Blackwell), "gb200-nvl72", (2, 4), (55_296, 2098.0), ("v5.0", HeldOut)),
    point((Dcnv2, Blackwell), "gb200-nvl72", (16, 4), (135_168, 1435.0), ("v5.0", HeldOut)),
    point((Dcnv2, Hopper), "dgx-h200", (1, 8), (65_536, 3710.0), ("v5.0", Fresh)).by("HPE"),
    point((Dcnv2, Hopper), "dgx-h200", (2, 8), (65_536, 3372.0), ("v5.0", Fresh)).by("HPE"),
    point((Dcnv2, Hopper), "dgx-h200", (4, 8), (131_200, 3551.0), ("v5.0", Fresh)).by("HPE"),
    point((Dcnv2, Blackwell), "gb200-nvl72", (16, 4), (135_168, 1298.0), ("v5.0", Fresh))
        .by("Supermicro"),
    point((Dcnv2, Blackwell), "gb300-nvl72", (2, 4), (55_296, 1940.0), ("v6.0", Fresh)),
    point((Dcnv2, Blackwell), "gb300-nvl72", (16, 4), (135_168, 1262.0), ("v6.0", Fresh)),
];

/// The constants of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Constants {
    /// Part of the peak of matrix products.
    pub matrix_share: f64,
    /// Microseconds of an operation besides its work: fitted where both points are captured steps.
    pub kernel_us: f64,
    /// Microseconds of an operation that is in no graph: fitted where one of the points is such.
    pub launch_us: f64,
}

/// A point and what is predicted of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Checked {
    pub point: Point,
    pub predicted_us: f64,
}

impl Checked {
    /// Predicted over published, less one.
    pub fn error(&self) -> f64 {
        self.predicted_us / self.point.us - 1.0
    }
}

/// The two workloads of the points, in f16.
pub struct Models {
    /// [`Model::Dlrm`].
    pub dlrm: Workload,
    /// [`Model::Dcnv2`].
    pub dcnv2: Workload,
}

impl Models {
    /// The step of a point.
    pub fn workload(&self, point: &Point) -> Workload {
        let model = if point.model == Dlrm { &self.dlrm } else { &self.dcnv2 };
        model.with_batch(point.batch_size)
    }
}

impl Point {
    /// How the program that made it does a step.
    pub fn practice(&self) -> Practice {
        match self.model {
            Dlrm => Practice::hugectr_hybrid(),
            Dcnv2 => Practice::hugectr_collection(self.nodes),
        }
    }

    /// What it ran on, with `constants` in place of the built-in ones where given.
    pub fn cluster(&self, constants: Option<Constants>) -> ClusterDescription {
        let mut cluster = built_in(self.cluster);
        (cluster.nodes, cluster.devices_per_node) = (self.nodes, self.devices_per_node);
        if let Some(Constants { matrix_share, kernel_us, launch_us }) = constants {
            let device = &mut cluster.device;
            (device.matrix_share, device.kernel_us, device.launch_us) =
                (matrix_share, kernel_us, launch_us);
        }
        cluster
    }

    /// Where its tables lie.
    fn layout(&self, workload: &Workload, cluster: &ClusterDescription) -> Layout {
        let practice = self.practice();
        let placing = Placing { workload, cluster, practice: &practice };
        let best = search::best_hybrid(&placing).filter(|_| practice.hybrid == HybridMode::Auto);
        best.map_or_else(|| placing.lay(Strategy::RowWise), |best| best.layout)
    }
}

fn built_in(name: &str) -> ClusterDescription {
    ClusterDescription::built_in(name).expect("points ran on built-in clusters")
}

/// Every point with what is predicted of it from the constants of the built-in clusters.
pub fn check(models: &Models) -> Vec<Checked> {
    POINTS.iter().map(|point| predict(models, point, None)).collect()
}

fn predict(models: &Models, point: &Point, constants: Option<Constants>) -> Checked {
    let (workload, cluster, practice) =
        (models.workload(point), point.cluster(constants), point.practice());
    // Which rows are frequent hardly depends on the constants; a fit needs a smooth path.
    let layout = point.layout(&workload, &point.cluster(None));
    let forecast =
        Placing { workload: &workload, cluster: &cluster, practice: &practice }.forecast_of(layout);
    Checked { point: *point, predicted_us: forecast.step_us }
}

/// The constants with which both fitted points of `generation` come out as published: Newton's
/// method in logarithms.
pub fn fit(models: &Models, generation: Generation) -> Constants {
    let points: Vec<_> = POINTS
        .iter()
        .filter(|point| point.generation == generation && point.role == Fitted)
        .collect();
    let built_in = built_in(points[0].cluster).device;
    let all_captured = points.iter().all(|point| point.practice().captured == Captured::Step);
    let constants_at = |at: [f64; 2]| {
        let matrix_share = at[0].exp();
        match all_captured {
            true => {
                Constants { matrix_share, kernel_us: at[1].exp(), launch_us: built_in.launch_us }
            }
            false => {
                Constants { matrix_share, kernel_us: built_in.kernel_us, launch_us: at[1].exp() }
            }
        }
    };
    let off = |at: [f64; 2]| {
        let constants = Some(constants_at(at));
        [0, 1].map(|of| predict(models, points[of], constants).error())
    };
    let second = if all_captured { built_in.kernel_us } else { built_in.launch_us };
    let mut at = [built_in.matrix_share.ln(), second.ln()];
    for _ in 0..FIT_ROUNDS {
        let here = off(at);
        let mut slopes = [[0.0; 2]; 2];
        for of in 0..2 {
            let mut moved = at;
            moved[of] += FIT_STEP;
            let there = off(moved);
            (0..2).for_each(|row| slopes[row][of] = (there[row] - here[row]) / FIT_STEP);
        }
        let determinant = slopes[0][0] * slopes[1][1] - slopes[0][1] * slopes[1][0];
        let share = (here[0] * slopes[1][1] - here[1] * slopes[0][1]) / determinant;
        let kernel = (here[1] * slopes[0][0] - here[0] * slopes[1][0]) / determinant;
        at = [at[0] - share.clamp(-0.7, 0.7), at[1] - kernel.clamp(-0.7, 0.7)];
    }
    constants_at(at)
}

/// Rounds of Newton's method, and the step of its slopes.
const FIT_ROUNDS: usize = 8;
const FIT_STEP: f64 = 0.01;
