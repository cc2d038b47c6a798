//! What the options of a hybrid set ask for: whether they fit together, and how much room a route
//! and the staging of each table take.

use super::bags::{MAX_SAMPLES, ReceivedBags};
use super::merge::MergeShape;
use super::options::{Deduplicate, HybridOptions, PoolAt};
use super::partition::{Owner, Partition};
use crate::error::{EmbeddingError, Result};
use crate::registry::Registry;
use crate::table::{Keys, TableSpec};
use crate::update::MAX_SUM_BLOCKS;
use headlong_device::Stream;

pub(super) fn check_options(specs: &[TableSpec], options: &HybridOptions) {
    let (set, owners) = (&options.set, options.partition.num_owners());
    assert_eq!(set.max_ids.len(), specs.len(), "max_ids has one number per table");
    assert!(
        (1..=MAX_SUM_BLOCKS).contains(&set.sum_blocks),
        "sum_blocks lies in 1..={MAX_SUM_BLOCKS}, got {}",
        set.sum_blocks
    );
    assert!(
        options.pool_at.is_empty() || options.pool_at.len() == specs.len(),
        "pool_at has one entry per table, or none"
    );
    assert!(options.partition.is_for(specs), "the partition was made for these tables");
    assert!(options.owner.0 < owners, "{:?} is one of {owners} owners", options.owner);
    assert!(
        owners == 1 || set.sum_blocks.is_power_of_two(),
        "the blocks of a rank are a subtree: sum_blocks of a rank is a power of two, got {}",
        set.sum_blocks
    );
    match options.deduplicate {
        Deduplicate::Off => {
            assert_eq!(set.sum_blocks, 1, "without deduplication a rank has one sum block")
        }
        Deduplicate::Rank => {}
        Deduplicate::Node { ranks } => assert!(
            ranks.is_power_of_two() && owners.is_multiple_of(ranks),
            "ranks of a node are a power of two and divide {owners}, got {ranks}"
        ),
    }
}

/// What tables whose bags are pooled at the owner cannot be, by name.
pub(super) fn check_pooling(
    registry: &Registry,
    stream: &Stream,
    specs: &[TableSpec],
    options: &HybridOptions,
) -> Result<()> {
    let pooled = |&(table, _): &(usize, &TableSpec)| options.pool_at(table) == PoolAt::Owner;
    for (table, spec) in specs.iter().enumerate().filter(pooled) {
        let partition = &*options.partition;
        let (shape, several) = (route_shape(specs, options), partition.num_owners() > 1);
        let ids = options.set.max_ids[table] * options.deduplicate.ranks_per_source();
        let narrow = options.set.narrow.is_some() && stream.as_cuda().is_none();
        let reason = if spec.keys == Keys::RawIds || !registry.kind(spec)?.shows_rows() {
            "the owner pools bags of tables that are keyed by rows and show them"
        } else if narrow {
            "between processors vectors that travel in 16 bits are pooled on the rank"
        } else if several && !partition.is_by_formula(table) {
            "every row has one owner, which is that of the formula or of the whole table"
        } else if matches!(options.deduplicate, Deduplicate::Node { .. }) {
            "what nodes merge is pooled on the rank: use deduplicate = rank"
        } else if !ReceivedBags::fits(shape.local_rows[table], shape.num_sources, ids)
            || options.set.max_samples > MAX_SAMPLES
        {
            "an owner has fewer than 2^31 rows of it, a rank fewer than 2^21 samples"
        } else {
            continue;
        };
        return Err(EmbeddingError::Placement {
            table: spec.name.clone(),
            reason: format!("its bags cannot be pooled at the owner: {reason}"),
        });
    }
    Ok(())
}

pub(super) fn check_merge(spec: &TableSpec, shape: &RouteShape, table: usize) -> Result<()> {
    if shape.merge(table).fits(spec.keys) {
        return Ok(());
    }
    let (rows, ids) = (shape.local_rows[table], shape.max_received[table]);
    let reason = format!(
        "{rows} rows of one owner and {ids} ids of {} sources do not fit one key",
        shape.num_sources
    );
    Err(spec.refused(reason))
}

pub(super) fn route_shape(specs: &[TableSpec], options: &HybridOptions) -> RouteShape {
    let sizes = (options.set.max_samples, options.set.max_ids);
    let rows = (&*options.partition, options.pool_at);
    shape_of(specs, rows, options.owner, options.deduplicate, sizes)
}

