//! A fabric of this process: NICs that behave as real ones may, decided by a seed.
//!
//! What a program must not rely on, it does not get. The bytes of a write land in pieces, in any
//! order, some time after the sender's completion; only the receiver's completion, or an atomic
//! that came after them on the same queue pair, says that they are there. Completions come late;
//! connections get ahead of each other. What a NIC would refuse is refused, and what a program
//! must not do although a NIC may let it pass is kept as a violation ([`Fabric::violations`]):
//! memory of a send that was written before its completion, a key that does not fit, a completion
//! queue that overflows.
//!
//! Time is counted in looks at the fabric: every poll of any queue moves it. Cables can be pulled,
//! machines switched off, devices broken: [`Fabric::cut`], [`Fabric::kill_node`],
//! [`Fabric::port_down`], [`Fabric::break_device`].

mod fault;
mod memory;
mod nic;
mod pair;
mod state;
mod wire;

use crate::nic::{
    Device, Event, Gid, GidKind, Limits, LinkLayer, Nic, NicError, NicResult, Port, PortState,
    Provider, Status,
};
pub use fault::Fault;
use nic::FakeNic;
use state::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How unruly the fabric is. Times are in looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkModel {
    /// Anything takes up to this long; 0: everything happens at once.
    pub delay: u64,
    /// In so many of 100 cases it takes up to 40 times as long.
    pub storms: u64,
    /// Bytes of a write land in pieces of up to this many.
    pub piece: u64,
    /// Without an answer, one try takes this long.
    pub retry: u64,
}

impl NetworkModel {
    /// Everything at once and in order.
    pub const CALM: Self = Self { delay: 0, storms: 0, piece: 1 << 20, retry: 50 };
    /// Late, in pieces, out of order.
    pub const ROUGH: Self = Self { delay: 12, storms: 5, piece: 96, retry: 200 };
}

/// All nodes, their NICs, and what is between them.
pub struct Fabric {
    state: Mutex<State>,
}

impl Fabric {
    /// A fabric whose node `n` has the devices `nodes[n]`.
    pub fn new(seed: u64, model: NetworkModel, nodes: Vec<Vec<Device>>) -> Arc<Self> {
        let state = State::new(seed, model, nodes);
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Nodes that are all alike: `devices` RoCE NICs each, `fake0` and so on, one to a memory
    /// node.
    pub fn rails(seed: u64, model: NetworkModel, nodes: usize, devices: usize) -> Arc<Self> {
        let node = |node| (0..devices).map(|index| roce_device(node, index)).collect();
        Self::new(seed, model, (0..nodes).map(node).collect())
    }

    /// From now on all NICs break a rule.
    pub fn inject(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// From now on completion queues that are made have events at which a thread can sleep. Who
    /// sleeps does not look, so something must [move time](Fabric::pass).
    pub fn enable_events(&self) {
        self.lock().has_events = true;
    }

    /// From now on NICs allow no more than this.
    pub fn limit(&self, limits: Limits) {
        self.lock().limits = limits;
    }

    /// From now on no NIC takes the memory of a device.
    pub fn refuse_dmabufs(&self) {
        self.lock().refuses_dmabufs = true;
    }

    /// How many completions have shown at events: each ends a sleep, or a look came before it.
    pub fn shown(&self) -> u64 {
        self.lock().shown
    }

    /// Lets time pass, as a look does.
    pub fn pass(&self) {
        self.look(|_| ());
    }

    /// The NICs of a node.
    pub fn provider(self: &Arc<Self>, node: usize) -> Arc<dyn Provider> {
        Arc::new(NodeNics { fabric: Arc::clone(self), node })
    }

    /// What a program did that it must not do.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Pulls (`true`) or mends (`false`) all cables between two nodes.
    pub fn cut(&self, one: usize, other: usize, is_cut: bool) {
        self.lock().cut(one, other, is_cut);
    }

    /// How many queue pairs were made.
    pub fn queue_pairs(&self) -> usize {
        self.lock().pairs.len()
    }

    /// Switches a node off: it no longer answers.
    pub fn kill_node(&self, node: usize) {
        self.lock().kill_node(node);
    }

    /// A port of a device goes down; the device says so.
    pub fn port_down(&self, node: usize, device: &str, port: u8) {
        self.lock().set_port(node, device, (port, PortState::Down), Event::PortDown(port));
    }

    /// A port that was down carries again; the device says so.
    pub fn port_up(&self, node: usize, device: &str, port: u8) {
        self.lock().set_port(node, device, (port, PortState::Active), Event::PortUp(port));
    }

    /// A device breaks: an event says so, its queue pairs are in error.
    pub fn break_device(&self, node: usize, device: &str) {
        self.lock().break_device(node, device);
    }

    /// The next send of a device ends with `status`.
    pub fn fail_next_send(&self, node: usize, device: &str, status: Status) {
        self.lock().fail_next_send(node, device, status);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets time pass; then looks.
    fn look<R>(&self, look: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        state.advance();
        look(&mut state)
    }
}

/// A RoCE NIC as they are found: four identifiers, of which one is good.
pub fn roce_device(node: usize, index: usize) -> Device {
    let host = 10 + node as u8;
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, index as u8, host];
    let address = std::net::Ipv4Addr::new(10, 0, index as u8, host).to_ipv6_mapped().octets();
    let gid = |index, bytes, kind| Gid { index, bytes, kind };
    let port = Port {
        number: 1,
        state: PortState::Active,
        link: LinkLayer::Ethernet,
        mtu: 4096,
        lid: 0,
        needs_gid: false,
        partition_keys: vec![0xffff],
        gids: vec![
            gid(0, link_local, GidKind::RoceV1),
            gid(1, link_local, GidKind::RoceV2),
            gid(2, address, GidKind::RoceV1),
            gid(3, address, GidKind::RoceV2),
        ],
    };
    Device {
        name: format!("fake{index}"),
        numa_node: Some(index as u32),
        path: Some(
            format!("/sys/devices/pci{index:04x}:00/{index:04x}:00:01.0/{index:04x}:01:00.0")
                .into(),
        ),
        ports: vec![port],
    }
}

/// An InfiniBand NIC: identifiers of the fabric, and local ones.
pub fn infiniband_device(node: usize, index: usize) -> Device {
    let mut device = roce_device(node, index);
    let port = &mut device.ports[0];
    port.link = LinkLayer::InfiniBand;
    port.lid = (node * 16 + index + 1) as u16;
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&[0xfe, 0x80]);
    bytes[8..].copy_from_slice(&(0x0002_c903_0000_0000 + u64::from(port.lid)).to_be_bytes());
    port.gids = vec![Gid { index: 0, bytes, kind: GidKind::InfiniBand }];
    device
}

struct NodeNics {
    fabric: Arc<Fabric>,
    node: usize,
}

impl Provider for NodeNics {
    fn name(&self) -> &str {
        "fake"
    }

    fn devices(&self) -> NicResult<Vec<Device>> {
        Ok(self.fabric.lock().devices(self.node))
    }

    fn open(&self, device: &str) -> NicResult<Arc<dyn Nic>> {
        let nic = self.fabric.lock().find(self.node, device);
        let nic =
            nic.ok_or_else(|| refused(&format!("opening {device}"), "there is no such device"))?;
        Ok(Arc::new(FakeNic::new(Arc::clone(&self.fabric), nic, device)))
    }
}

/// An error as a system gives it.
fn refused(what: &str, reason: &str) -> NicError {
    NicError::Refused { what: what.into(), reason: reason.into(), errno: Some(libc::EINVAL) }
}
