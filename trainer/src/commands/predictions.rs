//! Writing predictions: CSV or Parquet, by the extension of the file.
//!
//! Three columns: `row` (from 0, over all data files in the order they were given; malformed lines
//! that were skipped do not count), `probability` of label 1, and `logit`; behind them, as text,
//! columns that are carried from the data. The file is written aside and appears when it is
//! complete.

use crate::error::{Error, Result};
use crate::metrics::probability;
use headlong_device::files::OutputFile;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rows of one Parquet row group, 16 MiB in memory.
const GROUP_ROWS: usize = 1 << 20;
/// The columns that are always there.
const COLUMNS: [(&str, Physical); 3] =
    [("row", Physical::INT64), ("probability", Physical::FLOAT), ("logit", Physical::FLOAT)];

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
    carried: Vec<Vec<ByteArray>>,
}

/// A file of predictions, open and empty.
pub struct PredictionFile {
    path: PathBuf,
    file: OutputFile,
    is_parquet: bool,
}

impl PredictionFile {
    /// Starts the file `path`, which must end in `.csv` or `.parquet`. A pipe, a device or an open
    /// file (`/dev/stdout`) may have any name, and is CSV; so is `-`, standard output.
    pub fn create(path: &Path) -> Result<Self> {
        let path = if path == Path::new("-") { Path::new("/dev/stdout") } else { path };
        let extension =
            path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let extension = extension.to_ascii_lowercase();
        let file = OutputFile::create(path).map_err(Error::io("write", path))?;
        if !matches!(&*extension, "parquet" | "csv") && !file.is_direct() {
            let message = format!(
                "--output {}: expected a name that ends in .csv or .parquet",
                path.display()
            );
            return Err(Error::Usage(message));
        }
        Ok(Self { path: path.to_owned(), file, is_parquet: extension == "parquet" })
    }

    /// Writes its beginning: of rows with `carried` columns.
    pub fn begin(self, carried: &[String]) -> Result<PredictionWriter> {
        let Self { path, file, is_parquet } = self;
        let is_there = |(at, name): &(usize, &String)| carried[..*at].contains(name);
        if let Some((_, name)) = carried.iter().enumerate().find(is_there) {
            return Err(Error::config("data.columns.carry", format!("`{name}` is named twice")));
        }
        if let Some(name) = carried.iter().find(|name| COLUMNS.iter().any(|(own, _)| own == name)) {
            let message = format!("`{name}` cannot be carried: predictions have such a column");
            return Err(Error::config("data.columns.carry", message));
        }
        let format = match is_parquet {
            true => {
                let format = ParquetFormat::new(file, carried).map_err(failed(&path))?;
                Format::Parquet(Box::new(format))
            }
            false => Format::csv(file, carried)?,
        };
        Ok(PredictionWriter { path, format, next_row: 0 })
    }
}

