//! `headlong bench iteration`: samples per second of whole training steps on batches that lie ready
//! in memory.
//!
//! A step is everything but reading: copy, route, lookup, forward, loss, backward, dense optimiser,
//! table update, the same list of stages that `headlong train` walks.

use super::data::{default_batches, make_batches};
use super::sample::{Sample, Summary, summarize, timed_blocks};
use super::shapes::{NUM_DENSE, Shape};
use clap::{Args, ValueEnum};

use crate::config::ranges::time;
use crate::config::{
    Bf16Sums, Config, DeviceChoice, Interaction, ModelConfig, Precision, ScheduleChoice, TableRows,
};
use crate::error::{Error, Result};
use crate::iteration::arithmetic::{Arithmetic, Ceiling};
use crate::iteration::ranks::{RankGroup, RankGroupOptions, local_topology};
use crate::iteration::trace::Record;
use crate::iteration::worker::StepRates;
use crate::plan::advice::{self, Knob};
use crate::plan::placement::{Placement, statistics_of};
use crate::plan::{Count, Facts, Plan};
use crate::report::{ExchangeBytes, output};
use crate::run::sums;
use crate::system::machine::{Machine, instruction_limit, peak_rss_bytes};
use headlong_embedding::Registry;
use headlong_embedding::hybrid::split::Split;
use headlong_embedding::hybrid::statistics::Statistics;
use headlong_reader::Batch;
use serde_json::{Value, json};

/// A shape of `bench iteration`, as in `benches/peers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShapeName {
    /// MLPerf v1: dim 128, bottom 512-256-128, top 1024-1024-512-256-1, SGD.
    #[value(name = "C1")]
    C1,
    /// Kaggle: dim 16, bottom 512-256-64-16, top 512-256-1, SGD.
    #[value(name = "C2")]
    C2,
    /// MLPerf v3: DCNv2, multi-hot.
    #[value(name = "C3")]
    C3,
}

/// Rows of a table at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCap {
    Rows(u64),
    /// As many as this machine holds.
    Fit,
}

impl std::str::FromStr for RowCap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("fit", _) => Ok(Self::Fit),
            (_, Ok(rows)) if rows > 0 => Ok(Self::Rows(rows)),
            _ => Err("expected a number of rows above 0, or `fit`".to_owned()),
        }
    }
}

/// Arguments of `headlong bench iteration`.
#[derive(Debug, Args)]
pub struct IterationArguments {
    /// C1: Terabyte DLRM, C2: Kaggle DLRM, C3: DLRM-DCNv2 with several ids a sample, Adagrad
    #[arg(long, value_name = "C1|C2|C3", ignore_case = true)]
    pub shape: ShapeName,
    /// Samples of one batch
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub batch_size: usize,
    /// Arithmetic of the dense layers
    #[arg(long, value_name = "f32|bf16", default_value = "f32")]
    pub dtype: Precision,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = time)]
    pub seconds: f64,
    /// Device; auto is the processor
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "auto")]
    pub device: DeviceChoice,
    /// Lanes
    #[arg(long, value_name = "auto|serial|overlapped|captured", default_value = "auto")]
    pub schedule: ScheduleChoice,
    /// Ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: usize,
    /// Rows of a table at most; `fit`: what memory holds. The shape's own by default
    #[arg(long, value_name = "N|fit")]
    pub row_cap: Option<RowCap>,
    /// Sparse optimizer; the shape's own by default
    #[arg(long, value_name = "NAME")]
    pub optimizer: Option<String>,
    /// Instructions that arithmetic may use; no result depends on them
    #[arg(long, value_name = "auto|portable|avx2|avx512|avx512_bf16|amx", default_value = "auto")]
    pub instructions: crate::config::Instructions,
    /// Order in which products of bf16 are added up; auto is the processor's fastest
    #[arg(long, value_name = "auto|pairs|tiles", default_value = "auto")]
    pub bf16_sums: Bf16Sums,
    /// Print one JSON line
    #[arg(long)]
    pub json: bool,
}

