//! The dictionary of a run: named by the configuration, built from the training files, or taken
//! from a checkpoint.

use crate::config::{Config, Ids, ROWS_FROM_DICTIONARY, TableRows};
use crate::data::{self, block_options, key as data_key};
use crate::error::{Error, Result};
use crate::report::{Reporter, count, duration};
use crate::run::session::DICTIONARY_BLOB;
use crate::state::checkpoint::{Checkpoint, Difference, first_difference};
use headlong_device::pool::Pool;
use headlong_reader::dictionary::{
    CountedFile, DICTIONARY_FILE, Dictionary, DictionaryColumn, DictionaryRule,
};
use headlong_reader::formats::Format;
use headlong_reader::formats::part::Part;
use headlong_reader::io::DataFile;
use headlong_reader::make::{DictionaryFolder, MakeOptions};
use headlong_reader::{BlockOptions, FileIdentity, IdMapper};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const FOLDER: &str = "dictionary";

/// The dictionary's file at `path`, which names it or its folder.
pub(crate) fn file_at(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(DICTIONARY_FILE) } else { path.to_owned() }
}

/// The dictionary that a run builds where its configuration names none.
pub(crate) fn built_file(config: &Config) -> PathBuf {
    config.run.output_dir.join(FOLDER).join(DICTIONARY_FILE)
}

/// A dictionary and its bytes, which every checkpoint keeps: so a checkpoint can be used without
/// the files it was made from.
pub struct RunDictionary {
    dictionary: Arc<Dictionary>,
    bytes: Arc<Vec<u8>>,
    counted_rows: Option<u64>,
}

impl RunDictionary {
    pub fn of_checkpoint(checkpoint: &Checkpoint, config: &Config) -> Result<Self> {
        let context = "the dictionary of the checkpoint cannot be used";
        // Opening the blob compares its checksum.
        match checkpoint.blob(DICTIONARY_BLOB).map_err(Error::failed(context))? {
            Some(_) => Self::named(&checkpoint.path().join(DICTIONARY_BLOB), config),
            None => Err(Error::config(
                "data.ids",
                format!("{} has no dictionary", checkpoint.path().display()),
            )),
        }
    }

    /// That of a checkpoint, from its bytes.
    pub fn from_bytes(bytes: &[u8], config: &Config) -> Result<Self> {
        let path = Path::new(DICTIONARY_BLOB);
        let dictionary = Dictionary::from_bytes(path, bytes)
            .map_err(Error::failed("the dictionary cannot be read"))?;
        let (dictionary, bytes) = (Arc::new(dictionary), Arc::new(Vec::new()));
        Self { dictionary, bytes, counted_rows: None }.fitting(path, config)
    }

    /// The dictionary that `data.dictionary` names, or else one of the training files, built now
    /// where an earlier run has not left it in the output folder.
    pub fn find_or_build(
        config: &Config,
        files: &[DataFile],
        threads: usize,
        reporter: &Reporter,
    ) -> Result<Self> {
        if let Some(folder) = &config.data.dictionary {
            return Self::named(folder, config);
        }
        let path = config.run.output_dir.join(FOLDER);
        let wanted = Wanted::new(config, files)?;
        match wanted.found_in(&path) {
            Found::Fitting(found) => return Ok(wanted.reused(found, &path, reporter)),
            Found::Other(reason) => reporter
                .note(&format!("dictionary {}: {reason}, so it is counted again", path.display())),
            Found::Nothing => {}
        }
        let folder = DictionaryFolder::open(&path)
            .map_err(Error::failed("the dictionary cannot be built"))?;
        while !folder.try_lock() {
            let path = path.display();
            reporter
                .note(&format!("another process is making a dictionary in {path}: waiting for it"));
            folder.wait();
        }
        if let Found::Fitting(found) = wanted.found_in(&path) {
            return Ok(wanted.reused(found, &path, reporter));
        }
        let started = Instant::now();
        reporter.note(&format!(
            "building the dictionary of {} training files in {}",
            files.len(),
            path.display()
        ));
        build(config, files, &folder, threads, wanted)?;
        // Read while the folder is locked: it is the one that was built.
        let built = Self::load(&folder.file())?;
        let samples = built.num_counted();
        let rows = built.table_rows().iter().sum::<u64>();
        let took = duration(started.elapsed().as_secs_f64());
        reporter.note(&format!(
            "dictionary of {} rows from {} samples in {took}",
            count(rows),
            count(samples)
        ));
        Ok(Self { counted_rows: Some(samples), ..built })
    }

