//! Batches that stay on devices (`data.cache = "device"`): the weights, metrics and positions of a
//! run without, and no copies from the host for what has come before.

#![cfg(test)]

mod run_support;

use headlong_device::cuda::testing::{device, has_devices, has_software_devices};
use run_support::{Place, Run, events, names, rows, write};
use serde_json::Value;
use std::collections::BTreeMap;

const KEPT: [&str; 2] = ["--cache-data", "device"];

fn on_cuda(run: Run, schedule: &str) -> Run {
    run.with(&["--device", "cuda", "--schedule", schedule])
}

/// What a run comes to: the digest of its weights, and metrics by step.
fn outcome(place: &Place, name: &str, run: Run) -> (String, Vec<[Value; 3]>) {
    let log = place.path(&format!("{name}.json"));
    let digest = run.path("--log-json", &log).succeeds().digest();
    let evaluations = events(&log).into_iter().filter(|event| event["event"] == "eval");
    let of = |event: &Value| ["step", "auc", "logloss"].map(|key| event[key].clone());
    (digest, evaluations.map(|event| of(&event)).collect())
}

/// 1,500 rows are 7 full batches of 192 and a short one; 300 rows are evaluated in batches of 128,
/// the last one short.
fn train(place: &Place) -> Run {
    let run = place.train().path("--valid", &place.valid);
    let run = run.with(&["--set", "train.epochs=3", "--set", "eval.every=8"]);
    run.with(&["--set", "eval.batch_size=128", "--set", "train.batch_size=192"])
}

#[test]
fn one_rank_ends_as_without() {
    if device().is_none() {
        return;
    }
    let place = Place::new("rows.txt");
    let off = outcome(&place, "off", on_cuda(train(&place), "serial"));
    assert!(off.1.len() == 3, "{off:?}");
    for schedule in ["serial", "overlapped", "captured"] {
        let kept = outcome(&place, schedule, on_cuda(train(&place).with(&KEPT), schedule));
        assert_eq!(kept, off, "{schedule}");
    }
}

/// Ranks as threads and as processes.
fn among(ranks: usize, schedules: &[&str]) {
    if !has_devices(ranks) {
        return;
    }
    let place = Place::new("rows.txt");
    let count = ranks.to_string();
    let train = train(&place).with(&["--hybrid", "rows=50"]);
    let threads = |run: Run, schedule| on_cuda(run, schedule).with(&["--ranks", &count]);
    let off = outcome(&place, "off", threads(train.clone(), "captured"));
    let train = train.with(&KEPT);
    for schedule in schedules {
        let kept = outcome(&place, schedule, threads(train.clone(), schedule));
        assert_eq!(kept, off, "{ranks} ranks, {schedule}");
    }
    let launched = on_cuda(train, "captured").launched(ranks);
    assert_eq!(outcome(&place, "launched", launched), off, "{ranks} processes");
}

#[test]
fn two_ranks_end_as_without() {
    among(2, &["serial", "captured"]);
}

#[test]
fn four_ranks_end_as_without() {
    among(4, &["captured"]);
}

/// Over NCCL the host learns the lengths of strips batch by batch.
#[test]
fn batches_that_stay_tell_what_nccl_carries() {
    if !has_devices(2) {
        return;
    }
    let place = Place::new("rows.txt");
    let train = on_cuda(train(&place), "captured").with(&["--ranks", "2", "--transport", "nccl"]);
    let off = outcome(&place, "off", train.clone());
    assert_eq!(outcome(&place, "kept", train.with(&KEPT)), off);
}

