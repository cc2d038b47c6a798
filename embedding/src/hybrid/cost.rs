//! What a step's exchange costs in time: measured latencies, and what is assumed where nothing was
//! measured.

use super::traffic::{
    AllReduce, Cluster, Exchange, Hops, IdSource, Merge, Traffic, Variant, all_reduce,
};
use serde::{Deserialize, Serialize};

/// Time of an operation by its size, as measured.
///
/// Between two points it follows a straight line of logarithms, so a few points per decade are
/// enough; below the first it is that of the first, beyond the last it grows with the bytes as
/// between the last two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(f64, f64)>", into = "Vec<(f64, f64)>")]
pub struct LatencyTable {
    points: Vec<(f64, f64)>,
}

/// A latency table that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("latency table: point {index} is ({bytes} bytes, {us} us); {reason}")]
#[expect(missing_docs, reason = "the names of fields say it")]
pub struct LatencyTableError {
    pub index: usize,
    pub bytes: f64,
    pub us: f64,
    pub reason: &'static str,
}

impl TryFrom<Vec<(f64, f64)>> for LatencyTable {
    type Error = LatencyTableError;

    fn try_from(points: Vec<(f64, f64)>) -> Result<Self, LatencyTableError> {
        Self::new(points)
    }
}

impl From<LatencyTable> for Vec<(f64, f64)> {
    fn from(table: LatencyTable) -> Self {
        table.points
    }
}

/// Smallest and largest size of the points of a line.
const LINE_SIZES: (u32, u32) = (6, 30);

/// Bytes that may lie in an all-reduce besides gradients: sums of the loss, what rounds the counts
/// of touched rows up. So near its limit no direct step is planned: the run would not take it, and
/// the other ways send a fraction.
const BESIDES_BYTES: f64 = 1024.0;

/// Bytes a microsecond of what costs nothing.
const FREE: f64 = 1e30;

impl LatencyTable {
    /// A table of points (bytes, microseconds) with rising sizes.
    ///
    /// # Errors
    /// No point, sizes that do not rise, sizes or times that are not positive numbers.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self, LatencyTableError> {
        let refuse =
            |index, (bytes, us), reason| Err(LatencyTableError { index, bytes, us, reason });
        if points.is_empty() {
            return refuse(0, (0.0, 0.0), "there is at least one point");
        }
        for (index, &(bytes, us)) in points.iter().enumerate() {
            let positive = bytes.is_finite() && us.is_finite() && bytes > 0.0 && us > 0.0;
            if !positive {
                return refuse(index, (bytes, us), "sizes and times are positive");
            }
            if index > 0 && points[index - 1].0 >= bytes {
                return refuse(index, (bytes, us), "sizes rise");
            }
        }
        Ok(Self { points })
    }

    /// `latency_us + bytes / bytes_per_us`, with a point for each power of two from 64 B to 1 GiB.
    ///
    /// # Panics
    /// When the rate is not positive or the latency is negative.
    pub fn line(latency_us: f64, bytes_per_us: f64) -> Self {
        assert!(
            bytes_per_us > 0.0 && latency_us >= 0.0,
            "a rate is positive, a latency not negative"
        );
        let point = |exponent: u32| {
            let bytes = (1_u64 << exponent) as f64;
            (bytes, latency_us + bytes / bytes_per_us)
        };
        Self { points: (LINE_SIZES.0..=LINE_SIZES.1).map(point).collect() }
    }

    /// The points, by rising size.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Microseconds for `bytes`; nothing for no bytes.
    pub fn us(&self, bytes: f64) -> f64 {
        let points = &self.points;
        let next = points.partition_point(|&(size, _)| size < bytes);
        let (first, last) = (points[0], points[points.len() - 1]);
        if bytes <= 0.0 {
            return 0.0;
        }
        if next == 0 {
            return first.1;
        }
        if next == points.len() {
            let rate = match points.len() {
                1 => last.1 / last.0,
                len => ((last.1 - points[len - 2].1) / (last.0 - points[len - 2].0)).max(0.0),
            };
            return last.1 + (bytes - last.0) * rate;
        }
        let ((small, before), (large, after)) = (points[next - 1], points[next]);
        let part = (bytes / small).ln() / (large / small).ln();
        before * (after / before).powf(part)
    }
}

