//! The traits of a NIC, over the fabric.

use super::super::nic::{
    Access, Action, Completion, CompletionQueue, Endpoint, Event, Limits, Memory, Nic, NicError,
    NicResult, Patch, Port, Prepared, QueuePair, QueuePairOptions, QueuePairSettings, Receive,
    ReceiveQueue, Region, Request,
};
use super::memory::{RegionState, local_key, remote_key};
use super::pair::{Flight, Pair, Phase};
use super::state::{Queue, Shared};
use super::{Fabric, Fault, refused};
use rustix::event::{EventfdFlags, eventfd};
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Bytes of an inline send, at most.
const INLINE: u32 = 220;

/// An open NIC.
pub(super) struct FakeNic {
    fabric: Arc<Fabric>,
    nic: usize,
    name: String,
}

impl FakeNic {
    pub(super) fn new(fabric: Arc<Fabric>, nic: usize, name: &str) -> Self {
        Self { fabric, nic, name: name.into() }
    }

    fn check(&self, what: &str) -> NicResult<()> {
        match self.fabric.lock().nics[self.nic].is_broken {
            true => Err(refused(what, "the device is gone")),
            false => Ok(()),
        }
    }

    fn too_deep(&self, what: &str, depth: u32, most: u32) -> NicResult<()> {
        self.check(what)?;
        match depth == 0 || depth > most {
            true => Err(refused(what, &format!("a depth of {depth} is not between 1 and {most}"))),
            false => Ok(()),
        }
    }

    /// The place of a completion queue of this NIC.
    fn queue(&self, queue: &Arc<dyn CompletionQueue>) -> NicResult<usize> {
        let queue = (&**queue as &dyn Any).downcast_ref::<FakeQueue>();
        let queue =
            queue.filter(|queue| Arc::ptr_eq(&queue.fabric, &self.fabric) && queue.nic == self.nic);
        Ok(queue
            .ok_or_else(|| refused("making a queue pair", "the completion queue is another NIC's"))?
            .queue)
    }
}

impl Nic for FakeNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.fabric.lock().limits
    }

    fn port(&self, number: u8) -> NicResult<Port> {
        let state = self.fabric.lock();
        let port = state.nics[self.nic].device.ports.iter().find(|port| port.number == number);
        port.cloned().ok_or_else(|| {
            refused("asking for a port", &format!("{} has no port {number}", self.name))
        })
    }

    unsafe fn register(
        &self,
        memory: Memory<'_>,
        mut access: Access,
    ) -> NicResult<Box<dyn Region>> {
        self.check("registering memory")?;
        let relaxes = self.fabric.lock().fault == Some(Fault::RelaxedFlags);
        access.relaxed_ordering |= relaxes && access.remote_atomic;
        let (address, length, is_device) = match memory {
            Memory::Host { start, length } => (start as u64, length as u64, false),
            // Note: the memory of the software device is memory of this process, at the same
            // address.
            Memory::Dmabuf { length, address, .. } => (address, length as u64, true),
        };
        if length == 0 {
            return Err(refused("registering memory", "there is none"));
        }
        if is_device && self.fabric.lock().refuses_dmabufs {
            return Err(refused("registering a dmabuf", "operation not supported"));
        }
        let region = RegionState { nic: self.nic, address, length, access, is_device };
        let number = self.fabric.lock().regions.add(region);
        Ok(Box::new(FakeRegion { fabric: Arc::clone(&self.fabric), number, address }))
    }

    fn completion_queue(&self, depth: u32) -> NicResult<Arc<dyn CompletionQueue>> {
        self.too_deep("making a completion queue", depth, self.limits().completions)?;
        let mut state = self.fabric.lock();
        let events = state.has_events.then(events).transpose()?;
        state.queues.push(Queue {
            nic: self.nic,
            depth: depth as usize,
            ready: VecDeque::new(),
            is_lost: false,
            armed: None,
        });
        let (fabric, queue) = (Arc::clone(&self.fabric), state.queues.len() - 1);
        Ok(Arc::new(FakeQueue { fabric, nic: self.nic, queue, events }))
    }

    fn receive_queue(&self, depth: u32) -> NicResult<Arc<dyn ReceiveQueue>> {
        self.too_deep("making a shared receive queue", depth, self.limits().shared_receives)?;
        let mut state = self.fabric.lock();
        state.shared.push(Shared {
            nic: self.nic,
            depth: depth as usize,
            posted: VecDeque::new(),
            was_filled: false,
        });
        let shared = state.shared.len() - 1;
        Ok(Arc::new(FakeShared { fabric: Arc::clone(&self.fabric), shared }))
    }

    fn queue_pair(&self, options: &QueuePairOptions<'_>) -> NicResult<Box<dyn QueuePair>> {
        let (sends, receives) = (self.queue(options.sends)?, self.queue(options.receives)?);
        self.too_deep("making a queue pair", options.max_sends, self.limits().work_requests)?;
        if options.max_segments > self.limits().segments || options.max_inline > INLINE {
            return Err(refused(
                "making a queue pair",
                "more segments or inline bytes than the NIC allows",
            ));
        }
        let shared = match options.shared {
            None => None,
            Some(shared) => Some(self.shared(shared)?),
        };
        let mut state = self.fabric.lock();
        let number = 0x100 + 7 * state.pairs.len() as u32;
        let pair = Pair {
            sends,
            receives,
            shared,
            max_sends: options.max_sends,
            max_receives: options.max_receives,
            ..Pair::new(self.nic, number)
        };
        state.pairs.push(pair);
        let (index, fabric) = (state.pairs.len() - 1, Arc::clone(&self.fabric));
        let limits = (options.max_segments, options.max_inline);
        Ok(Box::new(FakePair {
            fabric,
            pair: index,
            number,
            limits,
            chains: Vec::new(),
            signal_first: false,
        }))
    }

    fn event(&self) -> NicResult<Option<Event>> {
        Ok(self.fabric.look(|state| state.nics[self.nic].events.pop_front()))
    }
}

