//! How a rail is made: memory registered, connections to all peers, every chain built.

use super::super::arena::Arena;
use super::super::calling_card::{CallingCard, end, exchange};
use super::super::choose::Choice;
use super::super::connect::{agree, available, compare, first_packet, queue_pair_settings};
use super::super::hub::Tickets;
use super::super::nic::{
    Access, Action, CompletionQueue, Endpoint, Nic, NicError, NicResult, Prepared, Provider, QueuePair,
    QueuePairOptions, Region, Remote, Request, Segment,
};
use super::super::settings::{Signal, VerbsSettings};
use super::{Lane, READ_BACK_ID, Rail, RailPlan, ReadBack, Strip, Way};
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::Transport;
use std::sync::Arc;

/// Rounds of set-up of their own, beside those of [`connect`](super::super::connect()).
const ROUND: u64 = 100;

impl Rail {
    /// Connects to every peer of `plan`. All ranks call it, those without peers too, and each is among the peers of those that
    /// are among its.
    ///
    /// # Safety
    /// The areas stay mapped until the rail is dropped. What strips name is written only while their slot is free, and
    /// read only between its arrival and the next exchange: see the contract of [`Nic::register`].
    ///
    /// # Errors
    /// The job's first error: which rank could not connect, and why. The job has ended then.
    pub unsafe fn connect(
        control: &dyn Transport,
        settings: &VerbsSettings,
        provider: &dyn Provider,
        plan: RailPlan<'_>,
    ) -> Result<Self> {
        let me = control.rank();
        let mut peers: Vec<Rank> = plan.strips.iter().map(|strip| strip.peer).collect();
        peers.sort();
        peers.dedup();
        let local_index = control.topology().local_index(me);
        let yard = available(provider, settings, local_index).and_then(|choice| {
            // SAFETY: the caller's promise is the one that is asked for.
            unsafe { Yard::open(provider, choice, settings, &plan, peers.len()) }
                .map_err(|error| error.to_string())
        });
        let mine = match &yard {
            Ok(yard) => (0..peers.len()).map(|peer| yard.card(&plan, peer)).collect(),
            Err(reason) => vec![CallingCard::verdict(Some(reason.clone())); peers.len()],
        };
        let cards = exchange(control, ROUND, &peers, &mine)?;
        let yard = yard.map_err(|reason| end(control, me, reason))?;
        let rail = compare(&peers, &mine, &cards)
            .and_then(|()| yard.join(settings, &plan, &peers, &cards).map_err(|error| error.to_string()));
        agree(control, ROUND + 1, &peers, rail.as_ref().err())?;
        rail.map_err(|reason| end(control, me, reason))
    }
}

/// One side, before it is connected.
struct Yard {
    pairs: Vec<Box<dyn QueuePair>>,
    queue: Arc<dyn CompletionQueue>,
    tickets: Tickets,
    areas: Vec<Box<dyn Region>>,
    nic: Arc<dyn Nic>,
    choice: Choice,
    first_packet: u32,
}

impl Yard {
    /// # Safety
    /// As [`Rail::connect`].
    unsafe fn open(
        provider: &dyn Provider,
        choice: Choice,
        settings: &VerbsSettings,
        plan: &RailPlan<'_>,
        peers: usize,
    ) -> NicResult<Self> {
        let nic = provider.open(&choice.device)?;
        let mut areas = Vec::with_capacity(plan.areas.len());
        for area in &plan.areas {
            let access = Access {
                local_write: true,
                remote_write: !area.is_flags,
                remote_read: !area.is_flags,
                remote_atomic: area.is_flags,
                relaxed_ordering: !area.is_flags,
            };
            // SAFETY: the caller keeps the memory and the protocol, and the rail drops its connections before its areas.
            areas.push(unsafe { nic.register(area.memory.clone(), access) }?);
        }
        // A strip has two requests, and all may go to one peer.
        let sends = (2 * plan.strips.len() * plan.slots).max(2) as u32;
        let arrivals = 2 * (plan.num_incoming * plan.slots).max(1);
        let queue = nic.completion_queue(sends * (peers as u32 + 1) + 2 * arrivals as u32 + 16)?;
        let tickets = Tickets::new(&*nic, arrivals, settings.mistake)?;
        let pieces = plan.strips.iter().map(|strip| strip.pieces.len()).max().unwrap_or(1);
        let options = QueuePairOptions {
            sends: &queue,
            receives: &queue,
            shared: Some(&tickets.queue),
            max_sends: sends,
            max_receives: 0,
            max_segments: pieces as u32,
            max_inline: 0,
        };
        let with = queue_pair_settings(settings, &choice, choice.port.mtu);
        let pair = |_| {
            let mut pair = nic.queue_pair(&options)?;
            pair.init(&with)?;
            Ok(pair)
        };
        // The last connection leads back to this rank.
        let count = peers + usize::from(plan.read_back.is_some());
        let pairs = (0..count).map(pair).collect::<NicResult<_>>()?;
        Ok(Self { pairs, queue, tickets, areas, nic, choice, first_packet: first_packet() })
    }

