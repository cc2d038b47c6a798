//! What a run has cost: where the time went, memory, and what was planned against what was
//! measured.

use super::html::{Bar, bars, details, paragraph, section, span, table};
use crate::iteration::schedule::Lane;
use crate::iteration::trace::lane_colour;
use crate::report::history::read::{DoneAt, Kept, Model};
use crate::report::{Times, bytes, count, short_time};
use serde_json::Value;

/// So many tables are named, the largest.
const MOST_TABLES: usize = 40;

/// The sections; of several models, of the last.
pub fn sections(kept: &Kept) -> String {
    let Some(model) = kept.models.last() else { return String::new() };
    let whose = match kept.models.len() {
        1 => String::new(),
        _ => paragraph("lead", &format!("Of the last model, seed {}.", model.start.seed)),
    };
    section("Where the time went", &(whose.clone() + &time(model)))
        + &section("Memory", &(whose.clone() + &memory(model)))
        + &section("Plan and measurement", &(whose + &planned(model)))
}

fn time(model: &Model) -> String {
    let Some(times) = &model.times else {
        let why = "The run has not ended: where its time went is written at the end.";
        return paragraph("missing", why);
    };
    let whole = times.preparation_s + times.training_s;
    let bar = |name: &str, seconds: f64, told: &str| Bar {
        name: name.to_owned(),
        kind: String::new(),
        share: seconds / whole.max(f64::MIN_POSITIVE),
        value: format!("{} · {:.1} %", span(seconds), 100.0 * seconds / whole),
        told: told.to_owned(),
        colour: None,
    };
    let parts = [
        bar("preparation", times.preparation_s, "until the first step"),
        bar("training steps", steps_s(times), "training, without what is below"),
        bar("waiting for data", times.data_wait_s, "training waited for the reader"),
        bar("evaluations", times.evaluation_s, "training stood still for evaluations"),
        bar("checkpoints", times.checkpoint_s, "training stood still for checkpoints"),
    ];
    let mut whose = format!("{} in all", span(whole));
    if model.processes.len() > 1 {
        whose += ", of the process that trained last";
    }
    let panel = |heading: &str, legend: &str, listed: &[Bar]| {
        let legend = paragraph("legend", legend);
        format!("<div class=\"panel\"><h3>{heading}</h3>\n{legend}{}</div>\n", bars(listed))
    };
    let stages = match times.stages.is_empty() {
        true => String::new(),
        false => {
            let legend = match times.recorded_every {
                1 => "rank 0, all steps and evaluations".to_owned(),
                every => format!("rank 0, one step in {every}; evaluations left out"),
            };
            panel("Stages", &legend, &stages(times))
        }
    };
    format!("<div class=\"grid\">\n{}{stages}</div>\n", panel("Wall time", &whose, &parts))
}

/// Seconds of training steps alone.
fn steps_s(times: &Times) -> f64 {
    (times.training_s - times.data_wait_s - times.evaluation_s - times.checkpoint_s).max(0.0)
}

fn stages(times: &Times) -> Vec<Bar> {
    let all: f64 = times.stages.iter().map(|stage| stage.seconds).sum();
    let most = times.stages.iter().map(|stage| stage.seconds).fold(0.0, f64::max);
    let mut sorted: Vec<_> = times.stages.iter().collect();
    sorted.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let bar = |stage: &&crate::report::StageTime| {
        let lane = Lane::ALL.into_iter().find(|lane| lane.name() == stage.lane);
        let a_run = short_time(stage.seconds * 1e6 / stage.runs.max(1) as f64);
        let share = 100.0 * stage.seconds / all.max(f64::MIN_POSITIVE);
        Bar {
            name: stage.stage.clone(),
            kind: stage.lane.clone(),
            share: stage.seconds / most.max(f64::MIN_POSITIVE),
            value: format!("{a_run} · {share:.1} %"),
            told: format!("{}: {a_run} a run, {} runs", stage.stage, count(stage.runs)),
            colour: lane.map(lane_colour),
        }
    };
    sorted.iter().map(bar).collect()
}

fn memory(model: &Model) -> String {
    let plan = &model.start.plan;
    let Some(parts) = plan["memory"].as_object() else {
        return paragraph("missing", "The history has no plan of memory.");
    };
    let of_rank = number(&plan["bytes_per_rank"]);
    let name = |key: &str| match key {
        "table_weight_bytes" => "table weights".to_owned(),
        "table_state_bytes" => "optimiser state of tables".to_owned(),
        "dense_bytes" => "dense network".to_owned(),
        "activation_bytes" => "activations".to_owned(),
        "other_bytes" => "the program itself".to_owned(),
        other => other.trim_end_matches("_bytes").replace('_', " "),
    };
    let mut listed: Vec<(String, f64)> = parts
        .iter()
        .filter_map(|(key, value)| Some((name(key), value.as_f64().filter(|bytes| *bytes > 0.0)?)))
        .collect();
    listed.sort_by(|one, other| other.1.total_cmp(&one.1));
    let most = listed.first().map_or(0.0, |part| part.1);
    let bar = |(name, part): &(String, f64)| Bar {
        name: name.clone(),
        kind: String::new(),
        share: part / most.max(f64::MIN_POSITIVE),
        value: bytes(*part as u64),
        told: format!("{name}: {:.1} % of what is planned", 100.0 * part / of_rank),
        colour: None,
    };
    let listed: Vec<Bar> = listed.iter().map(bar).collect();
    let ranks = number(&plan["ranks"]);
    let whose = if ranks > 1.0 { " for each rank" } else { "" };
    let legend = format!("planned{whose}: {}", bytes(of_rank as u64));
    format!("<div class=\"panel\">\n{}{}</div>\n", paragraph("legend", &legend), bars(&listed))
        + &tables(plan)
}

