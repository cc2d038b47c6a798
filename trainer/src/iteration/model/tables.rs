//! The tables of one rank, wherever they are: one name for each thing that a step does with them.

use super::BatchIds;
use crate::error::Result;
use crate::error::failed;
use crate::iteration::schedule::Access::{Read, Write};
use crate::iteration::schedule::{At, Resource};
use headlong_device::cuda::DevicePtr;
use headlong_embedding::hybrid::HybridSet;
use headlong_embedding::{EmbeddingError, Ids};
use std::ops::{Deref, Range};

/// The tables of one rank.
pub struct Tables {
    set: HybridSet,
    at: Location,
}

/// Which rows a rank has, and where.
#[derive(Debug, Clone, Copy)]
enum Location {
    /// It owns all of them.
    Local,
    /// It owns a part of them, in the memory of the host.
    Partitioned {
        /// Every rank holds the ids of the whole batch, so that none has to ask.
        knows_all_ids: bool,
    },
    /// It owns a part of them, in the memory of a device.
    Device,
}

impl Deref for Tables {
    type Target = HybridSet;

    fn deref(&self) -> &HybridSet {
        &self.set
    }
}

const LOOKUP: &str = "the vectors of a batch cannot be looked up";

impl Tables {
    pub(super) fn new(set: HybridSet, on_device: bool, knows_all_ids: bool) -> Self {
        let at = match (set.is_alone(), on_device) {
            (true, _) => Location::Local,
            (false, true) => Location::Device,
            (false, false) => Location::Partitioned { knows_all_ids },
        };
        Self { set, at }
    }

    /// Finds the rows of a batch, and those of other owners by owner.
    pub(crate) fn route(&self, at: &At<'_>) -> Result<()> {
        let (batch, mut route) = (at.batch(), at.route_mut());
        let ids = BatchIds(&batch);
        let routed = match self.at {
            Location::Local => self.set.route_alone(at.stream, &ids, &mut route),
            Location::Partitioned { .. } => {
                let block_len = at.model().block_len_of_step(at.call.slot);
                self.set.route(at.stream, &ids, block_len, &mut route)
            }
            Location::Device => {
                self.set.route_on_device(at.stream, &mut route);
                Ok(())
            }
        };
        routed.map_err(|error| failed(UNROUTABLE, error))
    }

    /// Sorts what ranks ask this owner for.
    pub(crate) fn receive_requests(&self, at: &At<'_>) -> Result<()> {
        let mut route = at.route_mut();
        let received = match self.at {
            Location::Local => Ok(()),
            Location::Partitioned { knows_all_ids: false } => {
                self.set.accept(at.stream, &mut route)
            }
            Location::Partitioned { knows_all_ids: true } => {
                let shares = at.shares();
                let ids: Vec<_> = shares.iter().map(BatchIds).collect();
                let ids: Vec<&dyn Ids> = ids.iter().map(|ids| ids as &dyn Ids).collect();
                self.set.accept_known(at.stream, &mut route, &ids)
            }
            Location::Device => {
                self.set.accept_on_device(at.stream, &mut route);
                Ok(())
            }
        };
        received.map_err(|error| failed("the rows that ranks ask for cannot be found", error))
    }

