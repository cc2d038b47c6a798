//! Rails over NICs with RDMA, driven by the device through a proxy thread on the host: a captured
//! step exchanges between nodes without the host's part of the program.
//!
//! ```text
//! stream   wait_for_slot   seal, pack   pull_trigger …
//! wait_for_strips   open, unpack
//!                                            │ 16 bytes, one release store                      ▲ a word for each peer
//! proxy                                      └─► posts the chains built for it      completion ─┘
//! NIC                                               write + immediate ════════════► receive
//! ```
//!
//! Strips lie in the device's memory, which the NIC reads and writes by itself (GPUDirect), or
//! where driver or NIC cannot in page-locked memory of the host, which both see ([`slots`]). Along
//! with the trigger the device tells how long each strip is, so that the NIC sends no more than
//! that.
//!
//! **Slots.** Three take turns. *Received*: a rank begins exchange s when it has seen a strip of
//! s−1 from every peer of its rail; a peer sends that one after it has consumed s−2, so slot (s mod
//! 3), last used by s−3, is free there. This needs that every pair of a rail exchanges in every
//! exchange, which nodes of one size do; others are refused. *Sent*: a slot is written again when
//! its strips of three exchanges ago have been delivered, because until then a NIC may read them
//! once more; the proxy tells when.
//!
//! **Memory of a device.** That a strip has come, a completion says to the processor; a device may
//! still see old bytes of its own memory. Where slots are such memory, the proxy reads it back
//! through the NIC before it tells ([`read_back`]).
//!
//! **Waits on the device** end with what they wait for, with the poison word that the host and the
//! proxy set when the job fails, or at the deadline, which the host learns like everything else
//! that kernels find wrong.

mod page;
mod proxy;
mod read_back;
mod slots;
#[cfg(test)]
mod tests;

use crate::endpoint_info::{WAY_WORDS, Way};
use crate::nic::{
    CompletionQueue, Nic, NicResult, Provider, QueuePair, QueuePairOptions, QueuePairSettings,
    Receive,
};
use crate::watch::Watch;
use crate::{Choice, VerbsSettings, available, queue_pair_settings};
use headlong_comm::catch::catch;
use headlong_comm::device::rail::{Exchange, Rails};
use headlong_comm::readable::text;
use headlong_comm::transport::Transport;
use headlong_comm::{CommError, Communicator, ConnectRails, Rank, Result, Topology};
use headlong_device::cuda::{
    Build, CudaDevice, CudaStream, DeviceMemory, DevicePtr, Launch, Source,
};
use page::Page;
use proxy::{Leg, Patience, Peer, Proxy, ProxyNic, REQUESTS_PER_STRIP, Shared, Slots};
use read_back::ReadBack;
use slots::{SlotMemory, Wanted};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

static RAIL: Source = Source {
    name: "comm/rail",
    text: concat!(
        include_str!("../../src/device/hierarchical/state.cuh"),
        include_str!("rails/rail.cu")
    ),
};

/// The kernels, for builds ahead of time.
pub fn kernels() -> Vec<Build> {
    vec![Build { source: &RAIL, defines: Vec::new() }]
}

/// Slots of each side of a rail, in memory of the device where NICs reach it: see the page above.
pub const NUM_SLOTS: usize = 3;

/// Receives that wait for a peer's immediates: two exchanges at most are ahead, and a goodbye.
const RECEIVES: usize = NUM_SLOTS + 2;

/// Requests of a peer's that are on their way: strips of each slot, and a goodbye.
const SENDS: usize = (NUM_SLOTS + 2) * REQUESTS_PER_STRIP;

/// A rank with so many cores leaves one to its proxy.
const CORES_WITH_PROXY: usize = 4;

