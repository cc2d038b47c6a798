//! `headlong bench embedding`: what a step asks of embedding tables, and nothing else: ids routed
//! (sorted, deduplicated), rows looked up and pooled, gradients summed for each row, rows updated.
//! By the same set of tables as in training, on one rank.

use super::data::power_law_rows;
use super::memory::{self, ARRAY_BYTES};
use super::sample::{Summary, summarize, timed_blocks};
use crate::config::ranges::time;
use crate::config::{DeviceChoice, OptimizersConfig};
use crate::error::{Error, Result};
use crate::plan::Count;
use crate::report::count;
use crate::report::output::{self, JsonOutput};
use crate::system::machine::{Machine, peak_rss_bytes};
use clap::Args;
use headlong_device::cuda::{CudaDevice, DeviceMemory, DeviceStep};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::pool::Pool;
use headlong_device::{Arena, ArenaPlan, DType, JaggedRef, Mat, Stream};
use headlong_embedding::cuda::{MAX_ENTRIES, num_entries};
use headlong_embedding::hybrid::MAX_TABLE_ROWS;
use headlong_embedding::route::Route;
use headlong_embedding::table::MAX_DIM;
use headlong_embedding::{EmbeddingSet, SetOptions, TableSpec};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

/// Batches that take turns: tables do not stay in the caches for one batch.
const BATCHES: usize = 8;
/// Calls on a device between two waits of the host.
const CALLS_ON_A_DEVICE: usize = 16;
const BLOCK_S: f64 = 0.1;
/// Bytes of the copy whose rate is the roofline; fewer where an emulated device would take minutes.
const COPY_BYTES: usize = ARRAY_BYTES;
const EMULATED_COPY_BYTES: usize = 1 << 20;
const COPIES: usize = 5;
/// Blocks that are measured at least.
const FEWEST_BLOCKS: usize = 3;

/// Arguments of `headlong bench embedding`.
#[derive(Debug, Args)]
pub struct EmbeddingArguments {
    /// Tables
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub tables: usize,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rows: u64,
    /// Elements of a row (f32)
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub dim: usize,
    /// Ids of each table in a step
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub ids: usize,
    /// Ids of a sample in each table: these are summed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub bag: usize,
    /// The row of rank k is asked for in proportion to k^-ALPHA; 0: all alike
    #[arg(long, value_name = "ALPHA", default_value_t = super::data::ZIPF_EXPONENT)]
    pub alpha: f64,
    /// sgd, adagrad, rowwise_adagrad, lazy_adam (or adam, lamb) or ftrl
    #[arg(long, value_name = "NAME", default_value = "adagrad")]
    pub optimizer: String,
    /// Where the tables lie; auto is the processor
    #[arg(long, value_name = "auto|cpu|cuda", default_value = "cpu")]
    pub device: DeviceChoice,
    /// Threads; one per core by default
    #[arg(long, value_name = "N", value_parser = crate::config::ranges::threads)]
    pub threads: Option<usize>,
    /// Seconds to measure each operation
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = time)]
    pub seconds: f64,
    /// Where the JSON goes
    #[command(flatten)]
    pub json: JsonOutput,
}

pub fn run(arguments: &EmbeddingArguments) -> Result<()> {
    let optimizer = checked(arguments)?;
    let threads = arguments.threads.unwrap_or_else(crate::system::machine::cores);
    let bench = Tables::new(arguments, optimizer, threads)?;
    let mut measured = Vec::new();
    for operation in Operation::ALL {
        measured.push((operation, bench.measure(operation, arguments.seconds)?));
    }
    let document = document(arguments, optimizer, threads, &bench, &measured);
    output::answer(&arguments.json, &text(arguments, optimizer, &bench, &measured), &document)
}

