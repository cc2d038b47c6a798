//! What the rules of ordering forbid: NICs that break a rule in the program's place, so that a test
//! can show what happens without it.
//!
//! 1. The signal travels on the connection of the data, after it.
//! 2. Arrived is what a completion or an atomic says, never what memory looks like.
//! 3. Memory of a device is read back through the NIC before the device hears of what has arrived.
//! 4. Bytes may be written to memory in any order, flags may not.
//! 5. A slot is written again when its receiver has given it back and its own completion has come.
//! 6. Lengths are written before the word that says that they may be read: a device and its proxy
//!    keep this one, and it has no fault here.
//! 7. Receives are there before what needs them.
//!
//! Paths between processors keep 1, 2, 4, 5 and 7; the faults for 2 and for the first half of 5 are
//! those of a path, in `tests/faults.rs`. Rails between devices keep 1, 3, 5, 6 and 7
//! (`rails/tests.rs`); they have no flags.

/// A rule that NICs of a fabric break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Of a chain, the signal leaves before the data.
    SignalFirst,
    /// A signal does not wait for the data before it, as on a connection of its own.
    SignalElsewhere,
    /// A read completes at once: nothing is read through the NIC.
    SkipTheFlush,
    /// The memory of flags allows relaxed ordering.
    RelaxedFlags,
    /// A send completes as soon as it is posted.
    ReuseBeforeCompletion,
    /// Receives that were used are not posted again.
    ForgetReceives,
}
