//! The tables of one rank among many: its shard of the infrequent rows, and its replica of the
//! frequent ones.

use super::bags::SumParts;
use super::cuda::{RankPlan, RankTables};
use super::options::{Deduplicate, HybridOptions, PoolAt};
use super::partition::{Owner, Partition};
use super::route::{HybridRoute, OTHER_SET, RouteLocation, Sources, TablePart};
use super::shape::{
    FrequentLayout, RouteShape, check_merge, check_options, check_pooling, route_shape, shape_of,
};
use super::strips::StripSizes;
use super::table::{HybridTable, build, tensors_of};
use crate::checkpoint::TensorSpec;
use crate::error::Result;
use crate::ids::{Ids, IdsOf, bags_of, check_range, num_samples};
use crate::registry::Registry;
use crate::route::check_capacity;
use crate::set::{EmbeddingSet, check_on_cuda};
use crate::slot::{TableSlot, check, check_vectors};
use crate::table::{EmbeddingTable, SparseStep, TableSpec};
use headlong_device::cuda::DevicePtr;
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{DType, Mat, Stream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// The tables of one rank: the rows it owns, and its replica of the frequent ones.
///
/// Everything is taken by [`Self::new`]; afterwards no method allocates, except for errors, the
/// first batch of bags or weights, and what tables of other authors do. Methods take `&self`, as
/// those of [`EmbeddingSet`] do, and for the same reason.
pub struct HybridSet {
    pub(super) specs: Vec<TableSpec>,
    pub(super) tensors: Vec<Vec<TensorSpec>>,
    pub(super) tables: Vec<HybridTable>,
    pub(super) partition: Arc<Partition>,
    pub(super) owner: Owner,
    pub(super) deduplicate: Deduplicate,
    pub(super) pool_at: Vec<PoolAt>,
    /// Of the bags that are pooled at the owner.
    pub(super) sum_parts: SumParts,
    pub(super) frequent: FrequentLayout,
    optimizer: Optimizer,
    pub(super) seed: u64,
    pub(super) frozen: bool,
    /// What vectors are rounded to on their way, where they are.
    pub(super) narrow: Option<DType>,
    width: usize,
    max_samples: usize,
    max_ids: Vec<usize>,
    pub(super) at: Location,
}

/// Which rows a rank holds, and where.
pub(super) enum Location {
    /// All of them: it is the only rank.
    Local(Box<EmbeddingSet>),
    /// A part of them, in the memory of the host.
    Host,
    /// A part of them, in the memory of a device.
    Device(Box<RankTables>),
}

impl HybridSet {
    /// Builds and initialises this rank's part of `specs` with the kinds of `registry`; takes all
    /// memory that will be needed.
    ///
    /// Initial values depend only on seed, table and row: a replica has the same on every rank,
    /// and so has any other partition.
    ///
    /// # Errors
    /// Descriptions that a kind refuses, unknown kinds, memory that the system refuses.
    ///
    /// # Panics
    /// When the partition is for other tables, does not know `owner`, or the options are not as
    /// [`SetOptions`](crate::set::SetOptions) and [`Deduplicate`] say.
    pub fn new(
        registry: &Registry,
        stream: &Stream,
        specs: &[TableSpec],
        options: &HybridOptions,
    ) -> Result<Self> {
        check_options(specs, options);
        check_pooling(registry, stream, specs, options)?;
        let HybridOptions { set, partition, owner, deduplicate, .. } = options.clone();
        let frequent = FrequentLayout::new(specs, &partition);
        let (mut tables, mut tensors) = (Vec::new(), Vec::new());
        let sum_parts = SumParts::new(set.sum_blocks * partition.num_owners());
        let at = if partition.num_owners() == 1 {
            let mut local = EmbeddingSet::with_registry(registry, stream, specs, &set)?;
            local.sum_in_parts(options.pooled_tables(), sum_parts.leaves())?;
            tensors.extend(local.tables().map(|(_, tensors)| tensors.to_vec()));
            Location::Local(Box::new(local))
        } else {
            if stream.as_cuda().is_some() {
                check_on_cuda(registry, specs)?;
            }
            let shape = route_shape(specs, options);
            let mut first_column = 0;
            for (table, spec) in specs.iter().enumerate() {
                check(spec, set.max_samples, set.max_ids[table])?;
                check_merge(spec, &shape, table)?;
                tables.push(build(registry, stream, (table, spec), options, &shape, first_column)?);
                tensors.push(tensors_of(spec, &tables[table], &set.optimizer));
                first_column += spec.dim;
            }
            let plan = || RankPlan::new(specs, &tables, options, &frequent, sum_parts.leaves());
            match stream.as_cuda() {
                Some(stream) => {
                    Location::Device(Box::new(RankTables::new(stream.device(), &plan())?))
                }
                None => Location::Host,
            }
        };
        Ok(Self {
            specs: specs.to_vec(),
            tensors,
            frequent,
            tables,
            owner,
            deduplicate,
            pool_at: (0..specs.len()).map(|table| options.pool_at(table)).collect(),
            sum_parts,
            optimizer: set.optimizer,
            seed: set.seed,
            frozen: set.frozen,
            narrow: set.narrow,
            width: specs.iter().map(|spec| spec.dim).sum(),
            max_samples: set.max_samples,
            max_ids: set.max_ids.to_vec(),
            at,
            partition,
        })
    }

    /// The element type of vectors on their way between devices, where the tables lie on one of
    /// several.
    pub fn slot_dtype(&self) -> Option<DType> {
        match &self.at {
            Location::Device(device) => Some(device.slots.dtype),
            Location::Local(_) | Location::Host => None,
        }
    }

    /// The strips in which requests travel as long as it is not known what batches need.
    pub fn first_strips(&self) -> Option<StripSizes> {
        match &self.at {
            Location::Device(device) => Some(device.first_strips()),
            Location::Local(_) | Location::Host => None,
        }
    }

    /// A route with room for the largest planned slice. A schedule that runs ahead holds two.
    pub fn new_route(&self) -> Result<HybridRoute> {
        match &self.at {
            Location::Local(set) => Ok(HybridRoute::at(RouteLocation::Local(set.new_route()?))),
            Location::Device(device) => {
                Ok(HybridRoute::at(RouteLocation::Device(Box::new(device.new_route()?))))
            }
            Location::Host => Ok(self.new_route_on_host()),
        }
    }

    fn new_route_on_host(&self) -> HybridRoute {
        let (shape, several) = (self.shape(), |table| self.has_leaves(table));
        let mut route = HybridRoute::new(&self.specs, &shape, &several);
        for (index, (part, table)) in route.tables.iter_mut().zip(&self.tables).enumerate() {
            if part.bags.is_some() {
                part.sources = Sources::Bags;
                continue;
            }
            let Some(frequent) = &table.frequent else {
                part.sources = Sources::Owners;
                continue;
            };
            if frequent.plain.is_none() {
                part.frequent_rows = Some(Vec::with_capacity(part.route.max_ids()));
            } else if self.partition.is_data_parallel(index) {
                part.sources = Sources::Replica;
            }
        }
        route
    }

    pub(super) fn shape(&self) -> RouteShape {
        let sizes = (self.max_samples, &self.max_ids[..]);
        let rows = (&*self.partition, &self.pool_at[..]);
        shape_of(&self.specs, rows, self.owner, self.deduplicate, sizes)
    }

    /// Whether the bags of any table are pooled at the owner.
    pub(super) fn pools_at_owner(&self) -> bool {
        self.pool_at.contains(&PoolAt::Owner)
    }

    /// Whether an owner of table `table` has several leaves of the tree over the parts of a bag.
    pub(super) fn has_leaves(&self, table: usize) -> bool {
        let owners = match self.partition.is_whole(table) {
            true => 1,
            false => self.partition.num_owners(),
        };
        self.sum_parts.len() > owners
    }

    /// Finds the rows that this rank's slice touches and where they lie, and lists what to request
    /// of owners. `block_len` is [`crate::update::sum_block_len`] of the batch of all ranks. Reads
    /// no weights. On a device the ids are those that were staged and copied, and requests are
    /// written to [`HybridRoute::id_slots`].
    ///
    /// # Errors
    /// [`crate::EmbeddingError::IdOutOfRange`], [`crate::EmbeddingError::Capacity`], and slices of
    /// another shape.
    ///
    /// # Panics
    /// When the route is another set's.
    pub fn route<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        block_len: usize,
        route: &mut HybridRoute,
    ) -> Result<()> {
        match &self.at {
            Location::Local(set) => return set.route(stream, ids, route.local_mut()),
            Location::Device(device) => {
                device.route(stream.cuda_body(), route.device());
                return Ok(());
            }
            Location::Host => self.check_route(route),
        }
        let found = num_samples(&self.specs, ids)?;
        for (table, spec) in self.specs.iter().enumerate() {
            let num_ids = ids.table(table).values.len();
            let most = (route.tables[table].max_ids(), self.max_samples);
            check_capacity(spec, most, (num_ids, found))?;
        }
        (route.num_samples, route.block_len) = (found, block_len.max(1));
        let deduplicate = self.deduplicate != Deduplicate::Off;
        let partition = &*self.partition;
        stream.pool().chunks_mut(&mut route.tables, 1, |table, part| match &mut part[0].bags {
            Some(bags) => bags.fill(bags_of(ids, table), partition, &self.sum_parts),
            None => part[0].fill(bags_of(ids, table), partition, table, deduplicate),
        });
        let routed = if route.tables.iter().all(TablePart::is_in_range) {
            self.list_requests(stream, route, &|table| bags_of(ids, table))
        } else {
            check_range(&self.specs, &|table| bags_of(ids, table))
        };
        routed.inspect_err(|_| route.clear())
    }

    /// Packs the requests by owner, and tells rows and ids where their vectors will lie.
    fn list_requests(
        &self,
        stream: &Stream,
        route: &mut HybridRoute,
        bags: &IdsOf<'_>,
    ) -> Result<()> {
        let HybridRoute { requests, tables, names, rail_ranks, .. } = route;
        let (num_tables, num_owners) = (tables.len(), self.partition.num_owners());
        // Under deduplication by node, requests are packed by rail.
        let (ranks, nodes) = (*rail_ranks, num_owners / *rail_ranks);
        let owner_at = |place: usize| place % nodes * ranks + place / nodes;
        for (list, count) in requests.counts.iter_mut().enumerate() {
            *count = tables[list % num_tables].count_of(owner_at(list / num_tables));
        }
        requests.lay_out(names)?;
        requests.lay_out_vectors(|list, _| {
            tables[list % num_tables].elements_of(owner_at(list / num_tables))
        });
        stream.pool().chunks_mut(tables, 1, |table, part| {
            for place in 0..num_owners {
                part[0].set_first_element(owner_at(place), requests.first_element(place, table));
            }
            match &mut part[0].bags {
                Some(sent) => sent.place(bags(table).weights, self.owner.0),
                None => part[0].place(self.specs[table].keys),
            }
        });
        for (list, &count) in requests.counts.iter().enumerate() {
            let wanted = tables[list % num_tables].wanted_of(owner_at(list / num_tables), count);
            requests.rows[requests.first_row[list]..][..count as usize].copy_from_slice(wanted);
        }
        Ok(())
    }

    pub(super) fn check_route(&self, route: &HybridRoute) {
        let fits = |(part, spec): (&TablePart, &TableSpec)| part.table_rows() == spec.rows;
        assert!(
            route.tables.len() == self.specs.len()
                && route.num_owners == self.partition.num_owners()
                && route.tables.iter().zip(&self.specs).all(fits),
            "{OTHER_SET}"
        );
    }

    pub(super) fn check_vectors(&self, vectors: &Mat, route: &HybridRoute) {
        check_vectors(vectors, self.width, route.num_samples());
    }

    /// All tables, where this is the only rank.
    pub(super) fn local(&self) -> Option<&EmbeddingSet> {
        let Location::Local(set) = &self.at else { return None };
        Some(set)
    }

    /// Whether this is the only rank, which holds all rows.
    pub fn is_single_rank(&self) -> bool {
        self.local().is_some()
    }

    /// Columns of the matrix of vectors: the sum of all dims.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The tables' descriptions, with the rows of the whole model.
    pub fn specs(&self) -> &[TableSpec] {
        &self.specs
    }

    /// The sparse optimiser.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Where rows lie.
    pub fn partition(&self) -> &Arc<Partition> {
        &self.partition
    }

    /// Which owner this rank is.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The tensors of table `table` with the rows of the whole model, as a checkpoint holds them.
    /// Of a table whose rows share storage: as the table says. Where no part of the table lies
    /// here: those of a dense one.
    pub fn tensors(&self, table: usize) -> &[TensorSpec] {
        &self.tensors[table]
    }

    /// What this rank owns of table `table`, for what only the table itself can do: saving rows
    /// that it hides, say.
    pub fn local_table(&self, table: usize) -> Option<MutexGuard<'_, Box<dyn EmbeddingTable>>> {
        match self.local() {
            Some(set) => Some(set.table(table)),
            None => self.tables[table].local.as_ref().map(TableSlot::lock),
        }
    }

    /// This rank's replica of the frequent rows of table `table`, likewise.
    pub fn frequent_table(&self, table: usize) -> Option<MutexGuard<'_, Box<dyn EmbeddingTable>>> {
        self.tables.get(table)?.frequent.as_ref().map(TableSlot::lock)
    }

    /// Most f32 elements of the vectors that this rank requests for one slice: the worst case, in
    /// which no two ids of infrequent rows are equal. The caller's buffers for received vectors and
    /// for gradients to owners are this long. On a CUDA device: all slots, of
    /// [`Self::slots`] each.
    pub fn max_recv_elements(&self) -> usize {
        match &self.at {
            Location::Local(_) => 0,
            Location::Host => self.elements(&self.shape().max_recv_vectors),
            Location::Device(device) => device.slots.elements * device.slots.peers,
        }
    }

    /// Most f32 elements of the vectors that sources request of this owner: the worst case, in
    /// which all ids of all ranks are unequal and belong here (or all rows that belong here are
    /// requested by all). The caller's buffers for vectors to send and for gradients from sources
    /// are this long. On a CUDA device as [`Self::max_recv_elements`].
    pub fn max_send_elements(&self) -> usize {
        match &self.at {
            Location::Local(_) => return 0,
            Location::Host => {}
            Location::Device(device) => return device.send_elements(),
        }
        let shape = self.shape();
        self.elements(&shape.max_send_vectors) * shape.num_sources
    }

    fn elements(&self, rows: &[usize]) -> usize {
        rows.iter().zip(&self.specs).map(|(rows, spec)| rows * spec.dim).sum()
    }

    pub(super) fn sparse_step<'a>(&'a self, step: &'a Step) -> SparseStep<'a> {
        SparseStep { optimizer: &self.optimizer, step }
    }

    /// On a device, one peer's slots: the longest strips. Matrices of slots are
    /// [`Self::max_recv_elements`] long. None in the memory of the host.
    pub fn slots(&self) -> Option<StripSizes> {
        match &self.at {
            Location::Device(device) => Some(device.largest_strips()),
            _ => None,
        }
    }

    /// As [`EmbeddingSet::set_device_step`].
    pub fn set_device_step(&self, step: DevicePtr) {
        match &self.at {
            Location::Local(set) => set.set_device_step(step),
            Location::Host => {}
            Location::Device(device) => device.device_step.store(step.0, Ordering::Relaxed),
        }
    }

    /// As [`EmbeddingSet::check_flags`].
    pub fn check_flags(&self) -> Result<()> {
        match &self.at {
            Location::Local(set) => set.check_flags(),
            Location::Host => Ok(()),
            Location::Device(device) => device.check_flags(),
        }
    }
}
