//! A cluster's plan as text.

use crate::plan::hybrid;
use crate::plan::{Count, Division};
use crate::report::{bytes, count};
use headlong_embedding::hybrid::PoolAt;
use headlong_planner::description::DeviceKind;
use headlong_planner::forecast::{Forecast, TotalTraffic};
use headlong_planner::placement::Place;
use headlong_planner::practice::{Bags, Captured, Practice, Strips};
use headlong_planner::report::ClusterReport;
use headlong_planner::tables;
use std::fmt::Write as _;

/// Tables and plans that are printed one by one.
const SHOWN: usize = 8;

/// The plan for people; `division` is how an epoch divides into batches, where that is known.
pub fn to_text(report: &ClusterReport, division: Option<Division>) -> String {
    let mut text = String::new();
    let cluster = &report.cluster;
    let best = &report.best.forecast;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}: {} nodes of {} devices; a batch of {} samples, {} a rank",
        cluster.name,
        cluster.nodes,
        cluster.devices_per_node,
        count(report.best.batch_size as u64),
        count(report.best.batch_size.div_ceil(cluster.num_devices()) as u64)
    );
    write_tables(&mut text, report);
    write_memory(&mut text, best, cluster.device.kind);
    write_practice(&mut text, &report.practice);
    write_bags(&mut text, report);
    write_stages(&mut text, best);
    write_keeping_up(&mut text, report, division);
    write_considered(&mut text, report);
    write_ancestor(&mut text, report);
    text
}

fn write_tables(text: &mut String, report: &ClusterReport) {
    let layout = &report.best.forecast.layout;
    let _ = writeln!(text, "placement: {}", layout.strategy.name());
    let mut tables: Vec<_> = report.tables.iter().zip(&layout.places).collect();
    tables.sort_by_key(|(table, _)| std::cmp::Reverse(table.rows));
    for (table, place) in tables.iter().take(SHOWN) {
        let _ = writeln!(
            text,
            "  {:<12} {:>13} rows  {}",
            table.name,
            count(table.rows),
            in_words(**place, table.rows)
        );
    }
    let rest = tables.len().saturating_sub(SHOWN);
    if rest > 0 {
        let whole =
            tables[SHOWN..].iter().filter(|(_, place)| **place == Place::DataParallel).count();
        let _ = writeln!(text, "  {rest} smaller tables, {whole} of them on every device");
    }
    if !layout.strategy.is_trainable() {
        let _ = writeln!(text, "  note: `headlong train` cuts no table by columns yet");
    }
}

/// Disks, evaluations, the end of the epoch, the target, and what more of something would buy.
fn write_keeping_up(text: &mut String, report: &ClusterReport, division: Option<Division>) {
    let best = &report.best.forecast;
    let _ = writeln!(
        text,
        "reading: {:.2} GB/s a node ({:.0} us of disks a step)",
        best.reading_gb_per_s, best.reading_us
    );
    if let Some(simulated) = &report.simulated {
        let _ = writeln!(
            text,
            "simulated with contention and {:.0} % of jitter on {} ranks: {:.0} us a step",
            simulated.jitter * 100.0,
            simulated.ranks,
            simulated.step_us
        );
    }
    if let Some(evaluation) = &report.evaluation {
        let pays = if evaluation.hiding_pays {
            "that pays"
        } else {
            "which costs more than evaluating with all"
        };
        let _ = writeln!(
            text,
            "evaluation: {:.3} s every {:.2} s of training, {:.1} % of the run; {} of {} ranks \
             would hide it, {pays}",
            evaluation.seconds,
            evaluation.interval_s,
            evaluation.share * 100.0,
            evaluation.ranks_that_hide,
            report.cluster.num_devices()
        );
    }
    if let Some(division) = division {
        let _ = writeln!(text, "{}", division.to_text());
    }
    if let Some(target) = &report.target {
        let _ = writeln!(
            text,
            "AUC {} after {:.2} epochs (published for this batch): {:.3} minutes",
            target.auc, target.epochs, target.minutes
        );
    }
    for sensitivity in &report.sensitivities {
        let _ = writeln!(
            text,
            "20 % more {} buys {:.1} %",
            sensitivity.what,
            tables::percent(sensitivity.gain)
        );
    }
}

