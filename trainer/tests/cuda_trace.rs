//! The trace of runs on the software device and the planner's simulation: both execute one list of
//! stages, with the same waits and no others, within a step and from one step to the next.

#![cfg(test)]

mod run_support;

use headlong::iteration::schedule::{Features, Schedule};
use headlong_device::cuda::testing::has_software_devices;
use headlong_device::rng::CounterRng;
use headlong_planner::schedule::Stage;
use headlong_planner::simulator::{self, Assignment, Options};
use headlong_planner::work::{Busy, StageTime};
use run_support::Place;
use serde_json::Value;
use std::collections::BTreeMap;

const RANKS: usize = 2;
const STEPS: usize = 24;
/// Runs, each with another order of the device.
const RUNS: u64 = 8;
/// The most, where in [`RUNS`] too few pairs of stages have overlapped.
const MOST_RUNS: u64 = 3 * RUNS;
/// Pairs that must.
const OVERLAP: [[&str; 2]; 2] = [
    // What the overlap of steps is for: the vectors of the next step travel during the update.
    ["dense_optimizer", "next exchange_vectors"],
    // What two sums are for: rows move during the second.
    ["all_reduce_dense", "update_replicated"],
];
/// Simulations with other times each.
const SIMULATIONS: u64 = 400;
/// Microseconds between the readings of two clocks.
const CLOCK_US: f64 = 0.5;

/// When a stage begins and ends, microseconds.
type Span = (f64, f64);

/// For every two stages of two steps that follow each other, the earlier one in program order
/// first: whether it has always ended before the other began.
struct Order(Vec<Vec<bool>>);

impl Order {
    fn new(stages: usize) -> Self {
        Self(vec![vec![true; stages]; stages])
    }

    /// Takes what one rank did in two steps.
    fn saw(&mut self, steps: &[Span]) {
        for (one, &(_, end)) in steps.iter().enumerate() {
            for (other, &(start, _)) in steps.iter().enumerate().skip(one + 1) {
                self.0[one][other] &= end <= start + CLOCK_US;
            }
        }
    }

    fn pairs(&self) -> impl Iterator<Item = ((usize, usize), bool)> {
        let stages = self.0.len();
        let pairs = (0..stages).flat_map(move |one| (one + 1..stages).map(move |two| (one, two)));
        pairs.map(|(one, two)| ((one, two), self.0[one][two]))
    }
}

/// The order of two steps whose stages take times by chance: some a thousand times as long as
/// others.
fn simulated(stages: &[Stage]) -> Order {
    let mut order = Order::new(2 * stages.len());
    let options = Options { steps: 3, ..Options::plain(Assignment::Queues) };
    for number in 0..SIMULATIONS {
        let chance = CounterRng::new(17, number);
        let time = |index: usize| {
            let us = 10.0 * 1000.0_f64.powf(f64::from(chance.uniform(index as u64)));
            StageTime { us, busy: Busy::default() }
        };
        let times: Vec<StageTime> = (0..stages.len()).map(time).collect();
        let run = simulator::run(stages, &times, 1, &options);
        let mut steps = vec![(0.0, 0.0); 2 * stages.len()];
        for span in run.spans.iter().filter(|span| span.step > 0) {
            steps[(span.step - 1) * stages.len() + span.stage] = (span.start_us, span.end_us);
        }
        order.saw(&steps);
    }
    order
}

/// Takes the steps of a trace in which every stage ran: all but the last, which has no next batch.
/// In how many of them replicated rows moved while dense gradients were summed.
fn take_traced(order: &mut Order, stages: &[Stage], trace: &Value) -> usize {
    let mut spans: BTreeMap<(u64, &str), Vec<Span>> = BTreeMap::new();
    let events = trace["traceEvents"].as_array().unwrap();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let of = (event["pid"].as_u64().unwrap(), event["name"].as_str().unwrap());
        let (start, length) = (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        spans.entry(of).or_default().push((start, start + length));
    }
    let spans = &spans;
    for rank in 0..RANKS as u64 {
        let span = |step: usize, stage: &Stage| spans[&(rank, stage.name)][step];
        for step in 0..STEPS - 2 {
            let steps = [step, step + 1].into_iter();
            let both = steps.flat_map(|step| stages.iter().map(move |stage| span(step, stage)));
            order.saw(&both.collect::<Vec<_>>());
        }
    }
    let of = |name| (0..RANKS as u64).flat_map(move |rank| spans[&(rank, name)].iter());
    let (sums, updates) = (of("all_reduce_dense"), of("update_replicated"));
    sums.zip(updates).filter(|(sum, update)| sum.0 < update.1 && update.0 < sum.1).count()
}

