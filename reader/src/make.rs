//! Building a dictionary from files: one streaming pass, bounded memory, resumable file by file.
//!
//! Ids are counted in memory up to a limit; when it is reached, and at the end of every file, the
//! counts go to disk as a sorted run, and at the end all runs are merged. A finished file's runs
//! are recorded, so that after a crash the next call continues at the file in which it happened.
//! Counts add up, so none of this shows in the result.

mod state;

use std::fs;
use std::path::{Path, PathBuf};

use headlong_device::files::FolderLock;
use headlong_device::pool::Pool;
use serde_json::Value;

use crate::batch::Position;
use crate::columns::SharedColumns;
use crate::criteo::{BadRowPolicy, BlockOptions, BlockStream, Event};
use crate::dictionary::{
    CountTables, CountedFile, DICTIONARY_FILE, Dictionary, DictionaryRule, ENTRY_BYTES,
    MAX_MERGED_RUNS, Run, merge_into_columns, merge_into_run, write_run,
};
use crate::error::{ReaderError, Result, refuse};
use crate::io::DataFile;
use crate::output::write_error;
use crate::schema::Schema;
use crate::skipped::SkipReport;
use state::{FinishedFile, State};

const ESTIMATED_BLOCKS: usize = 8;

/// What to count and how.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// The columns of the files.
    pub schema: Schema,
    /// What is said of single dense columns: the ids of tables of bins are counted, too.
    pub columns: SharedColumns,
    /// What to do with lines that are not rows.
    pub on_bad_row: BadRowPolicy,
    /// Which ids get rows of their own.
    pub rule: DictionaryRule,
    /// The most memory for counting, and again for the finished dictionary. The tables of one block
    /// of text, and a few buffers for each thread, come on top.
    pub memory_bytes: u64,
    /// Bytes of text read at a time.
    pub block_bytes: usize,
    /// What else decides the ids, as the dictionary records it: [`Dictionary::settings`].
    pub settings: Value,
}

impl Default for MakeOptions {
    fn default() -> Self {
        Self {
            schema: Schema::criteo(),
            columns: None,
            on_bad_row: BadRowPolicy::Error,
            rule: DictionaryRule { min_count: 3, max_rows: None },
            memory_bytes: 2 << 30,
            block_bytes: 1 << 20,
            settings: Value::Null,
        }
    }
}

/// How far the counting is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MakeProgress {
    /// The file being counted, as an index into the list of files.
    pub file: usize,
    /// Files in all.
    pub num_files: usize,
    /// Rows counted in this call, over all files.
    pub rows: u64,
    /// Bytes of this file read so far, as stored.
    pub stored_bytes_read: u64,
    /// Size of this file.
    pub stored_bytes: u64,
    /// Bytes read in this call so far, over all files.
    pub call_bytes_read: u64,
    /// Bytes that this call has to read: what an earlier one has counted is not read again.
    pub call_bytes: u64,
}

/// What building a dictionary will take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MakeEstimate {
    /// Rows of all files, if they are as long as the first ones.
    pub rows: u64,
    /// Bytes on disk while it is built, at most: as if every id of every row were another one,
    /// written once and merged once.
    pub disk_bytes: u64,
}

/// Looks at the first rows of `files`, to say what a dictionary of all of them will take at most.
pub fn estimate(files: &[DataFile], options: &MakeOptions) -> Result<MakeEstimate> {
    options.check(files)?;
    DataFile::refuse_pipes(files, "an estimate of its rows reads its beginning twice")?;
    let mut stream =
        BlockStream::open(files[..1].to_vec(), &options.blocks(1), &Position::default(), Some(1))?;
    let (mut rows, mut bytes) = (0, 1);
    // The decoder has read ahead: several blocks make that small.
    for _ in 0..ESTIMATED_BLOCKS {
        match stream.next()? {
            Some(Event::Block(block)) => {
                rows += block.raw.num_samples as u64;
                bytes = block.stored_bytes_read;
                stream.recycle(block);
            }
            _ => break,
        }
    }
    let all = files.iter().map(DataFile::stored_bytes).sum::<Result<u64>>()?;
    let rows = (u128::from(rows) * u128::from(all) / u128::from(bytes.max(1))) as u64;
    let ids = rows * options.num_tables() as u64;
    Ok(MakeEstimate { rows, disk_bytes: 2 * ids * ENTRY_BYTES })
}

