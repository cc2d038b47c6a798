//! Where tables lie on many equal devices, and what each device then holds and answers.
//!
//! Every strategy is a pure function of the tables and the number of devices; none looks at the
//! memory there is. So a cluster with more memory can do whatever one with less can.

use crate::bags::AskedBags;
use crate::count::Count;
use crate::description::ClusterDescription;
use crate::practice::Practice;
use crate::workload::{TableLoad, Workload};
use headlong_embedding::hybrid::split::PlacementChoice;
use headlong_embedding::hybrid::traffic::{Cluster, Exchange, Hops, Merge, TOUCHED_BYTES};
use serde::Serialize;

/// Where one table lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Its most frequent rows on every device, the others divided by rows.
    Hybrid {
        frequent_rows: u64,
    },
    RowWise,
    TableWise {
        device: usize,
    },
    /// Every row cut into parts, each on a device of its own.
    ColumnWise {
        /// The device of the first part; the others follow.
        first: usize,
        parts: usize,
    },
    /// All rows on every device.
    DataParallel,
}

/// What is done with all tables, except where a small table or the user wants something else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Rows that come at least this often in a step are on every device.
    Hybrid {
        /// Lookups of a step.
        at_least: f64,
    },
    RowWise,
    TableWise,
    ColumnWise {
        parts: usize,
    },
    DataParallel,
}

impl Strategy {
    /// Its name in tables.
    pub fn name(self) -> String {
        match self {
            Self::Hybrid { at_least } => {
                format!("hybrid, rows from {at_least:.1} lookups a step on every device")
            }
            Self::RowWise => "row-wise".into(),
            Self::TableWise => "table-wise".into(),
            Self::ColumnWise { parts } => format!("column-wise, {parts} parts"),
            Self::DataParallel => "data-parallel".into(),
        }
    }

    /// Its name in a few letters, for pictures.
    pub fn short(self) -> &'static str {
        match self {
            Self::Hybrid { .. } => "hybrid",
            Self::RowWise => "row-wise",
            Self::TableWise => "table-wise",
            Self::ColumnWise { .. } => "column-wise",
            Self::DataParallel => "data-parallel",
        }
    }

    /// Whether `headlong train` can place tables like this today.
    pub fn is_trainable(self) -> bool {
        !matches!(self, Self::ColumnWise { .. })
    }
}

/// Where all tables lie.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Layout {
    /// What was asked for.
    pub strategy: Strategy,
    /// The tables, in column order.
    pub places: Vec<Place>,
    /// Bytes of rows and states on the device that holds most.
    pub bytes_of_busiest: Count,
    /// Bytes thereof that every device holds, gradients included.
    pub replicated_bytes: Count,
    /// What a step does with rows.
    pub rows: RowWork,
}

/// What a step does with rows, over all devices unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct RowWork {
    /// Lookups of rows that lie on every device.
    pub frequent_lookups: f64,
    pub infrequent_lookups: f64,
    /// Requests to owners: lookups of infrequent rows after equal ones have been merged.
    pub requests: f64,
    /// Of the infrequent lookups, those of bags that owners pool; of the requests, these bags.
    pub pooled_lookups: f64,
    pub pooled_vectors: f64,
    /// Bytes of f32 vectors that owners answer with.
    pub vector_bytes: f64,
    /// The same vectors on their way, one direction, at one byte a byte.
    pub travelling: Hops,
    /// Requests on their way.
    pub requests_travelling: Hops,
    /// Different infrequent rows of the whole step.
    pub distinct: f64,
    /// Bytes of one device's frequent rows in f32.
    pub frequent_bytes: f64,
    /// Bytes of one device's frequent rows in the all-reduce, f32.
    pub reduced_bytes: f64,
    /// What the busiest owner answers over the mean.
    pub imbalance: f64,
    /// Variance of what a pair of ranks has for each other: rows, and elements of vectors.
    pub request_variance: f64,
    pub vector_variance: f64,
    /// Where nodes merge requests.
    pub of_nodes: NodeWork,
}

/// What proxies of nodes ask owners for.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct NodeWork {
    /// Requests of all proxies.
    pub requests: f64,
    /// Bytes of f32 vectors that owners answer with.
    pub vector_bytes: f64,
    /// Variance of what a proxy asks one owner for: rows, and elements of vectors.
    pub request_variance: f64,
    pub vector_variance: f64,
}

/// What must be known to place tables.
#[derive(Clone, Copy)]
pub struct Placing<'a> {
    pub workload: &'a Workload,
    pub cluster: &'a ClusterDescription,
    pub practice: &'a Practice,
}

