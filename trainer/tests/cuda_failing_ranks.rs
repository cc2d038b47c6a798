//! Ranks as threads, each on a device, of which one fails, comes late or gives up in the middle of
//! a step: the run ends with an error that names the rank, the stage or the step, and never by a
//! signal. What devices write into each other's memory meanwhile finds it there.
//!
//! Each case runs in a process of its own, under several seeds of the software device: it may end
//! by the signal that is looked for.

#![cfg(test)]

mod made_up;
mod run_support;

use headlong::config::{Config, DeviceChoice, ScheduleChoice};
use headlong::error::{Error, chain};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong_device::cuda::testing::has_software_devices;
use headlong_embedding::Registry;
use made_up::MadeUp;
use run_support::{Place, Run};
use std::process::Command;
use std::time::Duration;

const ROWS: [u64; 4] = [5, 40, 1, 900];
const RANKS: usize = 4;
const SAMPLES: usize = 64;
/// The step in which it happens.
const LAST: u64 = 7;

/// What happens to the last rank in the middle of the run.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// Its host gives up, while others enqueue.
    GivesUp,
    /// It comes long after the others' deadline.
    IsLate,
    /// It panics.
    Panics,
}

fn group(schedule: ScheduleChoice, deadline_s: f64) -> RankGroup {
    let mut config = Config::default();
    config.model.dim = 16;
    (config.model.bottom, config.model.top) = (vec![32, 16], vec![24, 1]);
    (config.data.num_dense, config.data.num_sparse) = (13, ROWS.len());
    config.tables.rows = headlong::config::TableRows::List(ROWS.to_vec());
    config.tables.max_ids_per_sample = 3;
    (config.train.batch_size, config.eval.batch_size) = (SAMPLES, SAMPLES);
    (config.run.device, config.run.schedule, config.run.ranks) =
        (DeviceChoice::Cuda, schedule, RANKS);
    config.comm.deadline_s = deadline_s;
    config.validate().unwrap();
    RankGroup::build(&config, &ROWS, RankGroupOptions::new(RANKS, &Registry::default())).unwrap()
}

/// Some steps, and then one in which the last rank has a mishap, each other rank a little later
/// than the one before. The error.
fn run_into(mishap: Mishap, schedule: ScheduleChoice) -> Error {
    // Only where a rank is late the others give up by themselves; a busy machine must not be late.
    let group = group(schedule, if matches!(mishap, Mishap::IsLate) { 3.0 } else { 60.0 });
    let made_up = MadeUp { seed: 3, rows: &ROWS, num_dense: 13 };
    let at = |number: u64| made_up.bags(number, SAMPLES);
    group.prime(&at(0)).unwrap();
    for number in 1..LAST {
        group.enqueue(StepRates { number, dense: 0.05, sparse: 0.1 }, Some(&at(number))).unwrap();
    }
    let rates = StepRates { number: LAST, dense: 0.05, sparse: 0.1 };
    let next = at(LAST);
    let outcome = group.all(|worker| {
        let rank = worker.model().communicator.rank().0;
        std::thread::sleep(Duration::from_millis(3 * rank as u64));
        match mishap {
            _ if rank + 1 < RANKS => {}
            Mishap::GivesUp => return Err(Error::Usage("its host has given up".to_owned())),
            Mishap::IsLate => std::thread::sleep(Duration::from_millis(4500)),
            Mishap::Panics => panic!("on purpose"),
        }
        worker.enqueue(rates, Some(&next))?;
        worker.drain()
    });
    outcome.unwrap_err()
}

const SCHEDULES: [ScheduleChoice; 2] = [ScheduleChoice::Serial, ScheduleChoice::Captured];

/// The part of [`ranks_that_give_up_leave_their_memory_to_the_others`] that runs in a process of
/// its own.
#[test]
#[ignore = "started by another test, with a seed"]
fn a_host_gives_up() {
    for schedule in SCHEDULES {
        let text = chain(&run_into(Mishap::GivesUp, schedule));
        assert!(text.contains("its host has given up"), "{text}");
    }
}

