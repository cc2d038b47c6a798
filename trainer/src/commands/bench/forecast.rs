//! `headlong bench forecast`: the planner compared with the machine. Writes a description of this
//! machine for `headlong plan --cluster`, or predicts steps of one of the compared shapes and
//! measures them: time, bytes between ranks, memory.
//!
//! What this machine does is measured on two small models of other shapes, through the same stages
//! as training; exchanges come from a file of `headlong bench tune`.

use super::data::{ZIPF_EXPONENT, default_batches};
use super::iteration::{SteadyTrainer, configuration, sample_bytes};
use super::sample::summarize;
use super::shapes::Shape;
use crate::Registry;
use crate::config::Config;
use crate::config::ranges::time;
use crate::error::{Error, Result};
use crate::plan::{Facts, Plan, advice, cluster, tuned};
use crate::report::output;
use crate::system::input::read_text;
use crate::system::machine::{self, Machine};
use crate::system::peak::{Factors, multiply_add_gflops};
use clap::Args;
use headlong_comm::tuning::Tuning;
use headlong_device::Stream;
use headlong_embedding::hybrid::split::{Split, TableSplit};
use headlong_planner::description::{
    ClusterDescription, DeviceDescription, DeviceKind, LinkDescription, MatrixPeaks,
};
use headlong_planner::forecast::Forecast;
use headlong_planner::frequencies::Frequencies;
use headlong_planner::placement::{Place, Placing, Strategy};
use headlong_planner::report;
use headlong_planner::workload::{Part, Source, Workload};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `headlong bench forecast`.
#[derive(Debug, Args)]
pub struct ForecastArguments {
    /// Measure this machine and write its description
    #[arg(long, value_name = "FILE.toml", conflicts_with = "shape")]
    pub write: Option<PathBuf>,
    /// What `bench tune --backend local` has measured, with as many ranks
    #[arg(long, value_name = "FILE.json")]
    pub tuning: Option<PathBuf>,
    /// Predict and measure this shape: C1, C2 or C3
    #[arg(long, value_name = "C1|C2|C3", requires = "cluster")]
    pub shape: Option<String>,
    /// The description that predictions are made from
    #[arg(long, value_name = "FILE.toml")]
    pub cluster: Option<String>,
    /// Ranks, as threads of this process
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// Samples of a batch
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub batch_size: usize,
    /// Threads over all ranks
    #[arg(
        long,
        value_name = "N",
        value_parser = crate::config::ranges::threads,
        default_value_t = machine::cores()
    )]
    pub threads: usize,
    /// How long to measure
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = time)]
    pub seconds: f64,
}

pub fn run(arguments: &ForecastArguments) -> Result<()> {
    match (&arguments.write, &arguments.shape) {
        (Some(path), _) => {
            let found = describe(arguments)?;
            let text =
                toml::to_string(&found).map_err(Error::failed("writing a description as TOML"))?;
            let text =
                format!("# This machine, measured by `headlong bench forecast --write`.\n{text}");
            output::write_file(path, &text)?;
            output::print(&text)
        }
        (None, Some(name)) => compare(arguments, name),
        (None, None) => {
            Err(Error::Usage("--write FILE or --shape C1|C2|C3 says what to do".to_owned()))
        }
    }
}

/// Microseconds that an operation on a pool of two threads costs besides its work: an empty one was
/// measured at 3 to 8.
const KERNEL_US: f64 = 6.0;

/// A small model that this machine is measured with.
struct Probe {
    workload: Workload,
    stages_us: Vec<(&'static str, f64)>,
}

impl Probe {
    fn new(
        (dim, rows, hotness): (usize, u64, u32),
        widths: (&[usize], &[usize]),
        threads: usize,
    ) -> Result<Self> {
        const TABLES: usize = 8;
        let shape = Shape {
            name: "probe",
            dim,
            bottom: widths.0.to_vec(),
            top: widths.1.to_vec(),
            rows: vec![rows; TABLES],
            hotness: vec![hotness; TABLES],
            ..Shape::from_name("C1", None).map_err(Error::Usage)?
        };
        let config = configuration(&shape, 2048, threads, None)?;
        let mut trainer = SteadyTrainer::new(&shape, &config, threads, advice::APPLYING)?;
        trainer.measure(2.0)?;
        let workload = cluster::workload(
            &config,
            &shape.rows,
            &Source::PowerLaw(ZIPF_EXPONENT),
            &Registry::default(),
        )?;
        Ok(Self { workload, stages_us: trainer.stages_us() })
    }

