//! Inside the node first, then once across the network.
//!
//! What a rank has for a rank of another node goes first to the peer of its own node that
//! **carries** for that destination: the one with the destination's local index (modulo the size of
//! its own node). That peer sends what all ranks of its node have for the destination in one
//! message: per rail and remote node one message crosses the network instead of one per source.
//!
//! ```text
//!            node 0                node 1            for rank 5, local index 1:
//!     rank 0   1   2        rank 3   4   5?          0 ─► 1, 2 ─► 1, then 1 ─► 5's node once
//! ```
//!
//! Step 0 is the inside of the node, step 1 the network and what stays inside the node, which needs
//! no carrying.

use super::{Place, Plan, starts};
use crate::topology::{Rank, Topology};

/// Whether aggregation can help: several nodes, and one of them with several ranks.
pub fn is_useful(topology: &Topology) -> bool {
    let sizes =
        || (0..topology.num_nodes()).map(|node| topology.node_size(node)).filter(|&size| size > 0);
    sizes().count() > 1 && sizes().any(|size| size > 1)
}

/// The rank on `node` through which everything from that node to `destination`, on another node,
/// goes.
pub fn carrier(topology: &Topology, node: usize, destination: Rank) -> Rank {
    topology.ranks_of(node)[topology.local_index(destination) % topology.node_size(node)]
}

/// The ranks of other nodes for which `carrier` carries, rising.
pub fn carried_by(topology: &Topology, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
    let node = topology.node_of(rank);
    let others = topology.ranks().filter(move |&other| topology.node_of(other) != node);
    others.filter(move |&destination| carrier(topology, node, destination) == rank)
}

#[derive(Debug, Clone, Copy)]
pub struct Counts<'a> {
    pub send: &'a [usize],
    pub recv: &'a [usize],
    /// Elements that the ranks of this node have for the destinations this rank carries for: for
    /// each rank of the node (rising, this one included) each destination of [`carried_by`].
    pub carried: &'a [usize],
}

/// The plan of rank `me`.
pub fn plan(topology: &Topology, me: Rank, counts: Counts<'_>, plan: &mut Plan) {
    plan.clear();
    let [mut send_at, mut recv_at] = std::mem::take(&mut plan.starts);
    for (into, counts) in [(&mut send_at, counts.send), (&mut recv_at, counts.recv)] {
        into.clear();
        into.extend(starts(counts));
    }
    plan.own = (send_at[me.0], recv_at[me.0], counts.send[me.0]);
    let mut cursors = std::mem::take(&mut plan.cursors);
    collect(topology, me, counts, &send_at, (plan, &mut cursors));
    forward(topology, me, counts, &send_at, (plan, &mut cursors));
    receive(topology, me, counts.recv, &recv_at, plan);
    plan.end_incoming();
    (plan.starts, plan.cursors) = ([send_at, recv_at], cursors);
}

/// Step 0: everything to those who carry it, and what this rank is to carry: where that of each
/// rank of the node lies, `cursors` say.
fn collect(
    topology: &Topology,
    me: Rank,
    counts: Counts<'_>,
    send_at: &[usize],
    (plan, cursors): (&mut Plan, &mut Vec<usize>),
) {
    let peers = topology.ranks_of(topology.node_of(me));
    plan.begin_step();
    for &peer in peers.iter().filter(|&&peer| peer != me) {
        plan.begin_message(peer);
        for Rank(destination) in carried_by(topology, peer) {
            plan.piece(Place::Send, send_at[destination], counts.send[destination]);
        }
    }
    plan.end_outgoing();
    cursors.clear();
    let num_carried = carried_by(topology, me).count();
    for (&peer, row) in peers.iter().zip(rows(counts.carried, num_carried)) {
        cursors.push(plan.staged);
        if peer != me {
            plan.begin_message(peer);
            let len = row.iter().sum();
            plan.piece(Place::Staged, plan.staged, len);
            plan.staged += len;
        }
    }
    plan.end_incoming();
}

/// Step 1: to each peer of the node what it gets, and to each rank this one carries for what all
/// ranks of the node have for it.
fn forward(
    topology: &Topology,
    me: Rank,
    counts: Counts<'_>,
    send_at: &[usize],
    (plan, cursors): (&mut Plan, &mut [usize]),
) {
    let peers = topology.ranks_of(topology.node_of(me));
    plan.begin_step();
    for &peer in peers.iter().filter(|&&peer| peer != me) {
        plan.begin_message(peer);
        plan.piece(Place::Send, send_at[peer.0], counts.send[peer.0]);
    }
    let num_carried = carried_by(topology, me).count();
    for (index, destination) in carried_by(topology, me).enumerate() {
        plan.begin_message(destination);
        let sources = peers.iter().zip(rows(counts.carried, num_carried)).zip(cursors.iter_mut());
        for ((&source, row), cursor) in sources {
            if source == me {
                let Rank(to) = destination;
                plan.piece(Place::Send, send_at[to], counts.send[to]);
                continue;
            }
            plan.piece(Place::Staged, *cursor, row[index]);
            *cursor += row[index];
        }
    }
    plan.end_outgoing();
}

