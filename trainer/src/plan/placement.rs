//! Placement: where every row of every table lies, and how ranks exchange rows. Decided before any
//! memory is taken, from how frequent rows are; the same on every rank, because all ranks decide
//! from the same statistics.

use crate::config::validate::quoted;
use crate::config::{
    AllToAll, Compress, Config, DeduplicateChoice, DeviceChoice, IdsChoice, TransportChoice,
};
use crate::error::{Error, Result};
use crate::iteration::job::replicated_limit;
use crate::iteration::model::{dense_choice, table_specs};
use crate::iteration::ranks::{comm_options, tuned_comm_options};
use crate::plan::between::carrier;
use crate::system::input::read_text;
use crate::system::machine::Machine;
use crate::{Registry, plan};
use headlong_comm::Topology;
use headlong_comm::device::{NICS_IN_VAIN, goes_by_node};
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::cost::Costs;
use headlong_embedding::hybrid::split::{
    PoolChoice, PoolingOptions, Split, SplitOptions, pool_choice, split,
};
use headlong_embedding::hybrid::statistics::{Collector, Statistics, StatisticsOptions};
use headlong_embedding::hybrid::traffic::{Cluster, Exchange, IdSource, Merge};
use headlong_embedding::hybrid::{Partition, PoolAt};
use headlong_reader::Batch;
use std::sync::Arc;

/// Where rows lie, and how they are exchanged.
pub struct Placement {
    /// Where every row lies.
    pub partition: Arc<Partition>,
    /// The split and what it is expected to cost; none where one rank has everything.
    pub split: Option<Split>,
    /// Nodes that the ranks are on.
    pub num_nodes: usize,
    /// Where the bags of each table become vectors.
    pub pool_at: Vec<PoolAt>,
}

impl Placement {
    /// The placement of `config` among the ranks of `topology`, of tables that take what their
    /// kinds in `registry` say.
    pub fn new(
        config: &Config,
        table_rows: &[u64],
        topology: &Topology,
        statistics: Option<&Statistics>,
        registry: &Registry,
    ) -> Result<Self> {
        check_merging(config, topology)?;
        let specs = table_specs(config, table_rows);
        let (pooling, pool_at) = pooling(config, &specs, statistics);
        let num_nodes = topology.num_nodes();
        let statistics = match statistics {
            Some(statistics) if config.run.ranks > 1 => statistics,
            _ => {
                let partition = Arc::new(Partition::row_wise(&specs, config.run.ranks));
                return Ok(Self { partition, split: None, num_nodes, pool_at });
            }
        };
        let optimizer = config.optimizer.sparse.optimizer();
        let nodes: Vec<usize> = (0..num_nodes).map(|node| topology.node_size(node)).collect();
        let step = (config.train.batch_size * config.train.accumulate) as u64;
        let on_devices = config.run.device == DeviceChoice::Cuda;
        let bytes_of = |spec: &TableSpec| plan::table_needs(config, spec, registry).total_bytes();
        let table_bytes: Vec<u64> = specs.iter().map(bytes_of).collect();
        let options = SplitOptions {
            mode: config.run.hybrid,
            dense_bytes: (plan::dense_parameters(config) * config.sum_bytes() as u64).get(),
            sums_apart: on_devices && num_nodes == 1,
            gathered_bytes: dense_choice(config, config.run.ranks, on_devices)
                .norms
                .map(|_| (plan::dense_parameters(config) * 4_u64).get()),
            sum_bytes: config.sum_bytes(),
            wire_bytes: wire_bytes(config),
            replicated_limit_bytes: Some(replicated_limit(config)),
            merge: match config.comm.deduplicate {
                // Devices exchange in slots, of rows that each rank has merged.
                DeduplicateChoice::Auto if on_devices => Some(Merge::Rank),
                DeduplicateChoice::Auto => None,
                DeduplicateChoice::Off => Some(Merge::Off),
                DeduplicateChoice::Rank => Some(Merge::Rank),
                DeduplicateChoice::Node => Some(Merge::Node),
            },
            exchange: exchange(config, topology),
            ids: match config.comm.ids {
                IdsChoice::Auto if on_devices => Some(IdSource::Exchange),
                IdsChoice::Auto => None,
                IdsChoice::Exchange => Some(IdSource::Exchange),
                IdsChoice::Known => Some(IdSource::Known),
            },
            placements: &config.placement_choices(),
            pool_at: &pool_at,
            table_bytes: &table_bytes,
            ..SplitOptions::new(&specs, Cluster::new(&nodes), step, &optimizer)
        };
        let mut costs = costs(config, carrier(config, topology))?;
        if !on_devices {
            let transport = config.run.transport.name();
            let one_step = comm_options(config).one_step_bytes_of(transport, config.run.ranks);
            costs.direct_bytes = one_step as f64;
        }
        let mut split = split(statistics, &costs, &options)
            .map_err(Error::failed("the rows cannot be split"))?;
        for (table, choice) in split.tables.iter_mut().zip(pooling) {
            table.pooling = choice;
        }
        let partition = Partition::new(&specs, config.run.ranks, split.placements.clone())
            .map_err(Error::failed("the rows cannot be placed"))?;
        Ok(Self { partition: Arc::new(partition), split: Some(split), num_nodes, pool_at })
    }

