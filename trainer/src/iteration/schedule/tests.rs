//! Each declaration is needed: with one of them taken away, the run of the stage ends.

use super::{At, Features, Lane, Resource, Runs, STEP, Schedule, Stage};
use crate::Registry;
use crate::config::{
    Config, DeviceChoice, IdsChoice, Interaction, Precision, ScheduleChoice, Sharded, TableRows,
};
use crate::iteration::ranks::{RankGroup, RankGroupOptions};
use crate::iteration::trace::Record;
use crate::iteration::worker::StepRates;
use headlong_device::cuda::testing::{device, has_devices};
use headlong_planner::simulator::{self, Assignment, Options};
use headlong_planner::work::{Busy, StageTime};
use headlong_reader::{Batch, Jagged};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

mod border;

const ROWS: u64 = 16;
const TABLES: usize = 2;
const SAMPLES: usize = 8;

/// A small model on so many ranks, changed.
fn config(ranks: usize, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    config.data.num_sparse = TABLES;
    config.data.num_dense = 3;
    config.tables.rows = TableRows::Each(ROWS);
    config.model.dim = 4;
    config.model.bottom = vec![4];
    config.model.top = vec![4, 1];
    config.train.batch_size = SAMPLES;
    config.eval.batch_size = SAMPLES;
    config.run.ranks = ranks;
    config.comm.deadline_s = 20.0;
    change(&mut config);
    config.optimizer.resolve().unwrap();
    config.validate().unwrap();
    config
}

/// Configurations that together run every stage in every way.
fn configs() -> Vec<Config> {
    let of_all = |config: &mut Config| {
        config.train.precision = Precision::F16;
        config.model.interaction = Interaction::Cross;
        config.model.cross_rank = 2;
    };
    let divided = |config: &mut Config| {
        config.train.precision = Precision::F16;
        config.train.clip_norm = Some(1.0);
        config.optimizer.dense.name = "adam".to_owned();
        config.optimizer.dense.sharded = Some(Sharded::Always);
    };
    let mut configs = vec![
        config(1, |_| {}),
        config(2, of_all),
        config(2, |config| config.comm.ids = IdsChoice::Known),
        config(2, |_| {}),
        config(2, divided),
    ];
    if device().is_some() {
        configs.push(config(1, |config| {
            of_all(config);
            config.run.device = DeviceChoice::Cuda;
        }));
    }
    if has_devices(2) {
        configs.push(config(2, |config| config.run.device = DeviceChoice::Cuda));
        configs.push(config(2, |config| {
            divided(config);
            config.run.device = DeviceChoice::Cuda;
        }));
    }
    configs
}

fn batch() -> Batch {
    let bags = |table: usize| Jagged {
        values: (0..SAMPLES).map(|sample| (sample * 3 + table) as u64 % ROWS).collect(),
        offsets: (0..=SAMPLES as u32).collect(),
    };
    Batch {
        num_samples: SAMPLES,
        labels: (0..SAMPLES).map(|sample| (sample % 2) as f32).collect(),
        dense: (0..SAMPLES * 3).map(|at| at as f32 / 8.0).collect(),
        sparse: (0..TABLES).map(bags).collect(),
        ..Batch::default()
    }
}

/// Whether a step of `config` ends because the stage has not declared `resource`; a model without
/// the stage is not asked.
fn is_noticed(config: &Config, stage: &Stage, resource: Resource) -> bool {
    let Stage { name, runs, .. } = *stage;
    let registry = Registry::default();
    let group =
        RankGroup::build(config, &[ROWS; TABLES], RankGroupOptions::new(2, &registry)).unwrap();
    let batch = batch();
    group.all(|worker| worker.prime(&batch)).unwrap();
    let rates = StepRates { number: 1, dense: 0.1, sparse: 0.1 };
    let step = || {
        group.all(|worker| {
            // Devices of one node can do what those of several do.
            let nodes = runs == Runs::AmongNodes;
            let features = Features { nodes, ..worker.model().features() };
            *worker.schedule_mut() = Schedule::step(features);
            let stages = &mut worker.schedule_mut().stages;
            let Some(stage) = stages.iter_mut().find(|stage| stage.name == name) else {
                return Ok(());
            };
            let without = |of: &[Resource]| -> &'static [Resource] {
                of.iter().copied().filter(|&other| other != resource).collect::<Vec<_>>().leak()
            };
            (stage.reads, stage.writes) = (without(stage.reads), without(stage.writes));
            worker.step(rates, Some(&batch)).map(drop)
        })
    };
    let Err(panic) = catch_unwind(AssertUnwindSafe(step)) else { return false };
    let text = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert_eq!(text, format!("`{name}` touches {resource:?} and has not declared it"));
    // What a rank that has panicked leaves behind is not worth joining.
    std::mem::forget(group);
    true
}

