//! Bags that are pooled at the owners of their rows: [`PoolAt::Owner`].
//!
//! A rank sends each owner the bags that it owns rows of, and gets one vector for each: the sum of
//! those rows. It adds up the sums of all owners. Back goes one gradient for each of these vectors,
//! which the owner applies to every row of that part of the bag.
//!
//! Requests are words, packed as those of other tables: for each bag, in the order of the samples,
//! a header, then one word for each id.
//!
//! ```text
//! header   bit 63, rank of the source (from bit 40), number of the sample in its slice
//! id       local row (31 bits, from bit 32), weight (f32; 1 where bags are not weighted)
//! ```
//!
//! # The shape of the sum
//!
//! Row `r` of table `t` stands in part `(r + t) mod S` of its bag's sum, of `S` parts: the sum
//! blocks of all ranks ([`crate::update`]). A part is summed in the order of the bag; parts are
//! added in the binary tree of [`SumParts`], in which the parts of one of `N` owners by formula are
//! a subtree for every `N` that `S` is a power of two times. Parts without a row are left out. So
//! the sum does not depend on who owns a row, as long as the owner has whole subtrees: on the
//! number of ranks, in other words, that share the same `S` blocks. Where `S` is 1 it is the sum in
//! the order of the bag.

mod received;
mod simd;
mod stages;

pub(super) use received::ReceivedBags;
pub(super) use stages::update_rows_of_bags;

use super::partition::{Code, Partition};
use crate::ids::Bags;
use crate::route::all_below;
use crate::table::TableSpec;

/// Owners' rows that a word has room for.
pub(super) const MAX_LOCAL_ROWS: u64 = 1 << 31;
/// Samples of a slice whose blocks a source tells apart.
pub(super) const MAX_SAMPLES: usize = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 21;

const HEADER: u64 = 1 << 63;
const RANK_SHIFT: u32 = 40;
const ROW_SHIFT: u32 = 32;

const fn header(rank: usize, sample: usize) -> u64 {
    HEADER | (rank as u64) << RANK_SHIFT | sample as u64
}

fn word(local_row: u64, weight: f32) -> u64 {
    local_row << ROW_SHIFT | u64::from(weight.to_bits())
}

fn row_of(word: u64) -> u64 {
    word >> ROW_SHIFT
}

fn weight_of(word: u64) -> f32 {
    f32::from_bits(word as u32)
}

/// The parts that the sum of a bag is cut into, and the order in which the tree has them: its
/// leaves. Of `S = m · 2^k` parts (`m` odd), part `p + m · q` is leaf `p · 2^k + rev(q)`, where
/// `rev` turns the `k` bits of `q` around. Owner `o` of `m · 2^j` has the parts that are `o` modulo
/// `m · 2^j`: `2^(k−j)` leaves side by side.
#[derive(Debug, Clone)]
pub(super) struct SumParts {
    leaf_of: Vec<u32>,
}

impl SumParts {
    pub(super) fn new(num_parts: usize) -> Self {
        let levels = num_parts.trailing_zeros();
        let odd = num_parts >> levels;
        let leaf = |part: usize| {
            let (of_odd, rest) = ((part % odd) as u32, (part / odd) as u32);
            let turned = rest.reverse_bits().checked_shr(u32::BITS - levels).unwrap_or(0);
            of_odd << levels | turned
        };
        Self { leaf_of: (0..num_parts).map(leaf).collect() }
    }

    /// Whether there is one part: then sums are those in the order of the bag.
    pub(super) fn is_one(&self) -> bool {
        self.leaf_of.len() == 1
    }

    pub(super) fn len(&self) -> usize {
        self.leaf_of.len()
    }

    /// The leaf of each part.
    pub(super) fn leaves(&self) -> &[u32] {
        &self.leaf_of
    }