/// Batches in a random order, bags of several ids, micro-batches; the data is read at random.
#[test]
fn batches_in_a_random_order_end_as_without() {
    if device().is_none() {
        return;
    }
    let place = Place::new("rows.txt");
    let data = place.path("rows.hld");
    let convert = Run::new("data").with(&["convert", "--to", "headlong"]);
    convert.path("--data", &place.train).path("--output", &data).succeeds();
    let sizes = format!("multi_hot.sizes=[{}3]", "3,".repeat(25));
    for more in ["train.batch_size=150", "train.accumulate=2"] {
        let run = place.train_without_data().path("--data", &data).path("--valid", &place.valid);
        let run = run.with(&["--set", "train.epochs=3", "--set", "eval.every=12", "--set", more]);
        let run = on_cuda(run, "captured").with(&["--set", "data.order=batches"]);
        let run = run.with(&["--set", &sizes]);
        let off = outcome(&place, "off", run.clone());
        assert_eq!(outcome(&place, "kept", run.with(&KEPT)), off, "{more:?}");
    }
}

#[test]
fn ranks_and_processes_of_their_own_keep_what_they_evaluate() {
    if !has_devices(2) {
        return;
    }
    let place = Place::new("rows.txt");
    let train = on_cuda(train(&place), "captured");
    let stopped = train.clone().with(&["--set", "eval.asynchronous=false"]);
    let expected = outcome(&place, "stopped", stopped);
    let kept = train.with(&KEPT);
    let ranks = kept.clone().with(&["--eval-ranks", "1"]);
    assert_eq!(outcome(&place, "ranks", ranks), expected);
    let processes = kept.with(&["--eval-processes", "1"]).launched(2);
    assert_eq!(outcome(&place, "processes", processes), expected);
}

/// Where the reader of each checkpoint stands, by step.
fn positions(place: &Place, folder: &str) -> BTreeMap<String, Value> {
    let folder = place.path(folder);
    let position = |name: String| {
        let manifest = std::fs::read_to_string(folder.join(&name).join("manifest.json")).ok()?;
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        Some((name, manifest["state"]["reader"].clone()))
    };
    names(&folder).into_iter().filter_map(position).collect()
}

/// Bad lines count in positions, too.
#[test]
fn checkpoints_say_what_they_say_without_and_are_resumed_within_an_epoch() {
    if device().is_none() {
        return;
    }
    let place = Place::new("rows.txt");
    let text = std::fs::read_to_string(&place.train).unwrap();
    let lines = text.split_inclusive('\n').enumerate();
    let with_bad = lines.map(|(row, line)| match row % 400 {
        7 => format!("no row\n{line}"),
        _ => line.to_owned(),
    });
    write(&place.train, &with_bad.collect::<String>());
    let train = on_cuda(train(&place), "captured").with(&["--set", "data.on_bad_row=skip"]);
    let train = train.with(&["--set", "checkpoint.save_every=5"]);
    let train = train.with(&["--set", "checkpoint.keep=100"]);
    let of = |folder: &str, run: Run| {
        let run = run.path("--checkpoint-dir", &place.path(folder));
        outcome(&place, folder, run).0
    };
    let off = of("off", train.clone());
    assert_eq!(of("kept", train.clone().with(&KEPT)), off);
    let expected = positions(&place, "off");
    assert!(expected.len() > 4, "{expected:?}");
    assert_eq!(positions(&place, "kept"), expected);

    // In the first epoch, which is not kept then, and in one that came from the device.
    for stop in ["4", "20"] {
        let folder = format!("parts-{stop}");
        let part = train.clone().with(&KEPT).with(&["--steps", stop]);
        of(&folder, part);
        let rest = train.clone().with(&KEPT).with(&["--resume"]);
        assert_eq!(of(&folder, rest), off, "resumed at {stop}");
    }
}

/// Driver calls by name of a run of so many steps.
fn calls(place: &Place, run: &Run, steps: u64) -> BTreeMap<String, i64> {
    run.clone().with(&["--steps", &steps.to_string()]).driver_calls(&place.path("calls"))
}

