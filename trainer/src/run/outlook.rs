//! What is known of a run before its data is made or read: enough to refuse what cannot fit.

use crate::Registry;
use crate::config::preset::KAGGLE_CARDINALITIES;
use crate::config::{CacheData, Config};
use crate::data::{
    DeviceRows, MOST_COMPRESSION, MOST_RESIDENT_STORED_BYTES, cached_bytes, decoded_bytes,
    format_of, known_samples, stays_on_devices,
};
use crate::error::{Error, Result};
use crate::plan::evaluation::check_eval_ranks;
use crate::plan::{Facts, Plan};
use crate::run::dictionary::{RunDictionary, dictionary_decides};
use crate::system::machine::Machine;
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use std::path::Path;

/// Bytes of a row of Criteo's text that is made up or kept decoded.
const ROW_BYTES: u64 = 256;

/// Rows of each table before any row is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// Rows of each table; where a dictionary that is not built yet decides, as many as it can give
    /// at most.
    pub rows: Vec<u64>,
    /// Rows of each table at least.
    pub least_rows: Vec<u64>,
    /// Rows of the training data, where known.
    pub data_rows: Option<u64>,
    /// Bytes of validation data that stay in memory.
    pub kept_bytes: u64,
    /// Bytes of training data that stay in memory (`data.cache`).
    pub cached_bytes: u64,
    /// Rows whose batches stay on the devices of ranks.
    pub device_rows: DeviceRows,
}

/// Ranks and the machine that they are on.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub machine: &'a Machine,
    /// Ranks that share it; none: all.
    pub ranks_here: Option<usize>,
    /// Processes that only evaluate and share it; none: all.
    pub evaluating_here: Option<usize>,
    /// Whether each rank is a process of its own.
    pub separate: bool,
    /// The kinds of tables, which know what theirs take.
    pub registry: &'a Registry,
}

impl Outlook {
    /// What is known of `config` before any data is made or read.
    pub fn of(config: &Config) -> Result<Self> {
        let named = config.data.dictionary.as_ref().filter(|_| dictionary_decides(config));
        let named = named.map(|path| RunDictionary::named(path, config)).transpose()?;
        let rows = named.as_ref().map(RunDictionary::table_rows);
        Self::with_dictionary(config, rows.as_deref())
    }

    /// The same where it is known what rows the dictionary gives each table, or that there is none
    /// yet.
    pub fn with_dictionary(config: &Config, dictionary_rows: Option<&[u64]>) -> Result<Self> {
        let (rows, least_rows) = match dictionary_rows {
            _ if !dictionary_decides(config) => {
                (config.table_rows(None)?, config.table_rows(None)?)
            }
            Some(rows) => (config.table_rows(Some(rows))?, config.table_rows(Some(rows))?),
            None => {
                let least = vec![1; config.data.num_sparse];
                (
                    config.table_rows(Some(&dictionary_bound(config)))?,
                    config.table_rows(Some(&least))?,
                )
            }
        };
        let is_made_up = config.data.train.is_empty() && config.synthetic.enabled;
        let data_rows = match is_made_up {
            true => Some(config.synthetic.train_rows),
            false => known_rows(&config.data.train, config),
        };
        Ok(Self {
            rows,
            least_rows,
            data_rows,
            device_rows: DeviceRows::of(config, data_rows),
            kept_bytes: kept_bytes(config, is_made_up),
            cached_bytes: cached_bytes(config),
        })
    }

