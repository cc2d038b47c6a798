//! A dense optimiser divided among ranks equals one that every rank has, bit for bit, on processors
//! and on devices; it takes less memory, sends what is planned, and its checkpoints are those of
//! any other run.

#![cfg(test)]

use crate::made_up::MadeUp;
use crate::run_support::{Place, Run, last_event};
use headlong::config::{Config, DeviceChoice, Precision, ScheduleChoice, Sharded, TransportChoice};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong::state::digest::weights_digest;
use headlong_device::Arena;
use headlong_device::cuda::testing::has_devices;
use headlong_embedding::Registry;
use headlong_reader::Batch;
use serde_json::Value;

const ROWS: [u64; 3] = [40, 7, 300];
const DENSE: usize = 3;
const DIM: usize = 8;
const SAMPLES: usize = 24;
const STEPS: u64 = 8;

/// Each with a norm to which gradients are clipped, or none.
const OPTIMIZERS: [(&str, Option<f64>); 7] = [
    ("sgd", None),
    ("sgd", Some(0.05)),
    ("adagrad", None),
    ("adagrad", Some(1e9)),
    ("adam", None),
    ("adam", Some(0.05)),
    ("lamb", None),
];

/// One rank; its dense network is larger than a part's first cache lines.
fn config((optimizer, clip_norm): (&str, Option<f64>), precision: Precision) -> Config {
    let mut config = Config::default();
    config.model.dim = DIM;
    config.model.bottom = vec![20, DIM];
    config.model.top = vec![33, 17, 1];
    (config.data.num_dense, config.data.num_sparse) = (DENSE, ROWS.len());
    config.tables.max_ids_per_sample = 3;
    (config.train.batch_size, config.eval.batch_size) = (SAMPLES, SAMPLES);
    (config.train.precision, config.train.clip_norm) = (precision, clip_norm);
    // The first steps overflow, and are skipped.
    config.train.loss_scale = 8_388_608.0;
    config.train.sum_blocks = Some(4);
    config.comm.deadline_s = 20.0;
    config.optimizer.set_both(optimizer).unwrap();
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

/// The same on ranks that divide the dense optimiser.
fn divided(config: &Config, ranks: usize, per_node: usize) -> Config {
    let mut config = config.clone();
    (config.run.ranks, config.comm.ranks_per_node) = (ranks, per_node);
    config.optimizer.dense.sharded = Some(Sharded::Always);
    config.validate().unwrap();
    config
}

fn batch(number: u64) -> Batch {
    // Every third batch is short, so that the last ranks have little or nothing.
    let samples = if number % 3 == 2 { 1 + number as usize } else { SAMPLES };
    MadeUp { seed: 5, rows: &ROWS, num_dense: DENSE }.bags(number, samples)
}

fn group(config: &Config) -> RankGroup {
    let registry = Registry::default();
    RankGroup::build(config, &ROWS, RankGroupOptions::new(config.run.ranks, &registry)).unwrap()
}

/// Steps `numbers`, counted from 1: the bits of their losses.
fn train(group: &RankGroup, numbers: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    group.prime(&batch(*numbers.start())).unwrap();
    let step = |number: u64| {
        let next = (number < *numbers.end()).then(|| batch(number + 1));
        let rates = StepRates { number, dense: 0.05, sparse: 0.1 };
        group.step(rates, next.as_ref()).unwrap().to_bits()
    };
    numbers.clone().map(step).collect()
}

/// Losses, digest of all weights and states, and predictions.
fn run(config: &Config) -> (Vec<u64>, String, Vec<u32>) {
    let group = group(config);
    let losses = train(&group, 1..=STEPS);
    let mut predictions = Vec::new();
    let take = &mut |logits: &[f32], _: &[f32]| {
        predictions.extend(logits.iter().map(|logit| logit.to_bits()));
    };
    group.predict(&batch(99), take).unwrap();
    (losses, weights_digest(&group).unwrap(), predictions)
}

#[test]
fn a_divided_optimizer_trains_the_same_bits() {
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        for (index, optimizer) in OPTIMIZERS.into_iter().enumerate() {
            let whole = config(optimizer, precision);
            let expected = run(&whole);
            let schedules = [ScheduleChoice::Serial, ScheduleChoice::Overlapped];
            for (ranks, per_node) in [(2, 0), (4, 0), (4, 2)] {
                let mut divided = divided(&whole, ranks, per_node);
                for schedule in schedules {
                    divided.run.schedule = schedule;
                    let what = format!("{optimizer:?}, {precision:?}, {ranks}, {schedule:?}");
                    assert!(run(&divided) == expected, "{what}");
                }
            }
            let mut ranks = whole.clone();
            (ranks.run.ranks, ranks.run.schedule) = (4, schedules[index % 2]);
            assert!(run(&ranks) == expected, "whole, {optimizer:?}, {precision:?}");
        }
    }
}

