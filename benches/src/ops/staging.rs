//! The host's part of a step on a device: a batch of the reader goes to page-locked memory.
//!
//! A batch of the shape C1: a label, 13 dense features and 26 row indices a sample. How wide rows
//! and layers are does not matter here, so they are narrow.

use crate::harness::{Floor, Harness, Rate};
use headlong::commands::bench::data::make_batches;
use headlong::commands::bench::iteration::configuration;
use headlong::commands::bench::shapes::Shape;
use headlong::config::DeviceChoice;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::share::copy_share;
use headlong_device::cuda::CudaDevice;
use headlong_embedding::Registry;
use headlong_reader::Batch;

/// Numbers that one thread copies at a time.
const CHUNK: usize = 1 << 15;

/// Runs `staging/C1` where there is a CUDA device: from where the batch lies, by one thread and by
/// all, next to the batch copied first and a plain copy of as many bytes.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    if !harness.wants("staging/C1") {
        return Ok(());
    }
    if let Err(error) = CudaDevice::open(0) {
        println!("staging/C1: skipped, because {error}");
        return Ok(());
    }
    let mut shape = Shape::from_name("C1", Some(500)).map_err(anyhow::Error::msg)?;
    (shape.dim, shape.bottom, shape.top) = (8, vec![8], vec![1]);
    let batch_size = harness.size(65_536, 64);
    let batches = make_batches(&shape, batch_size, 2, 1);
    let all = harness.settings().threads;
    for threads in if all > 1 { vec![1, all] } else { vec![1] } {
        with_threads(harness, &shape, &batches, threads)?;
    }
    plain_copy(harness, &batches);
    Ok(())
}

fn with_threads(
    harness: &mut Harness,
    shape: &Shape,
    batches: &[Batch],
    threads: usize,
) -> anyhow::Result<()> {
    let batch_size = batches[0].num_samples;
    let mut config = configuration(shape, batch_size, threads, None)?;
    config.run.device = DeviceChoice::Cuda;
    let registry = Registry::default();
    let options = RankGroupOptions::new(threads, &registry);
    let group = RankGroup::build(&config, &shape.rows, options)?;
    let worker = group.first();
    let (mut copied, mut number) = (Batch::default(), 0);
    for copies in if threads == 1 { vec![true, false] } else { vec![false] } {
        let way = if copies { "copied first" } else { "in place" };
        let case = format!("staging/C1 batch {batch_size}, {way}, threads {threads}");
        let rate = samples_rate(&case, batch_size);
        let mut failure = None;
        harness.measure(&rate, || {
            number += 1;
            let mut batch = &batches[number % batches.len()];
            if copies {
                copy_share(batch, std::iter::once(0..batch_size), &mut copied);
                batch = &copied;
            }
            failure = failure.take().or(worker.stage(batch).err());
        });
        failure.map_or(Ok(()), |error| Err(anyhow::Error::from(error)))?;
    }
    Ok(())
}

/// As many bytes read and written as staging moves: ids of eight bytes become four, offsets are
/// read alone.
fn plain_copy(harness: &mut Harness, batches: &[Batch]) {
    let batch = &batches[0];
    let ids: usize = batch.sparse.iter().map(|bags| bags.values.len()).sum();
    let offsets: usize = batch.sparse.iter().map(|bags| bags.offsets.len()).sum();
    let kept = batch.labels.len() + batch.dense.len();
    let words = (2 * kept + 3 * ids + offsets) / 2;
    let (from, mut to) = (vec![1.0_f32; words], vec![0.0_f32; words]);
    let pool = headlong_device::pool::Pool::new(harness.settings().threads);
    let batch_size = batch.num_samples;
    let case = format!("staging/C1 batch {batch_size}, a copy of as many bytes");
    harness.measure(&samples_rate(&case, batch_size), || {
        pool.chunks_mut(&mut to, CHUNK, |task, to| {
            to.copy_from_slice(&from[task * CHUNK..][..to.len()]);
        });
    });
}

fn samples_rate(case: &str, batch_size: usize) -> Rate<'_> {
    Rate { name: case, unit: "M samples/s", work: batch_size as f64 * 1e-6, floor: Floor::None }
}