/// What one kind of link does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCosts {
    /// By the bytes that one rank sends to all others together.
    pub all_to_all: LatencyTable,
    /// By the bytes that each of `m` ranks sends where it adds up its part and sends the sum to
    /// all: `2(m−1)/m` of the buffer. So one table is right for any number of ranks.
    pub all_reduce: LatencyTable,
    /// What one more message costs a rank.
    pub message_us: f64,
}

impl LinkCosts {
    /// Lines, by latency and bytes a microsecond, and what a message costs.
    fn line(all_to_all: (f64, f64), all_reduce: (f64, f64), message_us: f64) -> Self {
        let line = |(latency_us, rate)| LatencyTable::line(latency_us, rate);
        Self { all_to_all: line(all_to_all), all_reduce: line(all_reduce), message_us }
    }
}

/// What exchange and local work cost on some machines; `headlong bench tune` writes it as TOML.
///
/// ```
/// use headlong_embedding::hybrid::cost::Costs;
///
/// let costs = Costs::tcp();
/// assert!(costs.inter.all_to_all.us(1e6) > costs.inter.all_to_all.us(1e3));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Between ranks of one node.
    pub intra: LinkCosts,
    /// Between nodes.
    pub inter: LinkCosts,
    /// Bytes that one rank reads or writes in a microsecond while it gathers, sums and updates
    /// rows.
    pub memory_bytes_per_us: f64,
    /// What one row costs to gather or update besides its bytes.
    pub row_us: f64,
    /// What one lookup costs to sort and merge: paid for the whole batch by each rank where ids are
    /// known to all.
    pub route_us: f64,
    /// Longest all-reduce that is done in one direct step; between two ranks it sends the same
    /// bytes either way.
    pub direct_bytes: f64,
    /// How longer ones are done: hierarchical where nodes allow it, else in two steps.
    pub all_reduce: AllReduce,
}

impl Costs {
    /// Ranks as threads of one process. Assumed, not measured: a wake-up of 5 µs, half as fast as a
    /// core copies memory while the others do the same (4 GB/s a rank); an all-reduce waits twice.
    pub fn local() -> Self {
        let link = LinkCosts::line((5.0, 4000.0), (10.0, 4000.0), 0.5);
        Self {
            intra: link.clone(),
            inter: link,
            memory_bytes_per_us: 6000.0,
            row_us: 0.02,
            route_us: 0.03,
            direct_bytes: 16384.0,
            all_reduce: AllReduce::Hierarchical,
        }
    }

    /// Processes over TCP. Between nodes 25 Gbit/s at 80 % (2.5 GB/s); of the 263 µs that Gloo
    /// publishes for a small all-reduce over four hosts (median, 40 Gbit/s; facebookincubator/gloo,
    /// `docs`), each of its six dependent steps takes 44 µs, and ours are two. Inside a node
    /// loopback: 20 µs a wait, 2 GB/s.
    pub fn tcp() -> Self {
        Self {
            intra: LinkCosts::line((20.0, 2000.0), (40.0, 2000.0), 5.0),
            inter: LinkCosts::line((44.0, 2500.0), (88.0, 2500.0), 5.0),
            direct_bytes: 32768.0,
            ..Self::local()
        }
    }

    /// Processes of a node through shared memory, as [`Self::local`]; nodes over InfiniBand or
    /// RoCE, a NIC a rank at 95 % of 200 Gbit/s. Assumed, not measured: 5 µs a wait, of which
    /// an all-reduce has two.
    pub fn verbs() -> Self {
        Self {
            inter: LinkCosts::line((5.0, 23_750.0), (10.0, 23_750.0), 0.5),
            direct_bytes: 65536.0,
            ..Self::local()
        }
    }

