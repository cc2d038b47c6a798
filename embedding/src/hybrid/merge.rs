//! Merge: what several sources request becomes unique rows, each with the parts that its sources
//! will send.
//!
//! ```text
//! source 0:   2 5 9      rows    2 5 7 9         unique, rising
//! source 1:   5 7        starts  0 1 3 4 5
//! source 2:   (nothing)  parts   0.0 | 0.1 1.0 | 1.1 | 0.2       source.position in its list
//! ```
//!
//! The vector of part `s.k`, and the gradient that comes back for it, lie at
//! `base(s) + k · dim` in the packed buffers of an exchange. A gradient is summed over a row's
//! parts in the tree over sources, which [`Parts`] tells the kernels of [`crate::update`].

use crate::route::{RadixSort, bits_below, cut};
use crate::table::{Keys, TableSpec};
use crate::update::simd::Parts;
use std::ops::Range;

/// The merged lists of one table (or, in a node's proxy, of one table of one owner).
#[derive(Debug)]
pub(crate) struct Merge {
    keys_are: Keys,
    /// Local rows are below, unless they are raw ids.
    local_rows: u64,
    dim: usize,
    /// Bits of a part that hold the position in its source's list; the source stands above.
    position_bits: u32,
    part_bits: u32,
    sort: RadixSort,
    keys: Vec<u64>,
    spare: Vec<u64>,
    pairs: Vec<(u64, u32)>,
    rows: Vec<u64>,
    starts: Vec<u32>,
    parts: Vec<u32>,
    /// For each source, where its first vector lies.
    bases: Vec<usize>,
    /// For each source, how many rows it requests, where that was found out here.
    counts: Vec<u32>,
    num_rows: usize,
    num_parts: usize,
    /// The source and the row for which nothing was merged.
    refused: Option<(usize, u64)>,
}

/// How large merges can get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeShape {
    pub(crate) num_sources: usize,
    /// Most ids of one source, duplicates included.
    pub(crate) max_ids: usize,
    /// Most rows that one source requests.
    pub(crate) max_received: usize,
    pub(crate) local_rows: u64,
}

impl MergeShape {
    fn part_bits(self) -> (u32, u32) {
        (bits_below(self.max_received as u64), bits_below(self.num_sources as u64))
    }

    /// Whether a row and a part fit one word, and a part half of one.
    pub(crate) fn fits(self, keys_are: Keys) -> bool {
        let (position, source) = self.part_bits();
        let row = if keys_are == Keys::RawIds { 0 } else { bits_below(self.local_rows) };
        position + source <= u32::BITS && row + position + source <= u64::BITS
    }

    fn max_parts(self) -> usize {
        self.max_received * self.num_sources
    }

    fn max_keys(self) -> usize {
        if self.max_received == 0 { 0 } else { self.max_ids * self.num_sources }
    }
}

