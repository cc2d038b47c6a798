//! Plans of all-to-all exchanges as pure data: a rank's steps follow from the topology and the
//! counts alone, and can be tested without any transport.
//!
//! Lengths and places are counted in elements; every rank's part of `Send` and `Recv` is packed by
//! rank, rising.

pub mod flat;
pub mod hierarchical;

use crate::topology::Rank;
use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// What the caller sends.
    Send,
    /// What this rank carries for others.
    Staged,
    /// What the caller receives.
    Recv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub place: Place,
    pub at: usize,
    pub len: usize,
}

/// What goes to or comes from one peer in a step: its pieces, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub peer: Rank,
    pub len: usize,
    pieces: Range<usize>,
}

#[derive(Debug, Clone, Default)]
struct Step {
    outgoing: Range<usize>,
    incoming: Range<usize>,
}

/// One rank's steps. Rebuilt for other counts it takes no new memory.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    steps: Vec<Step>,
    messages: Vec<Message>,
    pieces: Vec<Piece>,
    pub staged: usize,
    /// Where each rank's part begins in `Send` and in `Recv`, and where the next piece of what each
    /// rank of the node has given lies in `Staged`.
    starts: [Vec<usize>; 2],
    cursors: Vec<usize>,
    /// The rank's part for itself: its place in `Send`, in `Recv`, its length.
    pub own: (usize, usize, usize),
}

impl Plan {
    pub fn num_steps(&self) -> usize {
        self.steps.len()
    }

    /// Messages that leave in a step. They read `Send` and `Staged`.
    pub fn outgoing(&self, step: usize) -> &[Message] {
        &self.messages[self.steps[step].outgoing.clone()]
    }

    /// Messages that come in a step, by the place of their first element. They write `Staged` or
    /// `Recv`.
    pub fn incoming(&self, step: usize) -> &[Message] {
        &self.messages[self.steps[step].incoming.clone()]
    }

    /// The pieces of a message of this plan, in the order in which they follow each other in it.
    /// None is empty, and none could be joined with the one before.
    pub fn pieces(&self, message: &Message) -> &[Piece] {
        &self.pieces[message.pieces.clone()]
    }

    fn clear(&mut self) {
        self.steps.clear();
        self.messages.clear();
        self.pieces.clear();
        (self.staged, self.own) = (0, (0, 0, 0));
    }

    fn begin_step(&mut self) {
        let here = self.messages.len();
        self.steps.push(Step { outgoing: here..here, incoming: here..here });
    }

    fn begin_message(&mut self, peer: Rank) {
        let here = self.pieces.len();
        self.messages.push(Message { peer, len: 0, pieces: here..here });
    }

    fn piece(&mut self, place: Place, at: usize, len: usize) {
        let message = self.messages.last_mut().expect("a message has begun");
        if len == 0 {
            return;
        }
        message.len += len;
        if let Some(last) = self.pieces[message.pieces.start..].last_mut()
            && last.place == place
            && last.at + last.len == at
        {
            last.len += len;
            return;
        }
        self.pieces.push(Piece { place, at, len });
        message.pieces.end += 1;
    }

    /// What was added since the step began leaves.
    fn end_outgoing(&mut self) {
        let here = self.messages.len();
        let step = self.steps.last_mut().expect("a step has begun");
        (step.outgoing.end, step.incoming) = (here, here..here);
    }

    /// What was added since [`Plan::end_outgoing`] comes.
    fn end_incoming(&mut self) {
        let step = self.steps.last_mut().expect("a step has begun");
        step.incoming.end = self.messages.len();
        let pieces = &self.pieces;
        let first =
            |message: &Message| pieces.get(message.pieces.start).map_or(0, |piece| piece.at);
        self.messages[step.incoming.clone()]
            .sort_by_key(|message| (message.len > 0, first(message)));
    }
}

fn starts(counts: &[usize]) -> impl Iterator<Item = usize> + '_ {
    counts.iter().scan(0, |at, count| {
        let start = *at;
        *at += count;
        Some(start)
    })
}

/// Where the part of `rank` begins.
fn start_of(counts: &[usize], rank: Rank) -> usize {
    counts[..rank.0].iter().sum()
}

#[cfg(test)]
pub(crate) mod oracle {
    use super::*;

    /// An element that says where it comes from, where it goes, and which one it is.
    pub type Tagged = (usize, usize, usize);

    /// Carries out the plans of all ranks step by step; what every rank has received. `seen` hears
    /// of every message.
    pub fn carry_out(
        counts: &[Vec<usize>],
        plans: &[Plan],
        mut seen: impl FnMut(usize, Rank, Rank, &[Tagged]),
    ) -> Vec<Vec<Tagged>> {
        let ranks = 0..counts.len();
        let tag = |from: usize| {
            ranks.clone().flat_map(move |to| (0..counts[from][to]).map(move |i| (from, to, i)))
        };
        let send: Vec<Vec<Tagged>> = ranks.clone().map(|from| tag(from).collect()).collect();
        let nothing = (usize::MAX, 0, 0);
        let received = |to: usize| counts.iter().map(|row| row[to]).sum();
        let mut recv: Vec<Vec<Tagged>> =
            ranks.clone().map(|to| vec![nothing; received(to)]).collect();
        let mut staged: Vec<Vec<Tagged>> =
            plans.iter().map(|plan| vec![nothing; plan.staged]).collect();
        for step in 0..plans.iter().map(Plan::num_steps).max().unwrap_or(0) {
            let mut wire = std::collections::BTreeMap::new();
            for from in ranks.clone() {
                for message in plans[from].outgoing(step) {
                    let read = |piece: &Piece| match piece.place {
                        Place::Send => send[from][piece.at..][..piece.len].to_vec(),
                        Place::Staged => staged[from][piece.at..][..piece.len].to_vec(),
                        Place::Recv => panic!("a message reads what the caller receives"),
                    };
                    let content: Vec<Tagged> =
                        plans[from].pieces(message).iter().flat_map(read).collect();
                    seen(step, Rank(from), message.peer, &content);
                    assert_eq!(content.len(), message.len);
                    assert!(
                        wire.insert((from, message.peer.0), content).is_none(),
                        "two messages in a step"
                    );
                }
            }
            for to in ranks.clone() {
                for message in plans[to].incoming(step) {
                    let content =
                        wire.remove(&(message.peer.0, to)).expect("a message that no rank sends");
                    assert_eq!(
                        content.len(),
                        message.len,
                        "step {step}, {:?} to {to}",
                        message.peer
                    );
                    let mut rest = content.as_slice();
                    for piece in plans[to].pieces(message) {
                        let (mine, tail) = rest.split_at(piece.len);
                        let into = match piece.place {
                            Place::Recv => &mut recv[to],
                            Place::Staged => &mut staged[to],
                            Place::Send => panic!("a message writes what the caller sends"),
                        };
                        into[piece.at..][..piece.len].copy_from_slice(mine);
                        rest = tail;
                    }
                }
            }
            assert!(wire.is_empty(), "messages that no rank takes: {:?}", wire.keys());
        }
        for rank in ranks {
            let (from, to, len) = plans[rank].own;
            recv[rank][to..to + len].copy_from_slice(&send[rank][from..from + len]);
        }
        recv
    }

    pub fn expected(counts: &[Vec<usize>]) -> Vec<Vec<Tagged>> {
        let column = |to: usize| {
            counts
                .iter()
                .enumerate()
                .flat_map(move |(from, row)| (0..row[to]).map(move |i| (from, to, i)))
        };
        (0..counts.len()).map(|to| column(to).collect()).collect()
    }
}
