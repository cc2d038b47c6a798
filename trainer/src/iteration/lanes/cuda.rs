//! Lanes on a CUDA device: a lane is a stream, a wait between lanes is an event, and a walk begins
//! and ends on the dense lane.
//!
//! The host only enqueues. The same walk on a capturing stream makes a graph. A walk begins when
//! the one before has ended, in a graph as outside of one ([`crate::iteration::schedule::BORDER`]).

use super::{Lane, MOST_STAGES};
use crate::error::{Error, Result, chain, exchange_failed};
use crate::iteration::model::{BatchSlot, Model};
use crate::iteration::schedule::{Call, Schedule, Stage};
use crate::iteration::trace::Recorder;
use crate::report::output::say;
use headlong_device::Stream;
use headlong_device::cuda::{CudaStream, Event, Graph, nvtx};
use headlong_device::pool::Pool;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// The streams of the lanes, and what they tell each other.
pub(super) struct CudaLanes {
    /// In the order of [`Lane::ALL`]; clones of one stream where lanes are not concurrent.
    streams: [Stream; Lane::ALL.len()],
    concurrent: bool,
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

/// What strips are long that a walk sends: those of vectors of now, and those of requests of next.
/// A graph's are fixed.
type StripLengths = Option<(usize, usize)>;

fn strip_lengths(call: &Call<'_>) -> StripLengths {
    let strips = call.now.strips()?;
    Some((strips.elements, call.next.and_then(BatchSlot::strips).map_or(0, |next| next.id_words)))
}

/// The most graphs of one slot that are kept.
const MOST_GRAPHS: usize = 8;

/// So many captures of one slot may fail before no more are tried.
const MOST_FAILURES: usize = 3;

/// The walks over full batches of one slot: graphs, by the lengths of their strips, used last at
/// the end. The first time that a length comes it runs eagerly: most lengths come again, and the
/// first run of all loads every kernel and chooses every algorithm.
struct Captured {
    graphs: Vec<(StripLengths, Graph)>,
    /// Lengths that have come once, latest at the end.
    seen: Vec<StripLengths>,
    failures: usize,
}

impl Captured {
    fn new() -> Self {
        let (graphs, seen) = (Vec::with_capacity(MOST_GRAPHS), Vec::with_capacity(MOST_GRAPHS));
        Self { graphs, seen, failures: 0 }
    }

    /// Whether these lengths have come before; remembers them.
    fn have_come(&mut self, lengths: StripLengths) -> bool {
        let place = self.seen.iter().position(|&seen| seen == lengths);
        match place {
            Some(place) => drop(self.seen.remove(place)),
            None if self.seen.len() == MOST_GRAPHS => drop(self.seen.remove(0)),
            None => {}
        }
        if place.is_none() {
            self.seen.push(lengths);
        }
        place.is_some()
    }

    /// The graph for these lengths, moved to the end.
    fn latest(&mut self, lengths: StripLengths) -> Option<&Graph> {
        let place = self.graphs.iter().position(|(of, _)| *of == lengths)?;
        self.graphs[place..].rotate_left(1);
        self.graphs.last().map(|(_, graph)| graph)
    }

    fn keep(&mut self, lengths: StripLengths, graph: Graph) {
        if self.graphs.len() == MOST_GRAPHS {
            self.graphs.remove(0);
        }
        self.graphs.push((lengths, graph));
    }

    /// A graph could not be made, most likely for lack of memory: gives back that of the others.
    fn fail(&mut self) {
        self.failures += 1;
        self.graphs.clear();
    }
}

impl CudaLanes {
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

