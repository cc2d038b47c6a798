//! The stages that find, look up, pool and move rows of tables.

use super::at::Access::{Read, Write};
use super::{At, Resource};
use crate::error::{Error, Result};
use crate::iteration::model::BatchIds;
use headlong_embedding::EmbeddingError;
use std::ops::Range;

const LOOKUP: &str = "the vectors of a batch cannot be looked up";
const UPDATE: &str = "the replicated rows cannot be updated";

/// Finds the rows of a batch, and those of other owners by owner.
pub(super) fn route(at: &At<'_>) -> Result<()> {
    let (batch, mut route) = (at.batch(), at.route_mut());
    let block_len = at.model().block_len_of_step(at.call.slot);
    let routed = at.model().tables.route(at.stream, &BatchIds(&batch), block_len, &mut route);
    routed.map_err(Error::failed(UNROUTABLE))
}

/// Gathers the rows that ranks have asked this owner for.
pub(super) fn owner_lookup(at: &At<'_>) -> Result<()> {
    at.declared(Resource::OwnedRows, Read);
    let found = at.model().tables.owner_lookup(at.stream, &at.route(), at.send_rows(Write));
    found.map_err(Error::failed("the rows of a batch cannot be looked up"))
}

/// The vectors of bags of replicated rows.
pub(super) fn lookup_replicated(at: &At<'_>) -> Result<()> {
    at.declared(Resource::ReplicatedRows, Read);
    let (batch, vectors) = (at.batch(), at.vectors(Write));
    let found =
        at.model().tables.lookup_replicated(at.stream, &BatchIds(&batch), &at.route(), &vectors);
    found.map_err(Error::failed(LOOKUP))
}

/// The vectors of all other bags.
pub(super) fn pool(at: &At<'_>) -> Result<()> {
    at.declared(Resource::OwnedRows, Read);
    let (batch, route, received) = (at.batch(), at.route(), at.recv_rows(Read));
    let ids = BatchIds(&batch);
    let pooled = at.model().tables.pool(at.stream, &ids, &route, received, &at.vectors(Write));
    pooled.map_err(Error::failed(LOOKUP))
}

/// Sums the gradients of each row over this rank's samples.
pub(super) fn reduce_rows(at: &At<'_>) -> Result<()> {
    let (route, d_vectors) = (at.route(), at.d_vectors());
    let (to_owners, replicated) = (at.recv_rows(Write), at.replicated_gradients(Write));
    at.model().tables.reduce_rows(at.stream, &route, &d_vectors, to_owners, replicated);
    Ok(())
}

/// Moves the replicated rows of a range of the summed gradients.
pub(super) fn update_replicated_range(
    at: &At<'_>,
    gradients: &[f32],
    ready: Range<usize>,
) -> Result<(), EmbeddingError> {
    at.declared(Resource::ReplicatedRows, Write);
    at.model().tables.update_replicated_range(at.stream, gradients, ready, &at.call.sparse_step)
}

/// Moves all replicated rows, unless the step is known to change nothing.
pub(super) fn update_replicated(at: &At<'_>) -> Result<()> {
    at.declared(Resource::ReplicatedRows, Write);
    at.loss_scale(Read);
    at.declared(Resource::LearningRates, Read);
    if at.model().skips() {
        return Ok(());
    }
    let (gradients, step) = (at.replicated_gradients(Read), &at.call.sparse_step);
    let updated = at.model().tables.update_replicated(at.stream, gradients, step);
    updated.map_err(Error::failed(UPDATE))
}

/// Moves each row that this rank owns once.
pub(super) fn update_owned(at: &At<'_>) -> Result<()> {
    at.declared(Resource::OwnedRows, Write);
    at.loss_scale(Read);
    at.declared(Resource::LearningRates, Read);
    if at.model().skips() {
        return Ok(());
    }
    let (route, d_vectors, gradients) = (at.route(), at.d_vectors(), at.send_rows(Read));
    let step = &at.call.sparse_step;
    let updated = at.model().tables.update_owned(at.stream, &route, &d_vectors, gradients, step);
    updated.map_err(Error::failed("the tables cannot be updated"))
}

/// Room for the ids of a batch is what the configuration says.
const UNROUTABLE: &str = "the ids of a batch cannot be routed: room is planned by \
                          tables.max_ids_per_sample and data.hotness";