/// Refuses what cannot be measured.
fn checked(arguments: &EmbeddingArguments) -> Result<Optimizer> {
    let EmbeddingArguments { tables, dim, ids, bag, .. } = *arguments;
    let is_sound =
        tables > 0 && arguments.rows > 0 && dim > 0 && bag > 0 && arguments.threads != Some(0);
    if !is_sound || ids == 0 || !ids.is_multiple_of(bag) {
        return Err(Error::Usage(
            "--tables, --rows, --dim, --bag and --threads are above 0, --ids a multiple of --bag"
                .to_owned(),
        ));
    }
    if !(arguments.alpha >= 0.0 && arguments.alpha.is_finite()) {
        return Err(Error::Usage("--alpha is finite, and 0 or more".to_owned()));
    }
    let mut optimizers = OptimizersConfig::default();
    optimizers.set_both(&arguments.optimizer)?;
    optimizers.resolve()?;
    let optimizer = optimizers.sparse.optimizer();
    for (flag, found, most) in [
        ("--dim", dim as u64, MAX_DIM as u64),
        ("--ids", ids as u64, u64::from(u32::MAX)),
        ("--rows", arguments.rows, MAX_TABLE_ROWS),
    ] {
        if found > most {
            return Err(Error::Usage(format!("{flag}: expected at most {most}, found {found}")));
        }
    }
    if arguments.device == DeviceChoice::Cuda {
        check_on_device(arguments, &optimizer)?;
        return Ok(optimizer);
    }
    let help = || "lower --rows, --dim, --tables or --ids".to_owned();
    memory(arguments, &optimizer).must_fit(Machine::detect().usable_bytes(), help)?;
    Ok(optimizer)
}

/// Refuses what a CUDA device, or the host that draws the ids for it, has no room for.
fn check_on_device(arguments: &EmbeddingArguments, optimizer: &Optimizer) -> Result<()> {
    let entries = Count::from(num_entries(arguments.ids)) * arguments.tables;
    if entries > MAX_ENTRIES as u64 {
        return Err(Error::Usage(format!(
            "--ids, --tables: expected at most {MAX_ENTRIES} ids of all tables on a CUDA device, \
             those of each rounded up to a multiple of {}, found {}",
            num_entries(1),
            entries.get()
        )));
    }
    let machine = Machine::detect_with(arguments.device)?;
    let [on_device, on_host] = memory_with_device(arguments, optimizer);
    if let Some(device) = &machine.device {
        let help = || "on the CUDA device: lower --rows, --dim, --tables or --ids".to_owned();
        on_device.must_fit(device.free_bytes, help)?;
    }
    let help = || "on the host, which draws the ids: lower --tables or --ids".to_owned();
    Ok(on_host.must_fit(machine.usable_bytes(), help)?)
}

/// Bytes on a CUDA device: rows and their states, the route of each batch, sums of rows' parts, a
/// batch's vectors with their gradients. And on the host: ids, and what is staged of each batch.
/// What is copied is given back before.
fn memory_with_device(arguments: &EmbeddingArguments, optimizer: &Optimizer) -> [Count; 2] {
    /// Bytes of an id in a route: staged with its factor, its keys and values in sorts, chunks.
    const ROUTE_BYTES: usize = 8 + 30;
    /// Bytes of an id on the host in a batch, and staged for the device.
    const HOST_BYTES: usize = 8 + 8;
    let EmbeddingArguments { tables, rows, dim, ids, bag, .. } = *arguments;
    let rows = Count::from(rows) * tables;
    let entries = Count::from(num_entries(ids)) * tables;
    let (ids, samples) = (Count::from(ids) * tables, Count::from(ids / bag) * tables);
    let row_bytes = Count::from(dim) * 4_u64 + optimizer.state_bytes(1, dim.min(MAX_DIM));
    // Two sums for 32 ids.
    let sums = entries * dim / 4;
    let offsets = samples * (4 * BATCHES);
    let on_device = rows * row_bytes
        + entries * (ROUTE_BYTES * BATCHES)
        + sums
        + offsets
        + samples * dim * 8_u64;
    [on_device, ids * (HOST_BYTES * BATCHES) + offsets]
}

/// Rows and their states, ids of all batches, what a batch is routed by, its vectors with their
/// gradients, and what is copied.
fn memory(arguments: &EmbeddingArguments, optimizer: &Optimizer) -> Count {
    /// Bytes of an id in a batch and in a route.
    const ID_BYTES: usize = 8 * BATCHES + 64;
    let EmbeddingArguments { tables, rows, dim, ids, bag, .. } = *arguments;
    let rows = Count::from(rows) * tables;
    let (ids, samples) = (Count::from(ids) * tables, Count::from(ids / bag) * tables);
    let row_bytes = Count::from(dim) * 4_u64 + optimizer.state_bytes(1, dim.min(MAX_DIM));
    rows * row_bytes + ids * ID_BYTES + samples * dim * 8_u64 + 2 * COPY_BYTES as u64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Route,
    Lookup,
    Update,
    Step,
}

