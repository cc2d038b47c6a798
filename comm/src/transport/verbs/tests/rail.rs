//! Rails: symmetric exchanges without credits, over memory of the processor and of a device.

use super::super::fake::{Fabric, Weather};
use super::super::mistake::Mistake;
use super::super::nic::Memory;
use super::super::rail::{Area, Arrival, Piece, Rail, RailPlan, Strip};
use super::super::settings::{Signal, VerbsSettings};
use super::{fabric, settings};
use crate::error::CommError;
use crate::topology::{Rank, Topology};
use crate::transport::local::LocalTransport;
use crate::transport::paths::PathError;
use crate::transport::sim::Random;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of one of the two pieces of a strip.
const PIECE: usize = 200;
const STRIP: usize = 2 * PIECE;
/// Exchanges of a run.
const EXCHANGES: u64 = 24;
/// Looks after which a run counts as stuck.
const PATIENCE: u64 = 100_000;

/// How a run is set up.
#[derive(Clone)]
struct Case {
    nodes: usize,
    slots: usize,
    /// The memory is a device's.
    device: bool,
    settings: VerbsSettings,
}

impl Case {
    fn new() -> Self {
        Self { nodes: 3, slots: 3, device: false, settings: settings(Signal::Immediate) }
    }

    /// Bytes of one slot: a strip for each node.
    fn slot(&self) -> usize {
        STRIP * self.nodes
    }
}

/// One node: memory to send from, to receive in, and how far it is.
struct Node {
    rail: Rail,
    /// Slots to send from, then slots to receive in. Words, so that it is aligned.
    memory: Vec<u64>,
    /// Exchanges posted, and which of the next one's strips have come.
    posted: u64,
    seen: u64,
    come: Vec<Arrival>,
}

impl Node {
    fn bytes(&mut self) -> &mut [u8] {
        zerocopy::IntoBytes::as_mut_bytes(&mut self.memory[..])
    }
}

fn lengths(sequence: u64, from: usize, to: usize) -> [u32; 2] {
    let mut random = Random::new(sequence * 100 + (from * 10 + to) as u64);
    [0, 1].map(|_| [0, random.between(1, PIECE as u64), PIECE as u64][random.below(3) as usize] as u32)
}

fn byte(sequence: u64, from: usize, to: usize, at: usize) -> u8 {
    (sequence as usize * 53 + from * 17 + to * 5 + at * 3) as u8 | 1
}

fn strips(case: &Case, me: usize) -> Vec<Strip> {
    let slot = case.slot();
    let strip = |peer: usize| Strip {
        peer: Rank(peer),
        tag: 9,
        from: 0,
        pieces: [0, PIECE].map(|piece| Piece { offset: peer * STRIP + piece, capacity: PIECE }).to_vec(),
        stride: slot,
        to: (0, case.slots * slot + me * STRIP),
        to_stride: slot,
        flag: None,
    };
    (0..case.nodes).filter(|&peer| peer != me).map(strip).collect()
}

fn nodes(fabric: &Arc<Fabric>, case: &Case) -> Result<Vec<Node>, CommError> {
    let topology = Topology::from_node_sizes(&vec![1; case.nodes]);
    let world = LocalTransport::world(&topology, Duration::from_secs(20));
    let device = File::open("/dev/null").expect("a descriptor");
    let node = |me: usize, control: LocalTransport| -> Result<Node, CommError> {
        let mut memory = vec![0u64; 2 * case.slots * case.slot() / 8];
        let (start, length) = (memory.as_mut_ptr().cast::<u8>(), memory.len() * 8);
        let memory_of = match case.device {
            true => Memory::Dmabuf { fd: device.as_fd(), offset: 0, length, address: start as u64 },
            false => Memory::Host { start, length },
        };
        let plan = RailPlan {
            areas: vec![Area { memory: memory_of, is_flags: false }],
            strips: strips(case, me),
            slots: case.slots,
            num_incoming: case.nodes - 1,
            read_back: case.device.then_some(0),
        };
        // SAFETY: the node keeps its memory as long as its rail, and the run keeps the contract but for its mistakes, whose
        // races are those of the cards alone, under the fabric's lock.
        let rail = unsafe { Rail::connect(&control, &case.settings, &*fabric.provider(me), plan) }?;
        crate::transport::Transport::close(&control)?;
        Ok(Node { rail, memory, posted: 0, seen: 0, come: Vec::new() })
    };
    std::thread::scope(|scope| {
        let nodes: Vec<_> = world
            .into_iter()
            .enumerate()
            .map(|(me, control)| scope.spawn(move || node(me, control)))
            .collect();
        nodes.into_iter().map(|node| node.join().expect("no panic")).collect()
    })
}