/// Ranks on devices, of nodes of so many, whose bytes NCCL carries or whatever can.
fn on_devices(config: &Config, (ranks, per_node, transport): Way) -> Config {
    let mut config = config.clone();
    (config.run.ranks, config.comm.ranks_per_node) = (ranks, per_node);
    (config.run.device, config.run.transport) = (DeviceChoice::Cuda, transport);
    config.run.schedule = ScheduleChoice::Serial;
    config.validate().unwrap();
    config
}

type Way = (usize, usize, TransportChoice);

/// In each other's memory, over NCCL, by node over either, and by nodes that are no subtrees.
const WAYS: [Way; 6] = [
    (4, 0, TransportChoice::Auto),
    (2, 0, TransportChoice::Auto),
    (4, 2, TransportChoice::Auto),
    (4, 0, TransportChoice::Nccl),
    (4, 2, TransportChoice::Nccl),
    (4, 3, TransportChoice::Auto),
];

/// One way that devices divide it, for each optimiser, and captured as well as not; what devices
/// compute themselves depends on how many they are, so that as many have all of it.
fn devices_train_the_same_bits(precision: Precision, first_way: usize) {
    if !has_devices(4) {
        return;
    }
    for (index, optimizer) in OPTIMIZERS.into_iter().enumerate() {
        let way = WAYS[(first_way + index) % WAYS.len()];
        let whole = on_devices(&config(optimizer, precision), way);
        let expected = run(&whole);
        let mut divided = divided(&whole, way.0, way.1);
        use ScheduleChoice::{Captured, Overlapped, Serial};
        for schedule in [[Serial, Overlapped][index % 2], Captured] {
            divided.run.schedule = schedule;
            assert!(
                run(&divided) == expected,
                "{optimizer:?}, {precision:?}, {way:?}, {schedule:?}"
            );
        }
    }
}

#[test]
fn an_optimizer_divided_among_devices_trains_the_same_bits() {
    devices_train_the_same_bits(Precision::F32, 0);
}

#[test]
fn divided_among_devices_in_bf16_too() {
    devices_train_the_same_bits(Precision::Bf16, 1);
}

#[test]
fn divided_among_devices_in_f16_too() {
    devices_train_the_same_bits(Precision::F16, 2);
}

/// Three ranks on devices, and more than there are parts of a norm to begin at would want.
#[test]
fn odd_numbers_of_devices_have_parts_too() {
    if !has_devices(7) {
        return;
    }
    for (ranks, optimizer) in [(3, OPTIMIZERS[4]), (5, OPTIMIZERS[6]), (7, OPTIMIZERS[1])] {
        let mut whole = config(optimizer, Precision::F32);
        whole.train.sum_blocks = Some(ranks);
        let whole = on_devices(&whole, (ranks, 0, TransportChoice::Auto));
        assert!(run(&divided(&whole, ranks, 0)) == run(&whole), "{ranks}, {optimizer:?}");
    }
}

/// Three ranks, and more ranks than the norms have chunks to begin at.
#[test]
fn odd_numbers_of_ranks_have_parts_too() {
    for (ranks, optimizer) in [(3, OPTIMIZERS[4]), (5, OPTIMIZERS[6]), (12, OPTIMIZERS[1])] {
        let mut whole = config(optimizer, Precision::F32);
        (whole.train.sum_blocks, whole.run.ranks) = (Some(ranks), ranks);
        assert!(run(&divided(&whole, ranks, 0)) == run(&whole), "{ranks}, {optimizer:?}");
    }
}