fn tables(plan: &Value) -> String {
    let Some(tables) = plan["tables"].as_array().filter(|tables| !tables.is_empty()) else {
        return String::new();
    };
    let mut sorted: Vec<&Value> = tables.iter().collect();
    sorted.sort_by(|one, other| number(&other["bytes"]).total_cmp(&number(&one["bytes"])));
    let row = |table: &&Value| {
        let whole = |key: &str| count(number(&table[key]) as u64);
        let name = table["name"].as_str().unwrap_or_default().to_owned();
        let size = bytes(number(&table["bytes"]) as u64);
        vec![name, whole("rows"), whole("dim"), size]
    };
    let rows: Vec<Vec<String>> = sorted.iter().take(MOST_TABLES).map(row).collect();
    let summary = match tables.len() > MOST_TABLES {
        true => format!("The largest {MOST_TABLES} of {} embedding tables", tables.len()),
        false => format!("{} embedding tables", tables.len()),
    };
    details(&summary, &table(&["table", "rows", "dim", "weights and optimiser state"], &rows))
}

/// Lines of what was planned, what was measured, and how they compare.
fn planned(model: &Model) -> String {
    let Some(done) = &model.done else {
        return paragraph("missing", "The run has not ended: it has measured nothing in all.");
    };
    let plan = &model.start.plan;
    let mut rows = Vec::new();
    let mut row =
        |what: &str, planned: Option<f64>, measured: Option<f64>, shown: fn(f64) -> String| {
            let show = |value: Option<f64>| value.map_or("–".to_owned(), shown);
            let both = planned.zip(measured).filter(|(planned, _)| *planned > 0.0);
            let ratio = both.map(|(planned, measured)| format!("{:.2}", measured / planned));
            let ratio = ratio.unwrap_or("–".to_owned());
            rows.push(vec![what.to_owned(), show(planned), show(measured), ratio]);
        };
    let (us, per_s) = measured(model, done).unzip();
    let known = |key: &str| plan[key].as_f64();
    row("time of a step", known("predicted_step_us"), us, short_time);
    row("samples a second", known("predicted_samples_per_s"), per_s, |rate| count(rate as u64));
    let as_bytes = |value: f64| bytes(value as u64);
    let memory = known("bytes_per_rank");
    let single = memory.filter(|_| known("ranks") == Some(1.0));
    if single.is_none() {
        row("memory of a rank", memory, None, as_bytes);
        let here = memory.zip(known("ranks_here")).map(|(bytes, ranks)| bytes * ranks);
        row("memory on this machine", here, None, as_bytes);
    }
    let peak = Some(done.done.peak_rss_bytes as f64);
    row("peak memory of the process", single, peak, as_bytes);
    for (name, key) in [("intra-node", "intra_node"), ("inter-node", "inter_node")] {
        let planned = &plan["exchange_bytes_per_step"][key];
        let planned = number(&planned["forward"]) + number(&planned["backward"]);
        let sent = done.done.exchange_bytes_per_step;
        let sent =
            sent.map(|sent| if key == "intra_node" { sent.intra_node } else { sent.inter_node });
        if planned > 0.0 || sent.is_some_and(|sent| sent > 0.0) {
            row(&format!("vectors of tables a step, {name}"), Some(planned), None, as_bytes);
            row(&format!("all that is sent a step, {name}"), None, sent, as_bytes);
        }
    }
    let head = ["", "plan", "measured", "measured / plan"];
    let note = "The step is without evaluations, checkpoints and waiting for data; its plan is an \
                estimate for f32 in which nothing overlaps. The memory planned is what training \
                may need at most.";
    let panel = format!("<div class=\"panel tight\">\n{}</div>\n", table(&head, &rows));
    panel + &paragraph("note", note)
}

/// Microseconds of a step, and samples a second, of the process that trained last.
fn measured(model: &Model, done: &DoneAt) -> Option<(f64, f64)> {
    let times = model.times.as_ref()?;
    let from = model.processes.last().map_or(0, |process| process.from_step);
    let steps = done.step.checked_sub(from).filter(|&steps| steps > 0)? as f64;
    let seconds = Some(steps_s(times)).filter(|&seconds| seconds > 0.0)?;
    let samples = steps * done.samples as f64 / done.step as f64;
    Some((seconds * 1e6 / steps, samples / seconds))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}
