//! Everybody has come.

use crate::communicator::Communicator;
use crate::error::Result;
use crate::operation::{Algorithm, Collective};
use crate::transport::{Incoming, Outgoing};

impl Communicator {
    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        let mut call = self.call(Collective::Barrier, 0, Algorithm::Direct, 0);
        let mut outgoing = call.lists().outgoing();
        outgoing.extend(call.peers().map(|to| Outgoing { to, bytes: &[] }));
        let mut incoming = call.lists().incoming();
        incoming.extend(call.peers().map(|from| Incoming { from, bytes: &mut [] }));
        call.exchange(outgoing, incoming)
    }
}