    /// GPUs of a node over NVLink, nodes over InfiniBand. Bandwidths are those in HugeCTR's MLPerf
    /// configurations: all-to-all 190 GB/s inside a node and 23.75 GB/s a GPU between nodes;
    /// all-reduce 130 GB/s inside a node, and between nodes what the all-to-all reaches. A small
    /// all-reduce takes 15.2 µs in NCCL's model of eight NVLinked GPUs; the other latencies, and
    /// memory at 1.5 TB/s, are assumptions.
    pub fn gpus() -> Self {
        Self {
            intra: LinkCosts::line((8.0, 190_000.0), (15.2, 130_000.0), 0.0),
            inter: LinkCosts::line((15.0, 23_750.0), (30.0, 23_750.0), 0.3),
            memory_bytes_per_us: 1.5e6,
            row_us: 1e-4,
            route_us: 1e-4,
            direct_bytes: 65536.0,
            all_reduce: AllReduce::Hierarchical,
        }
    }

    /// No time at all but the bytes that a rank sends between nodes, a microsecond each, with a
    /// hierarchical all-reduce: the split with these costs sends the fewest bytes.
    pub fn bytes_between_nodes() -> Self {
        Self {
            intra: LinkCosts::line((0.0, FREE), (0.0, FREE), 0.0),
            inter: LinkCosts::line((0.0, 1.0), (0.0, 1.0), 0.0),
            memory_bytes_per_us: FREE,
            row_us: 0.0,
            route_us: 0.0,
            direct_bytes: 0.0,
            all_reduce: AllReduce::Hierarchical,
        }
    }

    /// The defaults of what carries the bytes, by the name it has in measurements: `local` and
    /// `shm`, `verbs`, between devices `nccl` and `peer`, else TCP.
    pub fn of_transport(name: &str) -> Self {
        match name {
            "local" | "shm" => Self::local(),
            "verbs" => Self::verbs(),
            "nccl" | "peer" => Self::gpus(),
            _ => Self::tcp(),
        }
    }

    /// How an all-reduce of `bytes` is done on `cluster`.
    pub fn all_reduce_way(&self, cluster: &Cluster, bytes: f64) -> AllReduce {
        match self.all_reduce {
            _ if bytes + BESIDES_BYTES <= self.direct_bytes => AllReduce::Direct,
            AllReduce::Direct => AllReduce::Direct,
            AllReduce::HierarchicalDirect if cluster.has_levels() => {
                match two_steps_pay(cluster, bytes) {
                    true => AllReduce::Hierarchical,
                    false => AllReduce::HierarchicalDirect,
                }
            }
            _ => self.parts_way(cluster),
        }
    }

    /// How sums of which each rank wants a part are made on `cluster`, and how all ranks get what
    /// each has: the two halves of an all-reduce that is not direct.
    pub fn parts_way(&self, cluster: &Cluster) -> AllReduce {
        match self.all_reduce {
            AllReduce::Hierarchical | AllReduce::HierarchicalDirect
                if cluster.has_levels() && cluster.nodes_are_subtrees() =>
            {
                AllReduce::Hierarchical
            }
            _ => AllReduce::TwoSteps,
        }
    }

    /// Microseconds of one half of that, of `bytes` over all parts: the sums, or what all get.
    pub fn parts_us(&self, cluster: &Cluster, bytes: f64) -> f64 {
        self.all_reduce_us_by(self.parts_way(cluster), cluster, bytes) / 2.0
    }

    /// One exchange of `bytes` (over all ranks), of which each rank has its part.
    pub fn all_to_all_us(
        &self,
        cluster: &Cluster,
        merge: Merge,
        exchange: Exchange,
        bytes: Hops,
    ) -> f64 {
        let ranks = cluster.num_ranks() as f64;
        let intra = self.intra.all_to_all.us(bytes.intra / ranks);
        let inter = self.inter.all_to_all.us(bytes.inter / ranks);
        let (nodes, largest) = (cluster.num_nodes() as f64, cluster.largest_node() as f64);
        let staged =
            cluster.has_levels() && (merge == Merge::Node || exchange == Exchange::Hierarchical);
        if staged {
            return intra
                + inter
                + self.inter.message_us * (nodes - 1.0)
                + self.intra.message_us * (largest - 1.0);
        }
        // All messages leave at once; both kinds of link work side by side.
        intra.max(inter)
            + self.inter.message_us * (ranks - largest)
            + self.intra.message_us * (largest - 1.0)
    }

