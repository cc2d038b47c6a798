//! `headlong plan --stages`: the schedule of a configuration, as it is walked.

use crate::config::{Config, DeviceChoice, ScheduleChoice};
use crate::error::Result;
use crate::iteration::ranks::local_topology;
use crate::iteration::schedule::{BatchOf, Features, Repeat, Resource, Schedule, Stage, Steps};
use crate::report::columns;
use crate::report::output::{self, JsonOutput};
use crate::system::machine::Machine;
use serde_json::{Value, json};

/// Prints the stages of a step of `config`.
pub(super) fn run(config: &Config, json: &JsonOutput) -> Result<()> {
    let on_device = match config.run.device {
        DeviceChoice::Cuda => true,
        device => Machine::detect_with(device)?.device.is_some(),
    };
    let mut run = config.run.clone();
    run.device = if on_device { DeviceChoice::Cuda } else { DeviceChoice::Cpu };
    let steps = Steps::of(on_device, run.schedule_used() != ScheduleChoice::Serial);
    let nodes = local_topology(config).num_nodes();
    let schedule = Schedule::step(Features::of(config, config.run.ranks, nodes, on_device));
    let rows: Vec<_> =
        std::iter::once(HEADINGS.map(str::to_owned)).chain(rows(&schedule)).collect();
    let text = format!("{}steps: {}\n{}", columns(&rows), steps.text(), across(&schedule, steps));
    let stages: Vec<Value> =
        (0..schedule.stages.len()).map(|at| document(&schedule, at, steps)).collect();
    output::answer(json, text.trim_end(), &json!({ "stages": stages, "steps": steps }))
}

/// What stages wait for of the step before, where steps overlap.
fn across(schedule: &Schedule, steps: Steps) -> String {
    let rows = schedule.stages.iter().enumerate().map(|(at, stage)| {
        let waits = waits_across(schedule, at, steps).join(", ");
        [stage.name.to_owned(), waits]
    });
    let waiting: Vec<_> = rows.filter(|[_, waits]| !waits.is_empty()).collect();
    let headings = ["stage", "waits for, of the step before"].map(str::to_owned);
    match waiting.is_empty() {
        true => String::new(),
        false => columns(&[&[headings], &waiting[..]].concat()),
    }
}

fn waits_across(schedule: &Schedule, at: usize, steps: Steps) -> Vec<&'static str> {
    match steps {
        Steps::Overlap => schedule.waits_across_of(at).collect(),
        Steps::Barrier => Vec::new(),
    }
}

const HEADINGS: [&str; 4] = ["stage", "lane", "batch", "waits for"];

fn rows(schedule: &Schedule) -> impl Iterator<Item = [String; 4]> {
    schedule.stages.iter().enumerate().map(|(at, stage)| {
        let waits = schedule.waits_of(at).collect::<Vec<_>>().join(", ");
        [stage.name, stage.lane.name(), batch(stage), &waits].map(str::to_owned)
    })
}

fn document(schedule: &Schedule, at: usize, steps: Steps) -> Value {
    let stage = &schedule.stages[at];
    json!({
        "name": stage.name,
        "lane": stage.lane.name(),
        "batch": batch(stage),
        "per_micro_batch": stage.repeat == Repeat::Micro,
        "waits_for": schedule.waits_of(at).collect::<Vec<_>>(),
        "waits_for_of_the_step_before": waits_across(schedule, at, steps),
        "reads": names(stage.reads),
        "writes": names(stage.writes),
    })
}

const fn batch(stage: &Stage) -> &'static str {
    match stage.batch {
        BatchOf::Now => "now",
        BatchOf::Next => "next",
    }
}

/// `recv rows` of `RecvRows`.
fn names(resources: &[Resource]) -> Vec<String> {
    let name = |resource: &Resource| {
        let mut name = String::new();
        for letter in format!("{resource:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push(' ');
            }
            name.extend(letter.to_lowercase());
        }
        name
    };
    resources.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iteration::schedule::{Runs, STEP};

    #[test]
    fn the_architecture_page_shows_the_schedule() {
        let all = Features {
            ranks: true,
            nodes: false,
            device: true,
            scaled: true,
            crossed: true,
            dense: true,
            divided: true,
            measured: true,
        };
        let runs = |stage: &Stage| match stage.runs {
            Runs::Always => "always",
            Runs::AmongRanks => "among ranks",
            Runs::AmongHosts => "among processors",
            Runs::AmongPeers => "among devices of one node",
            Runs::AmongNodes => "among devices of several nodes",
            Runs::SumsFirst => "among ranks, on a device or in f16",
            Runs::OnDevice => "on a device",
            Runs::Scaled => "in f16",
            Runs::Crossed => "with a cross network",
            Runs::WithDense => "with dense features",
            Runs::Divided => "divided optimiser",
            Runs::Measured => "divided, with norms",
        };
        let mut table =
            "| stage | lane | batch | where | waits for |\n|---|---|---|---|---|\n".to_owned();
        let among_nodes = Features { nodes: true, ..all };
        let among_hosts = Features { device: false, ..all };
        let schedules = [all, among_nodes, among_hosts].map(Schedule::step);
        for stage in STEP {
            let mut shown = schedules.iter().flat_map(rows);
            let [name, lane, batch, waits] = shown.find(|[name, ..]| name == stage.name).unwrap();
            table += &format!("| {name} | {lane} | {batch} | {} | {waits} |\n", runs(stage));
        }
        let page = include_str!("../../../../ARCHITECTURE.md");
        assert!(page.contains(&table), "ARCHITECTURE.md lacks, or has an older form of:\n{table}");
    }
}
