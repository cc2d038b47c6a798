//! From a configuration to a model in memory: every slot planned, every arena frozen, every weight
//! initialised. After this nothing is allocated.

use crate::config::{Bf16Sums, Config, DeduplicateChoice, IdsChoice, Precision};
use crate::error::{Error, Result};
use crate::iteration::share::Share;
use headlong_comm::{CommError, CommOptions, Communicator, Topology};
use headlong_device::cuda::DeviceMemory;
use headlong_device::optimizer::Optimizer;
use headlong_device::{Arena, DType, Device, Mat, SlotId, Stream};
use headlong_embedding::hybrid::{
    Deduplicate, HybridOptions, HybridRoute, HybridSet, Owner, Partition, SlotOptions,
};
use headlong_embedding::{Registry, SetOptions, TableSpec};
use headlong_mlp::interaction::cross::Cross;
use headlong_mlp::linear::Compute;
use headlong_mlp::loss::Loss;
use headlong_mlp::loss_scale::LossScale;
pub use headlong_mlp::loss_scale::{ScaleState, is_scale};
use headlong_mlp::mlp::{Arenas, Mlp};
use headlong_mlp::optim;
use headlong_reader::Batch;
use std::slice;
use std::sync::{Arc, Mutex};

mod batch_slot;
mod call;
mod divided;
mod exchange;
mod finite;
mod interaction;
mod kept;
mod on_device;
mod planned;
mod sizes;
pub(crate) mod strips;

pub(crate) use batch_slot::BatchIds;
pub use batch_slot::BatchSlot;
pub(crate) use batch_slot::Purpose;
use batch_slot::batch_slots;
pub use call::{Call, Incoming};
pub(crate) use divided::Divided;
pub(crate) use exchange::{ByNode, Devices, Exchange};
use interaction::Interaction;
use kept::Kept;
pub(crate) use kept::kept_bytes;
pub(crate) use on_device::Summed;
use planned::Planned;
pub(crate) use planned::{SlotBytes, dense_choice, slot_bytes};
pub(crate) use sizes::SUM_PIECE;
use sizes::{Exchanged, OVERFLOW_FLAG, Sizes, SlotIds};

/// Parts of the model that can be switched off, to see what they are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ablation {
    /// The tables keep their initial values.
    pub freeze_tables: bool,
    /// The dense features are all zero.
    pub ignore_dense: bool,
}

/// Everything one rank's iteration touches. Stages reach it through the schedule, by field.
pub struct Model {
    pub config: Config,
    pub(crate) ablation: Ablation,
    /// The embedding tables: this rank's part of them.
    pub tables: HybridSet,
    pub communicator: Arc<Communicator>,
    /// How rows and gradients get to them and back.
    pub(crate) exchange: Exchange,
    /// Which samples this rank trains on.
    pub(crate) share: Share,
    /// Elements that one piece of the all-reduce has.
    pub(crate) chunk_len: usize,
    pub bottom: Mlp,
    /// The cross network over the features, where there is one.
    pub cross: Option<Cross>,
    pub top: Mlp,
    pub weights: Arena,
    pub gradients: Arena,
    /// Gradients of frequent rows, loss sums and dense gradients, in one memory: what ranks add up.
    /// Without dense gradients where these are divided.
    pub(crate) reduced: Arena,
    /// Dense gradients in bf16, where they travel as such between devices: then their sums are what
    /// counts. 1 × elements of the arena of gradients.
    pub(crate) dense_sums: Option<Mat>,
    /// Gradients of replicated rows: 1 × [`HybridSet::frequent_len`].
    pub(crate) replicated_gradients: Mat,
    /// Numbers that are added up over all ranks with the gradients, for the host: 1 ×
    /// [`NUM_CONTROL_FLAGS`].
    pub(crate) control_flags: Mat,
    /// Rows that owners send this rank: their vectors, later their gradients.
    pub(crate) recv_rows: Mat,
    pub(crate) send_rows: Mat,
    /// The states of the dense optimiser, laid out alike; those of this rank's part, where it is
    /// divided.
    pub dense_states: Vec<Arena>,
    pub dense_optimizer: Optimizer,
    /// How the ranks have divided the dense parameters, where each moves a part.
    pub(crate) divided: Option<Divided>,
    /// Names and shapes of the dense parameters, in the order of the slots of their arenas.
    pub parameters: Vec<Parameter>,
    pub(crate) slots: [BatchSlot; Model::NUM_SLOTS],
    /// Rows of the slots that hold one micro-batch.
    pub(crate) micro_batch_capacity: usize,
    /// Pooled vectors of the whole batch, samples × (tables · dim), and their gradients.
    pub(crate) vectors: Mat,
    pub(crate) d_vectors: Mat,
    /// Output of the bottom MLP for one micro-batch, and its gradient.
    pub(crate) bottom_out: Mat,
    pub(crate) d_bottom_out: Mat,
    /// Output of the interaction for one micro-batch, and its gradient.
    pub(crate) top_in: Mat,
    pub(crate) d_top_in: Mat,
    /// Logits of the whole batch, and their gradients.
    pub(crate) logits: Mat,
    pub(crate) d_logits: Mat,
    /// Logits of an evaluation batch, of all ranks.
    pub(crate) all_logits: Mat,
    /// Loss sums, one row per micro-batch and block, over all ranks.
    pub(crate) loss_sums: Mat,
    /// What the loss is multiplied by, in f16.
    pub(crate) loss_scale: Option<LossScale>,
    /// How the output of the bottom network and the vectors meet.
    pub(crate) interaction: Interaction,
    /// On a device, where the first step stopped being numbers: 1 × 1.
    record: Mat,
    /// Learning rates and number of the step, on a device with memory of its own: for the dense
    /// parameters, then for the tables.
    device_steps: Option<DeviceMemory>,
    /// Batches that stay on the device, by [`Purpose`], where there is room for them.
    kept: [Option<Mutex<Kept>>; 2],
}