/// A finished dictionary and how it came about.
#[derive(Debug)]
pub struct MakeReport {
    /// The dictionary, as saved.
    pub dictionary: Dictionary,
    /// Where it was saved.
    pub file: PathBuf,
    /// Rows of all files.
    pub rows: u64,
    /// Files whose counts were there from an earlier call that did not end.
    pub resumed_files: usize,
    /// How often counts went to disk because the memory was full.
    pub spills: usize,
    /// Bad lines skipped in this call.
    pub skipped: SkipReport,
}

/// A folder in which dictionaries are made: by one process at a time.
#[derive(Debug)]
pub struct DictionaryFolder {
    path: PathBuf,
    lock: FolderLock,
}

impl DictionaryFolder {
    /// The folder `path`, which is created.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = fs::create_dir_all(path).and_then(|()| FolderLock::open(path));
        Ok(Self { path: path.to_owned(), lock: opened.map_err(write_error(path))? })
    }

    /// Takes the folder for this process, until the value is dropped; false where another one is at
    /// work.
    pub fn try_lock(&self) -> bool {
        self.lock.try_exclusive()
    }

    /// Waits until the process that is at work has ended.
    pub fn wait(&self) {
        self.lock.wait_for_writer();
        self.lock.release();
    }

    /// The dictionary's file.
    pub fn file(&self) -> PathBuf {
        self.path.join(DICTIONARY_FILE)
    }

    /// Counts the ids of `files` and saves their dictionary in the folder, which is locked.
    ///
    /// What is unfinished stays in `counting` there, and a later call with the same schema and
    /// policy resumes after the files it finds finished and unchanged. `progress` is called after
    /// every block, from the calling thread.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] for senseless options, a file named twice, or a dictionary beyond
    /// `memory_bytes` (naming column and remedy); [`ReaderError::Write`]; whatever is wrong with
    /// the data.
    pub fn make(
        &self,
        files: &[DataFile],
        options: &MakeOptions,
        pool: &Pool,
        progress: &mut dyn FnMut(&MakeProgress),
    ) -> Result<MakeReport> {
        options.check(files)?;
        let state = State::open(&self.path, options, files)?;
        let mut maker = Maker {
            options,
            pool,
            state,
            counts: CountTables::new(options.num_tables(), options.memory_bytes),
            skipped: SkipReport::default(),
            spills: 0,
            progress: MakeProgress { num_files: files.len(), ..MakeProgress::default() },
        };
        let resumed_files = maker.state.finished().len();
        let to_count = files.iter().filter(|file| maker.state.finished_file(file).is_none());
        let bytes = to_count.map(DataFile::stored_bytes).sum::<Result<u64>>()?;
        maker.progress.call_bytes = bytes;
        for (index, file) in files.iter().enumerate() {
            if maker.state.finished_file(file).is_none() {
                maker.progress.file = index;
                maker.count_file(file, progress)?;
            }
        }
        let dictionary = maker.merge(files)?;
        let file = self.file();
        dictionary.save(&file)?;
        maker.state.remove()?;
        let rows = dictionary.files().iter().map(|file| file.rows).sum();
        Ok(MakeReport {
            dictionary,
            file,
            rows,
            resumed_files,
            spills: maker.spills,
            skipped: maker.skipped,
        })
    }
}

/// Counts the ids of `files` and saves their dictionary as `folder/dictionary.hld`; `folder` is
/// created.
///
/// # Errors
/// [`ReaderError::Invalid`] where another process makes one there; those of
/// [`DictionaryFolder::make`].
pub fn make_dictionary(
    files: &[DataFile],
    folder: &Path,
    options: &MakeOptions,
    pool: &Pool,
    progress: &mut dyn FnMut(&MakeProgress),
) -> Result<MakeReport> {
    options.check(files)?;
    let folder = DictionaryFolder::open(folder)?;
    if !folder.try_lock() {
        refuse!("another process is making a dictionary in {}", folder.path.display());
    }
    folder.make(files, options, pool, progress)
}

