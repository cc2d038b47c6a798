//! How much of their slots devices send each other. A device that has routed a batch tells the host
//! how long strips must be, over all ranks; the host hears of it while the batch is still that of
//! next. Where what carries strips takes their length from the host (NCCL), it chooses lengths of
//! few classes, so that captured steps are used again. Else strips are whole slots, of which only
//! what counts travels.
//!
//! Requests travel before that is known, in strips as long as the batch before needed, and a little
//! longer; those of the first batch, in strips for an even share. Where they were too short, every
//! rank hears of it, and all ask again. Where nodes merge requests that were cut inside them, what
//! the nodes ask for is known only then: it may take a third time.

use super::{BatchSlot, Model};
use crate::error::{Result, exchange_failed};
use headlong_comm::DeviceCollectives;
pub(crate) use headlong_embedding::hybrid::StripSizes;
use std::time::{Duration, Instant};

/// How often the host asks the driver whether the device is well, while it waits for it to tell.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl BatchSlot {
    /// The strips that exchanges of its batch send; none where hosts exchange.
    pub(crate) fn strips(&self) -> Option<StripSizes> {
        self.route().strips()
    }

    /// Whether its batch was asked for with strips that were too short.
    pub(crate) fn is_cut(&self, needed: StripSizes) -> bool {
        self.strips().is_some_and(|strips| strips.cuts(needed))
    }

    pub(crate) fn set_strips(&self, strips: StripSizes) {
        self.route_mut().set_strips(strips);
    }
}

impl Model {
    /// What carries bytes between devices, where it wants to hear from the host how many. Else
    /// strips are whole slots: what carries them sees what counts.
    fn counting(&self) -> Option<&dyn DeviceCollectives> {
        self.devices().filter(|ranks| !ranks.sends_what_counts())
    }

    /// Whether strips are chosen for each batch.
    pub(crate) fn chooses_strips(&self) -> bool {
        self.counting().is_some()
    }

    /// The strips that the batch of a slot needs, over all ranks, once the device has told; none
    /// where they are not chosen. `before`: the slot whose walk has routed the batch.
    pub(crate) fn needed_strips(
        &self,
        slot: &BatchSlot,
        before: &BatchSlot,
    ) -> Result<Option<StripSizes>> {
        let Some(ranks) = self.counting() else { return Ok(None) };
        let mut needed = slot.route().needed_strips();
        let mut looked = Instant::now();
        let mut is_told = || {
            needed = slot.route().needed_strips();
            if needed.is_some() || looked.elapsed() < LOOK_EVERY {
                return Ok(needed.is_some());
            }
            looked = Instant::now();
            let has_ended = before.staging().ended.query().map_err(|error| error.to_string())?;
            needed = slot.route().needed_strips();
            match has_ended && needed.is_none() {
                true => Err("it has not told how much ranks ask each other for".to_owned()),
                false => Ok(needed.is_some()),
            }
        };
        let waited = ranks.wait_for(&mut is_told, self.config.comm.deadline());
        waited.map_err(exchange_failed("how much ranks ask each other for"))?;
        Ok(needed)
    }

    /// Sets the strips of a batch that needs these.
    pub(crate) fn fit_strips(&self, slot: &BatchSlot, needed: StripSizes) {
        slot.set_strips(self.as_carried(needed.class(self.slots_of_peers())));
    }

    /// Sets the strips of a batch of which is known what the batch before it needed, if there was
    /// one: else they have room for a little more than an even share.
    pub(crate) fn expect_strips(&self, slot: &BatchSlot, before: Option<StripSizes>) {
        if self.chooses_strips() {
            let (slots, first) = (self.slots_of_peers(), || self.tables.first_strips());
            let expected = before.map(|needed| needed.class_for_another(slots)).or_else(first);
            slot.set_strips(self.as_carried(expected.unwrap_or(slots)));
        }
    }

    /// Strips inside nodes are whole slots, where what counts of them travels.
    fn as_carried(&self, strips: StripSizes) -> StripSizes {
        let by_node = self.devices().and_then(DeviceCollectives::by_node);
        match by_node.is_some_and(|halves| halves.sends_what_counts_inside()) {
            true => StripSizes { inside: self.slots_of_peers().inside, ..strips },
            false => strips,
        }
    }

    fn slots_of_peers(&self) -> StripSizes {
        self.tables.slots().expect("ranks on devices have slots for their peers")
    }
}
