//! How a configuration is trained on ranks that are not here: what the planner simulates.

use crate::config::{
    AllToAll, Compress, Config, DeduplicateChoice, DeviceChoice, HybridMode, IdsChoice,
    PoolAtChoice, Precision, ScheduleChoice, TransportChoice,
};
use crate::iteration::model::dense_choice;
use crate::plan::between::Between;
use headlong_comm::Topology;
use headlong_comm::device::goes_by_node;
use headlong_embedding::hybrid::PoolAt;
use headlong_embedding::hybrid::split::may_pool_at_owner;
use headlong_embedding::hybrid::traffic::{AllReduce, Cluster, Exchange, IdSource, Merge, Variant};
use headlong_planner::bags::{ElementBytes, choice};
use headlong_planner::practice::{Bags, Captured, Packing, Practice, Strips, Sums};
use headlong_planner::schedule::Steps;
use headlong_planner::workload::Workload;

/// What ranks of `shape` do with `config`, whose device is decided, in the step `workload`; and
/// `config` with what it left to bytes decided.
pub(super) fn decided(config: &Config, workload: &Workload, shape: &Cluster) -> (Practice, Config) {
    let (mut practice, mut config) = (of(config, shape), config.clone());
    practice.bags = bags(&config, workload, (shape, &practice));
    if practice.bags.is_empty() {
        return (practice, config);
    }
    if practice.num_pooled() > 0 {
        // Nodes merge rows, and owners send sums of them.
        practice.variant.merge = practice.variant.merge.min(Merge::Rank);
    }
    let at = |table| if practice.pools(table) { PoolAt::Owner } else { PoolAt::Rank };
    config.decide_pooling(&(0..workload.tables.len()).map(at).collect::<Vec<_>>());
    (practice, config)
}

/// Where the bags of tables of several ids a sample become vectors, and what either way sends, of
/// as many ranks as there are sum blocks.
fn bags(config: &Config, workload: &Workload, of: (&Cluster, &Practice)) -> Vec<Bags> {
    let (shape, practice) = of;
    let mut config = config.clone();
    let parts = config.train.sum_blocks.unwrap_or(shape.num_ranks());
    config.train.sum_blocks = Some(parts);
    let bytes = ElementBytes { vector: practice.wire_bytes, sum: practice.sum_bytes };
    let of_table = |table: usize| {
        let load = &workload.tables[table];
        if load.hotness <= 1.0 {
            return None;
        }
        may_pool_at_owner(&config.table_spec(table, load.rows), load.choice).ok()?;
        let choice = choice(load, workload.samples, parts, bytes);
        let at = match config.pool_at(table) {
            PoolAtChoice::Owner => PoolAt::Owner,
            PoolAtChoice::Auto if config.pools_by_cost(table) => choice.at,
            PoolAtChoice::Auto | PoolAtChoice::Rank => PoolAt::Rank,
        };
        Some(Bags { table, at, choice })
    };
    (0..workload.tables.len()).filter_map(of_table).collect()
}

/// What ranks of `shape` do with `config`, wherever bags are pooled.
fn of(config: &Config, shape: &Cluster) -> Practice {
    // The ranks are the cluster's, whatever the configuration says.
    let blocks = config.train.sum_blocks.unwrap_or(shape.num_ranks());
    let narrow = config.compress_of(blocks) != Compress::None;
    let on_device = config.run.device == DeviceChoice::Cuda;
    let overlapped = config.run.schedule_used() != ScheduleChoice::Serial;
    let base = Practice {
        wire_bytes: if narrow { 2.0 } else { 4.0 },
        sum_bytes: config.sum_bytes_of(blocks, on_device) as f64,
        hybrid: match config.run.hybrid {
            HybridMode::Rows(0) => HybridMode::Off,
            asked => asked,
        },
        captured: match config.run.schedule_used() {
            ScheduleChoice::Captured => Captured::Step,
            _ => Captured::None,
        },
        overlapped,
        border: Steps::of(on_device, overlapped),
        shards_optimizer: dense_choice(config, shape.num_ranks(), on_device).norms.is_some(),
        sums: match config.train.precision {
            // All gradients are looked at before a row moves.
            Precision::F16 => Sums::ThenRows,
            _ => Sums::WithRows,
        },
        ..Practice::plain()
    };
    match on_device {
        true => between_devices(config, shape, base),
        false => between_hosts(config, shape, base),
    }
}

