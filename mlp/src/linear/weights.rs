//! The handle through which weights are reached.

use crate::gemm::{PANEL_COLS, Panels, pack_columns, pack_transposed};
use headlong_device::{Arena, ArenaPlan, DType, Mat, SlotId, Stream};

/// Weights of one layer, logically out × in, with the packed copies that products read.
///
/// The values lie in the arena of all parameters, where the optimiser changes them; the copies in the arena of
/// activations. [`Self::refresh`] makes the copies again; [`Self::pack`] and [`Self::unpack`] carry the logical matrix
/// to and from checkpoints, so that the physical layout is nobody else's business.
#[derive(Debug, Clone)]
pub struct Weights {
    pub(crate) values: Mat,
    forward: Mat,
    backward: Mat,
}

/// The slots of a [`Weights`] before there is memory for them.
#[derive(Debug, Clone, Copy)]
pub struct WeightsPlan {
    values: SlotId,
    forward: SlotId,
    backward: SlotId,
}

impl WeightsPlan {
    /// Plans the values as slot `name` of `parameters`, and their packed copies in `scratch`.
    pub fn add_to(
        parameters: &mut ArenaPlan,
        scratch: &mut ArenaPlan,
        name: &str,
        (outputs, inputs): (usize, usize),
    ) -> Self {
        let panels = |cols: usize| cols.div_ceil(PANEL_COLS);
        Self {
            values: parameters.matrix(name, DType::F32, outputs, inputs),
            forward: scratch.matrix(
                &format!("{name}.forward"),
                DType::F32,
                panels(outputs),
                inputs * PANEL_COLS,
            ),
            backward: scratch.matrix(
                &format!("{name}.backward"),
                DType::F32,
                panels(inputs),
                outputs * PANEL_COLS,
            ),
        }
    }

    /// The handle, in frozen arenas of the same plans.
    pub fn build(&self, parameters: &Arena, scratch: &Arena) -> Weights {
        Weights {
            values: parameters.mat(self.values),
            forward: scratch.mat(self.forward),
            backward: scratch.mat(self.backward),
        }
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

    /// Takes the logical matrix, row-major out × in. Call [`Self::refresh`] before the next product.
    pub fn pack(&self, logical: &[f32]) {
        copy_into(&self.values, logical);
    }

    /// Gives the logical matrix, row-major out × in.
    pub fn unpack(&self, logical: &mut [f32]) {
        let values = self.values.to_vec::<f32>();
        logical.copy_from_slice(&values.unwrap_or_else(|error| panic!("slot `{}`: {error}", self.name())));
    }

    /// Packs the values for [`super::forward`] and [`super::backward_data`]: once after each change.
    ///
    /// Moves each weight twice; at a batch of 2048 that is about a hundredth of the step. On a device products read the values
    /// themselves, and there is nothing to do.
    pub fn refresh(&self, stream: &Stream) {
        if self.values.is_on_device() {
            return;
        }
        let values = self.values.read::<f32>();
        let (mut forward, mut backward) = (self.forward.write::<f32>(), self.backward.write::<f32>());
        let pool = stream.pool();
        let panel = self.inputs() * PANEL_COLS;
        pool.chunks_mut(forward.data_mut(), panel, |index, data| pack_transposed(values.view(), index, data));
        let panel = self.outputs() * PANEL_COLS;
        pool.chunks_mut(backward.data_mut(), panel, |index, data| pack_columns(values.view(), index, data));
    }

    /// `Wᵀ`, in × out, as the right factor of the forward product. `data` is what [`Self::forward_panels`] opened.
    pub(super) fn as_forward<'a>(&self, data: &'a [f32]) -> Panels<'a> {
        Panels { data, depth: self.inputs(), cols: self.outputs() }
    }

    /// `W`, out × in, as the right factor of the data gradient.
    pub(super) fn as_backward<'a>(&self, data: &'a [f32]) -> Panels<'a> {
        Panels { data, depth: self.outputs(), cols: self.inputs() }
    }

    pub(super) fn forward_panels(&self) -> &Mat {
        &self.forward
    }

    pub(super) fn backward_panels(&self) -> &Mat {
        &self.backward
    }
}

/// Fills a slot wherever it lies: the host's part, before the first step and when a checkpoint is loaded.
///
/// # Panics
/// When the device fails.
pub(crate) fn copy_into(mat: &Mat, values: &[f32]) {
    mat.copy_from(values).unwrap_or_else(|error| panic!("slot `{}`: {error}", mat.name()));
}
