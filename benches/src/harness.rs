//! Runs benchmarks, prints a line each, and keeps results as JSON lines.

use crate::floors::Floors;
use headlong::commands::bench::sample::{Block, Sample, Summary, summarize};
use headlong::config::Instructions;
use headlong::system::machine::instruction_limit;
use headlong_device::Stream;
use headlong_device::simd::{Limit, isa};
use serde_json::json;
use std::cell::OnceCell;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

/// How benchmarks are run.
#[derive(Debug, Clone, clap::Args)]
pub struct Settings {
    /// Run everything once on tiny data: it works, the numbers mean nothing, except the ratio of
    /// `tcp`.
    #[arg(long)]
    pub smoke: bool,
    /// Run the benchmarks whose name contains this: parse, lookup, update, cuda_embedding,
    /// interaction, linear, iteration, tcp, hybrid_bytes.
    #[arg(long, default_value = "")]
    pub only: String,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Seconds a benchmark is measured for.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Append results to this file; without a value to `benches/results/<machine>.jsonl`.
    #[arg(long, num_args = 0..=1, default_missing_value = "")]
    pub json: Option<PathBuf>,
    /// Plain Criteo text file for `parse`, instead of a generated one.
    #[arg(long)]
    pub file: Option<PathBuf>,
    #[arg(skip)]
    pub mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Measure,
    /// Its body runs once inside [`counted_instructions`], for a tool that counts them.
    Count,
    /// Its rate with this processor's best instruction set is measured in turn with its rate on
    /// this one.
    Against(Instructions),
}

/// Calls `body`. A function of its own, so that callgrind can be told to count from its beginning
/// to its end.
#[inline(never)]
fn counted_instructions(body: &mut dyn FnMut()) {
    body();
    // Something after the call, else the compiler jumps to the body in place of calling it, and the
    // count has no end.
    black_box(());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floor {
    Arithmetic,
    Read,
    /// Reading rows of 512 bytes at random from a table far larger than the caches, GB/s.
    Gather,
    /// Nothing: the rate stands for itself.
    None,
}

#[derive(Debug, Clone)]
pub struct Rate<'a> {
    /// `op/case`, such as `linear/forward 2048x512x256`.
    pub name: &'a str,
    /// Unit of the rate, such as `GFLOP/s`.
    pub unit: &'a str,
    pub work: f64,
    pub floor: Floor,
}

#[derive(Debug)]
pub struct Harness {
    settings: Settings,
    stream: Stream,
    floors: OnceCell<Floors>,
    results: Vec<serde_json::Value>,
}

