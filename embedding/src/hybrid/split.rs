//! The split: which rows every rank holds, who owns the others, and how they are exchanged.
//!
//! A pure function of [`Statistics`], [`Costs`], the shape of the cluster and the batch. For every
//! way to exchange that the topology allows and the settings do not exclude, candidates (all rows
//! that were counted) are put in the order of their rates, most frequent first, and the number `k`
//! of frequent ones is searched that makes
//!
//! ```text
//! t_ids(k) + t_all_to_all(vectors, k) + t_all_to_all(gradients, k)
//!     + t_all_reduce(dense, k) + t_rows(k)
//! ```
//!
//! least, within the memory limits. The order is that of benefit per byte: replicating a row of
//! `dim` elements costs `4·dim` bytes in the all-reduce and saves a multiple of that in the
//! exchange which depends only on its rate. Small tables, whose rows are all frequent, come out
//! wholly data-parallel by the same rule.
//!
//! Among ways to exchange the fastest is chosen, with one exception that needs no latency table:
//! merging on the node is chosen where it sends fewer bytes between nodes than the best split that
//! merges on the rank.

mod bags;
mod balance;
mod groups;
mod mode;
mod pooling;
mod search;

use super::cost::{Costs, StepSizes, StepTimes};
use super::options::PoolAt;
use super::partition::{Owner, TablePlacement};
use super::statistics::{Statistics, StatisticsError};
use super::traffic::{self, Cluster, Exchange, Hops, IdSource, Merge, Traffic, Variant};
use crate::table::{Grain, Keys, TableSpec};
use balance::Balanced;
use groups::{Candidates, Sums};
use headlong_device::optimizer::Optimizer;
pub use mode::HybridMode;
pub use pooling::{OWNER_PAYS, PoolChoice, PoolingOptions, may_pool_at_owner, pool_choice};
use serde::Serialize;

/// Where one table may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlacementChoice {
    /// As the split decides.
    #[default]
    Auto,
    /// On every rank.
    DataParallel,
    /// Divided by rows, none replicated.
    RowWise,
    /// On one rank: this one, or the one with the least traffic.
    TableWise(Option<Owner>),
}

/// What a split is made for.
#[derive(Debug, Clone)]
pub struct SplitOptions<'a> {
    /// The tables.
    pub specs: &'a [TableSpec],
    /// Nodes and ranks.
    pub cluster: Cluster,
    /// Samples of a step, over all ranks.
    pub batch_size: u64,
    /// The sparse optimiser, whose state lies with each row.
    pub optimizer: &'a Optimizer,
    /// Bytes that each table takes with its states, all of its rows together; none: they are dense.
    pub table_bytes: &'a [u64],
    /// Which rows become frequent.
    pub mode: HybridMode,
    /// One for each table, or none: all are `Auto`.
    pub placements: &'a [PlacementChoice],
    /// Where the bags of each table become vectors; none: all on the rank.
    pub pool_at: &'a [PoolAt],
    /// Bytes of the dense gradients, as they travel.
    pub dense_bytes: u64,
    /// Whether they are summed in an all-reduce of their own, as between devices; else in that of
    /// the frequent rows.
    pub sums_apart: bool,
    /// Bytes of the dense weights that all ranks gather, where each moves a part of them: then the
    /// dense gradients are summed apart, each part to its rank. None: every rank moves all.
    pub gathered_bytes: Option<u64>,
    /// Bytes of one element of a vector on its way: 4, or 2 where vectors are compressed.
    pub wire_bytes: usize,
    /// Bytes of one element of the all-reduce on its way: 4, or 2 where gradients are compressed.
    pub sum_bytes: usize,
    /// Bytes of one rank that replicas may take: weights, states and gradients.
    pub replicated_limit_bytes: Option<u64>,
    /// Bytes of one rank that all its rows may take.
    pub memory_limit_bytes: Option<u64>,
    /// Where equal rows are merged; `None`: by cost.
    pub merge: Option<Merge>,
    /// How vectors travel; `None`: by cost.
    pub exchange: Option<Exchange>,
    /// How ids get known; `None`: by cost.
    pub ids: Option<IdSource>,
}

