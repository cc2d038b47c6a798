//! Columns to samples.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::ConvertedType;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;

use super::SCHEMA_KEY;
use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result};
use crate::formats::named::{DenseReading, Fault, NamedColumns, Role, id_of_text, transformed};
use crate::formats::{Ranges, SampleStream, Source, cut};
use crate::hashing::MISSING_ID;
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, IdBags, Samples};

/// Most samples that come at a time.
const SAMPLES_AT_A_TIME: u64 = 2048;

/// Files of one schema, one after another.
pub struct ParquetSource {
    columns: Arc<NamedColumns>,
    schema: DataSchema,
    files: Arc<[OneFile]>,
    /// File and row group of each part.
    groups: Arc<[(usize, usize)]>,
    /// Samples before each row group, and all of them at the end.
    starts: Arc<[u64]>,
}

struct OneFile {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    /// What each leaf of the file's schema is.
    roles: Vec<Role>,
    header: Vec<String>,
    bytes: u64,
}

/// Whether a file begins as Parquet.
pub fn is_parquet(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(b"PAR1")
}

fn bad(path: &Path, message: impl ToString) -> ReaderError {
    ReaderError::Format { file: path.into(), message: message.to_string() }
}

impl ParquetSource {
    /// Opens `paths`. What their columns are is said by the first file where we have written it, else by `columns`, else by their names
    /// (`label`, `I1…`, `C1…`); then numbers that are no integers have gone through `transform`.
    ///
    /// # Errors
    /// Those of opening; [`ReaderError::Format`] for a file that is damaged or whose columns do not fit.
    pub fn open(
        paths: &[PathBuf],
        columns: Option<&NamedColumns>,
        transform: crate::DenseTransform,
    ) -> Result<Self> {
        let opened = paths.iter().map(|path| open_file(path)).collect::<Result<Vec<_>>>()?;
        let Some((path, first)) = paths.first().zip(opened.first()) else {
            return Err(ReaderError::Invalid { message: "no data file was named".to_owned() });
        };
        let columns = match (own_columns(path, first)?, columns) {
            (Some(own), _) => own,
            (None, Some(columns)) => columns.clone(),
            (None, None) => columns_by_name(first, transform),
        };
        let mut files = Vec::new();
        for (path, reader) in paths.iter().zip(opened) {
            files.push(OneFile::new(path, reader, &columns)?);
        }
        let labelled = files[0].roles.contains(&Role::Label);
        if let Some(other) = files.iter().find(|file| file.roles.contains(&Role::Label) != labelled) {
            return Err(bad(&other.path, format!("labels: expected as in {}: {labelled}", path.display())));
        }
        let (mut starts, mut groups) = (vec![0], Vec::new());
        for (index, file) in files.iter().enumerate() {
            for (group, metadata) in file.reader.metadata().row_groups().iter().enumerate() {
                groups.push((index, group));
                starts.push(starts[starts.len() - 1] + metadata.num_rows().max(0) as u64);
            }
        }
        let (schema, columns) = (columns.schema(labelled), Arc::new(columns));
        Ok(Self { columns, schema, files: files.into(), groups: groups.into(), starts: starts.into() })
    }
}

fn open_file(path: &Path) -> Result<SerializedFileReader<File>> {
    let file = File::open(path).map_err(|source| ReaderError::Open { file: path.into(), source })?;
    SerializedFileReader::new(file).map_err(|error| bad(path, error))
}

/// Names of the columns that the leaves are in.
fn names(reader: &SerializedFileReader<File>) -> Vec<String> {
    let leaves = reader.metadata().file_metadata().schema_descr().columns().iter();
    leaves.map(|leaf| leaf.path().parts().first().cloned().unwrap_or_default()).collect()
}

