//! What the memory of a run goes to.

use super::between::Between;
use super::{Count, MemoryUse, NetworkPlan, OfRank, TablePlan, dense_parameters};
use crate::config::{
    Compress, Config, DeduplicateChoice, Feature, Ids, IdsChoice, OrderChoice, PoolAtChoice,
};
use crate::data::DeviceRows;
use crate::iteration::model::{SlotBytes, kept_bytes, slot_bytes};
use headlong_comm::Topology;
use headlong_comm::device::{goes_by_node, longest_block_of_sums};
use headlong_embedding::hybrid::{SlotOptions, SlotTable};
use headlong_verbs::SLOTS_OF_RAILS;

/// Bytes of text that one parsing thread holds: a decoded block and its parsed rows.
pub const READER_BLOCK_BYTES: u64 = 8 << 20;

/// Bytes of everything of a process that no other line counts: the program, stacks, file buffers,
/// messages on their way, the evaluation's scores.
const PROGRAM_BYTES: u64 = 48 << 20;

/// Bytes of one entry of the maps that hold a dictionary or admitted ids: key, row, count, at 7/8
/// occupancy at worst after doubling.
const MAP_ENTRY_BYTES: u64 = 37;

/// Bytes of one looked-up row in a routing plan: keys twice for sorting, unique rows, samples,
/// starts.
const ROUTE_ENTRY_BYTES: u64 = 32;
/// On a device, for each of them and each row that a rank is asked for: what tiles of entries
/// publish.
const TILE_ENTRY_BYTES: u64 = 2;
/// As `ROUTE_ENTRY_BYTES`, for each id of bags of several: positions, samples and weights.
const BAG_ENTRY_BYTES: u64 = 12;
/// Among several ranks, bytes for each id besides: places, owners, what is asked for.
const REQUEST_BYTES: u64 = 40;
/// Bytes for each row that a rank is asked for: keys twice for sorting, rows, parts, lists.
const ASKED_BYTES: u64 = 40;
/// Where bags are pooled at the owner, bytes for each id: places, leaves, words, parts; and for
/// each one that a rank is asked for: keys twice for sorting, words twice, bags, rows, entries.
const OWN_WORD_BYTES: u64 = 56;
const ASKED_WORD_BYTES: u64 = 64;
/// Bytes for each frequent row, by which its place is found.
const PLACE_BYTES: u64 = 40;

/// Batches that the iteration holds: of now, of next, of an evaluation.
const BATCH_SLOTS: u64 = 3;
/// Batches of an evaluation that are read ahead, and the one that is evaluated.
const EVALUATION_BATCHES: u64 = 4;

/// How a job's memory is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sharing {
    pub(super) ranks: usize,
    /// Nodes that they are on.
    pub(super) nodes: usize,
    /// Whether each is a process of its own: then nothing that a process has once is shared.
    pub(super) separate: bool,
    pub(super) on_device: bool,
    /// What the rank with most rows has; none: rows are divided evenly.
    pub(super) rows: Option<OfRank>,
    /// Bytes of data that stay in memory.
    pub(super) kept_bytes: u64,
    /// Rows of the training data, where known.
    pub(super) data_rows: Option<u64>,
    /// Rows whose batches stay on devices.
    pub(super) device_rows: DeviceRows,
}