impl FakeNic {
    fn shared(&self, shared: &Arc<dyn ReceiveQueue>) -> NicResult<usize> {
        let state = self.fabric.lock();
        let shared = (&**shared as &dyn Any).downcast_ref::<FakeShared>();
        let shared = shared.filter(|queue| {
            Arc::ptr_eq(&queue.fabric, &self.fabric) && state.shared[queue.shared].nic == self.nic
        });
        Ok(shared
            .ok_or_else(|| refused("making a queue pair", "the receive queue is another NIC's"))?
            .shared)
    }
}

struct FakeRegion {
    fabric: Arc<Fabric>,
    number: u32,
    address: u64,
}

impl Region for FakeRegion {
    fn address(&self) -> u64 {
        self.address
    }

    fn local_key(&self) -> u32 {
        local_key(self.number)
    }

    fn remote_key(&self) -> u32 {
        remote_key(self.number)
    }
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.fabric.lock().regions.remove(self.number);
    }
}

struct FakeQueue {
    fabric: Arc<Fabric>,
    nic: usize,
    queue: usize,
    events: Option<Arc<OwnedFd>>,
}

fn events() -> NicResult<Arc<OwnedFd>> {
    let made = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
    made.map(Arc::new).map_err(|error| refused("making a completion queue", &error.to_string()))
}

impl CompletionQueue for FakeQueue {
    fn poll(&self, into: &mut Vec<Completion>, most: usize) -> NicResult<usize> {
        self.fabric.look(|state| {
            if state.queues[self.queue].is_lost {
                return Err(refused("polling a completion queue", "it has overflowed"));
            }
            let mut taken = 0;
            while taken < most {
                let Some(ready) = state.queues[self.queue].ready.pop_front() else { break };
                if let Some((pair, places)) = ready.retires {
                    state.pairs[pair].taken -= places;
                }
                into.push(ready.completion);
                taken += 1;
            }
            Ok(taken)
        })
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.events.as_ref().map(|events| events.as_fd())
    }

    fn arm(&self) -> NicResult<()> {
        if let Some(events) = &self.events {
            // Nothing has shown: nothing to forget.
            let _ = rustix::io::read(&**events, &mut [0; 8]);
        }
        self.fabric.lock().queues[self.queue].armed = self.events.clone();
        Ok(())
    }
}

struct FakeShared {
    fabric: Arc<Fabric>,
    shared: usize,
}

