//! All tables of one rank, as the schedule sees them.

use crate::checkpoint::TensorSpec;
use crate::cuda::{CudaSet, DeviceRoute};
use crate::error::{EmbeddingError, Result};
use crate::ids::{Ids, bags_of, num_samples};
use crate::kind::TableEnv;
use crate::lookup::{LookupArgs, lookup};
use crate::registry::Registry;
use crate::route::{Route, RouteArgs, route};
use crate::rows::{check_rows, read_rows, write_rows};
use crate::slot::{TableSlot, check, check_vectors, slot};
use crate::table::{EmbeddingTable, SparseStep, TableSpec};
use crate::update::{MAX_SUM_BLOCKS, UpdateArgs, update};
use headlong_device::cuda::{CudaStream, DevicePtr};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::{DType, Mat, Stream};
use std::sync::MutexGuard;

/// What a set is built for, besides its tables.
#[derive(Debug, Clone, Copy)]
pub struct SetOptions<'a> {
    /// The sparse optimiser of all tables.
    pub optimizer: Optimizer,
    /// Seed of the run.
    pub seed: u64,
    /// Most samples of a batch: of all micro-batches together, where gradients are accumulated.
    pub max_samples: usize,
    /// Most ids of a batch, per table: `max_samples` for one-hot tables.
    pub max_ids: &'a [usize],
    /// Blocks that the sums over samples are cut into; see [`crate::update`].
    pub sum_blocks: usize,
    /// Whether [`EmbeddingSet::update`] leaves all rows as they are.
    pub frozen: bool,
    /// Whether what may travel between ranks is rounded wherever a rank, one alone or one of
    /// several, adds it up, and rows to what: f16 or bf16; gradients and their sums to bf16. See
    /// [`crate::lookup`] and [`crate::update`]. On the CPU; between devices owners round sums of
    /// ranks' gradients so.
    pub narrow: Option<DType>,
}

/// The tables of one rank: their memory, and the ops over all of them at once.
///
/// Everything is taken by [`Self::new`]; afterwards no method allocates, except for errors and for
/// what tables of other authors do. Methods take `&self`, so that lanes can share a set: rows lie
/// in arena slots whose guards check that nothing is read while it is written, and panic with the
/// slot's name where the schedule misses a wait.
pub struct EmbeddingSet {
    specs: Vec<TableSpec>,
    tensors: Vec<Vec<TensorSpec>>,
    tables: Vec<TableSlot>,
    optimizer: Optimizer,
    seed: u64,
    max_samples: usize,
    max_ids: Vec<usize>,
    sum_blocks: usize,
    frozen: bool,
    narrow: Option<DType>,
    width: usize,
    cuda: Option<CudaSet>,
}

impl EmbeddingSet {
    /// Builds and initialises `specs` with the kinds of this crate.
    pub fn new(stream: &Stream, specs: &[TableSpec], options: &SetOptions) -> Result<Self> {
        Self::with_registry(&Registry::default(), stream, specs, options)
    }

    /// Builds and initialises `specs` with the kinds of `registry`; takes all memory that will ever
    /// be needed.
    ///
    /// # Errors
    /// Descriptions that a kind refuses, unknown kinds, memory that the system refuses.
    ///
    /// # Panics
    /// When `max_ids` has not one number per table, or `sum_blocks` is not in
    /// `1..=`[`MAX_SUM_BLOCKS`].
    pub fn with_registry(
        registry: &Registry,
        stream: &Stream,
        specs: &[TableSpec],
        options: &SetOptions,
    ) -> Result<Self> {
        assert_eq!(options.max_ids.len(), specs.len(), "max_ids has one number per table");
        let blocks = options.sum_blocks;
        assert!(
            (1..=MAX_SUM_BLOCKS).contains(&blocks),
            "sum_blocks lies in 1..={MAX_SUM_BLOCKS}, got {blocks}"
        );
        if stream.as_cuda().is_some() {
            check_on_cuda(registry, specs)?;
        }
        let mut tables = Vec::with_capacity(specs.len());
        let mut width = 0;
        for (index, spec) in specs.iter().enumerate() {
            check(spec, options.max_samples, options.max_ids[index])?;
            let env = TableEnv {
                stream,
                optimizer: &options.optimizer,
                seed: options.seed,
                table_index: index as u64,
                shard: None,
            };
            let table = registry.kind(spec)?.build(spec, &env)?;
            let shape = (width, options.max_ids[index]);
            tables.push(slot(stream, table, spec, shape, &options.optimizer)?);
            width += spec.dim;
        }
        let sizes = (options.max_samples, options.max_ids);
        let cuda = stream.as_cuda().map(|stream| {
            CudaSet::new(stream.device(), specs, &tables, sizes, (options.optimizer, options.seed))
        });
        Ok(Self {
            cuda: cuda.transpose()?,
            specs: specs.to_vec(),
            tensors: tables.iter().map(|slot| slot.lock().tensors()).collect(),
            tables,
            optimizer: options.optimizer,
            seed: options.seed,
            max_samples: options.max_samples,
            max_ids: options.max_ids.to_vec(),
            sum_blocks: blocks,
            frozen: options.frozen,
            narrow: options.narrow,
            width,
        })
    }

