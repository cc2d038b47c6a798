//! Dense columns one by one: what the numbers of each become, and which of them have a table, too.
//!
//! A table of bins stands behind those of the categorical columns. Its ids are small numbers: 0 for
//! a missing value, then the bins from 1 on.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::criteo::parse::{MISSING_DENSE, RawBlock};
use crate::error::{Result, refuse};
use crate::samples::{Hotness, IdBags, SparseColumn};
use crate::transform::name::DenseTransform;

/// What the numbers of one dense column become: `(transform(x) - mean) / scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnFunction {
    /// Not by the minimum of a file.
    pub transform: DenseTransform,
    /// Mean and scale of what the transform gives; a missing value counts as the mean then, else as
    /// 0 before the transform.
    pub standard: Option<(f64, f64)>,
}

impl ColumnFunction {
    /// The number that the model sees; `None` is a missing value.
    pub fn number(&self, number: Option<f64>) -> f32 {
        let transformed = |number| self.transform.of(number);
        match (self.standard, number) {
            (None, number) => transformed(number.unwrap_or(0.0)) as f32,
            (Some(_), None) => 0.0,
            (Some((mean, scale)), Some(number)) => ((transformed(number) - mean) / scale) as f32,
        }
    }
}

/// Which bin a number is in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bins {
    /// `⌊ln(x)²⌋ + 2` above 2, the whole part of x at or below, after the winners of Criteo's
    /// challenge.
    Ln2,
    /// As many edges as are at or below the number; they ascend.
    Edges(Vec<f64>),
}

impl Bins {
    /// The id of a number's bin; `None` is a missing value. It fits 32 bits.
    ///
    /// Bin b of edges is b + 1. Of `Ln2`, which has bins below 0, b is 2b + 1, and -b is 2b.
    pub fn id(&self, number: Option<f64>) -> u64 {
        let Some(number) = number else { return 0 };
        match self {
            Bins::Ln2 if number > 2.0 => 2 * number.ln().powi(2).floor() as u64 + 5,
            // Note: what is below the integers of 32 bits is in the bin of the smallest.
            Bins::Ln2 if number <= -1.0 => 2 * (-number).min(f64::from(i32::MAX)) as u64,
            Bins::Ln2 => 2 * number.max(0.0) as u64 + 1,
            Bins::Edges(edges) => edges.partition_point(|&edge| edge <= number) as u64 + 1,
        }
    }
}

/// A table of bins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BinnedColumn {
    /// The dense column whose numbers are in them.
    pub column: usize,
    /// Which is where.
    pub bins: Bins,
}

/// What becomes of each dense column.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseColumns {
    /// Of columns that nothing has been said of; data that has become numbers is said to have gone
    /// through it.
    pub transform: DenseTransform,
    /// One for each dense column.
    pub functions: Vec<ColumnFunction>,
    /// The tables behind those of the categorical columns.
    pub bins: Vec<BinnedColumn>,
    /// Of each dense column, its tables among these.
    tables: Vec<Vec<usize>>,
}

impl DenseColumns {
    /// What becomes of columns as `functions` and `bins` say.
    ///
    /// # Panics
    /// If there are bins of a column without a function.
    pub fn new(
        transform: DenseTransform,
        functions: Vec<ColumnFunction>,
        bins: Vec<BinnedColumn>,
    ) -> Self {
        let mut tables = vec![Vec::new(); functions.len()];
        for (table, binned) in bins.iter().enumerate() {
            tables[binned.column].push(table);
        }
        Self { transform, functions, bins, tables }
    }

    /// Refuses to be of other data.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`](crate::ReaderError::Invalid) with both numbers of columns.
    pub(crate) fn check(&self, num_dense: usize) -> Result<()> {
        let expected = self.functions.len();
        if expected != num_dense {
            refuse!("expected {expected} dense columns, found {num_dense}");
        }
        Ok(())
    }

