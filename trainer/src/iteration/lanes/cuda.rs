//! Lanes on a CUDA device: a lane is a stream, and a wait between lanes is an event.
//!
//! The host only enqueues. The same walk on a capturing stream makes a graph.
//!
//! - **A step begins while the one before continues**: each of its stages waits for those of that
//!   step that it needs ([`Schedule::across`]), and for no others. Graphs do the same by events
//!   that live outside of them. So each slot's steps begin and end on a stream of their own: on one
//!   stream, graphs would follow each other. No more than two steps are on their way.
//! - **Any other walk** begins and ends on the dense lane, when all steps have ended; and a step
//!   that no other is on its way with begins behind whatever the dense lane was given.
//! - Where all lanes are one stream, everything follows in program order.

use super::{Lane, MOST_STAGES, Place};
use crate::error::{Error, Result, chain, exchange_failed};
use crate::iteration::model::{BatchSlot, Model};
use crate::iteration::schedule::{Call, Schedule, Stage};
use crate::iteration::trace::Recorder;
use crate::report::output::say;
use headlong_device::Stream;
use headlong_device::cuda::{CudaDevice, CudaStream, Event, Graph, nvtx};
use headlong_device::pool::Pool;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The streams of the lanes, and what they tell each other.
pub(super) struct CudaLanes {
    /// In the order of [`Lane::ALL`]; clones of one stream where lanes are not concurrent.
    streams: [Stream; Lane::ALL.len()],
    concurrent: bool,
    begun: Event,
    /// One for each stage that another lane waits for.
    done: Vec<Event>,
    ended: Vec<Event>,
    /// By slot of the batch of now; the last is of all walks but steps.
    walks: [OfSlot; Model::NUM_SLOTS],
    /// The walks over full batches, by slot, where they are to be captured.
    captured: Option<[Mutex<Captured>; Model::NUM_SLOTS]>,
}

/// What walks over batches of one slot have of their own.
struct OfSlot {
    /// Where they begin and end.
    main: Stream,
    /// One for each stage that a stage of the next step waits for.
    passed: Vec<Event>,
    /// Before and after each stage, where times are recorded.
    timed: Vec<[Event; 2]>,
    clock: Clock,
    ended: Event,
}

impl OfSlot {
    fn new(main: Stream) -> Result<Self> {
        let device = main.cuda_body().device().clone();
        let mut timed = events(&device, 2 * MOST_STAGES, true)?.into_iter();
        Ok(Self {
            main,
            passed: events(&device, MOST_STAGES, false)?,
            timed: std::iter::from_fn(|| Some([timed.next()?, timed.next()?])).collect(),
            clock: Clock {
                event: Event::with_timing(&device).map_err(no_streams)?,
                read: Mutex::new(None),
            },
            ended: Event::new(&device).map_err(no_streams)?,
        })
    }

    fn cuda(&self) -> &CudaStream {
        self.main.cuda_body()
    }
}

/// The device's clock against the host's: an event before a walk, and when it happened. That is
/// known where no step is on its way, and from then on by the time between two steps' events.
struct Clock {
    event: Event,
    read: Mutex<Option<Instant>>,
}

impl Clock {
    fn read(&self) -> MutexGuard<'_, Option<Instant>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads it by an earlier one, which was.
    fn read_by(&self, earlier: &Self) -> Option<Instant> {
        self.event.synchronize().ok()?;
        let us = self.event.elapsed_us(&earlier.event).ok()?;
        Some((*earlier.read())? + Duration::from_secs_f64(us * 1e-6))
    }
}

/// How a walk is enqueued.
#[derive(Clone, Copy)]
struct Way {
    slot: usize,
    /// Into a graph, which does it at each launch.
    captured: bool,
    /// Its stages are stamped with the time.
    timed: bool,
}

impl Way {
    /// Marks what operations outside this walk wait for.
    fn record(self, stream: &CudaStream, event: &Event) {
        match self.captured {
            true => stream.record_in_graph(event),
            false => stream.record(event),
        }
    }