    /// Equal where every row lies at the same place and is exchanged in the same way.
    pub fn fingerprint(&self) -> u64 {
        let placements: Vec<_> = self.partition.placements().collect();
        let variant = self.split.as_ref().map(|split| split.variant);
        let text = serde_json::to_vec(&(placements, variant, &self.pool_at)).unwrap_or_default();
        xxhash_rust::xxh3::xxh3_64(&text)
    }

    /// `config` with what it left to cost decided.
    pub fn decide(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.decide_pooling(&self.pool_at);
        let Some(split) = &self.split else { return config };
        let comm = &mut config.comm;
        comm.deduplicate = match split.variant.merge {
            Merge::Off => DeduplicateChoice::Off,
            Merge::Rank => DeduplicateChoice::Rank,
            Merge::Node => DeduplicateChoice::Node,
        };
        let merges_between_devices =
            split.variant.merge == Merge::Node && config.run.device == DeviceChoice::Cuda;
        comm.exchange = match split.variant.exchange {
            // Inside nodes and along rails, by the two halves of such an exchange.
            _ if merges_between_devices => AllToAll::Hierarchical,
            Exchange::Flat => AllToAll::Flat,
            Exchange::Hierarchical => AllToAll::Hierarchical,
        };
        comm.ids = match split.variant.ids {
            IdSource::Exchange => IdsChoice::Exchange,
            IdSource::Known => IdsChoice::Known,
        };
        config
    }
}

/// Refuses by name what is asked for (`comm.deduplicate = "node"`) of nodes that cannot merge rows.
/// Where there is one node, or each has one rank, rows are merged on ranks: nothing else would be
/// different.
///
/// # Errors
/// [`Error::Contradiction`].
pub fn check_merging(config: &Config, topology: &Topology) -> Result<()> {
    let sizes = || (0..topology.num_nodes()).map(|node| topology.node_size(node));
    let has_levels = topology.num_nodes() > 1 && sizes().any(|size| size > 1);
    if config.comm.deduplicate != DeduplicateChoice::Node || !has_levels {
        return Ok(());
    }
    let on_devices = config.run.device == DeviceChoice::Cuda;
    let reason = if topology.aligned_node_size().is_none() {
        "rows are merged in nodes of equally many ranks, a power of two: sums over ranks are a \
         binary tree"
    } else if on_devices && sizes().any(|size| size > 8) {
        "devices merge rows in nodes of up to eight ranks: their sums are added up in eights"
    } else if on_devices && !goes_by_node(topology, config.comm.exchange) {
        "devices merge rows where they exchange inside nodes first (comm.exchange = \
         \"hierarchical\")"
    } else {
        return Ok(());
    };
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let of = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let setting = format!("comm.deduplicate = {}", quoted(&config.comm.deduplicate));
    let nodes = format!("{} nodes of {of} ranks", topology.num_nodes());
    Err(Error::contradiction(setting, nodes, reason))
}

