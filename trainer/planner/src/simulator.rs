//! The schedule, executed: the very stages that training walks, with their lanes and the waits
//! derived from them, against modelled times.
//!
//! A discrete-event simulation. Stages of a lane run in program order, each as soon as what it
//! waits for has run. Exchanges begin when all ranks have come to them. With
//! [`Options::contention`], stages that run at the same time on a rank share its memory, its
//! matrix units and its links: together they get no more than there is. Jitter and stragglers come
//! from a seed.

use crate::schedule::{Lane, Repeat, Stage, Steps, program_order};
use crate::work::{Busy, StageTime};
use headlong_device::rng::CounterRng;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// How lanes get what they run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assignment {
    /// One thread runs all stages in program order.
    Serial,
    /// On a processor: a thread for exchanges, and one for all else.
    OverlappedThreads,
    /// Each lane its own queue.
    Queues,
}

/// What is simulated besides the times themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// How lanes get what they run on.
    pub assignment: Assignment,
    pub border: Steps,
    pub steps: usize,
    pub micro_batches: usize,
    /// Whether stages at the same time share what the rank has.
    pub contention: bool,
    /// Standard deviation of every stage's time, as a part of it.
    pub jitter: f64,
    /// One rank in so many is slow by [`Options::straggle`]; 0: none.
    pub straggler_every: usize,
    /// How slow: 1.2 takes a fifth longer.
    pub straggle: f64,
    /// Decides all chance.
    pub seed: u64,
}

impl Options {
    /// Two steps to come to rest and two that count; nothing by chance.
    pub fn plain(assignment: Assignment) -> Self {
        Self {
            assignment,
            border: Steps::of(assignment == Assignment::Queues, true),
            steps: 4,
            micro_batches: 1,
            contention: false,
            jitter: 0.0,
            straggler_every: 0,
            straggle: 1.0,
            seed: 0,
        }
    }
}

/// One run of one stage on one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub rank: usize,
    pub step: usize,
    /// Its place in the list of stages.
    pub stage: usize,
    /// When it began, microseconds.
    pub start_us: f64,
    pub end_us: f64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Run {
    /// Every run of every stage that takes time, as they ended.
    pub spans: Vec<Span>,
    /// When each step ended on the last rank, microseconds.
    pub step_ends_us: Vec<f64>,
}

impl Run {
    /// Microseconds of a step once the simulation has come to rest: the mean of its second half.
    pub fn step_us(&self) -> f64 {
        let last = self.step_ends_us.len() - 1;
        let half = last / 2;
        if half == last {
            return self.step_ends_us[last];
        }
        (self.step_ends_us[last] - self.step_ends_us[half]) / (last - half) as f64
    }
}

/// A run of a stage within a step.
struct Task {
    stage: usize,
    lane: Lane,
    /// Tasks of this step, and of the step before, that must have ended.
    waits: Vec<usize>,
    previous: Vec<usize>,
}

/// The schedule with micro-batches written out.
fn tasks(stages: &[Stage], micro_batches: usize) -> Vec<Task> {
    let order: Vec<(usize, usize)> =
        program_order(stages, |stage| stage.repeat, micro_batches).collect();
    // Of each stage, its runs in the order of micro-batches.
    let mut runs = vec![Vec::new(); stages.len()];
    order.iter().enumerate().for_each(|(task, (stage, _))| runs[*stage].push(task));
    let task = |&(stage, micro): &(usize, usize)| {
        let of = |other: usize| match (stages[other].repeat, stages[stage].repeat) {
            (Repeat::Micro, Repeat::Micro) => runs[other][micro..=micro].to_vec(),
            _ => runs[other].clone(),
        };
        Task {
            stage,
            lane: stages[stage].lane,
            waits: stages[stage].within.iter().flat_map(|&other| of(other)).collect(),
            previous: stages[stage].across.iter().flat_map(|&other| runs[other].clone()).collect(),
        }
    };
    order.iter().map(task).collect()
}

/// What runs on a rank right now.
#[derive(Clone, Copy)]
struct Running {
    task: usize,
    step: usize,
    start_us: f64,
    /// Microseconds of work left, if alone.
    left_us: f64,
    /// What it keeps busy, as parts of its own time.
    uses: [f64; 5],
}

/// One rank.
struct Rank {
    /// Steps done of each task.
    done: Vec<usize>,
    /// Next (step, task) of each queue.
    cursors: Vec<(usize, usize)>,
    running: Vec<Option<Running>>,
    now_us: f64,
    speed: f64,
    /// Events of an older version do not count any more.
    version: u64,
    factor: f64,
}

#[derive(PartialEq)]
struct Event {
    us: f64,
    rank: usize,
    version: u64,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest: the earliest event is.
        other.us.total_cmp(&self.us).then(other.rank.cmp(&self.rank))
    }
}

