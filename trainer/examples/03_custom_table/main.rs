//! A table of one's own, driven through the library. `quotient_remainder.rs` is the table, written
//! as in a crate of one's own; docs/custom-tables.md walks through it, and through a program that
//! has the command line.
//!
//! ```text
//! cargo run --release -p headlong --example 03_custom_table
//! ```

mod quotient_remainder;

use headlong::table::{Grain, Optimizer, Registry, TableSpec, check_table};
use headlong::{Config, Session};
use quotient_remainder::QuotientRemainder;
use std::path::Path;

/// The tables that are of the new kind; a file given to a program would say the same.
const TABLES: &str = r#"
[[table]]
name = "C3"
kind = "quotient_remainder"
options = { buckets = 200 }

[[table]]
name = "C12"
kind = "quotient_remainder"
"#;

fn main() -> headlong::Result<()> {
    let mut registry = Registry::default();
    registry.register("quotient_remainder", QuotientRemainder);

    // Does it keep the promises of a table? Anything wrong ends the program and names the promise.
    let spec = TableSpec { grain: Grain::Whole, ..TableSpec::new("ads", 5000, 16) };
    check_table(&QuotientRemainder, &spec);
    let named = TableSpec { kind: "quotient_remainder".to_owned(), ..spec.clone() };
    let ours = registry.kind(&named)?.memory(&named, &Optimizer::Sgd).weight_bytes;
    let dense = spec.dense_memory(&Optimizer::Sgd).weight_bytes;
    println!("the table conforms: {} rows in {ours} bytes, {dense} in a dense table", spec.rows);

    let folder =
        tempfile::tempdir().map_err(headlong::Error::io("create", "a temporary folder"))?;
    // A part, and then the rest of the epoch, as the next start of this program would train it.
    train(&registry, folder.path(), Some(200))?;
    train(&registry, folder.path(), None)
}

/// Trains on from the newest checkpoint in `folder`, where there is one: `steps` in all, or an
/// epoch.
fn train(registry: &Registry, folder: &Path, steps: Option<u64>) -> headlong::Result<()> {
    let mut config = Config::preset("tiny")?;
    config.set_all(&["synthetic.train_rows=40_000", "synthetic.valid_rows=10_000"])?;
    config.table = Config::from_toml(TABLES, "tables")?.table;
    config.train.steps = steps;
    config.run.output_dir = folder.to_owned();
    config.checkpoint.dir = Some(folder.join("checkpoints"));

    let mut session = Session::builder(&config).registry(registry).resume().open()?;
    println!("from step {}", session.steps());
    while let Some(step) = session.step()? {
        if session.steps().is_multiple_of(20) {
            println!("step {:>3}  loss {:.4}", session.steps(), step.loss);
        }
    }
    if let Some(auc) = session.evaluate()?.and_then(|metrics| metrics.auc) {
        println!("AUC {auc:.4}");
    }
    println!("saved in {}", session.save()?.display());
    Ok(())
}
