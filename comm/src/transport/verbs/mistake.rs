//! What the rules of ordering forbid. Each is a switch, so that a test can show what happens
//! without the rule.
//!
//! 1. The signal travels on the connection of the data, after it.
//! 2. Arrived is what a completion or an atomic says, never what memory looks like.
//! 3. Memory of a device is read back through the card before the device hears of what has arrived.
//! 4. Bytes may be written to memory in any order, flags may not.
//! 5. A slot is written again when its receiver has given it back and its own completion has come.
//! 6. Lengths are written before the word that says that they may be read: a device and its proxy
//!    keep this one, and it has no switch here.
//! 7. Receives are there before what needs them.
//!
//! Paths between processors keep 1, 2, 4, 5 and 7 (`tests/mistakes.rs`), rails between devices 3,
//! 5, 6 and 7 (`comm/src/device/rail/verbs/tests.rs`); their bytes and signal are one request, and
//! they have no flags.

/// A rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// The signal is posted before the data.
    SignalFirst,
    /// The signal travels on a connection of its own.
    SignalElsewhere,
    /// A slot counts as filled when its header is there.
    PollTheHeader,
    /// What a completion says reaches a device without a read through the card.
    SkipTheFlush,
    /// The memory of flags allows relaxed ordering.
    RelaxedFlags,
    /// A slot is filled again before its completion.
    ReuseBeforeCompletion,
    /// A slot is filled again before its receiver has given it back.
    IgnoreCredits,
    /// Receives that were used are not posted again.
    ForgetReceives,
}
