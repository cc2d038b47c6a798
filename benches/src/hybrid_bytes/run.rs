//! The same bytes counted where they leave the transport, in training steps on real rows, for up to
//! eight ranks.

use super::real::{BATCH_SIZE, DIM, Real, TABLE_ROWS};
use super::{NAME, SGD};
use crate::harness::Harness;
use headlong::config::{AllToAll, Config, DeduplicateChoice, IdsChoice};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::iteration::worker::StepRates;
use headlong_embedding::Registry;
use headlong_embedding::hybrid::Partition;
use headlong_embedding::hybrid::cost::Costs;
use headlong_embedding::hybrid::split::{HybridMode, Split, SplitOptions, split};
use headlong_embedding::hybrid::traffic::{Cluster, Exchange, IdSource, Merge};
use serde_json::json;
use std::sync::Arc;

/// Nodes and ranks on each; all in this process.
const SHAPES: [(usize, usize); 3] = [(2, 1), (8, 1), (2, 4)];

const STEPS: usize = 8;

/// Trains with pure model parallelism, merged on ranks and on nodes, and as `auto` chooses, and
/// sets prediction next to count.
pub(super) fn compare(real: &Real, smoke: bool, harness: &mut Harness) -> anyhow::Result<()> {
    println!(
        "{NAME}: bytes of all ranks in a step, dense gradients included: predicted, and counted by \
         the run"
    );
    let ways = [
        ("pure model parallel", HybridMode::Off, Some(Merge::Off)),
        ("merged on the rank", HybridMode::Off, Some(Merge::Rank)),
        ("merged on the node", HybridMode::Off, Some(Merge::Node)),
        ("1,000 frequent rows", HybridMode::Rows(1000), Some(Merge::Rank)),
        ("auto", HybridMode::Auto, None),
    ];
    for (nodes, each) in SHAPES.into_iter().take(if smoke { 1 } else { SHAPES.len() }) {
        for (name, mode, merge) in ways {
            if merge == Some(Merge::Node) && (nodes == 1 || each == 1) {
                continue;
            }
            let cluster = Cluster::even(nodes, each);
            let mut options =
                SplitOptions::new(&real.specs, cluster.clone(), BATCH_SIZE as u64, &SGD);
            (options.mode, options.merge) = (mode, merge);
            let config = config(&cluster);
            options.dense_bytes = (headlong::plan::dense_parameters(&config) * 4_u64).get();
            // Ranks are threads: their all-reduce is that of the `local` transport.
            let costs = Costs { direct_bytes: Costs::local().direct_bytes, ..Costs::tcp() };
            let split = split(&real.statistics, &costs, &options)?;
            let counted = train(real, &split, config)?;
            let predicted = split.traffic.total();
            let shape = format!("{nodes}x{each}");
            println!(
                "{shape:>4} {name:<20} {:>6} frequent   between nodes {:>9.0} {:>9.0}   inside \
                 {:>9.0} {:>9.0}   off by {:+.2} %",
                split.frequent_rows(),
                predicted.inter,
                counted.0,
                predicted.intra,
                counted.1,
                (predicted.total() / (counted.0 + counted.1) - 1.0) * 100.0
            );
            harness.keep_row(json!({
                "bench": format!("{NAME}/run"), "data": "kaggle", "batch_size": BATCH_SIZE,
                "nodes": nodes, "ranks_per_node": each,
                "way": name, "variant": split.variant, "frequent_rows": split.frequent_rows(),
                "unit": "bytes of all ranks in a step", "predicted_inter": predicted.inter,
                "counted_inter": counted.0,
                "predicted_intra": predicted.intra, "counted_intra": counted.1,
            }));
        }
    }
    Ok(())
}

/// A dense network that hardly weighs: bytes of tables are what is compared.
fn config(cluster: &Cluster) -> Config {
    let mut config = Config::default();
    config.model.dim = DIM;
    config.model.bottom = vec![DIM];
    config.model.top = vec![1];
    config.train.batch_size = BATCH_SIZE;
    config.eval.batch_size = 64;
    config.run.ranks = cluster.num_ranks();
    config.train.sum_blocks = Some(cluster.num_ranks());
    config.comm.ranks_per_node = cluster.largest_node();
    config
}

/// Bytes of a step (between nodes, inside them) on held-out batches.
fn train(real: &Real, split: &Split, mut config: Config) -> anyhow::Result<(f64, f64)> {
    config.comm.deduplicate = match split.variant.merge {
        Merge::Off => DeduplicateChoice::Off,
        Merge::Rank => DeduplicateChoice::Rank,
        Merge::Node => DeduplicateChoice::Node,
    };
    config.comm.exchange = match split.variant.exchange {
        Exchange::Flat => AllToAll::Flat,
        Exchange::Hierarchical => AllToAll::Hierarchical,
    };
    config.comm.ids = match split.variant.ids {
        IdSource::Exchange => IdsChoice::Exchange,
        IdSource::Known => IdsChoice::Known,
    };
    let partition = Partition::new(&real.specs, config.run.ranks, split.placements.clone())?;
    let registry = Registry::default();
    let options = RankGroupOptions {
        partition: Some(Arc::new(partition)),
        ..RankGroupOptions::new(config.run.ranks, &registry)
    };
    let group = RankGroup::build(&config, &TABLE_ROWS, options)?;
    let batches = &real.held_out[..real.held_out.len().min(STEPS)];
    group.prime(&batches[0])?;
    for number in 1..=batches.len() {
        let rates = StepRates { number: number as u64, dense: 0.01, sparse: 0.01 };
        group.step(rates, Some(&batches[number % batches.len()]))?;
    }
    let sent = group.sent_per_step()?;
    Ok(sent.map_or((0.0, 0.0), |sent| (sent.inter_node, sent.intra_node)))
}
