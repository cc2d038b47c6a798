//! What was measured, as a table with nccl-tests' columns and more, and as JSON.

use super::arguments::CollectiveArguments;
use super::backend::{Backend, RankIs};
use super::dtype::Dtype;
use super::job::{Answer, Measured};
use super::operation::{Operation, Place};
use super::statistics::{Figures, PERCENTILES, known};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// One operation, type and size over one backend.
#[derive(Debug, Clone)]
pub struct Row {
    pub backend: Backend,
    pub operation: Operation,
    pub dtype: Dtype,
    pub ranks: usize,
    pub nodes: usize,
    /// Where a broadcast begins; -1 for all else.
    pub root: i64,
    /// The column `size`.
    pub bytes: usize,
    /// The column `count`.
    pub count: usize,
    /// The library's own form first.
    pub places: Vec<(Place, Figures)>,
}

impl Row {
    pub fn new(
        backend: Backend,
        answer: &Answer,
        case: &Measured,
        arguments: &CollectiveArguments,
    ) -> Self {
        let figures =
            |(place, timing): &(Place, _)| (*place, Figures::new(timing, arguments.average));
        Self {
            backend,
            operation: case.operation,
            dtype: case.dtype,
            ranks: answer.node_of.len(),
            nodes: answer.node_of.iter().max().map_or(1, |last| last + 1),
            root: if case.operation == Operation::Broadcast { arguments.root as i64 } else { -1 },
            bytes: case.bytes,
            count: case.count,
            places: case.places.iter().map(figures).collect(),
        }
    }

    /// The library's own form, or the only one that was asked for.
    pub fn main(&self) -> &(Place, Figures) {
        &self.places[0]
    }

    pub fn at(&self, place: Place) -> Option<&Figures> {
        self.places.iter().find(|(other, _)| *other == place).map(|(_, figures)| figures)
    }

