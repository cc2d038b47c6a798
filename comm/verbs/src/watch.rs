//! What a NIC says of itself while it is used.

use crate::nic::{Event, Nic, PortState};
use std::time::{Duration, Instant};

/// Events that are taken at once, so that a device that does nothing but complain cannot hold the
/// rank.
const AT_ONCE: usize = 64;

/// Whether a NIC and the port that is used can still be trusted to carry.
///
/// A port that goes down and comes back loses nothing: the NIC sends again what was not answered,
/// for as long as its settings say. For so long, a port may be down.
pub(crate) struct Watch {
    port: u8,
    patience: Duration,
    down_since: Option<Instant>,
}

impl Watch {
    /// Of a port, which may be down for `patience`.
    pub(crate) fn new(port: u8, patience: Duration) -> Self {
        Self { port, patience, down_since: None }
    }

    /// Takes what the NIC has told since the last look. Asks the system.
    ///
    /// # Errors
    /// What has broken.
    pub(crate) fn look(&mut self, nic: &dyn Nic) -> Result<(), String> {
        let name = nic.name();
        for _ in 0..AT_ONCE {
            match nic.event() {
                Ok(None) => break,
                Ok(Some(Event::PortDown(port))) if port == self.port => {
                    self.down_since.get_or_insert_with(Instant::now);
                }
                Ok(Some(Event::PortUp(port))) if port == self.port => self.down_since = None,
                Ok(Some(event)) if event.is_fatal() => return Err(format!("{name}: {event}")),
                Ok(Some(_)) => {}
                Err(error) => return Err(format!("{name}: {error}")),
            }
        }
        let Some(down_for) = self.down_since.map(|since| since.elapsed()) else { return Ok(()) };
        if down_for < self.patience {
            return Ok(());
        }
        // The state counts, whichever events were lost.
        match nic.port(self.port) {
            Ok(port) if port.state == PortState::Active => {
                self.down_since = None;
                Ok(())
            }
            _ => Err(format!(
                "{name}: port {} is down, for {:.1} s now (comm.verbs.timeout and \
                 comm.verbs.retries say how long one may be)",
                self.port,
                down_for.as_secs_f64()
            )),
        }
    }
}