impl PredictionWriter {
    /// Adds the next row, with the fields of its carried columns.
    pub fn push(&mut self, logit: f32, carried: &[String]) -> Result<()> {
        let (path, row) = (&self.path, self.next_row);
        match &mut self.format {
            Format::Csv(writer) => {
                // The shortest text that reads back to the same bits.
                let written = write!(writer, "{row},{},{logit}", probability(logit))
                    .and_then(|()| write_fields(writer, carried));
                written.map_err(Error::io("write", path))?;
            }
            Format::Parquet(writer) => writer.push(row, logit, carried).map_err(failed(path))?,
        }
        self.next_row += 1;
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
    fn csv(file: OutputFile, carried: &[String]) -> Result<Self> {
        let path = file.path().to_owned();
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        let written = write!(writer, "{}", COLUMNS.map(|(name, _)| name).join(","));
        written
            .and_then(|()| write_fields(&mut writer, carried))
            .map_err(Error::io("write", path))?;
        Ok(Self::Csv(writer))
    }
}

/// Ends a line with more fields.
fn write_fields(writer: &mut impl Write, fields: &[String]) -> io::Result<()> {
    for field in fields {
        match field.contains([',', '"', '\n', '\r']) {
            true => write!(writer, ",\"{}\"", field.replace('"', "\"\""))?,
            false => write!(writer, ",{field}")?,
        }
    }
    writeln!(writer)
}

impl ParquetFormat {
    fn new(file: OutputFile, carried: &[String]) -> parquet::errors::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_created_by(concat!("headlong ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let column = |name: &str, physical, logical| {
            let column = Type::primitive_type_builder(name, physical);
            let column = column.with_repetition(Repetition::REQUIRED).with_logical_type(logical);
            column.build().map(Arc::new)
        };
        let own = COLUMNS.iter().map(|&(name, physical)| column(name, physical, None));
        let text = Some(LogicalType::String);
        let others = carried.iter().map(|name| column(name, Physical::BYTE_ARRAY, text.clone()));
        let fields = own.chain(others).collect::<Result<_, _>>()?;
        let schema = Type::group_type_builder("predictions").with_fields(fields).build()?;
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
        let carried = vec![Vec::new(); carried.len()];
        let (rows, probabilities, logits) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { writer, rows, probabilities, logits, carried })
    }

    fn push(&mut self, row: u64, logit: f32, carried: &[String]) -> parquet::errors::Result<()> {
        let row = i64::try_from(row);
        self.rows.push(row.map_err(|error| parquet::errors::ParquetError::External(error.into()))?);
        self.probabilities.push(probability(logit));
        self.logits.push(logit);
        for (values, value) in self.carried.iter_mut().zip(carried) {
            values.push(ByteArray::from(&**value));
        }
        match self.rows.len() {
            GROUP_ROWS => self.write_group(),
            _ => Ok(()),
        }
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
        for values in &mut self.carried {
            if let Some(mut column) = group.next_column()? {
                column.typed::<ByteArrayType>().write_batch(values, None, None)?;
                column.close()?;
            }
            values.clear();
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

    fn begin(path: &Path, carried: &[String]) -> Result<PredictionWriter> {
        PredictionFile::create(path)?.begin(carried)
    }

    fn written(path: &Path, logits: &[f32]) -> u64 {
        let mut writer = begin(path, &[]).unwrap();
        logits.iter().for_each(|&logit| writer.push(logit, &[]).unwrap());
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
    fn carried_fields_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["who".to_owned(), "a \"b\", c".to_owned()];
        let fields = ["7".to_owned(), "x,\n\"y\"".to_owned()];
        for name in ["p.csv", "p.parquet"] {
            let mut writer = begin(&folder.path().join(name), &names).unwrap();
            writer.push(0.0, &fields).unwrap();
            assert_eq!(writer.finish().unwrap(), 1);
        }
        let text = std::fs::read_to_string(folder.path().join("p.csv")).unwrap();
        let header = "row,probability,logit,who,\"a \"\"b\"\", c\"\n";
        assert_eq!(text, format!("{header}0,0.5,0,7,\"x,\n\"\"y\"\"\"\n"));
        let file = File::open(folder.path().join("p.parquet")).unwrap();
        let row = SerializedFileReader::new(file).unwrap().into_iter().next().unwrap().unwrap();
        assert_eq!(
            (row.get_string(3).unwrap(), row.get_string(4).unwrap()),
            (&fields[0], &fields[1])
        );
        let refused = begin(&folder.path().join("q.csv"), &["row".to_owned()]);
        assert!(refused.err().unwrap().to_string().contains("`row` cannot be carried"));
    }

    #[test]
    fn another_extension_is_refused_and_an_unfinished_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["p.txt", "p", "p.csv.gz"] {
            let Err(error) = PredictionFile::create(&folder.path().join(name)) else {
                panic!("{name}")
            };
            assert!(error.to_string().contains(".csv or .parquet"), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        for name in ["p.csv", "p.parquet"] {
            let mut writer = begin(&folder.path().join(name), &[]).unwrap();
            writer.push(0.5, &[]).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
