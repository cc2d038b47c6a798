//! The handle through which weights are reached.

use super::Compute;
use crate::gemm::{PANEL_COLS, Panels};
use crate::simd::{PanelsMut, change_bands, pack_bands};
use headlong_device::{Arena, ArenaPlan, DType, Mat, SlotId, Stream};

/// Weights of one layer, logically out × in, with the packed copies that products read.
///
/// The values lie in the arena of all parameters, where the optimiser changes them; the copies in
/// the arena of activations. [`Self::refresh`] makes the copies again, also after [`Self::pack`],
/// which takes new values.
#[derive(Debug, Clone)]
pub struct Weights {
    pub(crate) values: Mat,
    compute: Compute,
    copies: Copies,
}

/// What products read.
#[derive(Debug, Clone)]
enum Copies {
    /// The values, rounded where products take that, in panels, for either product; on a device,
    /// where the values themselves are read, they lie idle.
    Panels { forward: Mat, backward: Mat },
    /// The values in 16 bits, rows and their number filled up with zeros to multiples of eight; and
    /// the bias.
    Rounded { weight: Mat, bias: Mat },
}

/// The slots of a [`Weights`] before there is memory for them.
#[derive(Debug, Clone, Copy)]
pub struct WeightsPlan {
    values: SlotId,
    compute: Compute,
    /// Of [`Copies`].
    copies: [SlotId; 2],
}

impl WeightsPlan {
    /// Plans the values as slot `name` of `parameters`, and in `scratch` the copies that products
    /// computed in `compute` read.
    pub fn add_for(
        compute: Compute,
        parameters: &mut ArenaPlan,
        scratch: &mut ArenaPlan,
        name: &str,
        (outputs, inputs): (usize, usize),
    ) -> Self {
        let values = parameters.matrix(name, DType::F32, outputs, inputs);
        let mut copy = |what: &str, rows, cols| {
            scratch.matrix(&format!("{name}.{what}"), compute.dtype(), rows, cols)
        };
        let panels = |cols: usize| cols.div_ceil(PANEL_COLS);
        let words = |k| compute.factor_type().words(k);
        let copies = if compute.is_16_bit() {
            let (rows, cols) = (outputs.next_multiple_of(8), inputs.next_multiple_of(8));
            [copy("rounded", rows, cols), copy("bias", 1, rows)]
        } else {
            [
                copy("forward", panels(outputs), words(inputs) * PANEL_COLS),
                copy("backward", panels(inputs), words(outputs) * PANEL_COLS),
            ]
        };
        Self { values, compute, copies }
    }

    /// The handle, in frozen arenas of the same plans.
    pub fn build(&self, parameters: &Arena, scratch: &Arena) -> Weights {
        let values = parameters.mat(self.values);
        let (outputs, inputs) = (values.rows(), values.cols());
        let [first, second] = self.copies.map(|slot| scratch.mat(slot));
        let copies = match self.compute.is_16_bit() {
            true => Copies::Rounded {
                weight: first.first_rows(outputs).columns(0, inputs),
                bias: second.columns(0, outputs),
            },
            false => Copies::Panels { forward: first, backward: second },
        };
        Weights { values, compute: self.compute, copies }
    }

    /// The slot of the values; gradients and optimiser state have the same in their arenas.
    pub fn values(&self) -> SlotId {
        self.values
    }
}

impl Weights {
    /// Width of the layer's input.
    pub fn inputs(&self) -> usize {
        self.values.cols()
    }

    /// Width of the layer's output.
    pub fn outputs(&self) -> usize {
        self.values.rows()
    }

    /// Name of the parameter.
    pub fn name(&self) -> &str {
        self.values.name()
    }

    /// Takes the logical matrix, row-major out × in. Call [`Self::refresh`] before the next
    /// product.
    pub fn pack(&self, logical: &[f32]) {
        copy_into(&self.values, logical);
    }

    /// Packs the values for [`super::forward`] and [`super::backward_data`]: once after each
    /// change.
    ///
    /// Moves each weight twice; at a batch of 2048 that is about a hundredth of the step. On a
    /// device products in f32 read the values themselves, and there is nothing to do; copies in 16
    /// bits are made for all layers of a stack at once, by the stack.
    pub fn refresh(&self, stream: &Stream) {
        let Copies::Panels { forward, backward } = &self.copies else { return };
        if self.values.is_on_device() {
            return;
        }
        let values = self.values.read::<f32>();
        let (mut forward, mut backward) = (forward.write::<f32>(), backward.write::<f32>());
        pack_bands(
            stream.pool(),
            values.view(),
            self.panels_mut(forward.data_mut(), backward.data_mut()),
        );
    }

    /// Changes the values and packs them, a band at a time while it is in the cache. `lists` are
    /// the elements of the values and of two states of an optimiser; see [`change_bands`]. Only
    /// on the CPU.
    pub(crate) fn change(
        &self,
        stream: &Stream,
        lists: [&mut [f32]; 3],
        body: &(dyn Fn(usize, [&mut [f32]; 3]) + Sync),
    ) {
        let (forward, backward) = self.panels();
        let (mut forward, mut backward) = (forward.write::<f32>(), backward.write::<f32>());
        let panels = self.panels_mut(forward.data_mut(), backward.data_mut());
        change_bands(stream.pool(), lists, panels, body);
    }

    fn panels_mut<'a>(&self, forward: &'a mut [f32], backward: &'a mut [f32]) -> PanelsMut<'a> {
        let (dtype, rounding) = (self.compute.factor_type(), self.compute.rounding());
        PanelsMut { forward, backward, shape: (self.outputs(), self.inputs()), dtype, rounding }
    }

    /// The slot of the values.
    pub(crate) fn values(&self) -> &Mat {
        &self.values
    }

    /// What products are computed in.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// The matrix that a device's products read, out × in.
    pub(super) fn operand(&self) -> &Mat {
        match &self.copies {
            Copies::Rounded { weight, .. } => weight,
            Copies::Panels { .. } => &self.values,
        }
    }

    /// The copies of weights and bias in 16 bits, where products read them.
    pub(crate) fn rounded(&self) -> Option<(&Mat, &Mat)> {
        match &self.copies {
            Copies::Rounded { weight, bias } => Some((weight, bias)),
            Copies::Panels { .. } => None,
        }
    }

    /// `Wᵀ`, in × out, as the right factor of the forward product. `data` is what
    /// the first of [`Self::panels`] holds.
    pub(super) fn as_forward<'a>(&self, data: &'a [f32]) -> Panels<'a> {
        Panels { data, k: self.inputs(), cols: self.outputs() }
    }

    /// `W`, out × in, as the right factor of the data gradient.
    pub(super) fn as_backward<'a>(&self, data: &'a [f32]) -> Panels<'a> {
        Panels { data, k: self.outputs(), cols: self.inputs() }
    }

    /// Panels of the forward product and of the data gradient.
    pub(super) fn panels(&self) -> (&Mat, &Mat) {
        match &self.copies {
            Copies::Panels { forward, backward } => (forward, backward),
            Copies::Rounded { weight, .. } => {
                panic!("slot `{}`: the CPU computes with f32 only", weight.name())
            }
        }
    }
}

/// Fills a slot wherever it lies: the host's part, before the first step and when a checkpoint is
/// loaded.
///
/// # Panics
/// When the device fails.
pub(crate) fn copy_into(mat: &Mat, values: &[f32]) {
    mat.copy_from(values).unwrap_or_else(|error| panic!("slot `{}`: {error}", mat.name()));
}
