//! What the fabric knows: NICs, their queues and connections, and what time it is.

use super::super::nic::{
    Completion, CompletionKind, Device, Event, GidKind, Limits, PortState, QueuePairSettings,
    Receive, Request, Segment, Status,
};
use super::memory::Regions;
use super::pair::{Flight, Pair, Phase};
use super::{Fault, NetworkModel};
use headlong_comm::testing::sim::Random;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a NIC allows, until [`Fabric::limit`] says otherwise.
const LIMITS: Limits = Limits {
    work_requests: 4096,
    segments: 16,
    completions: 1 << 16,
    shared_receives: 1 << 14,
    reads: 16,
    atomics: true,
};

/// Everything, under one lock.
pub(super) struct State {
    pub(super) now: u64,
    pub(super) random: Random,
    pub(super) model: NetworkModel,
    pub(super) nics: Vec<NicState>,
    pub(super) regions: Regions,
    pub(super) queues: Vec<Queue>,
    pub(super) shared: Vec<Shared>,
    pub(super) pairs: Vec<Pair>,
    pub(super) violations: Vec<String>,
    pub(super) fault: Option<Fault>,
    /// Queues that are made have events.
    pub(super) has_events: bool,
    pub(super) refuses_dmabufs: bool,
    pub(super) limits: Limits,
    /// Completions that were shown there.
    pub(super) shown: u64,
    cuts: BTreeSet<(usize, usize)>,
    dead: BTreeSet<usize>,
}

/// A NIC.
pub(super) struct NicState {
    pub(super) node: usize,
    pub(super) device: Device,
    pub(super) events: VecDeque<Event>,
    pub(super) is_broken: bool,
    pub(super) next_send: Option<Status>,
}

/// A completion queue.
pub(super) struct Queue {
    pub(super) nic: usize,
    pub(super) depth: usize,
    pub(super) ready: VecDeque<Ready>,
    pub(super) is_lost: bool,
    /// The next completion shows there.
    pub(super) armed: Option<Arc<OwnedFd>>,
}

/// A completion, and how many places of which pair's send queue are free once it was taken.
pub(super) struct Ready {
    pub(super) completion: Completion,
    pub(super) retires: Option<(usize, u32)>,
}

/// A shared receive queue.
pub(super) struct Shared {
    pub(super) nic: usize,
    pub(super) depth: usize,
    pub(super) posted: VecDeque<Receive>,
    pub(super) was_filled: bool,
}

impl State {
    pub(super) fn new(seed: u64, model: NetworkModel, nodes: Vec<Vec<Device>>) -> Self {
        let nic = |node, device| NicState {
            node,
            device,
            events: VecDeque::new(),
            is_broken: false,
            next_send: None,
        };
        let nics = nodes.into_iter().enumerate();
        Self {
            now: 0,
            random: Random::new(seed),
            model,
            nics: nics
                .flat_map(|(node, devices)| {
                    devices.into_iter().map(move |device| nic(node, device))
                })
                .collect(),
            regions: Regions::default(),
            queues: Vec::new(),
            shared: Vec::new(),
            pairs: Vec::new(),
            violations: Vec::new(),
            fault: None,
            has_events: false,
            refuses_dmabufs: false,
            limits: LIMITS,
            shown: 0,
            cuts: BTreeSet::new(),
            dead: BTreeSet::new(),
        }
    }

    pub(super) fn devices(&self, node: usize) -> Vec<Device> {
        self.nics.iter().filter(|nic| nic.node == node).map(|nic| nic.device.clone()).collect()
    }

    pub(super) fn find(&self, node: usize, device: &str) -> Option<usize> {
        self.nics.iter().position(|nic| nic.node == node && nic.device.name == device)
    }

    /// How long something takes now.
    pub(super) fn delay(&mut self) -> u64 {
        let NetworkModel { delay, storms, .. } = self.model;
        let most = if self.random.chance(storms) { delay * 40 } else { delay };
        self.random.below(most + 1)
    }

    /// What a program must not do, with the NIC on which it did.
    pub(super) fn violation(&mut self, nic: usize, what: impl AsRef<str>) {
        const KEPT: usize = 100;
        let NicState { node, device, .. } = &self.nics[nic];
        let text = format!("node {node} {}: {}", device.name, what.as_ref());
        if self.violations.len() < KEPT {
            self.violations.push(text);
        }
    }

