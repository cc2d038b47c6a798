//! Operations that follow each other on a device's stream in one exchange between devices: kernels,
//! what NCCL does in a group, barriers in memory. A test of the trainer counts them.

use crate::practice::{Packing, Practice};
use headlong_embedding::hybrid::traffic::AllReduce;

impl Practice {
    /// Of an all-to-all.
    pub fn all_to_all_operations(&self) -> usize {
        match self.packing {
            Packing::None => 1,
            Packing::Slots { by_node: false } => self.flat_operations(),
            // Strips are filled and sent, come and are taken apart.
            Packing::Slots { by_node: true } => self.inside_operations() + 2 + self.rails(),
        }
    }

    /// Of the two halves of one, inside nodes and along rails, where nodes merge between them.
    pub fn halves_operations(&self) -> usize {
        let inside = if self.strips.inside { 1 } else { 3 };
        inside + 2 + self.rails()
    }

    /// Of an all-reduce, without the update of the rows that were summed.
    pub fn all_reduce_operations(&self, way: AllReduce) -> usize {
        // A strip is begun, filled, sent, and looked at when it has come.
        let exchange = 3 + self.rails();
        match (self.packing, way) {
            (Packing::None, _) => 1,
            (Packing::Slots { by_node: false }, _) => self.flat_operations(),
            // In two steps: the sum of the node, that of all nodes between two exchanges, its parts
            // to one place, and in memory to all peers.
            (Packing::Slots { by_node: true }, AllReduce::Hierarchical) => {
                let to_peers = usize::from(!self.strips.inside);
                2 + 1 + exchange + 1 + exchange + 1 + to_peers
            }
            // What fills the strip is the sum of the node.
            (Packing::Slots { by_node: true }, _) => 2 + exchange + 1,
        }
    }

    /// Of sums of which each rank wants a part, and of parts that all want, on so many nodes that
    /// are subtrees of the tree.
    pub fn parts_operations(&self, nodes: usize) -> [usize; 2] {
        match self.packing {
            Packing::None => [1, 1],
            Packing::Slots { by_node: false } => [self.flat_operations(); 2],
            Packing::Slots { by_node: true } => {
                // A strip is begun, filled for each node, sent, and looked at when it has come; one
                // sum of the own node, one of all nodes.
                let reduce = self.inside_operations() + 1 + nodes + self.rails() + 1 + 1;
                // One strip is begun and filled; each that comes is copied, in memory to all peers
                // as what is this rank's.
                let to_peers = usize::from(!self.strips.inside);
                let gather = self.inside_operations() + 2 + self.rails() + 1 + nodes - 1 + to_peers;
                [reduce, gather]
            }
        }
    }

    /// NCCL does it in one; in memory a kernel works between two barriers.
    fn flat_operations(&self) -> usize {
        if self.strips.inside || self.strips.between { 1 } else { 3 }
    }

    /// NCCL brings what peers have; their memory is read between two barriers.
    fn inside_operations(&self) -> usize {
        if self.strips.inside { 1 } else { 2 }
    }

    /// NCCL sends and receives in one; NICs are waited for, told, and waited for.
    fn rails(&self) -> usize {
        if self.strips.between { 1 } else { 3 }
    }
}
