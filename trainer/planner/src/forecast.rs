//! What a plan comes to: memory of a device, time of a step and where it goes, what disks and
//! evaluations must keep up with.

use crate::count::Count;
use crate::description::DeviceKind;
use crate::memory::{CONTEXT_BYTES, MemoryUse, OfRank};
use crate::placement::{Layout, Placing, Strategy};
use crate::schedule::{Repeat, Stage};
use crate::simulator::{self, Assignment, Options, Run};
use crate::traffic::ExchangeBytes;
use crate::work::{Busy, StageTime, Works};
use headlong_embedding::hybrid::traffic::{Hops, Traffic};
use serde::Serialize;

/// One stage of the schedule on the busiest rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageForecast {
    pub name: &'static str,
    pub lane: &'static str,
    /// Its time, alone on the rank, microseconds: of all micro-batches together.
    pub us: f64,
    /// Of the step's time, what nothing else would hide: the part of the critical path that it
    /// takes, microseconds.
    pub critical_us: f64,
}

/// What a plan comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// Where the tables lie.
    pub layout: Layout,
    /// Memory of the device that holds most.
    pub memory: MemoryUse,
    /// Bytes of it that must fit on a device.
    pub needed_bytes: Count,
    /// Bytes that a device has.
    pub available_bytes: u64,
    pub fits: bool,
    /// Time of a step without chance, microseconds.
    pub step_us: f64,
    /// What the busiest resource of a rank comes to in a step, microseconds: no overlap can be
    /// faster.
    pub busiest_us: f64,
    /// What a node's disks take for a step's samples, microseconds.
    pub reading_us: f64,
    /// What a node reads, GB/s, to keep up.
    pub reading_gb_per_s: f64,
    /// Samples of a step by its time.
    pub samples_per_s: f64,
    pub stages: Vec<StageForecast>,
    /// Bytes that a step sends, over all ranks.
    pub traffic: TotalTraffic,
    /// The same by distance, next to what is needed.
    pub exchange_bytes_per_step: ExchangeBytes,
}

/// Bytes that travel in a step, over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TotalTraffic {
    /// Ids to owners.
    pub ids: Hops,
    /// Vectors to those who asked.
    pub vectors: Hops,
    /// Gradients back.
    pub gradients: Hops,
    /// The all-reduce: frequent rows and dense gradients.
    pub all_reduce: Hops,
}

impl From<Traffic> for TotalTraffic {
    fn from(of: Traffic) -> Self {
        let Traffic { ids, vectors, gradients, frequent, dense } = of;
        Self { ids, vectors, gradients, all_reduce: frequent + dense }
    }
}

