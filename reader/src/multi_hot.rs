//! Synthetic multi-hot data, made of one-hot data while it is read: the generator of MLPerf's
//! DLRM-DCNv2.
//!
//! # What it computes
//! Every row `r` of a table with H ids a sample stands for a bag: `r` itself, then H − 1 rows of
//! the same table that were drawn once, at the start. So equal ids have equal bags, and nothing has
//! to be stored but the draws: 3.8 TB of files become (H − 1) numbers a row.
//!
//! The draws are numpy's, number for number: `numpy.random.seed(seed)` once, then table by table,
//! row by row, `randint(0, rows)` or `pareto(0.25)` cut to 32 bits and taken modulo the rows.
//!
//! # Memory and time
//! Σ rows · (H − 1) · 4 bytes ([`MultiHot::bytes_needed`]); at MLPerf's sizes 23 GB, drawn by one
//! thread: the order of draws is what has to be numpy's. Under a bound
//! ([`MultiHotSpec::memory_bytes`]) only small tables are kept whole. Of the others the generator's
//! state is kept every so many rows, from which a row's numbers are made again, and a cache of rows
//! that came last. The bags are the same. Expanding allocates nothing once buffers have grown.
//!
//! # Errors
//! [`ReaderError::Invalid`] for sizes that do not fit the tables, and for memory that the system
//! refuses.
//!
//! # Source
//! mlcommons/training, `recommendation_v2/torchrec_dlrm/data/multi_hot_criteo.py` and
//! `scripts/materialize_synthetic_multihot_dataset.py`; Matsumoto and Nishimura, "Mersenne
//! Twister", ACM TOMACS 8(1), 1998.

mod draws;
mod mt19937;
#[cfg(test)]
mod tests;

use draws::{Draws, Shape};
pub use mt19937::Mt19937;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Jagged};
use crate::error::{ReaderError, Result};
use crate::samples::{DataSchema, Hotness, IdBags};
use crate::skipped::SkipReport;
use crate::{Progress, Reader, ReaderState};

pub use crate::formats::records::DCNV2_HOTNESS as MLPERF_SIZES;

const PARETO_SHAPE: f64 = 0.25;

/// Most rows of a table that rows are drawn of: numpy's numbers have 32 bits.
pub const MAX_ROWS: u64 = 1 << 31;

/// How the rows after the first are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Every row of the table alike: what MLPerf's data was made with.
    #[default]
    Uniform,
    /// Low rows far more often than high ones.
    Pareto,
}

impl std::str::FromStr for Distribution {
    type Err = ReaderError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "pareto" => Ok(Self::Pareto),
            _ => {
                Err(invalid(format!("distribution: expected uniform or pareto, found \"{text}\"")))
            }
        }
    }
}

/// What is to be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiHotSpec {
    /// Ids a sample in each column, the first of them the file's.
    pub sizes: Vec<u32>,
    /// How the others are drawn.
    pub distribution: Distribution,
    /// Where numpy's generator starts: 0 for MLPerf's data.
    pub seed: u32,
    /// Most memory for them; none: as much as all take. The bags are the same.
    pub memory_bytes: Option<u64>,
}

/// The bags of all rows of all tables.
#[derive(Debug)]
pub struct MultiHot {
    rows: Vec<u64>,
    sizes: Vec<u32>,
    /// Of each table, its rows' other ids: H − 1 for each.
    others: Vec<Draws>,
}

impl MultiHot {
    /// Draws the bags of tables of `rows[t]` rows.
    pub fn new(rows: &[u64], spec: &MultiHotSpec) -> Result<Self> {
        if spec.sizes.len() != rows.len() || spec.sizes.contains(&0) {
            let expected =
                format!("expected {} sizes of at least 1, one for each column", rows.len());
            return Err(invalid(format!("multi-hot: {expected}; found {:?}", spec.sizes)));
        }
        if let Some(table) = rows.iter().position(|&rows| rows == 0 || rows > MAX_ROWS) {
            let found = rows[table];
            return Err(invalid(format!(
                "multi-hot: C{}: expected 1 to 2^31 rows, found {found}",
                table + 1
            )));
        }
        let mut random = Mt19937::new(spec.seed);
        let shapes = shapes(rows, &spec.sizes, spec.distribution);
        let holdings = draws::hold(&shapes, spec.memory_bytes);
        let drawn = shapes.into_iter().zip(holdings);
        let others = drawn.map(|(shape, holding)| Draws::new(shape, holding, &mut random));
        Ok(Self {
            rows: rows.to_vec(),
            sizes: spec.sizes.clone(),
            others: others.collect::<Result<_>>()?,
        })
    }

