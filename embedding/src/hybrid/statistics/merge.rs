//! Statistics of other batches of the same data, added up.

use super::counter::{RowMap, Sampler, sample_capacity};
use super::{RowCount, Statistics, StatisticsError, StatisticsOptions, TableStatistics, sort_rows};

impl Statistics {
    /// Adds what was counted in other batches. Bounds add up; a table that has more distinct rows
    /// than `options.capacity` now keeps the most frequent ones, and is no longer exact.
    ///
    /// # Errors
    /// [`StatisticsError::OtherTables`].
    pub fn merge(
        &mut self,
        other: &Self,
        options: &StatisticsOptions,
    ) -> Result<(), StatisticsError> {
        let same = self.tables.len() == other.tables.len()
            && self
                .tables
                .iter()
                .zip(&other.tables)
                .all(|(a, b)| (&a.name, a.rows) == (&b.name, b.rows));
        if !same {
            let names = |tables: &[TableStatistics]| -> Vec<_> {
                tables.iter().map(|table| (table.name.clone(), table.rows)).collect()
            };
            return Err(StatisticsError::OtherTables {
                reason: format!("{:?} and {:?}", names(&self.tables), names(&other.tables)),
            });
        }
        self.num_batches += other.num_batches;
        self.num_samples += other.num_samples;
        self.batch_size = self.batch_size.max(other.batch_size);
        for (table, other) in self.tables.iter_mut().zip(&other.tables) {
            table.merge(other, options.capacity.max(1));
        }
        Ok(())
    }
}

impl TableStatistics {
    fn merge(&mut self, other: &Self, capacity: usize) {
        let mut counts: RowMap<u64> = self.counted.iter().map(|row| (row.row, row.count)).collect();
        for row in &other.counted {
            *counts.entry(row.row).or_default() += row.count;
        }
        let exact = self.is_exact() && other.is_exact();
        if !exact || counts.len() > capacity {
            self.sample = Some(merged_sample(self, other, capacity));
        }
        self.lookups += other.lookups;
        self.error_bound += other.error_bound;
        self.counted = counts.into_iter().map(|(row, count)| RowCount { row, count }).collect();
        sort_rows(&mut self.counted);
        if self.counted.len() > capacity {
            // A row that is dropped may have its count and, had it not been exact, the bound
            // besides.
            self.error_bound += self.counted[capacity].count;
            self.counted.truncate(capacity);
        }
    }
}

fn merged_sample(
    one: &TableStatistics,
    other: &TableStatistics,
    capacity: usize,
) -> super::RowSample {
    let mut sampler = Sampler::new(sample_capacity(capacity), std::iter::empty());
    for table in [one, other] {
        if let Some(sample) = &table.sample {
            sampler.raise_to(sample.level);
        }
    }
    for table in [one, other] {
        let rows = table.sample.as_ref().map_or(&table.counted, |sample| &sample.rows);
        rows.iter().for_each(|row| sampler.add(row.row, row.count));
    }
    sampler.finish()
}
