//! A batch on its way to the device: packed by the host in page-locked memory, copied inside the
//! step.

use super::layout::{
    Layout, MODE_BAGS, MODE_NEEDS_REST, MODE_WEIGHTED, STAGED_TABLE_WORDS, STAGED_WORDS,
};
use crate::error::{EmbeddingError, Result};
use crate::ids::{Bags, Ids, bags_of, check_range, num_samples};
use crate::table::TableSpec;
use headlong_device::cuda::{CudaDevice, CudaStream, DeviceMemory, DevicePtr, Pinned};
use headlong_device::pool::Pool;
use headlong_device::{JaggedRef, vectorized};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Samples of a table that one thread packs at a time.
const SAMPLES_A_TASK: usize = 8192;

/// Of a table in [`Staging::found`], besides its mode.
const ID_OUT_OF_RANGE: u32 = 1 << 31;

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
    /// What was found of each table while it was packed: its mode, and [`ID_OUT_OF_RANGE`].
    found: Vec<AtomicU32>,
    /// Where each task packs ids.
    places: Vec<Range<usize>>,
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
            found: specs.iter().map(|_| AtomicU32::new(0)).collect(),
            places: Vec::new(),
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

    /// Packs the ids of `samples` of a batch, on all threads of `pool`. The copy of the batch
    /// before must be done.
    ///
    /// # Errors
    /// [`EmbeddingError::IdOutOfRange`], [`EmbeddingError::Capacity`], and batches of another
    /// shape: those of the CPU's route. Samples are counted from the first that is packed.
    ///
    /// # Panics
    /// When the batch has fewer samples.
    pub(crate) fn stage(
        &mut self,
        pool: &Pool,
        ids: &dyn Ids,
        samples: Range<usize>,
    ) -> Result<()> {
        num_samples(&self.specs, ids)?;
        let taken = Taken { ids, samples };
        for (spec, (table, layout)) in self.specs.iter().zip(self.layout.tables.iter().enumerate())
        {
            let num_ids = taken.ids_of(table).len();
            EmbeddingError::check_capacity(&spec.name, "ids", num_ids, layout.max_ids)?;
            let most = self.layout.max_samples;
            EmbeddingError::check_capacity(&spec.name, "samples", taken.samples.len(), most)?;
        }
        self.pack_ids(pool, &taken);
        if self.found.iter_mut().any(|found| *found.get_mut() & ID_OUT_OF_RANGE != 0) {
            check_range(&self.specs, &|table| taken.bags_of(table))?;
        }
        self.begin(taken.samples.len());
        self.pack_bags(pool, &taken);
        Ok(())
    }

    /// Packs row indices. What is to be known of a table stands in `found` then: the ids are read
    /// once.
    fn pack_ids(&mut self, pool: &Pool, taken: &Taken) {
        self.found.iter_mut().for_each(|found| *found.get_mut() = 0);
        let Self { specs, layout, found, pinned, places, .. } = self;
        let chunks = taken.samples.len().div_ceil(SAMPLES_A_TASK);
        // A chunk of one table for each task.
        let part = |task: usize| {
            let (table, first) = (task / chunks, task % chunks * SAMPLES_A_TASK);
            let last = taken.samples.len().min(first + SAMPLES_A_TASK);
            (table, first as u32, taken.part(table, first..last))
        };
        places.clear();
        places.extend((0..specs.len() * chunks).map(|task| {
            let (table, _, ids) = part(task);
            let first = layout.tables[table].ids + ids.before;
            first..first + ids.rows.len()
        }));
        pool.ranges_mut(pinned.as_mut_slice::<u32>(), places, |task, to| {
            let (table, first, ids) = part(task);
            let in_range = narrow(to, ids.rows, specs[table].rows);
            let one_each = one_each(ids.offsets, ids.first_offset.wrapping_add(first));
            let bits = [(in_range, ID_OUT_OF_RANGE), (one_each, MODE_BAGS)];
            let bits = bits.map(|(usual, bit)| if usual { 0 } else { bit });
            found[table].fetch_or(bits[0] | bits[1], Ordering::Relaxed);
        });
    }

    /// Packs, of the tables that have such, where bags begin and the weights of ids; and the head.
    fn pack_bags(&mut self, pool: &Pool, taken: &Taken) {
        let rest = self.layout.main_words;
        let words = self.pinned.as_mut_slice::<u32>();
        for (table, layout) in self.layout.tables.iter().enumerate() {
            let ids = taken.part(table, 0..taken.samples.len());
            let mut mode = *self.found[table].get_mut() & MODE_BAGS;
            if mode != 0 {
                let to = &mut words[layout.offsets..][..ids.offsets.len()];
                copy(pool, to, ids.offsets, |at| at - ids.first_offset);
                mode |= if layout.offsets > rest { MODE_NEEDS_REST } else { 0 };
            }
            if !ids.weights.is_empty() {
                let to = &mut words[layout.factors..][..ids.weights.len()];
                copy(pool, to, ids.weights, |weight| weight.to_bits());
                mode |= MODE_WEIGHTED | MODE_NEEDS_REST;
            }
            self.needs_rest |= mode & MODE_NEEDS_REST != 0;
            words[place_of(table)].copy_from_slice(&[ids.rows.len() as u32, mode]);
        }
    }

    /// The bags of every table as they were staged, values and offsets.
    pub(crate) fn bags(&self) -> impl Iterator<Item = (Vec<u64>, Vec<u32>)> {
        (0..self.specs.len()).map(|table| self.unpack(table))
    }

    fn unpack(&self, table: usize) -> (Vec<u64>, Vec<u32>) {
        let (words, layout) = (self.pinned.as_slice::<u32>(), &self.layout.tables[table]);
        let [num_ids, mode] = [0, 1].map(|word| words[place_of(table).start + word]);
        let rows = words[layout.ids..][..num_ids as usize].iter().map(|&row| row.into());
        let offsets = match mode & MODE_BAGS {
            0 => (0..=num_ids).collect(),
            _ => words[layout.offsets..][..self.num_samples + 1].to_vec(),
        };
        (rows.collect(), offsets)
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

/// Samples of a batch that are packed.
struct Taken<'a> {
    ids: &'a dyn Ids,
    samples: Range<usize>,
}

