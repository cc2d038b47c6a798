//! From nothing to one path for each peer.
//!
//! 1. Each rank chooses its device, port and address ([`choose`]), registers its memory and makes
//!    its queues.
//! 2. Calling cards are exchanged over the control transport; both sides must be set up alike.
//! 3. The queue pairs are connected; all say that they are ready, so that nobody sends to one that
//!    is not.
//! 4. Every slot of every path carries a pattern, both ways: what an address, a partition or a
//!    firewall swallows is found now, and named.
//!
//! A rank that fails at a step says so in the next exchange, and ends the job for all.

use super::arena::Arena;
use super::calling_card::{CallingCard, end, exchange};
use super::choose::{Choice, choose};
use super::hub::{Hub, Tickets};
use super::layout::{FLAG_BYTES, Far, Layout, Near};
use super::link::Link;
use super::mistake::Mistake;
use super::nic::{
    Access, CompletionQueue, Nic, NicError, NicResult, Provider, QueuePair, QueuePairOptions,
    QueuePairSettings,
};
use super::path::VerbsPath;
use super::probe::probe;
use super::settings::{Signal, VerbsSettings};
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::Transport;
use crate::transport::paths::Path;
use std::sync::{Arc, Mutex};

/// Receiver-not-ready: for ever, in steps of 0.64 ms. The control transport knows when a peer is
/// gone.
const RECEIVER_RETRIES: (u8, u8) = (7, 12);
const HOP_LIMIT: u8 = 64;

/// Whether this rank could connect: what it would use.
///
/// # Errors
/// Why not.
pub fn available(
    provider: &dyn Provider,
    settings: &VerbsSettings,
    local_index: usize,
) -> Result<Choice, String> {
    settings.check().map_err(|(key, reason)| format!("{key}: {reason}"))?;
    let devices = provider.devices().map_err(|error| error.to_string())?;
    let choice = choose(&devices, settings, local_index)?;
    let limits = provider.open(&choice.device).map_err(|error| error.to_string())?.limits();
    match settings.signal == Signal::Atomic && !limits.atomics {
        true => Err(format!(
            "{} has no atomics: comm.verbs.signal must be \"immediate\"",
            choice.device
        )),
        false => Ok(choice),
    }
}

/// A path to each of `peers`. All ranks call it, and each is among the peers of those that are
/// among its.
///
/// # Errors
/// The job's first error: which rank could not connect, and why. The job has ended then.
pub fn connect(
    control: &dyn Transport,
    settings: &VerbsSettings,
    provider: Arc<dyn Provider>,
    peers: &[Rank],
) -> Result<Vec<(Rank, Box<dyn Path>)>> {
    connect_with_remarks(control, settings, &*provider, peers, &mut Vec::new())
}

/// As [`connect`]; what a careful user wants to know is added to `remarks`.
///
/// # Errors
/// As [`connect`].
pub fn connect_with_remarks(
    control: &dyn Transport,
    settings: &VerbsSettings,
    provider: &dyn Provider,
    peers: &[Rank],
    remarks: &mut Vec<String>,
) -> Result<Vec<(Rank, Box<dyn Path>)>> {
    let me = control.rank();
    let local_index = control.topology().local_index(me);
    let site = available(provider, settings, local_index).and_then(|choice| {
        Site::open(provider, choice, settings, peers.len()).map_err(|e| e.to_string())
    });
    let mine = match &site {
        Ok(site) => (0..peers.len()).map(|index| site.card(settings, index)).collect(),
        Err(reason) => vec![CallingCard::verdict(Some(reason.clone())); peers.len()],
    };
    let cards = exchange(control, 0, peers, &mine)?;
    let mut site = site.map_err(|reason| end(control, me, reason))?;
    remarks.push(format!("verbs: {}, {}", site.choice.describe(), site.choice.reason));
    remarks.extend(crossed_rails(control, peers, site.choice.rail, &cards));
    let hub = compare(peers, &mine, &cards)
        .and_then(|()| site.join(settings, peers, &cards).map_err(|error| error.to_string()));
    agree(control, 1, peers, hub.as_ref().err())?;
    let hub = Arc::new(Mutex::new(hub.map_err(|reason| end(control, me, reason))?));
    let path = |link| Box::new(VerbsPath::new(&hub, link)) as Box<dyn Path>;
    let mut paths: Vec<(Rank, Box<dyn Path>)> =
        peers.iter().enumerate().map(|(link, &peer)| (peer, path(link))).collect();
    let probed = probe(control, settings, &mut paths);
    agree(control, 2, peers, probed.as_ref().err())?;
    match probed {
        Ok(()) => Ok(paths),
        Err(reason) => Err(end(control, me, reason)),
    }
}

