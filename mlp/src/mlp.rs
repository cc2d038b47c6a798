//! A stack of dense layers with the memory it needs.
//!
//! Bottom and top MLP are two stacks over the same arenas: all parameters in one, all gradients in another of the same
//! layout (so that one optimiser pass and one all-reduce take them all), activations and packed copies in a third.
//!
//! ```
//! use headlong_device::{ArenaPlan, DType, Stream};
//! use headlong_mlp::linear::Activation;
//! use headlong_mlp::mlp::{Arenas, MlpSpec, Plans};
//!
//! let mut plans = Plans::new();
//! let spec = MlpSpec { name: "top", widths: &[3, 8, 1], last: Activation::None, max_samples: 4, sum_blocks: 1 };
//! let top = spec.add_to(&mut plans);
//! let x = plans.activations.matrix("x", DType::F32, 4, 3);
//! let y = plans.activations.matrix("y", DType::F32, 4, 1);
//! let arenas = plans.freeze().unwrap();
//! let (x, y) = (arenas.activations.mat(x), arenas.activations.mat(y));
//!
//! let stream = Stream::cpu(1);
//! let top = top.build(&arenas);
//! top.initialize(7);
//! top.refresh(&stream);
//! top.forward(&stream, &x, &y);
//! ```

mod aside;

use crate::error::Result;
use crate::init;
use crate::linear::{
    self, Activation, BackwardDataArgs, BackwardWeightsArgs, ForwardArgs, Partials, Weights, WeightsPlan,
};
use aside::Aside;
use headlong_device::cuda::blas;
use headlong_device::{Arena, ArenaPlan, DType, Mat, SlotId, Stream};

/// The plans that stacks add their slots to. Any part of the model may add slots of its own.
#[derive(Debug, Clone)]
pub struct Plans {
    /// Parameters, in the order in which stacks were added: `bottom.0.weight`, `bottom.0.bias`, `bottom.1.weight`, ….
    /// Gradients and optimiser states are frozen from copies of it.
    pub parameters: ArenaPlan,
    /// Outputs of layers, their gradients, packed weights.
    pub activations: ArenaPlan,
    /// Gradients of others that lie before those of the parameters, in one memory with them, so that one all-reduce takes both.
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
    ///
    /// # Errors
    /// When the system refuses it.
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

/// What a stack looks like.
#[derive(Debug, Clone, Copy)]
pub struct MlpSpec<'a> {
    /// First part of its parameters' names: `bottom` or `top`.
    pub name: &'a str,
    /// Width of the input, then of each layer's output: 13, 512, 256, 128 are three layers.
    pub widths: &'a [usize],
    /// Activation of the last layer; all others have ReLU.
    pub last: Activation,
    /// Samples that memory is planned for.
    pub max_samples: usize,
    /// Blocks that sums over samples are cut into.
    pub sum_blocks: usize,
}

/// A stack whose slots are planned.
#[derive(Debug, Clone)]
pub struct MlpPlan {
    layers: Vec<LayerPlan>,
}

#[derive(Debug, Clone)]
struct LayerPlan {
    name: String,
    width: usize,
    activation: Activation,
    weights: WeightsPlan,
    bias: SlotId,
    /// Output, its gradient and the mask of its ReLU; the last layer's belong to the caller.
    between: Option<[SlotId; 3]>,
    partials: Option<(usize, SlotId, SlotId)>,
}

impl MlpSpec<'_> {
    /// Adds the slots of this stack.
    ///
    /// # Panics
    /// When there is no layer, or a width or `sum_blocks` is 0.
    pub fn add_to(&self, plans: &mut Plans) -> MlpPlan {
        assert!(self.widths.len() >= 2, "a stack has an input and at least one layer");
        assert!(
            self.widths.iter().all(|&width| width > 0) && self.sum_blocks > 0,
            "widths and blocks above 0"
        );
        let layers = (0..self.widths.len() - 1).map(|index| self.add_layer(plans, index)).collect();
        MlpPlan { layers }
    }

    fn add_layer(&self, plans: &mut Plans, index: usize) -> LayerPlan {
        let (inputs, width) = (self.widths[index], self.widths[index + 1]);
        let last = index + 2 == self.widths.len();
        let name = format!("{}.{index}", self.name);
        let Plans { parameters, activations, .. } = plans;
        let weights =
            WeightsPlan::add_to(parameters, activations, &format!("{name}.weight"), (width, inputs));
        let bias = parameters.matrix(&format!("{name}.bias"), DType::F32, 1, width);
        let mut matrix =
            |what: &str, dtype, rows, cols| activations.matrix(&format!("{name}.{what}"), dtype, rows, cols);
        let between = (!last).then(|| {
            let stride = padded(width);
            let [y, d_z] = ["y", "d_z"].map(|what| matrix(what, DType::F32, self.max_samples, stride));
            // A bit an element: where there is no device to write it, it takes a sixtieth of the room of the two.
            [y, d_z, matrix("mask", DType::U32, self.max_samples, blas::aux_stride_bits(width) / 32)]
        });
        let blocks = self.sum_blocks;
        let partials = (blocks > 1).then(|| {
            let weight = matrix("d_weight", DType::F32, blocks * width, inputs);
            (blocks, weight, matrix("d_bias", DType::F32, blocks, width))
        });
        let activation = if last { self.last } else { Activation::Relu };
        LayerPlan { name, width, activation, weights, bias, between, partials }
    }
}