impl Harness {
    pub fn new(settings: Settings) -> Self {
        let stream = Stream::cpu(settings.threads);
        Self { settings, stream, floors: OnceCell::new(), results: Vec::new() }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether a benchmark of this name was asked for; asked before its data is made.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.settings.only)
    }

    /// `full`, or `smoke` in smoke mode.
    pub fn size(&self, full: usize, smoke: usize) -> usize {
        if self.settings.smoke { smoke } else { full }
    }

    /// Calls `body` in blocks for the time asked for, prints the median rate and its share of the
    /// floor, and returns the blocks; none where the benchmark was not asked for.
    pub fn measure(&mut self, rate: &Rate<'_>, mut body: impl FnMut()) -> Vec<Sample> {
        if !self.wants(rate.name) {
            return Vec::new();
        }
        body();
        match self.settings.mode {
            Mode::Measure => {
                let samples = self.blocks(rate, &mut body);
                self.report(rate, &samples);
                samples
            }
            Mode::Count => {
                counted_instructions(&mut body);
                println!("counted {}", rate.name);
                Vec::new()
            }
            Mode::Against(other) => {
                self.compare(rate, other, &mut body);
                Vec::new()
            }
        }
    }

    fn blocks(&self, rate: &Rate<'_>, body: &mut impl FnMut()) -> Vec<Sample> {
        let calls = self.calls_per_block(body);
        let mut samples = Vec::new();
        let start = Instant::now();
        while samples.is_empty()
            || (!self.settings.smoke
                && (start.elapsed().as_secs_f64() < self.settings.seconds || samples.len() < 5))
        {
            let block = Block::start();
            (0..calls).for_each(|_| body());
            samples.push(block.stop(rate.work * calls as f64));
        }
        samples
    }

    /// Blocks on this processor's best instruction set and on `other`, in turn; keeps the ratio of
    /// their medians.
    fn compare(&mut self, rate: &Rate<'_>, other: Instructions, body: &mut impl FnMut()) {
        let all = Limit::all();
        let sides = [all, instruction_limit(other).expect("the command line was checked")];
        let calls = self.calls_per_block(body);
        let mut samples = [Vec::new(), Vec::new()];
        let start = Instant::now();
        while samples[0].len() < 5 || start.elapsed().as_secs_f64() < self.settings.seconds {
            for (side, samples) in sides.into_iter().zip(&mut samples) {
                let block = Block::start();
                side.run(|| (0..calls).for_each(|_| body()));
                samples.push(block.stop(rate.work * calls as f64));
            }
        }
        let [here, there] =
            samples.map(|samples| summarize(&samples).map_or(f64::NAN, |summary| summary.median));
        let (ratio, isa, against) = (here / there, all.run(isa).name(), json!(other));
        println!("{:<44} {ratio:>12.3} times as fast with {isa} as with {against}", rate.name);
        self.results.push(json!({
            "bench": rate.name, "isa": isa, "against": against, "ratio": ratio,
            "threads": self.settings.threads,
        }));
    }

    /// Calls that fill a block of a tenth of the time asked for, at most 0.3 s.
    fn calls_per_block(&self, body: &mut impl FnMut()) -> usize {
        if self.settings.smoke {
            return 1;
        }
        let block_s = (self.settings.seconds / 10.0).min(0.3);
        let start = Instant::now();
        body();
        (block_s / start.elapsed().as_secs_f64().max(1e-9)).clamp(1.0, 1e6) as usize
    }

    pub fn report(&mut self, rate: &Rate<'_>, samples: &[Sample]) {
        let Some(summary) = summarize(samples) else { return };
        let share = self.floor(rate.floor).map(|floor| summary.median / floor);
        println!("{}", line(rate, &summary, share));
        let cpu: f64 = samples.iter().map(|sample| sample.cpu_s).sum();
        let work: f64 = samples.iter().map(|sample| sample.rate * sample.wall_s).sum();
        self.results.push(json!({
            "bench": rate.name, "unit": rate.unit, "median": summary.median, "best": summary.best,
            "per_cpu_s": if cpu > 0.0 { Some(work / cpu) } else { None },
            "share_of_floor": share, "foreign": summary.foreign, "num_blocks": summary.num_blocks,
            "threads": self.settings.threads,
        }));
    }

    pub fn keep_row(&mut self, row: serde_json::Value) {
        self.results.push(row);
    }

    pub fn floor(&self, floor: Floor) -> Option<f64> {
        let floors = self.floors.get_or_init(|| Floors::measure(&self.stream, self.settings.smoke));
        match floor {
            Floor::Arithmetic => Some(floors.arithmetic_gflops),
            Floor::Read => Some(floors.read_gbps),
            Floor::Gather => Some(floors.gather_gbps),
            Floor::None => None,
        }
    }

    /// Appends all results to the file asked for, one JSON object a line.
    pub fn keep(&self) -> anyhow::Result<()> {
        let Some(path) = &self.settings.json else { return Ok(()) };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let machine = crate::machine::Machine::here();
        let floors = self.floors.get();
        for result in &self.results {
            let mut line = json!({ "version": env!("CARGO_PKG_VERSION"), "machine": machine.name });
            // Only rates are compared with what the machine can do.
            if result.get("median").is_some() {
                line["floors"] = json!(floors);
            }
            if let (Some(line), Some(result)) = (line.as_object_mut(), result.as_object()) {
                line.extend(result.clone());
            }
            writeln!(file, "{line}")?;
        }
        println!("{} results appended to {}", self.results.len(), path.display());
        Ok(())
    }
}

fn line(rate: &Rate<'_>, summary: &Summary, share: Option<f64>) -> String {
    let share = share.map_or(String::new(), |share| {
        format!("{:5.1} % of {}", share * 100.0, floor_name(rate.floor))
    });
    let noisy = if summary.foreign >= 0.1 {
        format!("  (others used {:.1} cores)", summary.foreign)
    } else {
        String::new()
    };
    format!("{:<44} {:>12.2} {:<12} {share:<24}{noisy}", rate.name, summary.median, rate.unit)
}

pub fn floor_name(floor: Floor) -> &'static str {
    match floor {
        Floor::Arithmetic => "multiply-add peak",
        Floor::Read => "read bandwidth",
        Floor::Gather => "row gather",
        Floor::None => "",
    }
}
