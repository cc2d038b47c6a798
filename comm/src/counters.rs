//! What has left a rank.

use crate::operation::Collective;
use crate::topology::{Rank, Topology};
use crate::transport::Outgoing;
use std::ops::{Add as _, Sub};

/// Payload and messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Traffic {
    pub intra_node_bytes: u64,
    pub inter_node_bytes: u64,
    pub intra_node_messages: u64,
    pub inter_node_messages: u64,
}

impl Traffic {
    fn with(self, other: &Traffic, each: fn(u64, u64) -> u64) -> Traffic {
        Traffic {
            intra_node_bytes: each(self.intra_node_bytes, other.intra_node_bytes),
            inter_node_bytes: each(self.inter_node_bytes, other.inter_node_bytes),
            intra_node_messages: each(self.intra_node_messages, other.intra_node_messages),
            inter_node_messages: each(self.inter_node_messages, other.inter_node_messages),
        }
    }
}

/// What has left a rank since the counters were last set to zero: payload only, without headers,
/// and only what its transport has carried to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    by_collective: [Traffic; Collective::ALL.len()],
}

impl Counters {
    /// Everything.
    pub fn total(&self) -> Traffic {
        self.by_collective
            .iter()
            .fold(Traffic::default(), |sum, traffic| sum.with(traffic, u64::add))
    }

    /// What one kind of operation has sent.
    pub fn of(&self, collective: Collective) -> Traffic {
        self.by_collective[collective as usize]
    }

    /// Bytes to ranks of the same node.
    pub fn intra_node_bytes(&self) -> u64 {
        self.total().intra_node_bytes
    }

    /// Bytes to ranks of other nodes.
    pub fn inter_node_bytes(&self) -> u64 {
        self.total().inter_node_bytes
    }

    pub(crate) fn add(
        &mut self,
        collective: Collective,
        topology: &Topology,
        from: Rank,
        outgoing: &[Outgoing<'_>],
    ) {
        let traffic = &mut self.by_collective[collective as usize];
        for message in outgoing {
            let bytes = message.bytes.len() as u64;
            match topology.same_node(from, message.to) {
                true => {
                    traffic.intra_node_bytes += bytes;
                    traffic.intra_node_messages += 1;
                }
                false => {
                    traffic.inter_node_bytes += bytes;
                    traffic.inter_node_messages += 1;
                }
            }
        }
    }
}

impl Sub for Counters {
    type Output = Counters;

    /// What has left since `earlier`.
    fn sub(self, earlier: Counters) -> Counters {
        let both = self.by_collective.into_iter().zip(&earlier.by_collective);
        let mut since = both.map(|(since, earlier)| since.with(earlier, u64::sub));
        let next = |_| since.next().expect("one for each kind of operation");
        Counters { by_collective: std::array::from_fn(next) }
    }
}