/// All say that a step has succeeded, or why not.
///
/// # Errors
/// The job's first error: the first rank for which it has not.
fn agree(
    control: &dyn Transport,
    round: u64,
    peers: &[Rank],
    failure: Option<&String>,
) -> Result<()> {
    let verdict = CallingCard::verdict(failure.cloned());
    exchange(control, round, peers, &vec![verdict; peers.len()]).map(drop)
}

/// Both sides must be set up alike.
///
/// # Errors
/// Which peer is not, and both set-ups.
fn compare(peers: &[Rank], mine: &[CallingCard], cards: &[CallingCard]) -> Result<(), String> {
    let mut pairs = peers.iter().zip(mine.iter().zip(cards));
    match pairs.find(|(_, (mine, card))| mine.agreement != card.agreement) {
        None => Ok(()),
        Some((peer, (mine, card))) => Err(format!(
            "{peer} is set up with [{}], this rank with [{}]",
            card.agreement, mine.agreement
        )),
    }
}

/// Ranks of one local index that use devices of different places: their messages cross between
/// rails.
fn crossed_rails(
    control: &dyn Transport,
    peers: &[Rank],
    rail: usize,
    cards: &[CallingCard],
) -> Option<String> {
    let (topology, me) = (control.topology(), control.rank());
    let same = |peer: &Rank| topology.local_index(*peer) == topology.local_index(me);
    let crossed = peers.iter().zip(cards).find(|(peer, card)| same(peer) && card.rail != rail);
    crossed.map(|(peer, card)| {
        format!(
            "verbs: {me} uses device number {rail} and {peer} number {} ({}): messages between \
             ranks of one local index cross from rail to rail; comm.verbs.devices sets which is \
             used",
            card.rail, card.way
        )
    })
}

/// The connection of data, and that of a mistake's signals.
type Pairs = (Box<dyn QueuePair>, Option<Box<dyn QueuePair>>);

/// One side, before it is connected.
///
/// Note: the order of the fields is that in which they end, as in [`Hub`].
pub(super) struct Site {
    pairs: Vec<Pairs>,
    queue: Arc<dyn CompletionQueue>,
    tickets: Option<Tickets>,
    slots: Option<Arena>,
    flags: Option<Arena>,
    nic: Arc<dyn Nic>,
    choice: Choice,
    first_packet: u32,
}

impl Site {
    /// Chosen, registered, with one connection for each of `peers` that leads nowhere yet.
    ///
    /// # Errors
    /// What the card refuses.
    pub(super) fn open(
        provider: &dyn Provider,
        choice: Choice,
        settings: &VerbsSettings,
        peers: usize,
    ) -> NicResult<Self> {
        let nic = provider.open(&choice.device)?;
        let layout = Layout::new(settings, 0);
        let access = Access {
            local_write: true,
            remote_write: true,
            relaxed_ordering: true,
            ..Access::default()
        };
        let slots = Arena::new(&*nic, peers * layout.bytes(), access).map_err(about_memory)?;
        let relaxed_ordering = settings.mistake == Some(Mistake::RelaxedFlags);
        let remote_atomic = settings.signal == Signal::Atomic;
        let access =
            Access { local_write: true, remote_atomic, relaxed_ordering, ..Access::default() };
        let flags = Arena::new(&*nic, peers * FLAG_BYTES, access).map_err(about_memory)?;
        let sides = if settings.mistake == Some(Mistake::SignalElsewhere) { 2 } else { 1 };
        let completions =
            peers * sides * layout.max_sends() + 2 * peers * layout.max_receives() + 16;
        let queue = nic.completion_queue(completions as u32)?;
        let tickets = Tickets::new(&*nic, peers.max(1) * layout.max_receives(), settings.mistake)?;
        let options = QueuePairOptions {
            sends: &queue,
            receives: &queue,
            shared: Some(&tickets.queue),
            max_sends: layout.max_sends() as u32,
            max_receives: 0,
            max_segments: 1,
            max_inline: super::header::HEADER_BYTES as u32,
        };
        let initial = queue_pair_settings(settings, &choice, choice.port.mtu);
        let pair = || -> NicResult<Box<dyn QueuePair>> {
            let mut pair = nic.queue_pair(&options)?;
            pair.init(&initial)?;
            Ok(pair)
        };
        let side = || if sides == 2 { pair().map(Some) } else { Ok(None) };
        let pairs = (0..peers).map(|_| Ok((pair()?, side()?))).collect::<NicResult<_>>()?;
        let first_packet = first_packet();
        let (slots, flags, tickets) = (Some(slots), Some(flags), Some(tickets));
        Ok(Self { nic, choice, slots, flags, queue, tickets, pairs, first_packet })
    }

