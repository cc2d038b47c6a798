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
//! update    gradients of all sources, in eights of ranks in a tree → one step a row; likewise the
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
mod plan;
mod proxy;
mod slots;
mod steps;

pub(crate) use launch::{EXCHANGE, defines as exchange_defines};
pub(super) use plan::RankPlan;
pub(super) use slots::{Planned, SlotShape};

use super::strips::{StripSizes, Told};
use crate::cuda::layout::{Layout, Places};
use crate::cuda::set::{check_specs, partial_bytes};
use crate::cuda::staging::Staging;
use crate::cuda::tables::write_words;
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
use headlong_device::pool::Pool;
use proxy::{ProxyRoute, ProxyTables};
use slots::{Asked, HEAD, max_received};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

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
    /// Whether sums over ranks are rounded to what gradients travel as.
    rounds_sums: bool,
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
    pub(super) fn stage(
        &mut self,
        pool: &Pool,
        ids: &dyn Ids,
        samples: Range<usize>,
    ) -> Result<()> {
        let tables = self.specs.iter().zip(&*self.pools).enumerate();
        for (table, (spec, _)) in tables.filter(|(_, (_, pools))| **pools) {
            if !bags_of(ids, table).weights.is_empty() {
                let reason = "on CUDA devices owners pool bags without weights".to_owned();
                return Err(EmbeddingError::Weights { table: spec.name.clone(), reason });
            }
        }
        self.staging.stage(pool, ids, samples)
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
            (&bases, (&homes, &home_firsts)),
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
            rounds_sums: plan.rounds_sums,
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