impl Merge {
    pub(crate) fn new(spec: &TableSpec, shape: MergeShape) -> Self {
        assert!(shape.fits(spec.keys), "a row and a part fit one key, which the set has checked");
        let (position_bits, source_bits) = shape.part_bits();
        let part_bits = position_bits + source_bits;
        let raw = spec.keys == Keys::RawIds;
        let capacity = shape.max_parts();
        let num_keys = shape.max_keys();
        Self {
            keys_are: spec.keys,
            local_rows: shape.local_rows,
            dim: spec.dim,
            position_bits,
            part_bits,
            sort: RadixSort::new(if raw { 0 } else { bits_below(shape.local_rows) }, part_bits),
            keys: vec![0; if raw { 0 } else { num_keys }],
            spare: vec![0; if raw { 0 } else { num_keys }],
            pairs: Vec::with_capacity(if raw { num_keys } else { 0 }),
            rows: vec![0; capacity],
            starts: vec![0; capacity + 1],
            parts: vec![0; capacity],
            bases: vec![0; shape.num_sources],
            counts: vec![0; shape.num_sources],
            num_rows: 0,
            num_parts: 0,
            refused: None,
        }
    }

    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        (self.num_rows, self.num_parts) = (0, 0);
        self.refused = None;
        self.starts[0] = 0;
        self.pairs.clear();
    }

    /// Takes the list of each source, and where its first vector lies. On a row out of range
    /// nothing is merged; see [`Self::refused`].
    pub(crate) fn fill<'a>(&mut self, list: impl Fn(usize) -> (&'a [u64], usize)) {
        self.clear();
        let mut len = 0;
        for source in 0..self.bases.len() {
            let (requests, base) = list(source);
            self.bases[source] = base;
            if self.keys_are == Keys::RawIds {
                let part = (source as u32) << self.position_bits;
                self.pairs.extend(requests.iter().copied().zip(part..));
            } else {
                if let Some(&row) = requests.iter().find(|&&row| row >= self.local_rows) {
                    self.refused = Some((source, row));
                    return;
                }
                let part = (source as u64) << self.position_bits;
                let keys = self.keys[len..len + requests.len()].iter_mut().zip(requests);
                keys.zip(part..)
                    .for_each(|((key, &row), part)| *key = row << self.part_bits | part);
            }
            len += requests.len();
        }
        self.sort(len);
        self.cut(len);
    }

    /// The source that requests a row out of range, and that row.
    pub(crate) fn refused(&self) -> Option<(usize, u64)> {
        self.refused
    }

    pub(crate) fn local_rows(&self) -> u64 {
        self.local_rows
    }

    /// Makes the sources' lists itself, from the rows of each of their ranks: `mine` calls back
    /// with runs of rank `rank`'s rows that belong here. `ranks` ranks are one source;
    /// `unique` rows are requested once by a source. Bases are still to be set.
    pub(crate) fn fill_known(
        &mut self,
        ranks: usize,
        unique: bool,
        mine: impl Fn(usize, &mut dyn FnMut(&[u64])),
    ) {
        self.clear();
        let mut len = 0;
        for rank in 0..ranks * self.bases.len() {
            let part = ((rank / ranks) as u32) << self.position_bits;
            mine(rank, &mut |rows| {
                if self.keys_are == Keys::RawIds {
                    self.pairs.extend(rows.iter().map(|&id| (id, part)));
                } else {
                    let keys = self.keys[len..len + rows.len()].iter_mut().zip(rows);
                    keys.for_each(|(key, &row)| *key = row << self.part_bits | u64::from(part));
                }
                len += rows.len();
            });
        }
        self.sort(len);
        let len = self.number_parts(len, unique);
        self.cut(len);
    }

    /// Gives each sorted key its position in its source's list, and drops a source's duplicates.
    /// Returns what is left.
    fn number_parts(&mut self, len: usize, unique: bool) -> usize {
        self.counts.fill(0);
        let (bits, position_bits) = (self.part_bits, self.position_bits);
        let mut kept = 0;
        if self.keys_are == Keys::RawIds {
            let mut previous = None;
            for index in 0..len {
                let pair = self.pairs[index];
                if !unique || previous != Some(pair) {
                    let position = &mut self.counts[(pair.1 >> position_bits) as usize];
                    self.pairs[kept] = (pair.0, pair.1 | *position);
                    (*position, kept) = (*position + 1, kept + 1);
                }
                previous = Some(pair);
            }
            self.pairs.truncate(kept);
            return kept;
        }
        let mut previous = None;
        for index in 0..len {
            let key = self.keys[index];
            if !unique || previous != Some(key) {
                let source = (key & ((1 << bits) - 1)) >> position_bits;
                let position = &mut self.counts[source as usize];
                self.keys[kept] = key | u64::from(*position);
                (*position, kept) = (*position + 1, kept + 1);
            }
            previous = Some(key);
        }
        kept
    }

    fn sort(&mut self, len: usize) {
        match self.keys_are {
            Keys::RawIds => self.pairs.sort_unstable(),
            Keys::RowIndices => self.sort.sort(&mut self.keys, &mut self.spare, len),
        }
    }

    fn cut(&mut self, len: usize) {
        self.num_parts = len;
        self.num_rows = if self.keys_are == Keys::RawIds {
            let entries = self.pairs.iter().copied();
            cut(entries, &mut self.rows, &mut self.starts, &mut self.parts)
        } else {
            let (bits, mask) = (self.part_bits, (1_u64 << self.part_bits) - 1);
            let entries = self.keys[..len].iter().map(|&key| (key >> bits, (key & mask) as u32));
            cut(entries, &mut self.rows, &mut self.starts, &mut self.parts)
        };
    }

    /// Rows that [`Self::fill_known`] found `source` to request.
    pub(crate) fn count_of(&self, source: usize) -> u32 {
        self.counts[source]
    }

    /// Sets where the first vector of `source` lies.
    pub(crate) fn set_base(&mut self, source: usize, element: usize) {
        self.bases[source] = element;
    }

    /// Calls `body` with source, position in its list, and row of every part.
    pub(crate) fn for_each_request(&self, mut body: impl FnMut(usize, usize, u64)) {
        let mask = (1_u32 << self.position_bits) - 1;
        for (bounds, &row) in self.starts().windows(2).zip(self.rows()) {
            for &part in &self.parts[bounds[0] as usize..bounds[1] as usize] {
                body((part >> self.position_bits) as usize, (part & mask) as usize, row);
            }
        }
    }

    /// Unique rows, rising.
    pub(crate) fn rows(&self) -> &[u64] {
        &self.rows[..self.num_rows]
    }

    /// Where each row's parts start; one more than there are rows.
    pub(crate) fn starts(&self) -> &[u32] {
        &self.starts[..self.num_rows + 1]
    }

    pub(crate) fn num_parts(&self) -> usize {
        self.num_parts
    }

    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    /// Calls `body` with each row's index and the elements at which its vector is wanted.
    pub(crate) fn for_each_part(&self, mut body: impl FnMut(usize, usize)) {
        let view = self.view();
        for index in 0..self.num_rows {
            view.entries(index).for_each(|entry| body(index, view.element(entry)));
        }
    }

    /// What the kernels sum by.
    pub(crate) fn view(&self) -> MergedParts<'_> {
        MergedParts {
            starts: self.starts(),
            parts: &self.parts[..self.num_parts],
            bases: &self.bases,
            dim: self.dim,
            position_bits: self.position_bits,
        }
    }
}

/// The parts of merged rows: blocks are sources.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergedParts<'a> {
    starts: &'a [u32],
    parts: &'a [u32],
    bases: &'a [usize],
    dim: usize,
    position_bits: u32,
}

impl MergedParts<'_> {
    #[inline(always)]
    fn element_of(&self, part: u32) -> usize {
        let position = part & ((1 << self.position_bits) - 1);
        self.bases[(part >> self.position_bits) as usize] + position as usize * self.dim
    }

    /// The first element of part `entry`.
    #[inline(always)]
    pub(crate) fn element(&self, entry: usize) -> usize {
        self.element_of(self.parts[entry])
    }
}

impl Parts for MergedParts<'_> {
    #[inline(always)]
    fn entries(&self, index: usize) -> Range<usize> {
        self.starts[index] as usize..self.starts[index + 1] as usize
    }

    #[inline(always)]
    fn start(&self, entry: usize) -> Option<usize> {
        self.parts.get(entry).map(|&part| self.element_of(part))
    }

    #[inline(always)]
    fn block(&self, entry: usize) -> u32 {
        self.parts[entry] >> self.position_bits
    }

    #[inline(always)]
    fn factor(&self, _entry: usize) -> Option<f32> {
        None
    }
}