/// Skipped steps change nothing on any rank, and all count the same ones.
#[test]
fn ranks_skip_together() {
    let whole = config(("adam", Some(0.05)), Precision::F16);
    let skipped =
        |group: &RankGroup, rank| group.worker(rank).loss_scale().unwrap().unwrap().num_skipped;
    let expected = group(&whole);
    train(&expected, 1..=STEPS);
    let expected = skipped(&expected, 0);
    assert!(expected > 0 && u64::from(expected) < STEPS, "{expected} steps were skipped");
    let group = group(&divided(&whole, 4, 0));
    train(&group, 1..=STEPS);
    (0..4).for_each(|rank| assert_eq!(skipped(&group, rank), expected, "rank {rank}"));
}

/// The last layer's input is zero, so that its gradients alone are not finite: one rank has their
/// sums. All skip; at the smallest scale all end, and say which gradient it was.
#[test]
fn a_gradient_that_one_rank_has_ends_the_step_on_all() {
    let text = |config: &Config| {
        let group = group(config);
        for rank in 0..group.len() {
            let worker = group.worker(rank);
            let bias = worker.model().weights.mats().find(|mat| mat.name() == "top.1.bias");
            bias.unwrap().copy_from(&[-1000.0_f32; 17]).unwrap();
        }
        group.weights_changed();
        let mut batch = batch(0);
        // Label 1 of this weight.
        batch.labels[0] = 4e7;
        group.prime(&batch).unwrap();
        let error = group.step(StepRates { number: 1, dense: 0.1, sparse: 0.2 }, None).unwrap_err();
        headlong::error::chain(&error)
    };
    for optimizer in [OPTIMIZERS[0], OPTIMIZERS[5], OPTIMIZERS[6]] {
        let mut whole = config(optimizer, Precision::F16);
        whole.train.loss_scale = 1.0;
        let (expected, found) = (text(&whole), text(&divided(&whole, 4, 0)));
        assert!(expected.contains("gradient of top.2.weight"), "{expected}");
        assert_eq!(found, expected);
        if has_devices(4) {
            let whole = on_devices(&whole, (4, 0, TransportChoice::Auto));
            assert_eq!([text(&whole), text(&divided(&whole, 4, 0))], [(); 2].map(|()| &*expected));
        }
    }
}

/// The states of a rank are those of its part; the parts have no more than the whole, save what
/// lines take.
#[test]
fn states_lie_divided() {
    let whole = config(("adam", None), Precision::F32);
    let states = |config: &Config| -> Vec<usize> {
        let group = group(config);
        let of = |rank| group.worker(rank).model().dense_states.iter().map(Arena::bytes).sum();
        (0..group.len()).map(of).collect()
    };
    let all = states(&whole)[0];
    let parts = states(&divided(&whole, 4, 0));
    assert_eq!(parts.len(), 4);
    assert!(parts.iter().all(|&part| part <= all / 4 + 2 * 128), "{parts:?} of {all}");
    assert_eq!(parts.iter().sum::<usize>(), all);
    if has_devices(4) {
        let on_devices = on_devices(&whole, (4, 0, TransportChoice::Auto));
        assert_eq!(states(&divided(&on_devices, 4, 0)), parts, "on devices");
    }
}

/// Weights and states move to another division: half-way, to other ranks and back to one.
#[test]
fn states_move_from_any_ranks_to_any() {
    let place = Place::new("rows.txt");
    for (optimizer, clip) in [("adam", true), ("lamb", false), ("adagrad", false)] {
        let train = place.train().with(&["--set", "sum_blocks=4", "--optimizer", optimizer]);
        let train = if clip { train.with(&["--set", "train.clip_norm=0.05"]) } else { train };
        let ways: [&[&str]; 5] = [
            &["--ranks", "1"],
            &["--ranks", "2", "--set", "optimizer.dense.sharded=true"],
            &["--ranks", "4", "--set", "optimizer.dense.sharded=true"],
            &["--ranks", "4", "--set", "comm.ranks_per_node=2"],
            // One rank, which moves all of it.
            &["--ranks", "1", "--set", "optimizer.dense.sharded=true"],
        ];
        let expected = train.clone().with(&["--steps", "12"]).succeeds().digest();
        for (from, saved_by) in ways.iter().enumerate() {
            for (to, resumed_by) in ways.iter().enumerate().filter(|(to, _)| *to != from) {
                if optimizer != "adam" && (from + to) % 2 == 0 {
                    continue;
                }
                let folder = place.path(&format!("{optimizer} {from} {to}"));
                let half = train.clone().with(saved_by).with(&["--steps", "6"]);
                half.path("--checkpoint-dir", &folder).succeeds();
                let rest = train.clone().with(resumed_by).with(&["--steps", "12", "--resume"]);
                let ended = rest.path("--checkpoint-dir", &folder).succeeds();
                assert!(ended.stderr.contains("resumed at step 6"), "{}", ended.stderr);
                assert_eq!(ended.digest(), expected, "{optimizer}: {saved_by:?}, {resumed_by:?}");
            }
        }
    }
}

