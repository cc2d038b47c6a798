//! A batch on its way to the device: packed by the host in page-locked memory, copied inside the
//! step.

use super::layout::{
    Layout, MODE_BAGS, MODE_NEEDS_REST, MODE_WEIGHTED, STAGED_TABLE_WORDS, STAGED_WORDS,
    TableLayout,
};
use crate::error::{EmbeddingError, Result};
use crate::ids::{Bags, Ids, bags_of, check_range, num_samples};
use crate::route::all_below;
use crate::table::TableSpec;
use headlong_device::cuda::{CudaDevice, CudaStream, DeviceMemory, DevicePtr, Pinned};
use std::ops::Range;
use std::sync::Arc;

/// A part of a staged batch on its way.
#[derive(Debug, Clone, Copy)]
pub struct StagedPart {
    /// Page-locked memory, as the device sees it.
    pub from: DevicePtr,
    /// Where the device's kernels read it.
    pub to: DevicePtr,
    /// Its length in words of four bytes.
    pub words: usize,
    /// Whether it tells batches apart: it comes from page-locked memory each time.
    pub is_head: bool,
}

/// One batch, on the host and on the device.
#[derive(Debug)]
pub(crate) struct Staging {
    specs: Arc<[TableSpec]>,
    layout: Arc<Layout>,
    pinned: Pinned,
    device: DeviceMemory,
    num_samples: usize,
    generation: u32,
    needs_rest: bool,
    copies_all: bool,
}

impl Staging {
    /// `copies_all`: every batch is copied whole, so that one captured copy does for all of them.
    pub(crate) fn new(
        device: &CudaDevice,
        specs: &Arc<[TableSpec]>,
        layout: &Arc<Layout>,
        copies_all: bool,
    ) -> Result<Self> {
        Ok(Self {
            specs: Arc::clone(specs),
            layout: Arc::clone(layout),
            pinned: Pinned::new(device, 4 * layout.words)?,
            device: DeviceMemory::new(device, "ids of a batch", 4 * layout.words)?,
            num_samples: 0,
            generation: 0,
            needs_rest: copies_all,
            copies_all,
        })
    }

    pub(crate) fn num_samples(&self) -> usize {
        self.num_samples
    }

    /// Number of the staged batch.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the copy of the staged batch is longer than the usual one: it has bags where none
    /// were planned, or weights.
    pub(crate) fn is_unusual(&self) -> bool {
        self.needs_rest && !self.copies_all
    }

    /// The staged batch on the device.
    pub(crate) fn ptr(&self) -> DevicePtr {
        self.device.ptr()
    }

    /// The number of each table's entries on the device; two words from one to the next.
    pub(crate) fn num_entries(&self) -> DevicePtr {
        self.device.ptr().offset(4 * STAGED_WORDS)
    }

    pub(crate) fn ids_of(&self, table: usize) -> [DevicePtr; 2] {
        let count = self.num_entries().offset(4 * STAGED_TABLE_WORDS * table);
        [self.ptr().offset(4 * self.layout.tables[table].ids), count]
    }

    /// Packs the ids of a batch. The copy of the batch before must be done.
    ///
    /// # Errors
    /// [`EmbeddingError::IdOutOfRange`], [`EmbeddingError::Capacity`], and batches of another
    /// shape: those of the CPU's route.
    pub(crate) fn stage(&mut self, ids: &dyn Ids) -> Result<()> {
        let found = num_samples(&self.specs, ids)?;
        for (table, spec) in self.specs.iter().enumerate() {
            let (num_ids, most) =
                (ids.table(table).values.len(), self.layout.tables[table].max_ids);
            EmbeddingError::check_capacity(&spec.name, "ids", num_ids, most)?;
            let most = self.layout.max_samples;
            EmbeddingError::check_capacity(&spec.name, "samples", found, most)?;
        }
        let in_range =
            |(table, spec): (usize, &TableSpec)| all_below(ids.table(table).values, spec.rows);
        if !self.specs.iter().enumerate().all(in_range) {
            check_range(&self.specs, &|table| bags_of(ids, table))?;
        }
        self.pack(ids, found);
        Ok(())
    }

    fn pack(&mut self, ids: &dyn Ids, found: usize) {
        self.begin(found);
        let rest = self.layout.main_words;
        let words = self.pinned.as_mut_slice::<u32>();
        for (table, layout) in self.layout.tables.iter().enumerate() {
            let bags = bags_of(ids, table);
            let mode = pack_table(words, layout, bags, rest);
            self.needs_rest |= mode & MODE_NEEDS_REST != 0;
            words[place_of(table)].copy_from_slice(&[bags.ids.values.len() as u32, mode]);
        }
    }