/// Steps before the clock starts.
const WARM_UP_STEPS: usize = 5;
/// Steps of which the stages are timed on a device.
const TIMED_STEPS: usize = 8;
const BLOCK_S: f64 = 0.3;
/// Blocks that are measured at least.
const FEWEST_BLOCKS: usize = 5;
/// Part of the memory that tables may take under `--row-cap fit`.
const TABLE_SHARE_OF_MEMORY: f64 = 0.7;

pub fn run(arguments: &IterationArguments) -> Result<()> {
    refuse(arguments)?;
    instruction_limit(arguments.instructions)?.run(|| measure(arguments))
}

fn measure(arguments: &IterationArguments) -> Result<()> {
    let shape = shape(arguments)?;
    let config = config(&shape, arguments)?;
    let mut trainer = SteadyTrainer::new(&shape, &config, arguments.threads, advice::BENCH)?;
    let on_device = config.run.device == DeviceChoice::Cuda;
    // A device's products are compared with the ledger, not with what a processor can.
    let ceiling =
        (!on_device).then(|| Ceiling::measure(&config, arguments.threads, arguments.ranks));
    let samples = trainer.measure(arguments.seconds)?;
    if on_device {
        trainer.time_stages()?;
    }
    let summary = summarize(&samples).expect("at least one block was measured");
    let peak_gflops = ceiling.as_ref().map(Ceiling::peak_gflops);
    let document = document(arguments, &shape, &config, (&summary, peak_gflops), &trainer);
    match arguments.json {
        true => output::print(&document.to_string()),
        false => output::print(&text(&document, &trainer, ceiling.as_ref())),
    }
}

/// Refuses by name what this build does not have.
fn refuse(arguments: &IterationArguments) -> Result<()> {
    let absent = |what: String, reason: &str| Err(Error::unsupported(what, reason));
    if arguments.dtype == Precision::Tf32 && arguments.device != DeviceChoice::Cuda {
        return absent("`--dtype tf32`".to_owned(), "a processor computes in f32, bf16 or f16");
    }
    if arguments.schedule == ScheduleChoice::Captured && arguments.device != DeviceChoice::Cuda {
        return absent("`--schedule captured`".to_owned(), "graphs are captured on a CUDA device");
    }
    if arguments.batch_size == 0 || arguments.threads == 0 || arguments.ranks == 0 {
        return Err(Error::Usage("--batch-size, --threads and --ranks are above 0".to_owned()));
    }
    Ok(())
}

fn shape(arguments: &IterationArguments) -> Result<Shape> {
    let name = format!("{:?}", arguments.shape);
    let at = |cap| {
        Shape::from_name(&name, cap)
            .map_err(|reason| Error::unsupported(format!("`--shape {name}`"), reason))
    };
    match arguments.row_cap {
        None => at(None),
        Some(RowCap::Rows(rows)) => at(Some(rows)),
        Some(RowCap::Fit) => {
            let machine = Machine::detect_with(arguments.device)?;
            let usable = machine.device.as_ref().map_or(machine.usable_bytes(), |d| d.free_bytes);
            let usable = usable as f64 * TABLE_SHARE_OF_MEMORY;
            let whole = at(Some(u64::MAX))?;
            let fits = |cap: u64| {
                whole.rows.iter().map(|&rows| rows.min(cap)).sum::<u64>() * (whole.dim * 4) as u64
            };
            let (mut low, mut high) = (1, whole.rows.iter().copied().max().unwrap_or(1));
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(middle) as f64 <= usable { low = middle } else { high = middle - 1 }
            }
            at(Some(low))
        }
    }
}

