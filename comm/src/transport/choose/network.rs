//! The network cards of this machine as the network of a job.

use super::{Network, Verdict};
use crate::error::Result;
use crate::topology::Rank;
use crate::transport::Transport as _;
use crate::transport::paths::Path;
use crate::transport::tcp::TcpTransport;
use crate::transport::verbs::nic::Provider;
use crate::transport::verbs::sys::Verbs;
use crate::transport::verbs::{VerbsNetwork, VerbsSettings, memory_node};

/// Verbs over this machine's cards, through libibverbs. Where that is missing, this is a network
/// that is not there.
pub struct MachineVerbs(std::result::Result<VerbsNetwork, String>);

impl MachineVerbs {
    /// For the rank of `control`; near the memory that it is bound to, unless the settings say
    /// where.
    pub fn new(control: &TcpTransport, mut settings: VerbsSettings) -> Self {
        settings.numa_node = settings.numa_node.or_else(memory_node);
        let local_index = control.topology().local_index(control.rank());
        let network =
            |verbs| VerbsNetwork::new(settings, verbs as std::sync::Arc<dyn Provider>, local_index);
        Self(Verbs::open().map(network).map_err(|error| error.to_string()))
    }

    /// The cards, for what devices exchange between nodes by themselves.
    pub fn provider(&self) -> Option<std::sync::Arc<dyn Provider>> {
        self.0.as_ref().ok().map(VerbsNetwork::provider)
    }

    /// What a careful user wants to know once paths are connected.
    pub fn remarks(&self) -> Vec<String> {
        self.0.as_ref().map(VerbsNetwork::remarks).unwrap_or_default()
    }
}

impl Network for MachineVerbs {
    fn is_there(&self) -> Verdict {
        self.0.as_ref().map_err(Clone::clone)?.is_there()
    }

    fn connect(
        &self,
        control: &TcpTransport,
        peers: &[Rank],
    ) -> Result<Vec<(Rank, Box<dyn Path>)>> {
        match &self.0 {
            Ok(network) => network.connect(control, peers),
            // Every rank has said that it is there, this one too.
            Err(reason) => unreachable!("a network that is not there is not connected: {reason}"),
        }
    }
}
