//! From nothing to one path for each peer.
//!
//! 1. Each rank chooses its device, port and address ([`choose`]), registers its memory and makes
//!    its queues.
//! 2. Endpoint infos are exchanged over the control transport; both sides must be set up alike.
//! 3. The queue pairs are connected; all say that they are ready, so that no rank sends to one that
//!    is not.
//! 4. Every slot of every path carries a pattern, both ways: what an address, a partition or a
//!    firewall swallows is found now, and named.
//!
//! A rank that fails at a step says so in the next exchange, and ends the job for all.

use super::arena::Arena;
use super::choose::{Choice, choose};
use super::doorbell::VerbsDoorbell;
use super::endpoint_info::{EndpointInfo, end, exchange};
use super::hub::{Hub, SignalReceives};
use super::layout::{FLAG_BYTES, Far, Layout, Near};
use super::link::Link;
use super::nic::{
    Access, CompletionQueue, Endpoint, Nic, NicError, NicResult, Provider, QueuePair,
    QueuePairOptions, QueuePairSettings,
};
use super::path::VerbsPath;
use super::probe::probe;
use super::settings::{Signal, VerbsSettings};
use super::watch::Watch;
use headlong_comm::error::Result;
use headlong_comm::readable::text;
use headlong_comm::topology::Rank;
use headlong_comm::transport::Transport;
use headlong_comm::transport::paths::{Doorbell, Path};
use std::sync::{Arc, Mutex};

/// Receiver-not-ready: for ever, in steps of 0.64 ms. The control transport knows when a peer is
/// gone.
const RECEIVER_RETRIES: (u8, u8) = (7, 12);
const HOP_LIMIT: u8 = 64;

/// Whether this rank could connect: what it would use.
pub fn available(
    provider: &dyn Provider,
    settings: &VerbsSettings,
    local_index: usize,
) -> Result<Choice, String> {
    settings.check().map_err(|(key, reason)| format!("{key}: {reason}"))?;
    let devices = provider.devices().map_err(text)?;
    let choice = choose(&devices, settings, local_index)?;
    let limits = provider.open(&choice.device).map_err(text)?.limits();
    match settings.signal == Signal::Atomic && !limits.atomics {
        true => Err(format!(
            "{} has no atomics: comm.verbs.signal must be \"immediate\"",
            choice.device
        )),
        false => Ok(choice),
    }
}

/// What joins a rank to its peers.
pub struct Connected {
    /// To each of them.
    pub paths: Vec<(Rank, Box<dyn Path>)>,
    /// What wakes a rank that waits for them. None: the NIC has no events, or signals are atomics,
    /// which make none.
    pub doorbell: Option<Box<dyn Doorbell>>,
}

/// A path to each of `peers`. All ranks call it, and each is among the peers of those that are
/// among its. What a careful user wants to know is added to `remarks`.
///
/// # Errors
/// The job's first error: which rank could not connect, and why. The job has ended then.
pub fn connect(
    control: &dyn Transport,
    settings: &VerbsSettings,
    provider: &dyn Provider,
    peers: &[Rank],
    remarks: &mut Vec<String>,
) -> Result<Connected> {
    let me = control.rank();
    let local_index = control.topology().local_index(me);
    let site = available(provider, settings, local_index)
        .and_then(|choice| Site::open(provider, choice, settings, peers.len()).map_err(text));
    let mine = match &site {
        Ok(site) => (0..peers.len()).map(|index| site.endpoint_info(settings, index)).collect(),
        Err(reason) => vec![EndpointInfo::verdict(Some(reason.clone())); peers.len()],
    };
    let infos = exchange(control, 0, peers, &mine)?;
    let mut site = site.map_err(|reason| end(control, me, reason))?;
    remarks.push(format!("verbs: {}, {}", site.choice.describe(), site.choice.reason));
    remarks.extend(crossed_rails(control, peers, site.choice.rail, &infos));
    let hub = compare(peers, &mine, &infos)
        .and_then(|()| site.join(settings, peers, &infos).map_err(text));
    agree(control, 1, peers, hub.as_ref().err())?;
    let hub = hub.map_err(|reason| end(control, me, reason))?;
    let doorbell = hub.rings().then(|| Box::new(VerbsDoorbell::new(&hub.queue)) as Box<_>);
    let hub = Arc::new(Mutex::new(hub));
    let path = |link| Box::new(VerbsPath::new(&hub, link)) as Box<dyn Path>;
    let mut paths: Vec<(Rank, Box<dyn Path>)> =
        peers.iter().enumerate().map(|(link, &peer)| (peer, path(link))).collect();
    let probed = probe(control, settings, &mut paths);
    agree(control, 2, peers, probed.as_ref().err())?;
    match probed {
        Ok(()) => Ok(Connected { paths, doorbell }),
        Err(reason) => Err(end(control, me, reason)),
    }
}

/// All say that a step has succeeded, or why not.
fn agree(
    control: &dyn Transport,
    round: u64,
    peers: &[Rank],
    failure: Option<&String>,
) -> Result<()> {
    let verdict = EndpointInfo::verdict(failure.cloned());
    exchange(control, round, peers, &vec![verdict; peers.len()]).map(drop)
}

/// Both sides must be set up alike.
fn compare(peers: &[Rank], mine: &[EndpointInfo], infos: &[EndpointInfo]) -> Result<(), String> {
    let mut pairs = peers.iter().zip(mine.iter().zip(infos));
    match pairs.find(|(_, (mine, info))| mine.agreement != info.agreement) {
        None => Ok(()),
        Some((peer, (mine, info))) => Err(format!(
            "{peer} is set up with [{}], this rank with [{}]",
            info.agreement, mine.agreement
        )),
    }
}

