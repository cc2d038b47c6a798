//! What the stages of a run took: the table of `--time`, and a trace that Perfetto opens.

use crate::error::Result;
use crate::iteration::arithmetic::Ceiling;
use crate::iteration::schedule::{Lane, Stage};
use crate::report::output;
use headlong_planner::schedule::Stage as Simulated;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

mod picture;

pub use picture::lane_colour;

/// A trace holds at most this many spans, so that a long run with `--trace` stays small: about 100
/// MB of JSON.
const MOST_SPANS: usize = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// Sum up the time of every stage.
    pub times: bool,
    pub spans: bool,
    /// Sum up the time of every stage of one step of [`SAMPLED_EVERY`], on processors.
    pub sampled: bool,
}

/// Where steps are sampled, one of so many is: of a dozen stages, that is three readings of the
/// clock a step.
pub const SAMPLED_EVERY: u64 = 8;

#[derive(Debug)]
pub struct Recorder {
    record: Record,
    /// Whether the step that runs is one of those that are sampled.
    is_sampling: bool,
    since: Instant,
    totals: Vec<Total>,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Total {
    pub name: &'static str,
    pub lane: Lane,
    pub runs: u64,
    /// Seconds in all.
    pub seconds: f64,
}

#[derive(Debug)]
struct Span {
    name: &'static str,
    lane: Lane,
    start_us: f64,
    duration_us: f64,
}

impl Recorder {
    /// Records what `record` says, from now on.
    pub fn new(record: Record) -> Self {
        Self::since(record, Instant::now())
    }

    /// Records what `record` says; spans count from `since`, which several ranks share.
    pub fn since(record: Record, since: Instant) -> Self {
        let spans = Vec::with_capacity(if record.spans { 4096 } else { 0 });
        Self { record, is_sampling: false, since, totals: Vec::with_capacity(32), spans }
    }

    /// Records nothing and asks for no clock.
    pub fn off() -> Self {
        Self::new(Record::default())
    }

    /// The start of a stage, where anything is recorded.
    pub fn start(&self) -> Option<Instant> {
        (self.is_on() || self.is_sampling).then(Instant::now)
    }

    /// Training step `number` begins.
    pub fn begin_step(&mut self, number: u64) {
        self.is_sampling = self.record.sampled && number.is_multiple_of(SAMPLED_EVERY);
    }

    /// It has ended: what comes next is no part of a step.
    pub fn end_step(&mut self) {
        self.is_sampling = false;
    }

    pub fn finish(&mut self, stage: &Stage, started: Option<Instant>) {
        if let Some(started) = started {
            self.add(stage.name, stage.lane, started);
        }
    }

    /// The end of something that is no stage, such as reading a batch.
    pub fn add(&mut self, name: &'static str, lane: Lane, started: Instant) {
        let start_us = started.duration_since(self.since).as_secs_f64() * 1e6;
        self.add_span(name, lane, start_us, started.elapsed().as_secs_f64());
    }

    fn add_span(&mut self, name: &'static str, lane: Lane, start_us: f64, seconds: f64) {
        match self.totals.iter_mut().find(|total| total.name == name) {
            Some(total) => {
                total.runs += 1;
                total.seconds += seconds;
            }
            None => self.totals.push(Total { name, lane, runs: 1, seconds }),
        }
        if self.record.spans && self.spans.len() < MOST_SPANS {
            self.spans.push(Span { name, lane, start_us, duration_us: seconds * 1e6 });
        }
    }

    /// Sums up the time of every stage from now on.
    pub fn record_times(&mut self) {
        self.record.times = true;
    }

    pub fn is_on(&self) -> bool {
        self.record.times || self.record.spans
    }

    /// A stage that ran on a device for `seconds`, from so many microseconds after `read` on.
    pub fn add_on_device(&mut self, stage: &Stage, read: Instant, start_us: f64, seconds: f64) {
        let read_us = read.duration_since(self.since).as_secs_f64() * 1e6;
        self.add_span(stage.name, stage.lane, read_us + start_us, seconds);
    }

    /// A stage that never ran but was simulated, from `start_us` to `end_us`.
    pub fn add_simulated(&mut self, stage: &Simulated, start_us: f64, end_us: f64) {
        self.add_span(stage.name, stage.lane, start_us, (end_us - start_us) * 1e-6);
    }

    /// Forgets the sums so far: those of steps that warm up. Spans stay.
    pub fn forget_totals(&mut self) {
        self.totals.clear();
    }

    /// Every stage that ran, in the order of its first run.
    pub fn totals(&self) -> &[Total] {
        &self.totals
    }

