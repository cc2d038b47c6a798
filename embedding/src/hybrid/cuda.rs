//! The CUDA body of a rank among several: the same route, lookup and update as of one rank, and
//! slots between them.
//!
//! ```text
//! route     keys put frequent rows first, then those of owner 0, 1, …; so unique rows of an owner
//!           are neighbours → slots of ids
//! requests  slots of ids of all sources → one sort → this owner's rows
//! lookup    rows → slots of vectors
//! pool      slots of vectors and the replica → vectors
//! reduce    one gradient per row → slots of gradients, block of frequent gradients
//! update    gradients of all sources, in the order of sources → one step a row; likewise the
//!           frequent rows
//! ```
//!
//! Of a table whose bags owners pool, keys are those of bags at owners: unique ones are bags in
//! place of rows, and so are vectors and gradients; the owner sorts the rows of all bags
//! (exchange.cu).
//!
//! Slots have one size, the same for all pairs of ranks: the worst case, in which a rank's ids are
//! all of one owner, or as many even shares of them as there is memory for
//! ([`SlotOptions::shares`](super::SlotOptions::shares); where equal rows are not merged, all may
//! be of one). A batch that needs more raises a flag, which [`HybridSet::check_flags`] returns as
//! an error; nothing is written past a slot. Of each slot a strip travels, no longer than batches
//! need: [`StripSizes`]. Requests travel before it is known how many there are. A strip that is too
//! short for them says so and carries none; then all ranks ask again, with longer ones.
//!
//! Where nodes merge requests, a rank asks the ranks of its own node in place of owners, and each
//! of these, as a proxy, asks the owners at its place in every node ([`proxy`]).

mod launch;
mod proxy;
mod slots;
mod steps;

pub(crate) use launch::{EXCHANGE, defines as exchange_defines};
pub(super) use slots::{Planned, SlotShape};

use super::partition::{Owner, Partition};
use super::shape::FrequentLayout;
use super::strips::{StripSizes, Told};
use super::table::HybridTable;
use crate::cuda::layout::{BAGS_TO_OWNERS, Layout, Places, Table};
use crate::cuda::set::{check_specs, partial_bytes};
use crate::cuda::staging::Staging;
use crate::cuda::tables::{describe, write_words};
use crate::cuda::{DeviceLeaves, DeviceTables, FlagsMemory, Instance};
use crate::error::{EmbeddingError, Result};
use crate::ids::{Ids, bags_of};
use crate::route::bits_below;
use crate::route::cuda::Sorted;
use crate::slot::TableSlot;
use crate::table::TableSpec;
use headlong_device::DType;
use headlong_device::cuda::{CudaDevice, DeviceMemory, DevicePtr, Pinned};
use headlong_device::optimizer::Optimizer;
use proxy::{ProxyRoute, ProxyTables};
use slots::{Asked, HEAD, max_received};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Rows whose keys are made at once.
const HOME_ROWS: usize = 1 << 20;

/// Slots of a fixed size, one for each peer, and the strip of each that travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSlots {
    /// What this rank sends, peer after peer.
    pub from: DevicePtr,
    /// Where what it receives arrives, peer after peer.
    pub to: DevicePtr,
    /// Bytes from one peer's slot to the next.
    pub stride: usize,
    /// Bytes of a strip.
    pub bytes_per_peer: usize,
    /// On the device, per peer the bytes of its slot in `from` that count, u32.
    pub lengths: DevicePtr,
}

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

/// Words in memory of their own.
fn words_on(device: &CudaDevice, what: &'static str, words: &[u32]) -> Result<DeviceMemory> {
    let memory = DeviceMemory::new(device, what, 4 * words.len())?;
    write_words(&memory, 0, words)?;
    Ok(memory)
}

fn hides(slot: &TableSlot) -> bool {
    slot.staging.is_some()
}

/// Tables of their authors' own lie with one owner.
fn check_hidden(plan: &RankPlan) -> Result<()> {
    for (spec, table) in plan.specs.iter().zip(plan.tables) {
        if table.frequent.as_ref().is_some_and(hides) {
            let reason =
                "a table with a CUDA body of its own lies with one rank: place it table-wise"
                    .to_owned();
            return Err(EmbeddingError::Placement { table: spec.name.clone(), reason });
        }
    }
    Ok(())
}