/// Refuses what is named to carry between these nodes and cannot, as their ranks do when they come
/// together.
///
/// # Errors
/// [`Error::Contradiction`].
pub fn check_carrier(config: &Config, topology: &Topology) -> Result<()> {
    let nodes = format!("{} nodes", topology.num_nodes());
    let on_devices = config.run.device == DeviceChoice::Cuda;
    match config.run.transport {
        _ if topology.num_nodes() < 2 => Ok(()),
        TransportChoice::Shm => Err(Error::contradiction(
            "run.transport = \"shm\"",
            nodes,
            "ranks of several machines share no memory",
        )),
        TransportChoice::Verbs if on_devices && !goes_by_node(topology, config.comm.exchange) => {
            Err(Error::contradiction(
                "run.transport = \"verbs\"",
                format!("comm.exchange = {} on {nodes}", quoted(&config.comm.exchange)),
                NICS_IN_VAIN,
            ))
        }
        _ => Ok(()),
    }
}

/// Bytes of one element of a vector on its way.
fn wire_bytes(config: &Config) -> usize {
    if config.compress() == Compress::None { 4 } else { 2 }
}

/// What each table would send, with its bags pooled on the rank and at the owner (none where it has
/// no bags, or nothing is known of them); and where they become vectors.
fn pooling(
    config: &Config,
    specs: &[TableSpec],
    statistics: Option<&Statistics>,
) -> (Vec<Option<PoolChoice>>, Vec<PoolAt>) {
    let options = PoolingOptions {
        specs,
        placements: &config.placement_choices(),
        batch_size: (config.train.batch_size * config.train.accumulate) as u64,
        num_parts: config.sum_blocks(),
        wire_bytes: wire_bytes(config),
        sum_bytes: config.sum_bytes(),
    };
    let choice = |column| {
        let statistics = statistics.filter(|_| config.max_ids_per_sample(column) > 1)?;
        Some(pool_choice(statistics, &options, column))
    };
    let choices: Vec<_> = (0..specs.len()).map(choice).collect();
    let mut pool_at = config.pooled_at();
    for (column, choice) in choices.iter().enumerate() {
        if let Some(choice) = choice.filter(|_| config.pools_by_cost(column)) {
            pool_at[column] = choice.at;
        }
    }
    (choices, pool_at)
}

/// Counts the rows of batches that lie in memory.
pub fn statistics_of(config: &Config, table_rows: &[u64], batches: &[Batch]) -> Statistics {
    let mut collector =
        Collector::new(&table_specs(config, table_rows), &StatisticsOptions::default());
    for batch in batches {
        count(&mut collector, batch);
    }
    collector.finish()
}

pub fn count(collector: &mut Collector, batch: &Batch) {
    for (table, bags) in batch.sparse.iter().enumerate() {
        collector.add(table, &bags.values);
    }
    collector.end_batch(batch.num_samples);
}

/// How rows are exchanged, where that is not left to costs.
fn exchange(config: &Config, topology: &Topology) -> Option<Exchange> {
    let by_node = match config.comm.exchange {
        AllToAll::Auto if config.run.device == DeviceChoice::Cuda => {
            goes_by_node(topology, AllToAll::Auto)
        }
        AllToAll::Auto => return None,
        asked => asked == AllToAll::Hierarchical,
    };
    Some(if by_node { Exchange::Hierarchical } else { Exchange::Flat })
}

/// Measured costs, or the defaults of what carries the bytes.
fn costs(config: &Config, carrier: &str) -> Result<Costs> {
    let Some(path) = &config.hybrid.latency_table else {
        return Ok(tuned_costs(config, carrier)?.unwrap_or_else(|| Costs::of_transport(carrier)));
    };
    let text = read_text(path).map_err(Error::io("read", path))?;
    toml::from_str(&text).map_err(|error| {
        Error::config("hybrid.latency_table", format!("{}: {}", path.display(), error.message()))
    })
}

