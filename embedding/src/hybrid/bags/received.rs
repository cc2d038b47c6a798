//! The owner's side: bags of all sources, and the rows in them.

use super::{BLOCK_BITS, HEADER, MAX_LOCAL_ROWS, RANK_SHIFT, row_of, weight_of};
use crate::route::{RadixSort, bits_below, cut};
use crate::update::simd::Parts;
use std::ops::Range;

/// What sources ask for of one table of this owner.
#[derive(Debug)]
pub(in crate::hybrid) struct ReceivedBags {
    local_rows: u64,
    entry_bits: u32,
    sort: RadixSort,
    keys: Vec<u64>,
    spare: Vec<u64>,
    /// Words of ids, source after source, without the headers.
    words: Vec<u64>,
    /// Per word: its leaf, where this owner has several; and its bag.
    leaves: Vec<u32>,
    bag_of: Vec<u32>,
    pub(super) bags: Vec<ReceivedBag>,
    /// Per source, its bags.
    counts: Vec<u32>,
    /// Unique rows, where each one's entries start, and the entries: places among the words.
    rows: Vec<u64>,
    starts: Vec<u32>,
    entries: Vec<u32>,
    num_rows: usize,
    refused: Option<(usize, u64)>,
}

/// What this owner has of one bag of one source.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReceivedBag {
    /// Its words.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Its sum block, among those of all ranks.
    block: u32,
    /// Where its sum leaves, and its gradient arrives.
    pub(super) element: usize,
}

impl ReceivedBags {
    /// For `max_ids` ids and `max_bags` bags of each of `num_sources` sources.
    pub(in crate::hybrid) fn new(
        local_rows: u64,
        (num_sources, max_ids, max_bags): (usize, usize, usize),
        has_leaves: bool,
    ) -> Self {
        let ids = if local_rows == 0 { 0 } else { max_ids * num_sources };
        let bags = if local_rows == 0 { 0 } else { max_bags * num_sources };
        let entry_bits = bits_below(ids as u64);
        Self {
            local_rows,
            entry_bits,
            sort: RadixSort::new(bits_below(local_rows), entry_bits),
            keys: vec![0; ids],
            spare: vec![0; ids],
            words: Vec::with_capacity(ids),
            leaves: Vec::with_capacity(if has_leaves { ids } else { 0 }),
            bag_of: Vec::with_capacity(ids),
            bags: Vec::with_capacity(bags),
            counts: vec![0; num_sources],
            rows: vec![0; ids],
            starts: vec![0; ids + 1],
            entries: vec![0; ids],
            num_rows: 0,
            refused: None,
        }
    }

    /// Whether a row and an entry fit one word, and an entry half of one.
    pub(in crate::hybrid) fn fits(local_rows: u64, num_sources: usize, max_ids: usize) -> bool {
        let entries = bits_below((max_ids * num_sources) as u64);
        local_rows <= MAX_LOCAL_ROWS && entries <= u32::BITS
    }

    pub(in crate::hybrid) fn clear(&mut self) {
        self.words.clear();
        self.leaves.clear();
        self.bag_of.clear();
        self.bags.clear();
        self.counts.fill(0);
        (self.num_rows, self.starts[0], self.refused) = (0, 0, None);
    }