/// Two epochs and two evaluations more.
#[test]
fn what_has_stayed_is_not_copied_from_the_host_again() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    let train = on_cuda(train(&place), "serial");
    let more = |run: Run| {
        let (few, many) = (calls(&place, &run, 16), calls(&place, &run, 32));
        let more = |name: &str| many[name] - few[name];
        [more("cuMemcpyHtoDAsync_v2"), more("cuMemcpyDtoHAsync_v2")]
    };
    let ([off, off_back], [kept, kept_back]) = (more(train.clone()), more(train.with(&KEPT)));
    println!("copies to the device in 16 steps and 2 evaluations: {kept}, without: {off}");
    assert_eq!(off_back, kept_back, "copies to the host");
    // Labels, dense features and ids, of 16 batches of training and 2 · 3 of evaluations.
    assert_eq!(off - kept, 3 * (16 + 6));
    // Learning rates.
    assert_eq!(kept, 16);
}

#[test]
fn a_captured_step_over_a_batch_that_stays_is_one_launch() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    let run = place.train().with(&KEPT).with(&["--set", "train.batch_size=50"]);
    let run = on_cuda(run, "captured").with(&["--set", "train.log_every=1000"]);
    // 1,500 rows are 30 full batches of 50.
    let (few, many) = (calls(&place, &run, 64), calls(&place, &run, 79));
    let more = |name: &str| many.get(name).unwrap_or(&0) - few.get(name).unwrap_or(&0);
    assert_eq!(more("cuGraphLaunch"), 15, "{many:?}");
    for name in ["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyAsync", "cuMemAlloc_v2"] {
        assert!(more(name) <= 15 / 8 + 1, "{name}: {} more", more(name));
    }
}

#[test]
fn what_stays_is_planned_and_what_does_not_is_said() {
    if device().is_none() {
        return;
    }
    let place = Place::new("rows.txt");
    let plan = |run: Run| {
        let planned = run.of_command("plan").with(&["--json"]).succeeds().stdout;
        serde_json::from_str::<Value>(&planned).unwrap()
    };
    let train = on_cuda(train(&place).with(&KEPT), "captured");
    let bytes = |run: Run| plan(run)["memory"]["kept_batch_bytes"].as_u64().unwrap();
    // A label, 13 numbers and 26 ids of four bytes a row; batches are full.
    let of = |batches: u64, samples: u64| batches * samples * 4 * (1 + 13 + 26);
    let evaluated = of(3, 128);
    let all = bytes(train.clone());
    let exact = evaluated + of(24, 64);
    assert!((exact..exact * 5 / 4).contains(&all), "{all} bytes, at least {exact} expected");
    let once = train.clone().with(&["--set", "train.epochs=1"]);
    let shuffled = train.clone().with(&["--set", "data.order=samples"]);
    let said = once.clone().of_command("plan").succeeds().stdout;
    assert!(said.contains("batches of evaluations alone, because no batch of training"), "{said}");
    assert!((evaluated..evaluated * 3 / 2).contains(&bytes(once)));
    // Text has one order.
    shuffled.fails(2, &["data.order", "data.cache = \"host\""]);
    let drift = train.clone().with(&["--set", "hybrid.repartition_drift=0.1"]);
    drift.fails(2, &["data.cache = \"device\"", "hybrid.repartition_drift"]);
    let admitted = train.clone().with(&["--set", "data.ids=admitted"]);
    admitted.fails(2, &["data.ids = \"admitted\"", "data.cache = \"device\""]);
    let processor = place.train().with(&KEPT).with(&["--device", "cpu"]);
    processor.fails(2, &["data.cache = \"device\"", "run.device = \"cuda\""]);
}

#[test]
fn what_does_not_fit_names_the_cache() {
    if !has_software_devices(1) {
        return;
    }
    let place = Place::new("rows.txt");
    let big = place.path("big.txt");
    write(&big, &rows(3000, 9).repeat(200));
    // 600,000 rows of 160 bytes are 92 MiB.
    let run = place.train_without_data().path("--data", &big).path("--valid", &place.valid);
    let run = on_cuda(run, "serial").with(&["--epochs", "2"]);
    let run = run.variable("SOFTCUDA_MEMORY_MIB", "680").with(&["--dry-run"]);
    run.clone().succeeds();
    run.with(&KEPT).fails(2, &["the plan needs", "available", "--cache-data off"]);
}