    /// Waits for what another walk has marked.
    fn wait(self, stream: &CudaStream, event: &Event) {
        match self.captured {
            true => stream.wait_in_graph(event),
            false => stream.wait(event),
        }
    }

    fn stamp(self, stream: &CudaStream, event: &Event) {
        if self.timed {
            self.record(stream, event);
        }
    }
}

/// What strips are long that a walk sends: those of vectors of now, and those of requests of next,
/// and inside nodes likewise. A graph's are fixed.
type StripLengths = Option<[usize; 4]>;

fn strip_lengths(call: &Call<'_>) -> StripLengths {
    let (now, next) = (call.now.strips()?, call.next.and_then(BatchSlot::strips));
    let next = next.unwrap_or_default();
    Some([now.elements, now.inside[1], next.id_words, next.inside[0]])
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
        let dense = &streams[Lane::Dense as usize];
        let device = dense.cuda_body().device().clone();
        let pool = Arc::new(Pool::new(1));
        let main = || match concurrent {
            true => Stream::cuda(&device, Arc::clone(&pool)).map_err(no_streams),
            false => Ok(dense.clone()),
        };
        let walks = [OfSlot::new(main()?)?, OfSlot::new(main()?)?, OfSlot::new(dense.clone())?];
        Ok(Self {
            walks,
            streams,
            concurrent,
            begun: Event::new(&device).map_err(no_streams)?,
            captured: None,
            done: events(&device, MOST_STAGES, false)?,
            ended: events(&device, Lane::ALL.len(), false)?,
        })
    }

    /// From now on, [`Self::walk_whole`] replays.
    pub(super) fn capture_steps(&mut self) {
        self.captured = Some(std::array::from_fn(|_| Mutex::new(Captured::new())));
    }

    pub(super) fn stream(&self, lane: Lane) -> &Stream {
        &self.streams[lane as usize]
    }

    fn cuda(&self, lane: Lane) -> &CudaStream {
        self.stream(lane).cuda_body()
    }

    /// As [`Self::walk`] over the batch of a slot, in one launch where that walk has been captured:
    /// over full batches alone, since a graph's sizes are fixed. The batch of next may then be
    /// short.
    pub(super) fn walk_whole(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        place: Place,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let Place { slot, follows_step } = place;
        let way = Way { slot, captured: false, timed: recorder.is_on() };
        if !follows_step {
            self.rest(way, call)?;
        } else if way.timed {
            let of = &self.walks[slot];
            of.cuda().record(&of.clock.event);
            *of.clock.read() = None;
        }
        self.replay(schedule, model, call, way)?;
        model.slots[slot].mark_end(self.walks[slot].cuda());
        self.check("launch", slot, call)?;
        if slot == Model::EVALUATION_SLOT { self.end(schedule, call, recorder) } else { Ok(()) }
    }

    fn replay(&self, schedule: &Schedule, model: &Model, call: &Call<'_>, way: Way) -> Result<()> {
        match &self.captured {
            Some(captured) if model.is_replayable(call, way.slot) => {
                // Note: what a panicking walk leaves behind is no graph.
                let captured = captured[way.slot].lock();
                let mut captured = captured.unwrap_or_else(PoisonError::into_inner);
                let lengths = strip_lengths(call);
                if captured.latest(lengths).is_none()
                    && captured.failures < MOST_FAILURES
                    && model.is_full(call, way.slot)
                    && captured.have_come(lengths)
                {
                    match self.capture(schedule, model, call, way)? {
                        Some(graph) => captured.keep(lengths, graph),
                        None => captured.fail(),
                    }
                }
                match captured.latest(lengths) {
                    Some(graph) => {
                        graph.launch(self.walks[way.slot].cuda());
                        Ok(())
                    }
                    None => self.enqueue(schedule, model, call, way),
                }
            }
            _ => self.enqueue(schedule, model, call, way),
        }
    }

    /// The walk as a graph, or none where the device of any rank cannot make it: either all ranks
    /// launch one or none does, since NCCL may copy in another way inside of a graph than outside.
    fn capture(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        way: Way,
    ) -> Result<Option<Graph>> {
        let mut outcome = Ok(());
        let graph = self.walks[way.slot].cuda().capture(|| {
            outcome = self.enqueue(schedule, model, call, Way { captured: true, ..way });
            Ok(())
        });
        outcome?;
        if let Err(error) = &graph {
            let (rank, step) = (model.communicator.rank(), call.dense_step.number);
            say(format!("step {step} on rank {rank} runs without a graph: {}", chain(error)));
        }
        let all = model.communicator.all_say(graph.is_ok());
        let all = all.map_err(exchange_failed("which ranks have made a graph"))?;
        Ok(graph.ok().filter(|_| all))
    }

    fn check(&self, stage: &'static str, slot: usize, call: &Call<'_>) -> Result<()> {
        let checked = self.stream(Lane::Dense).check().and_then(|()| self.walks[slot].main.check());
        checked.map_err(|source| failed_at(stage, call, source))
    }

    /// A walk that is no step: it enqueues all stages, each on its lane, behind all steps and
    /// before all others.
    pub(super) fn walk(
        &self,
        schedule: &Schedule,
        model: &Model,
        call: &Call<'_>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let way = Way { slot: Model::EVALUATION_SLOT, captured: false, timed: recorder.is_on() };
        self.rest(way, call)?;
        self.enqueue(schedule, model, call, way)?;
        self.end(schedule, call, recorder)
    }

    /// Lets a walk begin behind all steps, and behind what the dense lane was given.
    fn rest(&self, way: Way, call: &Call<'_>) -> Result<()> {
        let dense = self.cuda(Lane::Dense);
        for of in self.steps() {
            of.cuda().record(&of.ended);
            dense.wait(&of.ended);
        }
        if way.timed {
            let clock = &self.walks[way.slot].clock;
            dense.record(&clock.event);
            self.wait_for_dense(call)?;
            *clock.read() = Some(Instant::now());
        }
        self.let_steps_follow();
        Ok(())
    }

    fn wait_for_dense(&self, call: &Call<'_>) -> Result<()> {
        let waited = self.stream(Lane::Dense).synchronize();
        waited.map_err(|source| failed_at("the end of the step", call, source))
    }

    /// Lets steps begin behind what the dense lane was given.
    fn let_steps_follow(&self) {
        let ended = &self.walks[Model::EVALUATION_SLOT].ended;
        if self.concurrent {
            self.cuda(Lane::Dense).record(ended);
        }
        self.steps().for_each(|of| of.cuda().wait(ended));
    }

    /// The walks that overlap.
    fn steps(&self) -> impl Iterator<Item = &OfSlot> {
        self.walks[..Model::EVALUATION_SLOT].iter().filter(|_| self.concurrent)
    }

    /// After a walk that is no step.
    fn end(&self, schedule: &Schedule, call: &Call<'_>, recorder: &mut Recorder) -> Result<()> {
        self.let_steps_follow();
        if !recorder.is_on() {
            return Ok(());
        }
        self.wait_for_dense(call)?;
        let ran = |stage: &Stage| call.of(stage, 0).is_some();
        self.take_times(schedule, Model::EVALUATION_SLOT, ran, recorder);
        Ok(())
    }

    fn enqueue(&self, schedule: &Schedule, model: &Model, call: &Call<'_>, way: Way) -> Result<()> {
        let stages = &schedule.stages;
        assert!(stages.len() <= MOST_STAGES, "at most {MOST_STAGES} stages in a list");
        let of = &self.walks[way.slot];
        self.fork(of.cuda());
        for (index, micro_batch) in schedule.program_order(call.num_micro_batches) {
            let stage = &stages[index];
            let (stream, cuda) = (self.stream(stage.lane), self.cuda(stage.lane));
            self.wait(schedule, index, micro_batch, way);
            if let Some(call) = &call.of(stage, micro_batch) {
                let _range = range_of(stage);
                way.stamp(cuda, &of.timed[index][0]);
                stage.run(model, stream, call)?;
                stream.check().map_err(|source| failed_at(stage.name, call, source))?;
                way.stamp(cuda, &of.timed[index][1]);
            }
            if self.concurrent {
                cuda.record(&self.done[index]);
            }
            let is_last = micro_batch + 1 == call.times(stage);
            if is_last && self.overlaps(way) && schedule.is_awaited_across(index) {
                way.record(cuda, &of.passed[index]);
            }
        }
        self.join(of.cuda());
        Ok(())
    }

    /// Whether a walk overlaps with those before and after it.
    fn overlaps(&self, way: Way) -> bool {
        self.concurrent && way.slot != Model::EVALUATION_SLOT
    }

    /// All lanes begin behind what `main` was given before.
    fn fork(&self, main: &CudaStream) {
        if self.concurrent {
            main.record(&self.begun);
        }
        for lane in self.lanes_besides(main) {
            lane.wait(&self.begun);
        }
    }

    /// What `main` is given later runs behind all lanes.
    fn join(&self, main: &CudaStream) {
        for (lane, ended) in self.lanes_besides(main).zip(&self.ended) {
            lane.record(ended);
            main.wait(ended);
        }
    }

    /// The streams of the lanes, except `main`.
    fn lanes_besides(&self, main: &CudaStream) -> impl Iterator<Item = &CudaStream> {
        let lanes = self.streams.iter().map(Stream::cuda_body);
        lanes.filter(move |lane| lane.raw() != main.raw())
    }

    /// Waits for what a stage needs of its walk, and of the step before.
    fn wait(&self, schedule: &Schedule, index: usize, micro_batch: usize, way: Way) {
        let cuda = self.cuda(schedule.stages[index].lane);
        if micro_batch == 0 && self.overlaps(way) {
            let before = &self.walks[1 - way.slot];
            let waits = schedule.across[index].iter();
            waits.for_each(|&awaited| way.wait(cuda, &before.passed[awaited]));
        }
        if self.concurrent {
            schedule.within[index].iter().for_each(|&awaited| cuda.wait(&self.done[awaited]));
        }
    }

    /// Takes the times of a walk over a batch of slot `slot`, which has ended: those of the stages
    /// that ran.
    pub(super) fn take_times(
        &self,
        schedule: &Schedule,
        slot: usize,
        ran: impl Fn(&Stage) -> bool,
        recorder: &mut Recorder,
    ) {
        let OfSlot { clock, timed, .. } = &self.walks[slot];
        let Some(read) = *clock.read() else { return };
        for (stage, [before, after]) in schedule.stages.iter().zip(timed) {
            let start = before.elapsed_us(&clock.event);
            if let (true, Ok(start), Ok(length)) = (ran(stage), start, after.elapsed_us(before)) {
                recorder.add_on_device(stage, read, start, length * 1e-6);
            }
        }
        if slot != Model::EVALUATION_SLOT {
            // The step that follows has begun, or none does, and this one's clock is not asked.
            let next = &self.walks[1 - slot].clock;
            let mut of_next = next.read();
            *of_next = of_next.or_else(|| next.read_by(clock));
        }
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

fn events(device: &CudaDevice, count: usize, timing: bool) -> Result<Vec<Event>> {
    let new = |_| if timing { Event::with_timing(device) } else { Event::new(device) };
    (0..count).map(new).collect::<headlong_device::Result<_>>().map_err(no_streams)
}

fn no_streams(source: headlong_device::DeviceError) -> Error {
    Error::failed("the lanes of the device cannot be made")(source)
}