/// As [`a_host_gives_up`].
#[test]
#[ignore = "started by another test, with a seed"]
fn a_rank_is_late() {
    let text = chain(&run_into(Mishap::IsLate, ScheduleChoice::Captured));
    assert!(text.contains("step 7") && text.contains("a peer may not have come"), "{text}");
}

/// As [`a_host_gives_up`].
#[test]
#[ignore = "started by another test, with a seed"]
fn a_rank_panics() {
    for schedule in SCHEDULES {
        let panic = std::panic::catch_unwind(|| run_into(Mishap::Panics, schedule)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}

fn passes_in_a_process_of_its_own(name: &str, seed: u64) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("SOFTCUDA_SEED", seed.to_string());
    let output = command.env("SOFTCUDA_TIMEOUT_S", "30").output().unwrap();
    let texts =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    let passed = output.status.success() && texts[0].contains("1 passed");
    assert!(passed, "{name}, seed {seed}: {}: {}", output.status, texts.join(""));
}

#[test]
fn ranks_that_give_up_leave_their_memory_to_the_others() {
    if !has_software_devices(RANKS) {
        return;
    }
    for (name, seed) in [
        ("a_host_gives_up", 0),
        ("a_host_gives_up", 1),
        ("a_host_gives_up", 2),
        ("a_rank_panics", 1),
        ("a_rank_is_late", 2),
    ] {
        passes_in_a_process_of_its_own(name, seed);
    }
}

/// A device that fails anywhere in a step: in a lookup, in the sum over ranks, in what a peer's
/// barrier waits for.
#[test]
fn a_failing_device_of_several_ends_the_run_with_its_name() {
    if !has_software_devices(RANKS) {
        return;
    }
    let place = Place::new("rows.txt");
    for (seed, fault) in ["lookup:30", "sum:21", "request_write:13"].iter().enumerate() {
        let schedule = ["serial", "overlapped", "captured"][seed];
        let run = place.train().with(&["--device", "cuda", "--schedule", schedule, "--ranks", "4"]);
        let run: Run = run.with(&["--steps", "12", "--set", "comm.deadline_s=20"]);
        let run =
            run.variable("SOFTCUDA_FAULT", fault).variable("SOFTCUDA_SEED", &seed.to_string());
        let ended = run.fails(1, &["of step", "on the device", "cuda:"]);
        println!("{fault}, {schedule}: {}", ended.stderr.lines().last().unwrap_or_default());
    }
}

/// Where one rank's device cannot make a graph, all ranks run the step without one, now and where
/// graphs are made later, and where none can be made at all.
#[test]
fn a_graph_that_one_rank_cannot_make_changes_no_bit() {
    if !has_software_devices(RANKS) {
        return;
    }
    let place = Place::new("rows.txt");
    let all = (1..=24).map(|n| format!("cuGraphInstantiate:{n}")).collect::<Vec<_>>().join(",");
    for transport in ["auto", "nccl"] {
        let run = place.train().with(&["--device", "cuda", "--ranks", "4", "--steps", "16"]);
        let run = run.with(&["--transport", transport, "--set", "train.batch_size=50"]);
        let made = run.succeeds();
        for (faults, more_fail) in [("cuGraphInstantiate:2", false), (all.as_str(), true)] {
            let run = run.clone().variable("SOFTCUDA_FAULT", faults).variable("SOFTCUDA_SEED", "5");
            let ended = run.succeeds();
            let notes = ended.stderr.matches("runs without a graph").count();
            assert_eq!(notes > 1, more_fail, "{transport}, {faults}: {}", ended.stderr);
            assert!(notes > 0, "{transport}, {faults}: {}", ended.stderr);
            assert_eq!(ended.digest(), made.digest(), "{transport}, {faults}");
        }
    }
}
