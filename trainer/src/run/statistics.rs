//! How frequent the rows of a run's data are: counted over its first batches, kept in a file next
//! to what the run writes and in its checkpoints, and used again where they are of the same data.

use crate::config::Config;
use crate::data::{key as data_key, open_training};
use crate::error::{Error, Result};
use crate::iteration::model::table_specs;
use crate::plan::placement::count;
use crate::report::Reporter;
use crate::state::checkpoint::Checkpoint;
use headlong_device::files::{OutputFile, open_regular, read_bounded};
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

/// What is counted, and where it is kept.
pub struct Counting<'a> {
    pub table_rows: &'a [u64],
    pub files: &'a [DataFile],
    /// Ids to rows, as they are before the first sample.
    pub ids: IdMapper,
    /// Fingerprint of the dictionary, where ids come from one.
    pub dictionary: Option<String>,
    /// Whether what is counted now is left for the next run.
    pub is_kept: bool,
}

impl Counting<'_> {
    /// The statistics of the training data: those of the file that an earlier run of the same data
    /// left, else counted now.
    pub fn find_or_count(
        self,
        config: &Config,
        threads: usize,
        reporter: &Reporter,
    ) -> Result<Statistics> {
        let path = config.run.output_dir.join(self.file_name(config)?);
        if let Some(found) = read(&path, config, self.table_rows) {
            reporter.note(&format!(
                "statistics of {} batches: {}",
                found.num_batches,
                path.display()
            ));
            return Ok(found);
        }
        let started = Instant::now();
        let is_kept = self.is_kept;
        let statistics = self.count(config, threads)?;
        if is_kept {
            write(&path, &statistics.to_bytes()).map_err(Error::io("write", &path))?;
        }
        reporter.note(&format!(
            "counted the rows of {} batches ({} samples) in {}",
            statistics.num_batches,
            crate::report::count(statistics.num_samples),
            crate::report::duration(started.elapsed().as_secs_f64())
        ));
        Ok(statistics)
    }

    /// One name for everything that decides which rows are counted.
    fn file_name(&self, config: &Config) -> Result<String> {
        let files = data_key::identities(config, self.files)?;
        let batch =
            (config.train.batch_size, config.train.accumulate, config.hybrid.statistics_batches);
        let key = format!(
            "{files:?} {} {:?} {:?} {batch:?} {:?}",
            data_key::of_batches(config, self.files)?,
            self.dictionary,
            self.table_rows,
            config.table
        );
        Ok(format!("statistics-{:016x}.bin", xxh3_64(key.as_bytes())))
    }

    fn count(self, config: &Config, threads: usize) -> Result<Statistics> {
        let start = (&Position::default(), Slice::WHOLE);
        let mut reader = open_training(config, self.files, self.ids, start, threads)?;
        let specs = table_specs(config, self.table_rows);
        let mut collector = Collector::new(&specs, &StatisticsOptions::default());
        let mut batch = Batch::default();
        for _ in 0..config.hybrid.statistics_batches {
            let has_batch = reader.next(&mut batch);
            if !has_batch.map_err(Error::failed("the training data cannot be read"))?
                || batch.position.epoch > 0
            {
                break;
            }
            count(&mut collector, &batch);
        }
        Ok(collector.finish())
    }
}

/// No statistics are longer.
const MOST_BYTES: u64 = 4 << 30;

/// Statistics that lie in `path` and fit the tables. A file that is damaged or of other tables is
/// counted again: nothing is lost by it.
fn read(path: &Path, config: &Config, table_rows: &[u64]) -> Option<Statistics> {
    let found =
        Statistics::from_bytes(&read_bounded(open_regular(path).ok()?, MOST_BYTES).ok()?).ok()?;
    found.check_tables(&table_specs(config, table_rows)).ok().map(|()| found)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    // Its name says what it is of: all that write it write the same.
    let mut file = OutputFile::create_shared(path)?;
    file.write_all(bytes)?;
    file.commit()
}

pub fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Statistics>> {
    let lost = Error::failed("the statistics in the checkpoint cannot be read");
    let Some(mut blob) = checkpoint.blob(STATISTICS_BLOB).map_err(lost)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let path = checkpoint.path().join(STATISTICS_BLOB);
    blob.read_to_end(&mut bytes).map_err(|source| Error::Io { action: "read", path, source })?;
    let statistics = Statistics::from_bytes(&bytes);
    statistics.map(Some).map_err(Error::failed("the statistics in the checkpoint cannot be read"))
}
