//! Rows in groups of one rate, and what a group contributes to a step.

use super::bags::Bags;
use super::{Chosen, Context, PlacementChoice, SplitOptions, gradient_bytes};
use crate::hybrid::cost::LocalWork;
use crate::hybrid::statistics::{Statistics, TableStatistics};
use crate::hybrid::traffic::{Hops, Rate, anywhere, vectors};
use crate::table::{Grain, Keys};
use std::ops::Range;

/// Rows of one table that were counted equally often.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) table: usize,
    pub(super) rate: Rate,
    /// How many there are.
    pub(super) rows: f64,
    /// Where they stand among the table's counted rows; empty where they are not known by name.
    pub(super) named: Range<usize>,
}

/// All rows of all tables.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Groups whose rows may become frequent, most frequent first.
    pub(super) ordered: Vec<Group>,
    /// Groups whose rows stay infrequent unless their whole table is replicated.
    pub(super) others: Vec<Group>,
    pub(super) lookups_per_step: f64,
    /// Lookups of each table in a step.
    pub(super) lookups: Vec<f64>,
    /// What owners are asked for, of tables whose bags they pool.
    pub(super) bags: Vec<Option<Bags>>,
}

impl Candidates {
    pub(super) fn new(statistics: &Statistics, options: &SplitOptions<'_>) -> Self {
        let lookups: Vec<f64> = (0..options.specs.len())
            .map(|table| statistics.lookups_per_step(table, options.batch_size))
            .collect();
        let bags = |table: usize| {
            let owners = match options.placement(table) {
                PlacementChoice::TableWise(_) => 1,
                _ => options.cluster.num_ranks(),
            };
            let pools = options.pools_at_owner(table);
            pools.then(|| Bags::of(statistics, table, options.batch_size, owners))
        };
        let mut all = Self {
            ordered: vec![],
            others: vec![],
            lookups_per_step: lookups.iter().sum(),
            bags: (0..lookups.len()).map(bags).collect(),
            lookups,
        };
        let evidence_steps = statistics.num_samples as f64 / options.batch_size.max(1) as f64;
        for (table, (spec, counted)) in options.specs.iter().zip(&statistics.tables).enumerate() {
            let may_split = spec.grain == Grain::Rows
                && spec.keys == Keys::RowIndices
                && options.placement(table) == PlacementChoice::Auto
                && !options.pools_at_owner(table);
            for group in groups(table, counted, evidence_steps) {
                let into = if may_split && !group.named.is_empty() {
                    &mut all.ordered
                } else {
                    &mut all.others
                };
                into.push(group);
            }
        }
        all.ordered.sort_by(|one, other| other.rate.lambda.total_cmp(&one.rate.lambda));
        all
    }

    /// Rows that may become frequent.
    pub(super) fn len(&self) -> u64 {
        self.ordered.iter().map(|group| group.named.len() as u64).sum()
    }

    /// The groups that the first `num_frequent` candidates are in, each with how many rows of it
    /// are among them.
    pub(super) fn first(&self, num_frequent: u64) -> impl Iterator<Item = (&Group, usize)> {
        let mut left = num_frequent;
        self.ordered.iter().map_while(move |group| {
            let taken = left.min(group.named.len() as u64);
            left -= taken;
            (taken > 0).then_some((group, taken as usize))
        })
    }

    pub(super) fn frequent_of_tables(&self, num_frequent: u64) -> Vec<u64> {
        let mut rows = vec![0; self.lookups.len()];
        self.first(num_frequent).for_each(|(group, taken)| rows[group.table] += taken as u64);
        rows
    }

    pub(super) fn covered_share(&self, table: usize, num_frequent: u64, whole: bool) -> f64 {
        if whole || self.lookups[table] == 0.0 {
            return f64::from(u8::from(whole));
        }
        let frequent = self.first(num_frequent).filter(|(group, _)| group.table == table);
        let covered: f64 = frequent.map(|(group, taken)| group.rate.lambda * taken as f64).sum();
        (covered / self.lookups[table]).min(1.0)
    }

    pub(super) fn of_table(&self, table: usize) -> impl Iterator<Item = &Group> {
        self.ordered.iter().chain(&self.others).filter(move |group| group.table == table)
    }
}

pub(super) fn groups(table: usize, counted: &TableStatistics, evidence_steps: f64) -> Vec<Group> {
    let rates = counted.rates();
    let mut start = 0;
    let group = |class: &crate::hybrid::statistics::RateClass| {
        let end = start + counted.counted[start..].partition_point(|row| row.count >= class.count);
        let named = if class.count > counted.error_bound { start..end } else { end..end };
        start = end;
        Group {
            table,
            rate: Rate {
                lambda: class.worth / evidence_steps,
                evidence_steps: if class.count == 0 { f64::INFINITY } else { evidence_steps },
            },
            rows: class.rows,
            named,
        }
    };
    rates.classes.iter().map(group).collect()
}

/// What rows add up to in a step.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    /// Bytes of vectors in one direction, over all ranks.
    pub(super) vector_bytes: Hops,
    /// Ids on their way, over all ranks.
    pub(super) requests: Hops,
    /// Bytes of frequent rows' gradients.
    pub(super) buffer_bytes: f64,
    /// Work of one rank.
    pub(super) work: LocalWork,
}

