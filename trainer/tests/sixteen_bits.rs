//! Training in 16 bits on the processor, and on a CUDA device where there is one. In f16 the loss
//! is scaled: what overflows is skipped, and nothing else changes.

#![cfg(test)]

use crate::run_support::{Place, Run, events, last_event};
use headlong::config::{Compress, Config, DeviceChoice, Precision, ScheduleChoice};
use headlong::iteration::model::table_specs;
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_device::cuda::testing::{device, has_devices};
use headlong_device::rng::CounterRng;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::{Owner, Partition, TablePlacement};
use headlong_mlp::loss_scale::ScaleState;
use headlong_reader::{Batch, Jagged};
use std::sync::Arc;

const ROWS: [u64; 3] = [40, 7, 900];
const DENSE: usize = 4;
const SAMPLES: usize = 32;
const SCHEDULES: [ScheduleChoice; 3] =
    [ScheduleChoice::Serial, ScheduleChoice::Overlapped, ScheduleChoice::Captured];

/// Where these tests run.
fn places() -> Vec<DeviceChoice> {
    let cuda = device().map(|_| DeviceChoice::Cuda);
    [DeviceChoice::Cpu].into_iter().chain(cuda).collect()
}

fn can_have(place: DeviceChoice, ranks: usize) -> bool {
    place == DeviceChoice::Cpu || has_devices(ranks)
}

