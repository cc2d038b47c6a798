//! The number of frequent rows that makes a step fastest.

use super::groups::Sums;
use super::{Chosen, Context, HybridMode, PlacementChoice, SplitError, WHOLE_TABLE_SLACK};
use crate::table::{Grain, Keys};

/// Up to this many candidates every number of frequent rows is tried.
const TRIED_ONE_BY_ONE: u64 = 50_000;

/// Of more, this many numbers within each group of equal rates, and all around the best.
const TRIED_PER_GROUP: u64 = 8;

impl Context<'_> {
    /// The best split for this way to exchange.
    pub(super) fn best(&self) -> Result<Chosen, SplitError> {
        let whole = self.forced_whole();
        let mut start = self.nothing_frequent();
        for table in (0..whole.len()).filter(|&table| whole[table]) {
            start.add(&self.table_infrequent(table), -1.0);
            start.add(&self.table_frequent(table), 1.0);
        }
        let most = self.most_rows(&whole)?;
        let is_single_rank = self.options.cluster.num_ranks() == 1;
        let num_frequent = match self.options.mode {
            _ if is_single_rank => 0,
            HybridMode::Off => 0,
            HybridMode::Rows(rows) => rows.min(self.candidates.len()),
            HybridMode::Auto => self.fastest(&start, most),
        };
        if num_frequent > most {
            return Err(self.too_much(&whole, num_frequent));
        }
        let mut chosen = Chosen { num_frequent, sums: self.sums_at(&start, num_frequent), whole };
        if self.options.mode == HybridMode::Auto && !is_single_rank {
            self.complete_tables(&mut chosen);
        }
        Ok(chosen)
    }

    /// Tables that are data-parallel in any case.
    fn forced_whole(&self) -> Vec<bool> {
        let options = self.options;
        (0..options.specs.len())
            .map(|table| options.placement(table) == PlacementChoice::DataParallel)
            .collect()
    }

    fn sums_at(&self, start: &Sums, num_frequent: u64) -> Sums {
        let mut sums = *start;
        for (group, taken) in self.candidates.first(num_frequent) {
            sums.add(&self.infrequent(group), -(taken as f64));
            sums.add(&self.frequent(group), taken as f64);
        }
        sums
    }

    /// The true minimum over `0..=most`.
    fn fastest(&self, start: &Sums, most: u64) -> u64 {
        let one_by_one = most <= TRIED_ONE_BY_ONE;
        let mut best = (self.total_us(start), 0);
        let (mut sums, mut done) = (*start, 0);
        let mut ranges = Vec::new();
        for group in &self.candidates.ordered {
            let len = (group.named.len() as u64).min(most - done);
            if len == 0 {
                break;
            }
            let mut change = self.frequent(group);
            change.add(&self.infrequent(group), -1.0);
            let stride = if one_by_one { 1 } else { len.div_ceil(TRIED_PER_GROUP) };
            let range = Tried { start: sums, change, first: done, len };
            self.try_range(&range, stride, &mut best);
            ranges.push(range);
            sums.add(&change, len as f64);
            done += len;
        }
        if !one_by_one {
            let near = ranges.partition_point(|range| range.first + range.len < best.1);
            let (from, to) = (near.saturating_sub(1), (near + 2).min(ranges.len()));
            ranges[from..to].iter().for_each(|range| self.try_range(range, 1, &mut best));
        }
        best.1
    }

    fn try_range(&self, range: &Tried, stride: u64, best: &mut (f64, u64)) {
        let steps = (1..=range.len / stride).map(|step| step * stride).chain([range.len]);
        for taken in steps {
            let mut sums = range.start;
            sums.add(&range.change, taken as f64);
            let time = self.total_us(&sums);
            if time < best.0 {
                *best = (time, range.first + taken);
            }
        }
    }

    /// Makes tables wholly frequent where the step does not take longer for it.
    fn complete_tables(&self, chosen: &mut Chosen) {
        let options = self.options;
        let frequent = self.candidates.frequent_of_tables(chosen.num_frequent);
        for table in 0..options.specs.len() {
            let spec = &options.specs[table];
            let may =
                options.placement(table) == PlacementChoice::Auto && spec.keys == Keys::RowIndices;
            // A table of which the search wants nothing stays as it is, unless it is all or
            // nothing.
            if !may || (spec.grain == Grain::Rows && frequent[table] == 0) {
                continue;
            }
            let mut sums = chosen.sums;
            sums.add(&self.table_sums(table, chosen), -1.0);
            sums.add(&self.table_frequent(table), 1.0);
            let slack = if spec.grain == Grain::Rows { WHOLE_TABLE_SLACK } else { 0.0 };
            if self.total_us(&sums) > self.total_us(&chosen.sums) * (1.0 + slack) {
                continue;
            }
            let mut whole = chosen.whole.clone();
            whole[table] = true;
            if self.fits(&whole, chosen.num_frequent) {
                (chosen.whole, chosen.sums) = (whole, sums);
            }
        }
    }

    /// The most candidates that memory allows to be frequent.
    fn most_rows(&self, whole: &[bool]) -> Result<u64, SplitError> {
        if !self.fits(whole, 0) {
            return Err(self.too_much(whole, 0));
        }
        let (mut fits, mut too_many) = (0, self.candidates.len() + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            *(if self.fits(whole, middle) { &mut fits } else { &mut too_many }) = middle;
        }
        Ok(fits)
    }

    fn fits(&self, whole: &[bool], num_frequent: u64) -> bool {
        let (owned, replicated) = self.bytes(whole, num_frequent);
        self.options.replicated_limit_bytes.is_none_or(|limit| replicated <= limit)
            && self.options.memory_limit_bytes.is_none_or(|limit| owned + replicated <= limit)
    }

    fn too_much(&self, whole: &[bool], num_frequent: u64) -> SplitError {
        let (owned, replicated) = self.bytes(whole, num_frequent);
        let replicas = self.options.replicated_limit_bytes.filter(|&limit| replicated > limit);
        let (needed_bytes, limit_bytes) = match replicas {
            Some(limit) => (replicated, limit),
            None => (owned + replicated, self.options.memory_limit_bytes.unwrap_or(u64::MAX)),
        };
        SplitError::Memory { needed_bytes, limit_bytes, frequent_rows: num_frequent }
    }

    /// Bytes that a rank's own rows and its replicas take. The places of frequent rows in the
    /// shards stay empty, so owned rows do not become fewer; tables on one rank are taken as spread
    /// evenly.
    fn bytes(&self, whole: &[bool], num_frequent: u64) -> (u64, u64) {
        let (options, ranks) = (self.options, self.options.cluster.num_ranks() as u64);
        let frequent = self.candidates.frequent_of_tables(num_frequent);
        let tables = options.specs.iter().zip(frequent).zip(whole).enumerate();
        tables.fold((0, 0), |(owned, replicated), (table, ((spec, frequent), &whole))| {
            let replicas = if whole { spec.rows } else { frequent };
            let shard = if whole { 0 } else { spec.rows.div_ceil(ranks) };
            (
                owned + options.held_bytes(table, shard),
                replicated + options.replica_bytes(table, replicas),
            )
        })
    }
}

/// Candidates of one group: making each frequent changes the sums alike.
struct Tried {
    start: Sums,
    change: Sums,
    first: u64,
    len: u64,
}