    fn card(&self, plan: &RailPlan<'_>, peer: usize) -> CallingCard {
        let areas = self.areas.iter().map(|area| (area.address(), area.length(), area.remote_key()));
        CallingCard {
            way: self.choice.describe(),
            rail: self.choice.rail,
            mtu: self.choice.port.mtu,
            queue_pair: self.pairs[peer].number(),
            areas: areas.collect(),
            agreement: format!("{} slots, {} areas", plan.slots, self.areas.len()),
            ..self.address()
        }
    }

    fn address(&self) -> CallingCard {
        CallingCard {
            lid: self.choice.port.lid,
            gid: self.choice.gid.as_ref().map_or([0; 16], |gid| gid.bytes),
            first_packet: self.first_packet,
            ..CallingCard::verdict(None)
        }
    }

    fn join(
        self,
        settings: &VerbsSettings,
        plan: &RailPlan<'_>,
        peers: &[Rank],
        cards: &[CallingCard],
    ) -> NicResult<Rail> {
        let Self { mut pairs, queue, tickets, areas, nic, choice, first_packet } = self;
        let with = |mtu: u32| queue_pair_settings(settings, &choice, choice.port.mtu.min(mtu));
        let gid = choice.gid.as_ref().map_or([0; 16], |gid| gid.bytes);
        let read_back = match plan.read_back {
            None => None,
            Some(area) => {
                let mut pair = pairs.pop().expect("one connection more than peers");
                let own = Endpoint { lid: choice.port.lid, gid, queue_pair: pair.number(), first_packet };
                pair.ready_to_receive(&with(choice.port.mtu), &own)?;
                pair.ready_to_send(&with(choice.port.mtu), first_packet)?;
                Some(read_back(&*nic, pair, &*areas[area])?)
            }
        };
        let mut ways = Vec::with_capacity(peers.len());
        for ((mut pair, &rank), card) in pairs.into_iter().zip(peers).zip(cards) {
            pair.ready_to_receive(&with(card.mtu), &card.endpoint(false))?;
            pair.ready_to_send(&with(card.mtu), first_packet)?;
            let name = format!("{} to {} of {rank}", choice.describe(), card.way);
            ways.push(Way { rank, name, pair });
        }
        let mut lanes = Vec::with_capacity(plan.strips.len());
        for (index, strip) in plan.strips.iter().enumerate() {
            let peer = peers.iter().position(|peer| *peer == strip.peer).expect("peers are those of strips");
            let scheme =
                Scheme { index, strip, near: &areas, far: &cards[peer].areas, signal: settings.signal };
            lanes.push(scheme.lane(peer, &mut *ways[peer].pair, plan.slots)?);
        }
        let pieces = lanes.iter().map(|lane| lane.capacities.len()).max().unwrap_or(0);
        Ok(Rail {
            ways,
            read_back,
            lanes,
            queue,
            tickets,
            areas,
            nic,
            port: choice.port.number,
            mistake: settings.mistake,
            completions: Vec::with_capacity(super::AT_ONCE),
            held: Vec::with_capacity(2 * plan.num_incoming * plan.slots),
            looks: 0,
            patches: Vec::with_capacity(pieces + 1),
            failed: None,
        })
    }
}

