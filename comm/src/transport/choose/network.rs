//! Verbs as the network of a job.

use super::Network;
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::Transport as _;
use crate::transport::paths::Path;
use crate::transport::tcp::TcpTransport;
use crate::transport::verbs::nic::Provider;
use crate::transport::verbs::sys::Verbs;
use crate::transport::verbs::{VerbsSettings, available, connect};
use std::sync::Arc;

/// The cards of a provider, and how they are used.
pub struct VerbsNetwork {
    /// Or why there are none.
    provider: std::result::Result<Arc<dyn Provider>, String>,
    settings: VerbsSettings,
}

impl VerbsNetwork {
    /// Over any cards.
    pub fn new(provider: Arc<dyn Provider>, settings: VerbsSettings) -> Self {
        Self { provider: Ok(provider), settings }
    }

    /// Over this machine's, through libibverbs; where it is missing, this is a network that is not there.
    pub fn of_machine(settings: VerbsSettings) -> Self {
        let provider = Verbs::open().map(|verbs| verbs as Arc<dyn Provider>);
        Self { provider: provider.map_err(|error| error.to_string()), settings }
    }
}

impl Network for VerbsNetwork {
    fn is_there(&self, control: &TcpTransport) -> std::result::Result<(), String> {
        let provider = self.provider.as_ref().map_err(Clone::clone)?;
        let local_index = control.topology().local_index(control.rank());
        available(&**provider, &self.settings, local_index).map(drop)
    }

    fn connect(&self, control: &TcpTransport, peers: &[Rank]) -> Result<Vec<(Rank, Box<dyn Path>)>> {
        match &self.provider {
            Ok(provider) => connect(control, &self.settings, Arc::clone(provider), peers),
            // Every rank has said that it is there, this one too.
            Err(reason) => unreachable!("a network that is not there is not connected: {reason}"),
        }
    }
}
