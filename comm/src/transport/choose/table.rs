//! What rank 0 prints of the choice.

use super::{Decision, Wanted, network_name, num_nodes};
use crate::topology::{Rank, Topology};

/// What serves one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The rank.
    pub rank: Rank,
    /// Its node.
    pub node: usize,
    /// To ranks of its node, and why not faster; none where it has none.
    pub inside: Option<String>,
    /// To ranks of other nodes, and why not faster; none where there are none.
    pub across: Option<String>,
}

fn row(topology: &Topology, rank: Rank, inside: &str, across: &str) -> Row {
    let node = topology.node_of(rank);
    Row {
        rank,
        node,
        inside: (topology.node_size(node) > 1).then(|| inside.to_owned()),
        across: (num_nodes(topology) > 1).then(|| across.to_owned()),
    }
}

/// Everything over TCP, because it was wanted so.
pub(super) fn all_by_tcp(topology: &Topology, wanted: Wanted) -> Vec<Row> {
    let why = if wanted == Wanted::Tcp { "tcp (asked for)" } else { "tcp" };
    topology.ranks().map(|rank| row(topology, rank, why, why)).collect()
}

pub(super) fn rows(decision: &Decision) -> Vec<Row> {
    let Decision { topology, need, nodes, network, along_rails } = decision;
    let name = network_name(need.wanted);
    let across = match network {
        Ok(()) if *along_rails => format!("{name} along rails"),
        Ok(()) => name.to_owned(),
        Err(reason) => format!("tcp (no {name}: {reason})"),
    };
    let inside = |rank| match &nodes[topology.node_of(rank)] {
        _ if need.network_inside => name.to_owned(),
        Ok(()) => "shm".to_owned(),
        Err(reason) => format!("tcp (no shared memory: {reason})"),
    };
    topology.ranks().map(|rank| row(topology, rank, &inside(rank), &across)).collect()
}

