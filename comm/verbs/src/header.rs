//! What precedes the bytes in a slot: 64 of its own, little-endian.

use headlong_comm::transport::head::{HEAD_BYTES, Head};

pub const HEADER_BYTES: usize = 64;
const MAGIC: [u8; 4] = *b"hlv1";

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
        out[..HEAD_BYTES].copy_from_slice(&head.to_bytes(MAGIC));
        let mut put = |at: usize, field: &[u8]| out[at..at + field.len()].copy_from_slice(field);
        put(32, &number.to_le_bytes());
        put(40, &offset.to_le_bytes());
        put(48, &bytes.to_le_bytes());
        put(52, &given_back.to_le_bytes());
        out
    }

    /// What a peer has written; none if it is no header.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let head = Head::from_bytes(bytes.first_chunk()?, MAGIC)?;
        let (number, offset) = (long(32), long(40));
        let (bytes, given_back) = (long(48) as u32, (long(48) >> 32) as u32);
        Some(Self { head, number, offset, bytes, given_back })
    }
}

/// What a peer has written, read and written again; none if it is no header: for programs that try
/// any bytes.
#[doc(hidden)]
pub fn header_again(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(StripHeader::from_bytes(bytes.first_chunk()?)?.to_bytes().to_vec())
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