fn write_considered(text: &mut String, report: &ClusterReport) {
    let _ = writeln!(text, "plans considered:");
    let fastest = report.best.forecast.samples_per_s;
    for candidate in report.considered.iter().take(SHOWN) {
        let forecast = &candidate.forecast;
        let reason = match (forecast.fits, forecast.samples_per_s / fastest) {
            (false, _) => {
                format!(
                    "does not fit: {} of {}",
                    bytes(forecast.needed_bytes.get()),
                    bytes(forecast.available_bytes)
                )
            }
            (true, share) if share >= 1.0 => "the most samples a second".to_owned(),
            (true, share) => {
                format!("{:.1} % slower: {}", (1.0 - share) * 100.0, slowest_stage(forecast))
            }
        };
        let _ = writeln!(
            text,
            "  batch {:>9}  {:<54} {:>9.0} us {:>12} samples/s  {reason}",
            count(candidate.batch_size as u64),
            forecast.layout.strategy.name(),
            forecast.step_us,
            count(forecast.samples_per_s as u64)
        );
    }
}

fn write_ancestor(text: &mut String, report: &ClusterReport) {
    let Some(ancestor) = &report.ancestor else { return };
    let minutes = |minutes: Option<f64>| {
        minutes.map_or(String::new(), |minutes| format!(", {minutes:.3} minutes to its target"))
    };
    let _ = writeln!(
        text,
        "the ancestor ({}) on the same cluster, batch {}: {:.0} us a step{}",
        ancestor.name,
        count(ancestor.batch_size as u64),
        ancestor.step_us,
        minutes(ancestor.minutes)
    );
    let (us, then) = ancestor.one_by_one;
    let _ = writeln!(text, "  with one stage at a time: {us:.0} us a step{}", minutes(then));
    for published in &ancestor.published {
        let _ = writeln!(
            text,
            "  published, {}: {:.0} us a step, {:.3} minutes",
            published.round, published.us, published.minutes
        );
    }
    let target = report.target.as_ref().map(|target| target.minutes);
    let _ = writeln!(
        text,
        "  the plan above: {:.0} us a step{}",
        report.best.forecast.step_us,
        minutes(target)
    );
}

fn write_memory(text: &mut String, forecast: &Forecast, kind: DeviceKind) {
    let memory = &forecast.memory;
    let mut parts = vec![
        ("weights", memory.table_weight_bytes),
        ("optimiser state", memory.table_state_bytes),
        ("dense network", memory.dense_bytes),
        ("exchange slots", memory.exchange_bytes),
        ("activations", memory.activation_bytes),
    ];
    let listed: Count = parts.iter().map(|(_, size)| *size).sum();
    match kind {
        DeviceKind::Gpu => parts.extend([
            ("work space and libraries", forecast.needed_bytes - listed),
            ("reader, on the host", memory.reader_bytes),
        ]),
        DeviceKind::Cpu => parts.extend([
            ("reader", memory.reader_bytes),
            ("id maps", memory.id_map_bytes),
            ("other", memory.other_bytes),
        ]),
    }
    let listed: Vec<String> = parts
        .iter()
        .filter(|(_, size)| *size > 0)
        .map(|(name, size)| format!("{name} {}", bytes(size.get())))
        .collect();
    let _ = writeln!(
        text,
        "memory {} of {} a device ({}): {}",
        bytes(forecast.needed_bytes.get()),
        bytes(forecast.available_bytes),
        if forecast.fits { "fits" } else { "DOES NOT FIT" },
        listed.join(", ")
    );
}