/// Whether the thread that serves the NIC has a core of its own where a rank has so many: other
/// threads need that one less.
pub fn keeps_a_core(cores_of_rank: usize) -> bool {
    cores_of_rank >= CORES_WITH_PROXY
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RailArgs {
    page: DevicePtr,
    state: DevicePtr,
    report: DevicePtr,
    peers: DevicePtr,
    slots: DevicePtr,
    slot_bytes: u64,
    stride: u64,
    deadline_ns: u64,
    triggers_at: u32,
    lengths_at: u32,
    operation: u32,
    num_slots: u32,
    num_peers: u32,
    num_strips: u32,
}

/// Rails over the NICs of a provider, for
/// [`Communicator::with_rails`](headlong_comm::Communicator::with_rails). Of several NICs, the one
/// nearest to the rank's device is used, unless the settings name one.
pub struct VerbsRails {
    provider: Arc<dyn Provider>,
    settings: VerbsSettings,
    cores: usize,
}

impl VerbsRails {
    /// Over these NICs, for a rank with so many cores: see [`keeps_a_core`].
    pub fn new(provider: Arc<dyn Provider>, settings: VerbsSettings, cores_of_rank: usize) -> Self {
        Self { provider, settings, cores: cores_of_rank }
    }

    fn patience(&self) -> Patience {
        match keeps_a_core(self.cores) {
            true => Patience::OWN_CORE,
            false => Patience::SHARED_CORE,
        }
    }
}

/// One rank's end of a rail.
///
/// Note: fields end in this order: the proxy and its queue pairs, what the NIC may use, the memory
/// itself.
struct Rail {
    name: String,
    proxy: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    slots: SlotMemory,
    peers: DeviceMemory,
    ranks: Vec<Rank>,
    slot_bytes: usize,
    deadline: Duration,
}

/// Whether ranks of this topology have rails on which every pair exchanges every time.
fn possible(topology: &Topology) -> Result<(), String> {
    let sizes: Vec<usize> = (0..topology.num_nodes())
        .map(|node| topology.node_size(node))
        .filter(|&size| size > 0)
        .collect();
    match sizes.iter().all(|size| *size == sizes[0]) {
        true => Ok(()),
        false => Err(format!(
            "rails over NICs are for nodes of one size, and these have {sizes:?} ranks"
        )),
    }
}

/// The settings with the place of this rank's device, so that its nearest NIC is chosen.
fn near(device: &CudaDevice, settings: &VerbsSettings) -> VerbsSettings {
    let settings = settings.clone();
    match device.bus_id() {
        Some(bus_id) if !device.is_software() => settings.near_device(&bus_id),
        _ => settings,
    }
}

/// Note: fields end in this order: connections before the slots.
struct Opened {
    pairs: Vec<Box<dyn QueuePair>>,
    read_back: Option<ReadBack>,
    queue: Arc<dyn CompletionQueue>,
    slots: SlotMemory,
    nic: Arc<dyn Nic>,
    choice: Choice,
    first_packet: u32,
    page: Page,
    ranks: DeviceMemory,
}

fn open(
    cuda: &CudaDevice,
    provider: &dyn Provider,
    settings: &VerbsSettings,
    (local_index, peers): (usize, &[Rank]),
    slot_bytes: usize,
) -> Result<Opened, String> {
    let choice = available(provider, settings, local_index)?;
    let nic = provider.open(&choice.device).map_err(text)?;
    let first_packet = getrandom::u32().unwrap_or(1) & 0x00ff_ffff;
    let wanted = Wanted {
        device: cuda,
        nic: &*nic,
        settings,
        choice: &choice,
        first_packet,
        bytes: 2 * NUM_SLOTS * slot_bytes,
        depth: ((peers.len() + 1) * (SENDS + RECEIVES)) as u32,
    };
    // SAFETY: the queue pairs end before the slots (the order of fields of `Opened` and `Rail`). Of
    // these the first half is written by kernels that wait for the delivery of what was sent from
    // there, the second half by peers alone.
    let (slots, queue, read_back) = unsafe { wanted.serve() }?;
    let initial = connection(settings, &choice, choice.port.mtu);
    let pair = || -> NicResult<Box<dyn QueuePair>> {
        let mut pair = nic.queue_pair(&queue_pair_options(&queue))?;
        pair.init(&initial)?;
        pair.post_receives(&[Receive { id: 0, segment: None }; RECEIVES])?;
        Ok(pair)
    };
    let pairs = peers.iter().map(|_| pair()).collect::<NicResult<_>>().map_err(text)?;
    let words: Vec<u8> = peers.iter().flat_map(|rank| (rank.0 as u32).to_ne_bytes()).collect();
    let ranks = DeviceMemory::new(cuda, "peers of the rail", words.len()).map_err(text)?;
    ranks.write(0, &words).map_err(text)?;
    let page = Page::new(cuda, peers.len())?;
    Ok(Opened { pairs, read_back, queue, slots, nic, choice, first_packet, page, ranks })
}

fn queue_pair_options(queue: &Arc<dyn CompletionQueue>) -> QueuePairOptions<'_> {
    QueuePairOptions {
        sends: queue,
        receives: queue,
        shared: None,
        max_sends: SENDS as u32,
        max_receives: RECEIVES as u32,
        max_segments: 1,
        max_inline: 0,
    }
}

