//! The rail's protocol over the fabric of this process, driven by seeds in one thread: the test
//! writes triggers as a device does, and each rule of ordering is shown to be needed.

use super::page::{Page, Trigger};
use super::proxy::{Leg, MOST_BYTES_IN_ORDER, Peer, Proxy, ProxyNic, Shared, Slots};
use super::read_back::ReadBack;
use super::{RECEIVES, connection, queue_pair_options};
use crate::fake::{Fabric, Fault, NetworkModel};
use crate::nic::{Access, Endpoint, Memory, Nic, QueuePair, Receive, Region, Remote};
use crate::watch::Watch;
use crate::{Choice, VerbsSettings, available};
use headlong_comm::testing::sim::Random;
use headlong_comm::topology::Rank;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

/// The most bytes of a strip: more than go as one message.
const STRIP: usize = MOST_BYTES_IN_ORDER as usize + 64;
/// Exchanges of a run: several times around the slots.
const EXCHANGES: u64 = 24;
/// Looks after which a run counts as stuck.
const PATIENCE: u64 = 100_000;

/// How a run is set up.
#[derive(Clone, Copy)]
struct Case {
    nodes: usize,
    slots: usize,
    /// The slots are a device's memory.
    of_device: bool,
    fault: Option<Fault>,
}

impl Case {
    fn new() -> Self {
        Self { nodes: 3, slots: 3, of_device: false, fault: None }
    }

    fn slot_bytes(&self) -> usize {
        STRIP * self.nodes
    }
}

/// One side that is not connected yet.
struct Opened {
    nic: Arc<dyn Nic>,
    choice: Choice,
    settings: VerbsSettings,
    queue: Arc<dyn crate::nic::CompletionQueue>,
    /// By node; this node's own reads back.
    pairs: Vec<Box<dyn QueuePair>>,
    region: Box<dyn Region>,
    memory: Vec<u64>,
}

/// One node: its proxy, its slots to send from and then to receive in, and how far it is.
///
/// Note: fields end in this order.
struct Node {
    proxy: Proxy,
    shared: Arc<Shared>,
    _region: Box<dyn Region>,
    memory: Vec<u64>,
    posted: u64,
    seen: u64,
}

fn open(fabric: &Arc<Fabric>, case: &Case, me: usize) -> Opened {
    let settings = VerbsSettings { retries: 1, ..VerbsSettings::default() };
    let provider = fabric.provider(me);
    let choice = available(&*provider, &settings, 0).expect("a NIC");
    let nic = provider.open(&choice.device).expect("a NIC");
    let mut memory = vec![0_u64; 2 * case.slots * case.slot_bytes() / 8];
    let (start, length) = (memory.as_mut_ptr().cast::<u8>(), memory.len() * 8);
    let device = File::open("/dev/null").expect("a descriptor");
    let place = match case.of_device {
        true => Memory::Dmabuf { fd: device.as_fd(), offset: 0, length, address: start as u64 },
        false => Memory::Host { start, length },
    };
    let access =
        Access { local_write: true, remote_write: true, remote_read: true, ..Access::default() };
    // SAFETY: the node keeps its memory as long as its region, and the run keeps the contract but
    // for injected faults, whose races are those of the NICs only, under the fabric's lock.
    let region = unsafe { nic.register(place, access) }.expect("registered");
    let queue = nic.completion_queue(256).expect("a queue");
    let pair = |_| {
        let mut pair = nic.queue_pair(&queue_pair_options(&queue)).expect("a queue pair");
        pair.init(&connection(&settings, &choice, 4096)).expect("initialised");
        pair.post_receives(&[Receive { id: 0, segment: None }; RECEIVES]).expect("receives");
        pair
    };
    let pairs = (0..case.nodes).map(pair).collect();
    Opened { nic, choice, settings, queue, pairs, region, memory }
}

impl Opened {
    fn endpoint(&self, of: usize) -> Endpoint {
        let gid = self.choice.gid.as_ref().expect("RoCE").bytes;
        Endpoint { lid: 0, gid, queue_pair: self.pairs[of].number(), first_packet: 1 }
    }

