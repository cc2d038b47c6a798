//! Low-rank cross network: every layer multiplies the features with what it has made of them, so
//! that L layers hold products of up to L + 1 features.
//!
//! # What it computes
//! With `x₀` the bottom output and all pooled vectors side by side ([`super::cat`]), for l = 0 …
//! L−1
//!
//! ```text
//! h_l     = W_l·(V_l·x_l) + b_l
//! x_{l+1} = x₀ ⊙ h_l + x_l
//! ```
//!
//! Backwards, from the last layer to the first, with `dY` the gradient of `x_{l+1}`: `dH = dY ⊙ x₀`
//! and `dX₀ += dY ⊙ h_l` in one pass over `dY`; then `dU = dH·W`, `dW = dHᵀ·U`, `db = Σ dH`,
//! `dV = dUᵀ·x_l` (U = V·x_l), and `dY + dU·V` is the gradient of `x_l`: that product adds to `dY`
//! where it lies. The first layer's input is `x₀` itself: there the pass adds `dY` to `dX₀` as
//! well, and the product adds to that.
//!
//! # Shapes
//! `x₀` B × N, where N = (tables + 1) · dim for equal widths; `V` rank × N, `W` N × rank, `b` 1 ×
//! N. f32; where products take 16 bits, everything between the layers, and `x₀` with its gradient,
//! is of that type ([`Compute::stored`]).
//!
//! # Parameters
//! `cross.l.v.weight`, `cross.l.w.weight`, `cross.l.w.bias`. Weights ~ N(0, √(2 / (in + out))),
//! biases 0.
//!
//! # Sums
//! Those of [`crate::linear`]; elementwise, `x₀·h + x` and `dX₀ + dY·h` are fused multiply-adds on
//! every device.
//!
//! # Work
//! On the CPU it blocks until done and allocates nothing. On a device each layer enqueues two
//! products and a kernel, backwards four products and a kernel; weight gradients run on the side
//! stream, where there is one, during the product of the data gradient. Errors: none; wrong shapes
//! panic.
//!
//! # Source
//! Wang et al., "DCN V2", WWW 2021, §3.3, eq. 2 with one expert; TorchRec `LowRankCrossNet`
//! (initial values).

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cuda::builds;

use crate::linear::{Activation, Compute};
use crate::mlp::{Arenas, Kind, Mlp, MlpBackwardArgs, MlpPlan, MlpSpec, Plans, row_stride};
use crate::rounding::Rounding;
use headlong_device::{Device, Mat, SlotId, Stream};

/// What a cross network looks like.
#[derive(Debug, Clone, Copy)]
pub struct CrossSpec {
    /// Width of `x₀`, and of every layer's output.
    pub width: usize,
    /// Width between a layer's two factors.
    pub rank: usize,
    /// Layers, at least one.
    pub layers: usize,
    /// Samples that memory is planned for.
    pub max_samples: usize,
    /// Blocks that sums over samples are cut into.
    pub sum_blocks: usize,
    /// Whether the CPU rounds the blocks' sums of gradients, and sums of these, to bf16.
    pub narrow: bool,
    /// What products are computed in.
    pub compute: Compute,
}

/// A cross network whose slots are planned.
#[derive(Debug, Clone)]
pub struct CrossPlan {
    width: usize,
    compute: Compute,
    stacks: Vec<MlpPlan>,
    inputs: Vec<SlotId>,
    products: Vec<SlotId>,
    d_product: SlotId,
    d_input: SlotId,
}

impl CrossSpec {
    /// Adds the slots of this network.
    ///
    /// # Panics
    /// When there is no layer, or a width or `sum_blocks` is 0.
    pub fn add_to(&self, plans: &mut Plans) -> CrossPlan {
        assert!(self.layers > 0, "a cross network has at least one layer");
        let &Self { width, rank, max_samples, sum_blocks, narrow, compute, .. } = self;
        let stack = |plans: &mut Plans, layer: usize| {
            let (name, widths) = (format!("cross.{layer}"), [width, rank, width]);
            let (kind, last) = (Kind::LowRank, Activation::None);
            let (name, widths) = (name.as_str(), &widths);
            MlpSpec { name, kind, widths, last, max_samples, sum_blocks, narrow, compute }
                .add_to(plans)
        };
        let stacks = (0..self.layers).map(|layer| stack(plans, layer)).collect();
        let stride = row_stride(compute, width);
        let mut slot =
            |name: String| plans.activations.matrix(&name, compute.stored(), max_samples, stride);
        CrossPlan {
            width,
            compute,
            stacks,
            inputs: (0..self.layers).map(|layer| slot(format!("cross.{layer}.x"))).collect(),
            products: (0..self.layers).map(|layer| slot(format!("cross.{layer}.h"))).collect(),
            d_product: slot("cross.d_h".to_owned()),
            d_input: slot("cross.d_x".to_owned()),
        }
    }
}

impl CrossPlan {
    /// The network, in frozen arenas of the same plans.
    pub fn build(&self, arenas: &Arenas) -> Cross {
        let mat = |slot: &SlotId| arenas.activations.mat(*slot).columns(0, self.width);
        Cross {
            compute: self.compute,
            stacks: self.stacks.iter().map(|plan| plan.build(arenas)).collect(),
            inputs: self.inputs.iter().map(mat).collect(),
            products: self.products.iter().map(mat).collect(),
            d_product: mat(&self.d_product),
            d_input: mat(&self.d_input),
        }
    }
}