/// Executes `stages` on `ranks` equal ranks whose stages take `times` (by their place in the
/// list).
///
/// # Panics
/// Where the waits cannot all be satisfied: never, since a stage waits only for earlier ones.
pub fn run(stages: &[Stage], times: &[StageTime], ranks: usize, options: &Options) -> Run {
    let mut simulation = Simulation::new(stages, times, ranks, options);
    simulation.start_all();
    while let Some(event) = simulation.events.pop() {
        if simulation.ranks[event.rank].version == event.version {
            simulation.advance(event.rank, event.us);
        }
    }
    let finished = simulation
        .ranks
        .iter()
        .all(|rank| rank.cursors.iter().all(|cursor| cursor.0 == options.steps));
    assert!(finished, "every stage of the list can run");
    simulation.run
}

struct Simulation<'a> {
    times: &'a [StageTime],
    options: &'a Options,
    tasks: Vec<Task>,
    /// Tasks of each queue, in program order.
    queues: Vec<Vec<usize>>,
    ranks: Vec<Rank>,
    /// Ranks that have come to a task of a step.
    arrived: Vec<Vec<usize>>,
    events: BinaryHeap<Event>,
    run: Run,
}

impl<'a> Simulation<'a> {
    fn new(stages: &[Stage], times: &'a [StageTime], ranks: usize, options: &'a Options) -> Self {
        let tasks = tasks(stages, options.micro_batches);
        let lanes: &[&[Lane]] = match options.assignment {
            Assignment::Serial => &[&Lane::ALL],
            Assignment::OverlappedThreads | Assignment::Queues => {
                &[&[Lane::Copy], &[Lane::Sparse], &[Lane::Dense], &[Lane::Comm]]
            }
        };
        let queue = |lanes: &&[Lane]| -> Vec<usize> {
            (0..tasks.len()).filter(|&task| lanes.contains(&tasks[task].lane)).collect()
        };
        // A single rank has no exchanges.
        let queues: Vec<_> = lanes.iter().map(queue).filter(|queue| !queue.is_empty()).collect();
        let chance = CounterRng::new(options.seed, 1);
        let rank = |index: usize| {
            let slow = options.straggler_every > 0
                && (chance.bits(index as u64)[0] as usize).is_multiple_of(options.straggler_every);
            Rank {
                done: vec![0; tasks.len()],
                cursors: vec![(0, 0); queues.len()],
                running: vec![None; queues.len()],
                now_us: 0.0,
                speed: 1.0,
                version: 0,
                factor: if slow { options.straggle } else { 1.0 },
            }
        };
        let run = Run { spans: Vec::new(), step_ends_us: vec![0.0; options.steps] };
        let arrived = vec![Vec::new(); tasks.len() * options.steps];
        Self {
            ranks: (0..ranks).map(rank).collect(),
            times,
            options,
            tasks,
            queues,
            arrived,
            events: BinaryHeap::new(),
            run,
        }
    }

    fn start_all(&mut self) {
        (0..self.ranks.len()).for_each(|rank| self.begin(rank));
    }

    /// Takes rank `rank` to `us`: what has ended there has ended, what can begin begins.
    fn advance(&mut self, rank: usize, us: f64) {
        let state = &mut self.ranks[rank];
        let passed = (us - state.now_us) * state.speed;
        state.now_us = us;
        for queue in 0..state.running.len() {
            let Some(running) = &mut self.ranks[rank].running[queue] else { continue };
            running.left_us -= passed;
            // A part in a billion of a step is rounding.
            if running.left_us <= 1e-6 {
                let running = *running;
                self.ranks[rank].running[queue] = None;
                self.finish(rank, queue, &running);
            }
        }
        self.begin(rank);
    }

    fn finish(&mut self, rank: usize, queue: usize, running: &Running) {
        let state = &mut self.ranks[rank];
        state.done[running.task] = running.step + 1;
        let end = state.now_us;
        let cursor = &mut state.cursors[queue];
        *cursor = if cursor.1 + 1 == self.queues[queue].len() {
            (cursor.0 + 1, 0)
        } else {
            (cursor.0, cursor.1 + 1)
        };
        let step = &mut self.run.step_ends_us[running.step];
        *step = step.max(end);
        if end > running.start_us {
            let stage = self.tasks[running.task].stage;
            self.run.spans.push(Span {
                rank,
                step: running.step,
                stage,
                start_us: running.start_us,
                end_us: end,
            });
        }
    }

