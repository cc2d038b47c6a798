//! The header in front of every message between two ranks.

use crate::operation;
use crate::transport::StepId;
use crate::transport::paths::Head;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"hlg1");

/// What a message says about itself: 32 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of this coming-together of the job: late bytes of an earlier one are found out.
    pub epoch: u32,
    pub sequence: u64,
    pub step: u32,
    pub fingerprint: u32,
    pub length: u64,
}

impl From<Head> for Header {
    fn from(head: Head) -> Self {
        let Head { epoch, sequence, step, fingerprint, length } = head;
        Self { epoch, sequence, step, fingerprint, length }
    }
}

impl From<Header> for Head {
    fn from(header: Header) -> Self {
        let Header { epoch, sequence, step, fingerprint, length } = header;
        Self { epoch, sequence, step, fingerprint, length }
    }
}

impl Header {
    /// The header of a message of `length` bytes in a step.
    pub fn new(epoch: u32, id: &StepId, length: usize) -> Self {
        let StepId { sequence, step, fingerprint, .. } = *id;
        Self { epoch, sequence, step, fingerprint, length: length as u64 }
    }

    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.step.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// A header that has come; none: it is no header.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        (word(0) == MAGIC).then(|| Self {
            epoch: word(4),
            sequence: long(8),
            step: word(16),
            fingerprint: word(20),
            length: long(24),
        })
    }

    /// What a peer's header says, in words, for an error. It is known to differ from ours.
    pub fn describe(bytes: &[u8; HEADER_BYTES]) -> String {
        let Some(Self { epoch, sequence, step, fingerprint, length }) = Self::read(bytes) else {
            return "bytes that are no header: the two ranks have lost step".into();
        };
        let what = operation::describe(fingerprint);
        format!("{what}, number {sequence} step {step}, {length} bytes, epoch {epoch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let header =
            Header { epoch: 7, sequence: 1 << 40, step: 3, fingerprint: 0, length: 5 << 33 };
        let text = Header::describe(&header.to_bytes());
        let words = ["number 1099511627776 step 3", "42949672960 bytes", "epoch 7"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        assert!(Header::describe(&[0; HEADER_BYTES]).contains("no header"));
        let mut seen = std::collections::HashSet::new();
        let variants = [
            header,
            Header { epoch: 8, ..header },
            Header { sequence: 1, ..header },
            Header { step: 4, ..header },
            Header { fingerprint: 1, ..header },
            Header { length: 1, ..header },
        ];
        assert!(variants.into_iter().all(|variant| seen.insert(variant.to_bytes())));
    }
}