    /// Connects to everybody; `ends` are theirs for this node, `slots` where they receive.
    fn connect(self, case: &Case, me: usize, ends: &[Endpoint], slots: &[Remote]) -> Node {
        let with = connection(&self.settings, &self.choice, 4096);
        let (mut peers, mut own) = (Vec::new(), None);
        for (node, mut pair) in self.pairs.into_iter().enumerate() {
            pair.ready_to_receive(&with, &ends[node]).expect("connected");
            pair.ready_to_send(&with, 1).expect("connected");
            match node == me {
                true => own = Some(pair),
                false => peers.push(Peer {
                    rank: Rank(node),
                    pair,
                    slots: slots[node],
                    on_the_way: VecDeque::new(),
                }),
            }
        }
        let own = own.expect("one of them is this node's own");
        let read_back =
            case.of_device.then(|| ReadBack::new(&*self.nic, own, &*self.region).expect("a read"));
        let shared = Arc::new(Shared::new(Page::plain(case.nodes - 1)));
        let legs = others(case, me).enumerate().map(|(peer, node)| Leg {
            peer,
            offset: node * STRIP,
            there: me * STRIP,
            bytes: STRIP,
        });
        assert_eq!(shared.operation(legs), 0);
        let slots = Slots {
            address: self.region.address(),
            key: self.region.local_key(),
            slot_bytes: case.slot_bytes(),
            num_slots: case.slots,
        };
        let watch = Watch::new(1, self.settings.gives_up_after());
        let nic = ProxyNic { read_back, queue: self.queue, nic: self.nic, watch };
        let proxy = Proxy::new(Arc::clone(&shared), peers, slots, nic);
        Node { proxy, shared, _region: self.region, memory: self.memory, posted: 0, seen: 0 }
    }
}

fn others(case: &Case, me: usize) -> impl Iterator<Item = usize> + Clone {
    (0..case.nodes).filter(move |&node| node != me)
}

fn connected(fabric: &Arc<Fabric>, case: &Case) -> Vec<Node> {
    let opened: Vec<Opened> = (0..case.nodes).map(|me| open(fabric, case, me)).collect();
    let receive_at = (case.slots * case.slot_bytes()) as u64;
    let remote = |opened: &Opened| Remote {
        address: opened.region.address() + receive_at,
        key: opened.region.remote_key(),
    };
    let slots: Vec<Remote> = opened.iter().map(remote).collect();
    let ends: Vec<Vec<Endpoint>> = (0..case.nodes)
        .map(|me| opened.iter().map(|opened| opened.endpoint(me)).collect())
        .collect();
    let pairs = opened.into_iter().zip(&ends).enumerate();
    pairs.map(|(me, (opened, ends))| opened.connect(case, me, ends, &slots)).collect()
}

fn length(sequence: u64, from: usize, to: usize) -> usize {
    let mut random = Random::new(sequence * 100 + (from * 10 + to) as u64);
    match random.below(12) {
        0..5 => random.between(1, 256) as usize,
        5..10 => 256,
        10 => MOST_BYTES_IN_ORDER as usize,
        _ => STRIP,
    }
}

fn byte(sequence: u64, from: usize, to: usize, at: usize) -> u8 {
    (sequence as usize * 53 + from * 17 + to * 5 + at * 3) as u8 | 1
}

impl Node {
    fn bytes(&mut self) -> &mut [u8] {
        zerocopy::IntoBytes::as_mut_bytes(&mut self.memory[..])
    }

    fn write(&mut self, at: usize, payload: impl Iterator<Item = u8>) {
        let strip = &mut self.bytes()[at..at + STRIP];
        strip.iter_mut().zip(payload).for_each(|(place, byte)| *place = byte);
    }

    /// What a device's stream does: begins the next exchange once the one before has come, and its
    /// slot may be written.
    fn begin(&mut self, case: &Case, me: usize) {
        let next = self.posted + 1;
        let may_write =
            next <= case.slots as u64 || self.shared.page.sent() >= next - case.slots as u64;
        if self.posted == EXCHANGES || self.seen < self.posted || !may_write {
            return;
        }
        let slot = (next % case.slots as u64) as usize;
        let lengths = others(case, me).map(|node| {
            let length = length(next, me, node);
            let payload = (0..length).map(|at| byte(next, me, node, at));
            self.write(slot * case.slot_bytes() + node * STRIP, payload);
            length as u32
        });
        let lengths: Vec<u32> = lengths.collect();
        self.shared.page.pull(next, Trigger { operation: 0, slot }, &lengths);
        self.posted = next;
    }

    /// Compares what has come, once everybody's strip has.
    fn end(&mut self, case: &Case, me: usize) -> Result<(), String> {
        let sequence = self.seen + 1;
        let has_come = |peer| self.shared.page.arrived(peer) >= sequence;
        if self.posted < sequence || !(0..case.nodes - 1).all(has_come) {
            return Ok(());
        }
        let slot = case.slots + (sequence % case.slots as u64) as usize;
        for node in others(case, me) {
            let start = slot * case.slot_bytes() + node * STRIP;
            let length = length(sequence, node, me);
            let found = &self.bytes()[start..start + length];
            if !found.iter().enumerate().all(|(at, found)| *found == byte(sequence, node, me, at)) {
                return Err(format!(
                    "exchange {sequence}: node {me} has other bytes of node {node}"
                ));
            }
        }
        self.seen = sequence;
        Ok(())
    }
}