    fn new(streams: [Stream; Lane::ALL.len()], concurrent: bool) -> Result<Self> {
        let device = streams[0].cuda_body().device().clone();
        let events = |count: usize, timing: bool| -> Result<Vec<Event>> {
            let new = |_| if timing { Event::with_timing(&device) } else { Event::new(&device) };
            (0..count).map(new).collect::<headlong_device::Result<_>>().map_err(no_streams)
        };
        let timed = events(2 * MOST_STAGES, true)?;
        let mut timed = timed.into_iter();
        Ok(Self {
            streams,
            concurrent,
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
        self.captured = Some(std::array::from_fn(|_| Mutex::new(Captured::new())));
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

    /// As [`Self::walk`] over the batch of slot `slot`, in one launch where that walk has been
    /// captured: over full batches alone, since a graph's sizes are fixed. The batch of next may
    /// then be short.
    pub(super) fn replay(
        &self,
        schedule: &Schedule,
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
                let lengths = strip_lengths(call);
                if captured.latest(lengths).is_none()
                    && captured.failures < MOST_FAILURES
                    && model.is_full(call, slot)
                    && captured.have_come(lengths)
                {
                    match self.capture(schedule, model, call, recorder)? {
                        Some(graph) => captured.keep(lengths, graph),
                        None => captured.fail(),
                    }
                }
                match captured.latest(lengths) {
                    Some(graph) => self.launch(graph, schedule, call, recorder)?,
                    None => self.walk(schedule, model, call, recorder)?,
                }
            }
            _ => self.walk(schedule, model, call, recorder)?,
        }
        model.slots[slot].mark_end(main);
        self.check("launch", call)
    }

    /// The walk as a graph, or none where the device of any rank cannot make it: either all ranks
    /// launch one or none does, since NCCL may copy in another way inside of a graph than outside.
    fn capture(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<Option<Graph>> {
        let clock = if recorder.is_on() { Clock::OfReplays } else { Clock::Off };
        let mut outcome = Ok(());
        let graph = self.cuda(Lane::Dense).capture(|| {
            outcome = self.enqueue(schedule, model, call, clock);
            Ok(())
        });
        outcome?;
        if let Err(error) = &graph {
            let (rank, step) = (model.communicator.rank(), call.dense_step.number);
            say(format!("step {step} on rank {rank} runs without a graph: {}", chain(error)));
        }
        let mut all = vec![0_u64; model.communicator.num_ranks()];
        let told = model.communicator.all_gather(&[u64::from(graph.is_ok())], &mut all);
        told.map_err(exchange_failed("which ranks have made a graph"))?;
        Ok(graph.ok().filter(|_| all.iter().all(|&made| made == 1)))
    }

    fn launch(
        &self,
        graph: &Graph,
        schedule: &Schedule,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        graph.launch(self.cuda(Lane::Dense));
        if recorder.is_on() { self.take_times(schedule, call, recorder) } else { Ok(()) }
    }

    fn check(&self, stage: &'static str, call: &Call<'_>) -> Result<()> {
        self.stream(Lane::Dense).check().map_err(|source| failed_at(stage, call, source))
    }

    /// Enqueues all stages, each on its lane.
    pub(super) fn walk(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let clock = if recorder.is_on() { Clock::OfThisWalk } else { Clock::Off };
        self.enqueue(schedule, model, call, clock)?;
        if recorder.is_on() { self.take_times(schedule, call, recorder) } else { Ok(()) }
    }

    fn enqueue(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        clock: Clock,
    ) -> Result<()> {
        let stages = &schedule.stages;
        assert!(stages.len() <= MOST_STAGES, "at most {MOST_STAGES} stages in a list");
        self.fork();
        for (index, micro_batch) in schedule.program_order(call.num_micro_batches) {
            let stage = &stages[index];
            self.wait(schedule, index);
            let (stream, cuda) = (self.stream(stage.lane), self.cuda(stage.lane));
            let Some(call) = &call.of(stage, micro_batch) else {
                self.mark_done(index, cuda);
                continue;
            };
            let _range = range_of(stage);
            clock.stamp(cuda, &self.timed[index][0]);
            stage.run(model, stream, call)?;
            stream.check().map_err(|source| failed_at(stage.name, call, source))?;
            clock.stamp(cuda, &self.timed[index][1]);
            self.mark_done(index, cuda);
        }
        self.join();
        clock.stamp(self.cuda(Lane::Dense), &self.finished);
        Ok(())
    }

    fn mark_done(&self, index: usize, cuda: &CudaStream) {
        if self.concurrent {
            cuda.record(&self.done[index]);
        }
    }

    /// All lanes begin behind what the dense lane was given before.
    fn fork(&self) {
        if self.concurrent {
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
        lanes.filter(|_| self.concurrent)
    }

    fn wait(&self, schedule: &Schedule, index: usize) {
        if self.concurrent {
            let cuda = self.cuda(schedule.stages[index].lane);
            schedule.within[index].iter().for_each(|&awaited| cuda.wait(&self.done[awaited]));
        }
    }

    /// Waits for the walk, so that its times can be read.
    fn take_times(
        &self,
        schedule: &Schedule,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let ended = self.stream(Lane::Dense).synchronize();
        ended.map_err(|source| failed_at("the end of the step", call, source))?;
        let ran = |stage: &Stage| call.of(stage, 0).is_some();
        for (index, stage) in schedule.stages.iter().enumerate().filter(|(_, stage)| ran(stage)) {
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
    Error::failed("the lanes of the device cannot be made")(source)
}