impl ReceiveQueue for FakeShared {
    fn post(&self, receives: &[Receive]) -> NicResult<()> {
        let mut state = self.fabric.lock();
        let forgets = state.fault == Some(Fault::ForgetReceives);
        let shared = &mut state.shared[self.shared];
        if std::mem::replace(&mut shared.was_filled, true) && forgets {
            return Ok(());
        }
        if shared.posted.len() + receives.len() > shared.depth {
            return Err(NicError::Full("the shared receive queue".into()));
        }
        shared.posted.extend(receives);
        Ok(())
    }
}

struct FakePair {
    fabric: Arc<Fabric>,
    pair: usize,
    number: u32,
    /// Segments, inline bytes.
    limits: (u32, u32),
    chains: Vec<Vec<Request>>,
    /// Chains begin with their second request, and end with the first.
    signal_first: bool,
}

impl FakePair {
    fn phase(
        &self,
        what: &str,
        from: Phase,
        change: impl FnOnce(&mut Pair) -> Phase,
    ) -> NicResult<()> {
        let mut state = self.fabric.lock();
        let pair = &mut state.pairs[self.pair];
        if pair.phase != from {
            return Err(refused(
                what,
                &format!("the queue pair is in {:?}, not in {from:?}", pair.phase),
            ));
        }
        pair.phase = change(pair);
        Ok(())
    }

    /// Whether the port is as the settings say.
    fn check_port(&self, settings: &QueuePairSettings) -> NicResult<()> {
        let state = self.fabric.lock();
        let nic = state.pairs[self.pair].nic;
        let port = state.nics[nic].device.ports.iter().find(|port| port.number == settings.port);
        let port = port.ok_or_else(|| refused("init", "there is no such port"))?;
        let reason = match settings {
            _ if !state.carries(nic, settings.port) => "the port is down",
            _ if settings.mtu > port.mtu || !settings.mtu.is_power_of_two() => {
                "the MTU is not the port's"
            }
            _ if state.partition(nic, settings).is_none() => "there is no such partition key",
            _ if settings.gid_index.is_none() && port.lid == 0 => "RoCE needs a GID index",
            _ if settings.gid_index.is_some() && state.kind(nic, settings).is_none() => {
                "there is no such GID"
            }
            _ => return Ok(()),
        };
        Err(refused("init", reason))
    }
}

impl QueuePair for FakePair {
    fn number(&self) -> u32 {
        self.number
    }

    fn init(&mut self, settings: &QueuePairSettings) -> NicResult<()> {
        self.check_port(settings)?;
        self.phase("init", Phase::Reset, |pair| {
            pair.settings = Some(*settings);
            Phase::Init
        })
    }

    fn ready_to_receive(&mut self, settings: &QueuePairSettings, peer: &Endpoint) -> NicResult<()> {
        self.check_port(settings)?;
        self.phase("ready to receive", Phase::Init, |pair| {
            (pair.settings, pair.peer) = (Some(*settings), Some(*peer));
            Phase::Receive
        })
    }

    fn ready_to_send(&mut self, settings: &QueuePairSettings, first_packet: u32) -> NicResult<()> {
        self.phase("ready to send", Phase::Receive, |pair| {
            (pair.settings, pair.first_packet) = (Some(*settings), Some(first_packet));
            Phase::Send
        })
    }

    unsafe fn prepare(&mut self, chain: &[Request]) -> NicResult<Prepared> {
        for request in chain {
            let length: u32 = request.segments.iter().map(|segment| segment.length).sum();
            let reason = match request.action {
                _ if chain.len() > self.fabric.lock().pairs[self.pair].max_sends as usize => {
                    "too many requests"
                }
                _ if request.segments.len() > self.limits.0 as usize => "too many segments",
                _ if request.inline && request.is_answered() => "an answer cannot be inline",
                _ if request.inline && length > self.limits.1 => "too many inline bytes",
                Action::FetchAdd(..) if length != 8 => "atomics take 8 bytes",
                _ => continue,
            };
            return Err(refused("preparing a chain", reason));
        }
        let mut chain = chain.to_vec();
        self.signal_first = self.fabric.lock().fault == Some(Fault::SignalFirst);
        if let (true, [.., last]) = (self.signal_first, &mut chain[..]) {
            last.signalled = false;
            chain.rotate_left(1);
            chain.iter_mut().next_back().expect("it is not empty").signalled = true;
        }
        self.chains.push(chain);
        Ok(Prepared(self.chains.len() - 1))
    }