    /// One all-reduce of a buffer of `bytes`.
    pub fn all_reduce_us(&self, cluster: &Cluster, bytes: f64) -> f64 {
        self.all_reduce_us_by(self.all_reduce_way(cluster, bytes), cluster, bytes)
    }

    fn all_reduce_us_by(&self, way: AllReduce, cluster: &Cluster, bytes: f64) -> f64 {
        if cluster.num_ranks() == 1 || bytes == 0.0 {
            return 0.0;
        }
        let (ranks, nodes, each) =
            (cluster.num_ranks(), cluster.num_nodes(), cluster.largest_node());
        let sent = |ranks: usize, buffer: f64| 2.0 * (ranks - 1) as f64 / ranks as f64 * buffer;
        let link = if nodes == 1 { &self.intra } else { &self.inter };
        match way {
            AllReduce::Hierarchical => {
                let rail = bytes / each as f64;
                self.intra.all_reduce.us(sent(each, bytes))
                    + self.inter.all_reduce.us(sent(nodes, rail))
            }
            AllReduce::HierarchicalDirect => {
                // What one rank sends to the others of its rail: one exchange.
                let across = all_reduce(cluster, way, bytes).inter / ranks as f64;
                self.intra.all_reduce.us(sent(each, bytes))
                    + self.inter.all_to_all.us(across)
                    + self.inter.message_us * (nodes - 1) as f64
            }
            AllReduce::TwoSteps => link.all_reduce.us(sent(ranks, bytes)),
            AllReduce::Direct => {
                // However short it is, its bytes go to every other rank.
                let all = all_reduce(cluster, way, bytes);
                let exchange = self.all_to_all_us(cluster, Merge::Off, Exchange::Flat, all);
                link.all_reduce.us(sent(ranks, bytes)).max(exchange)
            }
        }
    }
}

/// Whether devices of several nodes add up `bytes` in two steps: where a rank so sends 750 kB less
/// or better. (`headlong_comm` decides; the trainer's tests compare the two.)
fn two_steps_pay(cluster: &Cluster, bytes: f64) -> bool {
    let nodes = cluster.num_nodes() as f64;
    let segment = bytes / cluster.largest_node() as f64;
    let spared = segment * (nodes - 1.0) * (nodes - 2.0) / nodes;
    cluster.nodes_are_subtrees() && spared > 750_000.0
}

/// Microseconds of a step that exchange and rows take, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StepTimes {
    /// Ids to owners, or finding out what all ranks want.
    pub ids_us: f64,
    /// Vectors to those who requested them.
    pub forward_us: f64,
    /// Gradients to owners.
    pub backward_us: f64,
    /// All-reduce of frequent rows and dense gradients, in one or in two.
    pub all_reduce_us: f64,
    /// Gathering, summing and updating rows on one rank.
    pub rows_us: f64,
}

impl StepTimes {
    /// All of it.
    pub fn total_us(&self) -> f64 {
        self.ids_us + self.forward_us + self.backward_us + self.all_reduce_us + self.rows_us
    }
}

/// What one rank does with rows in a step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LocalWork {
    /// Rows gathered, summed or updated.
    pub rows: f64,
    /// Bytes read and written for that.
    pub bytes: f64,
}

impl Costs {
    /// Times of a step with this traffic over all ranks.
    pub fn step_times(
        &self,
        cluster: &Cluster,
        variant: Variant,
        traffic: &Traffic,
        step: &StepSizes,
    ) -> StepTimes {
        let exchange = |bytes| self.all_to_all_us(cluster, variant.merge, variant.exchange, bytes);
        let ranks = cluster.num_ranks() as f64;
        let ids_us = match variant.ids {
            IdSource::Exchange => exchange(traffic.ids),
            // A rank's own slice is sorted in either case.
            IdSource::Known => self.route_us * step.lookups * (1.0 - 1.0 / ranks),
        };
        StepTimes {
            ids_us,
            forward_us: exchange(traffic.vectors),
            backward_us: exchange(traffic.gradients),
            all_reduce_us: self.all_reduce_us(cluster, step.buffer_bytes)
                + self.all_reduce_us(cluster, step.dense_bytes)
                + self.all_reduce_us_by(self.parts_way(cluster), cluster, step.parts_bytes),
            rows_us: step.work.rows * self.row_us + step.work.bytes / self.memory_bytes_per_us,
        }
    }
}

