//! UCX as one of the networks that ranks choose from.

use crate::connect::connect;
use crate::doorbell::UcxDoorbell;
use crate::link::SENDER_MASK;
use crate::sys::{Library, Worker};
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::Network;
use headlong_comm::transport::paths::{Doorbell, Path};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{Rank, Result};
use std::sync::{Mutex, PoisonError};

/// UCX between the ranks of a job, for
/// [`choose`](headlong_comm::transport::choose::choose()): those of one node, too.
pub struct UcxNetwork {
    /// Until ranks are connected by it; or why there is none.
    worker: Mutex<Option<std::result::Result<Worker, String>>>,
    doorbell: Mutex<Option<UcxDoorbell>>,
}

impl UcxNetwork {
    /// Of this machine, for the rank of `control`. Without UCX, a network that is not there. UCX
    /// reads its own variables of the environment (`UCX_TLS`, `UCX_NET_DEVICES`, …).
    pub fn of_machine(control: &TcpTransport) -> Self {
        let peers = control.topology().num_ranks() - 1;
        let worker = Library::open().and_then(|library| Worker::open(library, peers, SENDER_MASK));
        Self { worker: Mutex::new(Some(worker)), doorbell: Mutex::default() }
    }
}

/// The version of the UCX that this machine has, as `1.13.1`.
///
/// # Errors
/// Why there is none that can be used: no library, or one of another version; and the package that
/// has it.
pub fn version() -> std::result::Result<String, String> {
    Library::open().map(|library| library.version())
}

impl Network for UcxNetwork {
    fn is_there(&self) -> std::result::Result<(), String> {
        match &*self.worker.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Err(reason)) => Err(reason.clone()),
            _ => Ok(()),
        }
    }

    fn connect(
        &self,
        control: &TcpTransport,
        peers: &[Rank],
    ) -> Result<Vec<(Rank, Box<dyn Path>)>> {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let worker = worker.and_then(std::result::Result::ok);
        let worker = worker.expect("every rank has said that it is there, once");
        let (paths, doorbell) = connect(control, worker, peers)?;
        *self.doorbell.lock().unwrap_or_else(PoisonError::into_inner) = Some(doorbell);
        Ok(paths)
    }

    fn doorbell(&self) -> Option<Box<dyn Doorbell>> {
        let doorbell = self.doorbell.lock().unwrap_or_else(PoisonError::into_inner).take();
        doorbell.map(|doorbell| Box::new(doorbell) as Box<dyn Doorbell>)
    }
}