fn config(place: DeviceChoice, precision: Precision, loss_scale: f64) -> Config {
    let mut config = Config::default();
    config.model.dim = 16;
    config.model.bottom = vec![24, 16];
    config.model.top = vec![24, 1];
    (config.data.num_dense, config.data.num_sparse) = (DENSE, ROWS.len());
    config.tables.rows = headlong::config::TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = 1;
    (config.train.batch_size, config.eval.batch_size) = (SAMPLES, SAMPLES);
    (config.train.precision, config.train.loss_scale) = (precision, loss_scale);
    (config.run.device, config.run.schedule) = (place, ScheduleChoice::Serial);
    config.optimizer.set_both("sgd").unwrap();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

/// The label of the last sample is `outlier` where there is one, so that the gradient of its logit
/// is near that; those of others are below 1.
fn batch(number: u64, outlier: Option<f32>) -> Batch {
    let random = CounterRng::new(5, number);
    let draw = |index: u64| random.uniform(index);
    let sparse = ROWS.iter().zip(1..).map(|(&rows, table)| Jagged {
        values: (0..SAMPLES as u64)
            .map(|s| (draw(table * 64 + s).powi(2) * rows as f32) as u64)
            .collect(),
        offsets: (0..=SAMPLES as u32).collect(),
    });
    let mut batch = Batch {
        num_samples: SAMPLES,
        labels: (0..SAMPLES as u64).map(|sample| f32::from(u8::from(draw(sample) < 0.4))).collect(),
        dense: (0..(SAMPLES * DENSE) as u64).map(|index| draw(1000 + index) * 2.0 - 1.0).collect(),
        sparse: sparse.collect(),
        ..Batch::default()
    };
    if let Some(label) = outlier {
        batch.labels[SAMPLES - 1] = label;
    }
    batch
}

/// Rows replicated, split and owned whole.
fn group(config: &Config) -> RankGroup {
    let ranks = config.run.ranks;
    let placements = vec![
        TablePlacement::RowWise { frequent: vec![0, 1, 5], placed: vec![(2, Owner(ranks - 1))] },
        TablePlacement::DataParallel,
        TablePlacement::TableWise(Owner(ranks - 1)),
    ];
    let partition = Partition::new(&table_specs(config, &ROWS), ranks, placements).unwrap();
    let partition = (ranks > 1).then(|| Arc::new(partition));
    let registry = Registry::default();
    RankGroup::build(
        config,
        &ROWS,
        RankGroupOptions { partition, ..RankGroupOptions::new(2, &registry) },
    )
    .unwrap()
}

/// What each step leaves: digest of all weights and states, loss, scale; the same scale on all
/// ranks.
fn steps(
    group: &RankGroup,
    batches: std::ops::Range<u64>,
    outlier: u64,
) -> Vec<(String, f64, ScaleState)> {
    let batch = |number| batch(number, (number == outlier).then_some(3.0));
    group.prime(&batch(batches.start)).unwrap();
    let step = |number: u64| {
        let next = (number + 1 < batches.end).then(|| batch(number + 1));
        let loss = group
            .step(StepRates { number: number + 1, dense: 0.1, sparse: 0.2 }, next.as_ref())
            .unwrap();
        let scales: Vec<_> =
            (0..group.len()).map(|rank| group.worker(rank).loss_scale().unwrap()).collect();
        assert!(scales.iter().all(|scale| *scale == scales[0]), "ranks disagree: {scales:?}");
        (weights_digest(group).unwrap(), loss, scales[0].unwrap())
    };
    batches.clone().map(step).collect()
}

/// A scale so large that the first steps overflow: these change nothing, each halves the scale, and
/// what follows is what a run with the scale that was found makes of the same batches.
#[test]
fn overflows_are_skipped_and_nothing_else_changes() {
    for place in places() {
        for (ranks, optimizer) in [(1, "rowwise_adagrad"), (2, "sgd"), (4, "sgd")] {
            if !can_have(place, ranks) {
                continue;
            }
            let with = |loss_scale: f64| {
                let mut config = config(place, Precision::F16, loss_scale);
                config.run.ranks = ranks;
                config.optimizer.sparse.name = optimizer.to_owned();
                config.optimizer.resolve().unwrap();
                config
            };
            let what = format!("{place:?}, {ranks} ranks, {optimizer}");
            let first = 16_777_216.0;
            let group_of = |scale| group(&with(scale));
            let run = group_of(first);
            let untouched = weights_digest(&run).unwrap();
            let all = steps(&run, 0..12, u64::MAX);
            let skipped = all.iter().take_while(|(digest, ..)| *digest == untouched).count();
            // The gradient of a logit is up to 2²⁴ / 32 · 0.6, which is 5 · 65504: two steps at
            // least.
            assert!((2..10).contains(&skipped), "{what}: {skipped} steps were skipped");
            for (index, (.., scale)) in all.iter().enumerate() {
                assert_eq!(scale.was_skipped, index < skipped, "{what}, step {}", index + 1);
                let halved = f64::from(scale.scale) * 2_f64.powi((index + 1).min(skipped) as i32);
                assert_eq!(halved, first, "{what}, step {}", index + 1);
            }
            assert_eq!(all[11].2.num_skipped, skipped as u32);
            let found =
                steps(&group_of(f64::from(all[skipped].2.scale)), skipped as u64..12, u64::MAX);
            for (after, (one, other)) in all[skipped..].iter().zip(&found).enumerate() {
                assert_eq!(
                    (&one.0, one.1),
                    (&other.0, other.1),
                    "{what}, {after} steps behind the last skipped"
                );
            }
        }
    }
}

/// One sample of one rank overflows, and all ranks skip that step.
#[test]
fn what_one_rank_finds_all_ranks_obey() {
    for place in places() {
        for ranks in [2, 4] {
            if !can_have(place, ranks) {
                continue;
            }
            for outlier in [3, 6] {
                // Gradients of logits overflow from 65504 · 32 / 2²¹ = 0.9995 on, which the
                // outlier's alone reaches; those of hidden layers are smaller.
                let mut config = config(place, Precision::F16, 2_097_152.0);
                config.run.ranks = ranks;
                let all = steps(&group(&config), 0..9, outlier);
                for (index, pair) in all.windows(2).enumerate() {
                    let number = index as u64 + 1;
                    let what = format!("{place:?}, {ranks} ranks, batch {number}");
                    assert_eq!(pair[0].0 == pair[1].0, pair[1].2.was_skipped, "{what}");
                    assert_eq!(pair[1].2.was_skipped, number == outlier, "{what}");
                }
            }
        }
    }
}

/// Steps are enqueued ahead, the scale falls and grows meanwhile, and a batch is short now and
/// then.
#[test]
fn schedules_change_no_bit() {
    for place in places() {
        for ranks in [1, 2] {
            let schedules = if place == DeviceChoice::Cpu { &SCHEDULES[..2] } else { &SCHEDULES };
            let of = |schedule: &ScheduleChoice| {
                let mut config = config(place, Precision::F16, 16_777_216.0);
                (config.run.schedule, config.run.ranks) = (*schedule, ranks);
                config.train.loss_scale_interval = 4;
                let group = group(&config);
                group.prime(&batch(0, None)).unwrap();
                let mut losses = Vec::new();
                for number in 1..=30 {
                    let rates = StepRates { number, dense: 0.1, sparse: 0.2 };
                    group
                        .enqueue(rates, Some(&batch(number, (number % 11 == 0).then_some(3.0))))
                        .unwrap();
                    group.take_losses(&mut |step| losses.push(step));
                }
                group.drain().unwrap();
                group.take_losses(&mut |step| losses.push(step));
                (losses, weights_digest(&group).unwrap())
            };
            let serial = of(&schedules[0]);
            let changes = serial.0.windows(2).map(|pair| {
                let scale = |index: usize| pair[index].scaling.unwrap().scale;
                scale(1).total_cmp(&scale(0))
            });
            let changes: Vec<_> = changes.collect();
            assert!(changes.iter().any(|change| change.is_gt()), "the scale grows");
            assert!(changes.iter().any(|change| change.is_lt()), "the scale falls");
            for schedule in &schedules[1..] {
                assert_eq!(of(schedule), serial, "{place:?}, {ranks} ranks, {schedule:?}");
            }
        }
    }
}

/// f16 keeps eleven bits: activations, weights and gradients err by up to 2⁻¹² of themselves each
/// time they are rounded, logits near 1 by a few of these after four layers and one interaction,
/// and the mean of 32 losses by less; fifty steps at these rates carry that on. bf16 keeps three
/// bits less. Processor and device round the same values in the same places, but biases, and add in
/// another order: they may not be further apart than either from f32.
#[test]
fn the_first_losses_are_near_those_of_f32() {
    let of_all = places().into_iter().map(|place| {
        let of = |precision| {
            let group = group(&config(place, precision, 65536.0));
            group.prime(&batch(0, None)).unwrap();
            let step = |number: u64| {
                let rates = StepRates { number, dense: 0.1, sparse: 0.2 };
                group.step(rates, Some(&batch(number, None))).unwrap()
            };
            (1..=50).map(step).collect::<Vec<f64>>()
        };
        let wide = of(Precision::F32);
        [(Precision::F16, 8.0 / 4096.0), (Precision::Bf16, 8.0 / 512.0)].map(
            |(precision, allowed)| {
                let narrow = of(precision);
                assert_ne!(wide, narrow, "{place:?}: {precision:?} was asked for and f32 computed");
                assert_near(&format!("{place:?}, {precision:?} and f32"), &wide, &narrow, allowed);
                (format!("{precision:?}"), narrow, allowed)
            },
        )
    });
    let of_all: Vec<_> = of_all.collect();
    for pair in of_all.windows(2) {
        for ((precision, one, allowed), (_, other, _)) in pair[0].iter().zip(&pair[1]) {
            assert_near(&format!("{precision} here and there"), one, other, *allowed);
        }
    }
}

fn assert_near(what: &str, one: &[f64], other: &[f64], allowed: f64) {
    let off = one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    println!("{what}: fifty losses differ by up to {off:.1e}");
    assert!(off <= allowed, "{what}: {off}");
}

/// The gradients of the third table's vectors, as a step of rate 1 moves rows of zeros that have
/// one id each.
fn gradients_of_vectors(place: DeviceChoice, precision: Precision, ranks: usize) -> Vec<f32> {
    let mut config = config(place, precision, 65536.0);
    (config.run.ranks, config.comm.compress) = (ranks, Some(Compress::None));
    let group = group(&config);
    for rank in 0..ranks {
        group.worker(rank).model().tables.import_rows(2, 0, 0, &[0.0; 900 * 16]).unwrap();
    }
    let mut batch = batch(0, None);
    batch.sparse[2].values = (0..SAMPLES as u64).collect();
    group.prime(&batch).unwrap();
    group.step(StepRates { number: 1, dense: 0.1, sparse: 1.0 }, None).unwrap();
    let mut rows = vec![f32::NAN; SAMPLES * 16];
    group.worker(ranks - 1).model().tables.export_rows(2, 0, 0, &mut rows).unwrap();
    rows.iter().map(|row| -row).collect()
}

/// On a device gradients of vectors are bf16 in bf16, and f32 in f16, where they are without the
/// loss scale. Each is rounded by up to 2⁻⁹ of itself; what it is a sum of has been rounded to bf16
/// here and there, and differs by 2⁻⁸ of itself where the two sums are on both sides of a middle.
#[test]
fn gradients_of_vectors_are_the_processors_rounded_to_bf16() {
    let is_bf16 = |gradients: &[f32]| gradients.iter().all(|x| x.to_bits() & 0xffff == 0);
    let wide = gradients_of_vectors(DeviceChoice::Cpu, Precision::Bf16, 1);
    assert!(!is_bf16(&wide), "the processor keeps f32");
    let largest = wide.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    assert!(largest > 0.0);
    for ranks in [1, 2].into_iter().filter(|&ranks| has_devices(ranks)) {
        let of = |precision| gradients_of_vectors(DeviceChoice::Cuda, precision, ranks);
        let narrow = of(Precision::Bf16);
        assert!(is_bf16(&narrow), "{ranks} ranks");
        let off = wide.iter().zip(&narrow).map(|(wide, narrow)| (wide - narrow).abs() / largest);
        let off = off.fold(0.0, f32::max);
        println!("{ranks} ranks: gradients differ by up to {off:.1e} of the largest");
        assert!(off <= 2.0 / 256.0, "{ranks} ranks: {off}");
        assert!(!is_bf16(&of(Precision::F16)), "{ranks} ranks in f16");
    }
}

/// Products round vectors to f16, so that the first forward pass has the same bits whether they
/// travel as that or as f32; gradients and sums keep the range of f32 and lose bits.
#[test]
fn what_travels_in_16_bits_changes_no_forward_pass() {
    for place in places().into_iter().filter(|&place| can_have(place, 2)) {
        let of = |compress: Option<Compress>| {
            let mut config = config(place, Precision::F16, 65536.0);
            (config.run.ranks, config.comm.compress) = (2, compress);
            let group = group(&config);
            group.prime(&batch(0, None)).unwrap();
            let step = |number: u64| {
                let rates = StepRates { number, dense: 0.1, sparse: 0.2 };
                group.step(rates, Some(&batch(number, None))).unwrap()
            };
            (1..=50).map(step).collect::<Vec<f64>>()
        };
        let (narrow, wide) = (of(None), of(Some(Compress::None)));
        assert_eq!(narrow[0], wide[0], "{place:?}: the first forward pass");
        assert_ne!(narrow, wide, "{place:?}: gradients are rounded on the way");
        assert_near(&format!("{place:?}, in 16 bits and f32"), &narrow, &wide, 8.0 / 512.0);
        let as_bf16 = of(Some(Compress::Bf16));
        assert_ne!(as_bf16[0], wide[0], "{place:?}: as bf16 vectors lose three bits");
        assert_eq!(of(Some(Compress::F16)), narrow, "{place:?}: what f16 does unasked");
    }
}

/// A row beyond f16 becomes infinite, on one rank or on its way to another: that is named as any
/// other.
#[test]
fn a_vector_beyond_f16_is_named() {
    for place in places() {
        for ranks in [1, 2].into_iter().filter(|&ranks| can_have(place, ranks)) {
            let mut config = config(place, Precision::F16, 65536.0);
            config.run.ranks = ranks;
            let group = group(&config);
            for rank in 0..ranks {
                let worker = group.worker(rank);
                worker.model().tables.import_rows(2, 0, 0, &[1e5; 900 * 16]).unwrap();
            }
            group.prime(&batch(0, None)).unwrap();
            let rates = StepRates { number: 1, dense: 0.1, sparse: 0.2 };
            let step = group.enqueue(rates, None).and_then(|()| group.drain());
            let text = headlong::error::chain(&step.unwrap_err());
            assert!(text.contains("vector of table C3"), "{place:?}, {ranks} ranks: {text}");
        }
    }
}

/// The last layer's input is zero, so that its gradients alone are not finite, and on one rank
/// only: sums in bf16 tell all.
#[test]
fn sums_in_16_bits_tell_of_a_dense_gradient_that_is_not_finite() {
    for place in places() {
        for ranks in [1, 2, 4].into_iter().filter(|&ranks| can_have(place, ranks)) {
            let mut config = config(place, Precision::F16, 1.0);
            config.run.ranks = ranks;
            let group = group(&config);
            for rank in 0..ranks {
                let worker = group.worker(rank);
                let bias = worker.model().weights.mats().find(|mat| mat.name() == "top.0.bias");
                bias.unwrap().copy_from(&[-1000.0_f32; 24]).unwrap();
            }
            group.weights_changed();
            group.prime(&batch(0, Some(1e7))).unwrap();
            let step = group.step(StepRates { number: 1, dense: 0.1, sparse: 0.2 }, None);
            let text = headlong::error::chain(&step.unwrap_err());
            let names = ["loss scale", "gradient of top.1.weight"];
            assert!(names.iter().all(|name| text.contains(name)), "{place:?}, {ranks}: {text}");
        }
    }
}

/// In the dense input, and in a table's row: what comes first in the forward pass is named, in each
/// schedule, though the host hears of it later.
#[test]
fn what_is_not_a_number_is_named_with_its_sample() {
    for place in places() {
        let schedules = if place == DeviceChoice::Cpu { &SCHEDULES[..2] } else { &SCHEDULES };
        for (schedule, precision) in
            schedules.iter().zip([Precision::F32, Precision::Bf16, Precision::F32])
        {
            let ended = |spoil: &dyn Fn(&mut Batch, &RankGroup)| {
                let mut config = config(place, precision, 65536.0);
                config.run.schedule = *schedule;
                let group = group(&config);
                group.prime(&batch(0, None)).unwrap();
                let step = |number: u64| {
                    let mut next = batch(number, None);
                    if number == 8 {
                        spoil(&mut next, &group);
                    }
                    group.enqueue(StepRates { number, dense: 0.1, sparse: 0.2 }, Some(&next))
                };
                let error = (1..20).try_for_each(step).and_then(|()| group.drain()).unwrap_err();
                headlong::error::chain(&error)
            };
            let text = ended(&|batch, _| batch.dense[5 * DENSE + 1] = f32::NAN);
            assert!(
                text.contains("dense input (sample 5 of the batch)"),
                "{place:?}, {schedule:?}: {text}"
            );
            // Batch 8 is that of step 9.
            assert!(text.contains("step 9"), "{place:?}, {schedule:?}: {text}");
            let text = ended(&|batch, group| {
                group.drain().unwrap();
                batch.sparse[1].values.fill(0);
                batch.sparse[1].values[20] = 6;
                let worker = group.first();
                worker.model().tables.import_rows(1, 0, 6, &[f32::INFINITY; 16]).unwrap();
            });
            let name = "vector of table C2 (sample ";
            assert!(text.contains(name), "{place:?}, {schedule:?}: {text}");
        }
    }
}

/// From the smallest scale there is nowhere to go: the run ends, and says so.
#[test]
fn an_overflow_at_the_smallest_scale_ends_the_run() {
    for place in places() {
        let group = group(&config(place, Precision::F16, 1.0));
        // 10⁷ / 32 is beyond f16, and the loss is not.
        group.prime(&batch(0, Some(1e7))).unwrap();
        let step = group.step(StepRates { number: 1, dense: 0.1, sparse: 0.2 }, None);
        let text = headlong::error::chain(&step.unwrap_err());
        let names = ["step 1", "loss scale", "gradient of bottom.0.weight"];
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
}

/// The scale falls before the checkpoint and grows behind it.
#[test]
fn a_resumed_run_has_the_scale_that_was_saved() {
    for place in places() {
        let folder = Place::new("rows.txt");
        let device = if place == DeviceChoice::Cuda { "cuda" } else { "cpu" };
        let train = folder.train().with(&["--device", device, "--precision", "f16"]);
        let scales = ["--set", "train.loss_scale=16777216", "--set", "train.loss_scale_interval=6"];
        let train = train.with(&scales);
        let log = folder.path("whole.json");
        let whole =
            train.clone().path("--log-json", &log).with(&["--steps", "22"]).succeeds().digest();
        let at = |log: &std::path::Path, step: u64| {
            let found = events(log)
                .into_iter()
                .find(|event| event["event"] == "step" && event["step"] == step);
            found.unwrap()["scaling"].clone()
        };
        assert!(at(&log, 9)["skipped_steps"].as_u64().unwrap() > 0, "{}", at(&log, 9));
        assert!(at(&log, 22)["loss_scale"].as_f64() > at(&log, 9)["loss_scale"].as_f64());
        let checkpoints = folder.path("checkpoints");
        let parts = train.path("--checkpoint-dir", &checkpoints);
        parts.clone().with(&["--steps", "9"]).succeeds();
        let resumed_log = folder.path("resumed.json");
        let resumed =
            parts.path("--log-json", &resumed_log).with(&["--steps", "22", "--resume"]).succeeds();
        assert_eq!(resumed.digest(), whole, "{place:?}: resumed is uninterrupted, bit for bit");
        assert_eq!(at(&resumed_log, 22), at(&log, 22), "{place:?}: scale and skipped steps");
        assert_eq!(last_event(&resumed_log, "done")["weights_digest"], whole);
    }
}

/// Ranks that are processes meet through NCCL on devices, and over TCP on the processor; two ranks'
/// sums have one order only.
#[test]
fn processes_end_as_threads_do() {
    for place in places().into_iter().filter(|&place| can_have(place, 2)) {
        let folder = Place::new("rows.txt");
        let device = if place == DeviceChoice::Cuda { "cuda" } else { "cpu" };
        let train =
            folder.train().with(&["--device", device, "--precision", "f16", "--hybrid", "rows=50"]);
        let train = train.with(&["--steps", "10", "--set", "train.loss_scale=16777216"]);
        let log = folder.path("threads.json");
        let threads =
            train.clone().path("--log-json", &log).with(&["--ranks", "2"]).succeeds().digest();
        let last = events(&log).into_iter().rfind(|event| event["event"] == "step").unwrap();
        assert!(last["scaling"]["skipped_steps"].as_u64().unwrap() > 0, "{last}");
        let arguments: Vec<&str> = train.arguments().iter().map(String::as_str).collect();
        let launched = Run::new("launch").with(&["-n", "2", "--"]).with(&arguments);
        assert_eq!(launched.succeeds().digest(), threads, "{place:?}");
    }
}
