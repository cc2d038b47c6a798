//! The embedding step of published GPU figures, as one captured graph: ids copied, sorted and
//! deduplicated, rows looked up, gradients summed per row, rows updated. 10 tables of 1.68 million
//! rows of 128 f32, 104,857 samples with one id per table, a power law of exponent 1.05.
//!
//! Source of the shape: FBGEMM's table-batched embedding benchmark as published for H100 (0.959 ms
//! forward and backward).

use crate::harness::{Floor, Harness, Rate};
use headlong::commands::bench::data::zipf_rows;
use headlong_device::cuda::{CudaDevice, DeviceMemory, DeviceStep};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::pool::Pool;
use headlong_device::{ArenaPlan, DType, JaggedRef, Stream};
use headlong_embedding::{EmbeddingSet, SetOptions, TableSpec};
use std::sync::Arc;
use std::time::Instant;

const TABLES: usize = 10;
const DIM: usize = 128;

const LAUNCHES: usize = 16;

/// Runs `cuda_embedding/sgd` and `cuda_embedding/adagrad` where there is a CUDA device.
pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    let adagrad = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
    for optimizer in [Optimizer::Sgd, adagrad] {
        let name = format!("cuda_embedding/{}", optimizer.name());
        if !harness.wants(&name) {
            continue;
        }
        match CudaDevice::open(0) {
            Ok(device) => with_optimizer(harness, &device, optimizer, &name)?,
            Err(error) => println!("{name}: skipped, because {error}"),
        }
    }
    Ok(())
}

fn with_optimizer(
    harness: &mut Harness,
    device: &CudaDevice,
    optimizer: Optimizer,
    name: &str,
) -> anyhow::Result<()> {
    let (samples, rows) = (harness.size(104_857, 64), harness.size(1_680_000, 500) as u64);
    let stream = Stream::cuda(device, Arc::new(Pool::new(harness.settings().threads)))?;
    let specs: Vec<_> = (0..TABLES).map(|t| TableSpec::new(&format!("t{t}"), rows, DIM)).collect();
    let (seed, sum_blocks, frozen, narrow) = (1, 1, false, None);
    let (max_samples, max_ids) = (samples, &vec![samples; TABLES][..]);
    let options = SetOptions { optimizer, seed, max_samples, max_ids, sum_blocks, frozen, narrow };
    let set = EmbeddingSet::new(&stream, &specs, &options)?;
    let step = DeviceMemory::new(device, "step", size_of::<DeviceStep>())?;
    let rate = Step { learning_rate: 1e-6, number: 1 };
    let words = DeviceStep::new(&rate, &optimizer).words();
    step.write(0, &words.map(u32::to_ne_bytes).concat())?;
    set.set_device_step(step.ptr());

    let ids: Vec<Vec<u64>> = (0..TABLES as u64).map(|t| zipf_rows(1, t, rows, samples)).collect();
    let offsets: Vec<u32> = (0..=samples as u32).collect();
    let ids: Vec<JaggedRef> = ids.iter().map(|ids| JaggedRef::new(ids, &offsets)).collect();
    let mut plan = ArenaPlan::new("vectors");
    let slots =
        ["vectors", "d_vectors"].map(|name| plan.matrix(name, DType::F32, samples, set.width()));
    let arena = plan.freeze_on(&stream)?;
    let [vectors, d_vectors] = slots.map(|slot| arena.mat(slot));
    let mut route = set.new_route()?;
    route.stage(&ids)?;
    let mut whole = || -> anyhow::Result<()> {
        route.copy(&stream);
        set.route(&stream, &ids, &mut route)?;
        set.lookup_routed(&stream, &ids, &route, &vectors)?;
        set.update(&stream, &route, &d_vectors, &rate)?;
        Ok(stream.check()?)
    };
    // Eagerly first: it loads the kernels.
    whole()?;
    stream.synchronize()?;
    let mut outcome = Ok(());
    let cuda = stream.cuda_body();
    let graph = cuda.capture(|| {
        outcome = whole();
        Ok(())
    });
    outcome?;
    let graph = graph?;
    let started = Instant::now();
    let mut steps = 0;
    let lookups = (samples * TABLES * LAUNCHES) as f64;
    let case = format!("{name} {device}");
    let rate = Rate { name: &case, unit: "M ids/s", work: lookups * 1e-6, floor: Floor::None };
    harness.measure(&rate, || {
        (0..LAUNCHES).for_each(|_| graph.launch(cuda));
        steps += LAUNCHES;
        if let Err(error) = stream.synchronize() {
            panic!("{error}");
        }
    });
    let milliseconds = 1e3 * started.elapsed().as_secs_f64() / steps as f64;
    println!("{case}: {milliseconds:.4} ms a step, {} nodes in its graph", graph.num_nodes());
    harness.keep_row(serde_json::json!({"bench": case, "unit": "ms a step", "mean": milliseconds}));
    Ok(())
}
