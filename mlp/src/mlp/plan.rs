//! The slots of stacks, before there is memory for them.

use super::side_stream::SideStream;
use super::{Between, Layer, Mlp};
use crate::error::Result;
use crate::linear::{Activation, Compute, Partials, WeightsPlan};
use headlong_device::cuda::blas;
use headlong_device::{Arena, ArenaPlan, DType, SlotId, Stream};

/// The plans that stacks add their slots to. Any part of the model may add slots of its own.
#[derive(Debug, Clone)]
pub struct Plans {
    /// Parameters, in the order in which stacks were added: `bottom.0.weight`, `bottom.0.bias`,
    /// `bottom.1.weight`, …. Gradients and optimiser states are frozen from copies of it.
    pub parameters: ArenaPlan,
    /// Outputs of layers, their gradients, packed weights.
    pub activations: ArenaPlan,
    /// Gradients of others that lie before those of the parameters, in one memory with them, so
    /// that one all-reduce takes both.
    pub leading: ArenaPlan,
}

/// The arenas made from [`Plans`].
#[derive(Debug, Clone)]
pub struct Arenas {
    /// Parameters.
    pub parameters: Arena,
    /// Gradients, laid out as the parameters.
    pub gradients: Arena,
    /// What was planned to lie before the gradients.
    pub leading: Arena,
    /// Both, as one: what an all-reduce takes.
    pub reduced: Arena,
    /// Everything else.
    pub activations: Arena,
}

impl Plans {
    /// Empty plans.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let [parameters, activations, leading] =
            ["parameters", "activations", "gradients"].map(ArenaPlan::new);
        Self { parameters, activations, leading }
    }

    /// Takes the memory: one allocation each for parameters, gradients and activations.
    pub fn freeze(self) -> Result<Arenas> {
        self.freeze_on(&Stream::cpu(1))
    }

    /// As [`Plans::freeze`], in the memory of the stream's device.
    ///
    /// # Errors
    /// When the system or the device refuses it.
    pub fn freeze_on(self, stream: &Stream) -> Result<Arenas> {
        let plans = [self.leading, self.parameters.clone()];
        let (reduced, [leading, gradients]) = ArenaPlan::freeze_together_on(plans, stream)?;
        Ok(Arenas {
            reduced,
            leading,
            gradients,
            parameters: self.parameters.freeze_on(stream)?,
            activations: self.activations.freeze_on(stream)?,
        })
    }
}

/// What stands between and around the products of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Biases and ReLUs. Its ends may be f32 where products take less.
    Perceptron,
    /// A matrix of low rank, as two factors: `W·(V·x) + b`. The first layer, `v`, has no bias,
    /// nothing stands between the two, and the second, `w`, has a bias that starts at zero. The
    /// gradient of the input is added to what is there, because the input is also used after the
    /// stack. Its ends are what products take: of that type, or rounded.
    LowRank,
}

/// What a stack looks like.
#[derive(Debug, Clone, Copy)]
pub struct MlpSpec<'a> {
    /// First part of its parameters' names: `bottom` or `top`.
    pub name: &'a str,
    /// What stands between and around its products.
    pub kind: Kind,
    /// Width of the input, then of each layer's output: 13, 512, 256, 128 are three layers.
    pub widths: &'a [usize],
    /// Activation of the last layer; all others have ReLU, those of [`Kind::LowRank`] none.
    pub last: Activation,
    /// Samples that memory is planned for.
    pub max_samples: usize,
    /// Blocks that sums over samples are cut into.
    pub sum_blocks: usize,
    /// Whether the CPU rounds the blocks' sums of gradients, and sums of these, to bf16: they may
    /// travel as such.
    pub narrow: bool,
    /// What products are computed in.
    pub compute: Compute,
}

/// A stack whose slots are planned.
#[derive(Debug, Clone)]
pub struct MlpPlan {
    kind: Kind,
    compute: Compute,
    layers: Vec<LayerPlan>,
    /// Input and gradient of the output in 16 bits, where products are and the caller's are not;
    /// rounded, where products take that.
    rounded: Option<[(SlotId, usize); 2]>,
}

#[derive(Debug, Clone)]
struct LayerPlan {
    name: String,
    width: usize,
    activation: Activation,
    weights: WeightsPlan,
    bias: Option<SlotId>,
    /// Output, its gradient and the mask of its ReLU; the last layer's belong to the caller.
    between: Option<[SlotId; 3]>,
    /// Blocks, whether they are rounded, sums of weights and of biases.
    partials: Option<(usize, bool, SlotId, SlotId)>,
}

