//! Owners of infrequent rows, so that all have about the same traffic.

use super::{Chosen, Context, PlacementChoice};
use crate::hybrid::partition::{Owner, TablePlacement};
use crate::hybrid::statistics::Statistics;
use crate::table::{Grain, Keys};

/// Rows for which an owner may be chosen, for each owner there is.
const PLACED_PER_OWNER: usize = 256;

/// An owner keeps what the formula gives it up to this part above the mean.
const TOLERATED: f64 = 0.002;

/// Where rows lie, and how even that is.
pub(super) struct Balanced {
    pub(super) placements: Vec<TablePlacement>,
    pub(super) placed_rows: Vec<u64>,
    /// Rows of each table on the owner that holds most of it, replicas not counted.
    pub(super) largest_share: Vec<u64>,
    /// Bytes of rows and states that each owner holds, replicas not counted.
    pub(super) owned_bytes: Vec<u64>,
    /// Traffic of the busiest owner over the mean.
    pub(super) imbalance: f64,
}

/// A row whose owner may be chosen.
struct Heavy {
    load: f64,
    table: usize,
    row: u64,
}

impl Balanced {
    pub(super) fn new(context: &Context<'_>, chosen: &Chosen, statistics: &Statistics) -> Self {
        let tables = context.options.specs.len();
        let mut loads = vec![0.0; context.options.cluster.num_ranks()];
        let heavy = formula_loads(context, chosen, statistics, &mut loads);
        let owners = place_tables(context, chosen, &mut loads);
        let mut placed: Vec<Vec<(u64, Owner)>> = vec![Vec::new(); tables];
        place_rows(&heavy, &mut loads, &mut placed);
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        let most = loads.iter().copied().fold(0.0, f64::max);
        let mut balanced = Self {
            placed_rows: placed.iter().map(|rows| rows.len() as u64).collect(),
            placements: placements(context, chosen, statistics, &owners, placed),
            largest_share: Vec::new(),
            owned_bytes: vec![0; loads.len()],
            imbalance: if mean > 0.0 { most / mean } else { 1.0 },
        };
        balanced.count_rows(context);
        balanced
    }

    fn count_rows(&mut self, context: &Context<'_>) {
        let (options, ranks) = (context.options, self.owned_bytes.len() as u64);
        for (table, placement) in self.placements.iter().enumerate() {
            let rows = options.specs[table].rows;
            let mut of_owners = vec![0; ranks as usize];
            match placement {
                TablePlacement::DataParallel => {}
                TablePlacement::TableWise(owner) => of_owners[owner.0] = rows,
                TablePlacement::RowWise { placed, .. } => {
                    of_owners.fill(rows.div_ceil(ranks));
                    placed.iter().for_each(|(_, owner)| of_owners[owner.0] += 1);
                }
            }
            self.largest_share.push(of_owners.iter().max().copied().unwrap_or(0));
            for (bytes, rows) in self.owned_bytes.iter_mut().zip(of_owners) {
                *bytes += options.held_bytes(table, rows);
            }
        }
    }
}

/// The owner that the partition's formula gives a row.
pub(super) fn formula_owner(table: usize, row: u64, num_owners: usize) -> usize {
    ((row % num_owners as u64) as usize + table % num_owners) % num_owners
}

/// Whether the rows of a table are divided among owners by formula.
fn is_divided(context: &Context<'_>, chosen: &Chosen, table: usize) -> bool {
    let placement = context.options.placement(table);
    context.options.specs[table].grain == Grain::Rows
        && !chosen.whole[table]
        && !matches!(placement, PlacementChoice::TableWise(_))
}

/// Traffic that each owner has by formula, without the heaviest rows, which are returned, heaviest
/// first.
fn formula_loads(
    context: &Context<'_>,
    chosen: &Chosen,
    statistics: &Statistics,
    loads: &mut [f64],
) -> Vec<Heavy> {
    let (options, candidates) = (context.options, context.candidates);
    let num_owners = loads.len();
    let most = PLACED_PER_OWNER * num_owners;
    let (mut heavy, mut even, mut skip) = (Vec::new(), 0.0, chosen.num_frequent);
    for group in candidates.ordered.iter().chain(&candidates.others) {
        let taken = skip.min(group.named.len() as u64) as usize;
        skip -= taken as u64;
        let (table, spec) = (group.table, &options.specs[group.table]);
        if !is_divided(context, chosen, table) || candidates.bags[table].is_some() {
            continue;
        }
        let load = group.rate.chance_in(1.0 / num_owners as f64) * spec.dim as f64;
        let named = group.named.start + taken..group.named.end;
        even += load * (group.rows - taken as f64 - named.len() as f64).max(0.0);
        if spec.keys == Keys::RawIds {
            // Their owners are a hash away, evenly spread; no owner can be assigned one.
            even += load * named.len() as f64;
            continue;
        }
        for entry in &statistics.tables[table].counted[named] {
            if heavy.len() < most {
                heavy.push(Heavy { load, table, row: entry.row });
            } else {
                loads[formula_owner(table, entry.row, num_owners)] += load;
            }
        }
    }
    even += (0..candidates.bags.len())
        .filter(|&table| is_divided(context, chosen, table))
        .filter_map(|table| bag_load(context, table))
        .sum::<f64>();
    loads.iter_mut().for_each(|owner| *owner += even / num_owners as f64);
    heavy.sort_by(|one, other| other.load.total_cmp(&one.load));
    heavy
}

