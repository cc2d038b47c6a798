//! Synthetic data in Criteo's text format, with a ground-truth model, for demonstrations and tests.
//!
//! Rows are what the real files have: a label, 13 heavy-tailed integers, 26 categories of eight
//! hexadecimal digits with the real columns' numbers of distinct values scaled down, Zipf-like
//! frequencies and the real shares of missing values. The click depends on the row through a known
//! function, so the best possible AUC is known too.
//!
//! Row `i` depends on seed and `i` alone (counter-based random numbers), so the bytes of the files
//! do not depend on threads.

mod quality;
mod truth;
mod write;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use headlong_device::files::FolderLock;
use headlong_device::pool::Pool;
use serde::{Deserialize, Serialize};

use crate::error::{Result, invalid, refuse};
use crate::identity::FileIdentity;
use crate::output::{remove_file, write_error, write_file};
use truth::{TRAIN_STREAM, Truth, VALID_STREAM};

/// The record of what was generated, written last: where it stands, the files are whole.
pub const RECORD_FILE: &str = "synthetic.json";
const GENERATOR_VERSION: u32 = 2;

/// What to generate. The files' bytes depend on this alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyntheticOptions {
    /// Seed of the truth and of the rows.
    pub seed: u64,
    /// Rows of the training file.
    pub train_rows: u64,
    /// Rows of the validation file.
    pub valid_rows: u64,
    /// The real (Kaggle) numbers of distinct values are multiplied by this, but small columns keep
    /// theirs: none falls below `min(real, 100)`. Above 0, up to 1.
    pub scale: f64,
    /// Whether to write `.txt.gz` rather than `.txt`.
    pub gzip: bool,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        Self { seed: 0, train_rows: 400_000, valid_rows: 50_000, scale: 0.001, gzip: false }
    }
}

impl SyntheticOptions {
    /// Refuses options that make no data.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`](crate::ReaderError::Invalid) naming the option.
    pub fn check(&self) -> Result<()> {
        if self.train_rows == 0 || self.valid_rows == 0 {
            let (train, valid) = (self.train_rows, self.valid_rows);
            refuse!("synthetic rows: expected at least 1 and 1, found {train} and {valid}");
        }
        if !(self.scale > 0.0 && self.scale <= 1.0) {
            refuse!("synthetic scale: expected above 0 and up to 1, found {}", self.scale);
        }
        Ok(())
    }

    /// The training and the validation file in `folder`.
    pub fn files(&self, folder: &Path) -> [PathBuf; 2] {
        let end = if self.gzip { ".gz" } else { "" };
        ["train", "valid"].map(|name| folder.join(format!("{name}.txt{end}")))
    }

    /// Distinct values that each categorical column can have, missing not counted.
    pub fn cardinalities(&self) -> Vec<u64> {
        truth::cardinalities(self.scale).to_vec()
    }
}

/// What was generated, and how well the best possible model does on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyntheticReport {
    /// The options that made it.
    pub options: SyntheticOptions,
    /// Rows of both files.
    pub rows: u64,
    /// Share of clicks in the training file.
    pub click_rate: f64,
    /// Exact AUC of the true click probabilities against the labels drawn from them, on the
    /// validation file. No model can be expected to do better.
    pub best_auc: f64,
    /// Log loss in nats of the true probabilities, likewise on the validation file.
    pub best_log_loss: f64,
    /// The training file.
    #[serde(serialize_with = "shown")]
    pub train_file: PathBuf,
    /// The validation file.
    #[serde(serialize_with = "shown")]
    pub valid_file: PathBuf,
    /// Bytes of the two files.
    pub bytes: [u64; 2],
    /// Whether the files were there already, made with the same options.
    #[serde(skip)]
    pub reused: bool,
}

/// A path as text. Lossy is enough: only the file name is used again, and we chose it.
fn shown<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(serializer)
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    generator_version: u32,
    report: SyntheticReport,
    identities: [Option<FileIdentity>; 2],
}

/// How far the generation is, in rows of both files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticProgress {
    /// Rows written.
    pub rows: u64,
    /// Rows to write in all.
    pub total_rows: u64,
}

/// What happens while data is obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntheticEvent {
    /// Another process writes data into the folder; its end is waited for.
    Waits,
    /// Data is written now.
    Begins,
    /// So much is written.
    Rows(SyntheticProgress),
}

/// Data that no one replaces as long as this value lives.
#[derive(Debug)]
pub struct SyntheticData {
    /// What it is.
    pub report: SyntheticReport,
    _lock: FolderLock,
}

