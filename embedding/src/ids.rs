//! The ids of one batch as the ops take them: for each table, a bag of row indices per sample.

use crate::error::{EmbeddingError, Result};
use crate::table::{Keys, Pooling, TableSpec};
use headlong_device::JaggedRef;

/// Row indices of one batch, one jagged list per table.
///
/// A batch type of one's own implements this; slices of views do already.
pub trait Ids: Sync {
    /// Number of tables.
    fn num_tables(&self) -> usize;

    /// The bags of table `index`. All tables of a batch have the same number of samples.
    fn table(&self, index: usize) -> JaggedRef<'_>;

    /// Weights of the ids of table `index`, one per value, if its bags are weighted: then a row
    /// enters its bag's sum times its weight, and takes the bag's gradient times its weight. The
    /// weights themselves get no gradient.
    ///
    /// Only sums can be weighted; a table with mean pooling refuses weights, as PyTorch's
    /// `EmbeddingBag` does with `per_sample_weights`. (Give weights that add up to one where a
    /// weighted mean is meant.)
    fn weights(&self, _index: usize) -> Option<&[f32]> {
        None
    }
}

impl Ids for [JaggedRef<'_>] {
    fn num_tables(&self) -> usize {
        self.len()
    }

    fn table(&self, index: usize) -> JaggedRef<'_> {
        self[index]
    }
}

impl Ids for Vec<JaggedRef<'_>> {
    fn num_tables(&self) -> usize {
        self.len()
    }

    fn table(&self, index: usize) -> JaggedRef<'_> {
        self[index]
    }
}

/// The bags of one table, and the weights of their ids: none where the bags are not weighted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bags<'a> {
    pub(crate) ids: JaggedRef<'a>,
    pub(crate) weights: &'a [f32],
}

/// Table index to bags.
pub(crate) type IdsOf<'a> = dyn Fn(usize) -> Bags<'a> + Sync + 'a;

/// What the ops take ids as.
pub(crate) fn bags_of<I: Ids + ?Sized>(ids: &I, table: usize) -> Bags<'_> {
    Bags { ids: ids.table(table), weights: ids.weights(table).unwrap_or(&[]) }
}

/// Samples of a batch, as its first table has them.
pub(crate) fn num_samples_of<I: Ids + ?Sized>(ids: &I) -> usize {
    if ids.num_tables() == 0 { 0 } else { ids.table(0).num_samples() }
}

/// Checks that there is a list per table, that all have the same number of samples and that weights
/// fit, and returns the number of samples.
pub(crate) fn num_samples<I: Ids + ?Sized>(specs: &[TableSpec], ids: &I) -> Result<usize> {
    if ids.num_tables() != specs.len() {
        return Err(EmbeddingError::TableCount { expected: specs.len(), found: ids.num_tables() });
    }
    let expected = num_samples_of(ids);
    for (table, spec) in specs.iter().enumerate() {
        let found = ids.table(table).num_samples();
        if found != expected {
            return Err(EmbeddingError::SampleCount { table: spec.name.clone(), expected, found });
        }
        check_weights(spec, ids.table(table).values.len(), ids.weights(table))?;
    }
    Ok(expected)
}

fn check_weights(spec: &TableSpec, num_ids: usize, weights: Option<&[f32]>) -> Result<()> {
    let Some(weights) = weights else { return Ok(()) };
    let refuse = |reason| Err(EmbeddingError::Weights { table: spec.name.clone(), reason });
    if spec.pooling == Pooling::Mean {
        return refuse("only sums can be weighted, the table has pooling = mean".to_owned());
    }
    if weights.len() != num_ids {
        return refuse(format!("{} weights for {num_ids} ids; there is one per id", weights.len()));
    }
    Ok(())
}

/// Finds the first row index out of range, in the order of tables and samples.
pub(crate) fn check_range(specs: &[TableSpec], ids: &IdsOf) -> Result<()> {
    for (table, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.keys == Keys::RowIndices)
    {
        let bags = ids(table).ids;
        for sample in 0..bags.num_samples() {
            if let Some(&index) = bags.bag(sample).iter().find(|&&row| row >= spec.rows) {
                return Err(EmbeddingError::IdOutOfRange {
                    table: spec.name.clone(),
                    index,
                    sample,
                    rows: spec.rows,
                });
            }
        }
    }
    Ok(())
}
