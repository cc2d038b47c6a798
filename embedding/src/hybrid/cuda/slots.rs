//! How large the slots are that a rank on a device has for its peers.

use crate::hybrid::options::{
    Deduplicate, HybridOptions, PoolAt, SlotOptions, SlotTable, gradients_of,
};
use crate::table::TableSpec;
use headlong_device::DType;

/// Words before the counts in a slot of ids: two of [`StripSizes`](super::StripSizes), or all.
pub(super) const HEAD: usize = 2;
pub(super) const HEAD_OF_PROXY: usize = 4;

/// How large slots are.
#[derive(Debug, Clone, Copy)]
pub(in crate::hybrid) struct SlotShape {
    /// Words of a slot of ids: those before the counts, one count per table, then rows.
    pub(in crate::hybrid) words: usize,
    pub(in crate::hybrid) head: usize,
    pub(in crate::hybrid) rows: usize,
    /// Elements of a slot of vectors.
    pub(in crate::hybrid) elements: usize,
    /// Of vectors; their gradients, which lie in the same slots, are of [`Self::gradients`].
    pub(in crate::hybrid) dtype: DType,
    pub(in crate::hybrid) peers: usize,
    /// Words of requests that the largest batch asks the busiest owner for, if no two ids are equal
    /// and owners are asked in proportion to their rows.
    pub(in crate::hybrid) even_words: usize,
}

/// What a rank's batch may ask for.
#[derive(Debug, Clone)]
pub(in crate::hybrid) struct Planned<'a> {
    /// Most ids, per table.
    pub(super) max_ids: Vec<usize>,
    max_samples: usize,
    /// Where bags become vectors, per table; none: all on the rank.
    pool_at: &'a [PoolAt],
    /// How many even shares of them a slot has room for.
    shares: f64,
    slots: SlotOptions,
    /// Whether equal rows are requested once.
    pub(super) merges: bool,
}

impl<'a> Planned<'a> {
    /// Where `peers` are asked on behalf of `ranks` ranks.
    pub(in crate::hybrid) fn of(
        specs: &[TableSpec],
        options: &HybridOptions<'a>,
        ranks: usize,
        peers: usize,
    ) -> Self {
        let (merges, slots) = (options.deduplicate != Deduplicate::Off, options.slots);
        let max_ids = options.set.max_ids.iter().map(|ids| ids * ranks).collect();
        let max_samples = options.set.max_samples;
        let mut planned =
            Self { max_ids, max_samples, pool_at: options.pool_at, shares: 1.0, slots, merges };
        let tables = specs.iter().enumerate();
        let tables = tables.map(|(table, spec)| planned.slot_table(table, spec.rows, spec.dim));
        planned.shares = slots.shares(tables, peers);
        planned
    }

    /// Whether the bags of table `table` are pooled at the owner.
    pub(super) fn pools(&self, table: usize) -> bool {
        self.pool_at.get(table) == Some(&PoolAt::Owner)
    }

    fn slot_table(&self, table: usize, rows: u64, dim: usize) -> SlotTable {
        let bags = self.pools(table).then_some(self.max_samples as u64);
        SlotTable { ids: self.max_ids[table] as u64, rows, dim: dim as u64, bags }
    }
}

/// What one rank's slot for an owner has room for, of one table.
#[derive(Debug, Clone, Copy, Default)]
struct PlannedList {
    rows: usize,
    vectors: usize,
    /// Words that ask for them.
    words: usize,
}

/// Those who are asked: how many they are, and the rows of a table that one of them has.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) peers: usize,
    pub(super) rows: &'a dyn Fn(usize, usize) -> u64,
}

/// What one rank's slot for `peer` is planned for, of table `table`.
fn planned_list(
    asked: Asked<'_>,
    planned: &Planned<'_>,
    (table, peer): (usize, usize),
) -> PlannedList {
    let (ids, local) = (planned.max_ids[table], (asked.rows)(table, peer));
    if local == 0 {
        return PlannedList::default();
    }
    if !planned.merges && !planned.pools(table) {
        // All ids may be of one frequent row.
        return PlannedList { rows: ids, vectors: ids, words: ids };
    }
    let owners = asked.peers;
    let total: u64 = (0..owners).map(|peer| (asked.rows)(table, peer)).sum();
    // Where the table is one owner's, all ids are.
    let shares = if local == total { owners as f64 } else { planned.shares };
    let slot = planned.slot_table(table, local, 0);
    let rows = slot.rows_of_slot(shares, owners) as usize;
    let vectors = slot.vectors_of_slot(shares, owners) as usize;
    let of_bags = if planned.pools(table) { 1 + vectors } else { 0 };
    PlannedList { rows, vectors, words: of_bags + rows }
}

impl SlotShape {
    pub(in crate::hybrid) fn gradients(&self) -> DType {
        gradients_of(self.dtype)
    }

    /// A little more than an even share, in words.
    pub(super) fn first_words(&self) -> usize {
        self.even_words + 4 * (self.even_words as f64).sqrt() as usize
    }

    /// The larger of both in everything.
    pub(super) fn or_larger(self, other: Self) -> Self {
        Self {
            words: self.words.max(other.words),
            rows: self.rows.max(other.rows),
            elements: self.elements.max(other.elements),
            even_words: self.even_words.max(other.even_words),
            ..self
        }
    }

    pub(super) fn new(
        specs: &[TableSpec],
        asked: Asked<'_>,
        most: &Planned<'_>,
        head: usize,
    ) -> Self {
        let peers = asked.peers;
        let (mut rows, mut elements) = (1, 4);
        for owner in 0..peers {
            let planned = |table| planned_list(asked, most, (table, owner));
            rows = rows.max((0..specs.len()).map(|table| planned(table).words).sum());
            let numbers = |(table, spec): (usize, &TableSpec)| planned(table).vectors * spec.dim;
            elements = elements.max(specs.iter().enumerate().map(numbers).sum());
        }
        let words = (head + specs.len() + rows).next_multiple_of(4);
        let (elements, dtype) = (elements.next_multiple_of(16), most.slots.dtype);
        let even_words = head + specs.len() + even_requests(specs, asked, most);
        Self { words, head, rows, elements, dtype, peers, even_words }
    }
}

/// Words with which a batch without equal ids asks the busiest owner for rows, if it asks for all
/// rows alike.
fn even_requests(specs: &[TableSpec], asked: Asked<'_>, most: &Planned<'_>) -> usize {
    let of_owner = |owner: usize| -> f64 {
        let of_table = |(table, spec): (usize, &TableSpec)| {
            let local = (asked.rows)(table, owner) as f64;
            let rows = most.max_ids[table] as f64 * local / spec.rows as f64;
            match most.pools(table) {
                true => 1.0 + rows.min(most.max_samples as f64) + rows,
                false => rows.min(local),
            }
        };
        specs.iter().enumerate().map(of_table).sum()
    };
    (0..asked.peers).map(of_owner).fold(0.0, f64::max).ceil() as usize
}

/// Most rows of each table that `asked.peers` sources together request of `peer`.
pub(super) fn max_received(asked: Asked<'_>, most: &Planned<'_>, peer: usize) -> Vec<usize> {
    let one = |table| planned_list(asked, most, (table, peer)).rows * asked.peers;
    (0..most.max_ids.len()).map(one).collect()
}