/// A dense parameter as checkpoints name it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// `bottom.0.weight`.
    pub name: String,
    /// `[out, in]` or `[out]`.
    pub shape: Vec<u64>,
}

struct Networks {
    bottom: Mlp,
    cross: Option<Cross>,
    top: Mlp,
}

/// The parts that a model is put together from.
struct Assembled {
    tables: HybridSet,
    routes: [HybridRoute; 3],
    networks: Networks,
    interaction: Interaction,
    arenas: Arenas,
    dense_states: Vec<Arena>,
    divided: Option<Divided>,
    slots: SlotIds,
}

/// What makes a model one of several ranks.
pub struct RankParts<'a> {
    pub communicator: Arc<Communicator>,
    /// Where every row of every table lies.
    pub partition: Arc<Partition>,
    /// How owners learn which rows are wanted.
    pub ids: IdsChoice,
    /// The kinds of tables that the configuration may name.
    pub registry: &'a Registry,
    pub ablation: Ablation,
}

impl Model {
    /// Batch slots: two of training, one of evaluation.
    pub(crate) const NUM_SLOTS: usize = 3;

    /// The slot that evaluation uses; 0 and 1 are those of training.
    pub const EVALUATION_SLOT: usize = 2;

    /// Builds and initialises the model of `config` with tables of `table_rows` rows, on one rank.
    pub fn new(config: &Config, table_rows: &[u64], stream: &Stream) -> Result<Self> {
        Self::with_ablation(config, table_rows, stream, Ablation::default())
    }

    /// As [`Model::new`], with parts of it switched off.
    pub fn with_ablation(
        config: &Config,
        table_rows: &[u64],
        stream: &Stream,
        ablation: Ablation,
    ) -> Result<Self> {
        Self::with_registry(config, table_rows, stream, &Registry::default(), ablation)
    }

    /// As [`Model::with_ablation`], with the kinds of tables that `registry` knows.
    pub fn with_registry(
        config: &Config,
        table_rows: &[u64],
        stream: &Stream,
        registry: &Registry,
        ablation: Ablation,
    ) -> Result<Self> {
        let partition = Partition::row_wise(&table_specs(config, table_rows), 1);
        let communicator =
            Communicator::local(&Topology::single(), CommOptions::default()).remove(0);
        let communicator = Arc::new(communicator);
        let (partition, ids) = (Arc::new(partition), IdsChoice::Exchange);
        Self::of_rank(
            config,
            table_rows,
            stream,
            RankParts { communicator, partition, ids, registry, ablation },
        )
    }

