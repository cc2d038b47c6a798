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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fabric, NetworkModel, roce_device};
    use std::sync::Arc;

    /// A NIC with two ports, of which the first is watched.
    fn watched(patience: Duration) -> (Arc<Fabric>, Arc<dyn Nic>, Watch) {
        let mut device = roce_device(0, 0);
        let other = device.ports[0].clone();
        device.ports.push(crate::nic::Port { number: 2, ..other });
        let fabric = Fabric::new(1, NetworkModel::CALM, vec![vec![device]]);
        let nic = fabric.provider(0).open("fake0").expect("a NIC");
        (fabric, nic, Watch::new(1, patience))
    }

    #[test]
    fn a_port_may_be_down_for_a_while_and_another_one_for_ever() {
        let (fabric, nic, mut watch) = watched(Duration::from_millis(50));
        fabric.port_down(0, "fake0", 2);
        fabric.port_down(0, "fake0", 1);
        assert_eq!(watch.look(&*nic), Ok(()));
        std::thread::sleep(Duration::from_millis(60));
        fabric.port_up(0, "fake0", 1);
        assert_eq!(watch.look(&*nic), Ok(()), "it is back, however late that is seen");
        fabric.port_down(0, "fake0", 1);
        assert_eq!(watch.look(&*nic), Ok(()), "the time begins again");
        std::thread::sleep(Duration::from_millis(60));
        let error = watch.look(&*nic).expect_err("it stays down");
        let seconds = error.strip_prefix("fake0: port 1 is down, for ");
        let seconds = seconds.and_then(|rest| rest.split_once(" s now"));
        let seconds: f64 = seconds.expect("how long").0.parse().expect("a number");
        assert!(seconds >= 0.1, "{error}");
    }

    #[test]
    fn a_port_that_carries_is_not_down_whatever_was_told() {
        let (fabric, nic, mut watch) = watched(Duration::ZERO);
        fabric.port_down(0, "fake0", 1);
        watch.down_since = Some(Instant::now());
        fabric.port_up(0, "fake0", 1);
        while nic.event().expect("it lives").is_some() {}
        assert_eq!(watch.look(&*nic), Ok(()));
        assert_eq!(watch.down_since, None);
    }

    #[test]
    fn what_no_one_can_mend_ends_it_at_once() {
        let (fabric, nic, mut watch) = watched(Duration::from_secs(60));
        fabric.port_down(0, "fake0", 1);
        fabric.break_device(0, "fake0");
        assert_eq!(watch.look(&*nic), Err("fake0: the device has failed".to_owned()));
    }
}