    /// On a device: sums the bags of `tables` in the parts of a bag whose leaves these are, as
    /// owners that pool them would; one part is the sum in the order of the bag.
    pub(crate) fn sum_in_parts(
        &mut self,
        tables: impl Iterator<Item = usize>,
        leaf_of: &[u32],
    ) -> Result<()> {
        self.cuda.as_mut().map_or(Ok(()), |cuda| cuda.sum_in_parts(tables, leaf_of))
    }

    /// A route with room for the largest planned batch. A schedule that runs ahead holds two.
    pub fn new_route(&self) -> Result<Route> {
        match &self.cuda {
            Some(cuda) => Ok(Route::on_device(cuda.new_route()?)),
            None => Ok(Route::new(&self.specs, self.max_samples, &self.max_ids)),
        }
    }

    /// Tells the kernels where learning rate and step number lie in device memory, a
    /// [`DeviceStep`](headlong_device::cuda::DeviceStep): from then on the host's step is not
    /// looked at. Nothing on the CPU.
    pub fn set_device_step(&self, step: DevicePtr) {
        if let Some(cuda) = &self.cuda {
            cuda.set_device_step(step);
        }
    }

    /// What kernels found wrong since the last call, where there is anything. Waits for the device;
    /// nothing on the CPU.
    ///
    /// # Errors
    /// [`EmbeddingError::IdOutOfRange`], and batches of bags in steps that were captured without.
    pub fn check_flags(&self) -> Result<()> {
        self.cuda.as_ref().map_or(Ok(()), CudaSet::check_flags)
    }