    /// Begins what can begin on `rank`, and says when the next thing ends there.
    fn begin(&mut self, rank: usize) {
        while let Some((queue, task, step)) = self.first_ready(rank) {
            if self.tasks[task].lane == Lane::Comm {
                let arrived = &mut self.arrived[step * self.tasks.len() + task];
                arrived.push(rank);
                // It waits in its queue: a task that takes for ever until all have come.
                self.occupy(rank, queue, (task, step), f64::INFINITY);
                if self.arrived[step * self.tasks.len() + task].len() == self.ranks.len() {
                    self.release(task, step, self.ranks[rank].now_us);
                }
            } else {
                let us = self.duration(rank, task, step);
                self.occupy(rank, queue, (task, step), us);
            }
        }
        self.schedule(rank);
    }

    /// All ranks have come to `task`: it begins everywhere now.
    fn release(&mut self, task: usize, step: usize, now_us: f64) {
        // The slowest holds up all.
        let slowest =
            (0..self.ranks.len()).map(|rank| self.duration(rank, task, step)).fold(0.0, f64::max);
        for rank in 0..self.ranks.len() {
            let passed = (now_us - self.ranks[rank].now_us) * self.ranks[rank].speed;
            self.ranks[rank].now_us = now_us;
            for running in self.ranks[rank].running.iter_mut().flatten() {
                if running.task == task && running.step == step {
                    (running.start_us, running.left_us) = (now_us, slowest);
                } else {
                    running.left_us -= passed;
                }
            }
            self.schedule(rank);
        }
    }

    fn occupy(&mut self, rank: usize, queue: usize, (task, step): (usize, usize), us: f64) {
        let time = &self.times[self.tasks[task].stage];
        let part = |busy: f64| if time.us > 0.0 { (busy / time.us).min(1.0) } else { 0.0 };
        let Busy { matrix_us, memory_us, wire_us, host_us, launch_us } = time.busy;
        let state = &mut self.ranks[rank];
        state.running[queue] = Some(Running {
            task,
            step,
            start_us: state.now_us,
            left_us: us,
            uses: [matrix_us, memory_us, wire_us, host_us, launch_us].map(part),
        });
    }

    /// Says when the next thing on `rank` ends, at the speed at which all that runs there now can
    /// run.
    fn schedule(&mut self, rank: usize) {
        let contention = self.options.contention;
        let state = &mut self.ranks[rank];
        let running =
            || state.running.iter().flatten().filter(|running| running.left_us.is_finite());
        let shared = (0..5)
            .map(|of| running().map(|running| running.uses[of]).sum::<f64>())
            .fold(1.0, f64::max);
        let next = running().map(|running| running.left_us).fold(f64::INFINITY, f64::min);
        state.speed = if contention { 1.0 / shared } else { 1.0 };
        state.version += 1;
        if next.is_finite() {
            let us = state.now_us + next.max(0.0) / state.speed;
            self.events.push(Event { us, rank, version: state.version });
        }
    }

    /// The first task in program order, of those at the head of a queue, that nothing holds up.
    fn first_ready(&self, rank: usize) -> Option<(usize, usize, usize)> {
        let state = &self.ranks[rank];
        let computing =
            |queue: usize| self.options.assignment == Assignment::OverlappedThreads && queue < 3;
        let thread_is_busy = (0..state.running.len())
            .any(|queue| computing(queue) && state.running[queue].is_some());
        let heads = (0..self.queues.len()).filter(|&queue| {
            state.running[queue].is_none()
                && state.cursors[queue].0 < self.options.steps
                && !(computing(queue) && thread_is_busy)
        });
        let heads = heads.map(|queue| {
            (state.cursors[queue].0, self.queues[queue][state.cursors[queue].1], queue)
        });
        let ready = heads.filter(|&(step, task, _)| self.is_ready(state, step, task));
        ready.min().map(|(step, task, queue)| (queue, task, step))
    }

    fn is_ready(&self, state: &Rank, step: usize, task: usize) -> bool {
        let line = &self.tasks[task];
        let is_over = match self.options.border {
            Steps::Barrier => state.done.iter().all(|&done| done >= step),
            Steps::Overlap => line.previous.iter().all(|&other| state.done[other] >= step),
        };
        is_over && line.waits.iter().all(|&other| state.done[other] > step)
    }

    /// How long `task` takes this time.
    fn duration(&self, rank: usize, task: usize, step: usize) -> f64 {
        let time = &self.times[self.tasks[task].stage];
        let mut us = time.us * self.ranks[rank].factor;
        if self.options.jitter > 0.0 {
            let number = ((rank * self.options.steps + step) * self.tasks.len() + task) as u64;
            let draws = CounterRng::new(self.options.seed, 2).bits(number);
            // Four uniform numbers less their mean: nearly normal, and never far off.
            let sum: f64 = draws.iter().map(|&bits| f64::from(bits) / 4_294_967_296.0 - 0.5).sum();
            us *= (1.0 + self.options.jitter * sum * 3.0_f64.sqrt()).max(0.1);
        }
        us
    }
}
