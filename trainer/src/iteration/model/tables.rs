//! The tables of one rank, as the stages of a step use them.

use super::BatchIds;
use crate::error::Result;
use crate::error::failed;
use crate::iteration::schedule::Access::{Read, Write};
use crate::iteration::schedule::{At, Resource};
use headlong_embedding::hybrid::HybridSet;
use headlong_embedding::{EmbeddingError, Ids};
use std::ops::{Deref, Range};

/// The tables of one rank.
pub struct Tables(pub(super) HybridSet);

impl Deref for Tables {
    type Target = HybridSet;

    fn deref(&self) -> &HybridSet {
        &self.0
    }
}

const LOOKUP: &str = "the vectors of a batch cannot be looked up";
const UPDATE: &str = "the replicated rows cannot be updated";

impl Tables {
    /// Finds the rows of a batch, and those of other owners by owner.
    pub(crate) fn route(&self, at: &At<'_>) -> Result<()> {
        let (batch, mut route) = (at.batch(), at.route_mut());
        let block_len = at.model().block_len_of_step(at.call.slot);
        let routed = self.0.route(at.stream, &BatchIds(&batch), block_len, &mut route);
        routed.map_err(|error| failed(UNROUTABLE, error))
    }

    /// Sorts what ranks ask this owner for.
    pub(crate) fn receive_requests(&self, at: &At<'_>) -> Result<()> {
        let mut route = at.route_mut();
        let received = if at.model().knows_all_ids() {
            let shares = at.shares();
            let ids: Vec<_> = shares.iter().map(BatchIds).collect();
            let ids: Vec<&dyn Ids> = ids.iter().map(|ids| ids as &dyn Ids).collect();
            self.0.receive_known_requests(at.stream, &mut route, &ids)
        } else {
            self.0.receive_requests(at.stream, &mut route)
        };
        received.map_err(|error| failed("the rows that ranks ask for cannot be found", error))
    }

    /// Gathers the rows that ranks have asked this owner for.
    pub(crate) fn owner_lookup(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::OwnedRows, Read);
        let found = self.0.owner_lookup(at.stream, &at.route(), at.send_rows(Write));
        found.map_err(|error| failed("the rows of a batch cannot be looked up", error))
    }

    /// The vectors of bags of replicated rows.
    pub(crate) fn lookup_replicated(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::ReplicatedRows, Read);
        let (batch, vectors) = (at.batch(), at.vectors(Write));
        let found = self.0.lookup_replicated(at.stream, &BatchIds(&batch), &at.route(), &vectors);
        found.map_err(|error| failed(LOOKUP, error))
    }

    /// The vectors of all other bags.
    pub(crate) fn pool(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::OwnedRows, Read);
        let (batch, route, received) = (at.batch(), at.route(), at.recv_rows(Read));
        let ids = BatchIds(&batch);
        let pooled = self.0.pool(at.stream, &ids, &route, received, &at.vectors(Write));
        pooled.map_err(|error| failed(LOOKUP, error))
    }

    /// Sums the gradients of each row over this rank's samples.
    pub(crate) fn reduce_rows(&self, at: &At<'_>) -> Result<()> {
        let (route, d_vectors) = (at.route(), at.d_vectors());
        let (to_owners, replicated) = (at.recv_rows(Write), at.replicated_gradients(Write));
        self.0.reduce_rows(at.stream, &route, &d_vectors, to_owners, replicated);
        Ok(())
    }

    /// Moves the replicated rows of a range of the summed gradients.
    pub(crate) fn update_replicated_range(
        &self,
        at: &At<'_>,
        gradients: &[f32],
        ready: Range<usize>,
    ) -> Result<(), EmbeddingError> {
        at.declared(Resource::ReplicatedRows, Write);
        self.0.update_replicated_range(at.stream, gradients, ready, &at.call.sparse_step)
    }

    /// Moves all replicated rows, unless the step is known to change nothing.
    pub(crate) fn update_replicated(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::ReplicatedRows, Write);
        if at.model().skips() {
            return Ok(());
        }
        let (gradients, step) = (at.replicated_gradients(Read), &at.call.sparse_step);
        let updated = self.0.update_replicated(at.stream, gradients, step);
        updated.map_err(|error| failed(UPDATE, error))
    }

    /// Moves each row that this rank owns once.
    pub(crate) fn update_owned(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::OwnedRows, Write);
        at.loss_scale(Read);
        at.declared(Resource::LearningRates, Read);
        if at.model().skips() {
            return Ok(());
        }
        let (route, d_vectors, gradients) = (at.route(), at.d_vectors(), at.send_rows(Read));
        let step = &at.call.sparse_step;
        let updated = self.0.update_owned(at.stream, &route, &d_vectors, gradients, step);
        updated.map_err(|error| failed("the tables cannot be updated", error))
    }
}

/// Room for the ids of a batch is what the configuration says.
const UNROUTABLE: &str = "the ids of a batch cannot be routed: room is planned by \
                          tables.max_ids_per_sample and data.hotness";
