//! Jobs made of some ranks of a job that has come together: each has ranks, connections, an end and
//! failures of its own, so that the loss of one says nothing to the other.
//!
//! ```text
//! whole job    0   1   2   3   4        comes together as the launcher says, and says goodbye
//! parts        0   1   2                rank 0 of a part listens at a port that the system gives
//!                          0   1
//! ```

use super::{JoinOptions, join, reserve_port};
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::launcher_env::Launch;
use crate::options::CommOptions;
use crate::topology::{Rank, Topology};
use crate::transport::Transport as _;
use crate::transport::tcp::TcpTransport;
use std::sync::Arc;

/// A job that is there to be divided.
pub struct Whole<'a> {
    options: &'a JoinOptions,
    control: Arc<TcpTransport>,
    communicator: Communicator,
}

/// A part of a job.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// What follows the whole job's name in its own.
    pub name: &'a str,
    /// Its ranks, as the whole job counts them; the first becomes rank 0.
    pub ranks: &'a [Rank],
    /// As [`JoinOptions::ranks_per_node`].
    pub ranks_per_node: usize,
}

impl<'a> Whole<'a> {
    /// Joins the job, as [`join`] does.
    ///
    /// # Errors
    /// As [`join`].
    pub fn join(options: &'a JoinOptions) -> Result<Self> {
        let control = join(options)?;
        let transport: Arc<TcpTransport> = Arc::clone(&control);
        let communicator = Communicator::new(transport, CommOptions::default());
        Ok(Self { options, control, communicator })
    }

    /// All ranks and their nodes.
    pub fn topology(&self) -> &Topology {
        self.communicator.topology()
    }

    /// How the job came together.
    pub fn control(&self) -> &TcpTransport {
        &self.control
    }

    /// Joins a part, where this rank is of it. All ranks of the whole job call it with the same.
    ///
    /// # Errors
    /// As [`join`]; the whole job's first error.
    pub fn part(&self, part: &Part<'_>) -> Result<Option<Arc<TcpTransport>>> {
        let Launch { launcher, rank, ref job, ref secret, .. } = self.options.launch;
        let (first, own) = (part.ranks[0], part.ranks.iter().position(|&one| one == rank));
        let address = self.control.address(first);
        let mut port = [0];
        // Bound until the part has come together: no one else is given it meanwhile.
        let mut reserved = None;
        if rank == first {
            let (socket, number) = reserve_port(address)
                .map_err(|error| CommError::system("reserving a port for a rendezvous", error))?;
            (reserved, port) = (Some(socket), [u64::from(number)]);
        }
        self.communicator.broadcast(first, &mut port)?;
        let Some(own) = own else { return Ok(None) };
        let master_port = self.port_of(first, port[0])?;
        let launch = Launch {
            launcher,
            rank: Rank(own),
            world_size: part.ranks.len(),
            local_rank: None,
            local_size: None,
            master_host: address.to_string(),
            master_port,
            job: format!("{job} {}", part.name),
            secret: secret.clone(),
            remarks: Vec::new(),
        };
        let whole = Arc::clone(&self.control);
        let options = JoinOptions {
            launch,
            ranks_per_node: part.ranks_per_node,
            notice: None,
            still_wanted: Some(Arc::new(move || whole.check())),
            build: self.options.build.clone(),
            ..*self.options
        };
        // What is seen here may follow from the loss of a rank that the whole job has noticed.
        let joined = join(&options)
            .map_err(|error| self.control.health().suspect(error.in_whole(part.ranks)))?;
        drop(reserved);
        Ok(Some(joined))
    }

    /// The port that a rank has told.
    fn port_of(&self, by: Rank, told: u64) -> Result<u16> {
        told_port(told, by, self.control.rank())
            .map_err(|error| self.control.health().suspect(error))
    }

    /// Says goodbye to all ranks of the whole job, whose parts are on their own from then on.
    ///
    /// # Errors
    /// The whole job's first error.
    pub fn close(self) -> Result<()> {
        self.communicator.close()
    }
}

fn told_port(told: u64, by: Rank, seen_by: Rank) -> Result<u16> {
    u16::try_from(told).map_err(|_| CommError::Mismatch {
        culprit: by,
        seen_by,
        expected: "a port, below 65536".into(),
        found: told.to_string(),
    })
}

impl CommError {
    /// The same error with ranks as the whole job counts them, of which `ranks` are a part.
    #[must_use]
    pub fn in_whole(mut self, ranks: &[Rank]) -> Self {
        for rank in self.ranks_mut().into_iter().flatten() {
            *rank = ranks.get(rank.0).copied().unwrap_or(*rank);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_there_is_not_is_its_tellers_failure() {
        assert_eq!(told_port(65_535, Rank(1), Rank(0)), Ok(65_535));
        let error = told_port(65_536 + 22, Rank(1), Rank(0)).unwrap_err();
        assert_eq!(error.culprit(), Some(Rank(1)));
        assert!(error.to_string().contains("below 65536, found 65558"), "{error}");
    }
}