impl MlpSpec<'_> {
    /// Adds the slots of this stack.
    ///
    /// # Panics
    /// When a width or `sum_blocks` is 0, or there is no width. A stack of one width has no layer,
    /// and is not to be run.
    pub fn add_to(&self, plans: &mut Plans) -> MlpPlan {
        assert!(!self.widths.is_empty(), "a stack has an input");
        assert!(
            self.widths.iter().all(|&width| width > 0) && self.sum_blocks > 0,
            "widths and blocks above 0"
        );
        let layers = (0..self.widths.len() - 1).map(|index| self.add_layer(plans, index)).collect();
        let ends = [("x", self.widths[0]), ("d_z", self.widths[self.widths.len() - 1])];
        let takes_less = self.compute.is_16_bit() || self.compute.rounding().is_some();
        let rounds = takes_less && self.kind == Kind::Perceptron;
        let rounded = rounds.then(|| {
            ends.map(|(what, width)| {
                let (name, stride) =
                    (format!("{}.{what}", self.name), row_stride(self.compute, width));
                let slot = plans.activations.matrix(
                    &name,
                    self.compute.stored(),
                    self.max_samples,
                    stride,
                );
                (slot, width)
            })
        });
        MlpPlan { kind: self.kind, compute: self.compute, layers, rounded }
    }

    /// `top.0`, `cross.0.v`.
    fn layer_name(&self, index: usize) -> String {
        match self.kind {
            Kind::Perceptron => format!("{}.{index}", self.name),
            Kind::LowRank => format!("{}.{}", self.name, ["v", "w"][index]),
        }
    }

    fn add_layer(&self, plans: &mut Plans, index: usize) -> LayerPlan {
        let (inputs, width) = (self.widths[index], self.widths[index + 1]);
        let last = index + 2 == self.widths.len();
        let name = self.layer_name(index);
        let (has_bias, relu) =
            (last || self.kind == Kind::Perceptron, self.kind == Kind::Perceptron);
        let Plans { parameters, activations, .. } = plans;
        let (compute, stored, shape) = (self.compute, self.compute.stored(), (width, inputs));
        let weights = WeightsPlan::add_for(
            compute,
            parameters,
            activations,
            &format!("{name}.weight"),
            shape,
        );
        let bias =
            has_bias.then(|| parameters.matrix(&format!("{name}.bias"), DType::F32, 1, width));
        let mut matrix = |what: &str, dtype, rows, cols| {
            activations.matrix(&format!("{name}.{what}"), dtype, rows, cols)
        };
        let between = (!last).then(|| {
            let stride = row_stride(compute, width);
            let [y, d_z] = ["y", "d_z"].map(|what| matrix(what, stored, self.max_samples, stride));
            // A bit an element: where there is no device to write it, it takes a sixtieth of the
            // room of the two.
            [
                y,
                d_z,
                matrix("mask", DType::U32, self.max_samples, blas::aux_stride_bits(width) / 32),
            ]
        });
        let partials = self.partials(shape, &mut matrix);
        let between_layers = if relu { Activation::Relu } else { Activation::None };
        let activation = if last { self.last } else { between_layers };
        LayerPlan { name, width, activation, weights, bias, between, partials }
    }

    /// Room for the sums of blocks; and where 16-bit inputs have rows that are filled up, room for
    /// what that makes of the sums.
    fn partials(
        &self,
        (width, inputs): (usize, usize),
        matrix: &mut dyn FnMut(&str, DType, usize, usize) -> SlotId,
    ) -> Option<(usize, bool, SlotId, SlotId)> {
        let stride = if self.compute.is_16_bit() { inputs.next_multiple_of(8) } else { inputs };
        let blocks = self.sum_blocks;
        (blocks > 1 || stride > inputs).then(|| {
            let weight = matrix("d_weight", DType::F32, blocks * width, stride);
            // Rows of biases start at multiples of 16 bytes, as epilogues of products want them.
            let bias = matrix("d_bias", DType::F32, blocks, width.next_multiple_of(4));
            (blocks, self.narrow, weight, bias)
        })
    }
}

/// Elements between the starts of rows `width` wide: whole cache lines, and never so many that all
/// rows would fall into the same few lines of the first-level cache.
pub(crate) fn row_stride(compute: Compute, width: usize) -> usize {
    // Of 16 bits a processor reads more rows at once.
    let is_narrow = compute.stored() == DType::Bf16 && !compute.is_16_bit();
    let (line, most) = if is_narrow { (32, 256) } else { (16, 512) };
    let stride = width.next_multiple_of(line);
    if stride.is_multiple_of(most) { stride + line } else { stride }
}

impl MlpPlan {
    /// The stack, in frozen arenas of the same plans.
    pub fn build(&self, arenas: &Arenas) -> Mlp {
        let layers = self.layers.iter().map(|plan| plan.build(arenas)).collect();
        let rounded = self
            .rounded
            .map(|ends| ends.map(|(slot, width)| arenas.activations.mat(slot).columns(0, width)));
        Mlp {
            kind: self.kind,
            compute: self.compute,
            layers,
            rounded,
            side_stream: SideStream::default(),
        }
    }
}

impl LayerPlan {
    fn build(&self, arenas: &Arenas) -> Layer {
        let activations = &arenas.activations;
        let mat = |slot| activations.mat(slot).columns(0, self.width);
        let d_weight = arenas.gradients.mat(self.weights.values());
        Layer {
            name: self.name.clone(),
            activation: self.activation,
            weights: self.weights.build(&arenas.parameters, activations),
            bias: self.bias.map(|slot| arenas.parameters.mat(slot)),
            d_weight: d_weight.clone(),
            d_bias: self.bias.map(|slot| arenas.gradients.mat(slot)),
            between: self.between.map(|[y, d_z, mask]| Between {
                y: mat(y),
                d_z: mat(d_z),
                mask: activations.mat(mask),
            }),
            partials: self.partials.map(|(sum_blocks, narrow, weight, bias)| Partials {
                sum_blocks,
                narrow,
                weight: activations.mat(weight).columns(0, d_weight.cols()),
                bias: activations.mat(bias).columns(0, self.width),
            }),
        }
    }
}
