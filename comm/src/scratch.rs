//! Memory that operations use again and again.

use crate::element::Element;
use crate::transport::{Incoming, Outgoing};
use zerocopy::{FromBytes, IntoBytes};

/// Memory for any element type; it only grows.
#[derive(Default)]
pub(crate) struct Scratch(Vec<u64>);

impl Scratch {
    /// `len` bytes of any content, aligned for every element.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        let words = len.div_ceil(8);
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        &mut self.0.as_mut_bytes()[..len]
    }

    /// `len` elements of any content.
    pub(crate) fn elements<T: Element>(&mut self, len: usize) -> &mut [T] {
        <[T]>::mut_from_bytes(self.bytes(len * size_of::<T>()))
            .expect("words are aligned for every element")
    }
}

/// Memory of the operations of one communicator, each kind under its own name so that several can
/// be used at once.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) own: Scratch,
    /// Parts of the peers, where the transport cannot show them in place.
    pub(crate) received: Scratch,
    pub(crate) staged: Scratch,
    /// Messages put together from several pieces.
    pub(crate) packed: Scratch,
    /// Messages to be taken apart into several pieces.
    pub(crate) landed: Scratch,
    /// The same count for each rank.
    pub(crate) equal: Vec<usize>,
    /// Counts that this rank tells those who carry for it.
    pub(crate) told: Vec<u64>,
    /// Counts that it receives, as they come and as numbers of elements.
    pub(crate) carried: Vec<u64>,
    pub(crate) carried_counts: Vec<usize>,
    pub(crate) narrow_send: Scratch,
    pub(crate) narrow_recv: Scratch,
}

#[derive(Default)]
pub(crate) struct Lists {
    outgoing: Vec<Outgoing<'static>>,
    incoming: Vec<Incoming<'static>>,
}

impl Lists {
    pub(crate) fn outgoing<'a>(&mut self) -> Vec<Outgoing<'a>> {
        std::mem::take(&mut self.outgoing)
    }

    pub(crate) fn incoming<'a>(&mut self) -> Vec<Incoming<'a>> {
        std::mem::take(&mut self.incoming)
    }

    pub(crate) fn put_outgoing(&mut self, list: Vec<Outgoing<'_>>) {
        self.outgoing = emptied(list);
    }

    pub(crate) fn put_incoming(&mut self, list: Vec<Incoming<'_>>) {
        self.incoming = emptied(list);
    }
}

/// An empty list in the memory of another: collecting in place keeps it, where both have the same
/// layout.
fn emptied<Old, New>(mut list: Vec<Old>) -> Vec<New> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

pub(crate) struct Carver<'a> {
    rest: &'a mut [u8],
    at: usize,
}

impl<'a> Carver<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { rest: buffer, at: 0 }
    }

    /// The bytes from `at` on, which lies after everything taken before.
    pub(crate) fn take(&mut self, at: usize, len: usize) -> &'a mut [u8] {
        let skip = at.checked_sub(self.at).expect("parts are taken from front to back");
        let (part, rest) = std::mem::take(&mut self.rest)[skip..].split_at_mut(len);
        (self.rest, self.at) = (rest, at + len);
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_memory() {
        let mut lists = Lists::default();
        let mut list = lists.outgoing();
        list.reserve(40);
        let (address, capacity) = (list.as_ptr() as usize, list.capacity());
        lists.put_outgoing(list);
        let again = lists.outgoing();
        assert_eq!((again.as_ptr() as usize, again.capacity()), (address, capacity));
    }

    #[test]
    fn parts_with_gaps() {
        let mut buffer = [0u8, 1, 2, 3, 4, 5];
        let mut carver = Carver::new(&mut buffer);
        assert_eq!(carver.take(1, 2), [1, 2]);
        assert!(carver.take(3, 0).is_empty());
        assert_eq!(carver.take(5, 1), [5]);
    }
}