/// A cross network, with its input and everything between its layers.
#[derive(Debug, Clone)]
pub struct Cross {
    compute: Compute,
    /// `W·(V·x) + b` of each layer.
    stacks: Vec<Mlp>,
    /// `x_l` of each layer.
    inputs: Vec<Mat>,
    /// `h_l` of each layer.
    products: Vec<Mat>,
    /// `dH` of the layer at hand.
    d_product: Mat,
    /// `dX₀`.
    d_input: Mat,
}

/// Arguments of [`Cross::backward`].
#[derive(Debug)]
pub struct CrossBackwardArgs<'a> {
    /// Gradient of the output, samples × width; used up.
    pub d_y: &'a Mat,
    /// Adds to the parameters' gradients instead of overwriting them.
    pub accumulate: bool,
    /// Samples of one block of the sums over samples ([`crate::sum::block_len`]).
    pub block_len: usize,
}

impl Cross {
    /// `W·(V·x) + b` of each layer: the stacks that hold the parameters.
    pub fn stacks(&self) -> &[Mlp] {
        &self.stacks
    }

    /// `x₀`: the caller writes the features here.
    pub fn input(&self) -> &Mat {
        &self.inputs[0]
    }

    /// The gradient of `x₀`, as the last [`Self::backward`] left it.
    pub fn d_input(&self) -> &Mat {
        &self.d_input
    }

    /// What the layers but the last one make, in their order.
    pub fn outputs(&self) -> &[Mat] {
        &self.inputs[1..]
    }

    /// The output of the last layer for the first samples of [`Self::input`], as many as `y` has
    /// rows.
    pub fn forward(&self, stream: &Stream, y: &Mat) {
        let samples = y.rows();
        let x0 = &self.input().first_rows(samples);
        for (layer, stack) in self.stacks.iter().enumerate() {
            let [x, h] = [&self.inputs, &self.products].map(|mats| &mats[layer]);
            let (x, h) = (&x.first_rows(samples), &h.first_rows(samples));
            let y = &self.inputs.get(layer + 1).unwrap_or(y).first_rows(samples);
            stack.forward(stream, x, h);
            forward(stream, &ForwardArgs { x0, h, x, y, rounding: self.compute.rounding() });
        }
    }

    /// Gradients of all parameters and of the input, for the samples of the last [`Self::forward`].
    pub fn backward(&self, stream: &Stream, args: &CrossBackwardArgs<'_>) {
        let samples = args.d_y.rows();
        let first =
            [self.input(), &self.d_product, &self.d_input].map(|mat| mat.first_rows(samples));
        let [x0, d_h, d_x0] = &first;
        for (layer, stack) in self.stacks.iter().enumerate().rev() {
            let h = &self.products[layer].first_rows(samples);
            let place = Place { is_last: layer + 1 == self.stacks.len(), is_first: layer == 0 };
            let rounding = self.compute.rounding();
            backward(stream, &BackwardArgs { x0, h, d_y: args.d_y, d_h, d_x0, place, rounding });
            let x = &self.inputs[layer].first_rows(samples);
            let d_x = Some(if place.is_first { d_x0 } else { args.d_y });
            let (accumulate, block_len) = (args.accumulate, args.block_len);
            stack.backward(stream, &MlpBackwardArgs { x, d_z: d_h, d_x, accumulate, block_len });
        }
    }
}

/// Arguments of [`forward`]: all samples × width.
#[derive(Debug)]
struct ForwardArgs<'a> {
    x0: &'a Mat,
    /// Rounded in place where values are rounded that keep the type f32.
    h: &'a Mat,
    x: &'a Mat,
    y: &'a Mat,
    rounding: Option<Rounding>,
}

/// `y = x₀ ⊙ h + x`.
fn forward(stream: &Stream, args: &ForwardArgs<'_>) {
    same_shape(&[args.x0, args.h, args.x, args.y]);
    match stream.device() {
        Device::Cpu => cpu::forward(stream, args),
        Device::Cuda(_) => cuda::forward(stream, args),
    }
}

/// Where a layer stands among the others.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// No layer after it has added to `dX₀` yet.
    is_last: bool,
    /// Its input is `x₀`.
    is_first: bool,
}

/// Arguments of [`backward`]: all samples × width.
#[derive(Debug)]
struct BackwardArgs<'a> {
    x0: &'a Mat,
    h: &'a Mat,
    d_y: &'a Mat,
    /// Overwritten.
    d_h: &'a Mat,
    /// Overwritten by the last layer, added to by the others.
    d_x0: &'a Mat,
    place: Place,
    rounding: Option<Rounding>,
}

/// `dH = dY ⊙ x₀`, `dX₀ += dY ⊙ h`, of the first layer `dX₀ += dY ⊙ h + dY`.
fn backward(stream: &Stream, args: &BackwardArgs<'_>) {
    same_shape(&[args.x0, args.h, args.d_y, args.d_h, args.d_x0]);
    match stream.device() {
        Device::Cpu => cpu::backward(stream, args),
        Device::Cuda(_) => cuda::backward(stream, args),
    }
}

fn same_shape(mats: &[&Mat]) {
    let expected = (mats[0].rows(), mats[0].cols(), mats[0].dtype());
    for mat in mats {
        let found = (mat.rows(), mat.cols(), mat.dtype());
        assert_eq!(found, expected, "slot `{}`: rows × columns, element type", mat.name());
    }
}
