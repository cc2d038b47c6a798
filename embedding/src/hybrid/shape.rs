//! What the options of a hybrid set ask for: whether they fit together, and how much room a route
//! and the staging of each table take.

use super::merge::MergeShape;
use super::options::{Deduplicate, HybridOptions};
use super::partition::{Owner, Partition};
use crate::error::{EmbeddingError, Result};
use crate::table::{Keys, TableSpec};
use crate::update::MAX_SUM_BLOCKS;

pub(super) fn check_options(specs: &[TableSpec], options: &HybridOptions) {
    let (set, owners) = (&options.set, options.partition.num_owners());
    assert_eq!(set.max_ids.len(), specs.len(), "max_ids has one number per table");
    assert!(
        (1..=MAX_SUM_BLOCKS).contains(&set.sum_blocks),
        "sum_blocks lies in 1..={MAX_SUM_BLOCKS}, got {}",
        set.sum_blocks
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

/// On a device every rank requests unique rows, and requests come from ranks.
pub(super) fn check_deduplicate(specs: &[TableSpec], deduplicate: Deduplicate) -> Result<()> {
    match (deduplicate, specs.first()) {
        (Deduplicate::Node { .. }, Some(spec)) => Err(EmbeddingError::Placement {
            table: spec.name.clone(),
            reason:
                "equal rows are merged on each rank on CUDA devices, not on nodes: use deduplicate \
                 = rank"
                    .to_owned(),
        }),
        _ => Ok(()),
    }
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
    shape_of(specs, &options.partition, options.owner, options.deduplicate, sizes)
}

pub(super) fn shape_of(
    specs: &[TableSpec],
    partition: &Partition,
    owner: Owner,
    deduplicate: Deduplicate,
    (max_samples, max_ids): (usize, &[usize]),
) -> RouteShape {
    let ranks = deduplicate.ranks_per_source();
    let unique = deduplicate != Deduplicate::Off;
    let num_owners = partition.num_owners();
    let owned =
        |table| (0..num_owners).map(|owner| partition.local_rows(table, Owner(owner))).sum::<u64>();
    let mut shape = RouteShape {
        num_owners,
        num_sources: num_owners / ranks,
        max_samples,
        max_ids: max_ids.to_vec(),
        bounded: specs.iter().map(|spec| unique && spec.keys == Keys::RowIndices).collect(),
        max_requests: Vec::new(),
        max_received: Vec::new(),
        local_rows: (0..specs.len()).map(|table| partition.local_rows(table, owner)).collect(),
    };
    for (table, &ids) in max_ids.iter().enumerate() {
        shape.max_requests.push(shape.at_most(table, ids, owned(table)));
        shape.max_received.push(shape.at_most(table, ids * ranks, shape.local_rows[table]));
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
    /// Per table: most rows that this rank requests.
    pub(super) max_requests: Vec<usize>,
    /// Per table: most rows that one source requests.
    pub(super) max_received: Vec<usize>,
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

    pub(super) fn merge(&self, table: usize) -> MergeShape {
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