    fn us(&self, name: &str) -> f64 {
        let found = self.stages_us.iter().find(|(stage, _)| *stage == name);
        found.map_or(0.0, |(_, us)| *us)
    }

    /// Of the top network, forward and backward: operations, the same divided by each product's
    /// narrowest side, microseconds.
    fn products(&self) -> [f64; 3] {
        let layers = self.workload.layers.iter().filter(|layer| layer.part == Part::Top);
        let (mut flop, mut by_width, mut us) =
            (0.0, 0.0, self.us("top_forward") + self.us("top_backward"));
        for layer in layers {
            let (inputs, outputs) = (layer.inputs as f64, layer.outputs as f64);
            let three = 3.0 * 2.0 * self.workload.samples * inputs * outputs;
            flop += three;
            by_width += three / inputs.min(outputs);
            us -= 3.0 * KERNEL_US;
        }
        [flop, by_width, us]
    }

    /// Lookups of a step, and bytes that pooling them reads and writes.
    fn pooled(&self) -> (f64, f64) {
        let row = self.workload.dim as f64 * 4.0;
        let lookups = self.workload.samples * self.workload.lookups_per_sample();
        let bags = self.workload.samples * self.workload.tables.len() as f64;
        (lookups, (lookups + bags) * row)
    }
}

fn describe(arguments: &ForecastArguments) -> Result<ClusterDescription> {
    let threads = arguments.threads;
    let wide = Probe::new((128, 200_000, 2), (&[128], &[1024, 1024, 1]), threads)?;
    let narrow = Probe::new((16, 1_000_000, 4), (&[64, 16], &[128, 128, 1]), threads)?;
    // flop + half_width · flop/width = rate · time, for both.
    let ([a, b, t], [c, d, u]) = (wide.products(), narrow.products());
    let half_width = ((a * u - c * t) / (d * t - b * u)).max(0.0);
    let rate = (a + half_width * b) / t;
    // lookups · row + bytes / bandwidth = time, for both.
    let ((n, x), (m, y)) = (wide.pooled(), narrow.pooled());
    let (p, q) = (wide.us("pool") - KERNEL_US, narrow.us("pool") - KERNEL_US);
    let row_us = ((x * q - y * p) / (x * m - y * n)).max(0.0);
    let bandwidth = x / (p - n * row_us).max(1e-9);
    let route_us = (wide.us("route") / n).max(0.0);
    let peak = multiply_add_gflops(&Stream::cpu(threads), Factors::F32, 5, 40) * 1e3;
    let peak_tflops = peak * 1e-6;
    let mut cluster = cluster::find("laptop")?;
    let memory_gib = Machine::detect().usable_bytes() as f64 / f64::from(1_u32 << 30);
    cluster.name = "this machine".to_owned();
    cluster.devices_per_node = arguments.ranks;
    cluster.host.memory_gib = memory_gib;
    cluster.device = DeviceDescription {
        kind: DeviceKind::Cpu,
        memory_gib,
        matrix_tflops: MatrixPeaks {
            f32: peak_tflops,
            tf32: peak_tflops,
            f16: peak_tflops,
            bf16: peak_tflops,
        },
        matrix_share: rate / peak,
        half_width,
        memory_gb_per_s: bandwidth * 1e-3,
        memory_share: 1.0,
        kernel_us: KERNEL_US,
        launch_us: 0.0,
        row_us,
        route_us,
        host_gb_per_s: bandwidth * 1e-3,
    };
    if let Some(path) = &arguments.tuning {
        let text = read_text(path).map_err(Error::io("read", path))?;
        let tuning = Tuning::read(&text)
            .map_err(|error| Error::config("--tuning", format!("{}: {error}", path.display())))?;
        if let Some(costs) = tuned::costs(&tuning, "local", None) {
            let (all_to_all, all_reduce) =
                (Some(costs.intra.all_to_all), Some(costs.intra.all_reduce));
            cluster.inside =
                LinkDescription { all_to_all, all_reduce, message_us: 0.0, ..cluster.inside };
        }
    }
    Ok(cluster)
}

fn compare(arguments: &ForecastArguments, name: &str) -> Result<()> {
    let shape = Shape::from_name(name, None).map_err(Error::Usage)?;
    let mut config = configuration(&shape, arguments.batch_size, arguments.threads, None)?;
    config.run.ranks = arguments.ranks;
    let mut cluster = cluster::find(arguments.cluster.as_deref().unwrap_or("laptop"))?;
    (cluster.nodes, cluster.devices_per_node) = (1, arguments.ranks);
    let mut trainer = SteadyTrainer::new(&shape, &config, arguments.threads, advice::APPLYING)?;
    let samples = trainer.measure(arguments.seconds)?;
    let peak_bytes = machine::peak_rss_bytes();
    let summary = summarize(&samples).expect("at least one block was measured");
    let measured_us = arguments.batch_size as f64 / summary.median * 1e6;
    let counted = trainer.sent_per_step()?.map(|sent| sent.intra_node + sent.inter_node);
    let split = trainer.split();
    let forecast = predicted(&config, &shape, &cluster, &trainer)?;
    let times = trainer.stages_us();
    let measured = |name: &str| {
        times.iter().find(|(stage, _)| *stage == name).map_or(0.0, |(_, us)| us.round())
    };
    let stages = forecast
        .stages
        .iter()
        .map(|stage| json!([stage.name, stage.us.round(), measured(stage.name)]));
    let predicted_bytes = split.map(|split| split.traffic.total().total());
    let document = json!({
        "shape": shape.name,
        "ranks": arguments.ranks,
        "foreign": summary.foreign,
        "step_us": ratio(forecast.step_us, measured_us),
        "exchange_bytes": predicted_bytes
            .zip(counted)
            .map(|(predicted, counted)| ratio(predicted, counted)),
        "memory_bytes": ratio(memory_bytes(&config, &shape, split), peak_bytes as f64),
        "stages_us": stages.collect::<Vec<_>>(),
    });
    output::print(&document.to_string())
}

fn ratio(predicted: f64, measured: f64) -> serde_json::Value {
    let ratio = (predicted / measured * 1e3).round() / 1e3;
    json!({ "predicted": predicted.round(), "measured": measured.round(), "ratio": ratio })
}

/// What the planner says of the step, with the rows laid as the run has laid them.
fn predicted(
    config: &Config,
    shape: &Shape,
    cluster: &ClusterDescription,
    trainer: &SteadyTrainer,
) -> Result<Forecast> {
    let counted = trainer
        .statistics()
        .map(|counted| counted.tables.iter().map(Frequencies::counted).collect());
    let source = counted.map_or(Source::PowerLaw(ZIPF_EXPONENT), Source::Given);
    let workload = cluster::workload(config, &shape.rows, &source, &Registry::default())?;
    let mut practice = report::practice(&workload, cluster);
    let Some(split) = trainer.split() else {
        return Ok(Placing { workload: &workload, cluster, practice: &practice }
            .forecast(Strategy::RowWise));
    };
    practice.variant = split.variant;
    let place = |table: &TableSplit| match table.frequent_rows {
        0 => Place::RowWise,
        rows if rows == table.rows => Place::DataParallel,
        frequent_rows => Place::Hybrid { frequent_rows },
    };
    let places = split.tables.iter().map(place).collect();
    let placing = Placing { workload: &workload, cluster, practice: &practice };
    Ok(placing.forecast_of(placing.lay_out(Strategy::RowWise, places)))
}

/// What the planner says of this process's memory: batches lie in memory here, where a run has a
/// reader.
fn memory_bytes(config: &Config, shape: &Shape, split: Option<&Split>) -> f64 {
    let machine = Machine::detect();
    let registry = &Registry::default();
    let facts = Facts { split, ..Facts::new(&shape.rows, &machine, registry) };
    let plan = Plan::new(config, &facts);
    let sample = sample_bytes(shape) as f64;
    let batches =
        (default_batches(shape, config.train.batch_size) * config.train.batch_size) as f64 * sample;
    (plan.bytes_per_rank - plan.memory.reader_bytes).as_f64() * config.run.ranks as f64 + batches
}
