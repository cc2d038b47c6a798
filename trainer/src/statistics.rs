//! How frequent the rows of a run's data are: counted over its first batches, kept in a file beside what the run writes and in its
//! checkpoints, and used again where they are of the same data.

use crate::atomic_file::AtomicFile;
use crate::build::table_specs;
use crate::checkpoint::Checkpoint;
use crate::config::Config;
use crate::data::{failed, open_training};
use crate::error::{Error, Result};
use crate::placement::count;
use crate::report::Reporter;
use headlong_embedding::hybrid::statistics::{Collector, Statistics, StatisticsOptions};
use headlong_reader::io::DataFile;
use headlong_reader::order::Slice;
use headlong_reader::{Batch, IdMapper, Position, Reader as _};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// File of a checkpoint that holds the statistics.
pub const STATISTICS_BLOB: &str = "statistics.bin";

/// The statistics of the training data: those of the file that an earlier run of the same data left, else counted now and left for
/// the next.
///
/// # Errors
/// Data that cannot be read, a folder that cannot be written.
pub fn find_or_count(
    config: &Config,
    table_rows: &[u64],
    files: &[DataFile],
    ids: IdMapper,
    threads: usize,
    reporter: &Reporter,
) -> Result<Statistics> {
    let path = config.run.output_dir.join(file_name(config, table_rows, files));
    if let Some(found) = read(&path, config, table_rows) {
        reporter.note(&format!("statistics of {} batches: {}", found.num_batches, path.display()));
        return Ok(found);
    }
    let started = Instant::now();
    let statistics = count_first_batches(config, table_rows, files, ids, threads)?;
    write(&path, &statistics.to_bytes()).map_err(|source| Error::Io {
        action: "write",
        path: path.clone(),
        source,
    })?;
    reporter.note(&format!(
        "counted the rows of {} batches ({} samples) in {}",
        statistics.num_batches,
        crate::report::count(statistics.num_samples),
        crate::report::duration(started.elapsed().as_secs_f64())
    ));
    Ok(statistics)
}

/// Statistics that lie in `path` and fit the tables. A file that is damaged or of other tables is counted anew: nothing is lost by it.
fn read(path: &Path, config: &Config, table_rows: &[u64]) -> Option<Statistics> {
    let found = Statistics::from_bytes(&std::fs::read(path).ok()?).ok()?;
    found.check_tables(&table_specs(config, table_rows)).ok().map(|()| found)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let file = AtomicFile::create(path)?;
    file.file().write_all(bytes)?;
    file.commit()
}

/// One name for everything that decides which rows are counted.
fn file_name(config: &Config, table_rows: &[u64], files: &[DataFile]) -> String {
    let sizes: Vec<_> =
        files.iter().map(|file| std::fs::metadata(file).map_or(0, |data| data.len())).collect();
    let data = &config.data;
    let batch = (config.train.batch_size, config.train.accumulate, config.hybrid.statistics_batches);
    let key = format!(
        "{files:?} {sizes:?} {table_rows:?} {batch:?} {:?} {} {} {:?}",
        data.ids, data.min_count, data.hash, config.table
    );
    format!("statistics-{:016x}.bin", xxh3_64(key.as_bytes()))
}

/// The statistics that a checkpoint holds.
///
/// # Errors
/// A damaged file.
pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Statistics>> {
    let lost = |error| failed("the statistics in the checkpoint cannot be read", error);
    let Some(mut blob) = checkpoint.blob(STATISTICS_BLOB).map_err(lost)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let path = checkpoint.path().join(STATISTICS_BLOB);
    blob.read_to_end(&mut bytes).map_err(|source| Error::Io { action: "read", path, source })?;
    let statistics = Statistics::from_bytes(&bytes);
    statistics.map(Some).map_err(|error| failed("the statistics in the checkpoint cannot be read", error))
}

fn count_first_batches(
    config: &Config,
    table_rows: &[u64],
    files: &[DataFile],
    ids: IdMapper,
    threads: usize,
) -> Result<Statistics> {
    let mut reader = open_training(config, files, ids, (&Position::default(), Slice::WHOLE), threads)?;
    let mut collector = Collector::new(&table_specs(config, table_rows), &StatisticsOptions::default());
    let mut batch = Batch::default();
    for _ in 0..config.hybrid.statistics_batches {
        let has_batch = reader.next(&mut batch);
        if !has_batch.map_err(|error| failed("the training data cannot be read", error))?
            || batch.position.epoch > 0
        {
            break;
        }
        count(&mut collector, &batch);
    }
    Ok(collector.finish())
}