    /// Bytes that the draws take, `memory_bytes` at most as far as that is possible:
    /// [`MultiHotSpec::memory_bytes`].
    pub fn bytes_needed(rows: &[u64], sizes: &[u32], memory_bytes: Option<u64>) -> u64 {
        let shapes = shapes(rows, sizes, Distribution::default());
        let holdings = draws::hold(&shapes, memory_bytes);
        shapes
            .iter()
            .zip(holdings)
            .map(|(shape, holding)| draws::bytes(shape, holding))
            .fold(0, u64::saturating_add)
    }

    /// Ids a sample in each column.
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// Makes bags of one row each into whole ones.
    ///
    /// # Panics
    /// If a bag does not hold one row of its table, which one-hot data does.
    pub fn expand(&self, sparse: &mut [Jagged], buffer: &mut Vec<u64>) {
        assert_eq!(sparse.len(), self.sizes.len(), "one size for each column");
        for (column, bags) in sparse.iter_mut().enumerate() {
            assert_eq!(
                bags.values.len() + 1,
                bags.offsets.len(),
                "C{}: one id a sample",
                column + 1
            );
            let size = self.sizes[column];
            if size > 1 {
                self.fill(column, &bags.values, buffer);
                std::mem::swap(&mut bags.values, buffer);
                bags.offsets.iter_mut().zip(0..).for_each(|(offset, index)| *offset = index * size);
            }
        }
    }

    /// As [`Self::expand`], for samples on their way between formats.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] for an id that is no row of its table, naming column and id.
    pub fn expand_samples(&self, sparse: &mut [IdBags], buffer: &mut Vec<u64>) -> Result<()> {
        for (column, bags) in sparse.iter_mut().enumerate() {
            let rows = if self.sizes[column] == 1 { u64::MAX } else { self.rows[column] };
            if let Some(id) = bags.ids.iter().find(|&&id| id >= rows) {
                let message = format!(
                    "multi-hot: C{}: id {id} is none of the table's {rows} rows",
                    column + 1
                );
                return Err(invalid(message));
            }
            self.fill(column, &bags.ids, buffer);
            std::mem::swap(&mut bags.ids, buffer);
        }
        Ok(())
    }

    /// The columns that data has once each column has so many ids a sample.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] where a column does not hold one id a sample.
    pub fn expanded(sizes: &[u32], schema: &DataSchema) -> Result<DataSchema> {
        let mut expanded = schema.clone();
        if schema.sparse.len() != sizes.len() {
            let (expected, found) = (sizes.len(), schema.sparse.len());
            return Err(invalid(format!("multi-hot: expected {expected} columns, found {found}")));
        }
        for (column, &size) in expanded.sparse.iter_mut().zip(sizes) {
            if column.hotness != Hotness::Fixed(1) {
                let found = format!("column {} has {:?}", column.name, column.hotness);
                return Err(invalid(format!(
                    "multi-hot: expected one id a sample in each column; {found}"
                )));
            }
            column.hotness = Hotness::Fixed(size);
        }
        Ok(expanded)
    }

    fn fill(&self, column: usize, rows: &[u64], to: &mut Vec<u64>) {
        to.clear();
        self.others[column].fill(rows, self.sizes[column] as usize - 1, to);
    }
}

fn shapes(rows: &[u64], sizes: &[u32], distribution: Distribution) -> Vec<Shape> {
    let shape = |(&rows, &size): (&u64, &u32)| Shape {
        rows,
        per_row: u64::from(size.saturating_sub(1)),
        distribution,
    };
    rows.iter().zip(sizes).map(shape).collect()
}

fn invalid(message: String) -> ReaderError {
    ReaderError::Invalid { message }
}

/// A reader of one-hot data whose batches are made multi-hot, where there are bags to make them of.
pub struct MultiHotReader<R> {
    inner: R,
    bags: Option<Arc<MultiHot>>,
    buffer: Vec<u64>,
}

impl<R: Reader> MultiHotReader<R> {
    /// Expands the batches of `inner`.
    pub fn new(inner: R, bags: Option<Arc<MultiHot>>) -> Self {
        Self { inner, bags, buffer: Vec::new() }
    }

    /// The reader below.
    pub fn inner(&self) -> &R {
        &self.inner
    }
}

impl<R: Reader> Reader for MultiHotReader<R> {
    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let more = self.inner.next(batch)?;
        if let Some(bags) = self.bags.as_ref().filter(|_| more) {
            bags.expand(&mut batch.sparse, &mut self.buffer);
        }
        Ok(more)
    }

    fn state(&self) -> &ReaderState {
        self.inner.state()
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }

    fn skip_report(&self) -> SkipReport {
        self.inner.skip_report()
    }
}
