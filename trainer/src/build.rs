//! From a configuration to a model in memory: every slot planned, every arena frozen, every weight initialised. After this
//! nothing is allocated.

use crate::config::{self, Config, Interaction};
use crate::data::failed;
use crate::error::{Error, Result};
use crate::plan;
use crate::schedule::Call;
use headlong_device::optimizer::Optimizer;
use headlong_device::{Arena, DType, JaggedRef, Mat, SlotId, Stream};
use headlong_embedding::{EmbeddingSet, Ids, Pooling, Registry, Route, SetOptions, TableSpec};
use headlong_mlp::linear::Activation;
use headlong_mlp::loss::Loss;
use headlong_mlp::mlp::{Arenas, Mlp, MlpSpec, Plans};
use headlong_mlp::optim;
use headlong_reader::Batch;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// The configuration it was built from.
    pub config: Config,
    pub(crate) ablation: Ablation,
    /// The embedding tables.
    pub tables: EmbeddingSet,
    /// The MLP over dense features.
    pub bottom: Mlp,
    /// The MLP over the interaction.
    pub top: Mlp,
    /// All dense parameters, in one arena.
    pub weights: Arena,
    /// Their gradients, laid out alike.
    pub gradients: Arena,
    /// The states of the dense optimiser, laid out alike.
    pub dense_states: Vec<Arena>,
    /// The dense optimiser.
    pub dense_optimizer: Optimizer,
    /// Names and shapes of the dense parameters, in the order of the slots of their arenas.
    pub parameters: Vec<Parameter>,
    pub(crate) slots: [BatchSlot; 3],
    pub(crate) micro_batch_size: usize,
    pub(crate) sum_blocks: usize,
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
    /// Loss sums, one row per micro-batch and block.
    pub(crate) loss_sums: Mat,
}

/// A dense parameter as checkpoints name it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// `bottom.0.weight`.
    pub name: String,
    /// `[out, in]` or `[out]`.
    pub shape: Vec<u64>,
}

impl Parameter {
    /// Elements between neighbours on the first axis.
    pub fn row_width(&self) -> usize {
        self.shape[1..].iter().product::<u64>() as usize
    }
}

/// A batch on its way through the iteration: as it came from the reader, and what was made of it ahead of time.
pub struct BatchSlot {
    batch: Mutex<Batch>,
    pub(crate) route: Mutex<Route>,
    pub(crate) labels: Mat,
    pub(crate) dense: Mat,
}

impl BatchSlot {
    /// The batch. Slots belong to one stage at a time, so this never waits.
    pub fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the batch for another.
    pub fn swap(&self, other: &mut Batch) {
        std::mem::swap(&mut *self.batch(), other);
    }

    pub(crate) fn route(&self) -> MutexGuard<'_, Route> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The row indices of a batch as the embedding ops take them.
pub(crate) struct BatchIds<'a>(pub(crate) &'a Batch);

impl Ids for BatchIds<'_> {
    fn num_tables(&self) -> usize {
        self.0.sparse.len()
    }

    fn table(&self, index: usize) -> JaggedRef<'_> {
        let bags = &self.0.sparse[index];
        JaggedRef { values: &bags.values, offsets: &bags.offsets }
    }
}

/// Slots outside the MLPs, by what they hold.
struct SlotIds {
    vectors: [SlotId; 2],
    bottom_out: [SlotId; 2],
    top_in: [SlotId; 2],
    logits: [SlotId; 2],
    loss_sums: SlotId,
    batches: [(SlotId, SlotId); 3],
}

/// Sizes that slots are planned from.
struct Sizes {
    /// Samples of one micro-batch.
    micro: usize,
    /// Samples of one training step.
    step: usize,
    /// Samples of the largest batch, of training or evaluation.
    largest: usize,
    dim: usize,
    tables: usize,
    top_in: usize,
    sum_blocks: usize,
}

impl Sizes {
    fn of(config: &Config) -> Self {
        let (micro, step) = (config.train.batch_size, config.train.batch_size * config.train.accumulate);
        Self {
            micro,
            step,
            largest: step.max(config.eval.batch_size),
            dim: config.model.dim,
            tables: config.data.num_sparse,
            top_in: plan::top_input_width(config),
            sum_blocks: config.train.sum_blocks.unwrap_or(config.run.ranks),
        }
    }

