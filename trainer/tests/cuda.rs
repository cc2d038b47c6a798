//! Training on a CUDA device: the same weights as on the processor within bounds, the same bits whatever the schedule.
//! Where there is no device, the tests say so and pass; the software device (docs/kernels.md) is one.

#![cfg(test)]

use headlong::config::{Config, DeviceChoice, ScheduleChoice};
use headlong::crew::{Crew, CrewOptions};
use headlong::digest::weights_digest;
use headlong::engine::StepRates;
use headlong_device::cuda::testing::device;
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_reader::{Batch, Jagged};

const ROWS: [u64; 4] = [5, 40, 1, 900];
const DENSE: usize = 13;
const SAMPLES: usize = 24;
const STEPS: u64 = 12;

fn config(device: DeviceChoice, schedule: ScheduleChoice, optimizer: &str, accumulate: usize) -> Config {
    let mut config = Config::default();
    config.model.dim = 16;
    config.model.bottom = vec![32, 16];
    config.model.top = vec![24, 1];
    config.data.num_dense = DENSE;
    config.data.num_sparse = ROWS.len();
    config.tables.rows = headlong::config::TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = 3;
    (config.train.batch_size, config.train.accumulate) = (SAMPLES / accumulate, accumulate);
    config.eval.batch_size = SAMPLES;
    (config.run.device, config.run.schedule) = (device, schedule);
    let dense = if optimizer == "adam" { "adam" } else { "sgd" };
    config.optimizer.set_both(dense).unwrap();
    config.optimizer.sparse.name = optimizer.to_owned();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

/// Batch number `number`: bags of none to three ids, many of them the same.
fn batch(number: u64, samples: usize) -> Batch {
    let random = CounterRng::new(21, number);
    let mut counter = 0;
    let mut bits = || {
        counter += 1;
        u64::from(random.bits(counter)[0])
    };
    let sparse = ROWS.iter().map(|&rows| {
        let mut bags = Jagged { values: Vec::new(), offsets: vec![0] };
        for _ in 0..samples {
            for _ in 0..[1, 1, 0, 3][(bits() % 4) as usize] {
                bags.values.push(if bits() % 2 == 0 { bits() % rows.min(3) } else { bits() % rows });
            }
            bags.offsets.push(bags.values.len() as u32);
        }
        bags
    });
    let sparse = sparse.collect();
    Batch {
        num_samples: samples,
        labels: (0..samples).map(|_| (bits() % 2) as f32).collect(),
        dense: (0..samples * DENSE).map(|_| (bits() % 1000) as f32 / 500.0 - 1.0).collect(),
        sparse,
        ..Batch::default()
    }
}

/// What a run left behind.
struct Outcome {
    losses: Vec<f64>,
    digest: String,
    predictions: Vec<f32>,
}

/// Some steps, every seventh batch short, with predictions in the middle and at the end.
fn run(config: &Config) -> Outcome {
    let registry = Registry::default();
    let crew = Crew::build(config, &ROWS, CrewOptions::new(2, &registry)).unwrap();
    let at = |number: u64| batch(number, if number % 7 == 6 { 11 } else { SAMPLES });
    crew.prime(&at(0)).unwrap();
    let (mut losses, mut predictions) = (Vec::new(), Vec::new());
    for number in 1..=STEPS {
        let next = (number < STEPS).then(|| at(number));
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        crew.enqueue(rates, next.as_ref()).unwrap();
        if number % 4 == 0 {
            let take = &mut |logits: &[f32], _: &[f32]| predictions.extend_from_slice(logits);
            crew.predict(&at(100 + number), take).unwrap();
            crew.predict(&at(6), take).unwrap();
        }
        crew.take_losses(&mut |step| losses.push(step.loss));
    }
    crew.settle().unwrap();
    crew.take_losses(&mut |step| losses.push(step.loss));
    assert_eq!(losses.len() as u64, STEPS, "each step gives its loss once");
    Outcome { losses, digest: weights_digest(&crew).unwrap(), predictions }
}

#[test]
fn schedules_and_graphs_change_no_bit() {
    if device().is_none() {
        return;
    }
    for (optimizer, accumulate) in [("sgd", 1), ("rowwise_adagrad", 2)] {
        let of = |schedule| run(&config(DeviceChoice::Cuda, schedule, optimizer, accumulate));
        let serial = of(ScheduleChoice::Serial);
        for schedule in [ScheduleChoice::Overlapped, ScheduleChoice::Captured] {
            let other = of(schedule);
            assert_eq!(serial.losses, other.losses, "{optimizer}, {schedule:?}: losses");
            assert_eq!(serial.digest, other.digest, "{optimizer}, {schedule:?}: weights and states");
            assert_eq!(serial.predictions, other.predictions, "{optimizer}, {schedule:?}: predictions");
        }
    }
}

/// Bounds: f32 products of up to 128 terms near 1 err by at most 128 · 2⁻²⁴ ≈ 8e-6 of their size; over twelve steps at these
/// rates losses near 0.7 stay far within 1e-5, logits of a few units within 1e-4. Adam divides by roots of small numbers: there
/// a gradient near 0 may turn its sign, which moves a weight by twice the rate.
#[test]
fn losses_and_predictions_are_those_of_the_processor() {
    if device().is_none() {
        return;
    }
    for (optimizer, loss_bound, logit_bound) in
        [("sgd", 1e-5, 1e-4), ("adagrad", 1e-4, 1e-3), ("rowwise_adagrad", 1e-4, 1e-3)]
    {
        let of = |device| run(&config(device, ScheduleChoice::Serial, optimizer, 1));
        let (cpu, cuda) = (of(DeviceChoice::Cpu), of(DeviceChoice::Cuda));
        for (step, (cpu, cuda)) in cpu.losses.iter().zip(&cuda.losses).enumerate() {
            let off = (cpu - cuda).abs();
            assert!(off <= loss_bound, "{optimizer}, step {}: loss {cuda}, on the CPU {cpu}", step + 1);
        }
        assert_eq!(cpu.predictions.len(), cuda.predictions.len());
        for (index, (cpu, cuda)) in cpu.predictions.iter().zip(&cuda.predictions).enumerate() {
            let off = (cpu - cuda).abs();
            assert!(off <= logit_bound, "{optimizer}, logit {index}: {cuda}, on the CPU {cpu}");
        }
    }
}
