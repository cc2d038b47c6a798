//! The same bytes counted on real batches, lookup by lookup: what the formulas are held against.

use super::{Cluster, Exchange, Hops, Merge};
use std::collections::BTreeSet;

/// The lookups of one table in the slice of one rank.
pub type RankRows<'a> = &'a [u64];

/// Counts the vectors that travel in one direction for one table of one batch: `slices` has the
/// lookups of each rank, `owner_of` says who owns a row, or `None` for frequent ones. Nothing of
/// this is fast.
///
/// # Panics
/// When there is not one slice for each rank.
pub fn count_vectors(
    cluster: &Cluster,
    merge: Merge,
    exchange: Exchange,
    slices: &[RankRows<'_>],
    owner_of: &dyn Fn(u64) -> Option<usize>,
) -> Hops {
    assert_eq!(slices.len(), cluster.num_ranks(), "one slice for each rank");
    let mut hops = Hops::default();
    let mut hop = |from: usize, to: usize| {
        if from != to {
            let same = cluster.node_of(from) == cluster.node_of(to);
            *(if same { &mut hops.intra } else { &mut hops.inter }) += 1.0;
        }
    };
    // (rank that merges, owner, row) of requests that cross between nodes.
    let mut crossing = BTreeSet::new();
    for (rank, rows) in slices.iter().enumerate() {
        let requests = |row: u64| owner_of(row).map(|owner| (owner, row));
        let mut wanted: Vec<_> = rows.iter().filter_map(|&row| requests(row)).collect();
        if merge != Merge::Off {
            wanted.sort_unstable();
            wanted.dedup();
        }
        for (owner, row) in wanted {
            let far = cluster.node_of(owner) != cluster.node_of(rank);
            match (merge, exchange) {
                (Merge::Node, _) if far => {
                    let merger = peer(cluster, rank, owner);
                    hop(merger, rank);
                    crossing.insert((merger, owner, row));
                }
                (_, Exchange::Hierarchical) if far => {
                    let carrier = peer(cluster, owner, rank);
                    hop(owner, carrier);
                    hop(carrier, rank);
                }
                _ => hop(owner, rank),
            }
        }
    }
    crossing.iter().for_each(|&(merger, owner, _)| hop(owner, merger));
    hops
}

/// The rank on the node of `near` that deals with `far`: the one with its local index.
fn peer(cluster: &Cluster, near: usize, far: usize) -> usize {
    let node = cluster.node_of(near);
    near - cluster.local_index(near) + cluster.local_index(far) % cluster.node_size(node)
}