/// What the memory of the rank goes to that needs most. What a process has once is counted to each
/// of its ranks in equal parts.
pub(super) fn of_rank(
    config: &Config,
    tables: &[TablePlan],
    threads: usize,
    sharing: &Sharing,
) -> MemoryUse {
    let ranks = sharing.ranks;
    let slots = slot_bytes(config, ranks, sharing.on_device);
    let lookups = Lookups::of(config, tables, &slots, sharing);
    let optimizer = config.optimizer.dense.optimizer();
    let dense_states = slots.part.map_or_else(
        || dense_parameters(config) * optimizer.state_bytes(1, 1),
        |part| Count::from(part) * optimizer.states().len(),
    );
    let (weights, states) = rows_of_rank(tables, sharing);
    let of_process = |bytes: Count| if sharing.separate { bytes } else { bytes.share(ranks) };
    let table_rows: Vec<u64> = tables.iter().map(|table| table.rows).collect();
    MemoryUse {
        table_weight_bytes: weights,
        table_state_bytes: states,
        dense_bytes: Count::from(slots.parameters) + dense_states,
        exchange_bytes: lookups.exchange_bytes,
        activation_bytes: Count::from(slots.activations)
            + lookups.route_bytes
            + batches(config, &slots),
        kept_batch_bytes: kept_batch_bytes(config, &slots, sharing),
        reader_bytes: of_process(
            reader_bytes(config, threads, sharing) + config.multi_hot_bytes(&table_rows),
        ),
        id_map_bytes: of_process(id_map_bytes(config, tables)),
        other_bytes: of_process(Count::from(PROGRAM_BYTES)) + network_bytes(config, sharing),
    }
}

/// What connections take where each rank is a process: of rank 0, which has most.
fn network_bytes(config: &Config, sharing: &Sharing) -> Count {
    let network = NetworkPlan::new(config, sharing.nodes, sharing.on_device);
    let network = network.filter(|_| sharing.separate);
    network.map_or(Count::ZERO, |network| Count::from(network.bytes_of_rank_0))
}

/// Weights and optimiser states of one rank.
fn rows_of_rank(tables: &[TablePlan], sharing: &Sharing) -> (Count, Count) {
    let weights: Count = tables.iter().map(|table| table.weight_bytes).sum();
    let states: Count = tables.iter().map(|table| table.state_bytes).sum();
    let Some(of) = &sharing.rows else {
        return (weights.share(sharing.ranks), states.share(sharing.ranks));
    };
    let own = Count::from(of.bytes_of_rows) - of.frequent_bytes;
    let part = weights.as_f64() / (weights + states).as_f64().max(1.0);
    let weights = Count::from((own.as_f64() * part) as u64);
    (weights, own - weights)
}

/// What looking rows up takes, besides the tables.
struct Lookups {
    /// Vectors and gradients on their way.
    exchange_bytes: Count,
    /// The routing plans of the batches that the iteration holds.
    route_bytes: Count,
}