/// The configuration that trains `shape`, as a user would write it; the shape's optimiser where
/// none is named.
pub fn configuration(
    shape: &Shape,
    batch_size: usize,
    threads: usize,
    optimizer: Option<&str>,
) -> Result<Config> {
    let mut config = Config::default();
    let (bottom, top) = (shape.bottom.clone(), shape.top.clone());
    config.model = ModelConfig { dim: shape.dim, bottom, top, ..ModelConfig::default() };
    if let Some((layers, rank)) = shape.cross {
        config.model.interaction = Interaction::Cross;
        (config.model.cross_layers, config.model.cross_rank) = (layers, rank);
    }
    config.tables.rows = TableRows::List(shape.rows.clone());
    config.data.num_dense = NUM_DENSE;
    config.data.num_sparse = shape.rows.len();
    config.data.hotness = shape.hotness.clone();
    config.train.batch_size = batch_size;
    config.train.learning_rate = shape.learning_rate;
    config.eval.batch_size = batch_size;
    config.run.threads = Some(threads);
    config.optimizer.set_both(optimizer.unwrap_or(shape.optimizer))?;
    config.optimizer.resolve()?;
    config.validate()?;
    Ok(config)
}

/// Refuses what does not fit, before batches are made: they lie in memory.
fn check_memory(shape: &Shape, config: &Config, knobs: &[Knob]) -> Result<()> {
    let machine = Machine::detect_with(config.run.device)?;
    let registry = Registry::default();
    let batches =
        Count::from(default_batches(shape, config.train.batch_size)) * config.train.batch_size;
    let kept_bytes = (batches * sample_bytes(shape)).get();
    let facts = Facts { kept_bytes, ..Facts::new(&shape.rows, &machine, &registry) };
    Plan::new(config, &facts).check_with(config, &facts, knobs)
}

/// Bytes of a sample of a batch: label, dense values, row indices of 8 bytes, offsets of 4.
pub(super) fn sample_bytes(shape: &Shape) -> u64 {
    let ids: u64 = shape.hotness.iter().map(|&ids| u64::from(ids)).sum();
    4 * (1 + NUM_DENSE as u64 + shape.rows.len() as u64) + 8 * ids
}

fn config(shape: &Shape, arguments: &IterationArguments) -> Result<Config> {
    let optimizer = arguments.optimizer.as_deref();
    let mut config = configuration(shape, arguments.batch_size, arguments.threads, optimizer)?;
    (config.run.ranks, config.run.schedule) = (arguments.ranks, arguments.schedule);
    (config.run.device, config.train.precision) = (arguments.device, arguments.dtype);
    config.comm.deadline_s = 20.0;
    config.run.instructions = arguments.instructions;
    config.train.bf16_sums = arguments.bf16_sums;
    config.validate()?;
    Ok(sums::decide(&config, None))
}

/// A model that trains on the same batches over and over.
pub struct SteadyTrainer {
    group: RankGroup,
    batches: Vec<Batch>,
    rates: StepRates,
    batch_size: usize,
    first_loss: f64,
    last_loss: f64,
    /// How often rows come in the batches, and how they are split for it: where there are several
    /// ranks.
    statistics: Option<Statistics>,
    split: Option<Split>,
}

impl SteadyTrainer {
    /// Builds the model and the batches, and takes the first steps. `knobs` are the settings that
    /// the user can lower.
    pub fn new(shape: &Shape, config: &Config, threads: usize, knobs: &[Knob]) -> Result<Self> {
        check_memory(shape, config, knobs)?;
        let batch_size = config.train.batch_size;
        let batches = make_batches(shape, batch_size, default_batches(shape, batch_size), 1);
        let registry = Registry::default();
        // The batches themselves are the statistics.
        let statistics =
            (config.run.ranks > 1).then(|| statistics_of(config, &shape.rows, &batches));
        let placement = Placement::new(
            config,
            &shape.rows,
            &local_topology(config),
            statistics.as_ref(),
            &registry,
        )?;
        let config = &placement.decide(config);
        let (partition, split) = (Some(placement.partition), placement.split);
        // Stages on a device are timed by waiting for each step: that is another measurement.
        let record = Record { times: config.run.device != DeviceChoice::Cuda, ..Record::default() };
        let options =
            RankGroupOptions { partition, record, ..RankGroupOptions::new(threads, &registry) };
        let group = RankGroup::build(config, &shape.rows, options)?;
        group.prime(&batches[0])?;
        let rate = config.train.learning_rate as f32;
        let mut trainer = Self {
            group,
            batches,
            rates: StepRates { number: 0, dense: rate, sparse: rate },
            batch_size,
            first_loss: 0.0,
            last_loss: 0.0,
            statistics,
            split,
        };
        trainer.steps(1)?;
        trainer.first_loss = trainer.last_loss;
        trainer.steps(WARM_UP_STEPS)?;
        // The system takes memory of optimiser states as the first steps touch it; that would weigh
        // in the mean of few steps.
        trainer.group.first().recorder_mut().forget_totals();
        Ok(trainer)
    }

