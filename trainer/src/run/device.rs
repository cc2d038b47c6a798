//! `run.device = "auto"`: CUDA devices where there are enough that train as the processor does,
//! else the processor.

use crate::Registry;
use crate::config::{Config, DeviceChoice, Precision, ScheduleChoice, TableRows};
use crate::error::{Result, chain};
use crate::iteration::ranks::{RankGroup, RankGroupOptions};
use crate::iteration::worker::StepRates;
use crate::run::outlook::{self, Place};
use crate::system::machine::{Machine, cores};
use headlong_device::cuda::{CudaDevice, Library};
use headlong_device::rng::CounterRng;
use headlong_reader::{Batch, Jagged};

/// A configuration whose device is decided.
pub struct Decided {
    pub config: Config,
    /// What was decided, and why, where there is a CUDA device that could be taken.
    pub note: Option<String>,
}

/// The ranks of this process among those of its machine, each of which takes a device, and those of
/// the whole job.
#[derive(Debug, Clone, Copy)]
pub struct RanksHere {
    pub first: usize,
    pub of_process: usize,
    pub of_machine: usize,
    pub of_job: usize,
}

impl RanksHere {
    /// All ranks are threads of this process.
    pub fn single_process(config: &Config) -> Self {
        let ranks = config.run.ranks;
        Self { first: 0, of_process: ranks, of_machine: ranks, of_job: ranks }
    }
}

/// Decides `run.device` where it is `auto`. A software device is for tests and never taken.
///
/// # Errors
/// Data or a dictionary that cannot be read.
pub fn decide(config: &Config, here: RanksHere, registry: &Registry) -> Result<Decided> {
    if config.run.device != DeviceChoice::Auto {
        return Ok(Decided { config: config.clone(), note: None });
    }
    let on = |device| {
        let mut config = config.clone();
        config.run.device = device;
        config
    };
    let processor = |note| Ok(Decided { config: on(DeviceChoice::Cpu), note });
    let devices = CudaDevice::count().unwrap_or(0) as usize;
    if devices == 0 {
        return processor(None);
    }
    let first = match CudaDevice::open(0) {
        Ok(device) if device.is_software() => return processor(None),
        Ok(device) => device,
        Err(error) => return processor(Some(format!("device: the processor: {}", chain(&error)))),
    };
    let name = first.name();
    let mut on_devices = on(DeviceChoice::Cuda);
    match refusal(&mut on_devices, here, devices, registry)? {
        None => {
            let note = format!("device: {name}, whose self-test agrees with the processor");
            Ok(Decided { config: on_devices, note: Some(note) })
        }
        Some(reason) => processor(Some(format!("device: the processor, not {name}: {reason}"))),
    }
}

/// Why the devices are not taken.
fn refusal(
    config: &mut Config,
    here: RanksHere,
    devices: usize,
    registry: &Registry,
) -> Result<Option<String>> {
    if devices < here.of_machine {
        let ranks = here.of_machine;
        return Ok(Some(format!("each of {ranks} ranks needs one, and there are {devices}")));
    }
    if here.of_job > here.of_machine
        && let Err(error) = Library::Nccl.symbol(c"ncclGetVersion")
    {
        return Ok(Some(format!("only NCCL joins devices of several machines: {}", chain(&error))));
    }
    if let Err(error) = config.validate_with(registry) {
        return Ok(Some(chain(&error)));
    }
    let machine = Machine::detect_with(DeviceChoice::Cuda)?;
    let separate = here.of_process < here.of_machine;
    let ranks_here = separate.then_some(here.of_machine);
    let place = Place { machine: &machine, ranks_here, evaluating_here: None, separate, registry };
    if let Some((_, error)) = outlook::what_cannot_fit(config, &place)? {
        return Ok(Some(chain(&error)));
    }
    let taken = here.first..here.first + here.of_process;
    Ok(taken.filter_map(|ordinal| self_test(config, ordinal).err()).next())
}

/// Samples of a batch of the self-test.
const SAMPLES: usize = 64;
/// Rows of each of its tables.
const ROWS: u64 = 100;
/// Its steps: a graph is captured for each of two batch slots, and each is replayed.
const STEPS: u64 = 6;

/// Trains the model of `config`, with small tables, for a few captured steps on device `ordinal`
/// and on the processor, and compares losses and predictions.
fn self_test(config: &Config, ordinal: usize) -> Result<(), String> {
    let on = |device| {
        let outcome = small(config, device).and_then(|config| train(&config, ordinal));
        outcome.map_err(|error| format!("its self-test failed: {}", chain(&error)))
    };
    let (device, processor) = (on(DeviceChoice::Cuda)?, on(DeviceChoice::Cpu)?);
    match first_difference(&device, &processor, bound(config.train.precision)) {
        None => Ok(()),
        Some(at) => Err(format!(
            "its self-test came to {} where the processor comes to {} (device {ordinal}, number \
             {at} of losses and predictions)",
            device[at], processor[at]
        )),
    }
}