    /// What is said where rows are a bound only.
    pub fn note(&self) -> &'static str {
        if self.rows == self.least_rows {
            return "";
        }
        "rows: the dictionary decides; these are an upper bound (the full Kaggle data, and what \
         the files can hold)\n"
    }

    /// Refuses what ranks of their own cannot evaluate, as far as is known: made-up data has rows
    /// to evaluate on.
    pub fn check_eval_ranks(&self, config: &Config) -> Result<()> {
        let has_validation = !config.data.valid.is_empty() || config.data.train.is_empty();
        check_eval_ranks(config, &self.rows, has_validation)
    }

    /// The facts for a plan with tables of `rows` rows, evenly divided among the ranks.
    pub fn facts<'a>(&self, rows: &'a [u64], place: &Place<'a>) -> Facts<'a> {
        let Place { machine, ranks_here, evaluating_here, separate, registry } = *place;
        let Self { data_rows, kept_bytes, cached_bytes, device_rows, .. } = *self;
        let unknown = Facts::new(rows, machine, registry);
        Facts {
            data_rows,
            kept_bytes,
            cached_bytes,
            device_rows,
            ranks_here,
            evaluating_here,
            separate,
            ..unknown
        }
    }
}

/// The plan of the least that `config` can come to, where even that does not fit, and why: before
/// anything is made, read or allocated.
pub fn what_cannot_fit(config: &Config, place: &Place<'_>) -> Result<Option<(Plan, Error)>> {
    let outlook = Outlook::of(config)?;
    let facts = outlook.facts(&outlook.least_rows, place);
    let plan = Plan::new(config, &facts);
    Ok(plan.check(config, &facts).err().map(|error| (plan, error)))
}

/// Rows of `files`, where their format says so and they can be read more than once. Files that
/// cannot be read are refused where they are.
fn known_rows(files: &[DataFile], config: &Config) -> Option<u64> {
    match files.is_empty() || files.iter().any(DataFile::is_stream) {
        true => None,
        false => known_samples(config, files).ok().flatten(),
    }
}

/// Bytes that validation data takes in memory, as far as its files tell.
fn kept_bytes(config: &Config, is_made_up: bool) -> u64 {
    if config.data.valid.is_empty() {
        let rows = if is_made_up { config.synthetic.valid_rows } else { 0 };
        let bytes = rows.saturating_mul(ROW_BYTES);
        return if bytes <= MOST_RESIDENT_STORED_BYTES { bytes } else { 0 };
    }
    let valid = &config.data.valid;
    if format_of(config, valid).is_ok_and(|format| format != Format::Criteo) {
        if stays_on_devices(config, valid) {
            return 0;
        }
        return decoded_bytes(config, valid, CacheData::Auto);
    }
    let is_packed = |path: &Path| {
        let packed = ["gz", "zst", "parquet"];
        path.extension().is_some_and(|end| packed.iter().any(|packed| end == *packed))
    };
    let sizes = valid.iter().map(|file| (file.stored_bytes().unwrap_or(0), is_packed(file.path())));
    let (all, decoded) = sizes.fold((0_u64, 0_u64), |(all, decoded), (bytes, packed)| {
        let factor = if packed { MOST_COMPRESSION } else { 1 };
        (all.saturating_add(bytes), decoded.saturating_add(bytes.saturating_mul(factor)))
    });
    if all <= MOST_RESIDENT_STORED_BYTES { decoded } else { 0 }
}

/// The most rows that a dictionary of the training files can give each table: no more ids than the
/// full Kaggle data has, and no more than rows of text by `data.min_count`, where files are named.
fn dictionary_bound(config: &Config) -> Vec<u64> {
    /// Bytes of a row of Criteo's text, at least, over many rows.
    const LEAST_ROW_BYTES: u64 = 100;
    // The size of a pipe is not known: 0.
    let sizes =
        config.data.train.iter().map(|file| file.stored_bytes().ok().filter(|&bytes| bytes > 0));
    let stored = sizes.reduce(|sum, bytes| Some(sum?.saturating_add(bytes?))).flatten();
    let data_rows =
        stored.map_or(u64::MAX, |stored| stored.saturating_mul(MOST_COMPRESSION) / LEAST_ROW_BYTES);
    let ids = data_rows / u64::from(config.data.min_count.max(1));
    let columns = (0..config.data.num_sparse)
        .map(|column| KAGGLE_CARDINALITIES.get(column).unwrap_or(&u64::MAX));
    columns.map(|published| (*published).min(ids).min(MOST_UNKNOWN_ROWS) + 1).collect()
}

