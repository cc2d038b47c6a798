//! A stack of dense layers with the memory it needs.
//!
//! Bottom and top MLP are two stacks over the same arenas: all parameters in one, all gradients in
//! another of the same layout (so that one optimiser pass and one all-reduce take them all),
//! activations and packed copies in a third.
//!
//! ```
//! use headlong_device::{ArenaPlan, DType, Stream};
//! use headlong_mlp::linear::{Activation, Compute};
//! use headlong_mlp::mlp::{Arenas, Kind, MlpSpec, Plans};
//!
//! let mut plans = Plans::new();
//! let (widths, last, compute) = (&[3, 8, 1], Activation::None, Compute::F32);
//! let (name, kind, max_samples, sum_blocks, narrow) = ("top", Kind::Perceptron, 4, 1, false);
//! let spec = MlpSpec { name, kind, widths, last, max_samples, sum_blocks, narrow, compute };
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

mod plan;
mod side_stream;

pub(crate) use plan::row_stride;
pub use plan::{Arenas, Kind, MlpPlan, MlpSpec, Plans};

use crate::gemm::FactorType;
use crate::init;
use crate::linear::{
    self, Activation, BackwardDataArgs, BackwardWeightsArgs, Below, ColumnSums, Compute,
    ForwardArgs, Partials, Weights,
};
use headlong_device::{DType, Device, Mat, Stream};
use side_stream::SideStream;

/// A stack of dense layers.
#[derive(Debug, Clone)]
pub struct Mlp {
    kind: Kind,
    compute: Compute,
    layers: Vec<Layer>,
    /// Input and gradient of the output in 16 bits, where products are, or rounded: for callers
    /// whose own are f32.
    rounded: Option<[Mat; 2]>,
    side_stream: SideStream,
}

/// One layer of a stack and its slots.
#[derive(Debug, Clone)]
pub struct Layer {
    name: String,
    activation: Activation,
    weights: Weights,
    bias: Option<Mat>,
    d_weight: Mat,
    d_bias: Option<Mat>,
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
        ForwardArgs { x, w: &self.weights, b: self.bias.as_ref(), y, activation: self.activation }
    }

    /// `bottom.0`, `top.3`: its parameters are called this and `.weight` or `.bias`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Weights, out × in.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Bias, 1 × out, where it has one.
    pub fn bias(&self) -> Option<&Mat> {
        self.bias.as_ref()
    }

    /// Gradient of the weights, out × in.
    pub fn d_weight(&self) -> &Mat {
        &self.d_weight
    }

    /// Gradient of the bias, 1 × out, where it has one.
    pub fn d_bias(&self) -> Option<&Mat> {
        self.d_bias.as_ref()
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
    /// Gradient of the input, samples × first width, where it is wanted; overwritten, but added to
    /// by [`Kind::LowRank`].
    pub d_x: Option<&'a Mat>,
    /// Adds to the parameters' gradients instead of overwriting them.
    pub accumulate: bool,
    /// Samples of one block of the sums over samples ([`crate::sum::block_len`]).
    pub block_len: usize,
}

/// Ends of a stack, as [`Mlp::rounded`] numbers them.
const INPUT: usize = 0;
const OUTPUT: usize = 1;

impl Mlp {
    /// The layers, from the input to the output.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Draws initial values on the host, the same for every device; call [`Self::refresh`] before
    /// the next product.
    pub fn initialize(&self, seed: u64) {
        for layer in &self.layers {
            let shape = (layer.weights.outputs(), layer.weights.inputs());
            let mut values = vec![0.0; shape.0 * shape.1];
            init::fill_weight(&init::source(seed, layer.weights.name()), shape, &mut values);
            layer.weights.pack(&values);
            let Some(bias) = &layer.bias else { continue };
            let mut values = vec![0.0; shape.0];
            if self.kind == Kind::Perceptron {
                init::fill_bias(&init::source(seed, bias.name()), shape.0, &mut values);
            }
            linear::copy_into(bias, &values);
        }
    }

    /// Packs or rounds the weights for products: once after each change.
    pub fn refresh(&self, stream: &Stream) {
        if !self.compute.is_16_bit() {
            return self.layers.iter().for_each(|layer| layer.weights.refresh(stream));
        }
        linear::copy_rounded(stream.cuda_body(), self.copies());
    }

