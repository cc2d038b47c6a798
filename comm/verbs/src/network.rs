//! Verbs as one of the networks that ranks choose from.

use super::connect::{Connected, available, connect};
use super::memory_node;
use super::nic::Provider;
use super::settings::VerbsSettings;
use super::sys::Verbs;
use headlong_comm::transport::Transport as _;
use headlong_comm::transport::choose::Network;
use headlong_comm::transport::paths::{Doorbell, Path};
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::{Rank, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// Verbs over the NICs of a provider, for [`choose`](headlong_comm::transport::choose::choose()).
pub struct VerbsNetwork {
    settings: VerbsSettings,
    /// Or why there is none.
    provider: Result<Arc<dyn Provider>, String>,
    local_index: usize,
    remarks: Mutex<Vec<String>>,
    /// Until it is asked for.
    doorbell: Mutex<Option<Box<dyn Doorbell>>>,
}

impl VerbsNetwork {
    /// For the rank with `local_index` on its node.
    pub fn new(settings: VerbsSettings, provider: Arc<dyn Provider>, local_index: usize) -> Self {
        Self::with(settings, Ok(provider), local_index)
    }

    /// Over this machine's NICs, through libibverbs, for the rank of `control`; near the memory
    /// that it is bound to, unless the settings say where. Without libibverbs, a network that is
    /// not there.
    pub fn of_machine(control: &TcpTransport, mut settings: VerbsSettings) -> Self {
        settings.numa_node = settings.numa_node.or_else(memory_node);
        let local_index = control.topology().local_index(control.rank());
        let provider = Verbs::open().map(|verbs| verbs as Arc<dyn Provider>);
        let provider = provider.map_err(|error| error.to_string());
        Self::with(settings, provider, local_index)
    }

    fn with(
        settings: VerbsSettings,
        provider: Result<Arc<dyn Provider>, String>,
        local_index: usize,
    ) -> Self {
        let (remarks, doorbell) = (Mutex::default(), Mutex::default());
        Self { settings, provider, local_index, remarks, doorbell }
    }

    /// The NICs, for what devices exchange between nodes by themselves.
    pub fn provider(&self) -> Option<Arc<dyn Provider>> {
        self.provider.clone().ok()
    }

    /// What a careful user wants to know once paths are connected: which device, why, and whether
    /// rails cross.
    pub fn remarks(&self) -> Vec<String> {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Network for VerbsNetwork {
    fn is_there(&self) -> Result<(), String> {
        let provider = self.provider.as_ref().map_err(Clone::clone)?;
        available(&**provider, &self.settings, self.local_index).map(drop)
    }

    fn connect(
        &self,
        control: &TcpTransport,
        peers: &[Rank],
    ) -> Result<Vec<(Rank, Box<dyn Path>)>> {
        let provider = self.provider.as_ref().expect("every rank has said that it is there");
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        let Connected { paths, doorbell } =
            connect(control, &self.settings, &**provider, peers, &mut remarks)?;
        *self.doorbell.lock().unwrap_or_else(PoisonError::into_inner) = doorbell;
        Ok(paths)
    }

    fn doorbell(&self) -> Option<Box<dyn Doorbell>> {
        self.doorbell.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
