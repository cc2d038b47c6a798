//! How a configuration is trained on ranks that are not here: what the planner simulates.

use crate::config::{
    AllToAll, Compress, Config, DeduplicateChoice, DeviceChoice, Hybrid, IdsChoice, Precision,
    ScheduleChoice, TransportChoice,
};
use headlong_comm::Topology;
use headlong_comm::device::goes_by_node;
use headlong_embedding::hybrid::split::HybridMode;
use headlong_embedding::hybrid::traffic::{AllReduce, Cluster, Exchange, IdSource, Merge, Variant};
use headlong_planner::practice::{Captured, Packing, Practice, Strips};

/// What ranks of `shape` do with `config`, whose device is decided.
pub(super) fn of(config: &Config, shape: &Cluster) -> Practice {
    // The ranks are the cluster's, whatever the configuration says.
    let compress = config.compress_of(config.train.sum_blocks.unwrap_or(shape.num_ranks()));
    let narrow = compress == Compress::Bf16;
    let base = Practice {
        wire_bytes: if narrow { 2.0 } else { 4.0 },
        hybrid: match config.run.hybrid {
            Hybrid::Off | Hybrid::Rows(0) => HybridMode::Off,
            Hybrid::Auto => HybridMode::Auto,
            Hybrid::Rows(rows) => HybridMode::Rows(rows),
        },
        captured: match config.run.schedule_used() {
            ScheduleChoice::Captured => Captured::Step,
            _ => Captured::None,
        },
        overlapped: config.run.schedule_used() != ScheduleChoice::Serial,
        ..Practice::plain()
    };
    match config.run.device {
        DeviceChoice::Cuda => between_devices(config, shape, narrow, base),
        _ => between_hosts(config, shape, narrow, base),
    }
}

/// Devices merge on the rank or not at all, and ask for rows. Sums travel as f32.
fn between_devices(config: &Config, shape: &Cluster, rounds: bool, base: Practice) -> Practice {
    let sizes: Vec<usize> = (0..shape.num_nodes()).map(|node| shape.node_size(node)).collect();
    let by_node = goes_by_node(&Topology::from_node_sizes(&sizes), config.comm.exchange);
    Practice {
        variant: Variant {
            merge: match config.comm.deduplicate {
                DeduplicateChoice::Off => Merge::Off,
                _ => Merge::Rank,
            },
            exchange: if by_node { Exchange::Hierarchical } else { Exchange::Flat },
            ids: IdSource::Exchange,
        },
        strips: strips(config.run.transport, by_node, shape.num_nodes()),
        packing: Packing::Slots { by_node, rounds },
        // NCCL sums in its own way; by node, every node's sums go to all others.
        all_reduce: match by_node {
            true => AllReduce::HierarchicalDirect,
            false => AllReduce::Hierarchical,
        },
        ..base
    }
}

/// Links that are NCCL's carry strips. Ranks of one node are threads of one process, which use each
/// other's memory, unless a transport is named that joins processes; several nodes have a process
/// for each rank, and NCCL inside of them.
fn strips(transport: TransportChoice, by_node: bool, nodes: usize) -> Strips {
    let of_one_process = matches!(transport, TransportChoice::Auto | TransportChoice::Local);
    let inside = nodes > 1 || !of_one_process;
    let by_nics = by_node && transport == TransportChoice::Verbs;
    Strips { inside, between: nodes > 1 && !by_nics }
}

/// By cost, rows are merged in the node wherever nodes have several ranks and can sum for
/// themselves: it sends least between nodes.
fn between_hosts(config: &Config, shape: &Cluster, narrow: bool, base: Practice) -> Practice {
    let by_node = shape.has_levels() && shape.nodes_are_subtrees();
    let is_flat = match config.comm.exchange {
        AllToAll::Auto => !shape.has_levels(),
        asked => asked == AllToAll::Flat,
    };
    Practice {
        variant: Variant {
            merge: match config.comm.deduplicate {
                DeduplicateChoice::Off => Merge::Off,
                DeduplicateChoice::Rank => Merge::Rank,
                DeduplicateChoice::Node if by_node => Merge::Node,
                DeduplicateChoice::Auto if by_node => Merge::Node,
                DeduplicateChoice::Node | DeduplicateChoice::Auto => Merge::Rank,
            },
            exchange: if is_flat { Exchange::Flat } else { Exchange::Hierarchical },
            ids: match config.comm.ids {
                IdsChoice::Known => IdSource::Known,
                IdsChoice::Auto | IdsChoice::Exchange => IdSource::Exchange,
            },
        },
        sum_bytes: if narrow && config.train.precision == Precision::Bf16 { 2.0 } else { 4.0 },
        ..base
    }
}