impl<'a> SplitOptions<'a> {
    /// Everything by cost, with nothing else in the all-reduce and no limit of memory.
    pub fn new(
        specs: &'a [TableSpec],
        cluster: Cluster,
        batch_size: u64,
        optimizer: &'a Optimizer,
    ) -> Self {
        Self {
            specs,
            cluster,
            batch_size,
            optimizer,
            table_bytes: &[],
            mode: HybridMode::Auto,
            placements: &[],
            pool_at: &[],
            dense_bytes: 0,
            sums_apart: false,
            gathered_bytes: None,
            wire_bytes: 4,
            sum_bytes: 4,
            replicated_limit_bytes: None,
            memory_limit_bytes: None,
            merge: None,
            exchange: None,
            ids: None,
        }
    }

    fn placement(&self, table: usize) -> PlacementChoice {
        self.placements.get(table).copied().unwrap_or_default()
    }

    fn pools_at_owner(&self, table: usize) -> bool {
        self.pool_at.get(table) == Some(&PoolAt::Owner)
    }

    /// Bytes of one vector of a row with its optimiser state: what an update of it reads and
    /// writes.
    fn row_bytes(&self, table: usize) -> u64 {
        let spec = &self.specs[table];
        (spec.dim * spec.dtype.bytes()) as u64 + self.optimizer.state_bytes(1, spec.dim)
    }

    /// Bytes that `rows` rows take where they lie: their part of what the table takes.
    fn held_bytes(&self, table: usize, rows: u64) -> u64 {
        let part = |bytes: u64| {
            u128::from(bytes) * u128::from(rows) / u128::from(self.specs[table].rows.max(1))
        };
        match self.table_bytes.get(table) {
            Some(&bytes) => u64::try_from(part(bytes)).unwrap_or(u64::MAX),
            None => rows.saturating_mul(self.row_bytes(table)),
        }
    }

    /// Bytes of one frequent row in the all-reduce, as they travel.
    fn summed_bytes(&self, table: usize) -> f64 {
        gradient_bytes(&self.specs[table]) * self.sum_bytes as f64 / 4.0
    }

    /// Bytes that frequent rows take on a rank: the rows, their states, their gradients.
    fn replica_bytes(&self, table: usize, rows: u64) -> u64 {
        let gradients = rows.saturating_mul(gradient_bytes(&self.specs[table]) as u64);
        self.held_bytes(table, rows).saturating_add(gradients)
    }
}

/// Bytes of one frequent row in the buffer of the all-reduce.
fn gradient_bytes(spec: &TableSpec) -> f64 {
    spec.dim as f64 * 4.0 + traffic::TOUCHED_BYTES
}

/// Why there is no split.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names of fields say it")]
pub enum SplitError {
    /// Statistics of other tables.
    #[error(transparent)]
    Statistics(#[from] StatisticsError),
    /// Even without a frequent row, or with those asked for, a rank needs more memory than it may
    /// take.
    #[error(
        "the rows of one rank take {needed_bytes} bytes with {frequent_rows} frequent rows, the \
         limit is {limit_bytes}"
    )]
    Memory { needed_bytes: u64, limit_bytes: u64, frequent_rows: u64 },
    /// A setting that the tables or the topology do not allow.
    #[error("{what}: {reason}")]
    Impossible { what: String, reason: String },
}

/// One table of a split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableSplit {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub rows: u64,
    /// Elements of a row.
    pub dim: usize,
    /// Where its bags become vectors.
    pub pool_at: PoolAt,
    /// What either place would send, where that is known; for those who choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<PoolChoice>,
    /// Rows that every rank holds.
    pub frequent_rows: u64,
    /// Rows whose owner was chosen.
    pub placed_rows: u64,
    /// Expected share of its lookups that frequent rows serve, 0 to 1.
    pub covered_share: f64,
    /// Bytes of the rank that holds most of it.
    pub bytes_per_rank: u64,
    /// Bytes in a step that it causes, over all ranks.
    pub traffic: Hops,
    /// Bytes that it would cause if every lookup asked its owner for a vector: pure model
    /// parallelism, nothing merged.
    pub pure_traffic: Hops,
}

/// A way to exchange that was considered, with its best split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Considered {
    /// The way.
    pub variant: Variant,
    /// Frequent rows.
    pub frequent_rows: u64,
    /// Bytes between nodes in a step, over all ranks, without the dense gradients.
    pub inter_node_bytes: f64,
    /// Predicted time of exchange and rows.
    pub total_us: f64,
}

