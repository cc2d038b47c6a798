//! The first messages of a connection: a pattern through every slot, both ways.

use super::settings::VerbsSettings;
use headlong_comm::topology::Rank;
use headlong_comm::transport::Transport;
use headlong_comm::transport::paths::{Head, Path, PathError, Progress};
use std::time::{Duration, Instant};

/// The step number that no operation has.
const PROBE: u64 = u64::MAX;
/// Between two looks, once they have been in vain for a while.
const NAP: Duration = Duration::from_micros(50);

#[derive(Default)]
struct Probe {
    sent: u32,
    received: u32,
    sent_at: usize,
    received_at: usize,
}

/// Sends a pattern of a slot's length through every slot of every path, and compares what comes.
pub(super) fn probe(
    control: &dyn Transport,
    settings: &VerbsSettings,
    paths: &mut [(Rank, Box<dyn Path>)],
) -> Result<(), String> {
    let me = control.rank();
    let begin = Instant::now();
    let turns = settings.slots as u32 + 1;
    let mut probes: Vec<Probe> = paths.iter().map(|_| Probe::default()).collect();
    let mut room = vec![0; settings.slot_bytes];
    loop {
        let mut missing = None;
        for ((peer, path), probe) in paths.iter_mut().zip(&mut probes) {
            let moved = probe.advance(&mut **path, (me, *peer), turns, &mut room);
            if !moved.map_err(|error| describe(*peer, error))? {
                missing = Some(*peer);
            }
        }
        let Some(peer) = missing else { return Ok(()) };
        control.check().map_err(|error| error.to_string())?;
        if begin.elapsed() > settings.patience {
            return Err(format!(
                "nothing has come from {peer} within {:.1} s although it is connected: a firewall \
                 (RoCE v2 is UDP port 4791), another partition key, or an address that is not \
                 routed",
                settings.patience.as_secs_f64()
            ));
        }
        std::thread::sleep(NAP);
    }
}

fn describe(peer: Rank, error: PathError) -> String {
    match error {
        PathError::Lost(reason) | PathError::Failed(reason) => reason,
        PathError::Mismatch(head) => format!("{peer} sent {head} instead of the pattern"),
    }
}

impl Probe {
    fn advance(
        &mut self,
        path: &mut dyn Path,
        (me, peer): (Rank, Rank),
        turns: u32,
        room: &mut [u8],
    ) -> Result<bool, PathError> {
        let length = room.len() as u64;
        let head = |step| Head { epoch: 0, sequence: PROBE, step, fingerprint: 0, length };
        while self.sent < turns {
            room.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(me, self.sent, at));
            if path.send(&head(self.sent), room, &mut self.sent_at)? != Progress::Done {
                break;
            }
            (self.sent, self.sent_at) = (self.sent + 1, 0);
        }
        while self.received < turns {
            room.fill(0);
            if path.receive(&head(self.received), room, &mut self.received_at)? != Progress::Done {
                break;
            }
            let turn = self.received;
            if !room.iter().enumerate().all(|(at, byte)| *byte == pattern(peer, turn, at)) {
                return Err(PathError::Failed(format!(
                    "the pattern of {peer} arrived with other bytes"
                )));
            }
            (self.received, self.received_at) = (turn + 1, 0);
        }
        Ok(self.sent == turns && self.received == turns)
    }
}

fn pattern(from: Rank, turn: u32, at: usize) -> u8 {
    (from.0 as u32 * 37 + turn * 101 + at as u32 * 7) as u8
}
