//! The RDMA cards of this machine, as the choice of paths asks for them.

use headlong_comm::transport::choose::Network;
use headlong_comm::transport::paths::Path;
use headlong_comm::transport::tcp::TcpTransport;
use headlong_comm::transport::verbs::{VerbsNetwork, VerbsSettings, sys};
use headlong_comm::{CommError, Rank, Result};

/// The cards of libibverbs for the rank with `local_index` on its node; where the library is not there, the reason, for all ranks
/// to hear.
pub fn find(local_index: usize) -> Box<dyn Network> {
    match sys::Verbs::open() {
        Ok(cards) => Box::new(VerbsNetwork::new(VerbsSettings::default(), cards, local_index)),
        Err(error) => Box::new(Missing(error.to_string())),
    }
}

/// No cards, for this reason.
struct Missing(String);

impl Network for Missing {
    fn is_there(&self) -> std::result::Result<(), String> {
        Err(self.0.clone())
    }

    fn connect(&self, _control: &TcpTransport, _peers: &[Rank]) -> Result<Vec<(Rank, Box<dyn Path>)>> {
        Err(CommError::Rendezvous { reason: self.0.clone() })
    }
}