/// A connection that reads eight bytes of `area` into memory of its own.
fn read_back(nic: &dyn Nic, mut pair: Box<dyn QueuePair>, area: &dyn Region) -> NicResult<ReadBack> {
    let room = Arena::new(nic, 8, Access { local_write: true, ..Access::default() })?;
    let (address, key) = (room.region().address(), room.region().local_key());
    let at = Remote { address: area.address(), key: area.remote_key() };
    let request = Request {
        id: READ_BACK_ID,
        action: Action::Read { at },
        segments: vec![Segment { address, length: 8, key }],
        inline: false,
        signalled: true,
    };
    // SAFETY: nothing of it is inline.
    let chain = unsafe { pair.prepare(&[request]) }?;
    Ok(ReadBack { pair, chain, covers: 0, is_reading: false, _room: room })
}

/// What a strip's chains are built from.
struct Scheme<'a> {
    index: usize,
    strip: &'a Strip,
    near: &'a [Box<dyn Region>],
    /// The peer's areas: address, bytes, key.
    far: &'a [(u64, u64, u32)],
    signal: Signal,
}

impl Scheme<'_> {
    fn lane(&self, peer: usize, pair: &mut dyn QueuePair, slots: usize) -> NicResult<Lane> {
        let prepare = |pair: &mut dyn QueuePair, chain: &[Request]| -> NicResult<Prepared> {
            // SAFETY: nothing of it is inline.
            unsafe { pair.prepare(chain) }
        };
        let (mut chains, mut bare) = (Vec::with_capacity(slots), Vec::with_capacity(slots));
        for slot in 0..slots {
            let (payload, signal) = (self.payload(slot)?, self.signal(slot)?);
            chains.push(prepare(pair, &[payload, signal.clone()])?);
            bare.push(prepare(pair, &[signal])?);
        }
        let capacities = self.strip.pieces.iter().map(|piece| piece.capacity as u32).collect();
        let busy = vec![false; slots];
        let by_number = !self.is_counted();
        Ok(Lane { peer, tag: self.strip.tag, chains, bare, capacities, busy, by_number })
    }

    /// Whether the peer's flag counts arrivals.
    fn is_counted(&self) -> bool {
        self.signal == Signal::Atomic && self.strip.flag.is_some()
    }

    fn payload(&self, slot: usize) -> NicResult<Request> {
        let Strip { from, pieces, stride, to, to_stride, .. } = self.strip;
        let region = &self.near[*from];
        let mut segments = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let at = piece.offset + slot * stride;
            self.inside(at + piece.capacity, region.length(), "this rank's")?;
            segments.push(Segment {
                address: region.address() + at as u64,
                length: piece.capacity as u32,
                key: region.local_key(),
            });
        }
        let most: usize = pieces.iter().map(|piece| piece.capacity).sum();
        let at = self.remote(to.0, to.1 + slot * to_stride, most)?;
        let action = Action::Write { at };
        Ok(Request { id: self.id(slot), action, segments, inline: false, signalled: false })
    }

    fn signal(&self, slot: usize) -> NicResult<Request> {
        let id = self.id(slot);
        let (action, segments) = match (self.is_counted(), self.strip.flag) {
            (true, Some((area, offset))) => {
                let at = self.remote(area, offset, 8)?;
                // Note: the answer lands in this rank's own flag area, behind the flags.
                let own = &self.near[area];
                let address = own.address() + own.length() - 8;
                let segment = Segment { address, length: 8, key: own.local_key() };
                (Action::FetchAdd { at, add: 1 }, vec![segment])
            }
            _ => {
                let at = self.remote(self.strip.to.0, 0, 0)?;
                (Action::WriteImmediate { at, immediate: 0 }, Vec::new())
            }
        };
        Ok(Request { id, action, segments, inline: false, signalled: true })
    }

    fn id(&self, slot: usize) -> u64 {
        (self.index as u64) << 8 | slot as u64
    }

    fn remote(&self, area: usize, offset: usize, length: usize) -> NicResult<Remote> {
        let (address, bytes, key) = self.far[area];
        self.inside(offset + length, bytes, "the peer's")?;
        Ok(Remote { address: address + offset as u64, key })
    }

    fn inside(&self, end: usize, bytes: u64, whose: &str) -> NicResult<()> {
        match end as u64 <= bytes {
            true => Ok(()),
            false => Err(NicError::Refused {
                what: format!("strip {} to {}", self.index, self.strip.peer),
                reason: format!("it ends at byte {end} of {whose} area, which has {bytes}"),
                errno: None,
            }),
        }
    }
}