impl Lookups {
    /// Room is taken for the worst case: no two ids of a batch are equal, and each rank may be
    /// asked for all of them.
    fn of(config: &Config, tables: &[TablePlan], slots: &SlotBytes, sharing: &Sharing) -> Self {
        let ranks = sharing.ranks;
        // One rank looks up the rows of evaluations straight from their ids, where tables are
        // dense.
        let is_planned =
            ranks > 1 || sharing.on_device || config.table.iter().any(|entry| entry.kind.is_some());
        let samples = if is_planned { slots.step.max(slots.evaluation) } else { slots.step };
        let of_slots = |column: usize| SlotTable {
            ids: (samples * config.max_ids_per_sample(column)) as u64,
            rows: tables[column].rows,
            dim: tables[column].dim as u64,
            bags: config.may_pool_at_owner(column).then_some(samples as u64),
        };
        let slot = SlotOptions { dtype: config.slot_dtype(ranks), ..SlotOptions::default() };
        let of_tables: Vec<SlotTable> = (0..tables.len()).map(of_slots).collect();
        let hops = hops(config, sharing, slot, &of_tables);
        let (mut vectors, mut route) = (Count::ZERO, Count::ZERO);
        for (column, table) in tables.iter().enumerate() {
            let of_sample = config.max_ids_per_sample(column);
            let ids = Count::from(samples) * of_sample;
            route += ids * entry_bytes(of_sample, sharing) + Count::from(samples) * 4_u64;
            if ranks == 1 {
                continue;
            }
            if config.may_pool_at_owner(column) {
                let (bags, rows) = asked_of_owners(&of_tables[column], hops[0].shares, sharing);
                vectors += bags * table.dim;
                route += ids * OWN_WORD_BYTES + rows * ASKED_WORD_BYTES;
            }
            if config.pool_at(column) == PoolAtChoice::Owner {
                continue;
            }
            let bounded = merges_equal_rows(config, column);
            let most = |rows: u64| if bounded { ids.min(Count::from(rows)) } else { ids };
            route += ids * REQUEST_BYTES;
            if !sharing.on_device {
                let asked = most(table.rows.div_ceil(ranks as u64)) * ranks;
                vectors += (most(table.rows) + asked) * table.dim;
                route += asked * ASKED_BYTES;
                continue;
            }
            // Slots of a fixed size, one for each pair of ranks, to send and to receive.
            for hop in &hops {
                let asked = hop.rows(&of_tables[column], bounded) * hop.peers;
                vectors += asked * table.dim * 2_u64;
                route += asked * (ASKED_BYTES + TILE_ENTRY_BYTES);
            }
        }
        let (frequent, places) =
            sharing.rows.map_or((0, 0), |of| (of.frequent_bytes, of.frequent_rows));
        let element_bytes = element_bytes(config, sharing, slot);
        // Half of the vectors are one rank's slots, the others those of which it is asked.
        let block = match &hops[..] {
            [_, to_owners] => to_owners.elements(config, &of_tables) * element_bytes,
            _ => (vectors / 2 * element_bytes).share(ranks),
        };
        // Parameters and their gradients are counted together.
        let sums = Sums {
            rows: Count::from(frequent),
            dense: Count::from(slots.parameters as u64 / 2),
            part: slots.part.map(Count::from),
        };
        let strips = strip_bytes(config, sharing, block, &sums);
        let exchanged = sharing.rows.and_then(|of| of.exchanged_bytes).map(Count::from);
        Self {
            exchange_bytes: exchanged.unwrap_or(vectors * element_bytes) + frequent + strips,
            route_bytes: route * BATCH_SLOTS + Count::from(places) * PLACE_BYTES,
        }
    }
}

/// Bytes in a routing plan for each id, of a table with at most so many in a bag.
fn entry_bytes(ids_per_sample: usize, sharing: &Sharing) -> u64 {
    let of_bag = if ids_per_sample > 1 { BAG_ENTRY_BYTES } else { 0 };
    ROUTE_ENTRY_BYTES + of_bag + if sharing.on_device { TILE_ENTRY_BYTES } else { 0 }
}

/// Bytes of one element of a vector on its way.
fn element_bytes(config: &Config, sharing: &Sharing, slot: SlotOptions) -> usize {
    match (sharing.on_device, config.compress_of(sharing.ranks)) {
        (true, _) => slot.dtype.bytes(),
        (false, Compress::None) => 4,
        // What hosts send in 16 bits has room of its own, besides that of f32.
        (false, Compress::Bf16 | Compress::F16) => 6,
    }
}

/// An exchange between devices on the way to owners.
struct SlotHop {
    /// Ranks for which one asks.
    asking: u64,
    /// Whom it asks.
    peers: usize,
    /// How many even shares of what is asked for a slot has room for.
    shares: f64,
}

impl SlotHop {
    fn table(&self, table: &SlotTable) -> SlotTable {
        SlotTable { ids: table.ids * self.asking, ..*table }
    }

    /// Rows of a table for which a slot has room; `bounded`: each is asked for once.
    fn rows(&self, table: &SlotTable, bounded: bool) -> Count {
        let table = self.table(table);
        let rows = table.rows_of_slot(self.shares, self.peers);
        Count::from(if bounded { rows.min(table.ids) } else { table.ids })
    }

    /// Elements of a slot of vectors.
    fn elements(&self, config: &Config, tables: &[SlotTable]) -> Count {
        let of_table = |(column, table): (usize, &SlotTable)| {
            self.rows(table, merges_equal_rows(config, column)) * table.dim
        };
        tables.iter().enumerate().map(of_table).sum()
    }
}

/// Whether equal rows of a table are asked for once.
fn merges_equal_rows(config: &Config, column: usize) -> bool {
    config.comm.deduplicate != DeduplicateChoice::Off && !config.is_raw(column)
}