    /// One rank's model: its replica of the dense network and of frequent rows, and the infrequent
    /// rows that it owns.
    pub fn of_rank(
        config: &Config,
        table_rows: &[u64],
        stream: &Stream,
        parts: RankParts<'_>,
    ) -> Result<Self> {
        let compute = compute_on(config, &stream.device());
        let sizes = Sizes::of(config, parts.communicator.num_ranks(), compute);
        let tables = build_tables(config, table_rows, stream, &sizes, &parts)?;
        let on_device = stream.as_cuda().is_some();
        let by_node = deduplicates_by_node(config, &parts);
        let exchanged = Exchanged::of(&tables, by_node, on_device);
        let Planned { plans, bottom, cross, top, slots, dense } =
            Planned::new(config, &sizes, (compute, on_device), &exchanged);
        let parameters = plans.parameters.clone();
        let memory = |error| Error::failed("the dense network cannot be built")(error);
        let arenas = plans.freeze_on(stream).map_err(memory)?;
        let divided = dense.norms.map(|norms| {
            let sums = arenas.activations.mat(slots.norm_sums);
            Divided::new(&parameters, norms, &parts.communicator, sums)
        });
        let states = divided.as_ref().map_or(parameters, Divided::state_plan);
        let dense_states =
            optim::freeze_states_on(stream, &config.optimizer.dense.optimizer(), &states)
                .map_err(memory)?;
        let networks = Networks {
            bottom: bottom.build(&arenas),
            cross: cross.map(|plan| plan.build(&arenas)),
            top: top.build(&arenas),
        };
        let route = || {
            let route = tables.new_route();
            route.map_err(Error::failed("the routes of batches cannot be built"))
        };
        let routes = [route()?, route()?, route()?];
        let interaction = Interaction::new(config.model.interaction, compute.rounding());
        let assembled = Assembled {
            tables,
            routes,
            networks,
            interaction,
            arenas,
            dense_states,
            divided,
            slots,
        };
        let mut model = Self::assemble(config, parts, sizes, assembled);
        let stacks = model.stacks();
        stacks.iter().copied().flatten().for_each(|stack| stack.initialize(config.train.seed));
        model.refresh(stream);
        if let Device::Cuda(_) = stream.device() {
            model.go_to_device(stream)?;
            model.forget_non_finite()?;
        }
        model.set_loss_scale(&ScaleState::first(config.train.loss_scale as f32))?;
        Ok(model)
    }

    fn assemble(config: &Config, parts: RankParts<'_>, sizes: Sizes, assembled: Assembled) -> Self {
        let Assembled { tables, routes, networks, interaction, arenas, .. } = assembled;
        let (dense_states, divided, ids) =
            (assembled.dense_states, assembled.divided, assembled.slots);
        let mat = |slot: SlotId| arenas.activations.mat(slot);
        let leading = |slot: SlotId| arenas.leading.mat(slot);
        let [vectors, d_vectors] = ids.vectors.map(mat);
        let [bottom_out, d_bottom_out] = ids.bottom_out.map(mat);
        let [top_in, d_top_in] = ids.top_in.map(|slot| mat(slot).columns(0, sizes.top_in));
        let [logits, d_logits] = ids.logits.map(mat);
        let [recv_rows, send_rows, inside, across] = ids.exchanged.map(mat);
        let by_node = deduplicates_by_node(config, &parts);
        let knows_all_ids = knows_all_ids(config, &parts);
        let exchange = match (sizes.ranks, by_node) {
            (1, _) => Exchange::None,
            (_, true) => Exchange::ByNode(ByNode { inside, across }),
            // On devices until they have met.
            (_, false) => Exchange::Flat { knows_all_ids },
        };
        let num_shares = if knows_all_ids { sizes.ranks } else { 0 };
        let batches = ids.batches.map(|(labels, dense)| (mat(labels), mat(dense)));
        let slots = batch_slots(&tables, routes, batches, by_node, num_shares);
        let rank = parts.communicator.rank().0;
        let dense_sums = ids.leading.dense_sums.map(leading);
        Self {
            dense_optimizer: config.optimizer.dense.optimizer(),
            micro_batch_capacity: sizes.micro,
            share: Share::new(rank, sizes.ranks, sizes.sum_blocks, config.train.batch_size),
            chunk_len: chunk_len(&parts.communicator),
            replicated_gradients: leading(ids.leading.frequent),
            loss_sums: leading(ids.leading.loss_sums),
            device_steps: None,
            kept: [None, None],
            control_flags: leading(ids.leading.control_flags),
            loss_scale: loss_scale(config, &arenas, &ids),
            record: mat(ids.record),
            all_logits: mat(ids.all_logits),
            parameters: parameters(&arenas.parameters),
            config: config.clone(),
            weights: arenas.parameters,
            gradients: arenas.gradients,
            reduced: if divided.is_some() || dense_sums.is_some() {
                arenas.leading
            } else {
                arenas.reduced
            },
            dense_sums,
            divided,
            communicator: parts.communicator,
            ablation: parts.ablation,
            exchange,
            interaction,
            recv_rows,
            send_rows,
            tables,
            bottom: networks.bottom,
            cross: networks.cross,
            top: networks.top,
            dense_states,
            slots,
            vectors,
            d_vectors,
            bottom_out,
            d_bottom_out,
            top_in,
            d_top_in,
            logits,
            d_logits,
        }
    }