    fn add_slots(&self, plans: &mut Plans, num_dense: usize) -> SlotIds {
        let mut matrix = |name: &str, rows, cols| plans.activations.matrix(name, DType::F32, rows, cols);
        let width = self.tables * self.dim;
        // Rows of the interaction start at cache lines.
        let top_in = self.top_in.next_multiple_of(16);
        SlotIds {
            vectors: [matrix("vectors", self.largest, width), matrix("d_vectors", self.step, width)],
            bottom_out: ["bottom_out", "d_bottom_out"].map(|name| matrix(name, self.micro, self.dim)),
            top_in: ["top_in", "d_top_in"].map(|name| matrix(name, self.micro, top_in)),
            logits: [matrix("logits", self.largest, 1), matrix("d_logits", self.step, 1)],
            loss_sums: matrix("loss_sums", self.step.div_ceil(self.micro) * self.sum_blocks, 2),
            batches: [("now", self.step), ("next", self.step), ("evaluation", self.largest)].map(
                |(name, rows)| {
                    (
                        matrix(&format!("labels of {name}"), rows, 1),
                        matrix(&format!("dense of {name}"), rows, num_dense),
                    )
                },
            ),
        }
    }
}

impl Model {
    /// The slot that evaluation uses; 0 and 1 are those of training.
    pub const EVALUATION_SLOT: usize = 2;

    /// Builds and initialises the model of `config` with tables of `table_rows` rows.
    ///
    /// # Errors
    /// Memory that the system refuses; optimisers or tables that cannot be built.
    pub fn new(config: &Config, table_rows: &[u64], stream: &Stream) -> Result<Self> {
        Self::with_ablation(config, table_rows, stream, Ablation::default())
    }

