//! `headlong plan`, and the plan that `headlong train` prints first.

use crate::Registry;
use crate::cli::PlanArguments;
use crate::config::{Config, Ids, ROWS_FROM_DICTIONARY, TableRows};
use crate::crew::local_topology;
use crate::data;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::output;
use crate::placement::source_of_costs;
use crate::plan::{Facts, Plan, evaluation};
use crate::preset::KAGGLE_CARDINALITIES;
use crate::report::Reporter;
use crate::train::Prepared;
use headlong_embedding::hybrid::split::Split;
use headlong_reader::dictionary::Dictionary;

mod cluster;

/// Prints the plan of a configuration and refuses what does not fit.
///
/// # Errors
/// As [`crate::cli::TrainArguments::resolve`]; [`crate::error::Error::DoesNotFit`] after the plan is printed.
pub fn run(arguments: &PlanArguments, registry: &Registry) -> Result<()> {
    let on_cluster = &arguments.on_cluster;
    if on_cluster.check_published {
        return cluster::check_published(&arguments.json);
    }
    if let Some(name) = &on_cluster.cluster {
        return cluster::run(arguments, name, registry);
    }
    let (mut config, options) = arguments.train.resolve(registry)?;
    config.multi_hot.is_idle = !data::is_drawn(&config, &[&config.data.train, &config.data.valid])?;
    let (rows, note) = planned_rows(&config)?;
    let data_rows = arguments.data_rows.or_else(|| known_data_rows(&config));
    config.check_tables(&rows, registry)?;
    let (split, split_note) = planned_split(&config, registry)?;
    let machine = Machine::detect_with(config.run.device)?;
    let facts = Facts { table_rows: &rows, data_rows, machine: &machine, split: split.as_ref(), registry };
    let plan = Plan::new(&config, &facts);
    let document = serde_json::to_value(&plan).expect("a plan has a JSON form");
    let eval_note = evaluation::note(&config, known_valid_rows(&config)?, data_rows);
    let text = format!("plan of {}\n{}{note}{split_note}{eval_note}", options.origin, plan.to_text());
    output::answer(&arguments.json, &text, &document)?;
    plan.check(&config, registry)
}

/// The split of the rows among the ranks, from statistics of the training files' first batches; with a note where there are ranks
/// but no statistics.
fn planned_split(config: &Config, registry: &Registry) -> Result<(Option<Split>, String)> {
    if config.run.ranks == 1 {
        return Ok((None, String::new()));
    }
    let dictionary_to_build = config.data.ids == Ids::Dictionary && config.data.dictionary.is_none();
    if config.data.train.is_empty() || dictionary_to_build {
        let missing = if dictionary_to_build { "the dictionary is" } else { "training files are" };
        return Ok((None, format!("rows are split among the ranks once {missing} there\n")));
    }
    let threads = config.run.threads.unwrap_or_else(crate::machine::cores);
    let prepared = Prepared::new(config, None, threads, &Reporter::quiet(None))?;
    Ok((prepared.placement(config, &local_topology(config), registry)?.split, source_of_costs(config)?))
}

/// Rows of the training data where they are known without reading it.
pub fn known_data_rows(config: &Config) -> Option<u64> {
    (config.data.train.is_empty() && config.synthetic.enabled).then_some(config.synthetic.train_rows)
}

/// Rows of the validation data where they are known without reading it.
fn known_valid_rows(config: &Config) -> Result<Option<u64>> {
    match &config.data.valid[..] {
        [] => {
            Ok((config.data.train.is_empty() && config.synthetic.enabled)
                .then_some(config.synthetic.valid_rows))
        }
        files => data::known_samples(config, files),
    }
}

/// Rows of each table before any row is read: those of the dictionary where one is there, else an upper bound, with a
/// note.
///
/// # Errors
/// As [`Config::table_rows`]; [`Error::Failed`] where `data.dictionary` cannot be read.
pub fn planned_rows(config: &Config) -> Result<(Vec<u64>, String)> {
    let from_dictionary =
        matches!(&config.tables.rows, TableRows::Named(name) if name == ROWS_FROM_DICTIONARY);
    if !(from_dictionary && config.data.ids == Ids::Dictionary) {
        return Ok((config.table_rows(None)?, String::new()));
    }
    if let Some(path) = &config.data.dictionary {
        let dictionary = Dictionary::load(path).map_err(Error::failed("the dictionary cannot be read"))?;
        return Ok((config.table_rows(Some(&dictionary.rows()))?, String::new()));
    }
    let bound = dictionary_bound(config);
    let note = "rows: the dictionary decides; these are an upper bound (the full Kaggle data, and what the files can hold)\n";
    Ok((config.table_rows(Some(&bound))?, note.to_owned()))
}

/// The most rows that a dictionary of the training files can give each table: no more ids than the full Kaggle data has,
/// and no more than rows of text by `data.min_count`, where files are named.
fn dictionary_bound(config: &Config) -> Vec<u64> {
    /// Text bytes of one stored byte of a compressed file, at most.
    const MOST_COMPRESSION: u64 = 4;
    /// Bytes of a row of Criteo's text, at least, over many rows.
    const LEAST_ROW_BYTES: u64 = 100;
    let stored = config.data.train.iter().filter_map(|file| std::fs::metadata(file).ok());
    let stored: u64 = stored.map(|data| data.len()).sum();
    let data_rows = if stored == 0 { u64::MAX } else { stored * MOST_COMPRESSION / LEAST_ROW_BYTES };
    let ids = data_rows / u64::from(config.data.min_count.max(1));
    let columns =
        (0..config.data.num_sparse).map(|column| KAGGLE_CARDINALITIES.get(column).unwrap_or(&u64::MAX));
    columns.map(|published| (*published).min(ids).min(MOST_UNKNOWN_ROWS) + 1).collect()
}

/// Rows of a table of which nothing is known.
const MOST_UNKNOWN_ROWS: u64 = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::preset;

    #[test]
    fn a_dictionary_that_is_not_built_is_bounded_by_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = preset("criteo-sample").unwrap();
        let (rows, note) = planned_rows(&config).unwrap();
        assert_eq!(rows.iter().sum::<u64>(), 33_762_577 + 26);
        assert!(note.contains("upper bound"));
        let file = folder.path().join("rows.gz");
        std::fs::write(&file, vec![0; 30_000]).unwrap();
        config.data.train = vec![file.into()];
        let (rows, _) = planned_rows(&config).unwrap();
        // 30,000 bytes hold at most 1,200 rows, in which at most 400 ids occur three times.
        assert_eq!((rows[2], rows[8]), (401, 4));
        config.data.dictionary = Some(folder.path().join("absent"));
        assert_eq!(planned_rows(&config).unwrap_err().exit_code(), 1);
    }

    #[test]
    fn rows_are_known_for_synthetic_data_alone() {
        let mut config = preset("tiny").unwrap();
        assert_eq!(known_data_rows(&config), Some(config.synthetic.train_rows));
        config.data.train = vec!["a".into()];
        assert_eq!(known_data_rows(&config), None);
    }
}
