//! Writing predictions: CSV or Parquet, by the extension of the file.
//!
//! Three columns: `row` (from 0, over all data files in the order they were given; malformed lines
//! that were skipped do not count), `probability` of label 1, and `logit`. The file is written
//! aside and appears when it is complete.

use crate::error::{Error, Result};
use crate::metrics::probability;
use headlong_device::files::OutputFile;
use parquet::basic::Compression;
use parquet::data_type::{FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of one Parquet row group, 16 MiB in memory.
const GROUP_ROWS: usize = 1 << 20;
const PARQUET_SCHEMA: &str =
    "message predictions { required int64 row; required float probability; required float logit; }";

pub struct PredictionWriter {
    path: PathBuf,
    format: Format,
    next_row: u64,
}

enum Format {
    Csv(BufWriter<OutputFile>),
    // Boxed, because it is an order of magnitude larger than the other.
    Parquet(Box<ParquetFormat>),
}

struct ParquetFormat {
    writer: SerializedFileWriter<OutputFile>,
    rows: Vec<i64>,
    probabilities: Vec<f32>,
    logits: Vec<f32>,
}

impl PredictionWriter {
    /// Starts the file `path`, which must end in `.csv` or `.parquet`. A pipe, a device or an open
    /// file (`/dev/stdout`) may have any name, and is CSV; so is `-`, standard output.
    pub fn create(path: &Path) -> Result<Self> {
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        let extension =
            path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let extension = extension.to_ascii_lowercase();
        let file = OutputFile::create(path).map_err(Error::io("write", path))?;
        let format = match &*extension {
            "parquet" => Format::Parquet(Box::new(ParquetFormat::new(file).map_err(failed(path))?)),
            "csv" => Format::csv(file)?,
            _ if file.is_direct() => Format::csv(file)?,
            _ => {
                let message = format!(
                    "--output {}: expected a name that ends in .csv or .parquet",
                    path.display()
                );
                return Err(Error::Usage(message));
            }
        };
        Ok(Self { path: path.to_owned(), format, next_row: 0 })
    }

    /// Adds the next rows, one logit each.
    pub fn push(&mut self, logits: &[f32]) -> Result<()> {
        let path = &self.path;
        match &mut self.format {
            Format::Csv(writer) => {
                for (row, &logit) in (self.next_row..).zip(logits) {
                    // The shortest text that reads back to the same bits.
                    writeln!(writer, "{row},{},{logit}", probability(logit))
                        .map_err(Error::io("write", path))?;
                }
            }
            Format::Parquet(writer) => writer.push(self.next_row, logits).map_err(failed(path))?,
        }
        self.next_row += logits.len() as u64;
        Ok(())
    }

    /// Finishes the file, gives it its name, and returns the number of rows.
    pub fn finish(self) -> Result<u64> {
        let Self { path, format, next_row } = self;
        let file = match format {
            Format::Csv(writer) => writer
                .into_inner()
                .map_err(|error| Error::io("write", &path)(error.into_error()))?,
            Format::Parquet(mut writer) => {
                let finished = writer.write_group().and_then(|()| writer.writer.into_inner());
                finished.map_err(failed(&path))?
            }
        };
        file.commit().map_err(Error::io("write", &path))?;
        Ok(next_row)
    }
}

impl Format {
    fn csv(file: OutputFile) -> Result<Self> {
        let path = file.path().to_owned();
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        writer.write_all(b"row,probability,logit\n").map_err(Error::io("write", path))?;
        Ok(Self::Csv(writer))
    }
}

impl ParquetFormat {
    fn new(file: OutputFile) -> parquet::errors::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_created_by(concat!("headlong ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let schema = Arc::new(parse_message_type(PARQUET_SCHEMA)?);
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        Ok(Self { writer, rows: Vec::new(), probabilities: Vec::new(), logits: Vec::new() })
    }

    fn push(&mut self, first_row: u64, logits: &[f32]) -> parquet::errors::Result<()> {
        for (row, &logit) in (first_row..).zip(logits) {
            self.rows.push(
                i64::try_from(row)
                    .map_err(|error| parquet::errors::ParquetError::External(error.into()))?,
            );
            self.probabilities.push(probability(logit));
            self.logits.push(logit);
            if self.rows.len() == GROUP_ROWS {
                self.write_group()?;
            }
        }
        Ok(())
    }

    fn write_group(&mut self) -> parquet::errors::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        if let Some(mut column) = group.next_column()? {
            column.typed::<Int64Type>().write_batch(&self.rows, None, None)?;
            column.close()?;
        }
        for values in [&self.probabilities, &self.logits] {
            if let Some(mut column) = group.next_column()? {
                column.typed::<FloatType>().write_batch(values, None, None)?;
                column.close()?;
            }
        }
        group.close()?;
        self.rows.clear();
        self.probabilities.clear();
        self.logits.clear();
        Ok(())
    }
}

fn failed(path: &Path) -> impl FnOnce(parquet::errors::ParquetError) -> Error {
    Error::failed(format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    use std::fs::File;

    fn logits(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.37).sin() * 4.0).collect()
    }

    fn written(path: &Path, logits: &[f32]) -> u64 {
        let mut writer = PredictionWriter::create(path).unwrap();
        logits.chunks(100).for_each(|batch| writer.push(batch).unwrap());
        assert!(!path.exists(), "the name appears with the complete file");
        writer.finish().unwrap()
    }

    #[test]
    fn csv_reads_back_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.csv");
        let logits = logits(257);
        assert_eq!(written(&path, &logits), 257);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("row,probability,logit"));
        for (row, &logit) in logits.iter().enumerate() {
            let fields: Vec<&str> = lines.next().unwrap().split(',').collect();
            assert_eq!(fields[0], row.to_string());
            assert_eq!(fields[1].parse::<f32>().unwrap().to_bits(), probability(logit).to_bits());
            assert_eq!(fields[2].parse::<f32>().unwrap().to_bits(), logit.to_bits());
        }
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn parquet_reads_back_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.PARQUET");
        let logits = logits(GROUP_ROWS + 50);
        assert_eq!(written(&path, &logits), logits.len() as u64);
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.metadata().num_row_groups(), 2);
        let mut rows = 0;
        for (row, found) in reader.get_row_iter(None).unwrap().enumerate() {
            let found = found.unwrap();
            assert_eq!(found.get_long(0).unwrap(), row as i64);
            assert_eq!(found.get_float(1).unwrap().to_bits(), probability(logits[row]).to_bits());
            assert_eq!(found.get_float(2).unwrap().to_bits(), logits[row].to_bits());
            rows += 1;
        }
        assert_eq!(rows, logits.len());
    }

    #[test]
    fn no_rows_give_a_file_without_rows() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["empty.csv", "empty.parquet"] {
            assert_eq!(written(&folder.path().join(name), &[]), 0);
        }
        let file = File::open(folder.path().join("empty.parquet")).unwrap();
        assert_eq!(
            SerializedFileReader::new(file).unwrap().metadata().file_metadata().num_rows(),
            0
        );
    }

    #[test]
    fn another_extension_is_refused_and_an_unfinished_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["p.txt", "p", "p.csv.gz"] {
            let Err(error) = PredictionWriter::create(&folder.path().join(name)) else {
                panic!("{name}")
            };
            assert!(error.to_string().contains(".csv or .parquet"), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        for name in ["p.csv", "p.parquet"] {
            let mut writer = PredictionWriter::create(&folder.path().join(name)).unwrap();
            writer.push(&[0.5]).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