impl Placing<'_> {
    /// What the step comes to with all tables laid as `strategy` says.
    pub fn forecast(&self, strategy: Strategy) -> Forecast {
        self.forecast_of(self.lay(strategy))
    }

    /// What the step comes to with this layout.
    pub fn forecast_of(&self, layout: Layout) -> Forecast {
        let works = Works::new(self.workload, self.cluster, self.practice, &layout);
        let stages = self.stages();
        let times = self.times(&stages, &works);
        let run = simulator::run(&stages, &times, 1, &self.options());
        let busiest_us = self.busiest_us(&stages, &times);
        let read_bytes = self.read_bytes();
        let reading_us = read_bytes / (self.cluster.host.disk_gb_per_s * 1e3);
        let step_us = run.step_us().max(busiest_us).max(reading_us);
        let critical = critical_path(&run, stages.len());
        let stages = stages.iter().zip(&times).enumerate();
        let stages = stages.filter(|(_, (_, time))| time.us > 0.0);
        let stages = stages.map(|(index, (stage, time))| StageForecast {
            name: stage.name,
            lane: stage.lane.name(),
            us: time.us * self.repeats(stage),
            critical_us: critical[index],
        });
        let (memory, needed_bytes) = self.memory(&layout);
        let sent = works.sent();
        let available_bytes = self.cluster.memory_bytes();
        Forecast {
            memory,
            needed_bytes,
            available_bytes,
            fits: needed_bytes.fits(available_bytes),
            step_us,
            busiest_us,
            reading_us,
            reading_gb_per_s: read_bytes / step_us * 1e-3,
            samples_per_s: self.workload.samples / step_us * 1e6,
            stages: stages.collect(),
            traffic: sent.into(),
            exchange_bytes_per_step: ExchangeBytes::new(&sent, &works.needed()),
            layout,
        }
    }

    /// The stages of a training step.
    pub fn stages(&self) -> Vec<Stage> {
        let program = &self.workload.program;
        program.step(self.workload, &self.cluster.shape(), self.on_device())
    }

    /// Whether ranks have devices with memory of their own.
    pub fn on_device(&self) -> bool {
        self.cluster.device.kind == DeviceKind::Gpu
    }

    /// The time of each stage, of one micro-batch where it repeats.
    fn times(&self, stages: &[Stage], works: &Works<'_>) -> Vec<StageTime> {
        let time = |stage: &Stage| works.time(stage.name).divided(self.repeats(stage));
        stages.iter().map(time).collect()
    }

    fn repeats(&self, stage: &Stage) -> f64 {
        match stage.repeat {
            Repeat::Micro => self.workload.micro_batches as f64,
            Repeat::Once => 1.0,
        }
    }

    /// How the walk through the list is simulated without chance.
    pub fn options(&self) -> Options {
        let assignment = match (self.cluster.device.kind, self.practice.overlapped) {
            (_, false) => Assignment::Serial,
            (DeviceKind::Gpu, true) => Assignment::Queues,
            (DeviceKind::Cpu, true) => Assignment::OverlappedThreads,
        };
        let micro_batches = self.workload.micro_batches;
        Options { micro_batches, border: self.practice.border, ..Options::plain(assignment) }
    }

    /// The walk through the schedule with chance: what [`Forecast::step_us`] leaves out.
    pub(crate) fn simulate_layout(&self, layout: &Layout, ranks: usize, options: &Options) -> Run {
        let works = Works::new(self.workload, self.cluster, self.practice, layout);
        let stages = self.stages();
        simulator::run(&stages, &self.times(&stages, &works), ranks, options)
    }

    /// Bytes of samples that a node reads for a step.
    fn read_bytes(&self) -> f64 {
        let of_all = self.workload.samples * self.workload.stored_sample_bytes();
        if self.practice.reads_whole_batch { of_all } else { of_all / self.cluster.nodes as f64 }
    }

    fn busiest_us(&self, stages: &[Stage], times: &[StageTime]) -> f64 {
        let whole =
            |(stage, time): (&Stage, &StageTime)| time.divided(1.0 / self.repeats(stage)).busy;
        stages.iter().zip(times).map(whole).fold(Busy::default(), Busy::plus).most()
    }

    /// Memory of the busiest device, and what of it must fit there: the code that `train` refuses
    /// with.
    fn memory(&self, layout: &Layout) -> (MemoryUse, Count) {
        let shape = self.cluster.shape();
        let on_device = self.on_device();
        // Vectors it asks for, and those that the busiest is asked for.
        let vectors =
            layout.rows.vector_bytes / shape.num_ranks() as f64 * (1.0 + layout.rows.imbalance);
        let narrow = self.practice.wire_bytes < 4.0;
        // In f32, and where two bytes of four travel, as that, too. On devices, slots.
        let exchanged = (vectors * if narrow { 1.5 } else { 1.0 }) as u64;
        let of = OfRank {
            bytes_of_rows: layout.bytes_of_busiest.get(),
            frequent_bytes: layout.rows.reduced_bytes as u64,
            frequent_rows: 0,
            exchanged_bytes: (!on_device).then_some(exchanged),
        };
        let memory = self.workload.program.memory(self.workload, &shape, on_device, of);
        let needed = match on_device {
            true => memory.on_a_device(shape.num_ranks()) + CONTEXT_BYTES,
            false => memory.total(),
        };
        (memory, needed)
    }
}

/// Of the last whole step, how long each stage of the list was what everything waited for: from its
/// end backwards, always along the one that ended last before.
fn critical_path(run: &Run, stages: usize) -> Vec<f64> {
    let mut critical = vec![0.0; stages];
    let last = run.step_ends_us.len() - 1;
    let (from, mut at) = (run.step_ends_us[last.saturating_sub(1)], run.step_ends_us[last]);
    let mut spans: Vec<_> = run.spans.iter().filter(|span| span.rank == 0).collect();
    spans.sort_by(|one, other| one.end_us.total_cmp(&other.end_us));
    while let Some(span) = spans.pop() {
        if at <= from {
            break;
        }
        // A billionth of a second is rounding; what ended later is not on the path.
        if (span.end_us - at).abs() < 1e-3 {
            let start = span.start_us.max(from);
            critical[span.stage] += at - start;
            at = span.start_us;
        } else if span.end_us < at {
            // Nothing ended here: a pause, which belongs to what comes next.
            at = span.end_us;
            spans.push(span);
        }
    }
    critical
}