/// A line for each group of neighbouring ranks that are served alike.
pub(super) fn render(rows: &[Row]) -> String {
    let mut lines = Vec::new();
    for group in
        rows.chunk_by(|one, other| (&one.inside, &one.across) == (&other.inside, &other.across))
    {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let who = match group.len() {
            1 => format!("{}", first.rank),
            _ => format!("ranks {} to {}", first.rank.0, last.rank.0),
        };
        let inside = first.inside.as_ref().map(|way| format!("inside the node by {way}"));
        let across = first.across.as_ref().map(|way| format!("between nodes by {way}"));
        let ways: Vec<String> = [inside, across].into_iter().flatten().collect();
        lines.push(format!(
            "{who}: {}",
            if ways.is_empty() { "alone".to_owned() } else { ways.join(", ") }
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::{Need, Verdict};
    use super::*;

    fn decision<'a>(
        topology: &'a Topology,
        wanted: Wanted,
        nodes: &[Verdict],
        network: Verdict,
    ) -> Decision<'a> {
        let (need, nodes) = (Need::of(wanted, topology), nodes.to_vec());
        Decision { topology, need, nodes, network, along_rails: false }
    }

    fn table(node_of: &[usize], wanted: Wanted, nodes: &[Verdict], network: Verdict) -> String {
        let topology = Topology::from_node_of(node_of.to_vec());
        render(&rows(&decision(&topology, wanted, nodes, network)))
    }

    #[test]
    fn ranks_that_are_served_alike_share_a_line_and_reasons_stand_in_it() {
        let no = |reason: &str| Err(reason.to_owned());
        assert_eq!(
            table(&[0, 0, 0, 0], Wanted::Auto, &[Ok(())], no("no library")),
            "ranks 0 to 3: inside the node by shm"
        );
        assert_eq!(
            table(
                &[0, 0, 1, 1, 2],
                Wanted::Auto,
                &[Ok(()), no("rank 3: another container"), Ok(())],
                no("rank 4: no port")
            ),
            "ranks 0 to 1: inside the node by shm, between nodes by tcp (no verbs: rank 4: no \
             port)\n\
             ranks 2 to 3: inside the node by tcp (no shared memory: rank 3: another container), \
             between nodes by tcp (no verbs: rank 4: no port)\n\
             rank 4: between nodes by tcp (no verbs: rank 4: no port)"
        );
        assert_eq!(
            table(&[0, 0], Wanted::Verbs, &[Ok(())], Ok(())),
            "ranks 0 to 1: inside the node by verbs"
        );
        assert_eq!(
            table(&[0, 0, 1], Wanted::Ucx, &[Ok(()), Ok(())], Ok(())),
            "ranks 0 to 1: inside the node by ucx, between nodes by ucx\n\
             rank 2: between nodes by ucx"
        );
        assert_eq!(table(&[0], Wanted::Auto, &[Ok(())], Ok(())), "rank 0: alone");
    }

    /// A rank alone on its node has no shared memory; it must still count itself to a job that has.
    #[test]
    fn all_ranks_call_the_transport_by_one_name() {
        let name = |node_of: &[usize], wanted, nodes: &[Verdict], network: Verdict| {
            let topology = Topology::from_node_of(node_of.to_vec());
            decision(&topology, wanted, nodes, network).name()
        };
        let no = || Err("no".to_owned());
        assert_eq!(name(&[0, 0], Wanted::Auto, &[Ok(())], Ok(())), "shm");
        assert_eq!(name(&[0, 0], Wanted::Auto, &[no()], Ok(())), "tcp");
        assert_eq!(name(&[0, 0], Wanted::Verbs, &[Ok(())], Ok(())), "verbs");
        assert_eq!(name(&[0, 0], Wanted::Ucx, &[Ok(())], Ok(())), "ucx");
        assert_eq!(name(&[0, 0, 1], Wanted::Ucx, &[Ok(()), Ok(())], Ok(())), "ucx");
        assert_eq!(name(&[0, 0, 1], Wanted::Auto, &[Ok(()), Ok(())], no()), "shm+tcp");
        assert_eq!(name(&[0, 0, 1], Wanted::Auto, &[Ok(()), Ok(())], Ok(())), "shm+verbs");
        assert_eq!(name(&[0, 0, 1], Wanted::Auto, &[no(), Ok(())], Ok(())), "verbs+tcp");
        assert_eq!(name(&[0, 1], Wanted::Auto, &[Ok(()), Ok(())], no()), "tcp");
        assert_eq!(name(&[0, 0, 1, 1], Wanted::Auto, &[Ok(()), no()], Ok(())), "paths");
    }

    #[test]
    fn a_large_job_is_joined_along_its_rails() {
        let decide = |wanted, along_rails| {
            let topology = Topology::with_ranks_per_node(128, 8);
            let decision = decision(&topology, wanted, &vec![Ok(()); 16], Ok(()));
            let decision = Decision { along_rails, ..decision };
            (decision.network_peers(Rank(19)), render(&rows(&decision)))
        };
        let rail: Vec<Rank> =
            (0..16).map(|node| Rank(8 * node + 3)).filter(|r| r.0 != 19).collect();
        let (peers, table) = decide(Wanted::Auto, true);
        assert_eq!(peers, rail);
        assert!(table.ends_with("between nodes by verbs along rails"), "{table}");
        let (mut peers, _) = decide(Wanted::Ucx, true);
        peers.sort_unstable();
        let mut expected = rail;
        expected.extend((16..24).filter(|&rank| rank != 19).map(Rank));
        expected.sort_unstable();
        assert_eq!(peers, expected);
        let (peers, table) = decide(Wanted::Auto, false);
        assert_eq!(peers.len(), 120);
        assert!(table.ends_with("between nodes by verbs"), "{table}");
    }

    #[test]
    fn what_was_asked_for_by_name_is_never_replaced() {
        let check = |node_of: &[usize], wanted, nodes: &[Verdict], network: Verdict| {
            let topology = Topology::from_node_of(node_of.to_vec());
            let decision = decision(&topology, wanted, nodes, network);
            decision.check_wanted().map_err(|error| error.to_string())
        };
        let no = |reason: &str| Err(reason.to_owned());
        let found = check(&[0, 0], Wanted::Shm, &[no("rank 1: no memfd")], Ok(()));
        assert_eq!(found, Err("transport shm: rank 1: no memfd".into()));
        let found = check(&[0, 0, 1], Wanted::Shm, &[Ok(()), Ok(())], Ok(()));
        assert!(found.is_err_and(|text| text.contains("rank 2 is on another than rank 0")));
        let found =
            check(&[0, 1], Wanted::Verbs, &[Ok(()), Ok(())], no("rank 1: no libibverbs.so.1"));
        assert_eq!(found, Err("transport verbs: rank 1: no libibverbs.so.1".into()));
        let found = check(&[0, 0, 1], Wanted::Verbs, &[no("rank 1: no memfd"), Ok(())], Ok(()));
        assert_eq!(found, Err("transport verbs: rank 1: no memfd".into()));
        let found = check(&[0, 0], Wanted::Ucx, &[Ok(())], no("rank 1: no libucp.so.0"));
        assert_eq!(found, Err("transport ucx: rank 1: no libucp.so.0".into()));
        assert_eq!(check(&[0, 0, 1], Wanted::Auto, &[no("a"), no("b")], no("c")), Ok(()));
    }
}