    /// The column `redop`.
    pub fn reduction(&self) -> &'static str {
        if self.operation.reduces() { "sum" } else { "none" }
    }

    /// Gigabytes per second: the columns `algbw` and `busbw`.
    pub fn bandwidths(&self, figures: &Figures) -> (f64, f64) {
        let algorithm = self.bytes as f64 / figures.time_us * 1e-3;
        (algorithm, algorithm * self.operation.bus_factor(self.ranks))
    }

    fn line(&self, place: Place, figures: &Figures) -> String {
        let (algorithm, bus) = self.bandwidths(figures);
        let wrong = figures.wrong.map_or_else(|| "N/A".to_owned(), |wrong| wrong.to_string());
        let place = if place == Place::Out { "out" } else { "in" };
        let mut line = format!(
            "{:>12} {:>12} {:>8} {:>6} {:>5} {place:>5} {:>10.2} {algorithm:>8.2} {bus:>8.2} \
             {wrong:>7}",
            self.bytes,
            self.count,
            self.dtype.name(),
            self.reduction(),
            self.root,
            figures.time_us,
        );
        for percentile in PERCENTILES {
            let _ = write!(line, " {:>9}", known(figures.latency.percentile(percentile)));
        }
        let (skew, arrival) = (figures.skew.percentile(50.0), figures.arrival.percentile(50.0));
        let _ = write!(
            line,
            " {:>10.2} {:>8} {:>8}",
            figures.latency.max(),
            known(skew),
            known(arrival)
        );
        let _ = write!(line, " {:>6}", figures.latency.len());
        line
    }

    fn json(&self) -> Value {
        let (place, main) = self.main();
        let mut row = self.figures_json(main);
        let fields = [
            ("lib", json!("headlong")),
            ("backend", json!(self.backend.name())),
            ("op", json!(self.operation.name())),
            ("dtype", json!(self.dtype.name())),
            ("procs", json!(self.ranks)),
            ("nodes", json!(self.nodes)),
            ("bytes", json!(self.bytes)),
            ("count", json!(self.count)),
            ("root", json!(self.root)),
            ("redop", json!(self.reduction())),
            ("place", json!(place.name())),
        ];
        row.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        let places = self.places.iter();
        row.extend(
            places.map(|(place, figures)| (place.name().into(), self.figures_json(figures).into())),
        );
        row.into()
    }

    fn figures_json(&self, figures: &Figures) -> serde_json::Map<String, Value> {
        let (algorithm, bus) = self.bandwidths(figures);
        let Figures { latency, skew, arrival, first_rank, .. } = figures;
        let [p50, p90, p99, p999] = PERCENTILES.map(|percentile| latency.percentile(percentile));
        let fields = [
            ("time_us", json!(figures.time_us)),
            ("algbw_gb_per_s", json!(algorithm)),
            ("busbw_gb_per_s", json!(bus)),
            ("wrong", json!(figures.wrong)),
            ("p50_us", json!(p50)),
            ("p90_us", json!(p90)),
            ("p99_us", json!(p99)),
            ("p99_9_us", json!(p999)),
            ("min_us", json!(latency.min())),
            ("max_us", json!(latency.max())),
            ("skew_p50_us", json!(skew.percentile(50.0))),
            ("skew_p99_us", json!(skew.percentile(99.0))),
            ("arrival_p50_us", json!(arrival.percentile(50.0))),
            ("rank0_p50_us", json!(first_rank.percentile(50.0))),
            ("rank0_p90_us", json!(first_rank.percentile(90.0))),
            ("reps", json!(latency.len())),
            ("dropped", json!(0)),
            ("wall_s", json!(figures.wall_s)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[derive(Debug, Clone)]
pub struct Report {
    pub operation: Operation,
    /// By backend, then by type and size.
    pub rows: Vec<Row>,
    /// What was not to be had, and why.
    pub skipped: Vec<(Backend, String)>,
    header: String,
}

impl Report {
    pub fn new(
        operation: Operation,
        rows: Vec<Row>,
        skipped: Vec<(Backend, String)>,
        arguments: &CollectiveArguments,
    ) -> Self {
        let effort = arguments.effort();
        let header = format!(
            "# headlong {} bench {}  ranks={} warmup={} calls/sample={} rounds={} check={:?} \
             skew={}us load={}\n\
             # latency of a sample: the longest of its ranks' durations, each by the rank's own \
             monotonic clock; nothing is dropped\n\
             # time: mean of the ranks' means (-a {}); p50 to max: latency; skew: p50 of longest - \
             shortest duration;\n\
             # arrive: p50 of last - first begin, where ranks share a clock; – : fewer than \
             10/(1-p) samples",
            env!("CARGO_PKG_VERSION"),
            operation.name(),
            arguments.ranks,
            effort.warm_up,
            effort.aggregate * effort.captured,
            arguments.rounds,
            effort.check,
            effort.skew_us,
            load(),
            arguments.average as u8,
        );
        Self { operation, rows, skipped, header }
    }

    pub fn wrong(&self) -> u64 {
        self.figures().filter_map(|(_, figures)| figures.wrong).sum()
    }

    /// The mean of the column `busbw`.
    pub fn mean_bus_bandwidth(&self) -> f64 {
        let (sum, count) = self.figures().fold((0.0, 0), |(sum, count), (row, figures)| {
            (sum + row.bandwidths(figures).1, count + 1)
        });
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    }

    fn figures(&self) -> impl Iterator<Item = (&Row, &Figures)> {
        self.rows.iter().flat_map(|row| row.places.iter().map(move |(_, figures)| (row, figures)))
    }

    pub fn document(&self) -> Value {
        let skipped = |(backend, reason): &(Backend, String)| {
            let backend = backend.name();
            json!({"backend": backend, "reason": reason})
        };
        json!({
            "bench": "collectives", "schema": 2, "version": env!("CARGO_PKG_VERSION"),
            "op": self.operation.name(),
            "load": load(),
            "latency": "longest of the ranks' durations, each by its own monotonic clock",
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "skipped": self.skipped.iter().map(skipped).collect::<Vec<_>>(),
        })
    }

    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.header);
        for rows in self.rows.chunk_by(|one, other| one.backend == other.backend) {
            let first = &rows[0];
            let kind = match first.backend.rank_is() {
                RankIs::Thread => "threads",
                RankIs::Process(_) => "processes",
                RankIs::Device(_) => "devices",
            };
            let nodes = if first.nodes == 1 {
                "1 node".to_owned()
            } else {
                format!("{} nodes", first.nodes)
            };
            let (operation, backend) = (self.operation.name(), first.backend.name());
            let _ = writeln!(
                text,
                "# {operation} over {backend}, {} ranks ({kind}) on {nodes}",
                first.ranks
            );
            text.push_str(&column_names());
            for (row, (place, figures)) in
                rows.iter().flat_map(|row| row.places.iter().map(move |at| (row, at)))
            {
                let _ = writeln!(text, "{}", row.line(*place, figures));
            }
        }
        for (backend, reason) in &self.skipped {
            let _ = writeln!(text, "# {}: skipped: {reason}", backend.name());
        }
        text + &self.footer()
    }

    fn footer(&self) -> String {
        let tail = |figures: &Figures| {
            Some(figures.latency.percentile(99.0)? / figures.latency.percentile(50.0)?.max(1e-3))
        };
        let worst =
            self.figures().filter_map(|(_, figures)| tail(figures)).fold(f64::NAN, f64::max);
        let worst = if worst.is_nan() { "–".to_owned() } else { format!("{worst:.1}") };
        format!(
            "# wrong elements: {}; mean busbw: {:.3} GB/s; worst p99/p50: {worst}; samples \
             dropped: 0; time in loops: {:.1} s\n",
            self.wrong(),
            self.mean_bus_bandwidth(),
            self.figures().fold(0.0, |sum, (_, figures)| sum + figures.wall_s)
        )
    }
}

/// Load averages of this machine: whether a run had it to itself.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join("/")
}

fn column_names() -> String {
    let names = [
        [("size", 11), ("count", 12), ("type", 8), ("redop", 6), ("root", 5), ("place", 5)]
            .as_slice(),
        &[
            ("time", 10),
            ("algbw", 8),
            ("busbw", 8),
            ("#wrong", 7),
            ("p50", 9),
            ("p90", 9),
            ("p99", 9),
        ],
        &[("p99.9", 9), ("max", 10), ("skew", 8), ("arrive", 8), ("n", 6)],
    ];
    let units = [
        ["(B)", "(elements)", "", "", "", ""].as_slice(),
        &["(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)"],
        &["(us)", "(us)", "(us)", "(us)", ""],
    ];
    let names = names.concat();
    let line = |words: &[&str]| {
        let cells = words.iter().zip(&names).map(|(word, (_, width))| format!("{word:>width$}"));
        format!("#{}\n", cells.collect::<Vec<_>>().join(" ").trim_end())
    };
    let first: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    line(&first) + &line(&units.concat())
}