    /// Whether every rank holds the ids of the whole batch.
    pub(crate) fn knows_all_ids(&self) -> bool {
        matches!(self.exchange, Exchange::Flat { knows_all_ids: true })
    }

    /// Whether this is the only rank: then nothing is exchanged.
    pub fn is_single_rank(&self) -> bool {
        self.communicator.num_ranks() == 1
    }

    /// Tells the other ranks that this one cannot go on.
    pub fn abort(&self, error: &Error) {
        if matches!(error, Error::Communication { .. }) {
            // Everybody knows already.
            return;
        }
        let reason = crate::error::chain(error);
        self.communicator.abort(CommError::Aborted { culprit: self.communicator.rank(), reason });
    }

    /// Puts the loss scale and its counters where they stood; nothing where the loss is not scaled.
    pub(crate) fn set_loss_scale(&self, state: &ScaleState) -> Result<()> {
        let set = self.loss_scale.as_ref().map_or(Ok(()), |scale| scale.set(state));
        set.map_err(Error::failed("the loss scale cannot be set"))
    }

    pub(crate) fn loss(&self) -> Loss {
        self.config.model.loss
    }

    /// Makes everything that is derived from weights again. Call it after weights were written from
    /// outside.
    pub fn refresh(&self, stream: &Stream) {
        self.stacks().into_iter().flatten().for_each(|stack| stack.refresh(stream));
    }

    /// All stacks of dense layers, in the order of the forward pass.
    pub(crate) fn stacks(&self) -> [&[Mlp]; 3] {
        let cross = self.cross.as_ref().map_or(&[][..], Cross::stacks);
        [slice::from_ref(&self.bottom), cross, slice::from_ref(&self.top)]
    }

    /// Takes this rank's share of `incoming` into a slot, and brings labels and dense features to
    /// the device.
    pub(crate) fn copy_batch(&self, slot: &BatchSlot, incoming: &Batch) -> Result<()> {
        self.take_share(slot, incoming)?;
        let batch = slot.batch();
        let (labels, dense) =
            (slot.labels.first_rows(batch.num_samples), slot.dense.first_rows(batch.num_samples));
        match batch.labels.is_empty() {
            true => labels.write::<f32>().data_mut().fill(0.0),
            false => labels.write::<f32>().data_mut().copy_from_slice(&batch.labels),
        }
        if self.copies_dense() {
            dense.write::<f32>().data_mut().copy_from_slice(&batch.dense);
        }
        Ok(())
    }

    /// Samples of one block of the sums over this rank's samples of a whole step, for the gradients
    /// of rows.
    pub(crate) fn block_len_of_step(&self, slot: &BatchSlot) -> usize {
        let all = slot.num_samples_of_all();
        if all <= self.share.micro_batch_size_of_all() {
            return all.div_ceil(self.share.sum_blocks());
        }
        slot.batch().num_samples.div_ceil(self.share.blocks().len())
    }

