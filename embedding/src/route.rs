//! Route: which rows a batch touches, and which samples each of them owes its gradient to.
//!
//! For each table, the pairs (row, sample) of all ids are sorted by row, stably:
//!
//! ```text
//! ids      sample 0: 7 3    sample 1: (empty)    sample 2: 3 9 3
//! rows     3 7 9                unique, rising
//! starts   0 3 4 5              segment of row i: starts[i] .. starts[i + 1]
//! samples  0 2 2 | 0 | 2        rising within a segment; a sample occurs as often as the id in its bag
//! ```
//!
//! Shapes: at most `max_ids` entries per table, planned before the first step. Enqueues one sort
//! per table, tables in parallel; reads no weights, so a route may be made one batch ahead. Row
//! order and sample order do not depend on threads. Errors: row indices out of range, batches
//! beyond the plan. A radix sort by digits of at most 11 bits (Knuth, TAOCP 3, 5.2.5), as many as
//! the table's rows need; raw ids, which take all 64 bits, are sorted as pairs.

mod cpu;
pub(crate) mod cuda;
mod sort;

use crate::cuda::DeviceRoute;
use crate::error::{EmbeddingError, Result};
use crate::ids::{Ids, IdsOf, check_range, num_samples_of};
use crate::table::{Keys, Pooling, TableSpec};
use headlong_device::Stream;
use headlong_device::pool::Pool;
use std::ops::Range;

pub(crate) use cpu::{all_below, cut};
pub(crate) use sort::RadixSort;

/// The routes of one batch, one per table. Buffers are taken once and reused.
#[derive(Debug)]
pub struct Route {
    pub(crate) num_samples: usize,
    pub(crate) tables: Vec<TableRoute>,
    /// The route on a device: then there are no tables here.
    pub(crate) cuda: Option<Box<DeviceRoute>>,
}

impl Route {
    pub(crate) fn new(specs: &[TableSpec], max_samples: usize, max_ids: &[usize]) -> Self {
        let tables = specs
            .iter()
            .zip(max_ids)
            .map(|(spec, &ids)| TableRoute::new(spec, max_samples, ids, false))
            .collect();
        Self { num_samples: 0, tables, cuda: None }
    }

    pub(crate) fn on_device(route: DeviceRoute) -> Self {
        Self { num_samples: 0, tables: Vec::new(), cuda: Some(Box::new(route)) }
    }

    /// Whether a row and a sample, or the position of an id, fit one 64-bit key of the sort.
    pub(crate) fn fits(spec: &TableSpec, max_samples: usize, max_ids: usize) -> bool {
        spec.keys == Keys::RawIds || row_bits(spec) + low_bits(max_samples, max_ids) <= u64::BITS
    }

    /// Whether this route was made for tables of these shapes: then its rows lie inside them.
    pub(crate) fn is_for(&self, specs: &[TableSpec]) -> bool {
        self.tables.len() == specs.len()
            && self.tables.iter().zip(specs).all(|(table, spec)| table.table_rows == spec.rows)
    }

    /// On a CUDA device: packs the ids of a batch in page-locked memory, for [`Self::copy`]. The
    /// copy of the batch before must be done. Nothing on the CPU, where ids are read from where
    /// they are.
    ///
    /// # Errors
    /// Those of the CPU's route: [`EmbeddingError::IdOutOfRange`], [`EmbeddingError::Capacity`],
    /// and batches of another shape.
    pub fn stage(&mut self, ids: &dyn Ids) -> Result<()> {
        self.stage_part(&Pool::new(1), ids, 0..num_samples_of(ids))
    }

    /// As [`Self::stage`], of the samples `samples` of a batch, on all threads of `pool`.
    ///
    /// # Panics
    /// When the batch has fewer samples.
    pub(crate) fn stage_part(
        &mut self,
        pool: &Pool,
        ids: &dyn Ids,
        samples: Range<usize>,
    ) -> Result<()> {
        self.cuda.as_mut().map_or(Ok(()), |route| route.staging.stage(pool, ids, samples))
    }

    /// Enqueues the copy of what was staged. Nothing on the CPU.
    pub fn copy(&self, stream: &Stream) {
        if let Some(route) = &self.cuda {
            route.staging.copy(stream.cuda_body());
        }
    }

    /// Samples of the batch.
    pub fn num_samples(&self) -> usize {
        self.cuda.as_ref().map_or(self.num_samples, |route| route.staging.num_samples())
    }

    /// The route of table `index`.
    pub fn table(&self, index: usize) -> &TableRoute {
        &self.tables[index]
    }
}

