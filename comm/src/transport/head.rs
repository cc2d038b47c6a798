//! What a message between two ranks is: both sides know it beforehand, and compare.

use super::StepId;
use crate::operation;
use std::fmt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// Bytes of a head on its way.
pub const HEAD_BYTES: usize = size_of::<Wire>();
/// The first bytes of a head over TCP and in shared memory.
pub(super) const MAGIC: [u8; 4] = *b"hlg1";

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Number of this coming-together of the job: late bytes of an earlier one are found out.
    pub epoch: u32,
    /// [`StepId::sequence`].
    pub sequence: u64,
    /// [`StepId::step`].
    pub step: u32,
    /// [`StepId::fingerprint`].
    pub fingerprint: u32,
    /// Bytes of the message.
    pub length: u64,
}

/// A head on its way, little-endian.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Wire {
    magic: [u8; 4],
    epoch: U32,
    sequence: U64,
    step: U32,
    fingerprint: U32,
    length: U64,
}

impl Head {
    /// The head of a message of `length` bytes in a step.
    pub fn new(epoch: u32, id: &StepId, length: usize) -> Self {
        let StepId { sequence, step, fingerprint, .. } = *id;
        Self { epoch, sequence, step, fingerprint, length: length as u64 }
    }

    /// On its way, after the `magic` of what carries it.
    pub fn to_bytes(self, magic: [u8; 4]) -> [u8; HEAD_BYTES] {
        let Self { epoch, sequence, step, fingerprint, length } = self;
        transmute!(Wire {
            magic,
            epoch: epoch.into(),
            sequence: sequence.into(),
            step: step.into(),
            fingerprint: fingerprint.into(),
            length: length.into(),
        })
    }

    /// What a peer has sent; none if it is no head with this `magic`.
    pub fn from_bytes(bytes: &[u8; HEAD_BYTES], magic: [u8; 4]) -> Option<Self> {
        let wire: Wire = transmute!(*bytes);
        (wire.magic == magic).then(|| Self {
            epoch: wire.epoch.get(),
            sequence: wire.sequence.get(),
            step: wire.step.get(),
            fingerprint: wire.fingerprint.get(),
            length: wire.length.get(),
        })
    }

    /// What a peer has sent, which is known to differ from what was expected; else the words for
    /// bytes that are no head.
    pub(super) fn found(bytes: &[u8; HEAD_BYTES]) -> Result<Self, String> {
        let head = Self::from_bytes(bytes, MAGIC);
        head.ok_or_else(|| "bytes that are no header: the two ranks have lost step".to_owned())
    }
}

impl fmt::Display for Head {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = operation::describe(self.fingerprint);
        let Head { epoch, sequence, step, length, .. } = self;
        write!(out, "{what}, number {sequence} step {step}, {length} bytes, epoch {epoch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let head = Head { epoch: 7, sequence: 1 << 40, step: 3, fingerprint: 9, length: 5 << 33 };
        let text = head.to_string();
        let words = ["number 1099511627776 step 3", "42949672960 bytes", "epoch 7"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(Head::found(&[0; HEAD_BYTES]).is_err_and(|text| text.contains("no header")));
        let bytes = head.to_bytes(MAGIC);
        assert_eq!(Head::from_bytes(&bytes, MAGIC), Some(head));
        let places = [&b"hlg1"[..], &[7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 9], &[0; 7]];
        assert_eq!(bytes[..28], places.concat());
    }
}