/// Whether devices merge equal rows in their nodes: of how many ranks.
fn merging_nodes(config: &Config, sharing: &Sharing) -> Option<usize> {
    let each = sharing.ranks.div_ceil(sharing.nodes);
    let merges = config.comm.deduplicate == DeduplicateChoice::Node && sharing.on_device;
    let topology = Topology::with_ranks_per_node(sharing.ranks, each);
    topology.aligned_node_size().filter(|_| merges)
}

/// One, or where nodes merge requests one inside nodes and one along rails.
fn hops(
    config: &Config,
    sharing: &Sharing,
    slot: SlotOptions,
    tables: &[SlotTable],
) -> Vec<SlotHop> {
    let hop = |asking: usize, peers: usize| {
        let hop = SlotHop { asking: asking as u64, peers, shares: 0.0 };
        let shares = slot.shares(tables.iter().map(|table| hop.table(table)), peers);
        SlotHop { shares, ..hop }
    };
    match merging_nodes(config, sharing) {
        None => vec![hop(1, sharing.ranks)],
        Some(each) => vec![hop(1, each), hop(each, sharing.ranks / each)],
    }
}

/// What devices add up, as f32.
struct Sums {
    rows: Count,
    dense: Count,
    /// The longest part of the dense ones, where these are divided.
    part: Option<Count>,
}

/// Where owners pool bags: one vector a bag and owner, of those that a rank asks and is asked for,
/// and the rows that it is asked for; on a device in slots for every rank.
fn asked_of_owners(table: &SlotTable, shares: f64, sharing: &Sharing) -> (Count, Count) {
    let (ranks, bags) = (sharing.ranks, table.bags.unwrap_or(0));
    let of_sample = (table.ids / bags.max(1)) as usize;
    match sharing.on_device {
        true => (
            Count::from(table.vectors_of_slot(shares, ranks)) * (2 * ranks),
            Count::from(table.rows_of_slot(shares, ranks)) * ranks,
        ),
        false => {
            (Count::from(bags) * (ranks.min(of_sample) + ranks), Count::from(table.ids) * ranks)
        }
    }
}

/// What devices of several nodes need besides their slots, of `block` bytes each, to fill strips
/// for other nodes, or to sum: strips on both sides, for NICs in several slots unless these lie in
/// the host's memory, and what NCCL brings from peers of the node where it carries there, too.
/// Else, what it brings of sums that ranks make themselves.
fn strip_bytes(config: &Config, sharing: &Sharing, block: Count, sums: &Sums) -> Count {
    let (ranks, each) = (sharing.ranks, sharing.ranks.div_ceil(sharing.nodes));
    let topology = Topology::with_ranks_per_node(ranks, each);
    if !sharing.on_device || ranks == 1 {
        return Count::ZERO;
    }
    let on_the_way = |bytes: Count| bytes * config.sum_bytes() as u64 / 4_u64;
    // Parts come from all ranks: as much as the whole.
    let all = on_the_way(sums.rows + sums.dense);
    let between = Between::of_ranks(config, &topology);
    if !goes_by_node(&topology, config.comm.exchange) {
        let over_nccl = between == Between::Nccl;
        return if over_nccl && config.sums_are_narrow(true) { all } else { Count::ZERO };
    }
    let block_of = |sum: Count| {
        let bytes = usize::try_from(sum.get()).unwrap_or(usize::MAX);
        Count::from(longest_block_of_sums(&topology, None, bytes))
    };
    let of_sums = match (topology.aligned_node_size(), sums.part) {
        (Some(_), Some(part)) => block_of(on_the_way(sums.rows)).max(part) * sharing.nodes,
        (Some(_), None) => block_of(all) * sharing.nodes,
        // Not the sums of nodes cross, but what each rank has.
        (None, _) => block_of(all) * ranks,
    };
    // Where nodes merge, a rank has a block for each other node.
    let merged = merging_nodes(config, sharing).is_some();
    let crossing = if merged { sharing.nodes - 1 } else { ranks - each };
    let slots = match (between, config.comm.verbs.gpudirect) {
        (Between::MemoryAndVerbs, Feature::Off) => 0,
        (Between::MemoryAndVerbs, _) => SLOTS_OF_RAILS,
        _ => 1,
    };
    let strips = (block * crossing).max(of_sums) * (2 * slots);
    let parts = sums.part.map_or(Count::ZERO, |part| on_the_way(part) * ranks);
    let blocks = if merged { Count::ZERO } else { block * ranks };
    let brought = if between == Between::Nccl { blocks.max(parts) } else { Count::ZERO };
    strips + brought
}