/// On as many devices, which divide it or not, before the checkpoint and after; and on processors
/// what devices saved either way.
#[test]
fn devices_save_what_any_ranks_resume() {
    if !has_devices(4) {
        return;
    }
    let place = Place::new("rows.txt");
    let train = place.train().with(&["--set", "sum_blocks=4", "--optimizer", "adam"]);
    let device: &[&str] = &["--ranks", "4", "--device", "cuda"];
    let ways = [
        &[device, &["--schedule", "serial"]].concat(),
        &[device, &["--set", "optimizer.dense.sharded=true"]].concat(),
        &[device, &["--set", "optimizer.dense.sharded=true", "--precision", "bf16"]].concat(),
    ];
    let whole = |way: &[&str]| train.clone().with(way).with(&["--steps", "8"]).succeeds().digest();
    let expected = ways.map(|way| whole(way));
    assert_eq!(expected[0], expected[1]);
    let resumed = |from: usize, by: &[&str]| {
        let folder = place.path(&format!("{from} {by:?}").replace(['/', '"'], ""));
        let half = train.clone().with(ways[from]).with(&["--steps", "4"]);
        half.path("--checkpoint-dir", &folder).succeeds();
        let rest = train.clone().with(by).with(&["--steps", "8", "--resume"]);
        let ended = rest.path("--checkpoint-dir", &folder).succeeds();
        assert!(ended.stderr.contains("resumed at step 4"), "{}", ended.stderr);
        ended.digest()
    };
    for (from, to) in [(0, 1), (1, 0), (2, 2)] {
        assert_eq!(resumed(from, ways[to]), expected[to], "{from}, {to}");
    }
    let processors: [&[&str]; 2] =
        [&["--ranks", "2"], &["--ranks", "4", "--set", "optimizer.dense.sharded=true"]];
    let [first, ..] = processors;
    let expected = resumed(0, first);
    assert!(processors.iter().all(|way| resumed(1, way) == expected));
}

/// Processes over shared memory and TCP, which save and resume.
#[test]
fn processes_divide_it_whatever_carries_their_payload() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&[
        "--set",
        "sum_blocks=4",
        "--optimizer",
        "adam",
        "--set",
        "train.clip_norm=0.05",
    ]);
    let expected = train.clone().with(&["--steps", "10"]).succeeds().digest();
    let train = train.with(&["--ranks", "4", "--set", "optimizer.dense.sharded=true"]);
    for (transport, per_node) in [("shm", "0"), ("auto", "2"), ("tcp", "0")] {
        let folder = place.path(transport);
        let run = train.clone().path("--checkpoint-dir", &folder).with(&[
            "--transport",
            transport,
            "--set",
            &format!("comm.ranks_per_node={per_node}"),
        ]);
        run.clone().with(&["--steps", "5"]).launched(4).succeeds();
        let ended = run.with(&["--steps", "10", "--resume"]).launched(4).succeeds();
        assert_eq!(ended.digest(), expected, "{transport}");
    }
}

/// What `headlong plan` says of a dense network of 17 million parameters on four ranks.
fn plan(settings: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::new("plan").with(&["--json", "--preset", "tiny", "--set", "run.ranks=4"]);
    let run = run.with(&["--set", "model.top=[4096,4096,1]"]).path("--output-dir", folder.path());
    serde_json::from_str(&run.with(settings).succeeds().stdout).unwrap()
}