    /// The tables of bins as columns of ids.
    pub(crate) fn sparse(&self, dense: &[String]) -> impl Iterator<Item = SparseColumn> {
        self.bins.iter().map(|binned| SparseColumn {
            name: format!("{} (bins)", dense[binned.column]),
            hotness: Hotness::Fixed(1),
        })
    }

    /// The numbers of `raw`, of whole samples.
    pub(crate) fn apply(&self, raw: &[i32], out: &mut [f32]) {
        let functions = self.functions.iter().cycle();
        for ((&value, out), function) in raw.iter().zip(out).zip(functions) {
            *out = function.number(number(value));
        }
    }

    /// Adds the bins of one number of `column` to the last lists of `sparse`.
    pub(crate) fn push_bins(&self, column: usize, number: Option<f64>, sparse: &mut [IdBags]) {
        let first = sparse.len() - self.bins.len();
        for &table in &self.tables[column] {
            sparse[first + table].ids.push(self.bins[table].bins.id(number));
        }
    }

    /// Adds the bins of the samples whose integers are `raw` to the last lists of `sparse`.
    pub(crate) fn extend_bins(&self, raw: &[i32], sparse: &mut [IdBags]) {
        for sample in raw.chunks(self.functions.len().max(1)) {
            for (column, &value) in sample.iter().enumerate() {
                self.push_bins(column, number(value), sparse);
            }
        }
    }

    /// Puts the bins of a block behind its `num_sparse` categories. `buffer` is kept for the next.
    pub(crate) fn widen(&self, block: &mut RawBlock, num_sparse: usize, buffer: &mut Vec<u32>) {
        let num_dense = self.functions.len();
        buffer.clear();
        for sample in 0..block.num_samples {
            let dense = &block.dense[sample * num_dense..][..num_dense];
            buffer.extend_from_slice(&block.sparse[sample * num_sparse..][..num_sparse]);
            let id = |binned: &BinnedColumn| binned.bins.id(number(dense[binned.column])) as u32;
            buffer.extend(self.bins.iter().map(id));
        }
        std::mem::swap(&mut block.sparse, buffer);
    }
}

/// Columns that several threads read by, where something has been said of single ones.
pub type SharedColumns = Option<Arc<DenseColumns>>;

fn number(raw: i32) -> Option<f64> {
    (raw != MISSING_DENSE).then_some(f64::from(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_small_numbers_and_a_missing_value_has_its_own() {
        let ids = |bins: &Bins, numbers: &[f64]| -> Vec<u64> {
            numbers.iter().map(|&number| bins.id(Some(number))).collect()
        };
        // ln(3)² is 1.2, behind the bins of 0, 1 and 2; ln(100)² is 21.2.
        let found = ids(&Bins::Ln2, &[-1e300, -2.5, -1.0, -0.5, 0.0, 1.9, 2.0, 3.0, 100.0]);
        assert_eq!(found, [4_294_967_294, 4, 2, 1, 1, 3, 5, 7, 47]);
        let edges = Bins::Edges(vec![0.0, 1.5]);
        assert_eq!(ids(&edges, &[-1.0, 0.0, 1.0, 1.5, 9.0]), [1, 2, 2, 3, 3]);
        assert_eq!((Bins::Ln2.id(None), edges.id(None)), (0, 0));
        assert_eq!(Bins::Ln2.id(Some(f64::MAX)), 2 * 503_793 + 1);
    }

    #[test]
    fn numbers_are_standardised_behind_the_transform() {
        let plain = ColumnFunction { transform: DenseTransform::LnPlus1, standard: None };
        assert_eq!((plain.number(None), plain.number(Some(-4.0))), (0.0, 0.0));
        let three = ColumnFunction { transform: DenseTransform::LnPlus3, ..plain };
        assert_eq!(three.number(None), 3_f64.ln() as f32);
        let standard = Some((2.0, 4.0));
        let same = ColumnFunction { transform: DenseTransform::Identity, standard };
        assert_eq!((same.number(None), same.number(Some(12.0))), (0.0, 2.5));
    }
}