/// The columns as a file says them that we have written.
fn own_columns(path: &Path, reader: &SerializedFileReader<File>) -> Result<Option<NamedColumns>> {
    let pairs = reader.metadata().file_metadata().key_value_metadata().map_or(&[][..], Vec::as_slice);
    let json = pairs.iter().find(|pair| pair.key == SCHEMA_KEY).and_then(|pair| pair.value.as_ref());
    let Some(json) = json else { return Ok(None) };
    let schema: DataSchema =
        serde_json::from_str(json).map_err(|error| bad(path, format!("metadata {SCHEMA_KEY}: {error}")))?;
    let dense_reading = match schema.dense_kind {
        DenseKind::Integers => DenseReading::Integers,
        DenseKind::Transformed(done) => DenseReading::Transformed(done),
    };
    Ok(Some(NamedColumns {
        label: schema.labelled.then(|| "label".to_owned()),
        dense: schema.dense,
        dense_reading,
        sparse: schema.sparse,
        list_separator: b'|',
        ignored: Vec::new(),
    }))
}

/// The columns as their names and types say.
fn columns_by_name(reader: &SerializedFileReader<File>, transform: crate::DenseTransform) -> NamedColumns {
    let header = names(reader);
    let leaves = reader.metadata().file_metadata().schema_descr().columns();
    let dense = NamedColumns::by_convention(&header, DenseReading::Integers, &[]).dense;
    let mut dense = leaves.iter().zip(&header).filter(|(_, name)| dense.contains(name));
    let integers = dense.all(|(leaf, _)| leaf.physical_type() == ::parquet::basic::Type::INT32);
    let reading = if integers { DenseReading::Integers } else { DenseReading::Transformed(transform) };
    let mut columns = NamedColumns::by_convention(&header, reading, &[]);
    for column in &mut columns.sparse {
        let leaf = leaves.iter().zip(&header).find(|(_, name)| **name == column.name);
        if leaf.is_some_and(|(leaf, _)| leaf.max_rep_level() > 0) {
            column.hotness = Hotness::Varying;
        }
    }
    columns
}

impl OneFile {
    fn new(path: &Path, reader: SerializedFileReader<File>, columns: &NamedColumns) -> Result<Self> {
        let header = names(&reader);
        let roles = columns.roles(&header, path)?;
        let leaves = reader.metadata().file_metadata().schema_descr().columns();
        for ((leaf, role), name) in leaves.iter().zip(&roles).zip(&header) {
            let single = match role {
                Role::Ignored => continue,
                Role::Sparse(column) => columns.sparse[*column].hotness == Hotness::Fixed(1),
                Role::Label | Role::Dense(_) => true,
            };
            let (expected, found) = match (single, leaf.max_rep_level()) {
                (true, 0) | (false, 1) => continue,
                (true, _) => ("one value a row", "a list (name it in data.columns.lists)"),
                (false, 0) => ("a list", "one value a row"),
                (false, _) => ("a list", "lists of lists"),
            };
            return Err(bad(path, format!("column `{name}`: expected {expected}, found {found}")));
        }
        let bytes = crate::io::TextFile::stored_bytes_of(path)?;
        Ok(Self { path: path.to_owned(), reader, roles, header, bytes })
    }
}

impl Source for ParquetSource {
    fn schema(&self) -> &DataSchema {
        &self.schema
    }

    fn num_samples(&self) -> Option<u64> {
        self.starts.last().copied()
    }

    fn stored_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    fn is_random(&self) -> bool {
        false
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        Ok(Box::new(ParquetStream {
            columns: Arc::clone(&self.columns),
            schema: self.schema.clone(),
            files: Arc::clone(&self.files),
            groups: Arc::clone(&self.groups),
            starts: Arc::clone(&self.starts),
            pieces: Box::new(cut(ranges, Arc::clone(&self.starts))),
            now: None,
            open: None,
        }))
    }
}

struct ParquetStream {
    columns: Arc<NamedColumns>,
    schema: DataSchema,
    files: Arc<[OneFile]>,
    groups: Arc<[(usize, usize)]>,
    starts: Arc<[u64]>,
    pieces: Box<dyn Iterator<Item = (usize, Range<u64>)> + Send>,
    now: Option<(usize, Range<u64>)>,
    open: Option<OpenGroup>,
}