    /// The mean loss of the step over the batch of slot `slot`: the host's look at it, after the
    /// step.
    pub(crate) fn mean_loss(
        &self,
        slot: usize,
        num_samples_of_all: usize,
        step: u64,
    ) -> Result<f64> {
        let num_micro_batches = num_samples_of_all.div_ceil(self.share.micro_batch_size_of_all());
        let rows = num_micro_batches * self.share.sum_blocks();
        let sum = match self.on_device() {
            true => self.sums_of(&self.slots[slot], rows, step)?,
            false => headlong_mlp::loss::total(&self.loss_sums.first_rows(rows)),
        };
        Ok(sum / num_samples_of_all as f64)
    }

    /// Where the loss scale stands behind the step over the batch of slot `slot`, once
    /// [`Self::mean_loss`] has waited for it; none where the loss is not scaled.
    pub(crate) fn scaling(&self, slot: usize) -> Result<Option<ScaleState>> {
        if self.loss_scale.is_none() {
            return Ok(None);
        }
        if self.on_device() {
            Ok(Some(self.scaling_of(&self.slots[slot])))
        } else {
            self.loss_scale()
        }
    }

    /// Where the loss scale stands, once the device has done what it was given.
    pub(crate) fn loss_scale(&self) -> Result<Option<ScaleState>> {
        let state = self.loss_scale.as_ref().map(LossScale::get).transpose();
        state.map_err(Error::failed("the loss scale cannot be read"))
    }

    /// Whether the step changes nothing, because a gradient is not finite: for the CPU's stages. A
    /// device finds it where it needs it.
    pub(crate) fn skips(&self) -> bool {
        !self.on_device() && self.loss_scale.as_ref().is_some_and(LossScale::skips)
    }

    /// Whether every batch of a call over slot `slot` is full and has the ids that were planned
    /// for, so that all sizes are always the same. Ranks agree about it without a word: the number
    /// of samples is that of all, and among ranks any ids are as planned.
    pub(crate) fn is_full(&self, call: &Call<'_>, slot: usize) -> bool {
        let (train, eval) = (&self.config.train, &self.config.eval);
        let is_evaluation = slot == Self::EVALUATION_SLOT;
        let full =
            if is_evaluation { eval.batch_size } else { train.batch_size * train.accumulate };
        let is_usual =
            |slot: &BatchSlot| slot.num_samples_of_all() == full && slot.route().is_as_planned();
        is_usual(call.now) && (is_evaluation || call.next.is_some_and(is_usual))
    }

    /// Whether a step over slot `slot` that was captured with full batches does what this call asks
    /// for. The batch of next may be short: it is copied and routed as long as it says it is, and
    /// what its copies take besides is not looked at.
    pub(crate) fn is_replayable(&self, call: &Call<'_>, slot: usize) -> bool {
        let full = self.config.train.batch_size * self.config.train.accumulate;
        let fits =
            |slot: &BatchSlot| slot.num_samples_of_all() <= full && slot.route().is_as_planned();
        self.is_full(&Call { next: call.next.map(|_| call.now), ..*call }, slot)
            && call.next.is_none_or(fits)
    }

    /// The first `num_samples` of `logits`, those of the last prediction, brought to the host.
    pub(crate) fn logits_on_host(&self, logits: &Mat, num_samples: usize) -> Result<Vec<f32>> {
        let logits = logits.first_rows(num_samples).to_vec();
        logits.map_err(Error::failed("the predictions cannot be read"))
    }

    /// The logits of the last prediction, of all ranks.
    pub(crate) fn logits_of_all(&self) -> &Mat {
        if self.is_single_rank() { &self.logits } else { &self.all_logits }
    }
}

/// Whether every rank holds the ids of the whole batch. Proxies of nodes ask for what their peers
/// have asked them for.
fn knows_all_ids(config: &Config, parts: &RankParts<'_>) -> bool {
    parts.ids == IdsChoice::Known && !deduplicates_by_node(config, parts)
}

/// What the loss is multiplied by, where there is room for it.
fn loss_scale(config: &Config, arenas: &Arenas, ids: &SlotIds) -> Option<LossScale> {
    let state = arenas.activations.mat(ids.loss_scale?);
    let overflow = arenas.leading.mat(ids.leading.control_flags).columns(OVERFLOW_FLAG, 1);
    Some(LossScale { state, overflow, growth_interval: config.train.loss_scale_interval })
}

