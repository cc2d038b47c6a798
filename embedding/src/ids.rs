//! The ids of one batch as the ops take them: for each table, a bag of row indices per sample.

use crate::error::{EmbeddingError, Result};
use crate::table::TableSpec;
use headlong_device::JaggedRef;

/// Row indices of one batch, one jagged list per table.
///
/// A batch type of one's own implements this; slices of views do already.
pub trait Ids: Sync {
    /// Number of tables.
    fn num_tables(&self) -> usize;

    /// The bags of table `index`. All tables of a batch have the same number of samples.
    fn table(&self, index: usize) -> JaggedRef<'_>;
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

/// Table index to bags.
pub(crate) type IdsOf<'a> = dyn Fn(usize) -> JaggedRef<'a> + Sync + 'a;

/// Checks that there is a list per table and that all have the same number of samples, and returns that number.
pub(crate) fn num_samples<I: Ids + ?Sized>(specs: &[TableSpec], ids: &I) -> Result<usize> {
    if ids.num_tables() != specs.len() {
        return Err(EmbeddingError::TableCount { expected: specs.len(), found: ids.num_tables() });
    }
    let expected = if specs.is_empty() { 0 } else { ids.table(0).num_samples() };
    for (table, spec) in specs.iter().enumerate() {
        let found = ids.table(table).num_samples();
        if found != expected {
            return Err(EmbeddingError::SampleCount { table: spec.name.clone(), expected, found });
        }
    }
    Ok(expected)
}

/// Finds the first row index out of range, in the order of tables and samples.
pub(crate) fn check_range(specs: &[TableSpec], ids: &IdsOf) -> Result<()> {
    for (table, spec) in specs.iter().enumerate() {
        let bags = ids(table);
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