    /// Numbers a batch of `found` samples.
    fn begin(&mut self, found: usize) {
        self.num_samples = found;
        self.generation = self.generation.wrapping_add(1);
        self.needs_rest = self.copies_all;
        let rest = self.layout.main_words;
        let words = self.pinned.as_mut_slice::<u32>();
        words[..STAGED_WORDS].copy_from_slice(&[found as u32, self.generation, rest as u32, 0]);
        words[rest] = self.generation;
    }

    /// What [`Self::recall`] needs of the staged batch.
    pub(crate) fn head(&self) -> &[u32] {
        &self.pinned.as_slice()[..place_of(self.specs.len()).start]
    }

    /// Stages a batch of which `head` is known and the ids lie on the device: its parts are those
    /// of then, and all but the heads come from where they were kept. It gets a number of its own,
    /// by which the device's answers are told apart.
    pub(crate) fn recall(&mut self, head: &[u32]) {
        self.begin(head[0] as usize);
        let tables = STAGED_WORDS..head.len();
        let mut modes = head[tables.clone()].chunks_exact(STAGED_TABLE_WORDS).map(|of| of[1]);
        self.needs_rest |= modes.any(|mode| mode & MODE_NEEDS_REST != 0);
        self.pinned.as_mut_slice::<u32>()[tables.clone()].copy_from_slice(&head[tables]);
    }

    /// Hands the parts of the staged batch to `take`: no more than [`Self::most_parts`], the same
    /// ones for the same head.
    pub(crate) fn parts(&self, take: &mut dyn FnMut(StagedPart)) {
        let mut part = |first: usize, words: usize, is_head: bool| {
            if words > 0 {
                let (from, to) = (self.pinned.device_visible(), self.device.ptr());
                let [from, to] = [from, to].map(|start| start.offset(4 * first));
                take(StagedPart { from, to, words, is_head });
            }
        };
        let head = self.head();
        part(0, head.len(), true);
        part(self.layout.main_words, 1, true);
        for (table, layout) in self.layout.tables.iter().enumerate() {
            let [num_ids, mode] = [0, 1].map(|word| head[place_of(table).start + word]);
            let has = |flag: u32, words: usize| if mode & flag != 0 { words } else { 0 };
            part(layout.ids, num_ids as usize, false);
            part(layout.offsets, has(MODE_BAGS, self.num_samples + 1), false);
            part(layout.factors, has(MODE_WEIGHTED, num_ids as usize), false);
        }
    }

    /// The most parts that a batch has.
    pub(crate) fn most_parts(&self) -> usize {
        2 + 3 * self.specs.len()
    }

    /// Enqueues the copy of what was packed.
    pub(crate) fn copy(&self, stream: &CudaStream) {
        let words = if self.needs_rest { self.layout.words } else { self.layout.main_words };
        stream.copy_to_device(self.device.ptr(), &self.pinned, 0..4 * words);
    }
}

/// Where the number of a table's ids and its mode stand.
fn place_of(table: usize) -> Range<usize> {
    let first = STAGED_WORDS + STAGED_TABLE_WORDS * table;
    first..first + STAGED_TABLE_WORDS
}

/// Packs one table's part and returns its mode.
fn pack_table(words: &mut [u32], layout: &TableLayout, bags: Bags, rest: usize) -> u32 {
    let Bags { ids, weights } = bags;
    let to = &mut words[layout.ids..][..ids.values.len()];
    to.iter_mut().zip(ids.values).for_each(|(to, &id)| *to = id as u32);
    let mut mode = 0;
    // An empty batch is one-hot, too: its offsets are not read.
    if !ids.is_one_hot() {
        words[layout.offsets..][..ids.offsets.len()].copy_from_slice(ids.offsets);
        mode |= MODE_BAGS;
        if layout.offsets > rest {
            mode |= MODE_NEEDS_REST;
        }
    }
    if !weights.is_empty() {
        let to = &mut words[layout.factors..][..weights.len()];
        to.iter_mut().zip(weights).for_each(|(to, weight)| *to = weight.to_bits());
        mode |= MODE_WEIGHTED | MODE_NEEDS_REST;
    }
    mode
}