/// A row group, and the row of it that comes next.
struct OpenGroup {
    part: usize,
    /// The columns that are used, with their leaf and role.
    columns: Vec<(usize, Role, ColumnReader)>,
    next: u64,
}

impl ParquetStream {
    /// Goes to row `wanted` of row group `part`.
    fn go_to(&mut self, part: usize, wanted: u64) -> Result<()> {
        let (file, group) = (&self.files[self.groups[part].0], self.groups[part].1);
        let failed = |error: ParquetError| bad(&file.path, format!("row group {group}: {error}"));
        let near = |open: &OpenGroup| open.part == part && open.next <= wanted;
        let mut open = match self.open.take().filter(near) {
            Some(open) => open,
            None => {
                let rows = file.reader.get_row_group(group).map_err(failed)?;
                let used = file.roles.iter().enumerate().filter(|(_, role)| **role != Role::Ignored);
                let open = |(leaf, role): (usize, &Role)| Ok((leaf, *role, rows.get_column_reader(leaf)?));
                let columns = used.map(open).collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
                OpenGroup { part, columns, next: 0 }
            }
        };
        let missing = (wanted - open.next) as usize;
        if missing > 0 {
            for (_, _, reader) in &mut open.columns {
                skip(reader, missing).map_err(failed)?;
            }
            open.next = wanted;
        }
        self.open = Some(open);
        Ok(())
    }

    fn decode(&mut self, part: usize, count: usize, samples: &mut Samples) -> Result<()> {
        let (file, group) = (&self.files[self.groups[part].0], self.groups[part].1);
        let Some(open) = &mut self.open else { return Ok(()) };
        let first = self.starts[part] - self.starts[part - group] + open.next;
        samples.clear(&self.schema);
        samples.num_samples = count;
        let width = self.schema.dense.len();
        match &mut samples.dense {
            DenseValues::Integers(values) => values.resize(count * width, 0),
            DenseValues::Numbers(values) => values.resize(count * width, 0.0),
        }
        let leaves = file.reader.metadata().file_metadata().schema_descr();
        for (leaf, role, reader) in &mut open.columns {
            let column = Column::read(reader, &leaves.column(*leaf), count)
                .map_err(|error| bad(&file.path, format!("row group {group}: {error}")))?;
            let put = column.put(*role, &self.columns, samples, count);
            put.map_err(|(row, (expected, found))| {
                let (name, row) = (&file.header[*leaf], first + row as u64);
                bad(&file.path, format!("row {row}, column `{name}`: expected {expected}, found {found}"))
            })?;
        }
        open.next += count as u64;
        Ok(())
    }
}

impl SampleStream for ParquetStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let Some((part, rows)) = self.now.take().or_else(|| self.pieces.next()) else {
            for file in self.files.iter() {
                let found = crate::io::TextFile::stored_bytes_of(&file.path)?;
                if found != file.bytes {
                    let expected = file.bytes;
                    let message =
                        format!("it has changed while it was read: expected {expected} bytes, found {found}");
                    return Err(bad(&file.path, message));
                }
            }
            return Ok(false);
        };
        let end = rows.end.min(rows.start + SAMPLES_AT_A_TIME);
        if end < rows.end {
            self.now = Some((part, end..rows.end));
        }
        self.go_to(part, rows.start)?;
        self.decode(part, (end - rows.start) as usize, samples)?;
        Ok(true)
    }

    fn description(&self) -> String {
        "pages of columns through the page cache".to_owned()
    }
}

fn skip(reader: &mut ColumnReader, rows: usize) -> std::result::Result<usize, ParquetError> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows),
        _ => Err(ParquetError::General("a column of a type that is not supported".to_owned())),
    }
}

/// Some rows of a column.
struct Column {
    values: Values,
    /// Of each value or gap: how much of it is there, and whether it begins a row (0).
    defined: Vec<i16>,
    repeated: Vec<i16>,
    most_defined: i16,
    /// From this level on there is an element of a list.
    element_from: i16,
}