/// Neighbouring samples of one table.
struct Part<'a> {
    rows: &'a [u64],
    weights: &'a [f32],
    /// Where their bags begin in the batch, and the last one ends.
    offsets: &'a [u32],
    /// Where the bag of the first sample that is packed begins in the batch.
    first_offset: u32,
    /// Ids that are packed before these.
    before: usize,
}

impl<'a> Taken<'a> {
    /// The bags of a table, their rows where they lie in the batch.
    fn bags_of(&self, table: usize) -> Bags<'a> {
        let Bags { ids: JaggedRef { values, offsets }, weights } = bags_of(self.ids, table);
        let offsets = &offsets[self.samples.start..=self.samples.end];
        Bags { ids: JaggedRef { values, offsets }, weights }
    }

    /// Where the ids of a table lie in the batch.
    fn ids_of(&self, table: usize) -> Range<usize> {
        let offsets = self.bags_of(table).ids.offsets;
        offsets[0] as usize..offsets[self.samples.len()] as usize
    }

    /// Those of the samples `of`, counted from the first that is packed.
    fn part(&self, table: usize, of: Range<usize>) -> Part<'a> {
        let Bags { ids, weights } = self.bags_of(table);
        let (first_offset, offsets) = (ids.offsets[0], &ids.offsets[of.start..=of.end]);
        let here = offsets[0] as usize..offsets[of.len()] as usize;
        Part {
            rows: &ids.values[here.clone()],
            weights: if weights.is_empty() { weights } else { &weights[here.clone()] },
            offsets,
            first_offset,
            before: here.start - first_offset as usize,
        }
    }
}

/// Copies by all threads, each element as `word` makes it.
fn copy<T: Copy + Sync>(pool: &Pool, to: &mut [u32], from: &[T], word: impl Fn(T) -> u32 + Sync) {
    pool.chunks_mut(to, SAMPLES_A_TASK, |task, to| {
        let from = &from[task * SAMPLES_A_TASK..];
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = word(from));
    });
}

vectorized! {
    /// Copies rows of a table of `num_rows`, and tells whether all are.
    fn narrow(to: &mut [u32], rows: &[u64], num_rows: u64) -> bool {
        to.iter_mut().zip(rows).fold(true, |fine, (to, &row)| {
            *to = row as u32;
            fine & (row < num_rows)
        })
    }

    /// Whether each offset is one more than the one before, from `first` on.
    fn one_each(offsets: &[u32], first: u32) -> bool {
        offsets.iter().zip(0_u32..).fold(true, |fine, (&offset, sample)| {
            fine & (offset == first.wrapping_add(sample))
        })
    }
}