#[test]
fn every_declaration_that_is_taken_away_is_noticed() {
    let (configs, on_device, among_devices) = (configs(), device().is_some(), has_devices(2));
    let mut unnoticed = Vec::new();
    for stage in STEP {
        for &resource in stage.reads.iter().chain(stage.writes) {
            let skipped = match stage.runs {
                Runs::OnDevice => !on_device,
                Runs::AmongPeers | Runs::AmongNodes => !among_devices,
                _ => false,
            };
            if skipped {
                println!("skipped for lack of devices: {} {resource:?}", stage.name);
            } else if !configs.iter().any(|config| is_noticed(config, stage, resource)) {
                unnoticed.push(format!("{} {resource:?}", stage.name));
            }
        }
    }
    assert!(unnoticed.is_empty(), "declared, but never touched: {unnoticed:?}");
}

/// One list is all there is: a stage that is added to it is walked, timed, waited for and
/// simulated.
#[test]
fn a_stage_that_is_added_appears_everywhere() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let count = |_: &At<'_>| {
        RUNS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let added = Stage {
        name: "added",
        lane: Lane::Copy,
        reads: &[Resource::DenseWeights],
        writes: &[],
        run: count,
        ..*STEP.last().unwrap()
    };
    let added = Stage { runs: Runs::Always, ..added };
    for schedule in [ScheduleChoice::Serial, ScheduleChoice::Overlapped] {
        let config = config(2, |config| config.run.schedule = schedule);
        let registry = Registry::default();
        let record = Record { times: true, ..Record::default() };
        let options = RankGroupOptions { record, ..RankGroupOptions::new(2, &registry) };
        let group = RankGroup::build(&config, &[ROWS; TABLES], options).unwrap();
        let (batch, rates) = (batch(), StepRates { number: 1, dense: 0.1, sparse: 0.1 });
        RUNS.store(0, Ordering::Relaxed);
        group
            .all(|worker| {
                worker.prime(&batch)?;
                let features = worker.model().features();
                let stages = STEP.iter().copied().chain([added]);
                *worker.schedule_mut() = Schedule::of(stages, features);
                worker.step(rates, Some(&batch))
            })
            .unwrap();
        assert_eq!(RUNS.load(Ordering::Relaxed), 2, "once on each rank");
        let worker = group.worker(0);
        let times = worker.recorder().totals();
        assert!(times.iter().any(|total| total.name == "added" && total.runs == 1), "{times:?}");
    }
    let features = Features { ranks: true, dense: true, ..Features::default() };
    let schedule = Schedule::of(STEP.iter().copied().chain([added]), features);
    let last = schedule.stages.len() - 1;
    assert_eq!(schedule.waits_of(last).collect::<Vec<_>>(), ["dense_optimizer"]);
    let times: Vec<_> = (0..=last).map(|_| StageTime { us: 1.0, busy: Busy::default() }).collect();
    let run = simulator::run(&schedule.described(), &times, 2, &Options::plain(Assignment::Queues));
    let end_of = |stage: usize| {
        let span = run.spans.iter().find(|span| (span.step, span.stage) == (0, stage)).unwrap();
        (span.start_us, span.end_us)
    };
    let awaited = schedule.within[last][0];
    assert!(end_of(last).0 >= end_of(awaited).1);
}

#[test]
fn the_page_quotes_the_schedule() {
    let (page, code) =
        (include_str!("../../../../docs/schedule.md"), include_str!("../schedule.rs"));
    let questions = page.split("## ").find(|part| part.starts_with("Ten questions")).unwrap();
    let quoted = questions.split("```").skip(1).step_by(2).flat_map(|block| block.lines().skip(1));
    let lines: Vec<&str> = quoted.map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 12);
    for line in lines {
        assert!(code.contains(line), "trainer/src/iteration/schedule.rs has no line `{line}`");
    }
}