/// What a step's times depend on besides its traffic.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepSizes {
    /// Bytes of the buffer that is summed over ranks.
    pub buffer_bytes: f64,
    /// Of dense gradients that are summed in an all-reduce of their own.
    pub dense_bytes: f64,
    /// Of dense gradients that are summed in parts and of weights that are gathered, the mean.
    pub parts_bytes: f64,
    /// Lookups of the whole batch.
    pub lookups: f64,
    /// Work of one rank on rows.
    pub work: LocalWork,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_points_logarithms_are_straight() {
        let table =
            LatencyTable::new(vec![(100.0, 4.0), (10_000.0, 16.0), (20_000.0, 26.0)]).unwrap();
        assert_eq!(table.us(0.0), 0.0);
        assert_eq!(table.us(1.0), 4.0);
        assert!(
            (table.us(1000.0) - 8.0).abs() < 1e-12,
            "half way in logarithms is the geometric mean"
        );
        assert!((table.us(10_000.0) - 16.0).abs() < 1e-12);
        assert!(
            (table.us(40_000.0) - 46.0).abs() < 1e-9,
            "a byte costs as between the last two points"
        );
        assert_eq!(LatencyTable::new(vec![(10.0, 5.0)]).unwrap().us(20.0), 10.0);
    }

    #[test]
    fn a_line_is_near_its_formula_everywhere() {
        let table = LatencyTable::line(20.0, 2500.0);
        for bytes in [64.0, 700.0, 50_000.0, 70_000.0, 3e6, 5e9] {
            let exact = 20.0 + bytes / 2500.0;
            assert!((table.us(bytes) / exact - 1.0).abs() < 0.03, "{bytes}");
        }
        let pure = LatencyTable::line(0.0, 130.0);
        assert!(
            (pure.us(777.0) / (777.0 / 130.0) - 1.0).abs() < 1e-12,
            "without latency it is exact"
        );
    }

    #[test]
    fn impossible_tables_are_refused_by_point() {
        let refused = |points: &[(f64, f64)]| LatencyTable::new(points.to_vec()).unwrap_err();
        assert_eq!(refused(&[]).reason, "there is at least one point");
        assert_eq!(refused(&[(1.0, 1.0), (1.0, 2.0)]).index, 1);
        assert!(
            refused(&[(1.0, 1.0), (2.0, -1.0)]).to_string().contains("point 1 is (2 bytes, -1 us)")
        );
        assert_eq!(refused(&[(f64::NAN, 1.0)]).index, 0);
    }

    #[test]
    fn a_hierarchical_all_reduce_is_worth_it_between_nodes_alone() {
        let costs = Costs::verbs();
        assert_eq!(costs.all_reduce_way(&Cluster::even(14, 8), 1e6), AllReduce::Hierarchical);
        assert_eq!(costs.all_reduce_way(&Cluster::even(8, 1), 1e6), AllReduce::TwoSteps);
        assert_eq!(costs.all_reduce_way(&Cluster::even(2, 3), 1e6), AllReduce::TwoSteps);
        assert_eq!(costs.all_reduce_way(&Cluster::even(14, 8), 100.0), AllReduce::Direct);
        assert_eq!(costs.all_reduce_us(&Cluster::even(1, 1), 1e6), 0.0);
        assert!(
            costs.all_reduce_us(&Cluster::even(2, 8), 1e6)
                > costs.all_reduce_us(&Cluster::even(1, 8), 1e6)
        );
    }

    #[test]
    fn names_of_transports_choose_defaults() {
        assert_eq!(Costs::of_transport("local"), Costs::local());
        assert_eq!(Costs::of_transport("auto"), Costs::tcp());
        assert_eq!(Costs::of_transport("verbs"), Costs::verbs());
        for between_devices in ["nccl", "peer"] {
            assert_eq!(Costs::of_transport(between_devices), Costs::gpus());
        }
    }
}