/// A run of a seed: what went wrong, if anything did.
fn run(seed: u64, case: &Case) -> Result<(), String> {
    let fabric = Fabric::rails(seed, NetworkModel::ROUGH, case.nodes, 1);
    case.fault.into_iter().for_each(|fault| fabric.inject(fault));
    let mut nodes = connected(&fabric, case);
    let mut random = Random::new(seed);
    for _ in 0..PATIENCE {
        let me = random.below(case.nodes as u64) as usize;
        match random.below(3) {
            0 => nodes[me].begin(case, me),
            1 => nodes[me].end(case, me)?,
            _ => {
                nodes[me].proxy.look()?;
            }
        }
        if nodes.iter().all(|node| node.seen == EXCHANGES) {
            break;
        }
    }
    let stuck = nodes.iter().any(|node| node.seen < EXCHANGES);
    drop(nodes);
    match fabric.violations().first() {
        Some(violation) => Err(violation.clone()),
        None if stuck => Err("stuck".to_owned()),
        None => Ok(()),
    }
}

const SEEDS: std::ops::Range<u64> = 0..25;

/// What some seed finds out.
fn found(case: Case) -> String {
    SEEDS
        .into_iter()
        .find_map(|seed| run(seed, &case).err())
        .unwrap_or_else(|| "no seed finds it".into())
}

#[test]
fn every_strip_arrives_in_two_slots_or_three_and_one_is_not_enough() {
    for seed in SEEDS {
        for (slots, of_device) in [(2, false), (3, false), (2, true), (3, true)] {
            let case = Case { slots, of_device, ..Case::new() };
            run(seed, &case)
                .unwrap_or_else(|error| panic!("seed {seed}, {slots} slots, {of_device}: {error}"));
        }
    }
    let text = found(Case { slots: 1, ..Case::new() });
    assert!(text.contains("other bytes"), "{text}");
}

#[test]
fn every_broken_rule_is_found_out() {
    let cases = [
        (Fault::SignalFirst, false, "other bytes"),
        (Fault::SignalElsewhere, false, "other bytes"),
        (Fault::SkipTheFlush, true, "other bytes"),
        (Fault::ReuseBeforeCompletion, false, "written before its completion"),
        (Fault::ForgetReceives, false, "stuck"),
    ];
    for (fault, of_device, expected) in cases {
        let text = found(Case { of_device, slots: 2, fault: Some(fault), ..Case::new() });
        assert!(text.contains(expected), "{fault:?}: {text}");
    }
}

#[test]
fn a_strip_that_claims_more_than_its_room_writes_nothing_behind_it() {
    let case = Case { nodes: 2, ..Case::new() };
    let fabric = Fabric::rails(1, NetworkModel::CALM, 2, 1);
    let mut nodes = connected(&fabric, &case);
    nodes[0].write(case.slot_bytes() + STRIP, std::iter::repeat(9));
    nodes[0].shared.page.pull(1, Trigger { operation: 0, slot: 1 }, &[2 * STRIP as u32]);
    for _ in 0..100 {
        nodes.iter_mut().for_each(|node| assert!(node.proxy.look().is_ok()));
    }
    assert_eq!((nodes[1].shared.page.arrived(0), nodes[0].shared.page.sent()), (1, 1));
    let strip = (case.slots + 1) * case.slot_bytes();
    let bytes = nodes[1].bytes();
    assert!(bytes[strip..strip + STRIP].iter().all(|byte| *byte == 9));
    assert!(bytes[strip + STRIP..].iter().chain(&bytes[..strip]).all(|byte| *byte == 0));
}

#[test]
fn a_port_that_comes_back_in_time_costs_looks_alone() {
    let case = Case { nodes: 2, ..Case::new() };
    let down = |looks: usize| {
        let fabric = Fabric::rails(1, NetworkModel::CALM, 2, 1);
        let mut nodes = connected(&fabric, &case);
        fabric.port_down(1, "fake0", 1);
        nodes[0].begin(&case, 0);
        for _ in 0..looks {
            nodes[0].proxy.look()?;
        }
        fabric.port_up(1, "fake0", 1);
        for _ in 0..looks {
            nodes.iter_mut().try_for_each(|node| node.proxy.look().map(drop))?;
        }
        Ok::<_, String>(nodes[1].shared.page.arrived(0))
    };
    assert_eq!(down(20), Ok(1));
    let error = down(10_000).expect_err("the NIC has given up");
    assert!(error.contains("rank 1") && error.contains("no answer"), "{error}");
}

#[test]
fn a_lost_node_is_named() {
    let case = Case { nodes: 2, ..Case::new() };
    let fabric = Fabric::rails(1, NetworkModel::CALM, 2, 1);
    let mut nodes = connected(&fabric, &case);
    fabric.kill_node(1);
    nodes[0].begin(&case, 0);
    let error = (0..10_000).find_map(|_| nodes[0].proxy.look().err()).expect("no answer");
    assert!(error.contains("rank 1") && error.contains("no answer"), "{error}");
}
