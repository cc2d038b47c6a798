//! A table of one's own, driven through the library. `quotient_remainder.rs` is the table, written as in a crate of one's
//! own; docs/custom-tables.md walks through it.
//!
//! ```text
//! cargo run --release -p headlong --example 03_custom_table
//! ```

mod quotient_remainder;

use headlong::config::Config;
use headlong::crew::{Crew, CrewOptions};
use headlong::preset::preset;
use headlong::report::Reporter;
use headlong::session::{Session, Start};
use headlong::table::{Grain, Optimizer, Registry, TableSpec, check_table};
use headlong::train::Prepared;
use quotient_remainder::QuotientRemainder;

/// The tables that are of the new kind; a file given to a program would say the same.
const TABLES: &str = r#"
[[table]]
name = "C3"
kind = "quotient_remainder"
grain = "whole"
options = { buckets = 200 }

[[table]]
name = "C12"
kind = "quotient_remainder"
grain = "whole"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut registry = Registry::default();
    registry.register("quotient_remainder", QuotientRemainder);

    // Does it keep the promises of a table? Anything wrong ends the program and names the promise.
    let mut spec = TableSpec::new("ads", 5000, 16);
    (spec.kind, spec.grain) = ("quotient_remainder".to_owned(), Grain::Whole);
    check_table(registry.kind(&spec)?, &spec);
    println!("the table conforms");

    let folder = tempfile::tempdir()?;
    let mut config = preset("tiny")?;
    config.set_all(&["synthetic.train_rows=40_000", "synthetic.valid_rows=10_000"])?;
    config.table = Config::from_toml(TABLES, "tables")?.table;
    config.run.output_dir = folder.path().to_owned();
    config.checkpoint.dir = Some(folder.path().join("checkpoints"));
    config.validate_with(&registry)?;

    let threads = 2;
    let prepared = Prepared::new(&config, None, threads, &Reporter::quiet(None))?;
    let crew = Crew::build(&config, &prepared.table_rows, CrewOptions::new(threads, &registry))?;
    for (column, name) in [(2, "C3"), (11, "C12")] {
        let spec = config.table_spec(column, prepared.table_rows[column]);
        let [ours, dense] = [
            registry.kind(&spec)?.memory(&spec, &Optimizer::Sgd).weight_bytes,
            spec.dense_memory(&Optimizer::Sgd).weight_bytes,
        ];
        println!("{name}: {} rows in {ours} bytes instead of {dense}", spec.rows);
    }
    let data = prepared.session_data(&config, threads)?;
    let mut session = Session::open(&config, crew, data, &Start::Fresh)?;
    while let Some(step) = session.step()? {
        if session.steps().is_multiple_of(20) {
            println!("step {:>3}  loss {:.4}", session.steps(), step.loss);
        }
    }
    let auc = session.evaluate()?.and_then(|metrics| metrics.auc).ok_or("there is no validation data")?;
    let saved = session.save(Some("finished"))?.ok_or("there is no folder of checkpoints")?;
    println!("AUC {auc:.4}; {} bytes in {}", saved.bytes, saved.path.display());
    Ok(())
}
