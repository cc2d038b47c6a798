//! Which rank lives on which node.

/// One of the workers that train one model together, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub usize);

/// Nodes and the ranks on them. Nodes may hold different numbers of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    node_of: Vec<usize>,
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
        let node_of: Vec<usize> = nodes.flat_map(|(node, &ranks)| std::iter::repeat_n(node, ranks)).collect();
        assert!(!node_of.is_empty(), "a topology has at least one rank");
        Self { node_of }
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.node_of.len()
    }

    /// The node of a rank.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.node_of[rank.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_nodes() {
        let topology = Topology::from_node_sizes(&[2, 0, 3]);
        assert_eq!(topology.num_ranks(), 5);
        assert_eq!((0..5).map(|rank| topology.node_of(Rank(rank))).collect::<Vec<_>>(), [0, 0, 2, 2, 2]);
    }
}
