//! What a rank's tables are built from: who is asked for which rows, and where each row's key is.

use super::Planned;
use crate::cuda::layout::{BAGS_TO_OWNERS, Layout, Table};
use crate::cuda::tables::{describe, write_words};
use crate::error::Result;
use crate::hybrid::options::HybridOptions;
use crate::hybrid::partition::{Owner, Partition};
use crate::hybrid::shape::FrequentLayout;
use crate::hybrid::table::HybridTable;
use crate::route::bits_below;
use crate::table::TableSpec;
use headlong_device::DType;
use headlong_device::cuda::{CudaDevice, DeviceMemory, DevicePtr};
use headlong_device::optimizer::Optimizer;

/// Rows whose keys are made at once.
const HOME_ROWS: usize = 1 << 20;

/// Frequent and local rows of table `table` whose numbers a rank's device holds: of divided tables
/// of bf16, which are rounded by numbers that go by the row of the model's table.
fn numbered_rows(
    specs: &[TableSpec],
    partition: &Partition,
    owner: Owner,
    table: usize,
) -> [u64; 2] {
    if specs[table].dtype != DType::Bf16 || partition.is_whole(table) {
        return [0; 2];
    }
    [partition.num_frequent(table), partition.local_rows(table, owner)]
}

/// Writes the numbers of `rows` rows, where they have a place.
fn write_numbers(
    memory: &DeviceMemory,
    first: Option<usize>,
    rows: u64,
    number: impl Fn(u64) -> u64,
) -> Result<()> {
    let Some(first) = first else { return Ok(()) };
    for start in (0..rows).step_by(HOME_ROWS) {
        let numbers: Vec<u32> =
            (start..rows.min(start + HOME_ROWS as u64)).map(|row| number(row) as u32).collect();
        write_words(memory, first + 4 * start as usize, &numbers)?;
    }
    Ok(())
}

/// What a rank's tables are built from.
pub(in crate::hybrid) struct RankPlan<'a> {
    pub(super) specs: &'a [TableSpec],
    pub(super) tables: &'a [HybridTable],
    pub(super) partition: &'a Partition,
    pub(super) owner: Owner,
    pub(super) max_samples: usize,
    /// For those whom it asks.
    pub(super) planned: Planned<'a>,
    /// For those whom it asks as a proxy, where nodes merge requests.
    pub(super) of_proxy: Option<Planned<'a>>,
    /// Ranks whose requests are merged: those of a node; 1: each asks owners itself.
    pub(super) ranks_per_source: usize,
    /// Whether sums over ranks are rounded to what gradients travel as.
    pub(super) rounds_sums: bool,
    pub(super) frequent: &'a FrequentLayout,
    /// The leaf of each part of a bag's sum.
    pub(super) leaves: &'a [u32],
    pub(super) optimizer: Optimizer,
    pub(super) seed: u64,
}

impl<'a> RankPlan<'a> {
    /// `frequent` and `leaves` are those of the set.
    pub(in crate::hybrid) fn new(
        specs: &'a [TableSpec],
        tables: &'a [HybridTable],
        options: &'a HybridOptions<'a>,
        frequent: &'a FrequentLayout,
        leaves: &'a [u32],
    ) -> Self {
        let (partition, ranks) = (&*options.partition, options.deduplicate.ranks_per_source());
        let (owners, merges) = (partition.num_owners(), ranks > 1);
        let planned = |ranks, peers| Planned::of(specs, options, ranks, peers);
        Self {
            specs,
            tables,
            partition,
            owner: options.owner,
            max_samples: options.set.max_samples,
            planned: planned(1, if merges { ranks } else { owners }),
            of_proxy: merges.then(|| planned(ranks, owners / ranks)),
            ranks_per_source: ranks,
            rounds_sums: options.set.narrow.is_some(),
            frequent,
            leaves,
            optimizer: options.set.optimizer,
            seed: options.set.seed,
        }
    }

    /// Nodes whose requests are merged; without that all ranks are of one.
    pub(super) fn nodes(&self) -> usize {
        match self.of_proxy {
            Some(_) => self.partition.num_owners() / self.ranks_per_source,
            None => 1,
        }
    }

    /// Ranks that this one asks.
    pub(super) fn asked(&self) -> usize {
        self.partition.num_owners() / self.nodes()
    }

    /// The place of an owner in the order of keys: those at one place of all nodes are neighbours.
    fn place_of(&self, owner: usize) -> usize {
        owner % self.asked() * self.nodes() + owner / self.asked()
    }

    /// Rows of table `table` of the owner that stands at a place in the order of keys.
    pub(super) fn rows_at(&self, table: usize, place: usize) -> u64 {
        let owner = place % self.nodes() * self.asked() + place / self.nodes();
        self.partition.local_rows(table, Owner(owner))
    }

    /// Rows of table `table` of which this rank asks rank `peer`.
    pub(super) fn rows_asked(&self, table: usize, peer: usize) -> u64 {
        let places = peer * self.nodes()..(peer + 1) * self.nodes();
        places.map(|place| self.rows_at(table, place)).sum()
    }

    /// Per table, the first key of each owner's rows, in the order of keys, and the end of the
    /// last; frequent rows stand before. Of a table whose bags owners pool: the first key of each
    /// owner's bags.
    pub(super) fn bases(&self) -> Vec<u32> {
        let owners = self.partition.num_owners();
        let table = |table| {
            let mut next = self.partition.num_frequent(table);
            (0..=owners).map(move |place| {
                let base = next;
                if place < owners {
                    next += match self.planned.pools(table) {
                        true => self.max_samples as u64,
                        false => self.rows_at(table, place),
                    };
                }
                base as u32
            })
        };
        (0..self.specs.len()).flat_map(table).collect()
    }

