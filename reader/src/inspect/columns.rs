//! Statistics of all columns, gathered block by block, each column on its own thread.

use std::sync::{Mutex, MutexGuard};

use headlong_device::pool::Pool;

use super::distinct::DistinctCounter;
use crate::criteo::RawBlock;
use crate::criteo::parse::MISSING_DENSE;
use crate::lock;
use crate::schema::Schema;

#[derive(Debug)]
pub(crate) struct ColumnStatistics {
    schema: Schema,
    pub rows: u64,
    /// Rows with label 1.
    pub clicks: u64,
    dense: Vec<Mutex<DenseStatistics>>,
    sparse: Vec<Mutex<SparseStatistics>>,
}

#[derive(Clone, Debug)]
pub(crate) struct DenseStatistics {
    pub missing: u64,
    pub negative: u64,
    /// Sum of the values present; 2⁶⁴ rows of 32 bits fit.
    pub sum: i128,
    pub minimum: i32,
    pub maximum: i32,
    pub values: DistinctCounter,
}

#[derive(Clone, Debug)]
pub(crate) struct SparseStatistics {
    pub missing: u64,
    pub values: DistinctCounter,
}

impl ColumnStatistics {
    /// Nothing seen; distinct values are counted exactly up to `exact_distinct`.
    pub fn new(schema: Schema, exact_distinct: usize) -> Self {
        let values = DistinctCounter::new(exact_distinct);
        let dense = DenseStatistics {
            missing: 0,
            negative: 0,
            sum: 0,
            minimum: i32::MAX,
            maximum: i32::MIN,
            values: values.clone(),
        };
        let sparse = SparseStatistics { missing: 0, values };
        Self {
            schema,
            rows: 0,
            clicks: 0,
            dense: (0..schema.num_dense).map(|_| Mutex::new(dense.clone())).collect(),
            sparse: (0..schema.num_sparse).map(|_| Mutex::new(sparse.clone())).collect(),
        }
    }

    pub fn add(&mut self, block: &RawBlock, pool: &Pool) {
        self.rows += block.num_samples as u64;
        self.clicks += block.labels.iter().map(|&label| u64::from(label)).sum::<u64>();
        let (num_dense, num_sparse) = (self.schema.num_dense, self.schema.num_sparse);
        pool.run(num_dense + num_sparse, &|task| match task.checked_sub(num_dense) {
            None => lock(&self.dense[task]).add(block.dense.iter().skip(task).step_by(num_dense)),
            Some(column) => {
                let ids = block.sparse.iter().skip(column).step_by(num_sparse);
                let missing = block.sparse_missing.iter().map(|bits| bits >> column & 1 == 1);
                lock(&self.sparse[column]).add(ids.copied().zip(missing));
            }
        });
    }

    pub fn dense(&self) -> impl Iterator<Item = MutexGuard<'_, DenseStatistics>> {
        self.dense.iter().map(lock)
    }

    pub fn sparse(&self) -> impl Iterator<Item = MutexGuard<'_, SparseStatistics>> {
        self.sparse.iter().map(lock)
    }
}

impl DenseStatistics {
    fn add<'a>(&mut self, values: impl Iterator<Item = &'a i32>) {
        for &value in values {
            if value == MISSING_DENSE {
                self.missing += 1;
                continue;
            }
            self.negative += u64::from(value < 0);
            self.sum += i128::from(value);
            self.minimum = self.minimum.min(value);
            self.maximum = self.maximum.max(value);
            self.values.see(u64::from(value as u32));
        }
    }

    /// Values with their counts, in rising order; none where they were estimated.
    pub fn sorted_counts(&self) -> Vec<(f64, u64)> {
        let (_, true) = self.values.distinct() else { return Vec::new() };
        let counts =
            self.values.counts().map(|(bits, count)| (f64::from(bits as u32 as i32), count));
        let mut counts: Vec<(f64, u64)> = counts.collect();
        counts.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        counts
    }
}

impl SparseStatistics {
    fn add(&mut self, ids: impl Iterator<Item = (u32, bool)>) {
        for (id, is_missing) in ids {
            if is_missing {
                self.missing += 1;
            } else {
                self.values.see(u64::from(id));
            }
        }
    }
}