/// What `comm.tuning` says about what carries the run's bytes, where it says anything.
fn tuned_costs(config: &Config, carrier: &str) -> Result<Option<Costs>> {
    let tuning = tuned_comm_options(config)?.tuning;
    let Some(tuning) = tuning else { return Ok(None) };
    let device = device_name(config);
    Ok(plan::tuned::costs(&tuning, carrier, device.as_deref()))
}

/// The name of this machine's CUDA device, where the configuration is for one. A plan may be made
/// where there is none.
fn device_name(config: &Config) -> Option<String> {
    Some(Machine::detect_with(config.run.device).ok()?.device?.name)
}

/// One line about where the costs of exchanges come from; nothing where they are assumed between
/// processors.
pub fn source_of_costs(config: &Config, topology: &Topology) -> Result<String> {
    let transport = carrier(config, topology);
    Ok(match (&config.hybrid.latency_table, &config.comm.tuning) {
        (Some(path), _) => {
            format!("costs of exchanges: {} (hybrid.latency_table)\n", path.display())
        }
        (None, Some(path)) if tuned_costs(config, transport)?.is_some() => {
            format!(
                "costs of exchanges over {transport}: measured, {} (comm.tuning)\n",
                path.display()
            )
        }
        (None, Some(path)) => {
            let device = device_name(config).map_or(String::new(), |name| format!(" on {name}"));
            format!(
                "costs of exchanges: assumed, because {} (comm.tuning) does not hold all-reduce \
                 and all-to-all over {transport}{device}\n",
                path.display()
            )
        }
        (None, None) if config.run.device == DeviceChoice::Cuda => format!(
            "costs of exchanges over {transport}: assumed, of GPUs joined by NVLink and nodes by \
             200 Gbit/s a GPU (`headlong bench tune --device cuda` measures them)\n"
        ),
        (None, None) => String::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_in_which_devices_cannot_merge_rows_are_refused_with_the_reason() {
        let mut config = Config::default();
        config.run.device = DeviceChoice::Cuda;
        config.comm.deduplicate = DeduplicateChoice::Node;
        let reason = |nodes, each| {
            let topology = Topology::from_node_sizes(&vec![each; nodes]);
            check_merging(&config, &topology).err().map(|error| error.to_string())
        };
        assert_eq!(reason(256, 8), None);
        for (nodes, each, expected) in [
            (2, 6, "equally many ranks, a power of two"),
            (2, 16, "nodes of up to eight ranks"),
            (257, 8, "comm.exchange = \"hierarchical\""),
        ] {
            let reason = reason(nodes, each).expect("refused");
            assert!(reason.contains(expected), "{nodes} nodes of {each}: {reason}");
        }
    }

    #[test]
    fn what_cannot_carry_between_nodes_or_as_asked_is_refused_by_name() {
        let refused = |settings: &[&str], nodes: usize| {
            let mut config = crate::config::preset::preset("tiny").unwrap();
            config.set_all(&["run.ranks=4"]).unwrap();
            config.set_all(settings).unwrap();
            let topology = Topology::from_node_sizes(&vec![4 / nodes; nodes]);
            let checked = config.validate().and_then(|()| check_carrier(&config, &topology));
            checked.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let (shm, verbs) = ("run.transport=shm", "run.transport=verbs");
        assert_eq!(refused(&[shm], 1), "");
        assert!(refused(&[shm], 2).contains("ranks of several machines share no memory"));
        let flat = ["run.device=cuda", verbs, "comm.exchange=flat"];
        assert!(refused(&flat, 2).contains(NICS_IN_VAIN));
        assert_eq!(refused(&flat, 1), "");
        assert!(refused(&[verbs, "comm.encrypt_data=true"], 1).contains("over TCP alone"));
        let required = "comm.verbs.gpudirect=require";
        assert!(refused(&["run.device=cpu", verbs, required], 1).contains("gpudirect"));
        assert_eq!(refused(&["run.device=cuda", verbs, required], 1), "");
    }
}
