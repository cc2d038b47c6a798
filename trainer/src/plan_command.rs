//! `headlong plan`, and the plan that `headlong train` prints first.

use crate::cli::PlanArguments;
use crate::config::{Config, Ids, ROWS_FROM_DICTIONARY, TableRows};
use crate::error::Result;
use crate::machine::Machine;
use crate::output;
use crate::plan::{Facts, Plan};
use crate::preset;

/// Prints the plan of a configuration and refuses what does not fit.
///
/// # Errors
/// As [`crate::cli::TrainArguments::resolve`]; [`crate::error::Error::DoesNotFit`] after the plan is printed.
pub fn run(arguments: &PlanArguments) -> Result<()> {
    let (config, options) = arguments.train.resolve()?;
    let (rows, note) = planned_rows(&config)?;
    let data_rows = arguments.data_rows.or_else(|| known_data_rows(&config));
    let plan = Plan::new(&config, &Facts { table_rows: &rows, data_rows, machine: &Machine::detect() });
    let document = serde_json::to_value(&plan).expect("a plan has a JSON form");
    let text = format!("plan of {}\n{}{note}", options.origin, plan.to_text());
    output::answer(&arguments.json, &text, &document)?;
    plan.check(&config)
}

/// Rows of the training data where they are known without reading it.
pub fn known_data_rows(config: &Config) -> Option<u64> {
    (config.data.train.is_empty() && config.synthetic.enabled).then_some(config.synthetic.train_rows)
}

/// Rows of each table before any file is read: where a dictionary decides that is not built yet, the published counts
/// of the Kaggle data as an upper bound, with a note.
///
/// # Errors
/// As [`Config::table_rows`].
pub fn planned_rows(config: &Config) -> Result<(Vec<u64>, String)> {
    let from_dictionary =
        matches!(&config.tables.rows, TableRows::Named(name) if name == ROWS_FROM_DICTIONARY);
    if !(from_dictionary && config.data.ids == Ids::Dictionary) {
        return Ok((config.table_rows(None)?, String::new()));
    }
    let mut bound = vec![1_000_000; config.data.num_sparse];
    for (rows, published) in bound.iter_mut().zip(preset::KAGGLE_CARDINALITIES) {
        *rows = published + 1;
    }
    let note = "the dictionary decides the numbers of rows; these are those of the full Kaggle data\n";
    Ok((config.table_rows(Some(&bound))?, note.to_owned()))
}