impl MakeOptions {
    fn blocks(&self, num_threads: usize) -> BlockOptions {
        let Self { schema, on_bad_row, block_bytes, .. } = *self;
        let columns = self.columns.clone();
        BlockOptions { schema, columns, on_bad_row, num_threads, block_bytes }
    }

    /// Tables that ids are counted for.
    fn num_tables(&self) -> usize {
        self.blocks(1).sample_schema().num_sparse
    }

    fn check(&self, files: &[DataFile]) -> Result<()> {
        self.schema.check().map_err(ReaderError::invalid)?;
        if self.num_tables() == 0 {
            refuse!("a dictionary needs at least one categorical column");
        }
        if self.rule.min_count == 0 || self.rule.max_rows == Some(0) {
            let DictionaryRule { min_count, max_rows } = self.rule;
            refuse!(
                "expected a minimum count and a limit of rows of at least 1, found {min_count} and \
                 {max_rows:?}"
            );
        }
        if let Some(twice) =
            files.iter().enumerate().find(|(index, file)| files[..*index].contains(file))
        {
            refuse!("{} is named twice, and would be counted twice", twice.1);
        }
        Ok(())
    }
}

struct Maker<'a> {
    options: &'a MakeOptions,
    pool: &'a Pool,
    state: State,
    counts: CountTables,
    skipped: SkipReport,
    spills: usize,
    progress: MakeProgress,
}

impl Maker<'_> {
    fn count_file(
        &mut self,
        file: &DataFile,
        progress: &mut dyn FnMut(&MakeProgress),
    ) -> Result<()> {
        let (blocks, read_before) =
            (self.options.blocks(self.pool.threads()), self.progress.call_bytes_read);
        let mut stream =
            BlockStream::open(vec![file.clone()], &blocks, &Position::default(), Some(1))?;
        let mut finished = FinishedFile::begin(file)?;
        self.progress.stored_bytes = finished.bytes();
        while let Some(event) = stream.next()? {
            let Event::Block(block) = event else { continue };
            if !self.counts.has_room_for(block.raw.num_samples) && !self.counts.is_empty() {
                self.spill(&mut finished)?;
                self.spills += 1;
            }
            self.counts.count(&block.raw, self.pool);
            finished.rows += block.raw.num_samples as u64;
            finished.skipped += block.raw.bad_lines.len() as u64;
            block.report_bad_rows(file, &mut self.skipped);
            self.progress.rows += block.raw.num_samples as u64;
            self.progress.stored_bytes_read = block.stored_bytes_read;
            self.progress.call_bytes_read = read_before + block.stored_bytes_read;
            progress(&self.progress);
            stream.recycle(block);
        }
        self.progress.call_bytes_read = read_before + finished.bytes();
        self.spill(&mut finished)?;
        self.state.finish_file(finished)
    }

    /// Moves all counts to disk as one run of `file`.
    fn spill(&mut self, file: &mut FinishedFile) -> Result<()> {
        let columns = self.counts.drain(self.pool);
        write_run(&self.state.new_run(file), &columns)
    }

    fn merge(&mut self, files: &[DataFile]) -> Result<Dictionary> {
        let num_columns = self.options.num_tables();
        let paths = self.state.run_paths();
        let mut runs =
            paths.iter().map(|path| Run::open(path, num_columns)).collect::<Result<Vec<_>>>()?;
        let mut round = 0;
        while runs.len() > MAX_MERGED_RUNS {
            let groups = runs.chunks(MAX_MERGED_RUNS).enumerate();
            let merged = groups.map(|(group, runs)| {
                merge_into_run(runs, num_columns, &self.state.merged_run(round, group))
            });
            runs = merged.collect::<Result<_>>()?;
            round += 1;
        }
        let rule = self.options.rule;
        let columns =
            merge_into_columns(&runs, num_columns, rule, self.options.memory_bytes, self.pool)?;
        let counted = files.iter().filter_map(|file| self.state.finished_file(file));
        let counted: Vec<CountedFile> = counted.map(FinishedFile::counted).collect();
        assert_eq!(counted.len(), files.len(), "every file should have been counted");
        Ok(Dictionary::new(rule, counted, columns).with_settings(self.options.settings.clone()))
    }
}

#[cfg(test)]
mod tests;