/// Devices merge on the rank unless asked to merge in the node or not at all, and ask for rows.
fn between_devices(config: &Config, shape: &Cluster, base: Practice) -> Practice {
    let sizes: Vec<usize> = (0..shape.num_nodes()).map(|node| shape.node_size(node)).collect();
    let topology = Topology::from_node_sizes(&sizes);
    let by_node = goes_by_node(&topology, config.comm.exchange);
    Practice {
        variant: Variant {
            merge: match config.comm.deduplicate {
                DeduplicateChoice::Off => Merge::Off,
                DeduplicateChoice::Node if topology.aligned_node_size().is_some() => Merge::Node,
                _ => Merge::Rank,
            },
            exchange: if by_node { Exchange::Hierarchical } else { Exchange::Flat },
            ids: IdSource::Exchange,
        },
        strips: strips(config.run.transport, by_node, shape.num_nodes() > 1),
        packing: Packing::Slots { by_node },
        sums: match shape.num_nodes() {
            1 => Sums::RowsFirst,
            _ => Sums::ThenRows,
        },
        // NCCL sums in its own way; by node, small sums of every node go to all others.
        all_reduce: match by_node {
            true => AllReduce::HierarchicalDirect,
            false => AllReduce::Hierarchical,
        },
        ..base
    }
}

/// Links that are NCCL's carry strips.
fn strips(transport: TransportChoice, by_node: bool, has_nodes: bool) -> Strips {
    let between = Between::of(transport, has_nodes, by_node);
    Strips {
        inside: between == Between::Nccl,
        between: has_nodes && matches!(between, Between::Nccl | Between::MemoryAndNccl),
    }
}

