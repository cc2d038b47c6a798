//! A captured step on a device allocates nothing on the host, and no CUDA runtime library is in the
//! process. One test alone in its binary: the counter counts every thread.

#![cfg(test)]

mod made_up;

use headlong::config::{Config, DeviceChoice, TableRows};
use headlong::iteration::lanes::Lanes;
use headlong::iteration::model::Model;
use headlong::iteration::trace::Recorder;
use headlong::iteration::worker::{RankWorker, StepRates};
use headlong_device::cuda::testing::stream;
use headlong_device::testing::{CountingAllocator, allocations};
use headlong_reader::Batch;
use made_up::MadeUp;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SAMPLES: usize = 32;
const DENSE: usize = 13;
const TABLES: usize = 4;
const ROWS: u64 = 300;

fn batch(seed: u64) -> Batch {
    MadeUp { seed, rows: &[ROWS; TABLES], num_dense: DENSE }.one_hot(SAMPLES)
}

#[test]
fn a_captured_step_allocates_nothing() {
    let Some(stream) = stream() else { return };
    let mut config = Config::default();
    config.data.num_sparse = TABLES;
    config.tables.rows = TableRows::Each(ROWS);
    config.model.dim = 16;
    config.model.bottom = vec![32, 16];
    config.model.top = vec![24, 1];
    config.train.batch_size = SAMPLES;
    config.run.device = DeviceChoice::Cuda;
    config.optimizer.set_both("adagrad").unwrap();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    let model = Model::new(&config, &[ROWS; TABLES], &stream).unwrap();
    let mut worker = RankWorker::new(model, Lanes::captured(stream).unwrap(), Recorder::off());
    let batches: Vec<Batch> = (0..4).map(batch).collect();
    worker.prime(&batches[0]).unwrap();
    let mut last_loss = f64::NAN;
    let mut steps = |numbers: std::ops::Range<u64>| {
        let before = allocations();
        for number in numbers {
            let rates = StepRates { number: number + 1, dense: 0.01, sparse: 0.01 };
            worker.enqueue(rates, Some(&batches[(number % 4) as usize])).unwrap();
            worker.take_losses(&mut |step| last_loss = step.loss);
        }
        worker.drain().unwrap();
        allocations() - before
    };
    steps(0..8);
    assert_eq!(steps(8..20), 0, "allocations of twelve captured steps");
    assert!(last_loss.is_finite());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains("libcuda.so"), "the driver is there");
    assert!(!maps.contains("libcudart"), "the runtime library is not");
}