fn connection(settings: &VerbsSettings, choice: &Choice, mtu: u32) -> QueuePairSettings {
    queue_pair_settings(settings, choice, choice.port.mtu.min(mtu))
}

impl Opened {
    fn connect(
        &mut self,
        settings: &VerbsSettings,
        peers: &[Rank],
        infos: &[u64],
    ) -> Result<Vec<Peer>, String> {
        let pairs = std::mem::take(&mut self.pairs);
        let connected = pairs.into_iter().zip(peers).map(|(mut pair, &rank)| {
            let way = Way::from_words(&infos[WAY_WORDS * rank.0..])
                .map_err(|reason| format!("{rank}: {reason}"))?;
            let with = connection(settings, &self.choice, way.mtu);
            pair.ready_to_receive(&with, &way.endpoint).map_err(text)?;
            pair.ready_to_send(&with, self.first_packet).map_err(text)?;
            let slots = way.memory;
            Ok(Peer { rank, pair, slots, on_the_way: VecDeque::with_capacity(NUM_SLOTS + 2) })
        });
        connected.collect()
    }
}

/// Starts the thread that serves the NIC. The device must not wait for one that is gone, and all
/// ranks hear of what it fails with, also where no caller is waiting for the device just now.
fn start(
    proxy: Proxy,
    patience: Patience,
    job: &Arc<dyn Transport>,
) -> std::io::Result<JoinHandle<()>> {
    let (job, told) = (Arc::clone(job), Arc::clone(&proxy.shared));
    let work = move || {
        if let Err(reason) = catch("rail-proxy", || proxy.run(patience)) {
            told.fail(reason);
        }
        if let Some(reason) = told.failure() {
            let (seen_by, operation) = (job.rank(), "an exchange between nodes".to_owned());
            job.abort(CommError::Device { seen_by, operation, reason });
        }
    };
    std::thread::Builder::new().name("rail-proxy".into()).spawn(work)
}

impl ConnectRails for VerbsRails {
    fn connect(
        &self,
        communicator: &Communicator,
        cuda: &CudaStream,
        peers: Vec<Rank>,
        slot_bytes: usize,
    ) -> Result<Box<dyn Rails>> {
        let settings = near(cuda.device(), &self.settings);
        let me = (communicator.topology().local_index(communicator.rank()), &*peers);
        let opened = possible(communicator.topology()).and_then(|()| {
            ["wait_for_slot", "pull_trigger", "wait_for_strips"].iter().try_for_each(|name| {
                let loaded = cuda.kernel(&RAIL, &[], name).is_some();
                if loaded { Ok(()) } else { cuda.check().map_err(text) }
            })?;
            open(cuda.device(), &*self.provider, &settings, me, slot_bytes)
        });
        let mut opened = communicator.agree("rails over NICs", opened)?;
        let mut mine = vec![0_u64; WAY_WORDS * communicator.num_ranks()];
        for (&rank, pair) in peers.iter().zip(&opened.pairs) {
            let way = Way {
                endpoint: opened.choice.endpoint(pair.number(), opened.first_packet),
                memory: opened.slots.region.remote(NUM_SLOTS * slot_bytes),
                mtu: opened.choice.port.mtu,
            };
            mine[WAY_WORDS * rank.0..][..WAY_WORDS].copy_from_slice(&way.to_words());
        }
        let mut theirs = vec![0_u64; mine.len()];
        // Who has the key of a slot can write into it.
        let sealed = communicator.sealed();
        communicator.all_to_all(&mine, &mut theirs)?;
        drop(sealed);
        let connected = opened.connect(&settings, &peers, &theirs);
        let connected = communicator.agree("rails over NICs", connected)?;
        let mut by_device = [f32::from(u8::from(opened.slots.is_of_device()))];
        communicator.all_reduce(&mut by_device)?;
        let name = opened.slots.name(by_device[0] as usize, communicator.num_ranks());
        let shared = Arc::new(Shared::new(opened.page));
        let slots = Slots {
            address: opened.slots.region.address(),
            key: opened.slots.region.local_key(),
            slot_bytes,
            num_slots: NUM_SLOTS,
        };
        let nic = ProxyNic {
            read_back: opened.read_back,
            queue: opened.queue,
            nic: opened.nic,
            // The device's own wait must not end first.
            watch: Watch::new(
                opened.choice.port.number,
                settings.gives_up_after().min(communicator.options().deadline / 2),
            ),
        };
        let proxy = Proxy::new(Arc::clone(&shared), connected, slots, nic);
        let thread = start(proxy, self.patience(), communicator.transport());
        // Where another rank's has not started, this one's is stopped before the slots end.
        let rail = thread.map(|thread| Rail {
            name,
            proxy: Some(thread),
            shared,
            slots: opened.slots,
            peers: opened.ranks,
            ranks: peers,
            slot_bytes,
            deadline: communicator.options().deadline,
        });
        Ok(Box::new(communicator.agree("the rail's proxy", rail.map_err(text))?))
    }
}