/// One rank's tables on a device.
pub(crate) struct RankTables {
    device: CudaDevice,
    specs: Arc<[TableSpec]>,
    slice_layout: Arc<Layout>,
    owned_layout: Arc<Layout>,
    /// As a slice's ids see them: rows of the whole model by key, replicas as rows.
    slice: DeviceTables,
    /// As an owner sees them: its local rows.
    owned: DeviceTables,
    /// Per table, the first key of each owner.
    bases: DeviceMemory,
    /// Keys of rows that no formula gives.
    _homes: DeviceMemory,
    /// Numbers of rows that are rounded stochastically.
    _row_numbers: DeviceMemory,
    instance: Instance,
    key_bits: u32,
    local_bits: u32,
    partials: DeviceMemory,
    flags: FlagsMemory,
    /// Of the parts of a bag's sum.
    leaves: DeviceLeaves,
    /// Per table, whether its bags are pooled at the owner.
    pools: Arc<[bool]>,
    /// Those of whom this rank asks.
    pub(super) slots: SlotShape,
    /// This rank as a proxy, where nodes merge requests.
    pub(super) proxy: Option<ProxyTables>,
    /// Ranks for which those ask who ask this owner.
    ranks_per_source: usize,
    /// Whether equal rows are requested once.
    merges: bool,
    pub(super) device_step: AtomicU64,
    num_frequent: usize,
    frequent_len: usize,
    optimizer: Optimizer,
    seed: u64,
    /// Whether authors' own tables lie here, whose rows are numbered.
    has_hidden: bool,
}

/// A route among several ranks, on a device.
#[derive(Debug)]
pub(crate) struct DeviceHybridRoute {
    pub(crate) staging: Staging,
    specs: Arc<[TableSpec]>,
    pools: Arc<[bool]>,
    sorted: Sorted,
    received: Sorted,
    _memory: DeviceMemory,
    asks: AskPlaces,
    serves: ServePlaces,
    proxy: Option<ProxyRoute>,
    slots: SlotShape,
    /// The longest strips.
    slot_sizes: StripSizes,
    pub(super) strips: StripSizes,
    told: Told,
}

/// What a rank asks of others.
#[derive(Debug, Clone, Copy)]
struct AskPlaces {
    firsts: DevicePtr,
    places: DevicePtr,
    ids: DevicePtr,
    origins: DevicePtr,
    destinations: DevicePtr,
    lengths: DevicePtr,
}

/// What others ask of it.
#[derive(Debug, Clone, Copy)]
struct ServePlaces {
    ids: DevicePtr,
    places: DevicePtr,
    num_entries: DevicePtr,
    lengths: DevicePtr,
}

impl AskPlaces {
    /// In memory that starts at `base`.
    fn new(
        base: DevicePtr,
        places: &mut Places,
        (num_tables, entries): (usize, usize),
        slots: SlotShape,
    ) -> Self {
        let mut take = |count| base.offset(places.words(count));
        Self {
            firsts: take(2 * num_tables * (slots.peers + 1)),
            places: take(num_tables * slots.peers * 2),
            ids: take(slots.peers * slots.words),
            origins: take(entries),
            destinations: take(entries),
            lengths: take(2 * slots.peers),
        }
    }

    /// Where the bytes that count of each slot of gradients are.
    fn gradient_lengths(&self, slots: SlotShape) -> DevicePtr {
        self.lengths.offset(4 * slots.peers)
    }
}

impl ServePlaces {
    fn new(base: DevicePtr, places: &mut Places, num_tables: usize, slots: SlotShape) -> Self {
        let mut take = |count| base.offset(places.words(count));
        Self {
            ids: take(slots.peers * slots.words),
            places: take(num_tables * slots.peers * 3),
            num_entries: take(num_tables),
            lengths: take(slots.peers),
        }
    }
}

/// The slots of ids of those who ask and of those who serve them.
fn id_slots(asks: &AskPlaces, serves: &ServePlaces, slots: SlotShape, words: usize) -> DeviceSlots {
    DeviceSlots {
        from: asks.ids,
        to: serves.ids,
        stride: 4 * slots.words,
        bytes_per_peer: 4 * words,
        lengths: asks.lengths,
    }
}

impl DeviceHybridRoute {
    /// As [`Staging::stage`]. What owners pool has no weights.
    pub(super) fn stage(&mut self, ids: &dyn Ids) -> Result<()> {
        let tables = self.specs.iter().zip(&*self.pools).enumerate();
        for (table, (spec, _)) in tables.filter(|(_, (_, pools))| **pools) {
            if !bags_of(ids, table).weights.is_empty() {
                let reason = "on CUDA devices owners pool bags without weights".to_owned();
                return Err(EmbeddingError::Weights { table: spec.name.clone(), reason });
            }
        }
        self.staging.stage(ids)
    }

