//! nccl-tests' own columns, for scripts that read them: one table after the other, one for each
//! backend.

use super::arguments::CollectiveArguments;
use super::operation::{Operation, Place};
use super::statistics::Figures;
use super::table::{Report, Row};
use std::fmt::Write as _;

pub fn text(report: &Report, arguments: &CollectiveArguments) -> String {
    let mut text = String::new();
    for rows in report.rows.chunk_by(|one, other| one.backend == other.backend) {
        text.push_str(&banner(&rows[0], arguments));
        rows.iter().for_each(|row| line(&mut text, row));
    }
    let wrong = report.wrong();
    let verdict = if wrong == 0 { "OK" } else { "FAILED" };
    let _ = writeln!(text, "# Out of bounds values : {wrong} {verdict}");
    let _ = writeln!(text, "# Avg bus bandwidth    : {:.6} ", report.mean_bus_bandwidth());
    text + "#\n"
}

fn banner(first: &Row, arguments: &CollectiveArguments) -> String {
    let step = match arguments.step {
        Some(bytes) => format!("{}(bytes)", bytes.0),
        None => format!("{}(factor)", arguments.factor),
    };
    let effort = arguments.effort();
    let mut text = format!(
        "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {step} warmup iters: {} iters: {} agg \
         iters: {} validation: {} graph: {}\n\
         #\n\
         # Using devices\n",
        arguments.min_bytes.0,
        arguments.max_bytes.0,
        effort.warm_up,
        first.main().1.latency.len(),
        effort.aggregate * effort.captured,
        u8::from(first.main().1.wrong.is_some()),
        arguments.graph,
    );
    for rank in 0..first.ranks {
        let backend = first.backend.name();
        let _ = writeln!(
            text,
            "#  Rank {rank:2} Group  0 Pid {:6} on headlong-{backend}",
            std::process::id()
        );
    }
    let pair = |time: &str| format!("  {time:>7}  {:>6}  {:>6} ", "algbw", "busbw");
    let _ = writeln!(text, "#\n#{:>74}{:>31}          ", "out-of-place", "in-place");
    let _ = writeln!(
        text,
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}{:>6}{}{:>6}",
        "size",
        "count",
        "type",
        "redop",
        "root",
        pair("time"),
        "#wrong",
        pair("time"),
        "#wrong"
    );
    let _ = writeln!(
        text,
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>5}  {:>7}  {:>6}  {:>6}  \
         {:>5}",
        "(B)",
        "(elements)",
        "",
        "",
        "",
        "(us)",
        "(GB/s)",
        "(GB/s)",
        "",
        "(us)",
        "(GB/s)",
        "(GB/s)",
        ""
    );
    text
}

fn line(text: &mut String, row: &Row) {
    let _ = write!(
        text,
        "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}",
        row.bytes,
        row.count,
        row.dtype.name(),
        row.reduction(),
        row.root
    );
    // A barrier has one form; nccl-tests have no barrier, and their readers want both halves.
    let in_place = row
        .at(Place::In)
        .or_else(|| row.at(Place::Out).filter(|_| row.operation == Operation::Barrier));
    for figures in [row.at(Place::Out), in_place] {
        text.push_str(&half(row, figures));
    }
    text.push('\n');
}

fn half(row: &Row, figures: Option<&Figures>) -> String {
    let Some(figures) = figures else {
        return format!("  {:>7}  {:>6}  {:>6}  {:>5}", "N/A", "N/A", "N/A", "N/A");
    };
    let (algorithm, bus) = row.bandwidths(figures);
    let time = match figures.time_us {
        us if us >= 10_000.0 => format!("{us:.0}"),
        us if us >= 100.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    };
    let wrong = figures.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
    format!("  {time:>7}  {algorithm:>6.2}  {bus:>6.2}  {wrong:>5}")
}