/// The split, and what it is expected to cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Split {
    /// How rows are exchanged.
    pub variant: Variant,
    /// The tables.
    pub tables: Vec<TableSplit>,
    /// Where their rows lie: what [`super::Partition::new`] takes.
    #[serde(skip)]
    pub placements: Vec<TablePlacement>,
    /// Bytes in a step, over all ranks.
    pub traffic: Traffic,
    /// The same without frequent rows and without merging.
    pub pure_traffic: Traffic,
    /// Time of exchange and rows in a step.
    pub times: StepTimes,
    /// Traffic of the busiest owner over that of the mean.
    pub owner_imbalance: f64,
    /// Bytes of rows and states on the rank that holds most, with the gradients of frequent rows.
    pub bytes_per_rank: u64,
    /// Bytes thereof that replicas take.
    pub replicated_bytes: u64,
    /// Every way that was considered.
    pub considered: Vec<Considered>,
}

impl Split {
    /// Frequent rows of all tables.
    pub fn frequent_rows(&self) -> u64 {
        self.tables.iter().map(|table| table.frequent_rows).sum()
    }

    /// Expected share of all lookups that frequent rows serve.
    pub fn covered_share(&self, statistics: &Statistics) -> f64 {
        let lookups: u64 = statistics.tables.iter().map(|table| table.lookups).sum();
        let tables = self.tables.iter().zip(&statistics.tables);
        let covered: f64 =
            tables.map(|(split, table)| split.covered_share * table.lookups as f64).sum();
        if lookups == 0 { 0.0 } else { covered / lookups as f64 }
    }
}

/// A table becomes wholly data-parallel where that makes the predicted time longer by no more than
/// this part: nothing needs to be looked up in a partition then.
const WHOLE_TABLE_SLACK: f64 = 1e-4;

/// Finds the split.
pub fn split(
    statistics: &Statistics,
    costs: &Costs,
    options: &SplitOptions<'_>,
) -> Result<Split, SplitError> {
    statistics.check_tables(options.specs)?;
    check(options)?;
    let candidates = Candidates::new(statistics, options);
    let mut tried = Vec::new();
    for variant in variants(options)? {
        let context = Context { costs, options, candidates: &candidates, variant, pools: true };
        tried.push((context, context.best()?));
    }
    let considered =
        tried.iter().map(|(context, chosen)| context.considered(chosen)).collect::<Vec<_>>();
    let (context, chosen) = &tried[choose(&considered)];
    Ok(context.finish(chosen, statistics, considered))
}

/// The fastest; but where merging on the node sends less between nodes, the fastest that does so.
fn choose(considered: &[Considered]) -> usize {
    let fastest = |wanted: &dyn Fn(&Considered) -> bool| {
        let all = considered.iter().enumerate().filter(|(_, way)| wanted(way));
        all.min_by(|(_, one), (_, other)| one.total_us.total_cmp(&other.total_us))
            .map(|(index, _)| index)
    };
    let on_node = fastest(&|way| way.variant.merge == Merge::Node);
    let elsewhere = fastest(&|way| way.variant.merge != Merge::Node);
    match (on_node, elsewhere) {
        (Some(node), Some(rank))
            if considered[node].inter_node_bytes < considered[rank].inter_node_bytes =>
        {
            node
        }
        _ => fastest(&|_| true).expect("there is at least one way to exchange"),
    }
}

fn check(options: &SplitOptions<'_>) -> Result<(), SplitError> {
    let impossible =
        |what: &str, reason: String| Err(SplitError::Impossible { what: what.to_owned(), reason });
    if !options.placements.is_empty() && options.placements.len() != options.specs.len() {
        let reason = format!("{} for {} tables", options.placements.len(), options.specs.len());
        return impossible("placements", reason);
    }
    for (table, spec) in options.specs.iter().enumerate() {
        let name = format!("table `{}`", spec.name);
        if options.pools_at_owner(table)
            && let Err(reason) = may_pool_at_owner(spec, options.placement(table))
        {
            return impossible(&name, format!("bags cannot be pooled at the owner: {reason}"));
        }
        match options.placement(table) {
            PlacementChoice::DataParallel if spec.keys == Keys::RawIds => {
                return impossible(&name, "tables keyed by raw ids are not replicated".to_owned());
            }
            PlacementChoice::RowWise if spec.grain == Grain::Whole => {
                return impossible(
                    &name,
                    "its rows share storage and cannot be divided".to_owned(),
                );
            }
            PlacementChoice::TableWise(Some(Owner(owner)))
                if owner >= options.cluster.num_ranks() =>
            {
                let reason = format!("owner {owner} of {} ranks", options.cluster.num_ranks());
                return impossible(&name, reason);
            }
            _ => {}
        }
    }
    Ok(())
}

