//! Which rank lives on which node.

/// One of the workers that train one model together, counted from 0.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Rank(pub usize);

impl std::fmt::Display for Rank {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "rank {}", self.0)
    }
}

/// Nodes and the ranks on them. Nodes may hold different numbers of ranks. What is asked of a rank
/// or a node that there is not panics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    node_of: Vec<usize>,
    local_index: Vec<usize>,
    ranks_of: Vec<Vec<Rank>>,
    aligned_node_size: Option<usize>,
}

impl Topology {
    /// One rank on one node.
    pub fn single() -> Self {
        Self::from_node_sizes(&[1])
    }

    /// Ranks numbered node by node: `[2, 3]` puts ranks 0 and 1 on node 0, and 2, 3, 4 on node 1.
    ///
    /// # Panics
    /// When there is no rank at all.
    pub fn from_node_sizes(ranks_per_node: &[usize]) -> Self {
        let nodes = ranks_per_node.iter().enumerate();
        let node_of: Vec<usize> =
            nodes.flat_map(|(node, &ranks)| std::iter::repeat_n(node, ranks)).collect();
        Self::from_node_of(node_of)
    }

    /// All ranks on one node.
    ///
    /// # Panics
    /// When `num_ranks` is 0.
    pub fn one_node(num_ranks: usize) -> Self {
        Self::from_node_sizes(&[num_ranks])
    }

    /// `num_ranks` ranks numbered node by node, `ranks_per_node` on each but perhaps the last; 0:
    /// all on one node.
    ///
    /// # Panics
    /// When `num_ranks` is 0.
    pub fn with_ranks_per_node(num_ranks: usize, ranks_per_node: usize) -> Self {
        let per_node = if ranks_per_node == 0 { num_ranks.max(1) } else { ranks_per_node };
        Self::from_node_of((0..num_ranks).map(|rank| rank / per_node).collect())
    }

    /// The node of each rank, in any order: launchers may number ranks across nodes.
    ///
    /// # Panics
    /// When there is no rank at all.
    pub fn from_node_of(node_of: Vec<usize>) -> Self {
        assert!(!node_of.is_empty(), "a topology has at least one rank");
        let num_nodes = node_of.iter().max().map_or(0, |last| last + 1);
        let mut ranks_of: Vec<Vec<Rank>> = vec![Vec::new(); num_nodes];
        let mut local_index = Vec::with_capacity(node_of.len());
        for (rank, &node) in node_of.iter().enumerate() {
            local_index.push(ranks_of[node].len());
            ranks_of[node].push(Rank(rank));
        }
        let mut topology = Self { node_of, local_index, ranks_of, aligned_node_size: None };
        topology.aligned_node_size = topology.find_aligned_node_size();
        topology
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.node_of.len()
    }

    /// Number of nodes, those without ranks included.
    pub fn num_nodes(&self) -> usize {
        self.ranks_of.len()
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.node_of[rank.0]
    }

    /// The ranks of a node, rising.
    pub fn ranks_of(&self, node: usize) -> &[Rank] {
        &self.ranks_of[node]
    }

    /// Number of ranks on a node.
    pub fn node_size(&self, node: usize) -> usize {
        self.ranks_of[node].len()
    }

    /// Place of a rank among the ranks of its node, from 0.
    pub fn local_index(&self, rank: Rank) -> usize {
        self.local_index[rank.0]
    }

    /// The ranks of each node, where there are several nodes of one size, a power of two above 1,
    /// and ranks are numbered node by node: then the deterministic sum over a node's ranks is a
    /// part of the deterministic sum over all.
    pub fn aligned_node_size(&self) -> Option<usize> {
        self.aligned_node_size
    }

    fn find_aligned_node_size(&self) -> Option<usize> {
        let size = self.node_size(0);
        let aligned = size > 1 && size.is_power_of_two() && self.num_nodes() > 1;
        let in_order = || self.node_of.iter().enumerate().all(|(rank, &node)| node == rank / size);
        (aligned && self.num_ranks() == size * self.num_nodes() && in_order()).then_some(size)
    }

    /// Whether two ranks share a node.
    pub fn same_node(&self, one: Rank, other: Rank) -> bool {
        self.node_of(one) == self.node_of(other)
    }

    /// All ranks, rising.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.num_ranks()).map(Rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_nodes() {
        let topology = Topology::from_node_sizes(&[2, 0, 3]);
        assert_eq!((topology.num_ranks(), topology.num_nodes()), (5, 3));
        assert_eq!(
            (0..5).map(|rank| topology.node_of(Rank(rank))).collect::<Vec<_>>(),
            [0, 0, 2, 2, 2]
        );
        assert_eq!(
            (0..5).map(|rank| topology.local_index(Rank(rank))).collect::<Vec<_>>(),
            [0, 1, 0, 1, 2]
        );
        assert_eq!(topology.ranks_of(2), [Rank(2), Rank(3), Rank(4)]);
        assert_eq!((topology.node_size(0), topology.node_size(1)), (2, 0));
        assert!(topology.same_node(Rank(2), Rank(4)) && !topology.same_node(Rank(1), Rank(2)));
    }

    #[test]
    fn ranks_per_node_may_leave_a_remainder() {
        assert_eq!(Topology::with_ranks_per_node(5, 2), Topology::from_node_sizes(&[2, 2, 1]));
        assert_eq!(Topology::with_ranks_per_node(3, 0), Topology::one_node(3));
    }

    #[test]
    fn nodes_that_are_parts_of_the_tree() {
        let aligned =
            |node_of: &[usize]| Topology::from_node_of(node_of.to_vec()).aligned_node_size();
        assert_eq!(aligned(&[0, 0, 1, 1, 2, 2]), Some(2));
        for not in [
            &[0, 0][..],
            &[0, 1],
            &[0, 0, 0, 1, 1, 1],
            &[0, 1, 0, 1],
            &[0, 0, 1],
            &[1, 1, 0, 0],
            &[0, 0, 2, 2],
        ] {
            assert_eq!(aligned(not), None, "{not:?}");
        }
    }

    #[test]
    fn ranks_numbered_across_nodes() {
        let topology = Topology::from_node_of(vec![0, 1, 0, 1, 1]);
        assert_eq!(topology.ranks_of(1), [Rank(1), Rank(3), Rank(4)]);
        assert_eq!(topology.local_index(Rank(4)), 2);
    }
}