/// By cost, rows are merged in the node wherever nodes have several ranks and can sum for
/// themselves: it sends least between nodes.
fn between_hosts(config: &Config, shape: &Cluster, base: Practice) -> Practice {
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
        ..base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_comm::device::sums_in_two_steps;
    use headlong_embedding::hybrid::cost::Costs;

    /// Of settings on a device or on processors.
    fn practice(settings: &[&str], device: DeviceChoice, shape: (usize, usize)) -> Practice {
        let mut config = Config::default();
        config.set_all(settings).unwrap();
        config.run.device = device;
        config.validate().unwrap();
        of(&config, &Cluster::even(shape.0, shape.1))
    }

    #[test]
    fn elements_are_as_wide_as_the_run_sends_them() {
        use DeviceChoice::{Cpu, Cuda};
        let widths = |settings: &[&str], device| {
            let Practice { wire_bytes, sum_bytes, .. } = practice(settings, device, (2, 4));
            (wire_bytes, sum_bytes)
        };
        let (bf16, f16) = (["train.precision=bf16"], ["train.precision=f16"]);
        assert_eq!(widths(&[], Cuda), (4.0, 4.0));
        assert_eq!(widths(&bf16, Cuda), (2.0, 2.0));
        let switches = ["train.precision=bf16", "comm.nccl.collnet=require"];
        assert_eq!(widths(&switches, Cuda), (2.0, 4.0));
        assert_eq!(widths(&f16, Cuda), (2.0, 2.0));
        assert_eq!(widths(&f16, Cpu), (2.0, 2.0));
        assert_eq!(widths(&["train.precision=f16", "comm.compress=none"], Cuda), (4.0, 4.0));
        assert_eq!(widths(&["train.precision=f16", "comm.compress=bf16"], Cuda), (2.0, 4.0));
        assert_eq!(widths(&["train.precision=f16", "train.sum_blocks=1"], Cuda), (4.0, 4.0));
        assert_eq!(widths(&["comm.compress=bf16"], Cuda), (2.0, 4.0));
        assert_eq!(widths(&["comm.compress=bf16"], Cpu), (2.0, 4.0));
        assert_eq!(widths(&bf16, Cpu), (2.0, 2.0));
        assert_eq!(widths(&["train.precision=bf16", "comm.compress=none"], Cpu), (4.0, 4.0));
    }

    #[test]
    fn sums_are_made_as_the_schedule_has_them() {
        let of = |settings: &[&str], device, shape| practice(settings, device, shape).sums;
        let f16 = ["train.precision=f16"];
        assert_eq!(of(&[], DeviceChoice::Cuda, (1, 8)), Sums::RowsFirst);
        assert_eq!(of(&f16, DeviceChoice::Cuda, (1, 8)), Sums::RowsFirst);
        assert_eq!(of(&[], DeviceChoice::Cuda, (2, 4)), Sums::ThenRows);
        assert_eq!(of(&[], DeviceChoice::Cpu, (1, 8)), Sums::WithRows);
        assert_eq!(of(&f16, DeviceChoice::Cpu, (2, 4)), Sums::ThenRows);
    }

    #[test]
    fn devices_exchange_by_node_where_they_can_and_in_strips_where_nccl_carries() {
        let of = |settings: &[&str], nodes, each| {
            let practice = practice(settings, DeviceChoice::Cuda, (nodes, each));
            let Strips { inside, between } = practice.strips;
            (practice.variant.exchange, practice.all_reduce, inside, between)
        };
        use AllReduce::{Hierarchical, HierarchicalDirect};
        let by_node = Exchange::Hierarchical;
        assert_eq!(of(&[], 1, 8), (Exchange::Flat, Hierarchical, false, false));
        let nccl = ["run.transport=nccl"];
        assert_eq!(of(&nccl, 1, 8), (Exchange::Flat, Hierarchical, true, false));
        assert_eq!(of(&[], 14, 8), (by_node, HierarchicalDirect, false, true));
        let verbs = ["run.transport=verbs"];
        assert_eq!(of(&verbs, 14, 8), (by_node, HierarchicalDirect, false, false));
        let flat = ["comm.exchange=flat"];
        assert_eq!(of(&flat, 14, 8), (Exchange::Flat, Hierarchical, true, true));
        assert_eq!(of(&[], 128, 8), (by_node, HierarchicalDirect, false, true));
        let asked = ["comm.exchange=hierarchical"];
        assert_eq!(of(&asked, 512, 8).0, by_node);
        assert_eq!(of(&[], 512, 8).0, Exchange::Flat);
        // Where nodes are no subtrees, the parts of all ranks cross.
        assert_eq!([10, 12].map(|nodes| of(&[], nodes, 6).0), [by_node, Exchange::Flat]);
        // Nodes of more devices than machines have.
        assert_eq!(of(&[], 2, 17), (Exchange::Flat, Hierarchical, true, true));
    }

    #[test]
    fn sums_by_node_take_the_steps_that_devices_take() {
        use AllReduce::{Hierarchical, HierarchicalDirect};
        let costs = Costs { all_reduce: HierarchicalDirect, direct_bytes: 0.0, ..Costs::gpus() };
        for (nodes, each) in [(2, 8), (3, 8), (14, 8), (64, 8), (16, 4), (3, 3)] {
            let (shape, sizes) = (Cluster::even(nodes, each), vec![each; nodes]);
            let topology = Topology::from_node_sizes(&sizes);
            for len in (0..24).map(|power| 1 << power) {
                let way = costs.all_reduce_way(&shape, 4.0 * f64::from(len));
                let two_steps = sums_in_two_steps(&topology, 4 * len as usize);
                let expected = if two_steps { Hierarchical } else { HierarchicalDirect };
                assert_eq!(way, expected, "{nodes} nodes of {each}, {len} numbers");
            }
        }
    }

    #[test]
    fn merging_hybrid_and_schedule_are_those_of_the_run() {
        use DeviceChoice::{Cpu, Cuda};
        let of = |settings: &[&str], device| {
            let found = practice(settings, device, (2, 4));
            (found.variant.merge, found.captured, found.overlapped)
        };
        assert_eq!(of(&[], Cuda), (Merge::Rank, Captured::Step, true));
        assert_eq!(of(&["comm.deduplicate=off"], Cuda), (Merge::Off, Captured::Step, true));
        let serial = ["run.schedule=serial"];
        assert_eq!(of(&serial, Cuda), (Merge::Rank, Captured::None, false));
        let overlapped = ["run.schedule=overlapped"];
        assert_eq!(of(&overlapped, Cuda), (Merge::Rank, Captured::None, true));
        assert_eq!(of(&[], Cpu), (Merge::Node, Captured::None, false));
        let rows = ["run.hybrid=rows=7"];
        assert_eq!(practice(&rows, Cuda, (1, 2)).hybrid, HybridMode::Rows(7));
        assert_eq!(practice(&["run.hybrid=off"], Cuda, (1, 2)).hybrid, HybridMode::Off);
        let border = |settings: &[&str], device| practice(settings, device, (2, 4)).border;
        assert_eq!([border(&[], Cuda), border(&overlapped, Cuda)], [Steps::Overlap; 2]);
        assert_eq!([border(&serial, Cuda), border(&overlapped, Cpu)], [Steps::Barrier; 2]);
    }
}