impl Operation {
    const ALL: [Self; 4] = [Self::Route, Self::Lookup, Self::Update, Self::Step];

    fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Lookup => "lookup",
            Self::Update => "update",
            Self::Step => "step",
        }
    }
}

/// Tables, and batches that ask for their rows.
struct Tables {
    stream: Stream,
    set: EmbeddingSet,
    /// Holds what `vectors` and `d_vectors` are views of.
    _arena: Arena,
    vectors: Mat,
    d_vectors: Mat,
    /// Ids of each table, of all batches.
    ids: Vec<Vec<u64>>,
    offsets: Vec<u32>,
    ids_per_batch: usize,
    rate: Step,
    /// Distinct rows of a batch, over all tables, on average.
    distinct_rows: f64,
    /// Bytes of a row and its optimiser states.
    state_row_bytes: f64,
    /// What a plain copy reads and writes, by the same threads or on the same device.
    copy_gb_per_s: f64,
    _device_step: Option<DeviceMemory>,
}

impl Tables {
    fn new(arguments: &EmbeddingArguments, optimizer: Optimizer, threads: usize) -> Result<Self> {
        let failed = || Error::failed("the tables of the bench");
        let pool = Arc::new(Pool::new(threads));
        let (stream, device) = match arguments.device {
            DeviceChoice::Cuda => {
                let device = CudaDevice::open(0).map_err(Error::failed("the CUDA device"))?;
                (
                    Stream::cuda(&device, pool).map_err(Error::failed("the CUDA device"))?,
                    Some(device),
                )
            }
            _ => (Stream::on_pool(pool), None),
        };
        let copy_gb_per_s = copy_gb_per_s(&stream, device.as_ref())?;
        let EmbeddingArguments { tables, dim, ids, bag, .. } = *arguments;
        let samples = ids / bag;
        let specs: Vec<_> = (0..tables)
            .map(|table| TableSpec::new(&format!("t{table}"), arguments.rows, dim))
            .collect();
        let (max_ids, seed, sum_blocks, frozen) = (vec![ids; tables], 1, 1, false);
        let options = SetOptions {
            optimizer,
            seed,
            max_samples: samples,
            max_ids: &max_ids,
            sum_blocks,
            frozen,
            narrow: None,
        };
        let set = EmbeddingSet::new(&stream, &specs, &options).map_err(failed())?;
        let rate = Step { learning_rate: 1e-6, number: 1 };
        let device_step = device.map(|device| step_on(&device, &rate, &optimizer)).transpose()?;
        if let Some(step) = &device_step {
            set.set_device_step(step.ptr());
        }
        let mut plan = ArenaPlan::new("vectors");
        let slots = ["vectors", "d_vectors"]
            .map(|name| plan.matrix(name, DType::F32, samples, set.width()));
        let arena = plan.freeze_on(&stream).map_err(Error::failed("the vectors of the bench"))?;
        let [vectors, d_vectors] = slots.map(|slot| arena.mat(slot));
        let drawn =
            |table| power_law_rows(1, table, arguments.rows, BATCHES * ids, arguments.alpha);
        let drawn: Vec<Vec<u64>> = (0..tables as u64).map(drawn).collect();
        let distinct = |batch: &[u64]| batch.iter().collect::<HashSet<_>>().len();
        let distinct: usize =
            drawn.iter().flat_map(|of_table| of_table.chunks(ids)).map(distinct).sum();
        Ok(Self {
            stream,
            set,
            _arena: arena,
            vectors,
            d_vectors,
            ids: drawn,
            offsets: (0..=samples as u32).map(|sample| sample * bag as u32).collect(),
            ids_per_batch: ids,
            rate,
            distinct_rows: distinct as f64 / BATCHES as f64,
            state_row_bytes: (dim as u64 * 4 + optimizer.state_bytes(1, dim)) as f64,
            copy_gb_per_s,
            _device_step: device_step,
        })
    }