    /// Takes the list of each source. `leaf_of` says where a local row stands, and is not called
    /// where this owner has one leaf. On a list that is no request of rows of this owner nothing is
    /// taken; see [`Self::refused`].
    pub(in crate::hybrid) fn fill<'a>(
        &mut self,
        block_len: usize,
        list: impl Fn(usize) -> &'a [u64],
        leaf_of: Option<&dyn Fn(u64) -> u32>,
    ) {
        self.clear();
        for source in 0..self.counts.len() {
            if let Err(word) = self.take(source, list(source), block_len) {
                self.clear();
                self.refused = Some((source, word));
                return;
            }
        }
        if let Some(leaf_of) = leaf_of {
            self.leaves.extend(self.words.iter().map(|&word| leaf_of(row_of(word))));
        }
        let keys = self.keys.iter_mut().zip(&self.words).zip(0_u64..);
        keys.for_each(|((key, &word), entry)| *key = row_of(word) << self.entry_bits | entry);
        let len = self.words.len();
        self.sort.sort(&mut self.keys, &mut self.spare, len);
        let (bits, mask) = (self.entry_bits, (1_u64 << self.entry_bits) - 1);
        let entries = self.keys[..len].iter().map(|&key| (key >> bits, (key & mask) as u32));
        self.num_rows = cut(entries, &mut self.rows, &mut self.starts, &mut self.entries);
    }

    /// The bags of one source; an error is the row that it may not ask for.
    fn take(&mut self, source: usize, list: &[u64], block_len: usize) -> Result<(), u64> {
        for &word in list {
            let at = self.words.len() as u32;
            if word & HEADER != 0 {
                let rank = word >> RANK_SHIFT & ((HEADER >> RANK_SHIFT) - 1);
                let sample = word & ((1 << RANK_SHIFT) - 1);
                let block = ((rank << BLOCK_BITS) | (sample / block_len as u64)) as u32;
                self.bags.push(ReceivedBag { first: at, end: at, block, element: 0 });
                self.counts[source] += 1;
                continue;
            }
            let known = row_of(word) < self.local_rows && self.counts[source] > 0;
            let Some(bag) = self.bags.last_mut().filter(|_| known) else {
                return Err(row_of(word));
            };
            bag.end += 1;
            self.words.push(word);
            self.bag_of.push(self.bags.len() as u32 - 1);
        }
        Ok(())
    }

    /// The source that asks for a row that is not kept here, and that row.
    pub(in crate::hybrid) fn refused(&self) -> Option<(usize, u64)> {
        self.refused
    }

    pub(in crate::hybrid) fn local_rows(&self) -> u64 {
        self.local_rows
    }

    /// Bags of `source`.
    pub(in crate::hybrid) fn count_of(&self, source: usize) -> usize {
        self.counts[source] as usize
    }

    /// Tells each bag its element: those of a source lie one after the other, `dim` each.
    pub(in crate::hybrid) fn place(&mut self, dim: usize, first: impl Fn(usize) -> usize) {
        let mut bags = self.bags.iter_mut();
        for (source, &count) in self.counts.iter().enumerate() {
            let elements = (first(source)..).step_by(dim);
            bags.by_ref()
                .take(count as usize)
                .zip(elements)
                .for_each(|(bag, element)| bag.element = element);
        }
    }

    /// Unique rows, rising.
    pub(in crate::hybrid) fn rows(&self) -> &[u64] {
        &self.rows[..self.num_rows]
    }

    /// Where each row's entries start; one more than there are rows.
    pub(in crate::hybrid) fn starts(&self) -> &[u32] {
        &self.starts[..self.num_rows + 1]
    }

    pub(in crate::hybrid) fn num_entries(&self) -> usize {
        self.words.len()
    }

    /// What the kernels sum gradients by.
    pub(in crate::hybrid) fn view(&self) -> BagParts<'_> {
        BagParts {
            starts: self.starts(),
            entries: &self.entries[..self.words.len()],
            words: &self.words,
            bag_of: &self.bag_of,
            bags: &self.bags,
        }
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// One leaf for each word; none where there is one leaf.
    pub(super) fn leaves(&self) -> &[u32] {
        &self.leaves
    }
}

/// The parts of a row's gradient: those of the bags that it is in, times its weight there.
#[derive(Debug, Clone, Copy)]
pub(in crate::hybrid) struct BagParts<'a> {
    starts: &'a [u32],
    entries: &'a [u32],
    words: &'a [u64],
    bag_of: &'a [u32],
    bags: &'a [ReceivedBag],
}

impl BagParts<'_> {
    #[inline(always)]
    fn bag(&self, entry: u32) -> &ReceivedBag {
        &self.bags[self.bag_of[entry as usize] as usize]
    }
}

impl Parts for BagParts<'_> {
    #[inline(always)]
    fn entries(&self, index: usize) -> Range<usize> {
        self.starts[index] as usize..self.starts[index + 1] as usize
    }

    #[inline(always)]
    fn start(&self, entry: usize) -> Option<usize> {
        self.entries.get(entry).map(|&entry| self.bag(entry).element)
    }

    #[inline(always)]
    fn block(&self, entry: usize) -> u32 {
        self.bag(self.entries[entry]).block
    }

    #[inline(always)]
    fn factor(&self, entry: usize) -> Option<f32> {
        Some(weight_of(self.words[self.entries[entry] as usize]))
    }
}