/// Elements that one sample passes through: inputs, layer outputs, pooled vectors, the
/// interaction's output.
pub(super) fn activations_per_sample(config: &Config) -> Count {
    let outputs: Count = super::layers(config).iter().map(|&(_, outputs)| outputs).sum();
    let pooled = Count::from(config.data.num_sparse) * config.model.dim;
    outputs + pooled + config.data.num_dense + config.top_input_width()
}

/// Bytes of one sample as the reader delivers it: a label, the dense values, per table a row index
/// and an offset.
fn sample_bytes(config: &Config) -> Count {
    let ids: Count =
        (0..config.data.num_sparse).map(|column| config.max_ids_per_sample(column)).sum();
    ids * 8_u64 + Count::from(4 + config.data.num_dense * 4 + config.data.num_sparse * 4)
}

/// The batches that the iteration holds; where every rank knows the ids of all, those of all.
fn batches(config: &Config, slots: &SlotBytes) -> Count {
    let known = config.run.ranks > 1 && config.comm.ids != IdsChoice::Exchange;
    let copies = if known { config.run.ranks + 1 } else { 1 };
    sample_bytes(config) * slots.step.max(slots.evaluation) * BATCH_SLOTS * copies
}

/// What of its batches stays on the device of a rank.
fn kept_batch_bytes(config: &Config, slots: &SlotBytes, sharing: &Sharing) -> Count {
    if !sharing.on_device {
        return Count::ZERO;
    }
    let DeviceRows { train, valid } = sharing.device_rows;
    let per_step = (config.train.batch_size * config.train.accumulate) as u64;
    let of = |samples, rows: u64, of_batch: u64| {
        Count::from(kept_bytes(config, samples, rows.div_ceil(of_batch)))
    };
    of(slots.step, train, per_step) + of(slots.evaluation, valid, config.eval.batch_size as u64)
}

fn reader_bytes(config: &Config, threads: usize, sharing: &Sharing) -> Count {
    let data = &config.data;
    // The ones that wait, the one that is read, the one that is taken, and that of the session.
    let ahead = config.samples_per_step() * (data.prefetch_batches + 3);
    let evaluates = !data.valid.is_empty() || config.synthetic.enabled;
    let evaluated = if evaluates {
        Count::from(config.eval.batch_size) * EVALUATION_BATCHES
    } else {
        Count::ZERO
    };
    let shuffled = match data.order {
        OrderChoice::Samples => data.order_window.min(sharing.data_rows.unwrap_or(u64::MAX)),
        OrderChoice::Sequential | OrderChoice::Batches => 0,
    };
    (ahead + evaluated + shuffled) * sample_bytes(config)
        + Count::from(threads.div_ceil(READING_SHARE)) * READER_BLOCK_BYTES
        + sharing.kept_bytes
}

/// One thread in so many parses.
const READING_SHARE: usize = 4;

fn id_map_bytes(config: &Config, tables: &[TablePlan]) -> Count {
    match config.data.ids {
        Ids::Hash | Ids::Modulo | Ids::Rows => Count::ZERO,
        Ids::Admitted | Ids::Dictionary => {
            let mapped = tables.iter().enumerate().filter(|(column, _)| !config.is_raw(*column));
            mapped.map(|(_, table)| table.rows).sum::<Count>() * MAP_ENTRY_BYTES
        }
    }
}
