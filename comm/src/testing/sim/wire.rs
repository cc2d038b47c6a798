//! Messages under way.

use std::ops::Range;

use super::buffers::Source;
use crate::transport::StepId;

/// Where a step is among all steps of the job.
pub(super) type Key = (u64, u32);

/// The order of steps.
pub(super) fn key(id: &StepId) -> Key {
    (id.sequence, id.step)
}

/// What the receiver has decided about a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing of it has arrived.
    Unseen,
    /// It has arrived in part or whole; its step has not begun on the receiver.
    Held,
    /// It belongs into this incoming buffer.
    Bound(usize),
    /// Received, refused or of no use any more.
    Over,
}

/// One message, from its sender's memory to its receiver's.
#[derive(Debug)]
pub(super) struct Message {
    pub from: usize,
    pub to: usize,
    pub id: StepId,
    /// Number of this message on its link, from 0; a duplicate has its original's.
    pub number: u64,
    pub len: usize,
    /// What has left the sender's memory.
    pub bytes: Vec<u8>,
    /// The sender's memory, as long as it may be read.
    pub source: Option<Source>,
    pub chunks: u32,
    /// One bit per chunk that has left the sender.
    pub sent: u32,
    /// One bit per chunk that has arrived.
    pub arrived: u32,
    /// The sender may continue once it has left; otherwise once it has arrived.
    pub eager: bool,
    /// Lost with its sender.
    pub lost: bool,
    pub fate: Fate,
    /// Events that still name this message.
    pub events: u32,
}

impl Message {
    /// The bytes of one chunk.
    pub fn chunk(&self, chunk: u32) -> Range<usize> {
        let border = |index: u32| self.len * index as usize / self.chunks as usize;
        border(chunk)..border(chunk + 1)
    }

    /// Everything has left the sender.
    pub fn has_left(&self) -> bool {
        self.sent == (1 << self.chunks) - 1
    }

    pub fn has_arrived(&self) -> bool {
        self.arrived == (1 << self.chunks) - 1
    }
}

/// All messages under way; their places are used again.
#[derive(Debug, Default)]
pub(super) struct Wire {
    messages: Vec<Message>,
    free: Vec<usize>,
}

impl Wire {
    /// Takes up a message and says where it is.
    pub fn add(&mut self, mut message: Message) -> usize {
        match self.free.pop() {
            Some(index) => {
                message.bytes = std::mem::take(&mut self.messages[index].bytes);
                message.bytes.resize(message.len, 0);
                self.messages[index] = message;
                index
            }
            None => {
                message.bytes.resize(message.len, 0);
                self.messages.push(message);
                self.messages.len() - 1
            }
        }
    }

    /// An event that named the message has passed. The place is free when nothing names it any
    /// more.
    pub fn event_passed(&mut self, index: usize) {
        self.messages[index].events -= 1;
        self.free_if_over(index);
    }

    /// The message is of no use any more.
    pub fn end(&mut self, index: usize) {
        self.messages[index].fate = Fate::Over;
        self.free_if_over(index);
    }

    /// Whether a message of this step has been sent and not been received.
    pub fn is_under_way(&self, from: usize, to: usize, step: Key) -> bool {
        self.messages.iter().any(|message| {
            (message.from, message.to, key(&message.id)) == (from, to, step)
                && message.fate != Fate::Over
        })
    }

    /// All messages, those that are over too.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Message> {
        self.messages.iter_mut()
    }

    fn free_if_over(&mut self, index: usize) {
        let message = &self.messages[index];
        let named_by_sender = message.source.is_some();
        if message.events == 0
            && message.fate == Fate::Over
            && !named_by_sender
            && !self.free.contains(&index)
        {
            self.free.push(index);
        }
    }
}

impl std::ops::Index<usize> for Wire {
    type Output = Message;

    fn index(&self, index: usize) -> &Message {
        &self.messages[index]
    }
}

impl std::ops::IndexMut<usize> for Wire {
    fn index_mut(&mut self, index: usize) -> &mut Message {
        &mut self.messages[index]
    }
}

/// Which messages of a link have come, so that a second copy is known.
#[derive(Debug, Default, Clone)]
pub(super) struct Seen {
    below: u64,
    above: Vec<u64>,
}

impl Seen {
    /// Notes a number; false where it has come before.
    pub fn is_new(&mut self, number: u64) -> bool {
        if number < self.below || self.above.contains(&number) {
            return false;
        }
        self.above.push(number);
        while let Some(place) = self.above.iter().position(|&seen| seen == self.below) {
            self.above.swap_remove(place);
            self.below += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn a_second_copy_is_known_in_any_order() {
        let mut seen = Seen::default();
        let first: Vec<bool> =
            [2, 0, 2, 1, 1, 0, 3, 5, 4, 5, 3].into_iter().map(|n| seen.is_new(n)).collect();
        let expected = [true, true, false, true, false, false, true, true, true, false, false];
        assert_eq!(first, expected);
        assert!(seen.above.is_empty() && seen.below == 6);
    }
}