/// What one table's infrequent rows ask for in a step.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    lookups: f64,
    by_rank: f64,
    by_node: f64,
    distinct: f64,
    /// Of the rows that one rank asks one owner for, and of those that one proxy does.
    variance: f64,
    node_variance: f64,
}

impl Placing<'_> {
    /// Lays all tables as `strategy` says.
    pub fn lay(&self, strategy: Strategy) -> Layout {
        let tables = self.workload.tables.iter();
        let place = |(index, table)| self.place(table, self.of_table(index, strategy));
        self.lay_out(strategy, tables.enumerate().map(place).collect())
    }

    /// Lays each table at its place; those on one device or a few are given theirs.
    pub fn lay_out(&self, strategy: Strategy, mut places: Vec<Place>) -> Layout {
        let tables = &self.workload.tables;
        let loads = self.spread(&mut places);
        let mut held = vec![Count::ZERO; self.cluster.num_devices()];
        let mut rows = RowWork::default();
        let (mut replicated_bytes, mut everywhere) = (Count::ZERO, Count::ZERO);
        for (index, (table, &place)) in tables.iter().zip(&places).enumerate() {
            let on_all = frequent_rows(table, place);
            replicated_bytes += replica_bytes(table, on_all);
            everywhere += self.hold(table, place, &mut held);
            match self.pools(index) {
                true => self.count_bags(table, place, &mut rows),
                false => self.count(table, place, on_all, &mut rows),
            }
        }
        let busiest = held.iter().max().copied().unwrap_or_default();
        rows.imbalance = imbalance(&loads);
        Layout { strategy, places, bytes_of_busiest: busiest + everywhere, replicated_bytes, rows }
    }

    /// Whether owners pool the bags of table `table`, each what it has of them.
    fn pools(&self, table: usize) -> bool {
        self.cluster.num_devices() > 1 && self.practice.pools(table)
    }

    /// `strategy` as far as it is one for table `table`: where owners pool bags, each row is one
    /// owner's.
    fn of_table(&self, table: usize, strategy: Strategy) -> Strategy {
        match strategy {
            Strategy::TableWise => strategy,
            _ if self.pools(table) => Strategy::RowWise,
            _ => strategy,
        }
    }

    /// The place of one table; those on one device or a few get their device later.
    fn place(&self, table: &TableLoad, strategy: Strategy) -> Place {
        let alone = self.cluster.num_devices() == 1;
        let strategy = match table.choice {
            _ if alone => return Place::RowWise,
            PlacementChoice::DataParallel => Strategy::DataParallel,
            PlacementChoice::RowWise => Strategy::RowWise,
            PlacementChoice::TableWise(_) => Strategy::TableWise,
            PlacementChoice::Auto if table.held_bytes.fits(self.practice.whole_table_bytes) => {
                Strategy::DataParallel
            }
            PlacementChoice::Auto => strategy,
        };
        match strategy {
            Strategy::Hybrid { at_least } => {
                let from = at_least / (table.hotness * self.workload.samples);
                let classes = table.frequencies.0.iter().take_while(|class| class.share >= from);
                match classes.map(|class| class.rows).sum::<f64>().round() as u64 {
                    0 => Place::RowWise,
                    rows if rows >= table.rows => Place::DataParallel,
                    frequent_rows => Place::Hybrid { frequent_rows },
                }
            }
            Strategy::RowWise => Place::RowWise,
            Strategy::TableWise => Place::TableWise { device: 0 },
            Strategy::ColumnWise { parts } => Place::ColumnWise {
                first: 0,
                parts: parts.min(table.dim).min(self.cluster.num_devices()),
            },
            Strategy::DataParallel => Place::DataParallel,
        }
    }

    /// Gives tables that lie on one device or a few their devices: the hottest first, each where
    /// the least is asked for. Returns what is asked of each device by such tables; what is divided
    /// by rows is asked of all alike.
    fn spread(&self, places: &mut [Place]) -> Vec<f64> {
        let devices = self.cluster.num_devices();
        let tables = &self.workload.tables;
        let asked = |table: usize| {
            let lookups = tables[table].hotness * self.workload.samples;
            lookups * tables[table].dim as f64
        };
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by(|&one, &other| asked(other).total_cmp(&asked(one)));
        let (mut loads, mut even) = (vec![0.0; devices], 0.0);
        let mut heap: std::collections::BinaryHeap<_> =
            (0..devices).map(|device| std::cmp::Reverse((0_u64, device))).collect();
        for table in order {
            match &mut places[table] {
                Place::TableWise { device } => {
                    // Whole numbers are ordered; a lookup's element is small enough a unit.
                    let std::cmp::Reverse((load, least)) =
                        heap.pop().expect("a cluster has devices");
                    *device = least;
                    heap.push(std::cmp::Reverse((load + asked(table) as u64, least)));
                    loads[least] += asked(table);
                }
                Place::ColumnWise { first, parts } => {
                    let at = least_run(&loads, *parts);
                    *first = at;
                    (at..at + *parts)
                        .for_each(|device| loads[device] += asked(table) / *parts as f64);
                }
                Place::RowWise => even += asked(table),
                Place::Hybrid { .. } => even += asked(table) * 0.5,
                Place::DataParallel => {}
            }
        }
        loads.iter_mut().for_each(|load| *load += even / devices as f64);
        loads
    }

    /// Adds a table's bytes to the devices that hold it; returns those that every device holds.
    fn hold(&self, table: &TableLoad, place: Place, held: &mut [Count]) -> Count {
        let devices = self.cluster.num_devices();
        let replicas = |rows: u64| replica_bytes(table, rows);
        let divided = |rows: u64| table.bytes_of(rows.div_ceil(devices as u64));
        match place {
            Place::DataParallel => replicas(table.rows),
            Place::RowWise => divided(table.rows),
            Place::Hybrid { frequent_rows } => {
                replicas(frequent_rows) + divided(table.rows - frequent_rows)
            }
            Place::TableWise { device } => {
                held[device] += table.held_bytes;
                Count::ZERO
            }
            Place::ColumnWise { first, parts } => {
                held[first..first + parts]
                    .iter_mut()
                    .for_each(|held| *held += table.held_bytes.share(parts));
                Count::ZERO
            }
        }
    }

    /// Adds what a step does with the rows of a table.
    fn count(&self, table: &TableLoad, place: Place, frequent_rows: u64, work: &mut RowWork) {
        let step = table.hotness * self.workload.samples;
        let row = table.dim as f64 * 4.0;
        let asked = self.asked(table, frequent_rows);
        work.frequent_lookups += step - asked.lookups;
        work.frequent_bytes += frequent_rows as f64 * row;
        work.reduced_bytes += frequent_rows as f64 * (row + TOUCHED_BYTES);
        work.infrequent_lookups += asked.lookups;
        work.distinct += asked.distinct;
        let mut requests = match self.practice.variant.merge {
            Merge::Off => asked.lookups,
            Merge::Rank | Merge::Node => asked.by_rank,
        };
        let mut hops = self.hops(asked);
        if self.practice.pools_at_owner && table.hotness > 0.0 {
            // One vector a bag of infrequent rows; owners of a node's shards add theirs up before
            // anything crosses.
            let bags = (asked.lookups / table.hotness).min(requests);
            (requests, hops) = (bags, even_hops(&self.cluster.shape(), bags));
            work.pooled_lookups += asked.lookups;
            work.pooled_vectors += bags;
        }
        let parts = if let Place::ColumnWise { parts, .. } = place { parts as f64 } else { 1.0 };
        work.requests += requests * parts;
        work.vector_bytes += requests * row;
        if self.practice.variant.merge == Merge::Node {
            let of_nodes = &mut work.of_nodes;
            of_nodes.requests += asked.by_node * parts;
            of_nodes.vector_bytes += asked.by_node * row;
            of_nodes.request_variance += asked.node_variance;
            of_nodes.vector_variance += asked.node_variance * (table.dim as f64).powi(2);
        }
        let variance = match self.practice.variant.merge {
            Merge::Off => asked.lookups / (self.cluster.num_devices() as f64).powi(2),
            Merge::Rank | Merge::Node => asked.variance,
        };
        work.request_variance += variance;
        work.vector_variance += variance * (table.dim as f64).powi(2);
        work.travelling += hops * row;
        work.requests_travelling += hops * parts;
    }

    /// The same of a table whose bags owners pool, each what it has of them.
    fn count_bags(&self, table: &TableLoad, place: Place, work: &mut RowWork) {
        let (devices, shape) = (self.cluster.num_devices(), self.cluster.shape());
        let owners = if let Place::TableWise { .. } = place { 1 } else { devices };
        let asked = AskedBags::of(table, self.workload.samples, owners);
        let dim = table.dim as f64;
        work.infrequent_lookups += asked.lookups;
        work.distinct += self.asked(table, 0).distinct;
        work.requests += asked.vectors;
        work.pooled_lookups += asked.lookups;
        work.pooled_vectors += asked.vectors;
        work.vector_bytes += asked.vectors * dim * 4.0;
        work.request_variance += asked.lookup_variance + asked.vector_variance;
        work.vector_variance += asked.vector_variance * dim.powi(2);
        let travels =
            |number| on_its_way(&shape, self.practice.variant.exchange, even_hops(&shape, number));
        work.travelling += travels(asked.vectors) * (dim * 4.0);
        // A word for each bag, and one for each id.
        work.requests_travelling += travels(asked.vectors + asked.lookups);
    }

    /// Vectors that travel one way.
    fn hops(&self, asked: Asked) -> Hops {
        let shape = self.cluster.shape();
        let (nodes, each) = (shape.num_nodes() as f64, shape.largest_node() as f64);
        let ranks = nodes * each;
        let direct = match self.practice.variant.merge {
            Merge::Off => even_hops(&shape, asked.lookups),
            Merge::Rank => even_hops(&shape, asked.by_rank),
            Merge::Node => {
                let inter = asked.by_node * (nodes - 1.0) / nodes;
                return Hops { intra: asked.by_rank * (1.0 - nodes / ranks), inter };
            }
        };
        on_its_way(&shape, self.practice.variant.exchange, direct)
    }

    /// What the rows of `table` behind its `frequent_rows` most frequent ones ask for.
    fn asked(&self, table: &TableLoad, frequent_rows: u64) -> Asked {
        let shape = self.cluster.shape();
        let (ranks, nodes) = (shape.num_ranks() as f64, shape.num_nodes() as f64);
        let step = table.hotness * self.workload.samples;
        let (mut skip, mut asked) = (frequent_rows as f64, Asked::default());
        for class in &table.frequencies.0 {
            let rows = class.rows - class.rows.min(skip);
            skip -= class.rows.min(skip);
            if rows <= 0.0 {
                continue;
            }
            let lambda = step * class.share;
            let met = |parts: f64| rows * parts * -(-lambda / parts).exp_m1();
            asked.lookups += rows * lambda;
            asked.by_rank += met(ranks);
            let missed = (-lambda / ranks).exp();
            asked.variance += rows / ranks * missed * (1.0 - missed);
            asked.distinct += met(1.0);
            if self.practice.variant.merge == Merge::Node {
                asked.by_node += met(nodes);
                let missed = (-lambda / nodes).exp();
                asked.node_variance += rows / ranks * missed * (1.0 - missed);
            }
        }
        asked
    }
}