/// Elements between the starts of rows `width` wide: never a multiple of 4 KiB, at which all rows would fall into the same few
/// lines of the first-level cache.
fn padded(width: usize) -> usize {
    let stride = width.next_multiple_of(16);
    if stride.is_multiple_of(512) { stride + 16 } else { stride }
}

impl MlpPlan {
    /// The stack, in frozen arenas of the same plans.
    pub fn build(&self, arenas: &Arenas) -> Mlp {
        let layers = self.layers.iter().map(|plan| plan.build(arenas)).collect();
        Mlp { layers, aside: Aside::default() }
    }
}

impl LayerPlan {
    fn build(&self, arenas: &Arenas) -> Layer {
        let activations = &arenas.activations;
        let mat = |slot| activations.mat(slot).columns(0, self.width);
        Layer {
            name: self.name.clone(),
            activation: self.activation,
            weights: self.weights.build(&arenas.parameters, activations),
            bias: arenas.parameters.mat(self.bias),
            d_weight: arenas.gradients.mat(self.weights.values()),
            d_bias: arenas.gradients.mat(self.bias),
            between: self.between.map(|[y, d_z, mask]| Between {
                y: mat(y),
                d_z: mat(d_z),
                mask: activations.mat(mask),
            }),
            partials: self.partials.map(|(sum_blocks, weight, bias)| Partials {
                sum_blocks,
                weight: activations.mat(weight),
                bias: activations.mat(bias),
            }),
        }
    }
}

/// A stack of dense layers.
#[derive(Debug, Clone)]
pub struct Mlp {
    layers: Vec<Layer>,
    aside: Aside,
}

/// One layer of a stack and its slots.
#[derive(Debug, Clone)]
pub struct Layer {
    name: String,
    activation: Activation,
    weights: Weights,
    bias: Mat,
    d_weight: Mat,
    d_bias: Mat,
    between: Option<Between>,
    partials: Option<Partials>,
}

#[derive(Debug, Clone)]
struct Between {
    y: Mat,
    d_z: Mat,
    /// Where a device keeps which elements the ReLU let pass.
    mask: Mat,
}

impl Between {
    fn first_rows(&self, samples: usize) -> Self {
        let [y, d_z, mask] = [&self.y, &self.d_z, &self.mask].map(|mat| mat.first_rows(samples));
        Self { y, d_z, mask }
    }
}

impl Layer {
    fn forward_args<'a>(&'a self, x: &'a Mat, y: &'a Mat) -> ForwardArgs<'a> {
        ForwardArgs { x, w: &self.weights, b: &self.bias, y, activation: self.activation }
    }

    /// `bottom.0`, `top.3`: its parameters are called this and `.weight` or `.bias`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Weights, out × in.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Bias, 1 × out.
    pub fn bias(&self) -> &Mat {
        &self.bias
    }

    /// Gradient of the weights, out × in.
    pub fn d_weight(&self) -> &Mat {
        &self.d_weight
    }

    /// Gradient of the bias, 1 × out.
    pub fn d_bias(&self) -> &Mat {
        &self.d_bias
    }

    /// What follows its sums.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Its output, where another layer follows.
    pub fn output(&self) -> Option<&Mat> {
        self.between.as_ref().map(|between| &between.y)
    }
}

/// Arguments of [`Mlp::backward`].
#[derive(Debug)]
pub struct MlpBackwardArgs<'a> {
    /// Input of the stack, samples × first width.
    pub x: &'a Mat,
    /// Gradient before the last activation, samples × last width.
    pub d_z: &'a Mat,
    /// Gradient of the input, samples × first width, where it is wanted; overwritten.
    pub d_x: Option<&'a Mat>,
    /// Adds to the parameters' gradients instead of overwriting them.
    pub accumulate: bool,
    /// Samples of one block of the sums over samples ([`crate::sum::block_len`]).
    pub block_len: usize,
}