    /// Trains on `count` batches, and waits for them.
    pub fn steps(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.rates.number += 1;
            let next = &self.batches[self.rates.number as usize % self.batches.len()];
            self.group.enqueue(self.rates, Some(next))?;
        }
        self.group.drain()?;
        self.group.take_losses(&mut |step| self.last_loss = step.loss);
        Ok(())
    }

    /// Times the stages of some more steps. On a device each of these steps is waited for, so that
    /// they are no part of what is measured; those of a captured graph have no times.
    fn time_stages(&mut self) -> Result<()> {
        self.group.first().recorder_mut().record_times();
        self.steps(TIMED_STEPS)
    }

    /// Measures blocks of steps for `seconds`; a single step for 0.
    pub fn measure(&mut self, seconds: f64) -> Result<Vec<Sample>> {
        timed_blocks((seconds, BLOCK_S, FEWEST_BLOCKS), |steps| {
            self.steps(steps)?;
            Ok((steps * self.batch_size) as f64)
        })
    }

    /// How often rows come in the batches; counted for several ranks alone.
    pub fn statistics(&self) -> Option<&Statistics> {
        self.statistics.as_ref()
    }

    /// How rows are split among the ranks; none where one rank has all.
    pub fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// What all ranks have sent in a step, on average; none where there is one.
    pub fn sent_per_step(&self) -> Result<Option<ExchangeBytes>> {
        self.group.sent_per_step()
    }

    /// Microseconds of each stage on the first rank, mean over the measured steps, in the order of
    /// the schedule.
    pub fn stages_us(&self) -> Vec<(&'static str, f64)> {
        let group = self.group.first();
        let totals = group.recorder().totals().iter();
        totals.map(|total| (total.name, 1e6 * total.seconds / total.runs as f64)).collect()
    }

    /// Milliseconds of each stage, mean over the measured steps, in the order of the schedule.
    fn stages_ms(&self) -> serde_json::Map<String, Value> {
        let group = self.group.first();
        let totals = group.recorder().totals().iter();
        totals
            .map(|total| (total.name.to_owned(), rounded(1e3 * total.seconds / total.runs as f64)))
            .collect()
    }
}

fn rounded(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}

fn document(
    arguments: &IterationArguments,
    shape: &Shape,
    config: &Config,
    (summary, peak_gflops): (&Summary, Option<f64>),
    trainer: &SteadyTrainer,
) -> Value {
    let gflops = summary.median * Arithmetic::of(config).training_flop() as f64 * 1e-9;
    let peak_rss_bytes = peak_rss_bytes();
    json!({
        "tag": "headlong",
        "config": shape.name,
        "batch": arguments.batch_size,
        "dtype": config.train.precision,
        "bf16_sums": config.train.bf16_sums,
        "threads": arguments.threads,
        // Its own name: the software device says that it is none.
        "device": device_name(config),
        "ranks": arguments.ranks,
        "schedule": config.run.schedule_used(),
        "optimizer": config.optimizer.sparse.name,
        "samples_per_s": rounded(summary.median),
        "best": rounded(summary.best),
        "ms_per_iter": rounded(1e3 * arguments.batch_size as f64 / summary.median),
        "foreign": rounded(summary.foreign),
        "n": summary.num_blocks,
        "gflops": rounded(gflops),
        "peak_gflops": peak_gflops.map(rounded),
        "share_of_peak": peak_gflops.map(|peak| rounded(gflops / peak)),
        "rss_mib": peak_rss_bytes >> 20,
        "peak_rss_bytes": peak_rss_bytes,
        "isa": headlong_device::simd::isa().name(),
        "rows": shape.rows.iter().sum::<u64>(),
        "stages_ms": trainer.stages_ms(),
        "loss_first": rounded(trainer.first_loss),
        "loss_last": rounded(trainer.last_loss),
    })
}