    fn batch(&self, batch: usize) -> Vec<JaggedRef<'_>> {
        let (begin, length) = (batch * self.ids_per_batch, self.ids_per_batch);
        self.ids.iter().map(|ids| JaggedRef::new(&ids[begin..][..length], &self.offsets)).collect()
    }

    /// A route for each batch, which it has been through.
    fn routes(&self, batches: &[Vec<JaggedRef<'_>>]) -> Result<Vec<Route>> {
        let route = |ids: &Vec<JaggedRef<'_>>| {
            let mut route = self.set.new_route()?;
            route.stage(ids)?;
            route.copy(&self.stream);
            self.set.route(&self.stream, ids, &mut route)?;
            Ok(route)
        };
        let routes = batches.iter().map(route).collect::<headlong_embedding::Result<_>>();
        routes.map_err(Error::failed("the ids of the bench"))
    }

    /// Steps a second of one operation.
    fn measure(&self, operation: Operation, seconds: f64) -> Result<Summary> {
        let batches: Vec<_> = (0..BATCHES).map(|batch| self.batch(batch)).collect();
        let mut routes = self.routes(&batches)?;
        let mut turn = 0;
        let mut once = || -> headlong_embedding::Result<()> {
            turn = (turn + 1) % BATCHES;
            let (ids, route) = (&batches[turn], &mut routes[turn]);
            if matches!(operation, Operation::Route | Operation::Step) {
                route.copy(&self.stream);
                self.set.route(&self.stream, ids, route)?;
            }
            if matches!(operation, Operation::Lookup | Operation::Step) {
                self.set.lookup_routed(&self.stream, ids, route, &self.vectors)?;
            }
            if matches!(operation, Operation::Update | Operation::Step) {
                self.set.update(&self.stream, route, &self.d_vectors, &self.rate)?;
            }
            Ok(())
        };
        let at_once = if self.stream.as_cuda().is_some() { CALLS_ON_A_DEVICE } else { 1 };
        let mut calls = |count: usize| -> Result<f64> {
            for _ in 0..count {
                (0..at_once)
                    .try_for_each(|_| once())
                    .map_err(Error::failed("the bench of tables"))?;
                self.stream.synchronize().map_err(Error::failed("the bench of tables"))?;
            }
            Ok((count * at_once) as f64)
        };
        calls(2)?;
        let samples = timed_blocks((seconds, BLOCK_S, FEWEST_BLOCKS), calls)?;
        Ok(summarize(&samples).expect("at least one block was measured"))
    }

    /// Bytes of rows that an operation reads and writes in a step: a lookup reads one for each id,
    /// an update a gradient for each id, and reads and writes every distinct row.
    fn row_bytes(&self, operation: Operation, dim: usize) -> f64 {
        let ids = (self.ids.len() * self.ids_per_batch) as f64;
        let (lookup, update) = (ids, ids + 2.0 * self.distinct_rows);
        let rows = match operation {
            Operation::Route => 0.0,
            Operation::Lookup => lookup,
            Operation::Update => update,
            Operation::Step => lookup + update,
        };
        rows * (dim * 4) as f64
    }

    /// Microseconds of a plain copy of what an operation cannot do without: a lookup reads each
    /// distinct row once and writes a vector for each bag, an update reads a gradient for each bag,
    /// and reads and writes each distinct row and its states. None for a route, which is no copy.
    fn roofline_us(&self, operation: Operation) -> Option<f64> {
        let vectors = (self.vectors.rows() * self.vectors.cols() * 4) as f64;
        let width = (self.vectors.cols() / self.ids.len() * 4) as f64;
        let lookup = self.distinct_rows * width + vectors;
        let update = vectors + 2.0 * self.distinct_rows * self.state_row_bytes;
        let bytes = match operation {
            Operation::Route => return None,
            Operation::Lookup => lookup,
            Operation::Update => update,
            Operation::Step => lookup + update,
        };
        Some(bytes / self.copy_gb_per_s * 1e-3)
    }
}

/// GB that the fastest of some plain copies reads and writes in a second.
fn copy_gb_per_s(stream: &Stream, device: Option<&CudaDevice>) -> Result<f64> {
    let failed = || Error::failed("the copy that the bench compares with");
    let is_emulated = device.is_some_and(CudaDevice::is_software);
    let bytes = if is_emulated { EMULATED_COPY_BYTES } else { COPY_BYTES };
    let seconds = match device {
        Some(device) => {
            let [from, to] = ["from", "to"].map(|name| DeviceMemory::new(device, name, bytes));
            let (from, to) = (from.map_err(failed())?, to.map_err(failed())?);
            let copy = || stream.cuda_body().copy(to.ptr(), from.ptr(), bytes);
            fastest_s(CALLS_ON_A_DEVICE, || {
                (0..CALLS_ON_A_DEVICE).for_each(|_| copy());
                stream.synchronize().map_err(failed())
            })?
        }
        None => return Ok(memory::copy_gb_per_s(stream, bytes, COPIES)),
    };
    Ok(2e-9 * bytes as f64 / seconds)
}