impl Rail {
    fn run(
        &self,
        stream: &CudaStream,
        entry: &'static str,
        exchange: &Exchange<'_>,
        operation: u32,
    ) {
        let sends = &exchange.route.sends;
        let stride = sends.get(1).map_or(0, |hop| hop.offset);
        assert!(sends.iter().enumerate().all(|(strip, hop)| hop.offset == strip * stride));
        assert!(sends.len() <= self.ranks.len(), "the page has room for a strip to each peer");
        let args = RailArgs {
            page: self.shared.page.at(),
            state: exchange.state,
            report: exchange.report,
            peers: self.peers.ptr(),
            slots: self.slots.ptr(),
            slot_bytes: self.slot_bytes as u64,
            stride: stride as u64,
            deadline_ns: self.deadline.as_nanos() as u64,
            triggers_at: self.shared.page.triggers_at() as u32,
            lengths_at: self.shared.page.lengths_at() as u32,
            operation,
            num_slots: NUM_SLOTS as u32,
            num_peers: self.ranks.len() as u32,
            num_strips: sends.len() as u32,
        };
        stream.run(&RAIL, &[], entry, Launch::new(1, 32), &args);
    }

    fn operation(&self, exchange: &Exchange<'_>) -> u32 {
        let place = |rank: Rank| self.ranks.iter().position(|peer| *peer == rank);
        let legs = exchange.route.sends.iter().map(|hop| Leg {
            peer: place(hop.peer).expect("nodes of one size exchange along rails"),
            offset: hop.offset,
            there: hop.there,
            bytes: hop.bytes,
        });
        self.shared.operation(legs)
    }

    fn end(&mut self) {
        self.shared.stop();
        // What a panicking proxy has to say, it has said to stderr.
        self.proxy.take().map(JoinHandle::join);
    }
}

impl Rails for Rail {
    fn name(&self) -> &str {
        &self.name
    }

    fn num_slots(&self) -> usize {
        NUM_SLOTS
    }

    fn memory(&self) -> Option<[DevicePtr; 2]> {
        let first = self.slots.ptr();
        Some([first, first.offset(NUM_SLOTS * self.slot_bytes)])
    }

    fn prepare(&self, stream: &CudaStream, exchange: &Exchange<'_>) -> Result<(), String> {
        self.run(stream, "wait_for_slot", exchange, 0);
        Ok(())
    }

    fn begin(&self, stream: &CudaStream, exchange: &Exchange<'_>) -> Result<(), String> {
        self.check()?;
        self.run(stream, "pull_trigger", exchange, self.operation(exchange));
        Ok(())
    }

    fn finish(&self, stream: &CudaStream, exchange: &Exchange<'_>) -> Result<(), String> {
        self.run(stream, "wait_for_strips", exchange, 0);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.shared.failure().map_or(Ok(()), Err)
    }

    fn give_up(&self) {
        self.shared.page.set_poison();
    }

    fn close(mut self: Box<Self>) -> Result<(), String> {
        self.shared.close();
        let started = Instant::now();
        while self.proxy.as_ref().is_some_and(|proxy| !proxy.is_finished()) {
            if started.elapsed() > self.deadline {
                self.end();
                return Err("not all ranks of the rail have said goodbye in time".to_owned());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        self.end();
        self.check()
    }
}

impl Drop for Rail {
    fn drop(&mut self) {
        self.shared.page.set_poison();
        self.end();
    }
}

#[cfg(test)]
mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::layout_test;

    #[test]
    fn the_structs_of_both_languages_are_the_same() {
        layout_test!(
            RailArgs, &RAIL, &[];
            page, state, report, peers, slots, slot_bytes, stride, deadline_ns, triggers_at,
            lengths_at, operation, num_slots, num_peers, num_strips
        );
    }
}
