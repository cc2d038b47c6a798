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
//! Shapes: at most `max_ids` entries per table, planned before the first step. Enqueues one sort per table, tables in
//! parallel; reads no weights, so a route may be made one batch ahead. Row order and sample order do not depend on
//! threads. Errors: row indices out of range, batches beyond the plan. A radix sort by digits of at most 11 bits (Knuth,
//! TAOCP 3, 5.2.5), as many as the table's rows need.

mod cpu;

use crate::error::{EmbeddingError, Result};
use crate::ids::{IdsOf, check_range};
use crate::table::{Pooling, TableSpec};
use headlong_device::Stream;

/// Widest digit of the sort: its counts stay in the first-level cache.
pub(crate) const MAX_DIGIT_BITS: u32 = 11;

/// The routes of one batch, one per table. Buffers are taken once and reused.
#[derive(Debug)]
pub struct Route {
    pub(crate) num_samples: usize,
    pub(crate) tables: Vec<TableRoute>,
}

impl Route {
    pub(crate) fn new(specs: &[TableSpec], max_samples: usize, max_ids: &[usize]) -> Self {
        let tables =
            specs.iter().zip(max_ids).map(|(spec, &ids)| TableRoute::new(spec, max_samples, ids)).collect();
        Self { num_samples: 0, tables }
    }

    /// Bytes that a route of one table takes.
    pub(crate) fn bytes(spec: &TableSpec, max_samples: usize, max_ids: usize) -> u64 {
        // Two key buffers and the unique rows of 8 bytes, samples and starts of 4, and the reciprocals of bag lengths.
        let reciprocals = if spec.pooling == Pooling::Mean { max_samples * 4 } else { 0 };
        (max_ids * (2 * 8 + 8 + 4 + 4) + reciprocals) as u64
    }

    /// Whether a row and a sample of these fit one 64-bit key of the sort.
    pub(crate) fn fits(spec: &TableSpec, max_samples: usize) -> bool {
        row_bits(spec) + sample_bits(max_samples) <= u64::BITS
    }

    /// Whether this route was made for tables of these shapes: then its rows lie inside them.
    pub(crate) fn is_for(&self, specs: &[TableSpec]) -> bool {
        self.tables.len() == specs.len()
            && self.tables.iter().zip(specs).all(|(table, spec)| table.table_rows == spec.rows)
    }

    /// Samples of the batch.
    pub fn num_samples(&self) -> usize {
        self.num_samples
    }

    /// The route of table `index`.
    pub fn table(&self, index: usize) -> &TableRoute {
        &self.tables[index]
    }

    /// Tables, in the order of the set.
    pub fn tables(&self) -> &[TableRoute] {
        &self.tables
    }
}

/// The route of one batch through one table.
#[derive(Debug)]
pub struct TableRoute {
    /// Rows of the table; all rows of the route are below.
    table_rows: u64,
    pub(crate) sample_bits: u32,
    pub(crate) digits: Vec<Digit>,
    pub(crate) counts: Vec<u32>,
    pub(crate) keys: Vec<u64>,
    pub(crate) spare: Vec<u64>,
    pub(crate) rows: Vec<u64>,
    pub(crate) starts: Vec<u32>,
    pub(crate) samples: Vec<u32>,
    pub(crate) num_rows: usize,
    pub(crate) num_ids: usize,
    /// One over the bag's length, per sample, for mean pooling; else empty.
    pub(crate) reciprocals: Vec<f32>,
    pub(crate) in_range: bool,
}

/// One pass of the sort: `key >> shift & mask`, counted from `first_count` on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Digit {
    pub(crate) shift: u32,
    pub(crate) mask: u64,
    pub(crate) first_count: usize,
}

fn bits_below(count: u64) -> u32 {
    (u64::BITS - count.saturating_sub(1).leading_zeros()).max(1)
}

fn row_bits(spec: &TableSpec) -> u32 {
    bits_below(spec.rows)
}

fn sample_bits(max_samples: usize) -> u32 {
    bits_below(max_samples as u64)
}

impl TableRoute {
    fn new(spec: &TableSpec, max_samples: usize, max_ids: usize) -> Self {
        assert!(Route::fits(spec, max_samples), "a row and a sample fit one key, which the set has checked");
        let (row_bits, sample_bits) = (row_bits(spec), sample_bits(max_samples));
        let passes = row_bits.div_ceil(MAX_DIGIT_BITS);
        let width = row_bits.div_ceil(passes);
        let digits: Vec<_> = (0..passes)
            .map(|pass| Digit {
                shift: sample_bits + pass * width,
                mask: (1 << width) - 1,
                first_count: (pass as usize) << width,
            })
            .collect();
        let reciprocals = if spec.pooling == Pooling::Mean { max_samples } else { 0 };
        Self {
            table_rows: spec.rows,
            sample_bits,
            counts: vec![0; digits.len() << width],
            digits,
            keys: vec![0; max_ids],
            spare: vec![0; max_ids],
            rows: vec![0; max_ids],
            starts: vec![0; max_ids + 1],
            samples: vec![0; max_ids],
            num_rows: 0,
            num_ids: 0,
            reciprocals: vec![0.0; reciprocals],
            in_range: true,
        }
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
        let found = (args.ids)(table).values.len();
        let capacity = slot.keys.len();
        if found > capacity {
            return Err(EmbeddingError::Capacity { table: spec.name.clone(), what: "ids", found, capacity });
        }
        if args.num_samples > args.max_samples {
            return Err(EmbeddingError::Capacity {
                table: spec.name.clone(),
                what: "samples",
                found: args.num_samples,
                capacity: args.max_samples,
            });
        }
    }
    out.num_samples = args.num_samples;
    cpu::route(stream, args, out);
    if out.tables.iter().any(|table| !table.in_range) {
        check_range(args.specs, args.ids)?;
    }
    Ok(())
}
