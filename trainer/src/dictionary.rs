//! The dictionary of a run: named by the configuration, built from the training files, or taken from a checkpoint.

use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::data::{self, block_options, failed};
use crate::error::{Error, Result};
use crate::report::{Reporter, count, duration};
use crate::session::DICTIONARY_BLOB;
use headlong_device::pool::Pool;
use headlong_reader::IdMapper;
use headlong_reader::dictionary::{CountedFile, DICTIONARY_FILE, Dictionary, DictionaryRule};
use headlong_reader::formats::Format;
use headlong_reader::io::DataFile;
use headlong_reader::make::{MakeOptions, make_dictionary};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A dictionary and its bytes, which every checkpoint keeps: so a checkpoint can be used without the files it was made from.
pub struct RunDictionary {
    dictionary: Arc<Dictionary>,
    bytes: Arc<Vec<u8>>,
    counted_rows: Option<u64>,
}

impl RunDictionary {
    /// The dictionary that a checkpoint keeps.
    ///
    /// # Errors
    /// A checkpoint without one, or with a damaged one.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let context = "the dictionary of the checkpoint cannot be used";
        // Opening the blob compares its checksum.
        match checkpoint.blob(DICTIONARY_BLOB).map_err(|error| failed(context, error))? {
            Some(_) => Self::load(&checkpoint.path().join(DICTIONARY_BLOB)),
            None => {
                Err(Error::config("data.ids", format!("{} has no dictionary", checkpoint.path().display())))
            }
        }
    }

    /// The dictionary that `data.dictionary` names, or else one of the training files, built now where an earlier run has not
    /// left it in the output folder.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn find_or_build(
        config: &Config,
        files: &[DataFile],
        threads: usize,
        reporter: &Reporter,
    ) -> Result<Self> {
        if let Some(folder) = &config.data.dictionary {
            return Self::load(folder);
        }
        let folder = config.run.output_dir.join("dictionary");
        let rule =
            DictionaryRule { min_count: config.data.min_count.into(), max_rows: config.tables.max_rows };
        if let Some(found) = Self::left_by_an_earlier_run(&folder, rule, files) {
            reporter.note(&format!("dictionary {}: made earlier from the same files", folder.display()));
            return Ok(found);
        }
        let started = Instant::now();
        reporter.note(&format!(
            "building the dictionary of {} training files in {}",
            files.len(),
            folder.display()
        ));
        let (file, samples) = build(config, files, &folder, threads, rule)?;
        let built = Self { counted_rows: Some(samples), ..Self::load(&file)? };
        let rows = built.table_rows().iter().sum::<u64>();
        let took = duration(started.elapsed().as_secs_f64());
        reporter.note(&format!(
            "dictionary of {} rows from {} samples in {took}",
            count(rows),
            count(samples)
        ));
        Ok(built)
    }

    fn left_by_an_earlier_run(folder: &Path, rule: DictionaryRule, files: &[DataFile]) -> Option<Self> {
        let found = Self::load(folder).ok()?;
        let counted = found.dictionary.files();
        let same_file = |file: &DataFile, counted: &CountedFile| {
            let unchanged = std::fs::metadata(file).is_ok_and(|data| data.len() == counted.bytes);
            unchanged && file.to_string() == counted.path
        };
        let same = counted.len() == files.len() && files.iter().zip(counted).all(|(a, b)| same_file(a, b));
        let rows = counted.iter().map(|file| file.rows).sum();
        (same && found.dictionary.rule() == rule).then_some(Self { counted_rows: Some(rows), ..found })
    }

    fn load(path: &Path) -> Result<Self> {
        let dictionary =
            Dictionary::load(path).map_err(|error| failed("the dictionary cannot be read", error))?;
        let file = if path.is_dir() { path.join(DICTIONARY_FILE) } else { path.to_owned() };
        let bytes =
            std::fs::read(&file).map_err(|source| Error::Io { action: "read", path: file, source })?;
        Ok(Self { dictionary: Arc::new(dictionary), bytes: Arc::new(bytes), counted_rows: None })
    }

    /// Samples of the training files, where they were counted on the way.
    pub fn counted_rows(&self) -> Option<u64> {
        self.counted_rows
    }

    /// Rows of each table.
    pub fn table_rows(&self) -> Vec<u64> {
        self.dictionary.rows()
    }

    /// A mapper that looks rows up in this dictionary.
    ///
    /// # Errors
    /// Tables with fewer rows than the dictionary gives out.
    pub fn mapper(&self, config: &Config, table_rows: &[u64]) -> Result<IdMapper> {
        let tables = self.dictionary.rows().into_iter().zip(table_rows).enumerate();
        for (column, (needed, &rows)) in tables {
            if needed > rows && !config.is_raw(column) {
                let table = config.column_name(column);
                let message = format!("table {table}: the dictionary has {needed} rows, the table {rows}");
                return Err(Error::config("tables.rows", message));
            }
        }
        let lookup: Arc<dyn headlong_reader::RowLookup> = Arc::clone(&self.dictionary) as _;
        let mapper = IdMapper::with_lookup(lookup, table_rows);
        let mapper = mapper.map_err(|error| failed("the dictionary cannot be used", error))?;
        Ok(mapper.with_raw_columns(&config.raw_columns()))
    }

    /// Fingerprint of the mapping, for checkpoints.
    pub fn checksum(&self) -> String {
        format!("{:016x}", self.dictionary.fingerprint())
    }

    /// The dictionary's file.
    pub fn bytes(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.bytes)
    }
}

fn build(
    config: &Config,
    files: &[DataFile],
    folder: &Path,
    threads: usize,
    rule: DictionaryRule,
) -> Result<(PathBuf, u64)> {
    let failed_to_build = |error| failed("the dictionary cannot be built", error);
    if data::format_of(config, files)? != Format::Criteo {
        let source = data::open_source(config, files, threads)?;
        let counted = |path: &DataFile| CountedFile {
            path: path.to_string(),
            bytes: std::fs::metadata(path).map_or(0, |data| data.len()),
            rows: 0,
            skipped: 0,
        };
        let dictionary = Dictionary::count(&*source, rule, files.iter().map(counted).collect());
        let dictionary = dictionary.map_err(failed_to_build)?;
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        let file = folder.join(DICTIONARY_FILE);
        dictionary.save(&file).map_err(failed_to_build)?;
        return Ok((file, dictionary.files().iter().map(|file| file.rows).sum()));
    }
    let blocks = block_options(config, true, threads);
    let options =
        MakeOptions { schema: blocks.schema, on_bad_row: blocks.on_bad_row, rule, ..MakeOptions::default() };
    let report = make_dictionary(files, folder, &options, &Pool::new(threads), &mut |_| {});
    report.map(|report| (report.file, report.rows)).map_err(failed_to_build)
}
