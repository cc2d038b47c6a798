//! What ranks exchange where each moves a part of the dense weights: the sums of that part's
//! gradients, the sums that norms are made of, and the weights that have moved.

use crate::error::{Result, exchange_failed};
use crate::iteration::model::{Divided, Model};
use crate::iteration::schedule::at::Access::{Read, Write};
use crate::iteration::schedule::{At, Resource};
use headlong_comm::Parts;
use headlong_device::DType;
use headlong_mlp::loss_scale::CheckArgs;
use headlong_mlp::optim::divided::Part;

impl Divided {
    /// The dense gradients of each rank's part become their sums over all ranks, with the bits of
    /// the all-reduce. What is not finite there is a flag to be added up.
    pub(super) fn reduce(&self, at: &At<'_>) -> Result<()> {
        let gradients = at.dense_gradients(Write);
        let reduced = match at.model().devices() {
            Some(devices) => {
                let (data, dtype) =
                    at.dense_sums(Write).map_or((gradients.device_ptr(), DType::F32), |sums| {
                        (sums.device_ptr(), sums.dtype())
                    });
                let parts = Parts { data, dtype, bounds: &self.bounds };
                devices.reduce_to_parts(at.stream, parts)
            }
            None => self.reduce_here(at),
        };
        reduced.map_err(exchange_failed("the gradients"))?;
        let (elements, summed) = (self.part.elements.clone(), at.dense_sums(Read));
        let args = CheckArgs { gradients, elements, summed, steps: None };
        at.declared(Resource::Overflow, Write);
        at.loss_scale(Read).iter().for_each(|scale| scale.raise(at.stream, &args));
        Ok(())
    }

    fn reduce_here(&self, at: &At<'_>) -> headlong_comm::Result<()> {
        let ranks = &at.model().communicator;
        let mut data = at.dense_gradients(Write).write_all::<f32>();
        match at.model().config.is_narrow() {
            false => ranks.reduce_to_parts(&mut data, &self.bounds),
            true => ranks.reduce_to_parts_as_bf16(&mut data, &self.bounds),
        }
    }

    /// Each chunk of a norm is one rank's. On processors it is zero elsewhere, so that the sum of
    /// their bits is exact; devices gather them.
    pub(in crate::iteration::schedule) fn add_up_norms(&self, at: &At<'_>) -> Result<()> {
        let Some(Part { sums, .. }) = at.part(Write) else { return Ok(()) };
        let summed = match at.model().devices() {
            Some(devices) => {
                let (data, dtype) = (sums.device_ptr(), sums.dtype());
                devices.gather_parts(at.stream, Parts { data, dtype, bounds: &self.sum_bounds })
            }
            None => at.model().communicator.all_reduce(sums.write::<u64>().data_mut()),
        };
        summed.map_err(exchange_failed("the norms of the gradients"))
    }

    /// All ranks get the weights that each has moved, as f32.
    pub(in crate::iteration::schedule) fn gather_weights(&self, at: &At<'_>) -> Result<()> {
        let Model { weights, communicator, .. } = at.declared(Resource::DenseWeights, Write);
        let gathered = match at.model().devices() {
            Some(devices) => {
                let (data, dtype) = (weights.device_ptr(), DType::F32);
                devices.gather_parts(at.stream, Parts { data, dtype, bounds: &self.bounds })
            }
            None => communicator.gather_parts(&mut weights.write_all::<f32>(), &self.bounds),
        };
        gathered.map_err(exchange_failed("the dense weights"))
    }
}
