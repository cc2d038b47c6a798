//! Memory that direct reads accept: whole pages, aligned.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What offset, length and memory of a direct read are multiples of. Disks ask for 512 or 4096
/// bytes.
pub const ALIGNMENT: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(4096))]
struct Page([u8; ALIGNMENT]);

/// Bytes on whole, aligned pages.
pub struct AlignedBuffer {
    pages: Box<[Page]>,
}

impl AlignedBuffer {
    /// Zeros, `bytes` rounded up to whole pages.
    pub fn new(bytes: usize) -> Self {
        Self { pages: vec![Page([0; ALIGNMENT]); bytes.div_ceil(ALIGNMENT)].into_boxed_slice() }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        self.pages.as_bytes()
    }

    /// All bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_bytes()
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "AlignedBuffer({} bytes)", self.bytes().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_whole() {
        let buffer = AlignedBuffer::new(5000);
        assert_eq!(buffer.bytes().len(), 2 * ALIGNMENT);
        assert_eq!(buffer.bytes().as_ptr() as usize % ALIGNMENT, 0);
    }
}
