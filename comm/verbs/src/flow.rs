//! Who may fill which slot when: counts alone, for both directions of a link.
//!
//! **Why no slot is filled too early.** A sender is at most `slots` strips ahead of what the
//! receiver has said to have taken, and counts only say what is true.
//!
//! **Why no rank waits for ever.** A sender pauses when all `slots` are out. A receiver that
//! has taken all of them has more than `slots - 1` to give back, and then says so without being
//! asked. A count needs no slot, and there are never more than `slots` of them on the way; what
//! comes due meanwhile is said when one of them has arrived.
//!
//! `tests/states.rs` goes through all orders of a few strips.

use super::settings::Signal;

/// Counts of one side. All begin at 0 and only rise, except for `counts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) slots: u64,
    /// So many strips are given back by one count of its own.
    pub(super) at_once: u64,
    signal: Signal,
    /// Strips posted, of those complete, of those given back by the peer.
    pub(super) sent: u64,
    pub(super) complete: u64,
    pub(super) given_back: u64,
    /// Strips that have come, of those taken, of those the peer knows, or will know, to be taken.
    pub(super) arrived: u64,
    pub(super) taken: u64,
    pub(super) announced: u64,
    /// Counts of their own that are on the way.
    pub(super) counts: u64,
}

impl Flow {
    pub(super) fn new(slots: usize, signal: Signal) -> Self {
        let slots = slots as u64;
        Self {
            slots,
            at_once: at_once(slots),
            signal,
            sent: 0,
            complete: 0,
            given_back: 0,
            arrived: 0,
            taken: 0,
            announced: 0,
            counts: 0,
        }
    }

    /// Whether the next slot's last strip was taken.
    pub(super) fn is_back(&self) -> bool {
        self.sent - self.given_back < self.slots
    }

    /// Whether the NIC has done with this side's copy of the next slot.
    pub(super) fn is_complete(&self) -> bool {
        self.sent - self.complete < self.slots
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.sent == self.complete && self.counts == 0
    }

    /// A strip was posted. Where signals are numbers, its header says what was taken.
    pub(super) fn note_sent(&mut self) {
        self.sent += 1;
        if self.signal == Signal::Immediate {
            self.announced = self.taken;
        }
    }

    pub(super) fn is_count_due(&self) -> bool {
        self.taken - self.announced >= self.at_once && self.counts < self.slots
    }

    pub(super) fn note_count(&mut self) {
        self.counts += 1;
        self.announced = match self.signal {
            Signal::Immediate => self.taken,
            Signal::Atomic => self.announced + self.at_once,
        };
    }

    /// What the flags say, where signals are atomics: strips that have come, and strips that the
    /// peer has taken.
    pub(super) fn note_flags(&mut self, arrived: u64, given_back: u64) -> Result<(), String> {
        if arrived.saturating_sub(self.taken) > self.slots || given_back > self.sent {
            let (taken, sent) = (self.taken, self.sent);
            return Err(format!(
                "the flags say that {arrived} strips have come and {given_back} were taken there, \
                 after {taken} and of {sent}"
            ));
        }
        (self.arrived, self.given_back) = (arrived, given_back);
        Ok(())
    }

    /// The peer has taken strips until a count, of which the bits of `mask` are known.
    pub(super) fn note_given_back(&mut self, count: u32, mask: u32) {
        let more = u64::from(count.wrapping_sub(self.given_back as u32) & mask);
        // Note: a count that is older than the last one known says nothing.
        if more <= self.sent - self.given_back {
            self.given_back += more;
        }
    }
}

/// So many of `slots` are given back by one count of its own.
pub(super) fn at_once(slots: u64) -> u64 {
    slots - 1
}