/// Rows of a table of which nothing is known.
const MOST_UNKNOWN_ROWS: u64 = 50_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::preset::preset;

    #[test]
    fn a_dictionary_that_is_not_built_is_bounded_by_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = preset("criteo-sample").unwrap();
        let outlook = Outlook::of(&config).unwrap();
        assert_eq!(outlook.rows.iter().sum::<u64>(), 33_762_577 + 26);
        assert_eq!(outlook.least_rows, [1; 26]);
        assert!(outlook.note().contains("upper bound"));
        let file = folder.path().join("rows.gz");
        std::fs::write(&file, vec![0; 30_000]).unwrap();
        config.data.train = vec![file.into()];
        let rows = Outlook::of(&config).unwrap().rows;
        // 30,000 bytes hold at most 1,200 rows, in which at most 400 ids occur three times.
        assert_eq!((rows[2], rows[8]), (401, 4));
        // What comes through a pipe as well may be any number.
        config.data.train.push("/dev/null".into());
        assert_eq!(Outlook::of(&config).unwrap().rows, outlook.rows);
        config.data.dictionary = Some(folder.path().join("absent"));
        assert_eq!(Outlook::of(&config).unwrap_err().exit_code(), 1);
    }

    #[test]
    fn rows_are_known_for_synthetic_data_alone() {
        let mut config = preset("tiny").unwrap();
        let outlook = Outlook::of(&config).unwrap();
        assert_eq!(outlook.data_rows, Some(config.synthetic.train_rows));
        assert_eq!((outlook.note(), outlook.kept_bytes), ("", 256 * config.synthetic.valid_rows));
        config.data.train = vec!["a".into()];
        let outlook = Outlook::of(&config).unwrap();
        assert_eq!((outlook.data_rows, outlook.kept_bytes), (None, 0));
    }

    #[test]
    fn files_that_stay_in_memory_are_counted_decoded() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = preset("criteo-sample").unwrap();
        config.data.train = vec!["a".into()];
        for (name, expected) in [("valid.txt", 1000), ("valid.txt.gz", 4000)] {
            let file = folder.path().join(name);
            std::fs::write(&file, vec![0; 1000]).unwrap();
            config.data.valid = vec![file.into()];
            assert_eq!(Outlook::of(&config).unwrap().kept_bytes, expected);
        }
    }

    #[test]
    fn validation_data_of_other_formats_is_counted_as_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = preset("criteo-hashed").unwrap();
        config.data.train = vec!["a".into()];
        // MLPerf's records of 160 bytes: a label, 13 numbers, 26 ids of 4 bytes; ids have 8 here.
        let file = folder.path().join("valid.bin");
        std::fs::write(&file, vec![0; 160 * 100]).unwrap();
        config.data.valid = vec![file.into()];
        config.set_all(&["data.format=mlperf"]).unwrap();
        assert_eq!(Outlook::of(&config).unwrap().kept_bytes, 100 * (4 * 14 + 8 * 26));
    }

    #[test]
    fn what_is_too_large_is_refused_before_data_is_there() {
        let machine = Machine::detect();
        let place = Place {
            machine: &machine,
            ranks_here: None,
            evaluating_here: None,
            separate: false,
            registry: &Registry::default(),
        };
        let mut config = preset("tiny").unwrap();
        assert!(what_cannot_fit(&config, &place).unwrap().is_none());
        config.set_all(&["tables.rows=4000000000"]).unwrap();
        let (plan, error) = what_cannot_fit(&config, &place).unwrap().unwrap();
        assert!(!plan.fits && error.exit_code() == 2, "{error}");
        // What the dictionary decides is not known to be too large.
        let mut config = preset("criteo-sample").unwrap();
        config.set_all(&["model.dim=2048", "model.bottom=[64,2048]"]).unwrap();
        assert!(what_cannot_fit(&config, &place).unwrap().is_none());
    }
}
