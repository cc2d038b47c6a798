//! How ranks come to collectives between devices: all of them, or none, and for a reason that all
//! of them know.

use super::hierarchical::{self, HierarchicalCollectives};
use super::nccl::NcclCollectives;
use super::peer::PeerCollectives;
use super::single::SingleRank;
use super::{DeviceCollectives, DeviceSizes};
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::options::{AllToAll, BetweenDevices};
use crate::plan::hierarchical::is_useful;
use crate::readable::readable;
use crate::topology::Topology;
use headlong_device::Stream;

/// Bytes in which a rank says what it lacks.
const STATEMENT: usize = 1024;

const MOST_NODES_UNASKED: usize = 256;
const MOST_PARTS_UNASKED: usize = 64;

/// Why NICs that are asked for would carry nothing between devices.
pub const NICS_IN_VAIN: &str = "NICs carry between devices what goes inside nodes first: where \
                                nodes have several ranks and comm.exchange is not \"flat\"";

/// Whether devices of these ranks exchange inside their nodes first: unless [`AllToAll::Flat`] is
/// asked for, where a node has several ranks; without being asked, on up to 256 nodes, since strips
/// take as much memory as blocks do, which grows with the ranks, and where sums do not cross as the
/// parts of more than 64 ranks.
pub fn goes_by_node(topology: &Topology, asked: AllToAll) -> bool {
    is_useful(topology)
        && match asked {
            AllToAll::Flat => false,
            AllToAll::Hierarchical => true,
            AllToAll::Auto => {
                let few_cross = topology.aligned_node_size().is_some()
                    || topology.num_ranks() <= MOST_PARTS_UNASKED;
                few_cross
                    && topology.num_nodes() <= MOST_NODES_UNASKED
                    && hierarchical::possible(topology).is_ok()
            }
        }
}

impl Communicator {
    /// Collectives between the devices of all ranks. All ranks call this, each with a stream of its
    /// own device; they come together over this communicator, and stay with it: its failures end
    /// both.
    ///
    /// One rank needs nothing. Several need a device each, and NCCL on every rank, unless they are
    /// on one node and their devices can use each other's memory
    /// ([`CommOptions::between_devices`](crate::CommOptions)).
    ///
    /// # Errors
    /// [`CommError::Rendezvous`], the same on all ranks, names each rank that lacks something, what
    /// it is, and where it was looked for. The job's first error.
    pub fn attach_device(&self, stream: &Stream) -> Result<Box<dyn DeviceCollectives>> {
        self.attach_device_for(stream, DeviceSizes::default())
    }

    /// As [`Communicator::attach_device`], for exchanges of up to `sizes`: those that go by node
    /// ([`goes_by_node`]) need memory on the way. All ranks say the same.
    ///
    /// # Errors
    /// As there; memory that a device refuses; rails that would carry nothing between nodes.
    pub fn attach_device_for(
        &self,
        stream: &Stream,
        sizes: DeviceSizes,
    ) -> Result<Box<dyn DeviceCollectives>> {
        let cuda = stream.as_cuda().ok_or_else(|| "its stream is on the CPU".to_owned());
        let cuda = self.agree("collectives between devices", cuda)?;
        if self.num_ranks() == 1 {
            return Ok(Box::new(SingleRank::new(self.transport().clone())));
        }
        let by_memory = self.options().between_devices == BetweenDevices::Auto;
        if goes_by_node(self.topology(), self.options().all_to_all) {
            return Ok(Box::new(HierarchicalCollectives::attach(self, cuda, sizes, by_memory)?));
        }
        let is_named_in_vain = self.rails().is_some() && self.topology().num_nodes() > 1;
        let named = if is_named_in_vain { Err(NICS_IN_VAIN.to_owned()) } else { Ok(()) };
        self.agree("verbs between devices", named)?;
        if by_memory && PeerCollectives::is_possible(self, cuda)? {
            return Ok(Box::new(PeerCollectives::attach(self, cuda, sizes)?));
        }
        Ok(Box::new(NcclCollectives::attach_for_sums(self, cuda, sizes)?))
    }

    /// Every rank says whether it has what it needs for `what`; one that lacks something is
    /// everybody's error; what this one has.
    ///
    /// # Errors
    /// [`CommError::Rendezvous`] with what each rank lacks, the same on all ranks; the job's first
    /// error.
    pub fn agree<T>(&self, what: &str, own: Result<T, String>) -> Result<T> {
        let mut statement = [0_u8; STATEMENT];
        if let Err(reason) = &own {
            let end = reason.len().min(STATEMENT - 1);
            // The last byte says that there is something to read, also where the reason is empty.
            statement[STATEMENT - 1] = 1;
            statement[..end].copy_from_slice(&reason.as_bytes()[..end]);
        }
        let mut all = vec![0_u8; STATEMENT * self.num_ranks()];
        self.all_gather(&statement, &mut all)?;
        let statements = all.chunks_exact(STATEMENT).enumerate();
        let lacking: Vec<String> = statements
            .filter(|(_, statement)| statement[STATEMENT - 1] != 0)
            .map(|(rank, statement)| {
                let text = String::from_utf8_lossy(&statement[..STATEMENT - 1]);
                format!("rank {rank}: {}", readable(text.trim_end_matches('\0')))
            })
            .collect();
        if !lacking.is_empty() {
            return Err(CommError::Rendezvous {
                reason: format!("{what}: {}", lacking.join("; ")),
            });
        }
        own.map_err(|reason| CommError::Rendezvous { reason })
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_ranks;
    use crate::topology::{Rank, Topology};
    use headlong_device::Stream;

    #[test]
    fn what_one_rank_lacks_all_ranks_hear() {
        let answers = run_ranks(&Topology::one_node(3), |communicator| {
            let own: Result<(), String> = match communicator.rank() {
                Rank(1) => Err("libnccl.so.2 was not found".into()),
                Rank(2) => Err("ä".repeat(2000)),
                _ => Ok(()),
            };
            communicator.agree("NCCL", own).unwrap_err().to_string()
        });
        assert!(answers.iter().all(|answer| answer == &answers[0]));
        let start =
            "the job did not come together: NCCL: rank 1: libnccl.so.2 was not found; rank 2: ää";
        assert!(answers[0].starts_with(start), "{}", answers[0]);
    }

    #[test]
    fn a_cpu_stream_has_no_collectives_between_devices() {
        for ranks in [1, 2] {
            let answers = run_ranks(&Topology::one_node(ranks), |communicator| {
                let attached = communicator.attach_device(&Stream::cpu(1));
                attached.map(|_| ()).unwrap_err().to_string()
            });
            assert!(
                answers.iter().all(|answer| answer.contains("rank 0: its stream is on the CPU"))
            );
        }
    }
}
