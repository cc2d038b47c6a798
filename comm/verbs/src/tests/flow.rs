//! Messages of any length, any number of them in each direction, in any order of looks.

use super::super::fake::NetworkModel;
use super::super::settings::{Signal, VerbsSettings};
use super::faults::Broken;
use super::{connected, fabric, settings};
use headlong_comm::testing::sim::Random;
use headlong_comm::transport::paths::{Head, Path, PathError, Progress};

/// Looks after which a run counts as stuck.
const PATIENCE: u64 = 200_000;

/// One direction of one path: what is to pass, and how far it is.
struct Way {
    from: usize,
    to: usize,
    lengths: Vec<usize>,
    sent: usize,
    sent_at: usize,
    received: usize,
    received_at: usize,
    room: Vec<u8>,
}

impl Way {
    fn new(from: usize, to: usize, random: &mut Random, slot: usize) -> Self {
        // Note: one direction may be silent while the other sends many: counts must find their own
        // way back.
        let messages = if random.chance(30) { 0 } else { 1 + random.below(40) };
        let lengths = (0..messages).map(|_| length(random, slot)).collect();
        Self {
            from,
            to,
            lengths,
            sent: 0,
            sent_at: 0,
            received: 0,
            received_at: 0,
            room: Vec::new(),
        }
    }

    fn is_done(&self) -> bool {
        self.received == self.lengths.len()
    }

    fn head(&self, number: usize) -> Head {
        let length = self.lengths[number] as u64;
        Head { epoch: 7, sequence: number as u64, step: self.from as u32, fingerprint: 5, length }
    }

    fn bytes(&self, number: usize) -> Vec<u8> {
        let (from, to) = (self.from * 31, self.to * 7);
        (0..self.lengths[number]).map(|at| (from + to + number * 101 + at * 13) as u8).collect()
    }

    fn send(&mut self, path: &mut dyn Path) -> Result<(), PathError> {
        if self.sent == self.lengths.len() {
            return Ok(());
        }
        let (head, bytes) = (self.head(self.sent), self.bytes(self.sent));
        if path.send(&head, &bytes, &mut self.sent_at)? == Progress::Done {
            (self.sent, self.sent_at) = (self.sent + 1, 0);
        }
        Ok(())
    }

    fn receive(&mut self, path: &mut dyn Path, random: &mut Random) -> Result<(), String> {
        if self.is_done() {
            return Ok(());
        }
        let number = self.received;
        let (head, expected) = (self.head(number), self.bytes(number));
        let shown =
            expected.len() as u64 <= path.shows() && self.received_at == 0 && random.chance(50);
        let done = if shown {
            let found = path.peek(&head).map_err(|error| format!("{error:?}"))?.map(<[u8]>::to_vec);
            if let Some(found) = &found {
                self.room.clone_from(found);
                path.release();
            }
            found.is_some()
        } else {
            self.room.resize(expected.len(), 0);
            let progress = path.receive(&head, &mut self.room, &mut self.received_at);
            progress.map_err(|error| format!("{error:?}"))? == Progress::Done
        };
        if !done {
            return Ok(());
        }
        (self.received, self.received_at) = (number + 1, 0);
        match self.room == expected {
            true => Ok(()),
            false => {
                Err(format!("message {number} of {} bytes came with other bytes", expected.len()))
            }
        }
    }
}

/// Nothing, odd, one slot, a byte more, several slots.
fn length(random: &mut Random, slot: usize) -> usize {
    let slot = slot as u64;
    let choices = [0, 1, random.below(slot), slot - 1, slot, slot + 1, random.below(6 * slot)];
    choices[random.below(choices.len() as u64) as usize] as usize
}

/// A run of a seed: what went wrong, if anything did.
pub(super) fn run(
    seed: u64,
    model: NetworkModel,
    settings: &VerbsSettings,
    broken: Option<Broken>,
) -> Result<(), String> {
    let mut random = Random::new(seed);
    let ranks = 2 + random.below(2) as usize;
    let fabric = fabric(seed, model, ranks);
    let path_fault = match broken {
        Some(Broken::Path(fault)) => Some(fault),
        Some(Broken::Nic(fault)) => {
            fabric.inject(fault);
            None
        }
        None => None,
    };
    let mut paths = connected(&fabric, ranks, settings, path_fault);
    let pairs = (0..ranks)
        .flat_map(|from| (0..ranks).map(move |to| (from, to)))
        .filter(|(from, to)| from != to);
    let mut ways: Vec<Way> =
        pairs.map(|(from, to)| Way::new(from, to, &mut random, settings.slot_bytes)).collect();
    for _ in 0..PATIENCE {
        let way = random.below(ways.len() as u64) as usize;
        let way = &mut ways[way];
        // A rank may look at one end for long before the other does anything.
        for _ in 0..=random.below(4) {
            let (path, is_sender) = match random.chance(50) {
                true => (&mut paths[way.from][way.to], true),
                false => (&mut paths[way.to][way.from], false),
            };
            let path = &mut **path.as_mut().expect("a path to another rank");
            match is_sender {
                true => way.send(path).map_err(|error| format!("{error:?}"))?,
                false => way.receive(path, &mut random)?,
            }
        }
        if ways.iter().all(Way::is_done) {
            break;
        }
    }
    if let Some(way) = ways.iter().find(|way| !way.is_done()) {
        let Way { from, to, received, lengths, .. } = way;
        return Err(format!(
            "stuck: rank {to} has {received} of {} messages of rank {from}",
            lengths.len()
        ));
    }
    quiet(&mut paths)?;
    drop(paths);
    fabric.violations().first().map_or(Ok(()), |violation| Err(violation.clone()))
}

/// Everything leaves, and nothing stays behind.
fn quiet(paths: &mut [Vec<Option<Box<dyn Path>>>]) -> Result<(), String> {
    for _ in 0..PATIENCE {
        let mut flushed = paths.iter_mut().flatten().flatten().map(|path| path.flush());
        if flushed
            .try_fold(true, |all, one| Ok(all & (one? == Progress::Done)))
            .map_err(|error: PathError| format!("{error:?}"))?
        {
            return Ok(());
        }
    }
    Err("stuck: something that was sent never completes".into())
}

#[test]
fn all_messages_pass_over_any_network() {
    for seed in 0..60 {
        for signal in [Signal::Immediate, Signal::Atomic] {
            for (model, slots) in
                [(NetworkModel::CALM, 3), (NetworkModel::ROUGH, 3), (NetworkModel::ROUGH, 2)]
            {
                let settings = VerbsSettings { slots, ..settings(signal) };
                run(seed, model, &settings, None).unwrap_or_else(|error| {
                    panic!("seed {seed}, {signal:?}, {model:?}, {slots} slots: {error}")
                });
            }
        }
    }
}