    /// The set, a route and the stream on a device, where all are.
    fn on_device<'a>(
        &'a self,
        stream: &'a Stream,
        route: &'a Route,
    ) -> Option<(&'a CudaSet, &'a CudaStream, &'a DeviceRoute)> {
        let set = self.cuda.as_ref()?;
        let route = route.cuda.as_deref().expect("the route was made by this set");
        Some((set, stream.cuda_body(), route))
    }

    /// Sorts the ids of a batch into unique rows and their samples; see [`crate::route`]. On a CUDA
    /// device the ids are those that were staged and copied, and `ids` is not looked at.
    ///
    /// # Errors
    /// [`EmbeddingError::IdOutOfRange`], [`EmbeddingError::Capacity`], and batches of another
    /// shape.
    pub fn route<I: Ids + ?Sized>(&self, stream: &Stream, ids: &I, out: &mut Route) -> Result<()> {
        if let Some((set, stream, route)) = self.on_device(stream, out) {
            set.route(stream, route);
            return Ok(());
        }
        let args = RouteArgs {
            specs: &self.specs,
            num_samples: num_samples(&self.specs, ids)?,
            max_samples: self.max_samples,
            ids: &|table| bags_of(ids, table),
        };
        route(stream, &args, out)
    }

    /// As [`Self::lookup`]; on a CUDA device of the ids that were staged and copied with `route`,
    /// and `ids` is not looked at.
    pub fn lookup_routed<I: Ids + ?Sized>(
        &self,
        stream: &Stream,
        ids: &I,
        route: &Route,
        vectors: &Mat,
    ) -> Result<()> {
        let Some((set, stream, device)) = self.on_device(stream, route) else {
            return self.lookup(stream, ids, vectors);
        };
        check_vectors(vectors, self.width, route.num_samples());
        set.lookup(stream, &self.tables, device, vectors)
    }

    /// Writes the pooled vectors of a batch to `vectors` (`samples × `[`Self::width`], f32); see
    /// [`crate::lookup`].
    ///
    /// # Errors
    /// [`EmbeddingError::IdOutOfRange`], and batches of another shape.
    ///
    /// # Panics
    /// When `vectors` is not [`Self::width`] wide, or is in use.
    pub fn lookup<I: Ids + ?Sized>(&self, stream: &Stream, ids: &I, vectors: &Mat) -> Result<()> {
        assert!(self.cuda.is_none(), "on a device vectors are looked up by route: `lookup_routed`");
        check_vectors(vectors, self.width, vectors.rows());
        let found = num_samples(&self.specs, ids)?;
        if vectors.rows() != found && !self.specs.is_empty() {
            let table = self.specs[0].name.clone();
            return Err(EmbeddingError::SampleCount { table, expected: vectors.rows(), found });
        }
        let args = LookupArgs {
            specs: &self.specs,
            tables: &self.tables,
            num_samples: found,
            ids: &|table| bags_of(ids, table),
            vectors,
            narrow: self.narrow,
        };
        lookup(stream, &args)
    }

    /// Sums the gradients of each row and applies the sparse optimiser to it, once; see
    /// [`crate::update`]. Does nothing in a frozen set.
    ///
    /// # Panics
    /// When `d_vectors` is not `samples of the route × `[`Self::width`], or is being written.
    pub fn update(
        &self,
        stream: &Stream,
        route: &Route,
        d_vectors: &Mat,
        step: &Step,
    ) -> Result<()> {
        if self.frozen {
            return Ok(());
        }
        check_vectors(d_vectors, self.width, route.num_samples());
        if let Some((set, stream, route)) = self.on_device(stream, route) {
            return set.update(stream, &self.tables, route, (d_vectors, step));
        }
        assert!(route.is_for(&self.specs), "the route was made by this set");
        let step = SparseStep { optimizer: &self.optimizer, step };
        let (tables, seed) = (&self.tables, self.seed);
        let (sum_blocks, narrow) = (self.sum_blocks, self.narrow.is_some());
        update(stream, &UpdateArgs { tables, route, d_vectors, step, sum_blocks, seed, narrow })
    }

    /// Table `table` itself, for what only it can do: saving rows that it hides, say.
    pub fn table(&self, table: usize) -> MutexGuard<'_, Box<dyn EmbeddingTable>> {
        self.tables[table].lock()
    }

    pub(crate) fn table_slot(&self, table: usize) -> &TableSlot {
        &self.tables[table]
    }

    /// Columns of the matrix of vectors: the sum of all dims.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The tensors of table `table`, as a checkpoint holds them: `weight`, then the optimiser's
    /// states.
    pub fn tensors(&self, table: usize) -> &[TensorSpec] {
        &self.tensors[table]
    }

    /// Each table with its tensors.
    pub fn tables(&self) -> impl Iterator<Item = (&TableSpec, &[TensorSpec])> {
        self.specs.iter().zip(self.tensors.iter().map(Vec::as_slice))
    }

    /// Copies rows of tensor number `tensor` of [`Self::tensors`], from `first_row` on, to `out`: a
    /// whole number of rows. Tables that hide their rows read them.
    ///
    /// # Errors
    /// [`EmbeddingError::RowRange`]; [`EmbeddingError::UnknownTensor`] where there is none; errors
    /// of tables of other authors.
    pub fn read_rows(
        &self,
        table: usize,
        tensor: usize,
        first_row: u64,
        out: &mut [f32],
    ) -> Result<()> {
        let slot = &self.tables[table];
        let Some(mat) = slot.plain.as_ref().and_then(|rows| rows.tensor(tensor)) else {
            let part = slot.lock();
            check_rows(&self.specs[table], &part.tensors(), tensor, first_row, out.len())?;
            return part.read_rows(tensor, first_row, out);
        };
        check_rows(&self.specs[table], &self.tensors[table], tensor, first_row, out.len())?;
        read_rows(mat, first_row, out)
    }

    /// Overwrites rows of tensor number `tensor` of [`Self::tensors`], from `first_row` on: a whole
    /// number of rows.
    pub fn write_rows(
        &self,
        table: usize,
        tensor: usize,
        first_row: u64,
        values: &[f32],
    ) -> Result<()> {
        let slot = &self.tables[table];
        let Some(mat) = slot.plain.as_ref().and_then(|rows| rows.tensor(tensor)) else {
            let mut part = slot.lock();
            check_rows(&self.specs[table], &part.tensors(), tensor, first_row, values.len())?;
            return part.write_rows(tensor, first_row, values);
        };
        check_rows(&self.specs[table], &self.tensors[table], tensor, first_row, values.len())?;
        write_rows(mat, first_row, values)
    }
}

/// Refuses tables that have no CUDA body, by name, before memory is taken.
pub(crate) fn check_on_cuda(registry: &Registry, specs: &[TableSpec]) -> Result<()> {
    specs.iter().try_for_each(|spec| registry.kind_on_cuda(spec).map(drop))?;
    crate::cuda::set::check_specs(specs)
}