/// How a step is done: the choices of the configuration, and those that follow from the cluster.
fn write_practice(text: &mut String, practice: &Practice) {
    let strips = match practice.strips {
        Strips { inside: true, between: true } => ", in strips of one length",
        Strips { inside: true, between: false } => ", inside nodes in strips of one length",
        Strips { inside: false, between: true } => ", between nodes in strips of one length",
        Strips { inside: false, between: false } => "",
    };
    let lanes = match (practice.captured, practice.overlapped) {
        (Captured::Step, _) => "captured",
        (_, true) => "overlapped",
        (_, false) => "serial",
    };
    let _ = writeln!(
        text,
        "exchange: {}{strips}; {} bytes an element of a vector, {} of a sum\nschedule: {lanes}; {}",
        hybrid::in_words(practice.variant),
        practice.wire_bytes,
        practice.sum_bytes,
        practice.border.text()
    );
}

/// Where bags of several ids become vectors, and what either way sends.
fn write_bags(text: &mut String, report: &ClusterReport) {
    for (at, place, other) in [
        (PoolAt::Owner, "at the owner", "on the rank"),
        (PoolAt::Rank, "on the rank", "at the owner"),
    ] {
        let bags = || report.practice.bags.iter().filter(|bags| bags.at == at);
        let names: Vec<&str> = bags().map(|bags| report.tables[bags.table].name.as_str()).collect();
        if names.is_empty() {
            continue;
        }
        let sum = |of: fn(&Bags) -> f64| bytes(bags().map(of).sum::<f64>().round() as u64);
        let (rank, owner) = (sum(|of| of.choice.rank_bytes), sum(|of| of.choice.owner_bytes));
        let (sent, instead) = if at == PoolAt::Owner { (owner, rank) } else { (rank, owner) };
        let _ = writeln!(
            text,
            "bags of {} become vectors {place}: {sent} a step, {other} {instead}",
            names.join(", ")
        );
    }
}

fn write_stages(text: &mut String, forecast: &Forecast) {
    let _ = writeln!(
        text,
        "step {:.0} us, {} samples/s; the busiest resource {:.0} us\n  {:<32} {:<8} {:>9} {:>12}",
        forecast.step_us,
        count(forecast.samples_per_s as u64),
        forecast.busiest_us,
        "stage",
        "lane",
        "us",
        "critical us"
    );
    for stage in &forecast.stages {
        let _ = writeln!(
            text,
            "  {:<32} {:<8} {:>9.1} {:>12.1}",
            stage.name, stage.lane, stage.us, stage.critical_us
        );
    }
    let TotalTraffic { ids, vectors, gradients, all_reduce } = forecast.traffic;
    let all = ids + vectors + gradients + all_reduce;
    let whole = |number: f64| bytes(number.round() as u64);
    let _ = writeln!(
        text,
        "all ranks send {} between nodes and {} inside them (needed: {} and {}): vectors {}, \
         gradients {}, all-reduce {}, ids {}",
        whole(all.inter),
        whole(all.intra),
        whole(forecast.exchange_bytes_per_step.needed_inter_node),
        whole(forecast.exchange_bytes_per_step.needed_intra_node),
        whole(vectors.total()),
        whole(gradients.total()),
        whole(all_reduce.total()),
        whole(ids.total())
    );
}

/// What the critical path waits for most.
fn slowest_stage(forecast: &Forecast) -> String {
    let slowest =
        forecast.stages.iter().max_by(|one, other| one.critical_us.total_cmp(&other.critical_us));
    slowest.map_or(String::new(), |stage| {
        format!("waits most for {} ({:.0} us)", stage.name, stage.critical_us)
    })
}

fn in_words(place: Place, rows: u64) -> String {
    match place {
        Place::Hybrid { frequent_rows } => {
            format!(
                "{} rows on every device, {} divided",
                count(frequent_rows),
                count(rows - frequent_rows)
            )
        }
        Place::RowWise => "divided by rows".into(),
        Place::TableWise { device } => format!("on device {device}"),
        Place::ColumnWise { first, parts } => {
            format!("{parts} column parts from device {first} on")
        }
        Place::DataParallel => "on every device".into(),
    }
}
