//! How large the slots of one rank are.

use crate::config::{Config, Interaction, Precision};
use crate::iteration::share::Share;
use headlong_device::{DType, SlotId};
use headlong_embedding::hybrid::HybridSet;
use headlong_mlp::interaction::cross::CrossSpec;
use headlong_mlp::interaction::dot;
use headlong_mlp::linear::Compute;
use headlong_mlp::loss_scale::STATE_LEN;
use headlong_mlp::mlp::Plans;

/// Elements of one piece of a sum between processes.
pub(crate) const SUM_PIECE: usize = 1 << 18;

/// The type of vectors, where the interaction takes and makes `between`.
pub(super) fn vector_type(config: &Config, between: DType) -> DType {
    match config.model.interaction {
        Interaction::Dot => dot::vector_type(config.data.num_sparse, config.model.dim, between),
        Interaction::Cat | Interaction::Cross => DType::F32,
    }
}

/// Slots outside the MLPs, by what they hold.
pub(super) struct SlotIds {
    pub(super) vectors: [SlotId; 2],
    pub(super) bottom_out: [SlotId; 2],
    pub(super) top_in: [SlotId; 2],
    pub(super) logits: [SlotId; 2],
    pub(super) all_logits: SlotId,
    pub(super) exchanged: [SlotId; 4],
    pub(super) leading: Leading,
    pub(super) loss_scale: Option<SlotId>,
    /// Where the first step stopped being numbers.
    pub(super) record: SlotId,
    /// Sums of norms over dense parameters that are divided among ranks.
    pub(super) norm_sums: SlotId,
    pub(super) batches: [(SlotId, SlotId); 3],
}

/// Elements of what ranks exchange, which the tables decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exchanged {
    /// Element type of the vectors.
    pub(super) dtype: DType,
    /// Vectors of rows that this rank requests.
    pub(super) recv_rows: usize,
    /// Vectors of rows that are requested of it.
    pub(super) send_rows: usize,
    /// Rows of peers, where this rank is a proxy of its node.
    pub(super) inside: usize,
    /// Rows of the node.
    pub(super) across: usize,
    /// Gradients of frequent rows.
    pub(super) frequent: usize,
}

impl Exchanged {
    pub(super) const NOTHING: Self =
        Self { dtype: DType::F32, recv_rows: 0, send_rows: 0, inside: 0, across: 0, frequent: 0 };

    /// What travels to and from the rank of these tables; `by_node`: as a proxy of its node, too.
    pub(super) fn of(tables: &HybridSet, by_node: bool, on_device: bool) -> Self {
        let (recv_rows, send_rows) = (tables.max_recv_elements(), tables.max_send_elements());
        let [inside, across] = match (by_node, on_device) {
            (false, _) => [0; 2],
            (true, true) => [recv_rows, send_rows],
            (true, false) => {
                let proxy = tables.new_node_proxy();
                [proxy.max_elements_inside(), proxy.max_elements_across()]
            }
        };
        Self {
            dtype: tables.slot_dtype().unwrap_or(DType::F32),
            recv_rows,
            send_rows,
            inside,
            across,
            frequent: tables.frequent_len(),
        }
    }
}

/// Slots that lie before the dense gradients.
pub(super) struct Leading {
    pub(super) frequent: SlotId,
    pub(super) loss_sums: SlotId,
    pub(super) control_flags: SlotId,
    /// Dense gradients as they travel, where that is bf16 and they lie on a device.
    pub(super) dense_sums: Option<SlotId>,
}

/// Numbers that ranks add up with the gradients of each step.
pub const NUM_CONTROL_FLAGS: usize = 16;

/// Of these, the one in which ranks tell each other that a gradient is not finite.
pub(super) const OVERFLOW_FLAG: usize = NUM_CONTROL_FLAGS - 1;

/// Sizes that slots are planned from: those of one rank, unless they say otherwise.
pub(super) struct Sizes {
    /// Samples of one micro-batch.
    pub(super) micro: usize,
    /// Micro-batches of a step.
    pub(super) accumulate: usize,
    /// Samples of one training step.
    pub(super) step: usize,
    /// Samples of the largest evaluation batch.
    pub(super) evaluation: usize,
    /// Samples of the largest batch, of training or evaluation.
    pub(super) largest: usize,
    pub(super) dim: usize,
    pub(super) tables: usize,
    /// Width of the bottom network's output.
    pub(super) bottom_out: usize,
    pub(super) top_in: usize,
    pub(super) ranks: usize,
    pub(super) sum_blocks: usize,
    /// Element type of what the dense network and the interaction hand each other.
    pub(super) between: DType,
    /// Element type of the top network's input.
    pub(super) top_input: DType,
    /// Element type of the vectors.
    pub(super) vectors: DType,
    pub(super) scaled: bool,
}

