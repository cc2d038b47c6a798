//! The full epoch on CUDA devices at default settings, in f32 and in bf16, against the processor's:
//! what is learnt there is the same. Hours on the software device: `cargo xtask soak --only
//! cuda_epoch` runs it and keeps what it prints, `--only cuda_epoch_bf16_8` one of its tests. A
//! part of the epoch runs by hand: `HEADLONG_CUDA_LIBS=… cargo test --release -p headlong --test
//! cuda_epoch -- --ignored --nocapture short`.

#![cfg(test)]

mod run_support;

use headlong_device::cuda::testing::{device, has_devices};
use run_support::{Run, last_event};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Of two means over the same seeds: rounding alone moves one epoch's AUC by up to 0.0009
/// (docs/numerics.md).
const WITHIN: f64 = 0.001;

fn data() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/criteo"));
    if folder.join("train.txt.gz").exists() {
        return Some(folder);
    }
    println!("skipped, because {} is absent", folder.display());
    None
}

/// AUC on the rows that follow in time, of one epoch or its first steps.
fn auc(data: &Path, seed: u64, more: &[&str]) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.json");
    let run = Run::new("train")
        .with(&["--preset", "criteo-sample", "--seed", &seed.to_string()])
        .with(more);
    let run =
        run.path("--data", &data.join("train.txt.gz")).path("--valid", &data.join("valid.txt.gz"));
    let started = Instant::now();
    let run = run.variable("SOFTCUDA_TIMEOUT_S", "7200");
    run.path("--output-dir", folder.path()).path("--log-json", &log).succeeds();
    let auc = last_event(&log, "eval")["auc"].as_f64().unwrap();
    println!("seed {seed}, {more:?}: AUC {auc:.5} in {:.0} s", started.elapsed().as_secs_f64());
    auc
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The further settings of a run on CUDA devices. Ranks wait long for each other: a machine that
/// works on other things too, or stops this for a while, is no failure.
const PATIENT: [&str; 2] = ["--set", "comm.deadline_s=7200"];

const SEEDS: [u64; 3] = [1, 2, 3];

/// So many devices against as many ranks on the processor, over these seeds. Of devices, how they
/// walk the schedule is the default.
fn check(seeds: &[u64], ranks: usize, precision: &str, more: &[&str]) {
    let (Some(data), Some(device)) = (data(), device()) else { return };
    if !has_devices(ranks) {
        return;
    }
    println!("{precision} on {ranks} such as {device}");
    let ranks = ranks.to_string();
    let of = |device: &str| {
        let settings = ["--device", device, "--precision", precision, "--ranks", &ranks];
        let settings = [&settings[..], &PATIENT, more].concat();
        let aucs: Vec<f64> = seeds.iter().map(|&seed| auc(&data, seed, &settings)).collect();
        println!("{ranks} of {device}: mean AUC {:.5} of {} seeds", mean(&aucs), seeds.len());
        mean(&aucs)
    };
    let (cpu, cuda) = (of("cpu"), of("cuda"));
    assert!(
        (cpu - cuda).abs() <= WITHIN,
        "{precision}: AUC {cuda:.5} on {ranks} devices, {cpu:.5} on as many ranks"
    );
}

macro_rules! epochs {
    ($($name:ident: $ranks:literal $precision:literal, $long:literal;)*) => {$(
        #[test]
        #[ignore = $long]
        fn $name() {
            check(&SEEDS, $ranks, $precision, &[]);
        }
    )*};
}

epochs! {
    soak_cuda_epoch_f32_1: 1 "f32", "five minutes: cargo xtask soak";
    soak_cuda_epoch_f32_2: 2 "f32", "ten minutes: cargo xtask soak";
    soak_cuda_epoch_f32_4: 4 "f32", "a quarter of an hour: cargo xtask soak";
    soak_cuda_epoch_f32_8: 8 "f32", "half an hour: cargo xtask soak";
    soak_cuda_epoch_bf16_1: 1 "bf16", "ten minutes: cargo xtask soak";
    soak_cuda_epoch_bf16_2: 2 "bf16", "ten minutes: cargo xtask soak";
    soak_cuda_epoch_bf16_4: 4 "bf16", "a quarter of an hour: cargo xtask soak";
    soak_cuda_epoch_bf16_8: 8 "bf16", "half an hour: cargo xtask soak";
}

/// The first steps of the same, on one device and on two.
#[test]
#[ignore = "minutes, by hand"]
fn short_cuda_epoch() {
    for ranks in [1, 2] {
        check(&[1], ranks, "f32", &["--steps", "30", "--set", "train.batch_size=512"]);
    }
}