    /// Puts a completion into a queue.
    pub(super) fn complete(
        &mut self,
        queue: usize,
        completion: Completion,
        retires: Option<(usize, u32)>,
    ) {
        let (nic, depth) = (self.queues[queue].nic, self.queues[queue].depth);
        if self.queues[queue].ready.len() < depth {
            self.queues[queue].ready.push_back(Ready { completion, retires });
            if let Some(events) = self.queues[queue].armed.take() {
                self.shown += 1;
                // Refused where it is full: then it shows already.
                let _ = rustix::io::write(&*events, &1_u64.to_ne_bytes());
            }
            return;
        }
        self.violation(nic, format!("a completion queue of {depth} overflows"));
        self.queues[queue].is_lost = true;
        self.nics[nic].events.push_back(Event::CompletionsLost);
    }

    pub(super) fn cut(&mut self, one: usize, other: usize, is_cut: bool) {
        let pair = (one.min(other), one.max(other));
        match is_cut {
            true => self.cuts.insert(pair),
            false => self.cuts.remove(&pair),
        };
    }

    pub(super) fn kill_node(&mut self, node: usize) {
        self.dead.insert(node);
    }

    pub(super) fn set_port(
        &mut self,
        node: usize,
        device: &str,
        (port, state): (u8, PortState),
        event: Event,
    ) {
        let nic = self.find(node, device).expect("a test names a device that is there");
        let nic = &mut self.nics[nic];
        let found = nic.device.ports.iter_mut().find(|found| found.number == port);
        found.expect("a test names a port that is there").state = state;
        nic.events.push_back(event);
    }

    pub(super) fn break_device(&mut self, node: usize, device: &str) {
        let nic = self.find(node, device).expect("a test names a device that is there");
        self.nics[nic].is_broken = true;
        self.nics[nic].events.push_back(Event::DeviceFatal);
        for pair in
            (0..self.pairs.len()).filter(|&pair| self.pairs[pair].nic == nic).collect::<Vec<_>>()
        {
            self.fail_pair(pair, None);
        }
    }

    pub(super) fn fail_next_send(&mut self, node: usize, device: &str, status: Status) {
        let nic = self.find(node, device).expect("a test names a device that is there");
        self.nics[nic].next_send = Some(status);
    }

    /// Whether a port of a NIC carries.
    pub(super) fn carries(&self, nic: usize, port: u8) -> bool {
        let nic = &self.nics[nic];
        let port = nic.device.ports.iter().find(|found| found.number == port);
        !nic.is_broken && port.is_some_and(|port| port.state == PortState::Active)
    }

    /// The pair that packets of `pair` reach, if they reach one: everything about their way must
    /// fit.
    pub(super) fn route(&self, pair: usize) -> Option<usize> {
        let from = &self.pairs[pair];
        let (peer, settings) = (from.peer?, from.settings?);
        let to = self.pairs.iter().position(|to| to.number == peer.queue_pair)?;
        let other = &self.pairs[to];
        let (back, theirs) = (other.peer?, other.settings?);
        let (node, other_node) = (self.nics[from.nic].node, self.nics[other.nic].node);
        let reachable = !self.cuts.contains(&(node.min(other_node), node.max(other_node)))
            && ![node, other_node].iter().any(|node| self.dead.contains(node))
            && self.carries(from.nic, settings.port)
            && self.carries(other.nic, theirs.port);
        let addressed = self.address(other.nic, &theirs) == Some((peer.gid, peer.lid))
            && self.kind(from.nic, &settings) == self.kind(other.nic, &theirs)
            && self.partition(from.nic, &settings) == self.partition(other.nic, &theirs);
        let joined = back.queue_pair == from.number
            && Some(back.first_packet) == from.first_packet
            && matches!(other.phase, Phase::Receive | Phase::Send);
        (reachable && addressed && joined).then_some(to)
    }

    /// Whether time did anything.
    pub(super) fn advance(&mut self) -> bool {
        self.now += 1;
        let mut moved = false;
        // Note: in another order at every look, so that connections get ahead of each other.
        let pairs = self.pairs.len();
        let first = self.random.below(pairs as u64) as usize;
        for pair in (0..pairs).map(|index| (first + index) % pairs) {
            moved |= self.advance_pair(pair);
        }
        moved
    }
}