/// Seconds of one of the `calls` that `run` makes, in the fastest of some runs; the first, which
/// touches the memory, does not count.
fn fastest_s(calls: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut fastest = f64::INFINITY;
    for _ in 0..COPIES {
        let begun = Instant::now();
        run()?;
        fastest = fastest.min(begun.elapsed().as_secs_f64() / calls as f64);
    }
    Ok(fastest)
}

/// The step's numbers where kernels read them.
fn step_on(device: &CudaDevice, rate: &Step, optimizer: &Optimizer) -> Result<DeviceMemory> {
    let failed = || Error::failed("the CUDA device");
    let memory = DeviceMemory::new(device, "step", size_of::<DeviceStep>()).map_err(failed())?;
    let words = DeviceStep::new(rate, optimizer).words();
    memory.write(0, &words.map(u32::to_ne_bytes).concat()).map_err(failed())?;
    Ok(memory)
}

fn document(
    arguments: &EmbeddingArguments,
    optimizer: Optimizer,
    threads: usize,
    bench: &Tables,
    measured: &[(Operation, Summary)],
) -> Value {
    let EmbeddingArguments { tables, rows, dim, ids, bag, alpha, .. } = *arguments;
    let peak_rss_bytes = peak_rss_bytes();
    let step = &measured.last().expect("every operation was measured").1;
    let device = bench.stream.as_cuda().map(|_| "cuda").unwrap_or("cpu");
    let mut document = json!({
        "bench": "embedding", "schema": 1, "tables": tables, "rows": rows, "dim": dim, "ids": ids,
        "bag": bag, "alpha": alpha, "optimizer": optimizer.name(), "device": device,
        "threads": threads, "distinct_rows": bench.distinct_rows,
        "copy_gb_per_s": bench.copy_gb_per_s, "ids_per_s": step.median * (tables * ids) as f64,
        "best": step.best * (tables * ids) as f64, "foreign": step.foreign,
        "peak_rss_bytes": peak_rss_bytes,
    });
    for (operation, summary) in measured {
        document[format!("{}_us", operation.name())] = json!(1e6 / summary.median);
        let bytes = bench.row_bytes(*operation, dim);
        if bytes > 0.0 {
            document[format!("{}_gb_per_s", operation.name())] =
                json!(bytes * summary.median * 1e-9);
        }
        if let Some(us) = bench.roofline_us(*operation) {
            document[format!("{}_roofline_us", operation.name())] = json!(us);
        }
    }
    document
}

fn text(
    arguments: &EmbeddingArguments,
    optimizer: Optimizer,
    bench: &Tables,
    measured: &[(Operation, Summary)],
) -> String {
    let EmbeddingArguments { tables, rows, dim, ids, bag, alpha, .. } = *arguments;
    let mut text = format!(
        "{tables} tables of {} rows of {dim} f32, {} ids each ({bag} a sample), alpha {alpha}, {}\n\
         {} distinct rows a step, a plain copy reads and writes {:.1} GB/s\n\
         {:<8} {:>12} {:>12}  {:>12} {:>12} {:>8}\n",
        count(rows),
        count(ids as u64),
        optimizer.name(),
        count(bench.distinct_rows as u64),
        bench.copy_gb_per_s,
        "",
        "µs a step",
        "M ids/s",
        "GB/s of rows",
        "roofline, µs",
        "share"
    );
    for (operation, summary) in measured {
        let bytes = bench.row_bytes(*operation, dim);
        let rate = if bytes > 0.0 {
            format!("{:.2}", bytes * summary.median * 1e-9)
        } else {
            "–".to_owned()
        };
        let us = 1e6 / summary.median;
        let [roofline, share] = match bench.roofline_us(*operation) {
            Some(roofline) => [format!("{roofline:.1}"), format!("{:.2}", roofline / us)],
            None => ["–", "–"].map(str::to_owned),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<8} {us:>12.1} {:>12.1}  {rate:>12} {roofline:>12} {share:>8}",
            operation.name(),
            summary.median * (tables * ids) as f64 * 1e-6
        );
    }
    let foreign = measured.iter().map(|(_, summary)| summary.foreign).fold(0.0, f64::max);
    if foreign >= 0.1 {
        let _ =
            writeln!(text, "others used {foreign:.1} cores meanwhile: repeat on a quiet machine");
    }
    text
}