    /// Gathers the rows that ranks have asked this owner for.
    pub(crate) fn owner_lookup(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::OwnedRows, Read);
        let (route, send) = (at.route(), at.send_rows(Write));
        let found = match self.at {
            Location::Local => Ok(()),
            Location::Partitioned { .. } => {
                let (answers, _) = route.vector_exchange();
                let mut send = send.write::<f32>();
                self.set.answer(at.stream, &route, &mut send.data_mut()[..answers.iter().sum()])
            }
            Location::Device => {
                self.set.answer_on_device(at.stream, &route, send);
                Ok(())
            }
        };
        found.map_err(|error| failed("the rows of a batch cannot be looked up", error))
    }

    /// The vectors of bags of replicated rows.
    pub(crate) fn lookup_replicated(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::ReplicatedRows, Read);
        let (batch, route, vectors) = (at.batch(), at.route(), at.vectors(Write));
        let found = match self.at {
            Location::Local => Ok(()),
            Location::Partitioned { .. } => {
                self.set.lookup_frequent(at.stream, &BatchIds(&batch), &route, &vectors)
            }
            Location::Device => {
                self.set.lookup_frequent_on_device(at.stream, &route, &vectors);
                Ok(())
            }
        };
        found.map_err(|error| failed(LOOKUP, error))
    }

    /// The vectors of all other bags.
    pub(crate) fn pool(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::OwnedRows, Read);
        let (batch, route, vectors) = (at.batch(), at.route(), at.vectors(Write));
        let (ids, received) = (BatchIds(&batch), at.recv_rows(Read));
        let pooled = match self.at {
            Location::Local => self.set.lookup_alone(at.stream, &ids, &route, &vectors),
            Location::Partitioned { .. } => {
                let (_, requests) = route.vector_exchange();
                let received = received.read::<f32>();
                let received = &received.data()[..requests.iter().sum()];
                self.set.pool(at.stream, &ids, &route, received, &vectors)
            }
            Location::Device => {
                self.set.pool_on_device(at.stream, &route, received, &vectors);
                Ok(())
            }
        };
        pooled.map_err(|error| failed(LOOKUP, error))
    }

    /// Sums the gradients of each row over this rank's samples.
    pub(crate) fn reduce_rows(&self, at: &At<'_>) -> Result<()> {
        let (route, d_vectors) = (at.route(), at.d_vectors());
        let (to_owners, replicated) = (at.recv_rows(Write), at.replicated_gradients(Write));
        match self.at {
            Location::Local => {}
            Location::Partitioned { .. } => {
                let (_, requests) = route.vector_exchange();
                let (mut to_owners, mut replicated) =
                    (to_owners.write::<f32>(), replicated.write::<f32>());
                let to_owners = &mut to_owners.data_mut()[..requests.iter().sum()];
                let replicated = replicated.data_mut();
                self.set.reduce(at.stream, &route, &d_vectors, to_owners, replicated);
            }
            Location::Device => {
                self.set.reduce_on_device(at.stream, &route, &d_vectors, to_owners, replicated);
            }
        }
        Ok(())
    }

    /// Moves the replicated rows of a piece of the summed gradients.
    pub(crate) fn update_replicated(
        &self,
        at: &At<'_>,
        gradients: &[f32],
        ready: Range<usize>,
    ) -> Result<(), EmbeddingError> {
        at.declared(Resource::ReplicatedRows, Write);
        self.set.update_frequent(at.stream, gradients, ready, &at.call.sparse_step)
    }

    /// The same of all of them, on a device.
    pub(crate) fn update_replicated_on_device(&self, at: &At<'_>) {
        at.declared(Resource::ReplicatedRows, Write);
        self.set.update_frequent_on_device(at.stream, at.replicated_gradients(Read));
    }

    /// Moves the replicated rows once all gradients are known to be finite.
    pub(crate) fn update_checked(&self, at: &At<'_>) -> Result<()> {
        match self.at {
            Location::Partitioned { .. } if !at.model().skips() => {
                let len = self.frequent_len();
                let gradients = at.replicated_gradients(Read).read::<f32>();
                let updated = self.update_replicated(at, gradients.data(), 0..len);
                updated.map_err(|error| failed("the replicated rows cannot be updated", error))
            }
            Location::Device => {
                self.update_replicated_on_device(at);
                Ok(())
            }
            Location::Local | Location::Partitioned { .. } => Ok(()),
        }
    }

    /// Moves each row that this rank owns once.
    pub(crate) fn update_owned(&self, at: &At<'_>) -> Result<()> {
        at.declared(Resource::OwnedRows, Write);
        at.loss_scale(Read);
        at.declared(Resource::LearningRates, Read);
        if at.model().skips() {
            return Ok(());
        }
        let (route, gradients, step) = (at.route(), at.send_rows(Read), &at.call.sparse_step);
        let updated = match self.at {
            Location::Local => self.set.update_alone(at.stream, &route, &at.d_vectors(), step),
            Location::Partitioned { .. } => {
                let (answers, _) = route.vector_exchange();
                let gradients = gradients.read::<f32>();
                let gradients = &gradients.data()[..answers.iter().sum()];
                self.set.update_infrequent(at.stream, &route, gradients, step)
            }
            Location::Device => {
                self.set.update_infrequent_on_device(at.stream, &route, gradients);
                Ok(())
            }
        };
        updated.map_err(|error| failed("the tables cannot be updated", error))
    }

    /// Where a device reads the learning rate and the number of the step.
    pub(super) fn set_step_of_device(&self, step: DevicePtr) {
        self.set.set_device_step(step);
    }
}

/// Room for the ids of a batch is what the configuration says.
const UNROUTABLE: &str = "the ids of a batch cannot be routed: room is planned by \
                          tables.max_ids_per_sample and data.hotness";