enum Values {
    Bools(Vec<bool>),
    /// Whether they are without a sign.
    Integers(Vec<i64>, bool),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Words(Vec<ByteArray>),
}

impl Column {
    fn read(
        reader: &mut ColumnReader,
        leaf: &ColumnDescriptor,
        rows: usize,
    ) -> std::result::Result<Self, ParquetError> {
        let is_unsigned = matches!(
            leaf.converted_type(),
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64
        );
        let mut levels = (Vec::new(), Vec::new());
        let values = match reader {
            ColumnReader::BoolColumnReader(reader) => Values::Bools(values(reader, rows, &mut levels)?),
            ColumnReader::Int32ColumnReader(reader) => {
                let narrow = values(reader, rows, &mut levels)?;
                let wide = |value: i32| if is_unsigned { i64::from(value as u32) } else { i64::from(value) };
                Values::Integers(narrow.into_iter().map(wide).collect(), is_unsigned)
            }
            ColumnReader::Int64ColumnReader(reader) => {
                Values::Integers(values(reader, rows, &mut levels)?, is_unsigned)
            }
            ColumnReader::FloatColumnReader(reader) => Values::Floats(values(reader, rows, &mut levels)?),
            ColumnReader::DoubleColumnReader(reader) => Values::Doubles(values(reader, rows, &mut levels)?),
            ColumnReader::ByteArrayColumnReader(reader) => Values::Words(values(reader, rows, &mut levels)?),
            _ => return Err(ParquetError::General("a column of a type that is not supported".to_owned())),
        };
        let most_defined = leaf.max_def_level();
        let (defined, repeated) = levels;
        let element_from = most_defined - i16::from(leaf.self_type().is_optional());
        Ok(Self { values, defined, repeated, most_defined, element_from })
    }

    /// Puts the values where `role` says; the error is the row and what is wrong there.
    fn put(
        &self,
        role: Role,
        columns: &NamedColumns,
        samples: &mut Samples,
        rows: usize,
    ) -> std::result::Result<(), (usize, Fault)> {
        let single = |put: &mut dyn FnMut(usize, Option<usize>) -> std::result::Result<(), Fault>| {
            let mut value = 0;
            for row in 0..rows {
                let here = self.most_defined == 0 || self.defined[row] == self.most_defined;
                put(row, here.then_some(value)).map_err(|fault| (row, fault))?;
                value += usize::from(here);
            }
            Ok(())
        };
        match role {
            Role::Ignored => Ok(()),
            Role::Label => single(&mut |_, value| {
                samples.labels.push(self.label(value)?);
                Ok(())
            }),
            Role::Dense(column) => {
                let (width, reading) = (columns.dense.len(), columns.dense_reading);
                single(&mut |row, value| match &mut samples.dense {
                    DenseValues::Integers(to) => {
                        to[row * width + column] = self.integer(value)?;
                        Ok(())
                    }
                    DenseValues::Numbers(to) => {
                        to[row * width + column] = self.number(value, reading)?;
                        Ok(())
                    }
                })
            }
            Role::Sparse(column) if columns.sparse[column].hotness == Hotness::Fixed(1) => {
                let to = &mut samples.sparse[column].ids;
                single(&mut |_, value| {
                    to.push(value.map_or(Ok(MISSING_ID), |value| self.id(value))?);
                    Ok(())
                })
            }
            Role::Sparse(column) => {
                self.put_lists(columns.sparse[column].hotness, &mut samples.sparse[column])
            }
        }
    }