impl Mlp {
    /// The layers, from the input to the output.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Draws initial values on the host, the same for every device; call [`Self::refresh`] before the next product.
    pub fn initialize(&self, seed: u64) {
        for layer in &self.layers {
            let shape = (layer.weights.outputs(), layer.weights.inputs());
            let mut values = vec![0.0; shape.0 * shape.1];
            init::fill_weight(&init::source(seed, layer.weights.name()), shape, &mut values);
            layer.weights.pack(&values);
            let values = &mut values[..shape.0];
            init::fill_bias(&init::source(seed, layer.bias.name()), shape.0, values);
            linear::copy_into(&layer.bias, values);
        }
    }

    /// Packs the weights for products: once after each change.
    pub fn refresh(&self, stream: &Stream) {
        self.layers.iter().for_each(|layer| layer.weights.refresh(stream));
    }

    /// `y` = the stack applied to `x`: samples × first width to samples × last width, as many samples as `x` has rows.
    pub fn forward(&self, stream: &Stream, x: &Mat, y: &Mat) {
        let mut input = x.clone();
        for layer in &self.layers {
            let output = layer.output().unwrap_or(y).first_rows(x.rows());
            let mask = layer.between.as_ref().map(|between| &between.mask);
            linear::forward_with_mask(stream, &layer.forward_args(&input, &output), mask);
            input = output;
        }
    }

    /// Gradients of all parameters, and of the input where it is wanted, for the samples of the last [`Self::forward`].
    ///
    /// Of each layer first the data gradient, which the layer below waits for, then the weight gradient. The ReLU of the layer
    /// below is applied in the data gradient's pass. Where the stream has a companion, weight gradients run there, each as soon as
    /// its gradient is there; the stream goes on when all of them are done.
    pub fn backward(&self, stream: &Stream, args: &MlpBackwardArgs<'_>) {
        let aside = self.aside.begin(stream, self.layers.len());
        let mut d_z = args.d_z.clone();
        let mut has_bias = false;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let below = index.checked_sub(1).map(|below| self.between(below, args.x.rows()));
            let x = below.as_ref().map_or(args.x, |below| &below.y);
            let weights = BackwardWeightsArgs {
                x,
                d_z: &d_z,
                d_w: &layer.d_weight,
                d_b: &layer.d_bias,
                partials: layer.partials.as_ref(),
                block_len: args.block_len,
                accumulate: args.accumulate,
            };
            // Beside the data gradient where it can be, else after it.
            if let Some(aside) = &aside {
                linear::backward_weights_beside(aside.fork(index), &weights, has_bias);
            }
            let below_has_bias = self.backward_data(stream, args, index, &d_z, below.as_ref());
            if aside.is_none() {
                linear::backward_weights_beside(stream, &weights, has_bias);
            }
            has_bias = below_has_bias;
            if let Some(below) = below {
                d_z = below.d_z;
            }
        }
        if let Some(aside) = aside {
            aside.join();
        }
    }

    /// Output, gradient and mask of a layer that another one follows.
    fn between(&self, index: usize, samples: usize) -> Between {
        let between = self.layers[index].between.as_ref();
        between.expect("every layer but the last one has them").first_rows(samples)
    }

    /// The data gradient of layer `index`, where it is wanted. Whether the bias gradient of the layer below is done, too.
    fn backward_data(
        &self,
        stream: &Stream,
        args: &MlpBackwardArgs<'_>,
        index: usize,
        d_z: &Mat,
        below: Option<&Between>,
    ) -> bool {
        let w = &self.layers[index].weights;
        let Some(Between { y, d_z: d_x, mask }) = below else {
            if let Some(d_x) = args.d_x {
                linear::backward_data(stream, &BackwardDataArgs { d_z, w, d_x, mask: None });
            }
            return false;
        };
        let layer = &self.layers[index - 1];
        let x = match index.checked_sub(2) {
            Some(below) => self.between(below, args.x.rows()).y,
            None => args.x.clone(),
        };
        // The bias gradient of that pass is of all samples, and it overwrites.
        let fused = !args.accumulate && linear::keeps_mask(stream, &layer.forward_args(&x, y));
        let fused = fused.then_some(linear::Below { mask, d_b: &layer.d_bias });
        let data = BackwardDataArgs { d_z, w, d_x, mask: Some(y) };
        linear::backward_data_with_mask(stream, &data, fused.as_ref())
    }
}

#[cfg(test)]
mod tests;