impl Sums {
    pub(super) fn add(&mut self, other: &Self, times: f64) {
        self.vector_bytes += other.vector_bytes * times;
        self.requests += other.requests * times;
        self.buffer_bytes += other.buffer_bytes * times;
        self.work.rows += other.work.rows * times;
        self.work.bytes += other.work.bytes * times;
    }
}

impl Context<'_> {
    /// What one infrequent row of a group adds.
    pub(super) fn infrequent(&self, group: &Group) -> Sums {
        let (options, spec) = (self.options, &self.options.specs[group.table]);
        let ranks = options.cluster.num_ranks() as f64;
        let moved =
            vectors(&options.cluster, self.variant.merge, self.variant.exchange, group.rate);
        let looked_up = group.rate.chance_in(1.0 / ranks);
        let updated = group.rate.chance_in(1.0) / ranks;
        // A rank that looks it up pools the vector and sums its gradient; an owner gathers and
        // receives for as many on average.
        let row = spec.dim as f64 * 4.0;
        if self.bags_of(group.table).is_some() {
            let bytes = updated * self.update_bytes(group.table);
            return Sums { work: LocalWork { rows: updated, bytes }, ..Sums::default() };
        }
        Sums {
            vector_bytes: moved * (spec.dim * options.wire_bytes) as f64,
            requests: moved,
            buffer_bytes: 0.0,
            work: LocalWork {
                rows: 2.0 * looked_up + updated,
                bytes: 8.0 * looked_up * row + updated * self.update_bytes(group.table),
            },
        }
    }

    /// What owners are asked for, where they pool the bags of the table.
    fn bags_of(&self, table: usize) -> Option<Bags> {
        self.candidates.bags[table].filter(|_| self.pools)
    }

    /// What a table adds besides its rows: bags that are pooled at the owner.
    fn pooled(&self, table: usize) -> Sums {
        let Some(Bags { lookups, vectors }) = self.bags_of(table) else { return Sums::default() };
        let (options, spec) = (self.options, &self.options.specs[table]);
        let moved = |number| anywhere(&options.cluster, self.variant.exchange, number);
        let ranks = options.cluster.num_ranks() as f64;
        let row = spec.dim as f64 * 4.0;
        Sums {
            vector_bytes: moved(vectors) * (spec.dim * options.wire_bytes) as f64,
            // A word for each id, and one before those of a bag.
            requests: moved(lookups + vectors),
            buffer_bytes: 0.0,
            // An owner gathers rows and sums gradients by row; a rank adds up parts and copies
            // gradients.
            work: LocalWork {
                rows: 2.0 * (lookups + vectors) / ranks,
                bytes: (2.0 * lookups + 6.0 * vectors) * row / ranks,
            },
        }
    }

    /// What one frequent row of a group adds.
    pub(super) fn frequent(&self, group: &Group) -> Sums {
        let spec = &self.options.specs[group.table];
        let touched = group.rate.chance_in(1.0);
        let looked_up = group.rate.chance_in(1.0 / self.options.cluster.num_ranks() as f64);
        let row = spec.dim as f64 * 4.0;
        Sums {
            buffer_bytes: self.options.summed_bytes(group.table),
            work: LocalWork {
                rows: looked_up + touched,
                // The buffer is cleared, the touched rows are updated by every rank.
                bytes: gradient_bytes(spec)
                    + 2.0 * looked_up * row
                    + touched * self.update_bytes(group.table),
            },
            ..Sums::default()
        }
    }

    /// Bytes of one update: the gradient read, row and state read and written.
    fn update_bytes(&self, table: usize) -> f64 {
        self.options.specs[table].dim as f64 * 4.0 + 2.0 * self.options.row_bytes(table) as f64
    }

    pub(super) fn nothing_frequent(&self) -> Sums {
        let mut sums = Sums::default();
        let candidates = self.candidates;
        for group in candidates.ordered.iter().chain(&candidates.others) {
            sums.add(&self.infrequent(group), group.rows);
        }
        (0..candidates.bags.len()).for_each(|table| sums.add(&self.pooled(table), 1.0));
        sums
    }

    /// Sums of one table with nothing frequent.
    pub(super) fn table_infrequent(&self, table: usize) -> Sums {
        let mut sums = self.pooled(table);
        self.candidates
            .of_table(table)
            .for_each(|group| sums.add(&self.infrequent(group), group.rows));
        sums
    }

    pub(super) fn table_frequent(&self, table: usize) -> Sums {
        let (mut sums, mut rows) = (Sums::default(), 0.0);
        for group in self.candidates.of_table(table) {
            sums.add(&self.frequent(group), group.rows);
            rows += group.rows;
        }
        // Rows that are not expected at all have their place in the buffer, too.
        let spec = &self.options.specs[table];
        let rest = (spec.rows as f64 - rows).max(0.0);
        sums.buffer_bytes += rest * self.options.summed_bytes(table);
        sums.work.bytes += rest * gradient_bytes(spec);
        sums
    }

    pub(super) fn table_sums(&self, table: usize, chosen: &Chosen) -> Sums {
        if chosen.whole[table] {
            return self.table_frequent(table);
        }
        let mut sums = self.table_infrequent(table);
        for (group, taken) in
            self.candidates.first(chosen.num_frequent).filter(|(group, _)| group.table == table)
        {
            sums.add(&self.infrequent(group), -(taken as f64));
            sums.add(&self.frequent(group), taken as f64);
        }
        sums
    }
}
