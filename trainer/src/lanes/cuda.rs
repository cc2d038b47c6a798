//! Lanes on a CUDA device: a lane is a stream, a wait between lanes is an event, and a walk begins and ends on the dense lane.
//!
//! The host only enqueues. The same walk on a capturing stream makes a graph: so waits for the step before are left out here; a
//! walk begins when the one before has ended, in a graph as outside of one.

use super::{Lane, ProgramOrder, Stage};
use crate::build::Model;
use crate::error::{Error, Result};
use crate::schedule::Call;
use crate::trace::Recorder;
use headlong_device::Stream;
use headlong_device::cuda::{CudaStream, Event, Graph, nvtx};
use headlong_device::pool::Pool;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// Stages of the longest list.
const MOST_STAGES: usize = 32;

/// The streams of the lanes, and what they tell each other.
pub(super) struct CudaLanes {
    /// In the order of [`Lane::ALL`]; clones of one stream where lanes do not run beside each other.
    streams: [Stream; Lane::ALL.len()],
    beside_each_other: bool,
    begun: Event,
    finished: Event,
    /// One for each stage that another lane waits for.
    done: Vec<Event>,
    ended: Vec<Event>,
    /// Before and after each stage, where times are recorded.
    timed: Vec<[Event; 2]>,
    /// The walks over full batches, by slot, where they are to be captured.
    captured: Option<[Mutex<Captured>; Model::NUM_SLOTS]>,
}

/// When a walk's stages are stamped with the time.
#[derive(Clone, Copy)]
enum Clock {
    Off,
    OfThisWalk,
    /// At every replay of the graph that is being captured.
    OfReplays,
}

impl Clock {
    fn stamp(self, stream: &CudaStream, event: &Event) {
        match self {
            Clock::Off => {}
            Clock::OfThisWalk => stream.record(event),
            Clock::OfReplays => stream.record_in_graph(event),
        }
    }
}

/// A walk on its way to being one graph.
enum Captured {
    /// It has not run yet: the first time it runs eagerly, which loads every kernel and chooses every algorithm.
    NotYet,
    /// It has run.
    Warm,
    /// It is a graph.
    Graph(Graph),
}

impl CudaLanes {
    /// All lanes on one stream.
    pub(super) fn serial(stream: &Stream) -> Result<Self> {
        Self::new(std::array::from_fn(|_| stream.clone()), false)
    }

    /// A stream for each lane; the dense lane's is `stream`.
    pub(super) fn overlapped(stream: &Stream) -> Result<Self> {
        let device = stream.cuda_body().device().clone();
        // Only the host's part of building a model uses a pool.
        let pool = Arc::new(Pool::new(1));
        let another = || Stream::cuda(&device, Arc::clone(&pool)).map_err(no_streams);
        let streams = [another()?, another()?, another()?, stream.clone()];
        Self::new(streams, true)
    }

    fn new(streams: [Stream; Lane::ALL.len()], beside_each_other: bool) -> Result<Self> {
        let device = streams[0].cuda_body().device().clone();
        let events = |count: usize, timing: bool| -> Result<Vec<Event>> {
            let new = |_| if timing { Event::with_timing(&device) } else { Event::new(&device) };
            (0..count).map(new).collect::<headlong_device::Result<_>>().map_err(no_streams)
        };
        let timed = events(2 * MOST_STAGES, true)?;
        let mut timed = timed.into_iter();
        Ok(Self {
            streams,
            beside_each_other,
            begun: Event::new(&device).map_err(no_streams)?,
            finished: Event::with_timing(&device).map_err(no_streams)?,
            captured: None,
            done: events(MOST_STAGES, false)?,
            ended: events(Lane::ALL.len(), false)?,
            timed: std::iter::from_fn(|| Some([timed.next()?, timed.next()?])).collect(),
        })
    }

    /// From now on, [`Self::replay`] replays.
    pub(super) fn capture_steps(&mut self) {
        self.captured = Some(std::array::from_fn(|_| Mutex::new(Captured::NotYet)));
    }

    pub(super) fn captures(&self) -> bool {
        self.captured.is_some()
    }

    pub(super) fn stream(&self, lane: Lane) -> &Stream {
        &self.streams[lane as usize]
    }

    fn cuda(&self, lane: Lane) -> &CudaStream {
        self.stream(lane).cuda_body()
    }

    /// As [`Self::walk`] over the batch of slot `slot`, in one launch where that walk has been captured: over full batches alone, since
    /// a graph's sizes are fixed. The batch of next may then be short.
    pub(super) fn replay(
        &self,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        slot: usize,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let main = self.cuda(Lane::Dense);
        match &self.captured {
            Some(captured) if model.is_replayable(call, slot) => {
                // Note: what a panicking walk leaves behind is no graph.
                let mut captured = captured[slot].lock().unwrap_or_else(PoisonError::into_inner);
                match &*captured {
                    Captured::Graph(graph) => self.launch(graph, stages, model, call, recorder)?,
                    _ if !model.is_full(call, slot) => self.walk(stages, model, call, recorder)?,
                    Captured::NotYet => {
                        self.walk(stages, model, call, recorder)?;
                        *captured = Captured::Warm;
                    }
                    Captured::Warm => {
                        let graph = self.capture(stages, model, call, recorder)?;
                        self.launch(&graph, stages, model, call, recorder)?;
                        *captured = Captured::Graph(graph);
                    }
                }
            }
            _ => self.walk(stages, model, call, recorder)?,
        }
        model.slots[slot].mark_end(main);
        self.check("launch", call)
    }

