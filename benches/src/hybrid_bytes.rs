//! Bytes between nodes in a step: pure model parallelism, merged on ranks and on nodes, hybrid, and
//! the least possible.
//!
//! On real Criteo rows (counted, batch by batch, with a split made from other batches), and on
//! frequencies like those of the Terabyte logs at MLPerf's batch sizes (planned from known rates,
//! with a split made from counts of draws). `docs/hybrid.md` says what the columns mean.

mod real;
mod run;

mod terabyte_plan;

use crate::harness::Harness;
use headlong_device::optimizer::Optimizer;
use headlong_embedding::hybrid::cost::Costs;
use headlong_embedding::hybrid::split::{Split, SplitOptions};
use headlong_embedding::hybrid::traffic::{Cluster, Exchange, IdSource, Merge, Variant};
use serde_json::json;

/// Name that `--only` asks for.
const NAME: &str = "hybrid_bytes";

const SHAPES: [(usize, usize); 5] = [(2, 1), (8, 1), (2, 8), (14, 8), (16, 8)];

/// The sparse optimiser of MLPerf's DLRM v1.
const SGD: Optimizer = Optimizer::Sgd;

/// One line of the table: bytes that leave a node in a step, forward and backward, without dense
/// gradients.
#[derive(Debug, Clone)]
struct Line {
    data: &'static str,
    batch_size: u64,
    cluster: Cluster,
    pure: f64,
    rank: f64,
    node: f64,
    /// Frequent rows in a hierarchical all-reduce, one vector for each other lookup.
    hybrid: f64,
    hybrid_rows: u64,
    /// The least for any choice of frequent rows.
    optimum: f64,
    /// What `auto` chooses, and what that sends.
    auto: Auto,
}

/// What `auto` chooses.
#[derive(Debug, Clone)]
struct Auto {
    variant: Variant,
    frequent_rows: u64,
    /// Everything but dense gradients: ids and counts, too.
    bytes: f64,
    predicted: f64,
}

pub fn run(harness: &mut Harness) -> anyhow::Result<()> {
    if !harness.wants(NAME) {
        return Ok(());
    }
    let smoke = harness.settings().smoke;
    println!(
        "{NAME}: MB that leave one node in a step, forward and backward, without dense gradients"
    );
    println!("{}", header());
    let mut keep = |line: &Line| {
        println!("{}", line.text());
        harness.keep_row(line.json());
    };
    let real = match real::Real::read(smoke)? {
        Ok(real) => {
            real::lines(&real, smoke)?.iter().for_each(&mut keep);
            Some(real)
        }
        Err(reason) => {
            println!("real rows skipped, because {reason}");
            None
        }
    };
    terabyte_plan::lines(smoke, &mut keep);
    match real {
        Some(real) => run::compare(&real, smoke, harness),
        None => Ok(()),
    }
}

/// The split that sends the fewest bytes between nodes where equal rows are not merged.
fn fewest_bytes<'a>(options: &SplitOptions<'a>) -> (Costs, SplitOptions<'a>) {
    let (merge, ids) = (Some(Merge::Off), Some(IdSource::Known));
    let options = SplitOptions {
        merge,
        ids,
        exchange: Some(Exchange::Flat),
        dense_bytes: 0,
        sums_apart: false,
        gathered_bytes: None,
        ..options.clone()
    };
    (Costs::bytes_between_nodes(), options)
}

fn header() -> String {
    format!(
        "{:<10} {:>6} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7} {:>8} {:>9}  auto",
        "data",
        "batch",
        "nodes",
        "pure MP",
        "per rank",
        "per node",
        "hybrid",
        "optimum",
        "hybrid/",
        "pure MP/",
        "frequent",
        "auto"
    )
}

impl Line {
    fn shape(&self) -> String {
        format!("{}x{}", self.cluster.num_nodes(), self.cluster.largest_node())
    }

    fn text(&self) -> String {
        let mb = |bytes: f64| format!("{:>9.3}", bytes / 1e6);
        format!(
            "{:<10} {:>6} {:>6} {} {} {} {} {} {:>7.4} {:>8.2} {:>8} {}  {} (predicted {})",
            self.data,
            self.batch_size,
            self.shape(),
            mb(self.pure),
            mb(self.rank),
            mb(self.node),
            mb(self.hybrid),
            mb(self.optimum),
            self.hybrid / self.optimum,
            self.pure / self.hybrid,
            self.hybrid_rows,
            mb(self.auto.bytes),
            way(&self.auto),
            mb(self.auto.predicted).trim_start(),
        )
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "bench": NAME, "data": self.data, "batch_size": self.batch_size,
            "nodes": self.cluster.num_nodes(), "ranks_per_node": self.cluster.largest_node(),
            "unit": "bytes that leave a node in a step",
            "pure_model_parallel": self.pure, "merged_on_rank": self.rank,
            "merged_on_node": self.node,
            "hybrid": self.hybrid, "hybrid_frequent_rows": self.hybrid_rows,
            "optimum": self.optimum,
            "hybrid_over_optimum": self.hybrid / self.optimum,
            "pure_over_hybrid": self.pure / self.hybrid,
            "auto": self.auto.bytes, "auto_predicted": self.auto.predicted,
            "auto_frequent_rows": self.auto.frequent_rows, "auto_way": self.auto.variant,
        })
    }
}

fn way(auto: &Auto) -> String {
    let merge = match auto.variant.merge {
        Merge::Off => "not merged",
        Merge::Rank => "merged on the rank",
        Merge::Node => "merged on the node",
    };
    let ids = match auto.variant.ids {
        IdSource::Exchange => "ids exchanged",
        IdSource::Known => "ids known",
    };
    let exchange = match (auto.variant.merge, auto.variant.exchange) {
        (Merge::Node, _) | (_, Exchange::Flat) => "",
        (_, Exchange::Hierarchical) => ", hierarchical",
    };
    format!("{merge}{exchange}, {ids}, {} frequent rows", auto.frequent_rows)
}

fn predicted(split: &Split, cluster: &Cluster) -> f64 {
    split.traffic.of_embeddings().inter / cluster.num_nodes() as f64
}