impl Sizes {
    /// Those of rank 0: no rank's share is larger.
    pub(super) fn of(config: &Config, ranks: usize, compute: Compute) -> Self {
        let sum_blocks = config.train.sum_blocks.unwrap_or(ranks);
        let (batch_size, accumulate) = (config.train.batch_size, config.train.accumulate);
        let micro = Share::new(0, ranks, sum_blocks, batch_size).micro_batch_size();
        let (step, evaluation) = (micro * accumulate, config.eval.batch_size.div_ceil(ranks));
        Self {
            micro,
            accumulate,
            step,
            evaluation,
            largest: step.max(evaluation),
            dim: config.model.dim,
            tables: config.data.num_sparse,
            bottom_out: config.model.bottom.last().copied().unwrap_or(0),
            top_in: config.top_input_width(),
            ranks,
            sum_blocks,
            between: compute.dtype(),
            top_input: match config.model.interaction {
                Interaction::Cross => compute.stored(),
                Interaction::Dot | Interaction::Cat => compute.dtype(),
            },
            vectors: vector_type(config, compute.dtype()),
            scaled: config.train.precision == Precision::F16,
        }
    }

    /// The cross network, where there is one.
    pub(super) fn cross(&self, config: &Config, compute: Compute) -> Option<CrossSpec> {
        (config.model.interaction == Interaction::Cross).then(|| CrossSpec {
            width: self.top_in,
            rank: config.model.cross_rank,
            layers: config.model.cross_layers,
            max_samples: self.micro,
            sum_blocks: self.own_blocks(),
            narrow: config.is_narrow(),
            compute,
        })
    }

    pub(super) fn own_blocks(&self) -> usize {
        self.sum_blocks / self.ranks
    }

    pub(super) fn add_slots(
        &self,
        plans: &mut Plans,
        num_dense: usize,
        exchanged: &Exchanged,
        norm_sums: usize,
        narrow_sums: bool,
    ) -> SlotIds {
        let leading = match narrow_sums {
            true => self.add_narrow_sums(plans, exchanged.frequent),
            false => self.add_leading(plans, exchanged.frequent),
        };
        let mut typed =
            |name: &str, dtype, rows, cols| plans.activations.matrix(name, dtype, rows, cols);
        let width = self.tables * self.dim;
        // Rows of the interaction start at cache lines.
        let top_in = self.top_in.next_multiple_of(64 / self.top_input.bytes());
        let bottom_out = ["bottom_out", "d_bottom_out"]
            .map(|name| typed(name, self.between, self.micro, self.bottom_out));
        let top_in =
            ["top_in", "d_top_in"].map(|name| typed(name, self.top_input, self.micro, top_in));
        let record = typed("record", DType::U64, 1, 1);
        let norm_sums = typed("sums of norms", DType::U64, 1, norm_sums);
        let exchanged = [
            ("recv_rows", exchanged.recv_rows),
            ("send_rows", exchanged.send_rows),
            ("rows of peers", exchanged.inside),
            ("rows of the node", exchanged.across),
        ]
        .map(|(name, elements)| typed(name, exchanged.dtype, 1, elements));
        let vectors = typed("vectors", self.vectors, self.largest, width);
        let d_vectors =
            typed("d_vectors", dot::vector_gradient_type(self.vectors), self.step, width);
        let mut matrix = |name: &str, rows, cols| typed(name, DType::F32, rows, cols);
        SlotIds {
            record,
            norm_sums,
            bottom_out,
            top_in,
            vectors: [vectors, d_vectors],
            logits: [matrix("logits", self.largest, 1), matrix("d_logits", self.step, 1)],
            all_logits: matrix(
                "all_logits",
                if self.ranks > 1 { self.evaluation * self.ranks } else { 0 },
                1,
            ),
            exchanged,
            leading,
            loss_scale: self.scaled.then(|| matrix("loss_scale", 1, STATE_LEN)),
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

    /// What ranks add up before the dense gradients, all of it f32, frequent rows first: they are
    /// wanted first.
    fn add_leading(&self, plans: &mut Plans, frequent: usize) -> Leading {
        let mut matrix =
            |name: &str, rows, cols| plans.leading.matrix(name, DType::F32, rows, cols);
        Leading {
            frequent: matrix("gradients of frequent rows", 1, frequent),
            loss_sums: matrix("loss_sums", self.accumulate * self.sum_blocks, 2),
            control_flags: matrix("control_flags", 1, NUM_CONTROL_FLAGS),
            dense_sums: None,
        }
    }

    /// What devices add up where gradients travel as bf16: numbers in f32 first.
    fn add_narrow_sums(&self, plans: &mut Plans, frequent: usize) -> Leading {
        let dense = plans.parameters.bytes() / size_of::<f32>();
        let mut matrix =
            |name: &str, dtype, rows, cols| plans.leading.matrix(name, dtype, rows, cols);
        let blocks = self.accumulate * self.sum_blocks;
        Leading {
            loss_sums: matrix("loss_sums", DType::F32, blocks, 2),
            control_flags: matrix("control_flags", DType::F32, 1, NUM_CONTROL_FLAGS),
            frequent: matrix("gradients of frequent rows", DType::Bf16, 1, frequent),
            dense_sums: Some(matrix("sums of dense gradients", DType::Bf16, 1, dense)),
        }
    }
}
