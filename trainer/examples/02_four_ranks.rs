//! Trains the same model on one rank and on four, and finds the same weights, bit for bit.
//!
//! Ranks are threads of this program; each trains on its share of every batch, owns a part of the
//! rows and exchanges the rest.
//!
//! ```text
//! cargo run --release -p headlong --example 02_four_ranks
//! ```

use headlong::config::preset::preset;
use headlong::config::{Config, HybridMode};
use headlong::iteration::ranks::{RankGroup, RankGroupOptions};
use headlong::report::Reporter;
use headlong::run::prepare::Prepared;
use headlong::run::session::{Session, Start};
use headlong_embedding::Registry;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let mut config = preset("tiny")?;
    // Sums over samples are cut into four blocks, however many ranks there are: that is what makes
    // all runs equal.
    config.set_all(&[
        "synthetic.train_rows=40_000",
        "synthetic.valid_rows=10_000",
        "train.sum_blocks=4",
    ])?;
    config.run.output_dir = folder.path().to_owned();

    let alone = train(&config)?;
    config.run.ranks = 4;
    for hybrid in [HybridMode::Off, HybridMode::Auto, HybridMode::Rows(1_000)] {
        config.run.hybrid = hybrid;
        assert_eq!(train(&config)?, alone);
    }
    println!("the same weights every time: {alone}");
    Ok(())
}

/// One epoch; the digest of all weights and optimiser states.
fn train(config: &Config) -> Result<String, Box<dyn std::error::Error>> {
    config.validate()?;
    let threads = 4;
    let prepared = Prepared::new(config, None, threads, &Reporter::quiet(None))?;
    // Where rows lie is decided from how frequent they are in the first batches.
    let registry = Registry::default();
    let placement = prepared.placement(
        config,
        &headlong::iteration::ranks::local_topology(config),
        &registry,
    )?;
    let partition = Some(placement.partition.clone());
    let options = RankGroupOptions { partition, ..RankGroupOptions::new(threads, &registry) };
    let group = RankGroup::build(&placement.decide(config), &prepared.table_rows, options)?;
    let data = prepared.session_data(config, threads)?;
    let mut session = Session::open(config, group, data, &Start::Fresh)?;
    while session.step()?.is_some() {}
    let sent = session.group().sent_per_step()?.map_or(0.0, |sent| sent.intra_node);
    let frequent = placement.split.map_or(0, |split| split.frequent_rows());
    println!(
        "{} ranks, {frequent} rows on all of them: {sent:.0} bytes exchanged in a step",
        config.run.ranks
    );
    Ok(session.weights_digest()?)
}