/// One message from each peer of the node, and from each other node one with everything of its
/// ranks.
fn receive(topology: &Topology, me: Rank, recv: &[usize], recv_at: &[usize], plan: &mut Plan) {
    for node in (0..topology.num_nodes()).filter(|&node| topology.node_size(node) > 0) {
        let sources = topology.ranks_of(node);
        if node == topology.node_of(me) {
            for &peer in sources.iter().filter(|&&peer| peer != me) {
                plan.begin_message(peer);
                plan.piece(Place::Recv, recv_at[peer.0], recv[peer.0]);
            }
        } else {
            plan.begin_message(carrier(topology, node, me));
            for &Rank(source) in sources {
                plan.piece(Place::Recv, recv_at[source], recv[source]);
            }
        }
    }
}

fn rows(carried: &[usize], num_carried: usize) -> impl Iterator<Item = &[usize]> {
    let mut rest = carried;
    std::iter::from_fn(move || rest.split_off(..num_carried))
}

#[cfg(test)]
mod tests {
    use super::super::oracle;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn plans(topology: &Topology, counts: &[Vec<usize>]) -> Vec<Plan> {
        let of = |me: Rank| {
            let recv: Vec<usize> = counts.iter().map(|row| row[me.0]).collect();
            let peers = topology.ranks_of(topology.node_of(me)).iter();
            let carried: Vec<usize> = peers
                .flat_map(|peer| carried_by(topology, me).map(|to| counts[peer.0][to.0]))
                .collect();
            let mut built = Plan::default();
            let known = Counts { send: &counts[me.0], recv: &recv, carried: &carried };
            plan(topology, me, known, &mut built);
            built
        };
        topology.ranks().map(of).collect()
    }

    /// Nodes of 0 to 4 ranks, numbered node by node or across nodes, and a count for each pair.
    fn cases() -> impl Strategy<Value = (Topology, Vec<Vec<usize>>)> {
        let blocks = prop::collection::vec(0usize..5, 1..5).prop_map(|sizes| {
            let ranks = sizes.iter().sum::<usize>().max(1);
            sizes
                .iter()
                .enumerate()
                .flat_map(|(node, &size)| vec![node; size])
                .chain([0])
                .take(ranks)
                .collect()
        });
        let across = prop::collection::vec(0usize..4, 1..9);
        prop_oneof![blocks, across].prop_flat_map(|node_of: Vec<usize>| {
            let ranks = node_of.len();
            let count = prop_oneof![Just(0usize), 1usize..5];
            (
                Just(Topology::from_node_of(node_of)),
                prop::collection::vec(prop::collection::vec(count, ranks), ranks),
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn every_element_arrives_and_only_rails_cross((topology, counts) in cases()) {
            let mut crossings = BTreeSet::new();
            let mut crossed = 0;
            let received = oracle::carry_out(
                &counts,
                &plans(&topology, &counts),
                |step, from, to, content| {
                    if topology.same_node(from, to) {
                        return;
                    }
                    assert_eq!(step, 1, "only the last step crosses");
                    assert_eq!(
                        from,
                        carrier(&topology, topology.node_of(from), to),
                        "only the rail's carrier crosses"
                    );
                    assert!(
                        content.iter().all(|&(_, destination, _)| destination == to.0),
                        "what crosses has arrived"
                    );
                    assert!(
                        crossings.insert((topology.node_of(from), to)),
                        "one message per node and destination"
                    );
                    crossed += content.len();
                },
            );
            prop_assert_eq!(&received, &oracle::expected(&counts));
            let needed: usize = topology
                .ranks()
                .flat_map(|from| topology.ranks().map(move |to| (from, to)))
                .filter(|&(from, to)| !topology.same_node(from, to))
                .map(|(from, to)| counts[from.0][to.0])
                .sum();
            prop_assert_eq!(crossed, needed, "every element crosses once");
        }
    }

    #[test]
    fn even_nodes_cross_once_per_rail() {
        let topology = Topology::from_node_sizes(&[4, 4, 4]);
        let counts = vec![vec![2; 12]; 12];
        let mut messages = vec![0; 12];
        oracle::carry_out(&counts, &plans(&topology, &counts), |_, from, to, content| {
            if !topology.same_node(from, to) {
                messages[from.0] += 1;
                assert_eq!(topology.local_index(from), topology.local_index(to));
                assert_eq!(content.len(), 8);
            }
        });
        assert_eq!(messages, [2; 12], "one message to each other node, per rank");
    }

    #[test]
    fn where_it_helps() {
        let useful = |sizes: &[usize]| is_useful(&Topology::from_node_sizes(sizes));
        assert!(useful(&[1, 2]) && useful(&[4, 4]));
        assert!(!useful(&[4]) && !useful(&[1, 1]) && !useful(&[0, 4]));
    }
}