    /// What peer number `index` is told.
    pub(super) fn card(&self, settings: &VerbsSettings, index: usize) -> CallingCard {
        let (slots, flags) = self.arenas();
        let layout = Layout::new(settings, index);
        let slot = slots.region().address() + layout.receive(0) as u64;
        let flag = flags.region().address() + layout.flags as u64;
        let (pair, side) = &self.pairs[index];
        let kind = self.choice.gid.as_ref().map(|gid| gid.kind);
        CallingCard {
            way: self.choice.describe(),
            rail: self.choice.rail,
            mtu: self.choice.port.mtu,
            lid: self.choice.port.lid,
            gid: self.choice.gid.as_ref().map_or([0; 16], |gid| gid.bytes),
            queue_pair: pair.number(),
            side_queue_pair: side.as_ref().map_or(0, |side| side.number()),
            first_packet: self.first_packet,
            slots: (slot, slots.region().remote_key()),
            flags: (flag, flags.region().remote_key()),
            agreement: format!(
                "{} slots of {} bytes, signal {:?}, partition {:#06x}, {:?}, {}",
                layout.slots,
                layout.capacity,
                settings.signal,
                settings.partition_key,
                self.choice.port.link,
                kind.map_or("no global address".into(), |kind| format!("addresses of {kind:?}")),
            ),
            ..CallingCard::verdict(None)
        }
    }

    fn arenas(&self) -> (&Arena, &Arena) {
        let there = "the memory is here until the site has joined";
        (self.slots.as_ref().expect(there), self.flags.as_ref().expect(there))
    }

    /// Connects everything: the site becomes a hub.
    pub(super) fn join(
        &mut self,
        settings: &VerbsSettings,
        peers: &[Rank],
        cards: &[CallingCard],
    ) -> NicResult<Hub> {
        let mut links = Vec::with_capacity(peers.len());
        let pairs = std::mem::take(&mut self.pairs);
        for (index, ((mut pair, mut side), card)) in pairs.into_iter().zip(cards).enumerate() {
            let with =
                queue_pair_settings(settings, &self.choice, self.choice.port.mtu.min(card.mtu));
            pair.ready_to_receive(&with, &card.endpoint(false))?;
            pair.ready_to_send(&with, self.first_packet)?;
            if let Some(side) = &mut side {
                side.ready_to_receive(&with, &card.endpoint(true))?;
                side.ready_to_send(&with, self.first_packet)?;
            }
            let way = format!("{} to {} of {}", self.choice.describe(), card.way, peers[index]);
            let layout = Layout::new(settings, index);
            let ((slots, flags), (far_slots, far_flags)) = (self.arenas(), card.memory());
            let (near, far) = (Near { slots, flags }, Far { slots: far_slots, flags: far_flags });
            links.push(Link::new(
                (peers[index], way),
                (pair, side),
                settings,
                layout,
                (near, far),
            )?);
        }
        let there = "a site joins once";
        Ok(Hub {
            links,
            queue: Arc::clone(&self.queue),
            tickets: self.tickets.take().expect(there),
            slots: Arc::new(self.slots.take().expect(there)),
            flags: self.flags.take().expect(there),
            nic: Arc::clone(&self.nic),
            port: self.choice.port.number,
            completions: Vec::with_capacity(64),
            looks: 0,
        })
    }
}

/// How a queue pair of this rank is connected.
pub(crate) fn queue_pair_settings(
    settings: &VerbsSettings,
    choice: &Choice,
    mtu: u32,
) -> QueuePairSettings {
    let (receiver_retries, receiver_timer) = RECEIVER_RETRIES;
    QueuePairSettings {
        port: choice.port.number,
        partition_index: choice.partition_index,
        gid_index: choice.gid.as_ref().map(|gid| gid.index),
        mtu,
        service_level: settings.service_level,
        traffic_class: settings.traffic_class,
        hop_limit: HOP_LIMIT,
        timeout: settings.timeout,
        retries: settings.retries,
        receiver_retries,
        receiver_timer,
        reads: if settings.signal == Signal::Atomic { 16 } else { 1 },
        access: Access {
            local_write: true,
            remote_write: true,
            remote_read: true,
            remote_atomic: settings.signal == Signal::Atomic,
            relaxed_ordering: false,
        },
    }
}

/// The number of a connection's first packet: by chance, so that packets of an earlier connection
/// are not taken for its own.
fn first_packet() -> u32 {
    getrandom::u32().unwrap_or(1) & 0x00ff_ffff
}

/// Memory that is refused has one usual cause.
fn about_memory(error: NicError) -> NicError {
    match error {
        NicError::Refused { what, reason, errno: errno @ Some(libc::ENOMEM) } => {
            let reason = format!(
                "{reason}: the limit of locked memory is too small (ulimit -l, LimitMEMLOCK), or \
                 comm.verbs.slot_bytes too large"
            );
            NicError::Refused { what, reason, errno }
        }
        other => other,
    }
}