/// What goes the direct way, with what a hierarchical exchange moves inside nodes besides.
pub(crate) fn on_its_way(shape: &Cluster, exchange: Exchange, direct: Hops) -> Hops {
    let carried = 1.0 - 1.0 / shape.largest_node() as f64;
    match exchange {
        Exchange::Flat => direct,
        Exchange::Hierarchical => direct + Hops { intra: direct.inter * carried, inter: 0.0 },
    }
}

/// Of `vectors` for ranks and owners drawn evenly, those that stay in a node and those that leave
/// it.
pub(crate) fn even_hops(shape: &Cluster, vectors: f64) -> Hops {
    let (nodes, each) = (shape.num_nodes() as f64, shape.largest_node() as f64);
    Hops { intra: vectors * (each - 1.0) / (nodes * each), inter: vectors * (nodes - 1.0) / nodes }
}

/// Rows of `table` that every device holds.
pub fn frequent_rows(table: &TableLoad, place: Place) -> u64 {
    match place {
        Place::Hybrid { frequent_rows } => frequent_rows,
        Place::DataParallel => table.rows,
        _ => 0,
    }
}

/// Bytes of replicated rows, with their gradients.
fn replica_bytes(table: &TableLoad, rows: u64) -> Count {
    let gradient_bytes = table.dim as u64 * 4 + TOUCHED_BYTES as u64;
    table.bytes_of(rows) + Count::from(rows) * gradient_bytes
}

/// Where `parts` neighbours have the least load, in steps of `parts`.
fn least_run(loads: &[f64], parts: usize) -> usize {
    let run = |at: usize| loads[at..at + parts].iter().copied().fold(0.0, f64::max);
    let starts = (0..=loads.len() - parts).step_by(parts.max(1));
    starts.min_by(|&one, &other| run(one).total_cmp(&run(other))).unwrap_or(0)
}

fn imbalance(loads: &[f64]) -> f64 {
    let all: f64 = loads.iter().sum();
    let most = loads.iter().copied().fold(0.0, f64::max);
    if all > 0.0 { most / (all / loads.len() as f64) } else { 1.0 }
}