fn variants(options: &SplitOptions<'_>) -> Result<Vec<Variant>, SplitError> {
    let cluster = &options.cluster;
    let (levels, subtrees) = (cluster.has_levels(), cluster.nodes_are_subtrees());
    let pools = options.pool_at.contains(&PoolAt::Owner);
    let impossible = |what: &str, reason: &str| {
        Err(SplitError::Impossible { what: what.to_owned(), reason: reason.to_owned() })
    };
    if pools && options.ids == Some(IdSource::Known) {
        return impossible("ids that all ranks know", "owners that pool bags are asked for them");
    }
    let merges = match options.merge {
        // With one rank a node there is nothing to merge on it, with one node nothing that crosses.
        Some(Merge::Node) if !levels => vec![Merge::Rank],
        Some(Merge::Node) if !subtrees => {
            return impossible(
                "merging on the node",
                "nodes must have equally many ranks, a power of two: sums over ranks are a binary \
                 tree",
            );
        }
        Some(Merge::Node) if pools => {
            return impossible("merging on the node", "bags are pooled at the owner");
        }
        Some(merge) => vec![merge],
        None if levels && subtrees && !pools => vec![Merge::Rank, Merge::Node],
        None => vec![Merge::Rank],
    };
    let exchanges = match options.exchange {
        _ if !levels => vec![Exchange::Flat],
        Some(exchange) => vec![exchange],
        None => vec![Exchange::Flat, Exchange::Hierarchical],
    };
    let sources = match options.ids {
        Some(ids) => vec![ids],
        None if pools => vec![IdSource::Exchange],
        None => vec![IdSource::Exchange, IdSource::Known],
    };
    let mut variants = Vec::new();
    for &merge in &merges {
        if merge == Merge::Node {
            // Those who merge must be asked.
            if options.ids != Some(IdSource::Known) || options.merge.is_some() {
                variants.push(Variant { merge, exchange: Exchange::Flat, ids: IdSource::Exchange });
            }
            continue;
        }
        for &exchange in &exchanges {
            variants.extend(sources.iter().map(|&ids| Variant { merge, exchange, ids }));
        }
    }
    Ok(variants)
}

/// One way to exchange, and everything it is judged by.
#[derive(Clone, Copy)]
struct Context<'a> {
    costs: &'a Costs,
    options: &'a SplitOptions<'a>,
    candidates: &'a Candidates,
    variant: Variant,
    /// Whether owners pool the bags that they are to pool; else all are pooled on the rank.
    pools: bool,
}

/// How many candidates are frequent, and which tables wholly.
#[derive(Debug, Clone)]
struct Chosen {
    num_frequent: u64,
    whole: Vec<bool>,
    sums: Sums,
}