/// How often a folder in use is looked at again, and the pause between: who only looks holds it for
/// a moment.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Finds the data of `options` in `folder`, or makes it there: `train.txt` and `valid.txt` (or
/// `.txt.gz`) and the record `synthetic.json`. `hear` is called from the calling thread, while rows
/// are written every few thousand of them.
///
/// Each file appears when it is complete, the record last, so a crash leaves no half file under a
/// final name. Many processes may use the same data at once; other data is made only while none
/// does.
///
/// # Errors
/// [`ReaderError::Invalid`](crate::ReaderError::Invalid) for senseless options, and where other
/// processes use other data there; [`ReaderError::Write`](crate::ReaderError::Write) naming the
/// file.
pub fn obtain(
    options: &SyntheticOptions,
    folder: &Path,
    pool: &Pool,
    hear: &mut dyn FnMut(SyntheticEvent),
) -> Result<SyntheticData> {
    options.check()?;
    std::fs::create_dir_all(folder).map_err(write_error(folder))?;
    let lock = FolderLock::open(folder).map_err(write_error(folder))?;
    let mut is_made = false;
    for _ in 0..TRIES {
        if lock.try_exclusive() {
            if find(options, folder).is_none() {
                hear(SyntheticEvent::Begins);
                write_all(options, folder, pool, &mut |progress| {
                    hear(SyntheticEvent::Rows(progress))
                })?;
                is_made = true;
            }
        } else if !lock.try_shared() {
            hear(SyntheticEvent::Waits);
            lock.wait_for_writer();
        }
        // Note: where the lock to write becomes one to read, another process may come between and
        // write.
        if lock.try_shared() {
            if let Some(report) = find(options, folder) {
                return Ok(SyntheticData {
                    report: SyntheticReport { reused: !is_made, ..report },
                    _lock: lock,
                });
            }
            lock.release();
        }
        thread::sleep(PAUSE);
    }
    Err(invalid!(
        "{} is in use by another run with other synthetic data: name another folder with \
         --output-dir",
        folder.display()
    ))
}

/// As [`obtain`], for data that no one else will replace: the lock is given up.
pub fn generate(
    options: &SyntheticOptions,
    folder: &Path,
    pool: &Pool,
    progress: &mut dyn FnMut(SyntheticProgress),
) -> Result<SyntheticReport> {
    let obtained = obtain(options, folder, pool, &mut |event| match event {
        SyntheticEvent::Rows(rows) => progress(rows),
        SyntheticEvent::Waits | SyntheticEvent::Begins => {}
    });
    obtained.map(|data| data.report)
}

fn write_all(
    options: &SyntheticOptions,
    folder: &Path,
    pool: &Pool,
    progress: &mut dyn FnMut(SyntheticProgress),
) -> Result<()> {
    let record_file = folder.join(RECORD_FILE);
    // The old record must not vouch for new files.
    remove_file(&record_file)?;

    let truth = Truth::new(options.seed, options.scale);
    let total_rows = options.train_rows.saturating_add(options.valid_rows);
    let [train_file, valid_file] = options.files(folder);
    let mut generate_file = |file: &Path, stream: u64, rows: u64, rows_before: u64| {
        // How good a model can be is asked of the validation rows alone.
        let keeps_scores = stream == VALID_STREAM;
        let (truth, gzip) = (&truth, options.gzip);
        let task = write::FileTask { truth, stream, rows, gzip, file, pool, keeps_scores };
        write::write_rows(&task, &mut |rows| {
            progress(SyntheticProgress { rows: rows_before + rows, total_rows });
        })
    };
    let train = generate_file(&train_file, TRAIN_STREAM, options.train_rows, 0)?;
    let mut valid =
        generate_file(&valid_file, VALID_STREAM, options.valid_rows, options.train_rows)?;

    let identities = [FileIdentity::of(&train_file)?, FileIdentity::of(&valid_file)?];
    let report = SyntheticReport {
        options: options.clone(),
        rows: total_rows,
        click_rate: train.clicks as f64 / options.train_rows as f64,
        best_auc: quality::auc(&mut valid.scored),
        best_log_loss: quality::log_loss(&valid.scored),
        train_file,
        valid_file,
        bytes: [train.bytes, valid.bytes],
        reused: false,
    };
    let record = Record { generator_version: GENERATOR_VERSION, report, identities };
    let json =
        serde_json::to_vec_pretty(&record).expect("a struct of plain fields always becomes JSON");
    write_file(&record_file, |file| std::io::Write::write_all(file, &json))
}

/// What an earlier run has left of the same options, if its files are still as they were. Writes
/// nothing.
pub fn find(options: &SyntheticOptions, folder: &Path) -> Option<SyntheticReport> {
    let json = std::fs::read(folder.join(RECORD_FILE)).ok()?;
    let Record { generator_version, mut report, identities } =
        serde_json::from_slice(&json).ok()?;
    if generator_version != GENERATOR_VERSION || report.options != *options {
        return None;
    }
    // The folder may have been moved, so the names count and not the paths.
    let files = options.files(folder);
    let is_unchanged = |(file, then): (&PathBuf, &Option<FileIdentity>)| {
        let now = FileIdentity::of(file).ok().flatten();
        now.zip(then.as_ref()).is_some_and(|(now, then)| now.has_content_of(then))
    };
    if !files.iter().zip(&identities).all(is_unchanged) {
        return None;
    }
    [report.train_file, report.valid_file] = files;
    Some(SyntheticReport { reused: true, ..report })
}

#[cfg(test)]
mod tests;