    /// # Panics
    /// Where nodes merge requests.
    pub(super) fn id_slots(&self) -> DeviceSlots {
        assert!(self.proxy.is_none(), "a rank asks owners itself");
        id_slots(&self.asks, &self.serves, self.slots, self.strips.id_words)
    }

    pub(super) fn vector_lengths(&self) -> [DevicePtr; 2] {
        [self.serves.lengths, self.asks.gradient_lengths(self.slots)]
    }

    pub(super) fn forget_needed(&self) {
        self.told.forget();
    }

    pub(super) fn needed_strips(&self) -> Option<StripSizes> {
        let needed = self.told.of(self.staging.generation())?;
        // What peers claim is not trusted.
        Some(needed.at_most(self.slot_sizes))
    }
}

/// What a rank's tables are built from.
pub(super) struct RankPlan<'a> {
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
    pub(super) frequent: &'a FrequentLayout,
    /// The leaf of each part of a bag's sum.
    pub(super) leaves: &'a [u32],
    pub(super) optimizer: Optimizer,
    pub(super) seed: u64,
}

impl RankPlan<'_> {
    /// Nodes whose requests are merged; without that all ranks are of one.
    fn nodes(&self) -> usize {
        match self.of_proxy {
            Some(_) => self.partition.num_owners() / self.ranks_per_source,
            None => 1,
        }
    }

    /// Ranks that this one asks.
    fn asked(&self) -> usize {
        self.partition.num_owners() / self.nodes()
    }

    /// The place of an owner in the order of keys: those at one place of all nodes are neighbours.
    fn place_of(&self, owner: usize) -> usize {
        owner % self.asked() * self.nodes() + owner / self.asked()
    }

    /// Rows of table `table` of the owner that stands at a place in the order of keys.
    fn rows_at(&self, table: usize, place: usize) -> u64 {
        let owner = place % self.nodes() * self.asked() + place / self.nodes();
        self.partition.local_rows(table, Owner(owner))
    }

    /// Rows of table `table` of which this rank asks rank `peer`.
    fn rows_asked(&self, table: usize, peer: usize) -> u64 {
        let places = peer * self.nodes()..(peer + 1) * self.nodes();
        places.map(|place| self.rows_at(table, place)).sum()
    }

    /// Per table, the first key of each owner's rows, in the order of keys, and the end of the
    /// last; frequent rows stand before. Of a table whose bags owners pool: the first key of each
    /// owner's bags.
    fn bases(&self) -> Vec<u32> {
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
    fn bases_of_asked(&self, bases: &[u32]) -> Vec<u32> {
        let tables = bases.chunks(self.partition.num_owners() + 1);
        tables.flat_map(|table| table.iter().copied().step_by(self.nodes())).collect()
    }

    /// The keys of all rows of tables whose rows are divided one by one, and where each table's
    /// start.
    fn homes(
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
    fn row_numbers(&self, device: &CudaDevice) -> Result<(DeviceMemory, Vec<[Option<usize>; 2]>)> {
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
    fn describe(
        &self,
        layouts: [&Layout; 2],
        homes: (&DeviceMemory, &[Option<usize>]),
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
            Table {
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

impl RankTables {
    pub(super) fn new(device: &CudaDevice, plan: &RankPlan) -> Result<Self> {
        check_specs(plan.specs)?;
        check_hidden(plan)?;
        let (specs, partition, planned) = (plan.specs, plan.partition, &plan.planned);
        let rows = |table, peer| plan.rows_asked(table, peer);
        let asked = Asked { peers: plan.asked(), rows: &rows };
        let slots = SlotShape::new(specs, asked, planned, HEAD);
        let bases = plan.bases();
        let proxy = plan.of_proxy.as_ref();
        let proxy = proxy
            .map(|planned| ProxyTables::new(device, plan, planned, slots, &bases))
            .transpose()?;
        let most_received = match &proxy {
            Some(proxy) => proxy.max_received.clone(),
            None => max_received(asked, planned, plan.owner.0),
        };
        let slice_layout = Layout::new(specs, plan.max_samples, &planned.max_ids);
        let owned_layout = Layout::new(specs, 0, &most_received);
        let (homes, home_firsts) = plan.homes(device, &bases)?;
        let (numbers, number_firsts) = plan.row_numbers(device)?;
        let [slice, owned] = plan.describe(
            [&slice_layout, &owned_layout],
            (&homes, &home_firsts),
            (&numbers, &number_firsts),
        );
        let base_memory = words_on(device, "first keys of owners", &plan.bases_of_asked(&bases))?;
        let partials = partial_bytes(specs, &slice_layout).max(partial_bytes(specs, &owned_layout));
        let local = |table| partition.local_rows(table, plan.owner);
        let dtype = specs.first().map_or(DType::F32, |spec| spec.dtype);
        Ok(Self {
            device: device.clone(),
            slice: DeviceTables::new(device, &slice, &slice_layout)?,
            owned: DeviceTables::new(device, &owned, &owned_layout)?,
            slice_layout: Arc::new(slice_layout),
            owned_layout: Arc::new(owned_layout),
            key_bits: bits_below(bases.iter().copied().max().map_or(1, u64::from)),
            local_bits: (0..specs.len()).map(|table| bits_below(local(table))).max().unwrap_or(1),
            bases: base_memory,
            _homes: homes,
            _row_numbers: numbers,
            instance: Instance::new(specs.iter().map(|spec| spec.dim), dtype),
            partials: DeviceMemory::new(device, "partial sums of rows", partials)?,
            flags: FlagsMemory::new(device)?,
            leaves: DeviceLeaves::new(device, plan.leaves)?,
            pools: (0..specs.len()).map(|table| planned.pools(table)).collect(),
            slots,
            proxy,
            ranks_per_source: plan.ranks_per_source,
            merges: planned.merges,
            device_step: AtomicU64::new(0),
            num_frequent: plan.frequent.tables.iter().map(|place| place.rows).sum(),
            frequent_len: plan.frequent.len,
            specs: specs.into(),
            optimizer: plan.optimizer,
            seed: plan.seed,
            has_hidden: plan.tables.iter().filter_map(|table| table.local.as_ref()).any(hides),
        })
    }

    pub(super) fn new_route(&self) -> Result<DeviceHybridRoute> {
        let (num_tables, entries) = (self.specs.len(), self.slice_layout.num_entries());
        let places = |base| {
            let mut places = Places::default();
            let asks = AskPlaces::new(base, &mut places, (num_tables, entries), self.slots);
            let serves = ServePlaces::new(base, &mut places, num_tables, self.served());
            (asks, serves, places.bytes())
        };
        let bytes = places(DevicePtr::NULL).2;
        let memory = DeviceMemory::new(&self.device, "requests of a batch", bytes)?;
        let (asks, serves, _) = places(memory.ptr());
        let proxy = self.proxy.as_ref();
        let proxy = proxy.map(|proxy| proxy.new_route(&self.device, self.slots)).transpose()?;
        Ok(DeviceHybridRoute {
            // A rank that replays and one that does not would wait for each other.
            staging: Staging::new(&self.device, &self.specs, &self.slice_layout, true)?,
            specs: Arc::clone(&self.specs),
            pools: Arc::clone(&self.pools),
            sorted: Sorted::new(&self.device, &self.slice_layout, self.key_bits, true)?
                .merging(self.merges),
            received: self.new_received()?,
            asks,
            serves,
            proxy,
            _memory: memory,
            slots: self.slots,
            slot_sizes: self.largest_strips(),
            strips: self.largest_strips(),
            told: Told(Pinned::new(&self.device, Told::BYTES)?),
        })
    }

    fn new_received(&self) -> Result<Sorted> {
        let (layout, bits) = (&self.owned_layout, self.local_bits);
        let received = Sorted::new(&self.device, layout, bits, self.has_hidden)?;
        // Where ids are not merged, and in bags, a source may have a row many times.
        Ok(match self.merges && !self.pools.contains(&true) {
            true => received.of_sources(self.served().peers),
            false => received,
        })
    }

    /// Slots of those who ask this owner.
    fn served(&self) -> SlotShape {
        self.proxy.as_ref().map_or(self.slots, |proxy| proxy.slots)
    }

    /// Elements of all slots of vectors that this owner sends.
    pub(super) fn send_elements(&self) -> usize {
        self.served().elements * self.served().peers
    }

    /// Strips that are whole slots.
    pub(super) fn largest_strips(&self) -> StripSizes {
        let SlotShape { words, elements, .. } = self.served();
        let inside =
            self.proxy.as_ref().map_or([0; 2], |_| [self.slots.words, self.slots.elements]);
        StripSizes { id_words: words, elements, inside }
    }

    /// What the first batch is expected to need: a little more than an even share.
    pub(super) fn first_strips(&self) -> StripSizes {
        let largest = self.largest_strips();
        let words_inside = self.proxy.as_ref().map_or(0, |_| self.slots.first_words());
        let inside = [words_inside, largest.inside[1]];
        let first = StripSizes { id_words: self.served().first_words(), inside, ..largest };
        first.class_for_another(largest)
    }

    pub(super) fn check_flags(&self) -> Result<()> {
        self.flags.check(&self.specs)
    }
}