impl State {
    /// The global and local identifier of a pair's own port.
    pub(super) fn address(
        &self,
        nic: usize,
        settings: &QueuePairSettings,
    ) -> Option<([u8; 16], u16)> {
        let port = self.nics[nic].device.ports.iter().find(|port| port.number == settings.port)?;
        let gid = match settings.gid_index {
            Some(index) => port.gids.iter().find(|gid| gid.index == index)?.bytes,
            None => port.gids.first().map_or([0; 16], |gid| gid.bytes),
        };
        Some((gid, port.lid))
    }

    /// How packets of a pair look.
    pub(super) fn kind(&self, nic: usize, settings: &QueuePairSettings) -> Option<GidKind> {
        let port = self.nics[nic].device.ports.iter().find(|port| port.number == settings.port)?;
        Some(port.gids.iter().find(|gid| Some(gid.index) == settings.gid_index)?.kind)
    }

    /// The partition of a pair.
    pub(super) fn partition(&self, nic: usize, settings: &QueuePairSettings) -> Option<u16> {
        let port = self.nics[nic].device.ports.iter().find(|port| port.number == settings.port)?;
        port.partition_keys.get(usize::from(settings.partition_index)).copied()
    }

    /// What the segments of a request hold.
    pub(super) fn gather(&self, nic: usize, segments: &[Segment]) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        for segment in segments {
            let place = self.regions.local(nic, segment, false)?;
            self.regions.read(place, &mut bytes);
        }
        Ok(bytes)
    }

    /// Fills the segments of a request with an answer.
    pub(super) fn scatter(
        &self,
        nic: usize,
        segments: &[Segment],
        mut bytes: &[u8],
    ) -> Result<(), String> {
        for segment in segments {
            let place = self.regions.local(nic, segment, true)?;
            let (mine, rest) = bytes.split_at(bytes.len().min(segment.length as usize));
            self.regions.write(place, 0, mine);
            bytes = rest;
        }
        Ok(())
    }

    /// Ends a pair: what was sent is done, the next gets `status`, everything else is flushed.
    pub(super) fn fail_pair(&mut self, pair: usize, mut status: Option<Status>) {
        if matches!(self.pairs[pair].phase, Phase::Error | Phase::Gone) {
            return;
        }
        self.pairs[pair].phase = Phase::Error;
        while let Some(flight) = self.pairs[pair].flights.pop_front() {
            let status = match flight.is_sent {
                true => Status::Success,
                false => status.take().unwrap_or(Status::Flushed),
            };
            self.finish(pair, &flight, status);
        }
        for receive in std::mem::take(&mut self.pairs[pair].own_receives) {
            let completion = self.failed(pair, receive.id, Status::Flushed);
            self.complete(self.pairs[pair].receives, completion, None);
        }
    }

    fn failed(&self, pair: usize, id: u64, status: Status) -> Completion {
        let queue_pair = self.pairs[pair].number;
        Completion { id, status, kind: CompletionKind::Unknown, bytes: 0, queue_pair, vendor: 0x88 }
    }

    /// The completion of a request that has succeeded.
    pub(super) fn done(&self, pair: usize, request: &Request) -> Completion {
        let queue_pair = self.pairs[pair].number;
        let (id, kind) = (request.id, request.kind());
        Completion { id, status: Status::Success, kind, bytes: 0, queue_pair, vendor: 0 }
    }

    /// A request is over; its completion, if it gives one.
    pub(super) fn finish(&mut self, pair: usize, flight: &Flight, status: Status) {
        self.pairs[pair].silent += 1;
        let id = flight.request.id;
        let completion = match status {
            Status::Success if !flight.request.signalled => {
                if self.fault == Some(Fault::ReuseBeforeCompletion) {
                    let pair = &mut self.pairs[pair];
                    pair.taken -= std::mem::take(&mut pair.silent);
                }
                return;
            }
            Status::Success => self.done(pair, &flight.request),
            _ => self.failed(pair, id, status),
        };
        let retires = std::mem::take(&mut self.pairs[pair].silent);
        self.complete(self.pairs[pair].sends, completion, Some((pair, retires)));
    }

    /// The first request that was sent is over: its memory must be as it was.
    pub(super) fn finish_first(&mut self, pair: usize) {
        let flight = self.pairs[pair].flights.pop_front().expect("a request was sent");
        if !flight.request.inline && !flight.request.is_answered() {
            let nic = self.pairs[pair].nic;
            if self.gather(nic, &flight.request.segments).is_ok_and(|bytes| bytes != flight.bytes) {
                self.violation(nic, "the memory of a send was written before its completion");
            }
        }
        self.finish(pair, &flight, Status::Success);
    }
}