    /// The dictionary of a run that writes nothing: of the checkpoint that it resumes from, the
    /// named one, or what an earlier run of the same data has left in the output folder.
    pub fn that_is_there(
        config: &Config,
        files: &[DataFile],
        resumed: Option<&Checkpoint>,
    ) -> Result<Option<Self>> {
        match (resumed, &config.data.dictionary) {
            (Some(checkpoint), _) => Self::of_checkpoint(checkpoint, config).map(Some),
            (None, Some(path)) => Self::named(path, config).map(Some),
            // Files that cannot be read have left nothing.
            (None, None) => Ok(match Wanted::new(config, files) {
                Ok(wanted) => match wanted.found_in(&config.run.output_dir.join(FOLDER)) {
                    Found::Fitting(found) => Some(found),
                    Found::Other(_) | Found::Nothing => None,
                },
                Err(_) => None,
            }),
        }
    }

    fn load(path: &Path) -> Result<Self> {
        let (dictionary, bytes) = Dictionary::load_with_bytes(path)
            .map_err(Error::failed("the dictionary cannot be read"))?;
        Ok(Self { dictionary: Arc::new(dictionary), bytes: Arc::new(bytes), counted_rows: None })
    }

    /// The dictionary at `path`, which the configuration or a checkpoint names.
    pub fn named(path: &Path, config: &Config) -> Result<Self> {
        Self::load(path)?.fitting(path, config)
    }

    /// Refuses another number of columns than the configuration's.
    fn fitting(self, path: &Path, config: &Config) -> Result<Self> {
        let (expected, columns) = (config.data.num_sparse, self.dictionary.columns().len());
        if columns != expected {
            let message = format!(
                "expected {expected} columns (data.num_sparse), {} has {columns}",
                path.display()
            );
            return Err(Error::config("data.dictionary", message));
        }
        Ok(self)
    }

    fn num_counted(&self) -> u64 {
        self.dictionary.files().iter().map(|file| file.rows).sum()
    }

    /// Samples of the training files, where they were counted on the way.
    pub fn counted_rows(&self) -> Option<u64> {
        self.counted_rows
    }

    pub fn table_rows(&self) -> Vec<u64> {
        self.dictionary.rows()
    }

    /// Refuses tables with fewer rows than this dictionary gives out.
    ///
    /// # Errors
    /// [`Error::Config`] that names the first of them, and what takes the numbers of rows from the
    /// dictionary.
    pub fn check_rows(&self, config: &Config, table_rows: &[u64]) -> Result<()> {
        let tables = self.dictionary.rows().into_iter().zip(table_rows).enumerate();
        for (column, (needed, &rows)) in tables {
            if needed > rows && !config.is_raw(column) {
                let table = config.column_name(column);
                let (key, cure) = match dictionary_decides(config) {
                    true => {
                        ("tables.max_rows", format!("set it to {needed} or more, or leave it out"))
                    }
                    false => (
                        "tables.rows",
                        "tables.rows = \"dictionary\" takes the numbers from it".to_owned(),
                    ),
                };
                let message = format!(
                    "table {table}: the dictionary has {needed} rows, the table {rows}; {cure}"
                );
                return Err(Error::config(key, message));
            }
        }
        Ok(())
    }

    /// A mapper that looks rows up in this dictionary.
    pub fn mapper(&self, config: &Config, table_rows: &[u64]) -> Result<IdMapper> {
        self.check_rows(config, table_rows)?;
        let lookup: Arc<dyn headlong_reader::RowLookup> = Arc::clone(&self.dictionary) as _;
        let mapper = IdMapper::with_lookup(lookup, table_rows);
        let mapper = mapper.map_err(Error::failed("the dictionary cannot be used"))?;
        Ok(mapper.with_raw_columns(&config.raw_columns()))
    }

    /// The ids of each column that have rows.
    pub fn columns(&self) -> &[DictionaryColumn] {
        self.dictionary.columns()
    }