    fn capture(
        &self,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<Graph> {
        let clock = if recorder.is_on() { Clock::OfReplays } else { Clock::Off };
        let mut outcome = Ok(());
        let graph = self.cuda(Lane::Dense).capture(|| {
            outcome = self.enqueue(stages, model, call, clock);
            Ok(())
        });
        outcome?;
        graph.map_err(|source| failed_at("capture", call, source))
    }

    fn launch(
        &self,
        graph: &Graph,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        graph.launch(self.cuda(Lane::Dense));
        if recorder.is_on() { self.take_times(stages, model, call, recorder) } else { Ok(()) }
    }

    fn check(&self, stage: &'static str, call: &Call<'_>) -> Result<()> {
        self.stream(Lane::Dense).check().map_err(|source| failed_at(stage, call, source))
    }

    /// Enqueues all stages, each on its lane.
    pub(super) fn walk(
        &self,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let clock = if recorder.is_on() { Clock::OfThisWalk } else { Clock::Off };
        self.enqueue(stages, model, call, clock)?;
        if recorder.is_on() { self.take_times(stages, model, call, recorder) } else { Ok(()) }
    }

    fn enqueue(&self, stages: &[Stage], model: &Model, call: &Call<'_>, clock: Clock) -> Result<()> {
        assert!(stages.len() <= MOST_STAGES, "at most {MOST_STAGES} stages in a list");
        self.fork();
        for (index, micro_batch) in ProgramOrder::new(stages, call) {
            let stage = &stages[index];
            if !stage.is_in(model) {
                continue;
            }
            self.wait(stages, index, model);
            let (stream, cuda) = (self.stream(stage.lane), self.cuda(stage.lane));
            let _range = range_of(stage);
            clock.stamp(cuda, &self.timed[index][0]);
            (stage.run)(model, stream, &call.micro_batch(micro_batch))?;
            stream.check().map_err(|source| failed_at(stage.name, call, source))?;
            clock.stamp(cuda, &self.timed[index][1]);
            if self.beside_each_other {
                cuda.record(&self.done[index]);
            }
        }
        self.join();
        clock.stamp(self.cuda(Lane::Dense), &self.finished);
        Ok(())
    }

    /// All lanes begin behind what the dense lane was given before.
    fn fork(&self) {
        if self.beside_each_other {
            self.cuda(Lane::Dense).record(&self.begun);
        }
        for lane in self.others() {
            self.cuda(lane).wait(&self.begun);
        }
    }

    /// What the dense lane is given later runs behind all lanes.
    fn join(&self) {
        for lane in self.others() {
            self.cuda(lane).record(&self.ended[lane as usize]);
            self.cuda(Lane::Dense).wait(&self.ended[lane as usize]);
        }
    }

    fn others(&self) -> impl Iterator<Item = Lane> {
        let lanes = Lane::ALL.into_iter().filter(|&lane| lane != Lane::Dense);
        lanes.filter(|_| self.beside_each_other)
    }

    fn wait(&self, stages: &[Stage], index: usize, model: &Model) {
        if !self.beside_each_other {
            return;
        }
        let stage = &stages[index];
        for wait in stage.waits {
            let awaited = stages[..index].iter().position(|other| other.name == *wait);
            let awaited =
                awaited.filter(|&awaited| stages[awaited].lane != stage.lane && stages[awaited].is_in(model));
            if let Some(awaited) = awaited {
                self.cuda(stage.lane).wait(&self.done[awaited]);
            }
        }
    }

    /// Waits for the walk, for whoever wants to see its times.
    fn take_times(
        &self,
        stages: &[Stage],
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let ended = self.stream(Lane::Dense).synchronize();
        ended.map_err(|source| failed_at("the end of the step", call, source))?;
        for (index, stage) in stages.iter().enumerate().filter(|(_, stage)| stage.is_in(model)) {
            let [before, after] = &self.timed[index];
            let (length, ago) = (after.elapsed_us(before), self.finished.elapsed_us(after));
            if let (Ok(length), Ok(ago)) = (length, ago) {
                recorder.add_on_device(stage, length * 1e-6, ago * 1e-6);
            }
        }
        Ok(())
    }
}

/// A range for profilers, where one listens.
fn range_of(stage: &Stage) -> Option<nvtx::Range> {
    let name = nvtx::is_listening().then(|| CString::new(stage.name).ok()).flatten()?;
    nvtx::range(&name)
}

fn failed_at(stage: &'static str, call: &Call<'_>, source: headlong_device::DeviceError) -> Error {
    Error::Device { stage, step: call.dense_step.number, source: source.into() }
}

fn no_streams(source: headlong_device::DeviceError) -> Error {
    crate::data::failed("the lanes of the device cannot be made", source)
}