#[test]
fn the_plan_counts_one_part_and_says_why() {
    let bytes = |plan: &Value| plan["memory"]["dense_bytes"].as_u64().unwrap();
    let whole = plan(&["--optimizer", "adam"]);
    assert_eq!(whole.get("dense_optimizer"), None, "nothing was asked for");
    let divided = plan(&["--optimizer", "adam", "--set", "optimizer.dense.sharded=true"]);
    let parameters = whole["dense_parameters"].as_u64().unwrap();
    // Three quarters of two states of four bytes; parts end where lines do.
    let spared = bytes(&whole) - bytes(&divided);
    assert!(spared.abs_diff(parameters * 6) < 4096, "{spared} of {parameters}");
    assert_eq!(divided["dense_optimizer"]["is_divided"], true);
    if has_devices(4) {
        let [whole, divided] = ["false", "true"].map(|sharded| {
            let sharded = format!("optimizer.dense.sharded={sharded}");
            plan(&["--device", "cuda", "--optimizer", "adam", "--set", &sharded])
        });
        let spared = bytes(&whole) - bytes(&divided);
        assert!(spared.abs_diff(parameters * 6) < 4096, "{spared} of {parameters} on devices");
        assert_eq!(divided["dense_optimizer"]["is_divided"], true);
    }
    let auto = |settings: &[&str]| {
        let auto = ["--set", "optimizer.dense.sharded=\"auto\""];
        let plan = plan(&[&auto, settings].concat());
        let choice = &plan["dense_optimizer"];
        let reason = choice["reason"].as_str().unwrap().to_owned();
        (choice["is_divided"].as_bool().unwrap(), reason)
    };
    for (settings, is_divided, words) in [
        (&["--optimizer", "adam"][..], true, "spares a rank"),
        (&["--optimizer", "sgd"], false, "sgd has no states"),
        (&["--optimizer", "adam", "--precision", "bf16"], false, "bf16"),
        (&["--optimizer", "adam", "--precision", "f16"], false, "bf16"),
        (&["--optimizer", "adam", "--set", "model.top=[8,1]"], false, "less than 64.00 MiB"),
        (&["--optimizer", "adam", "--set", "run.ranks=1"], false, "there is one rank"),
        (&["--optimizer", "lamb", "--set", "train.clip_norm=1.0"], false, "LAMB"),
        (&["--optimizer", "lamb"], true, "spares a rank"),
    ] {
        let (divided, reason) = auto(settings);
        assert_eq!(divided, is_divided, "{settings:?}: {reason}");
        assert!(reason.contains(words), "{settings:?}: {reason}");
    }
}

/// Rank 0 says what was chosen, and what leaves the ranks is what was planned.
#[test]
fn a_run_says_what_it_chose_and_sends_what_was_planned() {
    let place = Place::new("rows.txt");
    let log = place.path("log.json");
    for (sharded, words) in [
        ("true", "dense optimizer divided among the ranks: it spares a rank "),
        ("\"auto\"", "dense optimizer whole on every rank: it would spare a rank "),
    ] {
        let setting = format!("optimizer.dense.sharded={sharded}");
        let run = place.train().with(&["--ranks", "2", "--set", "model.top=[512,64,1]"]);
        let run = run.with(&["--set", "comm.ranks_per_node=1", "--set", &setting]);
        let plan = run.clone().of_command("plan").with(&["--json"]).succeeds().stdout;
        let ended = run.path("--log-json", &log).with(&["--steps", "20"]).succeeds();
        assert!(ended.stdout.contains(words), "{}", ended.stdout);
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let planned = &plan["exchange_bytes_per_step"]["inter_node"];
        let planned = planned["forward"].as_f64().unwrap() + planned["backward"].as_f64().unwrap();
        let counted = last_event(&log, "done")["exchange_bytes_per_step"]["inter_node"].clone();
        let ratio = planned / counted.as_f64().unwrap();
        // Most of it are weights and their gradients.
        let dense = plan["dense_parameters"].as_f64().unwrap() * 8.0;
        assert!(dense > planned * 0.5, "{dense} of {planned}");
        assert!((ratio - 1.0).abs() < 0.05, "{sharded}: {planned} planned, {counted} counted");
        std::fs::remove_file(&log).unwrap();
    }
}

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    let place = Place::new("rows.txt");
    let train = place.train().with(&["--ranks", "2", "--set", "optimizer.dense.sharded=true"]);
    train.with(&["--optimizer", "lamb", "--set", "train.clip_norm=1.0"]).fails(
        2,
        &["optimizer.dense.sharded = true", "train.clip_norm = 1", "do not begin at the same"],
    );
    let table = place.train().with(&["--set", "optimizer.sparse.sharded=true"]);
    table.fails(2, &["optimizer.sparse.sharded", "optimizer.dense.sharded"]);
    let word = place.train().with(&["--set", "optimizer.dense.sharded=perhaps"]);
    word.fails(2, &["optimizer.dense.sharded", "true, false or \"auto\""]);
}