    fn post(&mut self, chain: Prepared, patches: &[Patch]) -> NicResult<()> {
        for patch in patches {
            let chain = &mut self.chains[chain.0];
            let first = if self.signal_first { chain.len() - 1 } else { 0 };
            change(chain, patch, first);
        }
        let inline = |request: &&Request| request.inline;
        let length =
            |request: &Request| request.segments.iter().map(|segment| segment.length).sum::<u32>();
        if self.chains[chain.0].iter().filter(inline).any(|request| length(request) > self.limits.1)
        {
            return Err(refused("posting a send", "too many inline bytes"));
        }
        let mut state = self.fabric.lock();
        let (requests, pair) = (&self.chains[chain.0], &state.pairs[self.pair]);
        if !matches!(pair.phase, Phase::Send | Phase::Error) {
            return Err(refused(
                "posting a send",
                &format!("the queue pair is in {:?}", pair.phase),
            ));
        }
        if pair.taken + requests.len() as u32 > pair.max_sends {
            return Err(NicError::Full("the send queue".into()));
        }
        state.pairs[self.pair].taken += requests.len() as u32;
        for request in requests {
            state.post(self.pair, request);
        }
        state.advance_pair(self.pair);
        Ok(())
    }

    fn post_receives(&mut self, receives: &[Receive]) -> NicResult<()> {
        let mut state = self.fabric.lock();
        let forgets = state.fault == Some(Fault::ForgetReceives);
        let pair = &mut state.pairs[self.pair];
        if forgets && pair.phase == Phase::Send {
            return Ok(());
        }
        if pair.shared.is_some() || pair.phase == Phase::Reset {
            return Err(refused(
                "posting receives",
                "its receives are shared, or it is not initialised",
            ));
        }
        if pair.own_receives.len() + receives.len() > pair.max_receives as usize {
            return Err(NicError::Full("the receive queue".into()));
        }
        pair.own_receives.extend(receives);
        Ok(())
    }

    fn fail(&mut self) -> NicResult<()> {
        self.fabric.lock().fail_pair(self.pair, None);
        Ok(())
    }
}

impl Drop for FakePair {
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        let pair = &mut state.pairs[self.pair];
        pair.phase = Phase::Gone;
        pair.flights.clear();
        pair.landings.clear();
        pair.arrivals.clear();
    }
}

impl super::state::State {
    /// Takes a request into a pair's queue; in error it is flushed.
    fn post(&mut self, pair: usize, request: &Request) {
        let bytes = match request.inline {
            true => request.segments.iter().flat_map(inline_bytes).collect(),
            false => Vec::new(),
        };
        let due = self.now + self.delay();
        let mut request = request.clone();
        match self.fault {
            Some(Fault::SkipTheFlush) if matches!(request.action, Action::Read(..)) => {
                let completion = self.done(pair, &request);
                return self.complete(self.pairs[pair].sends, completion, Some((pair, 1)));
            }
            Some(Fault::ReuseBeforeCompletion) if request.signalled => {
                request.signalled = false;
                self.complete(self.pairs[pair].sends, self.done(pair, &request), None);
            }
            _ => {}
        }
        let flight =
            Flight { request, bytes, is_sent: false, due, silent_since: None, receiver_tries: 0 };
        match self.pairs[pair].phase {
            Phase::Error => self.finish(pair, &flight, super::super::nic::Status::Flushed),
            _ => self.pairs[pair].flights.push_back(flight),
        }
    }
}

/// The bytes of an inline segment, which needs no registration.
fn inline_bytes(segment: &super::super::nic::Segment) -> Vec<u8> {
    // SAFETY: who prepared the chain has promised that inline memory is mapped, and not written now
    // (`QueuePair::prepare`).
    unsafe { std::slice::from_raw_parts(segment.address as *const u8, segment.length as usize) }
        .to_vec()
}

/// Changes a chain, whose first request is at `first`, as a patch says.
fn change(chain: &mut [Request], patch: &Patch, first: usize) {
    let place = |request: usize| (request + first) % chain.len();
    match *patch {
        Patch::Length { request, segment, length } => {
            chain[place(request)].segments[segment].length = length
        }
        Patch::Immediate { request, immediate } => {
            let request = place(request);
            let Action::WriteImmediate(at, _) = chain[request].action else {
                panic!("request {request} of the chain has no immediate");
            };
            chain[request].action = Action::WriteImmediate(at, immediate);
        }
    }
}