impl Node {
    /// Posts the next exchange if its slots are free and the one before has come.
    fn begin(&mut self, case: &Case, me: usize) -> Result<(), PathError> {
        let (sequence, slot) = (self.posted, (self.posted % case.slots as u64) as usize);
        let others = (0..case.nodes).filter(|&peer| peer != me);
        let free = (0..case.nodes - 1).all(|strip| self.rail.is_free(strip, slot));
        if self.posted == EXCHANGES || self.posted > self.seen || !free {
            return Ok(());
        }
        for (strip, peer) in others.enumerate() {
            let lengths = lengths(sequence, me, peer);
            for (piece, &length) in lengths.iter().enumerate() {
                let start = slot * case.slot() + peer * STRIP + piece * PIECE;
                let place = &mut self.bytes()[start..start + length as usize];
                place
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, out)| *out = byte(sequence, me, peer, piece + at));
            }
            self.rail.post(strip, slot, sequence, &lengths)?;
        }
        self.posted += 1;
        Ok(())
    }

    /// Takes what has come; once everything of an exchange has, compares it.
    fn end(&mut self, case: &Case, me: usize) -> Result<(), String> {
        self.rail.poll(&mut self.come).map_err(|error| format!("{error:?}"))?;
        let sequence = self.seen;
        let of_this = |arrival: &&Arrival| u64::from(arrival.sequence) == sequence && arrival.tag == 9;
        if self.posted == sequence || self.come.iter().filter(of_this).count() < case.nodes - 1 {
            return Ok(());
        }
        self.come.retain(|arrival| u64::from(arrival.sequence) != sequence);
        let slot = (sequence % case.slots as u64) as usize;
        for peer in (0..case.nodes).filter(|&peer| peer != me) {
            let mut start = (case.slots + slot) * case.slot() + peer * STRIP;
            for (piece, length) in lengths(sequence, peer, me).into_iter().enumerate() {
                let length = length as usize;
                let found = &self.bytes()[start..start + length];
                if !(0..length).all(|at| found[at] == byte(sequence, peer, me, piece + at)) {
                    return Err(format!("exchange {sequence}: node {me} has other bytes of node {peer}"));
                }
                start += length;
            }
        }
        self.seen += 1;
        Ok(())
    }
}

fn run(seed: u64, case: &Case) -> Result<(), String> {
    let fabric = fabric(seed, Weather::ROUGH, case.nodes);
    let mut nodes = nodes(&fabric, case).map_err(|error| error.to_string())?;
    let mut random = Random::new(seed);
    for _ in 0..PATIENCE {
        let me = random.below(case.nodes as u64) as usize;
        let node = &mut nodes[me];
        match random.chance(50) {
            true => node.begin(case, me).map_err(|error| format!("{error:?}"))?,
            false => node.end(case, me)?,
        }
        if nodes.iter().all(|node| node.seen == EXCHANGES) {
            break;
        }
    }
    if nodes.iter().any(|node| node.seen < EXCHANGES) {
        return Err("stuck".into());
    }
    // Note: the rail ends before its memory.
    nodes.into_iter().for_each(|Node { rail, memory, .. }| {
        drop(rail);
        drop(memory);
    });
    fabric.violations().first().map_or(Ok(()), |violation| Err(violation.clone()))
}

#[test]
fn two_slots_are_enough_and_three_do_not_wait() {
    for seed in 0..25 {
        for slots in [2, 3] {
            let case = Case { slots, ..Case::new() };
            run(seed, &case).unwrap_or_else(|error| panic!("seed {seed}, {slots} slots: {error}"));
        }
    }
    let case = Case { slots: 1, ..Case::new() };
    let found = (0..25).find_map(|seed| run(seed, &case).err());
    assert!(found.is_some_and(|error| error.contains("other bytes")), "one slot is not enough");
}

#[test]
fn a_device_is_told_after_its_memory_was_read_back() {
    let case = Case { device: true, ..Case::new() };
    for seed in 0..25 {
        run(seed, &case).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let settings = VerbsSettings { mistake: Some(Mistake::SkipTheFlush), ..case.settings.clone() };
    let case = Case { settings, ..case };
    let found = (0..25).find_map(|seed| run(seed, &case).err());
    assert!(found.is_some_and(|error| error.contains("other bytes")), "no seed finds the missing read");
}

#[test]
fn what_does_not_fit_is_refused_and_a_lost_node_is_named() {
    let case = Case { nodes: 2, ..Case::new() };
    let fabric = fabric(1, Weather::CALM, 2);
    let mut nodes = nodes(&fabric, &case).expect("connected");
    let too_long = nodes[0].rail.post(0, 0, 0, &[PIECE as u32 + 1, 0]);
    assert_eq!(too_long, Err(PathError::TooLong { capacity: PIECE as u64 }));
    fabric.kill_node(1);
    nodes[0].rail.post(0, 0, 0, &[1, 1]).expect("posted");
    let error = (0..10_000).find_map(|_| nodes[0].rail.poll(&mut Vec::new()).err()).expect("no answer");
    let PathError::Lost(text) = &error else { panic!("{error:?}") };
    assert!(text.contains("rank 1") && text.contains("no answer"), "{text}");
    assert_eq!(nodes[0].rail.post(0, 1, 1, &[1, 1]), Err(error), "the first error stays");
}
