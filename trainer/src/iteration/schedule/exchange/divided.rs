//! What ranks exchange where each moves a part of the dense weights: the sums of that part's
//! gradients, the sums that norms are made of, and the weights that have moved.

use crate::error::{Result, exchange_failed};
use crate::iteration::model::Divided;
use crate::iteration::schedule::at::Access::{Read, Write};
use crate::iteration::schedule::{At, Resource};

impl Divided {
    /// The dense gradients of each rank's part become their sums over all ranks, with the bits of
    /// the all-reduce. What is not finite there is a flag to be added up.
    pub(super) fn reduce(&self, at: &At<'_>) -> Result<()> {
        let (ranks, gradients) = (&at.model().communicator, at.dense_gradients(Write));
        let mut data = gradients.write_all::<f32>();
        let reduced = match at.model().config.is_narrow() {
            false => ranks.reduce_to_parts(&mut data, &self.bounds),
            true => ranks.reduce_to_parts_as_bf16(&mut data, &self.bounds),
        };
        reduced.map_err(exchange_failed("the gradients"))?;
        drop(data);
        let part = &self.part.elements;
        at.loss_scale(Read)
            .iter()
            .for_each(|scale| scale.raise(at.stream, gradients, part.clone()));
        Ok(())
    }

    /// Each chunk of a norm is one rank's, and zero elsewhere: so the sum of their bits is exact.
    pub(in crate::iteration::schedule) fn add_up_norms(&self, at: &At<'_>) -> Result<()> {
        let Some(part) = at.part(Write) else { return Ok(()) };
        let summed = at.model().communicator.all_reduce(part.sums.write::<u64>().data_mut());
        summed.map_err(exchange_failed("the norms of the gradients"))
    }

    /// All ranks get the weights that each has moved, as f32.
    pub(in crate::iteration::schedule) fn gather_weights(&self, at: &At<'_>) -> Result<()> {
        let mut weights = at.declared(Resource::DenseWeights, Write).weights.write_all::<f32>();
        let gathered = at.model().communicator.gather_parts(&mut weights, &self.bounds);
        gathered.map_err(exchange_failed("the dense weights"))
    }
}