    pub fn checksum(&self) -> String {
        format!("{:016x}", self.dictionary.fingerprint())
    }

    pub fn bytes(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.bytes)
    }
}

/// The dictionary that a run needs: of these files, read in this way.
struct Wanted {
    rule: DictionaryRule,
    settings: Value,
    files: Vec<(PathBuf, Option<FileIdentity>)>,
}

/// What lies in a folder of dictionaries.
enum Found {
    Fitting(RunDictionary),
    /// Another one, and what is different.
    Other(String),
    /// None, or one that cannot be read.
    Nothing,
}

impl Wanted {
    fn new(config: &Config, files: &[DataFile]) -> Result<Self> {
        let rule = DictionaryRule {
            min_count: config.data.min_count.into(),
            max_rows: config.tables.max_rows,
        };
        let (settings, files) =
            (data_key::of_ids(config, files)?, data_key::identities(config, files)?);
        Ok(Self { rule, settings, files })
    }

    fn found_in(&self, folder: &Path) -> Found {
        let Ok(found) = RunDictionary::load(folder) else { return Found::Nothing };
        match self.difference(&found.dictionary) {
            None => Found::Fitting(found),
            Some(reason) => Found::Other(reason),
        }
    }

    /// What `found` was made of and this one is not.
    fn difference(&self, found: &Dictionary) -> Option<String> {
        if found.settings().is_null() {
            return Some("it does not say how its files were read".to_owned());
        }
        let other = first_difference("data", &self.settings, found.settings())
            .or_else(|| first_difference("rule", &self.rule, &found.rule()));
        if let Some(Difference { key, expected, found }) = other {
            return Some(format!("it is of other settings (`{key}` was {found}, is {expected})"));
        }
        let counted = found.files();
        if counted.len() != self.files.len() {
            return Some(format!(
                "it is of {} files, now there are {}",
                counted.len(),
                self.files.len()
            ));
        }
        let is_other = |((_, now), then): &(&(PathBuf, Option<FileIdentity>), &CountedFile)| {
            now.is_none() || *now != then.identity
        };
        let other = self.files.iter().zip(counted).find(is_other);
        other.map(|((path, _), _)| format!("{} is not the file that was counted", path.display()))
    }

    fn reused(&self, found: RunDictionary, folder: &Path, reporter: &Reporter) -> RunDictionary {
        reporter
            .note(&format!("dictionary {}: made earlier from the same files", folder.display()));
        RunDictionary { counted_rows: Some(found.num_counted()), ..found }
    }
}

/// Builds the dictionary in its folder, which is locked.
fn build(
    config: &Config,
    files: &[DataFile],
    folder: &DictionaryFolder,
    threads: usize,
    wanted: Wanted,
) -> Result<()> {
    let cannot = |error| Error::failed("the dictionary cannot be built")(error);
    let Wanted { rule, settings, files: identities } = wanted;
    let blocks = block_options(config, true, threads);
    if settings["format"] == Format::Criteo.name() && config.holdout().is_none() {
        let BlockOptions { schema, columns, on_bad_row, .. } = blocks;
        let default = MakeOptions::default();
        let options = MakeOptions { schema, columns, on_bad_row, rule, settings, ..default };
        return folder
            .make(files, &options, &Pool::new(threads), &mut |_| {})
            .map(drop)
            .map_err(cannot);
    }
    let counted = identities.into_iter().map(|(path, identity)| CountedFile {
        path: path.display().to_string(),
        bytes: identity.as_ref().map_or(0, |identity| identity.bytes),
        rows: 0,
        skipped: 0,
        identity,
    });
    let source = data::open_part(config, files, Part::Kept, threads)?;
    let dictionary = Dictionary::count(&*source, rule, counted.collect()).map_err(cannot)?;
    dictionary.with_settings(settings).save(&folder.file()).map_err(cannot)
}

/// Whether tables have the rows that a dictionary gives them.
pub(crate) fn dictionary_decides(config: &Config) -> bool {
    let is_asked_for =
        matches!(&config.tables.rows, TableRows::Named(name) if name == ROWS_FROM_DICTIONARY);
    is_asked_for && config.data.ids == Ids::Dictionary
}