impl Context<'_> {
    fn id_bytes(&self, sums: &Sums) -> Hops {
        let known = self.variant.ids == IdSource::Known;
        if known { Hops::default() } else { sums.requests * traffic::ID_BYTES }
    }

    /// Bytes of a step in which infrequent rows and the buffer come to `sums`.
    fn traffic(&self, sums: &Sums) -> Traffic {
        let (options, cluster) = (self.options, &self.options.cluster);
        let all_reduce = |bytes, of: f64| {
            traffic::all_reduce(cluster, self.costs.all_reduce_way(cluster, of), bytes)
        };
        let dense = options.dense_bytes as f64;
        let dense = match options.gathered_bytes {
            None if options.sums_apart => all_reduce(dense, dense),
            None => all_reduce(dense, self.reduced_bytes(sums)),
            // The one half of an all-reduce of gradients, the other of one of weights.
            Some(gathered) => traffic::all_reduce(
                cluster,
                self.costs.parts_way(cluster),
                (dense + gathered as f64) / 2.0,
            ),
        };
        Traffic {
            ids: self.id_bytes(sums)
                + traffic::count_bytes(cluster, self.variant, options.specs.len()),
            vectors: sums.vector_bytes,
            gradients: sums.vector_bytes,
            frequent: all_reduce(sums.buffer_bytes, self.reduced_bytes(sums)),
            dense,
        }
    }

    /// Bytes that the all-reduce of the frequent rows takes.
    fn reduced_bytes(&self, sums: &Sums) -> f64 {
        let is_apart = self.options.sums_apart || self.options.gathered_bytes.is_some();
        sums.buffer_bytes + if is_apart { 0.0 } else { self.options.dense_bytes as f64 }
    }

    fn times(&self, sums: &Sums) -> StepTimes {
        let options = self.options;
        let step = StepSizes {
            buffer_bytes: self.reduced_bytes(sums),
            dense_bytes: match options.gathered_bytes {
                None if options.sums_apart => options.dense_bytes as f64,
                _ => 0.0,
            },
            parts_bytes: options
                .gathered_bytes
                .map_or(0.0, |gathered| (options.dense_bytes + gathered) as f64 / 2.0),
            lookups: self.candidates.lookups_per_step,
            work: sums.work,
        };
        self.costs.step_times(&options.cluster, self.variant, &self.traffic(sums), &step)
    }

    fn total_us(&self, sums: &Sums) -> f64 {
        self.times(sums).total_us()
    }

    fn considered(&self, chosen: &Chosen) -> Considered {
        Considered {
            variant: self.variant,
            frequent_rows: self.frequent_rows(chosen).iter().sum(),
            inter_node_bytes: self.traffic(&chosen.sums).of_embeddings().inter,
            total_us: self.total_us(&chosen.sums),
        }
    }

    fn frequent_rows(&self, chosen: &Chosen) -> Vec<u64> {
        let mut rows = self.candidates.frequent_of_tables(chosen.num_frequent);
        for (table, rows) in rows.iter_mut().enumerate().filter(|(table, _)| chosen.whole[*table]) {
            *rows = self.options.specs[table].rows;
        }
        rows
    }

    fn finish(
        &self,
        chosen: &Chosen,
        statistics: &Statistics,
        considered: Vec<Considered>,
    ) -> Split {
        let options = self.options;
        let frequent = self.frequent_rows(chosen);
        let balanced = Balanced::new(self, chosen, statistics);
        let tables =
            (0..options.specs.len()).map(|table| self.table(table, chosen, &frequent, &balanced));
        let tables: Vec<_> = tables.collect();
        let pure = Variant { merge: Merge::Off, ..self.variant };
        let pure = Context { variant: pure, pools: false, ..*self };
        let replicated = frequent.iter().enumerate();
        let replicated_bytes =
            replicated.map(|(table, &rows)| options.replica_bytes(table, rows)).sum();
        Split {
            variant: self.variant,
            placements: balanced.placements,
            traffic: self.traffic(&chosen.sums),
            pure_traffic: pure.traffic(&pure.nothing_frequent()),
            times: self.times(&chosen.sums),
            owner_imbalance: balanced.imbalance,
            bytes_per_rank: balanced.owned_bytes.iter().max().copied().unwrap_or(0)
                + replicated_bytes,
            replicated_bytes,
            tables,
            considered,
        }
    }

    fn table(
        &self,
        table: usize,
        chosen: &Chosen,
        frequent: &[u64],
        balanced: &Balanced,
    ) -> TableSplit {
        let (options, spec) = (self.options, &self.options.specs[table]);
        let rows = frequent[table];
        let owned = if chosen.whole[table] { 0 } else { balanced.largest_share[table] };
        let variant = Variant { merge: Merge::Off, ..self.variant };
        let pure = Context { variant, pools: false, ..*self };
        let bytes = |context: &Context<'_>, sums: &Sums| {
            let way = self.costs.all_reduce_way(&options.cluster, self.reduced_bytes(&chosen.sums));
            sums.vector_bytes * 2.0
                + context.id_bytes(sums)
                + traffic::all_reduce(&options.cluster, way, sums.buffer_bytes)
        };
        let sums = self.table_sums(table, chosen);
        TableSplit {
            name: spec.name.clone(),
            rows: spec.rows,
            dim: spec.dim,
            pool_at: options.pool_at.get(table).copied().unwrap_or_default(),
            pooling: None,
            frequent_rows: rows,
            placed_rows: balanced.placed_rows[table],
            covered_share: self.candidates.covered_share(
                table,
                chosen.num_frequent,
                chosen.whole[table],
            ),
            bytes_per_rank: options.held_bytes(table, owned) + options.replica_bytes(table, rows),
            traffic: bytes(self, &sums),
            pure_traffic: bytes(&pure, &pure.table_infrequent(table)),
        }
    }
}

#[cfg(test)]
mod tests;