/// What products of the dense network take on a device, or on a processor.
fn compute_on(config: &Config, device: &Device) -> Compute {
    match (compute(config.train.precision), device, config.train.bf16_sums) {
        (Compute::Bf16, Device::Cpu, Bf16Sums::Tiles) => Compute::RoundedTiles,
        (compute, ..) => compute.on(device),
    }
}

/// What products of the dense network take.
fn compute(precision: Precision) -> Compute {
    match precision {
        Precision::F32 => Compute::F32,
        Precision::Tf32 => Compute::Tf32,
        Precision::Bf16 => Compute::Bf16,
        Precision::F16 => Compute::F16,
    }
}

/// The type of pooled vectors on a device.
pub(crate) fn device_vector_type(config: &Config) -> DType {
    sizes::vector_type(config, compute(config.train.precision).dtype())
}

/// The tables of `config`, in the order of the columns.
pub fn table_specs(config: &Config, table_rows: &[u64]) -> Vec<TableSpec> {
    table_rows.iter().enumerate().map(|(column, &rows)| config.table_spec(column, rows)).collect()
}

fn build_tables(
    config: &Config,
    table_rows: &[u64],
    stream: &Stream,
    sizes: &Sizes,
    parts: &RankParts<'_>,
) -> Result<HybridSet> {
    let specs = table_specs(config, table_rows);
    // One rank looks dense rows up straight from the ids; other tables, other ranks and devices
    // need room for every batch.
    let staged = |spec: &TableSpec| parts.registry.kind(spec).is_ok_and(|kind| !kind.shows_rows());
    let planned = sizes.ranks > 1 || stream.as_cuda().is_some() || specs.iter().any(staged);
    let max_samples = sizes.step.max(if planned { sizes.evaluation } else { 0 });
    let options = HybridOptions {
        set: SetOptions {
            optimizer: config.optimizer.sparse.optimizer(),
            seed: config.train.seed,
            max_samples,
            max_ids: &(0..specs.len())
                .map(|column| max_samples * config.max_ids_per_sample(column))
                .collect::<Vec<_>>(),
            sum_blocks: sizes.own_blocks(),
            frozen: parts.ablation.freeze_tables,
            narrow: config.narrow_rows(),
        },
        partition: Arc::clone(&parts.partition),
        owner: Owner(parts.communicator.rank().0),
        deduplicate: match config.comm.deduplicate {
            DeduplicateChoice::Off => Deduplicate::Off,
            _ if deduplicates_by_node(config, parts) => {
                Deduplicate::Node { ranks: parts.communicator.topology().node_size(0) }
            }
            _ => Deduplicate::Rank,
        },
        pool_at: &config.pooled_at(),
        slots: SlotOptions { dtype: config.slot_dtype(sizes.ranks), ..SlotOptions::default() },
    };
    HybridSet::new(parts.registry, stream, &specs, &options)
        .map_err(Error::failed("the embedding tables cannot be built"))
}

/// Whether equal rows are merged in each node: as configured, where nodes are subtrees of the sum
/// over ranks. A node of one rank, or a job of one node, would gain nothing.
fn deduplicates_by_node(config: &Config, parts: &RankParts<'_>) -> bool {
    let aligned = parts.communicator.topology().aligned_node_size();
    config.comm.deduplicate == DeduplicateChoice::Node && aligned.is_some()
}

/// Elements of a piece of a sum. Threads read each other's memory: pieces would only add waits.
fn chunk_len(communicator: &Communicator) -> usize {
    match communicator.transport().name() {
        "local" => usize::MAX,
        _ => SUM_PIECE,
    }
}

fn parameters(weights: &Arena) -> Vec<Parameter> {
    let parameter = |mat: Mat| {
        let (rows, cols) = (mat.rows() as u64, mat.cols() as u64);
        let shape = if mat.name().ends_with(".bias") { vec![cols] } else { vec![rows, cols] };
        Parameter { name: mat.name().to_owned(), shape }
    };
    weights.mats().map(parameter).collect()
}