    /// The leaf of row `row` of table `table`.
    #[inline(always)]
    pub(super) fn leaf(&self, table: usize, row: u64) -> u32 {
        let parts = self.leaf_of.len() as u64;
        let part = match parts.is_power_of_two() {
            true => row.wrapping_add(table as u64) & (parts - 1),
            false => (row % parts + table as u64 % parts) % parts,
        };
        self.leaf_of[part as usize]
    }
}

/// This rank's bags of one table, by the owners of their rows.
#[derive(Debug)]
pub(super) struct SentBags {
    table: usize,
    table_rows: u64,
    dim: usize,
    codes: Vec<Code>,
    /// Per id: its leaf, and its position among the batch's ids; sorted within each bag.
    keys: Vec<u64>,
    words: Vec<u64>,
    /// Bag after bag, in the order of the leaves.
    parts: Vec<SentPart>,
    /// First part of each sample, and the end.
    starts: Vec<u32>,
    owners: Vec<OfOwner>,
    num_ids: usize,
    num_samples: usize,
    pub(super) in_range: bool,
}

/// What one owner has of one bag.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SentPart {
    /// Where its sum arrives, and its gradient leaves.
    pub(super) element: usize,
    /// Any leaf of the owner's subtree.
    pub(super) leaf: u32,
    owner: u32,
    ids: u32,
}

/// What one owner has of all bags, and where it lies.
#[derive(Debug, Clone, Copy, Default)]
struct OfOwner {
    words: u32,
    vectors: u32,
    first_word: usize,
    first_element: usize,
}

impl SentBags {
    pub(super) fn new(
        (table, spec): (usize, &TableSpec),
        (num_owners, max_samples): (usize, usize),
        (max_ids, max_vectors): (usize, usize),
    ) -> Self {
        Self {
            table,
            table_rows: spec.rows,
            dim: spec.dim,
            codes: vec![Code::default(); max_ids],
            keys: vec![0; max_ids],
            words: vec![0; max_ids + max_vectors],
            parts: Vec::with_capacity(max_vectors),
            starts: vec![0; max_samples + 1],
            owners: vec![OfOwner::default(); num_owners],
            num_ids: 0,
            num_samples: 0,
            in_range: true,
        }
    }