    /// The table of `--time`: a line a stage, with microseconds a run and its share; with a
    /// `ceiling` also the part of the multiply-add peak that its products reached.
    pub fn table(&self, ceiling: Option<&Ceiling>) -> String {
        let all: f64 = self.totals.iter().map(|total| total.seconds).sum();
        let steps = self
            .totals
            .iter()
            .find(|total| total.name == "dense_optimizer")
            .map_or(0, |total| total.runs);
        let reached =
            |total: &Total| ceiling.and_then(|peak| peak.reached(total.name, steps, total.seconds));
        let fastest = self.totals.iter().filter_map(reached).fold(0.0, f64::max);
        let of_peak = if ceiling.is_some() { "  of peak" } else { "" };
        let mut text = format!(
            "{:<24} {:<8} {:>9} {:>12} {:>7}{of_peak}\n",
            "stage", "lane", "runs", "µs a run", "share"
        );
        for total in &self.totals {
            let microseconds = total.seconds * 1e6 / total.runs.max(1) as f64;
            let share = 100.0 * total.seconds / all.max(f64::MIN_POSITIVE);
            let (name, lane, runs) = (total.name, total.lane.name(), total.runs);
            let part = ceiling.zip(reached(total)).map(|(ceiling, reached)| {
                format!("  {:>5.1} %", 100.0 * reached / ceiling.gflops_of_rank().max(fastest))
            });
            let part = part.unwrap_or_default();
            text += &format!(
                "{name:<24} {lane:<8} {runs:>9} {microseconds:>12.1} {share:>5.1} %{part}\n"
            );
        }
        if let Some(ceiling) = ceiling {
            text += &peak_text(ceiling.gflops_of_rank(), fastest);
        }
        text
    }

    /// The spans as events of a Chrome trace: one process a rank, one thread a lane.
    fn events(&self, rank: usize) -> Vec<Value> {
        let track = |lane: Lane| Lane::ALL.iter().position(|&other| other == lane).unwrap_or(0);
        let mut events: Vec<Value> = Lane::ALL
            .iter()
            .map(|&lane| {
                let name = format!("{} lane", lane.name());
                json!({
                    "name": "thread_name", "ph": "M", "pid": rank, "tid": track(lane),
                    "args": {"name": name}
                })
            })
            .collect();
        let name = format!("rank {rank}");
        events
            .push(json!({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}}));
        events.extend(self.spans.iter().map(|span| {
            json!({
                "name": span.name, "ph": "X", "pid": rank, "tid": track(span.lane),
                "ts": span.start_us, "dur": span.duration_us
            })
        }));
        events
    }
}

/// What the last column of the table is a part of. A machine that was busier while its peak was
/// measured than in training has shown more in training.
fn peak_text(measured: f64, fastest: f64) -> String {
    let whose = "of peak: share of the rank's peak multiply-add rate";
    if fastest > measured {
        format!(
            "{whose}, {fastest:.0} GFLOP/s (of the fastest stage)\n  \
             (the separate measurement found {measured:.0}, probably while other programs were \
             running)\n"
        )
    } else {
        format!("{whose}, {measured:.0} GFLOP/s (measured in this run)\n")
    }
}

/// Whether `path` gets a picture, by its name.
pub fn is_picture(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "svg")
}

/// Writes what the ranks recorded as a Chrome trace (JSON), one track per rank and lane;
/// <https://ui.perfetto.dev> opens it. A file that ends in `.svg` becomes a picture of the last
/// step instead.
pub fn write_trace<'a>(
    path: &Path,
    ranks: impl Iterator<Item = (usize, &'a Recorder)>,
) -> Result<()> {
    let text = if is_picture(path) {
        picture::draw(ranks)
    } else {
        let events: Vec<Value> = ranks.flat_map(|(rank, recorder)| recorder.events(rank)).collect();
        json!({ "traceEvents": events, "displayTimeUnit": "ns" }).to_string()
    };
    output::write_file(path, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_ranks_lanes_and_stages() {
        let mut recorder = Recorder::new(Record { times: true, spans: true, sampled: false });
        let started = recorder.start().unwrap();
        recorder.add("lookup", Lane::Sparse, started);
        recorder.add("lookup", Lane::Sparse, started);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        write_trace(&path, std::iter::once((3, &recorder))).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans.len(), 2);
        assert_eq!(
            (&spans[0]["name"], &spans[0]["pid"], &spans[0]["tid"]),
            (&json!("lookup"), &json!(3), &json!(1))
        );
        assert_eq!(recorder.totals()[0].runs, 2);
        assert!(recorder.table(None).contains("lookup"));
    }

    /// No stage reaches more than the peak: what one has reached can be reached.
    #[test]
    fn the_peak_is_at_least_what_a_stage_has_reached() {
        let table = |measured: f64| {
            let ceiling = Ceiling::for_test(measured);
            let mut recorder = Recorder::new(Record { times: true, ..Record::default() });
            for (name, lane) in [("top_forward", Lane::Dense), ("dense_optimizer", Lane::Dense)] {
                recorder.totals.push(Total { name, lane, runs: 1, seconds: 1.0 });
            }
            recorder.table(Some(&ceiling))
        };
        let busy = table(1e-12);
        assert!(busy.contains(" 100.0 %\n") && busy.contains("(of the fastest stage)"), "{busy}");
        let quiet = table(1e6);
        assert!(quiet.contains("1000000 GFLOP/s (measured in this run)"), "{quiet}");
        let columns =
            quiet.lines().next().unwrap().split("  ").filter(|column| !column.is_empty()).count();
        assert_eq!(columns, 6, "columns are told apart by two blanks: {quiet}");
    }
}