/// The trace of a run whose device takes operations in the order of `seed`.
fn trace_of(seed: u64, schedule: &str) -> Value {
    let place = Place::new("rows.txt");
    let trace = place.path("trace.json");
    let run = place.train().with(&["--device", "cuda", "--schedule", schedule]);
    let run = run.with(&["--ranks", &RANKS.to_string(), "--steps", &STEPS.to_string()]);
    // A line of the log waits for its step.
    let run = run.with(&["--hybrid", "rows=50", "--set", "train.log_every=1000"]);
    let run = run.path("--trace", &trace);
    run.variable("SOFTCUDA_SEED", &seed.to_string()).succeeds();
    serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap()
}

/// The pairs of stages of which the simulation and the trace say this: whether the first has always
/// ended before the second began.
fn differ(
    stages: &[Stage],
    simulated: &Order,
    traced: &Order,
    said: (bool, bool),
) -> Vec<[String; 2]> {
    let name = |at: usize| {
        let step = if at < stages.len() { "" } else { "next " };
        format!("{step}{}", stages[at % stages.len()].name)
    };
    let both = simulated.pairs().zip(traced.pairs());
    let such = both.filter(|((_, must), (_, did))| (*must, *did) == said);
    such.map(|(((one, two), _), _)| [name(one), name(two)]).collect()
}

/// What a simulated stage waits for, the traced one waits for; and what may run at the same time in
/// the simulation, is seen to in some schedule of the device: `of_ten` of ten pairs, as a few need
/// a lane that lags by most of a step.
fn agree(schedule: &str, of_ten: usize) {
    if !has_software_devices(RANKS) {
        return;
    }
    let features = Features { ranks: true, device: true, dense: true, ..Features::default() };
    let stages = Schedule::step(features).described();
    let simulated = simulated(&stages);
    let mut traced = Order::new(2 * stages.len());
    let (mut at_once, mut runs) = (0, 0);
    let (seen, held) = loop {
        runs += 1;
        at_once += take_traced(&mut traced, &stages, &trace_of(runs, schedule));
        let seen = differ(&stages, &simulated, &traced, (false, false));
        let held = differ(&stages, &simulated, &traced, (false, true));
        let is_enough = of_ten * (seen.len() + held.len()) <= 10 * seen.len()
            && OVERLAP.iter().all(|pair| seen.iter().any(|other| other == pair))
            && at_once > 0;
        if runs >= RUNS && (is_enough || runs == MOST_RUNS) {
            break (seen, held);
        }
    };
    let broken = differ(&stages, &simulated, &traced, (true, false));
    assert!(broken.is_empty(), "began before the other ended: {broken:?}");
    let free = seen.len() + held.len();
    println!("{free} pairs may overlap, never seen to in {runs} runs: {held:?}");
    assert!(of_ten * free <= 10 * seen.len(), "{free} may overlap, these never: {held:?}");
    for [one, other] in OVERLAP {
        assert!(seen.contains(&[one, other].map(str::to_owned)), "{other} has waited for {one}");
    }
    assert!(at_once > 0, "replicated rows have never moved while dense gradients were summed");
    println!("in {at_once} steps replicated rows have moved while dense gradients were summed");
}

#[test]
fn the_trace_and_the_simulation_agree_on_order_and_overlap() {
    agree("overlapped", 9);
}

/// Graphs that follow each other, each with events of its own in it.
#[test]
fn the_trace_of_captured_steps_and_the_simulation_agree() {
    agree("captured", 9);
}