    /// Parameters and their copies in 16 bits, in the order of the arena of parameters; none where
    /// products read the parameters.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (&Mat, &Mat)> {
        let of_layer = |layer| {
            let Layer { weights, bias, .. }: &Layer = layer;
            let of_bias = |rounded| bias.as_ref().map(|bias| (bias, rounded));
            weights
                .rounded()
                .map(|rounded| [Some((&weights.values, rounded.0)), of_bias(rounded.1)])
        };
        self.layers.iter().filter_map(of_layer).flatten().flatten()
    }

    /// The caller's matrix, or a rounded copy of it where products take 16 bits and it has 32.
    fn rounded(&self, stream: &Stream, end: usize, mat: &Mat) -> Mat {
        match &self.rounded {
            Some(ends) if self.compute.rounding().is_some() && mat.dtype() == DType::F32 => {
                let rounded = ends[end].first_rows(mat.rows());
                self.compute
                    .rounding()
                    .iter()
                    .for_each(|rounding| rounding.copy(stream, mat, &rounded));
                rounded
            }
            Some(ends) if self.compute.is_16_bit() && mat.dtype() == DType::F32 => {
                let rounded = ends[end].first_rows(mat.rows());
                linear::copy_rounded(stream.cuda_body(), std::iter::once((mat, &rounded)));
                rounded
            }
            _ => mat.clone(),
        }
    }

    /// Rounds what a product has written, where it keeps the type f32 and the product has not
    /// rounded it itself.
    fn round(&self, stream: &Stream, written: &Mat) {
        if let Some(rounding) =
            self.compute.rounding().filter(|_| self.compute.factor_type() == FactorType::F32)
        {
            rounding.round(stream, written);
        }
    }

    /// `y` = the stack applied to `x`: samples × first width to samples × last width, as many
    /// samples as `x` has rows.
    ///
    /// Where values are rounded that keep the type f32, so is `y` where an activation comes last,
    /// and the gradient of `x`.
    ///
    /// `x` and its gradient may be f32 or [`Compute::stored`], and on a device `y` too. Rows of a
    /// 16-bit `x` are read up to whole words of the products, on a device up to the next multiple
    /// of eight elements where their stride allows it: what lies there is zero, on a device finite.
    pub fn forward(&self, stream: &Stream, x: &Mat, y: &Mat) {
        let mut input = self.rounded(stream, INPUT, x);
        for layer in &self.layers {
            let output = layer.output().unwrap_or(y).first_rows(x.rows());
            let mask = layer.between.as_ref().map(|between| &between.mask);
            linear::forward_with_mask(stream, &layer.forward_args(&input, &output), mask);
            match (layer.activation, self.compute.rounding()) {
                (Activation::Relu, _) => self.round(stream, &output),
                (Activation::None, Some(rounding)) if layer.output().is_some() => {
                    rounding.round(stream, &output)
                }
                // Logits stay as they are: a loss takes them, no product.
                (Activation::None, _) => {}
            }
            input = output;
        }
    }

    /// Gradients of all parameters, and of the input where it is wanted, for the samples of the
    /// last [`Self::forward`].
    ///
    /// Of each layer first the data gradient, which the layer below waits for, then the weight
    /// gradient. The ReLU of the layer below is applied in the data gradient's pass. Where the
    /// stream has a side stream, weight gradients run there, each as soon as its gradient is there;
    /// the stream continues when all of them are done.
    pub fn backward(&self, stream: &Stream, args: &MlpBackwardArgs<'_>) {
        let side_stream = self.side_stream.begin(stream, self.layers.len());
        // The last forward pass has rounded the input.
        let input = self.rounded.as_ref().filter(|_| args.x.dtype() == DType::F32);
        let input = input.map_or(args.x.clone(), |ends| ends[INPUT].first_rows(args.x.rows()));
        let mut d_z = self.rounded(stream, OUTPUT, args.d_z);
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let below = index.checked_sub(1).map(|below| self.between(below, args.x.rows()));
            let x = below.as_ref().map_or(&input, |below| &below.y);
            let weights = BackwardWeightsArgs {
                x,
                d_z: &d_z,
                d_w: &layer.d_weight,
                d_b: layer.d_bias.as_ref(),
                partials: layer.partials.as_ref(),
                block_len: args.block_len,
                accumulate: args.accumulate,
                compute: self.compute,
            };
            // A layer that another one follows has them from that one's data gradient.
            let has_bias = matches!(stream.device(), Device::Cuda(_)) && layer.between.is_some();
            // During the data gradient where it can be, else after it.
            if let Some(side_stream) = &side_stream {
                linear::backward_weights_with(side_stream.fork(index), &weights, has_bias);
            }
            self.backward_data(stream, (args, &input), index, &d_z, below.as_ref());
            if side_stream.is_none() {
                linear::backward_weights_with(stream, &weights, has_bias);
            }
            if let Some(below) = below {
                d_z = below.d_z;
            }
        }
        if let Some(side_stream) = side_stream {
            side_stream.join();
        }
    }

    /// Output, gradient and mask of a layer that another one follows.
    fn between(&self, index: usize, samples: usize) -> Between {
        let between = self.layers[index].between.as_ref();
        between.expect("every layer but the last one has them").first_rows(samples)
    }

    /// The data gradient of layer `index`, where it is wanted; on a device also the bias gradient
    /// of the layer below, or those of its blocks of samples.
    fn backward_data(
        &self,
        stream: &Stream,
        (args, input): (&MlpBackwardArgs<'_>, &Mat),
        index: usize,
        d_z: &Mat,
        below: Option<&Between>,
    ) {
        let w = &self.layers[index].weights;
        let Some(Between { y, d_z: d_x, mask }) = below else {
            if let Some(d_x) = args.d_x {
                let accumulate = self.kind == Kind::LowRank;
                linear::backward_data(
                    stream,
                    &BackwardDataArgs { d_z, w, d_x, mask: None, accumulate },
                );
                self.round(stream, d_x);
            }
            return;
        };
        let layer = &self.layers[index - 1];
        let x = match index.checked_sub(2) {
            Some(below) => self.between(below, args.x.rows()).y,
            None => input.clone(),
        };
        let keeps_mask = linear::keeps_mask(stream, &layer.forward_args(&x, y));
        let of_below = Below {
            mask: keeps_mask.then_some(mask),
            sums: layer.d_bias.as_ref().map(|d_bias| {
                let samples = (args.x.rows(), args.block_len);
                ColumnSums::of_bias(d_bias, layer.partials.as_ref(), samples, args.accumulate)
            }),
        };
        let mask = (layer.activation == Activation::Relu).then_some(y);
        let data = BackwardDataArgs { d_z, w, d_x, mask, accumulate: false };
        linear::backward_data_with_mask(stream, &data, Some(&of_below));
        self.round(stream, d_x);
    }
}

#[cfg(test)]
mod tests;