pub(super) fn shape_of(
    specs: &[TableSpec],
    (partition, pool_at): (&Partition, &[PoolAt]),
    owner: Owner,
    deduplicate: Deduplicate,
    (max_samples, max_ids): (usize, &[usize]),
) -> RouteShape {
    let ranks = deduplicate.ranks_per_source();
    let unique = deduplicate != Deduplicate::Off;
    let num_owners = partition.num_owners();
    let owned =
        |table| (0..num_owners).map(|owner| partition.local_rows(table, Owner(owner))).sum::<u64>();
    let owners_of = |table: usize| {
        (0..num_owners).filter(|&owner| partition.local_rows(table, Owner(owner)) > 0).count()
    };
    let mut shape = RouteShape {
        num_owners,
        num_sources: num_owners / ranks,
        max_samples,
        max_ids: max_ids.to_vec(),
        bounded: specs.iter().map(|spec| unique && spec.keys == Keys::RowIndices).collect(),
        pool_at: pool_at.to_vec(),
        max_requests: Vec::new(),
        max_received: Vec::new(),
        max_recv_vectors: Vec::new(),
        max_send_vectors: Vec::new(),
        local_rows: (0..specs.len()).map(|table| partition.local_rows(table, owner)).collect(),
    };
    for (table, &ids) in max_ids.iter().enumerate() {
        let (mut asked, mut answered) = (
            shape.at_most(table, ids, owned(table)),
            shape.at_most(table, ids * ranks, shape.local_rows[table]),
        );
        let (mut requests, mut received) = (asked, answered);
        if shape.pools_at_owner(table) {
            // One vector a bag and owner; a word for each, and one for each id.
            asked = ids.min(max_samples * owners_of(table));
            answered = if answered == 0 { 0 } else { ids.min(max_samples) * ranks };
            requests = ids + asked;
            received = if answered == 0 { 0 } else { ids * ranks + answered };
        }
        shape.max_requests.push(requests);
        shape.max_received.push(received);
        shape.max_recv_vectors.push(asked);
        shape.max_send_vectors.push(answered);
    }
    shape
}

/// Rows of the staging matrix of an owner's table that hides its rows.
pub(super) fn staged_rows(shape: &RouteShape, table: usize) -> usize {
    shape.max_received[table] * shape.num_sources
}

/// Rows of the staging matrix of a replica that hides its rows: those that one batch of all ranks
/// touches.
pub(super) fn staged_frequent(frequent: u64, shape: &RouteShape, table: usize) -> usize {
    (shape.max_ids[table] * shape.num_owners).min(frequent as usize)
}

/// Everything about the size of a route.
#[derive(Debug, Clone)]
pub(super) struct RouteShape {
    pub(super) num_owners: usize,
    pub(super) num_sources: usize,
    pub(super) max_samples: usize,
    pub(super) max_ids: Vec<usize>,
    /// Per table: whether no more rows are requested than there are.
    pub(super) bounded: Vec<bool>,
    /// Per table; none: all at the rank.
    pub(super) pool_at: Vec<PoolAt>,
    /// Per table: most rows that this rank requests, or words about its bags.
    pub(super) max_requests: Vec<usize>,
    /// Per table: most rows that one source requests, or words about its bags.
    pub(super) max_received: Vec<usize>,
    /// Per table: most vectors that this rank gets for its requests.
    pub(super) max_recv_vectors: Vec<usize>,
    /// Per table: most vectors that one source gets.
    pub(super) max_send_vectors: Vec<usize>,
    /// Per table: rows that this owner keeps.
    pub(super) local_rows: Vec<u64>,
}

impl RouteShape {
    /// Most rows of `ids` ids that are requested, of an owner with `rows` rows: of unique rows no
    /// more than there are; raw ids have no such bound.
    pub(super) fn at_most(&self, table: usize, ids: usize, rows: u64) -> usize {
        match rows {
            0 => 0,
            rows if self.bounded[table] => ids.min(rows.try_into().unwrap_or(usize::MAX)),
            _ => ids,
        }
    }

    pub(super) fn pools_at_owner(&self, table: usize) -> bool {
        self.pool_at.get(table) == Some(&PoolAt::Owner)
    }

    pub(super) fn merge(&self, table: usize) -> MergeShape {
        if self.pools_at_owner(table) {
            let (num_sources, local_rows) = (self.num_sources, self.local_rows[table]);
            return MergeShape { num_sources, max_ids: 0, max_received: 0, local_rows };
        }
        MergeShape {
            num_sources: self.num_sources,
            max_ids: self.max_ids[table] * (self.num_owners / self.num_sources),
            max_received: self.max_received[table],
            local_rows: self.local_rows[table],
        }
    }
}

/// Where the gradients of frequent rows lie in their block: first one number per row of all tables,
/// which says on how many ranks the row occurred, then the gradients, table after table.
#[derive(Debug, Clone)]
pub(super) struct FrequentLayout {
    /// Per table: first number, first gradient, rows.
    pub(super) tables: Vec<FrequentPlace>,
    pub(super) len: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct FrequentPlace {
    pub(super) first_touched: usize,
    pub(super) first_gradient: usize,
    pub(super) rows: usize,
}

impl FrequentLayout {
    pub(super) fn new(specs: &[TableSpec], partition: &Partition) -> Self {
        let several = partition.num_owners() > 1;
        let rows = |table| if several { partition.num_frequent(table) as usize } else { 0 };
        let touched: usize = (0..specs.len()).map(rows).sum();
        let (mut first_touched, mut first_gradient) = (0, touched.next_multiple_of(16));
        let tables = specs.iter().enumerate().map(|(table, spec)| {
            let place = FrequentPlace { first_touched, first_gradient, rows: rows(table) };
            first_touched += place.rows;
            first_gradient += place.rows * spec.dim;
            place
        });
        Self { tables: tables.collect(), len: first_gradient }
    }
}