    /// The same of those whom this rank asks: owners, or ranks of its node.
    pub(super) fn bases_of_asked(&self, bases: &[u32]) -> Vec<u32> {
        let tables = bases.chunks(self.partition.num_owners() + 1);
        tables.flat_map(|table| table.iter().copied().step_by(self.nodes())).collect()
    }

    /// The keys of all rows of tables whose rows are divided one by one, and where each table's
    /// start.
    pub(super) fn homes(
        &self,
        device: &CudaDevice,
        bases: &[u32],
    ) -> Result<(DeviceMemory, Vec<Option<usize>>)> {
        let divided =
            |table: &usize| !self.partition.is_whole(*table) && !self.planned.pools(*table);
        let mut next = 0;
        let mut firsts = vec![None; self.specs.len()];
        for table in (0..self.specs.len()).filter(divided) {
            firsts[table] = Some(next);
            next += 4 * self.specs[table].rows as usize;
        }
        let memory = DeviceMemory::new(device, "places of rows", next)?;
        for (table, first) in firsts.iter().enumerate() {
            let Some(first) = first else { continue };
            let bases = &bases[table * (self.partition.num_owners() + 1)..];
            let owners = 0..self.partition.num_owners();
            let bases: Vec<u32> = owners.map(|owner| bases[self.place_of(owner)]).collect();
            let rows = self.specs[table].rows as usize;
            for start in (0..rows).step_by(HOME_ROWS) {
                let count = HOME_ROWS.min(rows - start);
                let keys = self.partition.keys(table, start as u64, count, &bases);
                write_words(&memory, first + 4 * start, &keys)?;
            }
        }
        Ok((memory, firsts))
    }

    /// Rows of the model that the rows lying here are, of tables that are rounded stochastically;
    /// see [`numbered_rows`].
    pub(super) fn row_numbers(
        &self,
        device: &CudaDevice,
    ) -> Result<(DeviceMemory, Vec<[Option<usize>; 2]>)> {
        let mut next = 0;
        let mut place = |rows: u64| {
            let first = (rows > 0).then_some(next);
            next += 4 * rows as usize;
            first
        };
        let rows = |table| numbered_rows(self.specs, self.partition, self.owner, table);
        let firsts: Vec<_> =
            (0..self.specs.len()).map(|table| rows(table).map(&mut place)).collect();
        let memory = DeviceMemory::new(device, "numbers of rows", next)?;
        for (table, firsts) in firsts.iter().enumerate() {
            let [frequent, local] = rows(table);
            let of_frequent = |row| self.partition.row_of_frequent(table, row);
            let of_local = |row| self.partition.row_of_local(table, self.owner, row);
            write_numbers(&memory, firsts[0], frequent, of_frequent)?;
            write_numbers(&memory, firsts[1], local, of_local)?;
        }
        Ok((memory, firsts))
    }

    /// `part_step` and `part_first` of table `table`, as a slice's ids see it and as its owner
    /// does.
    fn parts(&self, table: usize) -> [(u32, u32); 2] {
        if !self.planned.pools(table) {
            return [(0, 0); 2];
        }
        let owners = self.partition.num_owners();
        if self.partition.is_whole(table) {
            let is_owner = |owner: &usize| self.partition.local_rows(table, Owner(*owner)) > 0;
            let owner = (0..owners).find(is_owner).unwrap_or(0);
            return [(1, owner as u32), (1, table as u32)];
        }
        let first = self.partition.row_of_local(table, self.owner, 0);
        let part = (first + table as u64) % self.leaves.len() as u64;
        [(owners as u32, (table % owners) as u32), (owners as u32, part as u32)]
    }

    /// The descriptions of tables as a slice's ids see them, and as an owner sees them.
    pub(super) fn describe(
        &self,
        layouts: [&Layout; 2],
        (bases, homes): (&[u32], (&DeviceMemory, &[Option<usize>])),
        numbers: (&DeviceMemory, &[[Option<usize>; 2]]),
    ) -> [Vec<Table>; 2] {
        let each = || self.specs.iter().zip(self.tables).enumerate();
        let row_numbers = |first: Option<usize>| {
            first.map_or(DevicePtr::NULL, |first| numbers.0.ptr().offset(first))
        };
        let slice = each().map(|(index, (spec, table))| {
            let home = homes.1[index].map_or(DevicePtr::NULL, |first| homes.0.ptr().offset(first));
            let rows = table.frequent.as_ref();
            let place = self.frequent.tables[index];
            let table = describe(spec, index, layouts[0], rows, home);
            let (part_step, part_first) = self.parts(index)[0];
            let to_owners = if part_step > 0 { BAGS_TO_OWNERS } else { 0 };
            let num_owners = self.partition.num_owners();
            Table {
                key_bits: bits_below(bases[index * (num_owners + 1) + num_owners].into()),
                flags: table.flags | to_owners,
                part_step,
                part_first,
                row_numbers: row_numbers(numbers.1[index][0]),
                num_frequent: place.rows as u32,
                first_touched: place.first_touched as u32,
                first_gradient: place.first_gradient as u32,
                ..table
            }
        });
        let owned = each().map(|(index, (spec, table))| {
            let rows = table.local.as_ref();
            let spec =
                TableSpec { rows: self.partition.local_rows(index, self.owner), ..spec.clone() };
            let row_numbers = row_numbers(numbers.1[index][1]);
            let (part_step, part_first) = self.parts(index)[1];
            let table = describe(&spec, index, layouts[1], rows, DevicePtr::NULL);
            Table { row_numbers, part_step, part_first, ..table }
        });
        [slice.collect(), owned.collect()]
    }
}