/// Ranks of one local index that use devices of different places: their messages cross between
/// rails.
fn crossed_rails(
    control: &dyn Transport,
    peers: &[Rank],
    rail: usize,
    infos: &[EndpointInfo],
) -> Option<String> {
    let (topology, me) = (control.topology(), control.rank());
    let same = |peer: &Rank| topology.local_index(*peer) == topology.local_index(me);
    let crossed = peers.iter().zip(infos).find(|(peer, info)| same(peer) && info.rail != rail);
    crossed.map(|(peer, info)| {
        format!(
            "verbs: {me} uses device number {rail} and {peer} number {} ({}): messages between \
             ranks of one local index cross from rail to rail; comm.verbs.devices sets which is \
             used",
            info.rail, info.way
        )
    })
}

/// One side, before it is connected.
///
/// Note: the order of the fields is that in which they end, as in [`Hub`].
pub(super) struct Site {
    pairs: Vec<Box<dyn QueuePair>>,
    queue: Arc<dyn CompletionQueue>,
    receives: Option<SignalReceives>,
    slots: Option<Arena>,
    flags: Option<Arena>,
    nic: Arc<dyn Nic>,
    choice: Choice,
    first_packet: u32,
}

impl Site {
    /// Chosen, registered, with one connection for each of `peers` that leads nowhere yet.
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
        let remote_atomic = settings.signal == Signal::Atomic;
        let access = Access { local_write: true, remote_atomic, ..Access::default() };
        let flags = Arena::new(&*nic, peers * FLAG_BYTES, access).map_err(about_memory)?;
        let completions = peers * layout.max_sends() + 2 * peers * layout.max_receives() + 16;
        let limits = nic.limits();
        let receives = peers.max(1) * layout.max_receives();
        for (what, needed, most) in [
            ("sends of one connection", layout.max_sends(), limits.work_requests),
            ("completions of one queue", completions, limits.completions),
            ("shared receives", SignalReceives::depth(receives), limits.shared_receives),
        ] {
            if needed > most as usize {
                let reason = format!("it allows {most}: lower comm.verbs.slots");
                let what = format!("{}: {needed} {what} for {peers} peers", nic.name());
                return Err(NicError::Refused { what, reason, errno: None });
            }
        }
        let queue = nic.completion_queue(completions as u32)?;
        let receives = SignalReceives::new(&*nic, receives)?;
        let options = QueuePairOptions {
            sends: &queue,
            receives: &queue,
            shared: Some(&receives.queue),
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
        let pairs = (0..peers).map(|_| pair()).collect::<NicResult<_>>()?;
        let first_packet = first_packet();
        let (slots, flags, receives) = (Some(slots), Some(flags), Some(receives));
        Ok(Self { nic, choice, slots, flags, queue, receives, pairs, first_packet })
    }

    /// What peer number `index` receives.
    pub(super) fn endpoint_info(&self, settings: &VerbsSettings, index: usize) -> EndpointInfo {
        let (slots, flags) = self.arenas();
        let layout = Layout::new(settings, index);
        let (slot, flag) =
            (slots.region().remote(layout.receive(0)), flags.region().remote(layout.flags));
        let Endpoint { lid, gid, queue_pair, first_packet } =
            self.choice.endpoint(self.pairs[index].number(), self.first_packet);
        let kind = self.choice.gid.as_ref().map(|gid| gid.kind);
        EndpointInfo {
            way: self.choice.describe(),
            rail: self.choice.rail,
            mtu: self.choice.port.mtu,
            lid,
            gid,
            queue_pair,
            first_packet,
            slots: (slot.address, slot.key),
            flags: (flag.address, flag.key),
            agreement: format!(
                "{} slots of {} bytes, signal {:?}, partition {:#06x}, {:?}, {}",
                layout.slots,
                layout.capacity,
                settings.signal,
                settings.partition_key,
                self.choice.port.link,
                kind.map_or("no global address".into(), |kind| format!("addresses of {kind:?}")),
            ),
            ..EndpointInfo::verdict(None)
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
        infos: &[EndpointInfo],
    ) -> NicResult<Hub> {
        let mut links = Vec::with_capacity(peers.len());
        let pairs = std::mem::take(&mut self.pairs);
        for (index, (mut pair, info)) in pairs.into_iter().zip(infos).enumerate() {
            let with =
                queue_pair_settings(settings, &self.choice, self.choice.port.mtu.min(info.mtu));
            pair.ready_to_receive(&with, &info.endpoint())?;
            pair.ready_to_send(&with, self.first_packet)?;
            let way = format!("{} to {} of {}", self.choice.describe(), info.way, peers[index]);
            let layout = Layout::new(settings, index);
            let ((slots, flags), (far_slots, far_flags)) = (self.arenas(), info.memory());
            let (near, far) = (Near { slots, flags }, Far { slots: far_slots, flags: far_flags });
            links.push(Link::new((peers[index], way), pair, settings, layout, (near, far))?);
        }
        let there = "a site joins once";
        Ok(Hub {
            links,
            queue: Arc::clone(&self.queue),
            receives: self.receives.take().expect(there),
            slots: Arc::new(self.slots.take().expect(there)),
            flags: self.flags.take().expect(there),
            nic: Arc::clone(&self.nic),
            watch: Watch::new(self.choice.port.number, settings.gives_up_after()),
            completions: Vec::with_capacity(64),
            looks: 0,
        })
    }
}

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