/// What the CUDA device calls itself, where training runs on one.
fn device_name(config: &Config) -> Option<String> {
    let device = Machine::detect_with(config.run.device).ok()?.device;
    device.map(|device| device.name)
}

fn text(document: &Value, trainer: &SteadyTrainer, ceiling: Option<&Ceiling>) -> String {
    let number = |key: &str| document[key].as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "{} batch {} {}, {}: {:.0} samples/s (best {:.0}), {:.3} ms a step",
        document["config"].as_str().unwrap_or_default(),
        document["batch"],
        document["dtype"].as_str().unwrap_or_default(),
        match document["device"].as_str() {
            Some(device) => device.to_owned(),
            None => format!("{} thread(s)", document["threads"]),
        },
        number("samples_per_s"),
        number("best"),
        number("ms_per_iter"),
    );
    if document["device"].is_null() {
        let (share, peak) = (100.0 * number("share_of_peak"), number("peak_gflops"));
        text += &format!(", {share:.0} % of {peak:.0} GFLOP/s");
    }
    text.push('\n');
    if number("foreign") >= 0.1 {
        text += &format!(
            "others used {:.1} cores meanwhile: repeat on a quiet machine\n",
            number("foreign")
        );
    }
    text += &trainer.group.first().recorder().table(ceiling);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::{BenchCommand, Cli, Command};
    use clap::Parser as _;

    fn arguments(line: &str) -> IterationArguments {
        let words = format!("headlong bench iteration {line}");
        match Cli::try_parse_from(words.split_whitespace()).unwrap().command {
            Some(Command::Bench(BenchCommand::Iteration(arguments))) => arguments,
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn a_tiny_shape_trains_and_reports_what_scripts_read() {
        let arguments = arguments(
            "--shape C2 --row-cap 200 --batch-size 64 --dtype fp32 --threads 2 --seconds 0",
        );
        let shape = shape(&arguments).unwrap();
        let config = config(&shape, &arguments).unwrap();
        let mut trainer = SteadyTrainer::new(&shape, &config, 2, advice::BENCH).unwrap();
        let samples = trainer.measure(0.0).unwrap();
        assert!(
            trainer.last_loss < trainer.first_loss,
            "{} -> {}",
            trainer.first_loss,
            trainer.last_loss
        );
        let most_runs =
            trainer.group.first().recorder().totals().iter().map(|total| total.runs).max();
        assert_eq!(most_runs, Some(2), "the warm-up is not in the stages' times");
        let summary = summarize(&samples).unwrap();
        let document = document(&arguments, &shape, &config, (&summary, Some(100.0)), &trainer);
        for key in [
            "samples_per_s",
            "batch",
            "threads",
            "best",
            "foreign",
            "rss_mib",
            "share_of_peak",
            "peak_rss_bytes",
        ] {
            assert!(document[key].is_number(), "{key} in {document}");
        }
        for key in ["config", "dtype", "optimizer"] {
            assert!(document[key].is_string(), "{key} in {document}");
        }
        assert!(document["samples_per_s"].as_f64().unwrap() > 0.0);
        let text = text(&document, &trainer, Some(&Ceiling::measure(&config, 1, 1)));
        assert!(text.contains("samples/s") && text.contains("GFLOP/s"), "{text}");
    }

    #[test]
    fn what_the_build_lacks_is_refused_by_name() {
        for (line, word) in
            [("--shape C1 --dtype tf32", "dtype"), ("--shape C1 --schedule captured", "schedule")]
        {
            let error = run(&arguments(line)).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn fitting_tables_fit() {
        let fitted = shape(&arguments("--shape C1 --row-cap fit")).unwrap();
        let bytes = fitted.rows.iter().sum::<u64>() * (fitted.dim * 4) as u64;
        assert!(bytes <= Machine::detect().usable_bytes());
    }
}