    /// As [`Model::new`], with parts of it switched off.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn with_ablation(
        config: &Config,
        table_rows: &[u64],
        stream: &Stream,
        ablation: Ablation,
    ) -> Result<Self> {
        let sizes = Sizes::of(config);
        let tables = build_tables(config, table_rows, stream, &sizes, ablation)?;
        let mut plans = Plans::new();
        let bottom_widths = widths(config.data.num_dense, &config.model.bottom);
        let top_widths = widths(sizes.top_in, &config.model.top);
        let spec = |name, widths, last| MlpSpec {
            name,
            widths,
            last,
            max_samples: sizes.micro,
            sum_blocks: sizes.sum_blocks,
        };
        let bottom_plan = spec("bottom", &bottom_widths, Activation::Relu).add_to(&mut plans);
        let top_plan = spec("top", &top_widths, Activation::None).add_to(&mut plans);
        let slots = sizes.add_slots(&mut plans, config.data.num_dense);
        let parameters_plan = plans.parameters.clone();
        let memory = |error| failed("the dense network cannot be built", error);
        let arenas = plans.freeze().map_err(memory)?;
        let dense_optimizer = config.optimizer.dense.optimizer();
        let dense_states = optim::freeze_states(&dense_optimizer, &parameters_plan).map_err(memory)?;
        let (bottom, top) = (bottom_plan.build(&arenas), top_plan.build(&arenas));
        for mlp in [&bottom, &top] {
            mlp.initialize(config.train.seed);
            mlp.refresh(stream);
        }
        let parameters = parameters(&arenas.parameters);
        Ok(Self::assemble(
            config,
            ablation,
            sizes,
            (tables, bottom, top),
            (arenas, dense_states),
            (slots, parameters),
        ))
    }

    fn assemble(
        config: &Config,
        ablation: Ablation,
        sizes: Sizes,
        (tables, bottom, top): (EmbeddingSet, Mlp, Mlp),
        (arenas, dense_states): (Arenas, Vec<Arena>),
        (ids, parameters): (SlotIds, Vec<Parameter>),
    ) -> Self {
        let mat = |slot: SlotId| arenas.activations.mat(slot);
        let [vectors, d_vectors] = ids.vectors.map(mat);
        let [bottom_out, d_bottom_out] = ids.bottom_out.map(mat);
        let [top_in, d_top_in] = ids.top_in.map(|slot| mat(slot).columns(0, sizes.top_in));
        let [logits, d_logits] = ids.logits.map(mat);
        let slots = ids.batches.map(|(labels, dense)| BatchSlot {
            batch: Mutex::new(Batch::default()),
            route: Mutex::new(tables.new_route()),
            labels: mat(labels),
            dense: mat(dense),
        });
        Self {
            dense_optimizer: config.optimizer.dense.optimizer(),
            micro_batch_size: sizes.micro,
            sum_blocks: sizes.sum_blocks,
            loss_sums: mat(ids.loss_sums),
            config: config.clone(),
            weights: arenas.parameters,
            gradients: arenas.gradients,
            ablation,
            tables,
            bottom,
            top,
            dense_states,
            parameters,
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

    /// Which loss is minimised.
    pub(crate) fn loss(&self) -> Loss {
        match self.config.model.loss {
            config::Loss::Bce => Loss::BceWithLogits,
            config::Loss::Mse => Loss::MseOfSigmoid,
        }
    }

    /// Makes everything that is derived from weights again. Call it after weights were written from outside.
    pub fn refresh(&self, stream: &Stream) {
        self.bottom.refresh(stream);
        self.top.refresh(stream);
    }

    /// Brings labels and dense features of a slot's batch to the device.
    pub(crate) fn copy_batch(&self, slot: &BatchSlot) -> Result<()> {
        let batch = slot.batch();
        let (samples, num_dense) = (batch.num_samples, self.config.data.num_dense);
        if samples > slot.labels.rows() {
            let planned = slot.labels.rows();
            return Err(Error::Usage(format!(
                "a batch of {samples} samples; the plan has room for {planned}"
            )));
        }
        let (labels, dense) = (slot.labels.first_rows(samples), slot.dense.first_rows(samples));
        match batch.labels.is_empty() {
            true => labels.write::<f32>().data_mut().fill(0.0),
            false => labels.write::<f32>().data_mut().copy_from_slice(&batch.labels),
        }
        if num_dense > 0 && !self.ablation.ignore_dense {
            dense.write::<f32>().data_mut().copy_from_slice(&batch.dense);
        }
        Ok(())
    }

    /// The mean loss of the batch that was trained on last. The host reads it after the step.
    pub(crate) fn mean_loss(&self, num_samples: usize) -> f64 {
        let rows = num_samples.div_ceil(self.micro_batch_size) * self.sum_blocks;
        headlong_mlp::loss::total(&self.loss_sums.first_rows(rows)) / num_samples as f64
    }

    /// The first thing, in the order of the forward pass, that is not a number; of the last micro-batch, where there are
    /// several.
    pub(crate) fn first_non_finite(&self, call: &Call<'_>) -> Option<String> {
        let call = call.micro_batch(call.num_micro_batches().saturating_sub(1));
        let (first, count) = call.samples();
        let sample = |mat: &Mat| {
            let mat = mat.read::<f32>();
            (0..mat.view().rows()).find(|&row| mat.row(row).iter().any(|value| !value.is_finite()))
        };
        let outputs = |mlp: &Mlp| -> Vec<(String, Mat)> {
            let layers = mlp.layers().iter();
            let named =
                layers.filter_map(|layer| Some((layer.name().to_owned(), layer.output()?.first_rows(count))));
            named.map(|(name, output)| (format!("output of layer {name}"), output)).collect()
        };
        let mut places = vec![("dense input".to_owned(), call.now.dense.rows_range(first, count))];
        places.extend(outputs(&self.bottom));
        places.push(("output of the bottom network".to_owned(), self.bottom_out.first_rows(count)));
        let dim = self.config.model.dim;
        let tables = self.tables.specs().iter().enumerate();
        places.extend(tables.map(|(index, spec)| {
            let vectors = self.vectors.rows_range(first, count).columns(index * dim, dim);
            (format!("vector of table {}", spec.name), vectors)
        }));
        places.push(("output of the interaction".to_owned(), self.top_in.first_rows(count)));
        places.extend(outputs(&self.top));
        places.push(("logit".to_owned(), self.logits.rows_range(first, count)));
        let found = places.into_iter().find_map(|(name, mat)| Some((name, sample(&mat)?)));
        found.map(|(name, row)| format!("{name} (sample {} of the batch)", first + row))
    }
}

fn widths(first: usize, rest: &[usize]) -> Vec<usize> {
    std::iter::once(first).chain(rest.iter().copied()).collect()
}

fn build_tables(
    config: &Config,
    table_rows: &[u64],
    stream: &Stream,
    sizes: &Sizes,
    ablation: Ablation,
) -> Result<EmbeddingSet> {
    let specs: Vec<TableSpec> = table_rows
        .iter()
        .enumerate()
        .map(|(column, &rows)| TableSpec {
            pooling: match config.tables.pooling {
                config::Pooling::Sum => Pooling::Sum,
            },
            ..TableSpec::new(&format!("C{}", column + 1), rows, config.model.dim)
        })
        .collect();
    let options = SetOptions {
        optimizer: config.optimizer.sparse.optimizer(),
        seed: config.train.seed,
        max_samples: sizes.step,
        max_ids: &vec![sizes.step * config.tables.max_ids_per_sample.max(1); specs.len()],
        sum_blocks: sizes.sum_blocks,
        frozen: ablation.freeze_tables,
    };
    EmbeddingSet::with_registry(&Registry::default(), stream, &specs, &options)
        .map_err(|error| failed("the embedding tables cannot be built", error))
}

fn parameters(weights: &Arena) -> Vec<Parameter> {
    let parameter = |mat: Mat| {
        let (rows, cols) = (mat.rows() as u64, mat.cols() as u64);
        let shape = if mat.name().ends_with(".bias") { vec![cols] } else { vec![rows, cols] };
        Parameter { name: mat.name().to_owned(), shape }
    };
    weights.mats().map(parameter).collect()
}

/// Whether the interaction multiplies pairs or only puts vectors side by side.
pub(crate) fn is_dot(config: &Config) -> bool {
    config.model.interaction == Interaction::Dot
}