/// What one rank asks owners for, where they pool the bags of the table.
fn bag_load(context: &Context<'_>, table: usize) -> Option<f64> {
    let ranks = context.options.cluster.num_ranks() as f64;
    let dim = context.options.specs[table].dim as f64;
    context.candidates.bags[table].map(|bags| bags.vectors / ranks * dim)
}

/// Owners of tables that lie on one rank: those that were named, then the heaviest table to the
/// least busy owner.
fn place_tables(context: &Context<'_>, chosen: &Chosen, loads: &mut [f64]) -> Vec<Option<Owner>> {
    let options = context.options;
    let part = 1.0 / loads.len() as f64;
    let load_of = |table: usize| -> f64 {
        if let Some(load) = bag_load(context, table) {
            return load;
        }
        let groups = context.candidates.of_table(table);
        let chance: f64 = groups.map(|group| group.rate.chance_in(part) * group.rows).sum();
        chance * options.specs[table].dim as f64
    };
    let mut owners = vec![None; options.specs.len()];
    let mut open = Vec::new();
    for (table, place) in owners.iter_mut().enumerate() {
        match options.placement(table) {
            _ if chosen.whole[table] => {}
            PlacementChoice::TableWise(Some(owner)) => {
                *place = Some(owner);
                loads[owner.0] += load_of(table);
            }
            _ if is_divided(context, chosen, table) => {}
            _ => open.push((load_of(table), table)),
        }
    }
    open.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (load, table) in open {
        let owner = least(loads);
        loads[owner] += load;
        owners[table] = Some(Owner(owner));
    }
    owners
}

fn least(loads: &[f64]) -> usize {
    let owners = loads.iter().enumerate();
    owners.min_by(|one, other| one.1.total_cmp(other.1)).map_or(0, |(owner, _)| owner)
}

/// Heaviest first: to the owner that the formula names unless it has enough, else to the least
/// busy.
fn place_rows(heavy: &[Heavy], loads: &mut [f64], placed: &mut [Vec<(u64, Owner)>]) {
    let total = loads.iter().sum::<f64>() + heavy.iter().map(|row| row.load).sum::<f64>();
    let enough = total / loads.len() as f64 * (1.0 + TOLERATED);
    for row in heavy {
        let by_formula = formula_owner(row.table, row.row, loads.len());
        let stays = loads[by_formula] + row.load <= enough;
        let owner = if stays { by_formula } else { least(loads) };
        loads[owner] += row.load;
        if owner != by_formula {
            placed[row.table].push((row.row, Owner(owner)));
        }
    }
}

fn placements(
    context: &Context<'_>,
    chosen: &Chosen,
    statistics: &Statistics,
    owners: &[Option<Owner>],
    placed: Vec<Vec<(u64, Owner)>>,
) -> Vec<TablePlacement> {
    let mut frequent: Vec<Vec<u64>> = vec![Vec::new(); owners.len()];
    for (group, taken) in context.candidates.first(chosen.num_frequent) {
        let rows = &statistics.tables[group.table].counted[group.named.clone()][..taken];
        frequent[group.table].extend(rows.iter().map(|entry| entry.row));
    }
    let placement = |table: usize, mut frequent: Vec<u64>, mut placed: Vec<(u64, Owner)>| {
        if chosen.whole[table] || frequent.len() as u64 == context.options.specs[table].rows {
            return TablePlacement::DataParallel;
        }
        if let Some(owner) = owners[table] {
            return TablePlacement::TableWise(owner);
        }
        frequent.sort_unstable();
        placed.sort_unstable();
        TablePlacement::RowWise { frequent, placed }
    };
    let tables = frequent.into_iter().zip(placed).enumerate();
    tables.map(|(table, (frequent, placed))| placement(table, frequent, placed)).collect()
}