    fn put_lists(&self, hotness: Hotness, to: &mut IdBags) -> std::result::Result<(), (usize, Fault)> {
        let (mut value, mut entry, mut row) = (0, 0, 0);
        while entry < self.repeated.len() {
            let before = to.ids.len();
            loop {
                let defined = self.defined[entry];
                if defined == self.most_defined {
                    to.ids.push(self.id(value).map_err(|fault| (row, fault))?);
                    value += 1;
                } else if defined >= self.element_from {
                    return Err((row, ("values", "a list with a missing one".to_owned())));
                }
                entry += 1;
                if self.repeated.get(entry).is_none_or(|level| *level == 0) {
                    break;
                }
            }
            let found = to.ids.len() - before;
            match hotness {
                Hotness::Varying => to.offsets.push(to.ids.len() as u32),
                Hotness::Fixed(count) if count as usize == found => {}
                Hotness::Fixed(_) => {
                    return Err((row, ("as many values as in every sample", found.to_string())));
                }
            }
            row += 1;
        }
        Ok(())
    }

    fn label(&self, value: Option<usize>) -> std::result::Result<f32, Fault> {
        let number = value.and_then(|value| match &self.values {
            Values::Bools(values) => Some(f64::from(u8::from(values[value]))),
            _ => self.double(value),
        });
        match number {
            Some(0.0) => Ok(0.0),
            Some(1.0) => Ok(1.0),
            _ => Err(("0 or 1", self.shown(value))),
        }
    }

    fn integer(&self, value: Option<usize>) -> std::result::Result<i32, Fault> {
        let Some(index) = value else { return Ok(MISSING_DENSE) };
        let fitting = match &self.values {
            Values::Integers(values, _) => i32::try_from(values[index]).ok(),
            _ => None,
        };
        fitting
            .filter(|found| *found != MISSING_DENSE)
            .ok_or_else(|| ("an integer of 32 bits", self.shown(value)))
    }

    fn number(&self, value: Option<usize>, reading: DenseReading) -> std::result::Result<f32, Fault> {
        let found = match (value, reading, &self.values) {
            (Some(index), DenseReading::Transformed(_), Values::Floats(values)) => Some(values[index]),
            (Some(index), DenseReading::Transformed(_), _) => self.double(index).map(|found| found as f32),
            (Some(index), DenseReading::Raw(transform), _) => self
                .double(index)
                .filter(|found| found.is_finite())
                .map(|found| transformed(found, transform)),
            (None, DenseReading::Raw(transform), _) => Some(transformed(0.0, transform)),
            _ => Some(0.0),
        };
        found.filter(|found| found.is_finite()).ok_or_else(|| ("a number", self.shown(value)))
    }

    fn double(&self, index: usize) -> Option<f64> {
        match &self.values {
            Values::Integers(values, true) => Some(values[index] as u64 as f64),
            Values::Integers(values, false) => Some(values[index] as f64),
            Values::Floats(values) => Some(f64::from(values[index])),
            Values::Doubles(values) => Some(values[index]),
            Values::Bools(_) | Values::Words(_) => None,
        }
    }

    fn id(&self, index: usize) -> std::result::Result<u64, Fault> {
        match &self.values {
            Values::Integers(values, true) => Ok(values[index] as u64),
            Values::Integers(values, false) if values[index] >= 0 => Ok(values[index] as u64),
            Values::Words(words) => Ok(id_of_text(words[index].data().trim_ascii())),
            _ => Err(("an integer of at least 0, or a word", self.shown(Some(index)))),
        }
    }

    fn shown(&self, value: Option<usize>) -> String {
        let Some(index) = value else { return "nothing".to_owned() };
        match &self.values {
            Values::Bools(values) => values[index].to_string(),
            Values::Integers(values, _) => values[index].to_string(),
            Values::Floats(values) => values[index].to_string(),
            Values::Doubles(values) => values[index].to_string(),
            Values::Words(words) => format!("\"{}\"", String::from_utf8_lossy(words[index].data())),
        }
    }
}

/// The next values of a column, with their levels.
fn values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    (defined, repeated): &mut (Vec<i16>, Vec<i16>),
) -> std::result::Result<Vec<T::T>, ParquetError> {
    let mut values = Vec::new();
    let (found, ..) = reader.read_records(rows, Some(defined), Some(repeated), &mut values)?;
    if found == rows {
        Ok(values)
    } else {
        Err(ParquetError::EOF(format!("expected {rows} more rows of a column, found {found}")))
    }
}
