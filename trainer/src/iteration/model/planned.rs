//! The slots of one rank before there is memory for them: what [`super::Model::of_rank`] freezes,
//! and what the plan counts.

use super::divided::{DenseChoice, longest};
use super::sizes::{Exchanged, Sizes, SlotIds};
use super::{compute, compute_on};
use crate::config::{Config, Sharded};
use headlong_device::Device;
use headlong_mlp::interaction::cross::CrossPlan;
use headlong_mlp::linear::{Activation, Compute};
use headlong_mlp::mlp::{Kind, MlpPlan, MlpSpec, Plans};
use headlong_mlp::optim::divided;

/// Every slot outside of the tables, and the networks that own some of them.
pub(super) struct Planned {
    pub(super) plans: Plans,
    pub(super) bottom: MlpPlan,
    pub(super) cross: Option<CrossPlan>,
    pub(super) top: MlpPlan,
    pub(super) slots: SlotIds,
    /// Whether the dense optimiser is divided among the ranks.
    pub(super) dense: DenseChoice,
}

impl Planned {
    pub(super) fn new(
        config: &Config,
        sizes: &Sizes,
        (compute, on_device): (Compute, bool),
        exchanged: &Exchanged,
    ) -> Self {
        let mut plans = Plans::new();
        // Without dense columns there is no bottom network; zeros stay in the place of its output.
        let bottom_widths = match config.data.num_dense {
            0 => vec![config.model.dim],
            inputs => widths(inputs, &config.model.bottom),
        };
        let top_widths = widths(sizes.top_in, &config.model.top);
        let spec = |name, widths, last| MlpSpec {
            name,
            kind: Kind::Perceptron,
            widths,
            last,
            max_samples: sizes.micro,
            sum_blocks: sizes.own_blocks(),
            narrow: config.is_narrow(),
            compute,
        };
        let bottom = spec("bottom", &bottom_widths, Activation::Relu).add_to(&mut plans);
        let cross = sizes.cross(config, compute).map(|spec| spec.add_to(&mut plans));
        let top = spec("top", &top_widths, Activation::None).add_to(&mut plans);
        let dense = DenseChoice::new(config, &plans.parameters, sizes.ranks, on_device);
        let norm_sums = dense.norms.map_or(0, |norms| divided::num_sums(&plans.parameters, norms));
        let narrow_sums = on_device && sizes.ranks > 1 && config.sums_are_narrow(true);
        let num_dense = config.data.num_dense;
        let slots = sizes.add_slots(&mut plans, num_dense, exchanged, norm_sums, narrow_sums);
        Self { plans, bottom, cross, top, slots, dense }
    }
}

fn widths(first: usize, rest: &[usize]) -> Vec<usize> {
    std::iter::once(first).chain(rest.iter().copied()).collect()
}

/// Bytes of one rank's slots, without what ranks exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotBytes {
    /// Dense parameters, and their gradients.
    pub(crate) parameters: usize,
    /// Dense weights of the longest part, where the optimiser is divided among ranks.
    pub(crate) part: Option<usize>,
    /// Outputs of layers and their gradients, sums of blocks, packed weights, pooled vectors,
    /// labels and dense features.
    pub(crate) activations: usize,
    /// Samples of one step of training, of this rank.
    pub(crate) step: usize,
    /// Its samples of the largest batch of evaluation.
    pub(crate) evaluation: usize,
}

/// Bytes that the slots of one of `ranks` ranks take, on a processor or on a CUDA device;
/// `usize::MAX` for what no address space holds.
pub(crate) fn slot_bytes(config: &Config, ranks: usize, on_device: bool) -> SlotBytes {
    let (sizes, Planned { plans, dense, .. }) = planned(config, ranks, on_device);
    let parameters = plans.parameters.bytes();
    let part = dense.norms.map(|norms| {
        let bounds = divided::bounds(&plans.parameters, norms, ranks);
        divided::state_bytes(longest(&bounds))
    });
    SlotBytes {
        parameters: parameters.saturating_mul(2).saturating_add(plans.leading.bytes()),
        part,
        activations: plans.activations.bytes(),
        step: sizes.step,
        evaluation: sizes.evaluation,
    }
}

/// Whether the dense optimiser of `config` is divided among `ranks` ranks, and why.
pub(crate) fn dense_choice(config: &Config, ranks: usize, on_device: bool) -> DenseChoice {
    match config.optimizer.dense.sharded.unwrap_or_default() {
        Sharded::Never => DenseChoice { norms: None, reason: None },
        Sharded::Always | Sharded::Auto => planned(config, ranks, on_device).1.dense,
    }
}

fn planned(config: &Config, ranks: usize, on_device: bool) -> (Sizes, Planned) {
    let compute = match on_device {
        true => compute(config.train.precision),
        false => compute_on(config, &Device::Cpu),
    };
    let sizes = Sizes::of(config, ranks, compute);
    let planned = Planned::new(config, &sizes, (compute, on_device), &Exchanged::NOTHING);
    (sizes, planned)
}
