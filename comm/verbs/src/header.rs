//! What precedes the bytes in a slot: 64 of its own, little-endian.

use headlong_comm::transport::paths::Head;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"hlv1");

/// One strip: a message, or as much of it as fits a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripHeader {
    pub head: Head,
    /// Number of this strip on its way, from 0: slot `number % slots`.
    pub number: u64,
    /// Where in the message its bytes belong.
    pub offset: u64,
    pub bytes: u32,
    /// Strips of the other direction that this side has given back so far, the lowest 32 bits.
    pub given_back: u32,
}

impl StripHeader {
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let Self { head, number, offset, bytes, given_back } = self;
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| out[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC.to_le_bytes());
        put(4, &head.epoch.to_le_bytes());
        put(8, &head.sequence.to_le_bytes());
        put(16, &head.step.to_le_bytes());
        put(20, &head.fingerprint.to_le_bytes());
        put(24, &head.length.to_le_bytes());
        put(32, &number.to_le_bytes());
        put(40, &offset.to_le_bytes());
        put(48, &bytes.to_le_bytes());
        put(52, &given_back.to_le_bytes());
        out
    }

    /// What a peer has written; none if it is no header.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let head = Head {
            epoch: word(4),
            sequence: long(8),
            step: word(16),
            fingerprint: word(20),
            length: long(24),
        };
        (word(0) == MAGIC).then_some(Self {
            head,
            number: long(32),
            offset: long(40),
            bytes: word(48),
            given_back: word(52),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_travels_whole() {
        let head = Head { epoch: 1, sequence: 2 << 40, step: 3, fingerprint: 4, length: 5 << 33 };
        let header =
            StripHeader { head, number: 6 << 35, offset: 7 << 34, bytes: 8, given_back: 9 };
        assert_eq!(StripHeader::from_bytes(&header.to_bytes()), Some(header));
        assert_eq!(&header.to_bytes()[..4], b"hlv1");
        assert_eq!(StripHeader::from_bytes(&[0; HEADER_BYTES]), None);
    }
}