/// The model of `config` and its arithmetic, with small tables and batches, on one rank.
fn small(config: &Config, device: DeviceChoice) -> Result<Config> {
    let (model, optimizer) = (config.model.clone(), config.optimizer.clone());
    let mut small = Config { model, optimizer, ..Config::default() };
    small.data.num_dense = config.data.num_dense;
    small.data.num_sparse = config.data.num_sparse;
    small.tables.dtype = config.tables.dtype;
    small.tables.rows = TableRows::List(vec![ROWS; config.data.num_sparse]);
    small.tables.max_ids_per_sample = 1;
    small.train.precision = config.train.precision;
    (small.train.batch_size, small.eval.batch_size) = (SAMPLES, SAMPLES);
    small.run.kernels = config.run.kernels.clone();
    small.run.algorithms = config.run.algorithms.clone();
    small.run.device = device;
    if device == DeviceChoice::Cuda {
        small.run.schedule = ScheduleChoice::Captured;
    }
    small.validate()?;
    Ok(small)
}

/// The losses of a few steps on the same batch, and the predictions after them.
fn train(config: &Config, ordinal: usize) -> Result<Vec<f32>> {
    let rows = vec![ROWS; config.data.num_sparse];
    let registry = Registry::default();
    let options = RankGroupOptions {
        taken_devices: ordinal,
        ..RankGroupOptions::new(cores().min(4), &registry)
    };
    let group = RankGroup::build(config, &rows, options)?;
    let batch = batch(config);
    let mut results = Vec::new();
    // The first step of an adaptive optimiser is as long as its rate, whatever the gradients.
    let rate_of = |optimizer: &str| if optimizer == "sgd" { 0.05 } else { 1e-3 };
    let (dense, sparse) =
        (rate_of(&config.optimizer.dense.name), rate_of(&config.optimizer.sparse.name));
    group.prime(&batch)?;
    for number in 1..=STEPS {
        let rates = StepRates { number, dense, sparse };
        group.enqueue(rates, Some(&batch))?;
    }
    group.drain()?;
    group.take_losses(&mut |step| results.push(step.loss as f32));
    group.predict(&batch, &mut |logits, _| results.extend_from_slice(logits))?;
    Ok(results)
}

fn batch(config: &Config) -> Batch {
    let random = CounterRng::new(1, 0);
    let uniform = |at: usize| random.uniform(at as u64);
    let num_dense = config.data.num_dense;
    let ids = |table: usize| Jagged {
        values: (0..SAMPLES as u64).map(|sample| (sample * sample + table as u64) % ROWS).collect(),
        offsets: (0..=SAMPLES as u32).collect(),
    };
    Batch {
        num_samples: SAMPLES,
        labels: (0..SAMPLES).map(|sample| (sample % 3 == 0) as u8 as f32).collect(),
        dense: (0..SAMPLES * num_dense).map(|at| uniform(at) * 2.0 - 1.0).collect(),
        sparse: (0..config.data.num_sparse).map(ids).collect(),
        ..Batch::default()
    }
}

/// How far losses and predictions may be apart, absolutely and relatively. Sums are made in another
/// order, and in 16 bits round otherwise.
const fn bound(precision: Precision) -> f32 {
    match precision {
        Precision::F32 => 1e-3,
        Precision::Tf32 | Precision::Bf16 | Precision::F16 => 5e-2,
    }
}

/// Where two results are too far apart, or no numbers.
fn first_difference(one: &[f32], other: &[f32], bound: f32) -> Option<usize> {
    assert_eq!(one.len(), other.len(), "losses and predictions of the same steps");
    let agree = |(a, b): (&f32, &f32)| {
        a.is_finite() && b.is_finite() && (a - b).abs() <= bound * b.abs().max(1.0)
    };
    one.iter().zip(other).position(|pair| !agree(pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_far_apart_or_none_are_found() {
        assert_eq!(first_difference(&[1.0, 200.0], &[1.0005, 200.1], 1e-3), None);
        assert_eq!(first_difference(&[1.0, 200.0], &[1.0005, 200.3], 1e-3), Some(1));
        assert_eq!(first_difference(&[f32::NAN], &[f32::NAN], 1e-3), Some(0));
        assert_eq!(first_difference(&[1.0], &[f32::INFINITY], 1e-3), Some(0));
    }

    #[test]
    fn the_batch_has_ids_of_every_table() {
        let config = small(&Config::default(), DeviceChoice::Cpu).unwrap();
        let batch = batch(&config);
        assert_eq!(batch.sparse.len(), config.data.num_sparse);
        assert!(batch.sparse.iter().flat_map(|bags| &bags.values).all(|&row| row < ROWS));
    }
}
