//! Verbs as one of the ways that ranks choose from.

use super::connect::{available, connect_with_remarks};
use super::nic::Provider;
use super::settings::VerbsSettings;
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::choose::Network;
use crate::transport::paths::Path;
use crate::transport::tcp::TcpTransport;
use std::sync::{Arc, Mutex, PoisonError};

/// Verbs over the cards of a provider, for [`choose`](crate::transport::choose::choose()).
pub struct VerbsNetwork {
    settings: VerbsSettings,
    provider: Arc<dyn Provider>,
    local_index: usize,
    remarks: Mutex<Vec<String>>,
}

impl VerbsNetwork {
    /// For the rank with `local_index` on its node.
    pub fn new(settings: VerbsSettings, provider: Arc<dyn Provider>, local_index: usize) -> Self {
        Self { settings, provider, local_index, remarks: Mutex::default() }
    }

    /// Whose cards these are.
    pub fn provider(&self) -> Arc<dyn Provider> {
        Arc::clone(&self.provider)
    }

    /// What a careful user wants to know once paths are connected: which device, why, and whether
    /// rails cross.
    pub fn remarks(&self) -> Vec<String> {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Network for VerbsNetwork {
    fn is_there(&self) -> Result<(), String> {
        available(&*self.provider, &self.settings, self.local_index).map(drop)
    }

    fn connect(
        &self,
        control: &TcpTransport,
        peers: &[Rank],
    ) -> Result<Vec<(Rank, Box<dyn Path>)>> {
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        connect_with_remarks(control, &self.settings, &*self.provider, peers, &mut remarks)
    }
}
