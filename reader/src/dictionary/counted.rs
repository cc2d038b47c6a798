//! A dictionary of data of any format: counted in memory, a number for each different id.

use std::collections::HashMap;

use super::{CountedFile, Dictionary, DictionaryColumn, DictionaryRule, MAX_DICTIONARY_ROWS};
use crate::disk::DiskOptions;
use crate::error::{Result, refuse};
use crate::formats::Source;
use crate::samples::Samples;

impl Dictionary {
    /// Counts the ids of all samples of `source`, of up to 64 bits.
    ///
    /// # Errors
    /// Those of reading; [`ReaderError::Invalid`](crate::ReaderError::Invalid) for a column with
    /// more ids than a dictionary can have.
    pub fn count(
        source: &dyn Source,
        rule: DictionaryRule,
        mut files: Vec<CountedFile>,
    ) -> Result<Self> {
        let mut stream = source.read_all(&DiskOptions::default())?;
        let mut counts = vec![HashMap::<u64, u64>::new(); source.schema().sparse.len()];
        let (mut samples, mut rows) = (Samples::default(), 0);
        while stream.next(&mut samples)? {
            rows += samples.num_samples as u64;
            for (counts, bags) in counts.iter_mut().zip(&samples.sparse) {
                bags.ids.iter().for_each(|&id| *counts.entry(id).or_default() += 1);
            }
        }
        // Formats count all files together.
        if let Some(first) = files.first_mut() {
            first.rows = rows;
        }
        let columns =
            counts.into_iter().map(|counts| column(counts, rule)).collect::<Result<_>>()?;
        Ok(Self::new(rule, files, columns))
    }
}

/// The ids that have rows of their own: by falling count, equal counts by rising id.
fn column(counts: HashMap<u64, u64>, rule: DictionaryRule) -> Result<DictionaryColumn> {
    let distinct = counts.len() as u64;
    let mut sights: Vec<(u64, u64)> = counts.into_iter().collect();
    sights.sort_unstable_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
    let frequent = sights.partition_point(|&(_, count)| count >= rule.min_count.max(1)) as u64;
    let kept = frequent.min(rule.max_rows.map_or(u64::MAX, |rows| rows.saturating_sub(1)));
    if kept >= MAX_DICTIONARY_ROWS {
        refuse!("a dictionary has room for {MAX_DICTIONARY_ROWS} rows, found {kept} ids");
    }
    let (own, shared) = sights.split_at(kept as usize);
    let (ids, counts) = own.iter().copied().unzip();
    Ok(DictionaryColumn {
        ids,
        counts,
        distinct,
        shared_count: shared.iter().map(|(_, count)| count).sum(),
    })
}