    pub(super) fn max_ids(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn num_ids(&self) -> usize {
        self.num_ids
    }

    pub(super) fn clear(&mut self) {
        (self.num_ids, self.num_samples) = (0, 0);
        self.parts.clear();
        self.owners.fill(OfOwner::default());
    }

    /// Finds who owns what of each bag. Where a row is out of range, nothing, and `in_range` says
    /// so.
    pub(super) fn fill(&mut self, bags: Bags, partition: &Partition, sum: &SumParts) {
        self.clear();
        let values = bags.ids.values;
        self.in_range = all_below(values, self.table_rows);
        if !self.in_range {
            return;
        }
        (self.num_ids, self.num_samples) = (values.len(), bags.ids.num_samples());
        partition.classify_rows(self.table, values, &mut self.codes[..values.len()]);
        for ((key, &row), position) in self.keys.iter_mut().zip(values).zip(0_u64..) {
            *key = u64::from(sum.leaf(self.table, row)) << 32 | position;
        }
        for (sample, bounds) in bags.ids.offsets.windows(2).enumerate() {
            self.starts[sample] = self.parts.len() as u32;
            let keys = &mut self.keys[bounds[0] as usize..bounds[1] as usize];
            // Note: positions differ, so that equal leaves keep the order of the bag.
            keys.sort_unstable();
            let codes = &self.codes;
            let owner_of = |key: u64| codes[key as u32 as usize].owner();
            for part in keys.chunk_by(|&one, &other| owner_of(one) == owner_of(other)) {
                let (owner, ids) = (owner_of(part[0]), part.len() as u32);
                self.owners[owner].words += 1 + ids;
                self.owners[owner].vectors += 1;
                let leaf = (part[0] >> 32) as u32;
                self.parts.push(SentPart { element: 0, leaf, owner: owner as u32, ids });
            }
        }
        self.starts[self.num_samples] = self.parts.len() as u32;
    }

    /// Words for `owner`.
    pub(super) fn count_of(&self, owner: usize) -> u32 {
        self.owners[owner].words
    }

    /// Elements of the vectors that `owner` sends for them.
    pub(super) fn elements_of(&self, owner: usize) -> usize {
        self.owners[owner].vectors as usize * self.dim
    }

    /// Sets where the vectors of `owner` lie.
    pub(super) fn set_first_element(&mut self, owner: usize, element: usize) {
        self.owners[owner].first_element = element;
    }

    /// Lists the words by owner, as those of rank `rank`, and tells each part its element.
    pub(super) fn place(&mut self, weights: &[f32], rank: usize) {
        let mut before = 0;
        for owner in &mut self.owners {
            owner.first_word = before;
            before += owner.words as usize;
        }
        // Where the next one goes; counts and first elements are no longer needed.
        let mut keys = &self.keys[..self.num_ids];
        for sample in 0..self.num_samples {
            let parts = self.starts[sample] as usize..self.starts[sample + 1] as usize;
            for part in &mut self.parts[parts] {
                let (own, rest) = keys.split_at(part.ids as usize);
                let owner = &mut self.owners[part.owner as usize];
                part.element = owner.first_element;
                owner.first_element += self.dim;
                let words = &mut self.words[owner.first_word..][..1 + own.len()];
                owner.first_word += words.len();
                words[0] = header(rank, sample);
                for (to, &key) in words[1..].iter_mut().zip(own) {
                    let position = key as u32 as usize;
                    let weight = weights.get(position).copied().unwrap_or(1.0);
                    *to = word(self.codes[position].local_row(), weight);
                }
                keys = rest;
            }
        }
        for owner in &mut self.owners {
            owner.first_word -= owner.words as usize;
        }
    }

    /// The words for `owner`.
    pub(super) fn words_of(&self, owner: usize) -> &[u64] {
        let OfOwner { words, first_word, .. } = self.owners[owner];
        &self.words[first_word..][..words as usize]
    }

    /// Ids of sample `sample`.
    fn num_ids_of(&self, sample: usize) -> usize {
        self.parts_of(sample).iter().map(|part| part.ids as usize).sum()
    }

    /// The parts of sample `sample`, in the order of the leaves.
    #[inline(always)]
    fn parts_of(&self, sample: usize) -> &[SentPart] {
        &self.parts[self.starts[sample] as usize..self.starts[sample + 1] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_by_formula_have_subtrees() {
        for num_parts in [1, 2, 3, 4, 6, 8, 12, 24, 64, 80] {
            let sum = SumParts::new(num_parts);
            let mut leaves: Vec<_> = sum.leaf_of.clone();
            leaves.sort_unstable();
            assert_eq!(leaves, (0..num_parts as u32).collect::<Vec<_>>(), "{num_parts} parts");
            let mut owners = num_parts;
            loop {
                let each = num_parts / owners;
                for owner in 0..owners {
                    let of_owner = (0..num_parts).filter(|part| part % owners == owner);
                    let mut leaves: Vec<_> = of_owner.map(|part| sum.leaf_of[part]).collect();
                    leaves.sort_unstable();
                    let first = leaves[0];
                    assert_eq!(first as usize % each, 0, "{num_parts} parts, {owners} owners");
                    assert_eq!(leaves, (first..first + each as u32).collect::<Vec<_>>());
                }
                if owners % 2 == 1 {
                    break;
                }
                owners /= 2;
            }
        }
    }

    #[test]
    fn words_hold_row_and_weight() {
        for (row, weight) in [(0, 1.0), (MAX_LOCAL_ROWS - 1, -0.0), (17, f32::MIN_POSITIVE)] {
            let word = word(row, weight);
            assert_eq!(word & HEADER, 0);
            assert_eq!((row_of(word), weight_of(word).to_bits()), (row, weight.to_bits()));
        }
        assert_eq!(header(5, 9) & HEADER, HEADER);
    }
}