/// The route of one batch through one table.
#[derive(Debug)]
pub struct TableRoute {
    /// Rows of the table; all rows of the route are below, unless they are raw ids.
    pub(crate) table_rows: u64,
    key_kind: Keys,
    /// Bits of a key that hold the sample or the position.
    low_bits: u32,
    sort: RadixSort,
    keys: Vec<u64>,
    spare: Vec<u64>,
    /// Raw ids do not share a word with a sample.
    pairs: Vec<(u64, u32)>,
    pub(crate) rows: Vec<u64>,
    pub(crate) starts: Vec<u32>,
    pub(crate) samples: Vec<u32>,
    pub(crate) num_rows: usize,
    pub(crate) num_ids: usize,
    /// Whether each id's position among the batch's ids is kept, besides its sample.
    keeps_positions: bool,
    /// Whether every bag of this batch holds one id: then positions are samples.
    one_each: bool,
    positions: Vec<u32>,
    sample_of: Vec<u32>,
    /// One over the bag's length, per sample, for mean pooling; else empty.
    pub(crate) reciprocals: Vec<f32>,
    /// The weight of each entry, where bags are weighted; else empty.
    pub(crate) factors: Vec<f32>,
    pub(crate) in_range: bool,
}

pub(crate) fn bits_below(count: u64) -> u32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}

fn row_bits(spec: &TableSpec) -> u32 {
    bits_below(spec.rows)
}

fn low_bits(max_samples: usize, max_ids: usize) -> u32 {
    bits_below(max_samples.max(max_ids) as u64)
}

impl TableRoute {
    pub(crate) fn new(
        spec: &TableSpec,
        max_samples: usize,
        max_ids: usize,
        keeps_positions: bool,
    ) -> Self {
        assert!(
            Route::fits(spec, max_samples, max_ids),
            "a row and a sample fit one key, which the set has checked"
        );
        let raw = spec.keys == Keys::RawIds;
        let low_bits = low_bits(max_samples, max_ids);
        let num_keys = if raw { 0 } else { max_ids };
        Self {
            table_rows: spec.rows,
            key_kind: spec.keys,
            low_bits,
            sort: RadixSort::new(if raw { 0 } else { row_bits(spec) }, low_bits),
            keys: vec![0; num_keys],
            spare: vec![0; num_keys],
            pairs: Vec::with_capacity(if raw { max_ids } else { 0 }),
            rows: vec![0; max_ids],
            starts: vec![0; max_ids + 1],
            samples: vec![0; max_ids],
            num_rows: 0,
            num_ids: 0,
            keeps_positions,
            one_each: true,
            positions: Vec::new(),
            sample_of: Vec::new(),
            reciprocals: vec![0.0; if spec.pooling == Pooling::Mean { max_samples } else { 0 }],
            factors: Vec::new(),
            in_range: true,
        }
    }

    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        (self.num_ids, self.num_rows) = (0, 0);
        self.starts[0] = 0;
    }

    /// Most ids of a batch.
    pub(crate) fn max_ids(&self) -> usize {
        self.samples.len()
    }

    /// Where each entry's id stands among the batch's ids, if positions are kept.
    pub(crate) fn positions(&self) -> &[u32] {
        let positions = if self.one_each { &self.samples } else { &self.positions };
        &positions[..self.num_ids]
    }

    /// The rows that the batch touches: unique, rising.
    pub fn rows(&self) -> &[u64] {
        &self.rows[..self.num_rows]
    }

    /// Where the samples of each row start in [`Self::samples`]; one more than there are rows.
    pub fn starts(&self) -> &[u32] {
        &self.starts[..self.num_rows + 1]
    }

    /// Samples, segment after segment.
    pub fn samples(&self) -> &[u32] {
        &self.samples[..self.num_ids]
    }

    /// The samples that hold row number `index` of [`Self::rows`], in rising order.
    pub fn segment(&self, index: usize) -> &[u32] {
        &self.samples[self.starts[index] as usize..self.starts[index + 1] as usize]
    }
}

/// What a route is made from.
pub(crate) struct RouteArgs<'a> {
    pub(crate) specs: &'a [TableSpec],
    pub(crate) num_samples: usize,
    pub(crate) max_samples: usize,
    pub(crate) ids: &'a IdsOf<'a>,
}

pub(crate) fn route(stream: &Stream, args: &RouteArgs, out: &mut Route) -> Result<()> {
    assert!(out.is_for(args.specs), "the route was made by the set that fills it");
    for (table, (spec, slot)) in args.specs.iter().zip(&out.tables).enumerate() {
        let num_ids = (args.ids)(table).ids.values.len();
        check_capacity(spec, (slot.max_ids(), args.max_samples), (num_ids, args.num_samples))?;
    }
    out.num_samples = args.num_samples;
    cpu::route(stream, args, out);
    if out.tables.iter().any(|table| !table.in_range) {
        check_range(args.specs, args.ids)?;
    }
    Ok(())
}

/// Checks ids and samples of a batch, `found`, against the most that were planned.
pub(crate) fn check_capacity(
    spec: &TableSpec,
    most: (usize, usize),
    found: (usize, usize),
) -> Result<()> {
    EmbeddingError::check_capacity(&spec.name, "ids", found.0, most.0)?;
    EmbeddingError::check_capacity(&spec.name, "samples", found.1, most.1)
}
