//! Columns to samples.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{ConvertedType as Converted, LogicalType, Type as Physical};
use ::parquet::column::reader::{ColumnReader, get_column_reader};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ParquetMetaData;
use ::parquet::schema::types::ColumnDescriptor;

use super::clock::clock_of;
use super::column::{Column, skip};
use super::contained::contained;
use super::{SCHEMA_KEY, pages};
use crate::convert::{Described, too_late};
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, refuse};
use crate::formats::named::{DenseReading, NamedColumns, Role};
use crate::formats::{About, Parts, Ranges, SampleStream, Source, cut, starts_of};
use crate::io::open_regular;
use crate::samples::{DataSchema, DenseKind, Hotness, Samples};
use crate::transform::DenseTransform;

/// Most samples that come at a time.
const SAMPLES_AT_A_TIME: u64 = 2048;
/// A file has at most so many rows for each of its bytes: equal values take next to nothing, but
/// not nothing.
const MOST_ROWS_PER_BYTE: u64 = 1 << 16;

/// Files of one schema, one after another.
pub struct ParquetSource {
    about: About,
    columns: Arc<NamedColumns>,
    files: Arc<[OneFile]>,
    groups: Arc<[(usize, usize)]>,
    starts: Arc<[u64]>,
}

pub(super) struct Opened {
    file: Arc<File>,
    bytes: u64,
    pub(super) metadata: ParquetMetaData,
}

struct OneFile {
    path: PathBuf,
    opened: Opened,
    roles: Vec<Role>,
    header: Vec<String>,
}

/// Whether a file begins as Parquet.
pub fn is_parquet(first_bytes: &[u8]) -> bool {
    first_bytes.starts_with(b"PAR1")
}

pub(super) fn bad(path: &Path, message: impl ToString) -> ReaderError {
    ReaderError::Format { file: path.into(), message: message.to_string() }
}

impl ParquetSource {
    /// Opens `paths`. What their columns are is said by the first file where we have written it,
    /// else by `described`, else by their names (`label`, `I1…`, `C1…`); then numbers that are no
    /// integers have gone through its transform.
    ///
    /// # Errors
    /// Those of opening; [`ReaderError::Format`] for a file that is damaged or whose columns do not
    /// fit.
    pub fn open(paths: &[PathBuf], described: &Described) -> Result<Self> {
        let opened = paths.iter().map(|path| Opened::open(path)).collect::<Result<Vec<_>>>()?;
        let Some((path, first)) = paths.first().zip(opened.first()) else {
            refuse!("no data file was named");
        };
        let mut columns = match (own_columns(path, first)?, &described.columns) {
            (Some(own), _) => own,
            (None, Some(columns)) => columns.clone(),
            (None, None) => columns_by_name(first, described),
        };
        match (&described.dense_columns, columns.dense_reading) {
            (Some(each), DenseReading::Transformed(DenseTransform::Identity)) => {
                columns.dense_reading = DenseReading::Raw(DenseTransform::Identity);
                columns.dense_columns = Some(Arc::clone(each));
            }
            (Some(_), DenseReading::Transformed(done)) => {
                return Err(too_late(done, &path.display().to_string()));
            }
            _ => {}
        }
        let mut files = Vec::new();
        for (path, opened) in paths.iter().zip(opened) {
            files.push(OneFile::new(path, opened, &columns)?);
        }
        let labelled = files[0].roles.contains(&Role::Label);
        if let Some(other) = files.iter().find(|file| file.roles.contains(&Role::Label) != labelled)
        {
            return Err(bad(
                &other.path,
                format!("labels: expected as in {}: {labelled}", path.display()),
            ));
        }
        let (mut counts, mut groups) = (Vec::new(), Vec::new());
        for (index, file) in files.iter().enumerate() {
            for (group, metadata) in file.opened.metadata.row_groups().iter().enumerate() {
                let rows = u64::try_from(metadata.num_rows()).unwrap_or(u64::MAX);
                if rows > file.opened.bytes.saturating_mul(MOST_ROWS_PER_BYTE) {
                    return Err(bad(
                        &file.path,
                        format!("row group {group}: it cannot have {} rows", metadata.num_rows()),
                    ));
                }
                groups.push((index, group));
                counts.push(rows);
            }
        }
        let starts = starts_of(counts.into_iter());
        let stored_bytes = files.iter().map(|file| file.opened.bytes).sum();
        let about = About::random(columns.schema(labelled), &starts, stored_bytes);
        let (about, columns) = (About { is_random: false, ..about }, Arc::new(columns));
        Ok(Self { about, columns, files: files.into(), groups: groups.into(), starts })
    }
}

impl Opened {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let (file, bytes) = open_regular(path)?;
        let metadata = pages::metadata(&file, bytes).map_err(|error| bad(path, error))?;
        Ok(Self { file: Arc::new(file), bytes, metadata })
    }

    pub(super) fn leaves(&self) -> &[Arc<ColumnDescriptor>] {
        self.metadata.file_metadata().schema_descr().columns()
    }

    pub(super) fn names(&self) -> Vec<String> {
        let names = self.leaves().iter().map(|leaf| leaf.path().parts().first().cloned());
        names.map(Option::unwrap_or_default).collect()
    }

    pub(super) fn column(
        &self,
        group: usize,
        leaf: usize,
    ) -> std::result::Result<ColumnReader, ParquetError> {
        let rows = self.metadata.row_group(group);
        let chunk = rows
            .columns()
            .get(leaf)
            .ok_or_else(|| ParquetError::General("it has fewer columns".to_owned()))?;
        let num_rows = rows.num_rows().max(0) as usize;
        contained(|| {
            let pages = pages::of_column(&self.file, self.bytes, chunk, num_rows)?;
            Ok(get_column_reader(Arc::clone(&self.leaves()[leaf]), pages))
        })
    }
}

/// The columns as a file says them that we have written.
fn own_columns(path: &Path, opened: &Opened) -> Result<Option<NamedColumns>> {
    let pairs = opened.metadata.file_metadata().key_value_metadata().map_or(&[][..], Vec::as_slice);
    let json =
        pairs.iter().find(|pair| pair.key == SCHEMA_KEY).and_then(|pair| pair.value.as_ref());
    let Some(json) = json else { return Ok(None) };
    let schema: DataSchema = serde_json::from_str(json)
        .map_err(|error| bad(path, format!("metadata {SCHEMA_KEY}: {error}")))?;
    schema.check().map_err(|error| bad(path, format!("metadata {SCHEMA_KEY}: {error}")))?;
    let dense_reading = match schema.dense_kind {
        DenseKind::Integers => DenseReading::Integers,
        DenseKind::Transformed(done) => DenseReading::Transformed(done),
    };
    Ok(Some(NamedColumns {
        label: schema.labelled.then(|| schema.label_name().to_owned()),
        weight: schema.weight,
        dense: schema.dense,
        dense_reading,
        dense_columns: None,
        sparse: schema.sparse,
        times: Vec::new(),
        separator: None,
        list_separator: b'|',
        ignored: Vec::new(),
    }))
}

fn columns_by_name(opened: &Opened, described: &Described) -> NamedColumns {
    let (header, leaves) = (opened.names(), opened.leaves());
    let dense = NamedColumns::by_convention(&header, DenseReading::Integers, &[]).dense;
    let mut dense = leaves.iter().zip(&header).filter(|(_, name)| dense.contains(name));
    let integers = dense.all(|(leaf, _)| leaf.physical_type() == Physical::INT32);
    let reading = if integers {
        DenseReading::Integers
    } else {
        DenseReading::Transformed(described.transform)
    };
    let mut columns = NamedColumns::by_convention(&header, reading, &[]);
    for column in &mut columns.sparse {
        let leaf = leaves.iter().zip(&header).find(|(_, name)| **name == column.name);
        if leaf.is_some_and(|(leaf, _)| leaf.max_rep_level() > 0) {
            column.hotness = Hotness::Varying;
        }
    }
    columns.place_others(described.others, &header, |leaf| match leaves[leaf].max_rep_level() {
        0 => Hotness::Fixed(1),
        _ => Hotness::Varying,
    });
    columns
}

impl OneFile {
    fn new(path: &Path, opened: Opened, columns: &NamedColumns) -> Result<Self> {
        let header = opened.names();
        for (leaf, name) in opened.leaves().iter().zip(&header) {
            if columns.uses(name)
                && leaf.path().parts().len() > 1
                && header.iter().filter(|other| *other == name).count() > 1
            {
                let message = format!(
                    "column `{name}`: expected values or lists of them, found a map or a \
                     structure of several columns"
                );
                return Err(bad(path, message));
            }
        }
        let roles = columns.roles(&header, path)?;
        for ((leaf, role), name) in opened.leaves().iter().zip(&roles).zip(&header) {
            let single = match role {
                Role::Ignored => continue,
                Role::Sparse(column) => columns.sparse[*column].hotness == Hotness::Fixed(1),
                Role::Label | Role::Weight | Role::Dense(_) | Role::Time(_) => true,
            };
            let is_time = matches!(role, Role::Time(_)) && clock_of(leaf).is_some();
            if let Some((found, help)) = refused_type(leaf).filter(|_| !is_time) {
                let message = format!(
                    "column `{name}`: expected numbers, truth values or words, found {found}; \
                     {help}, or leave the column out"
                );
                return Err(bad(path, message));
            }
            // Text holds a list as text files do, its values with something between them.
            let is_text = leaf.physical_type() == Physical::BYTE_ARRAY;
            let (expected, found) = match (single, leaf.max_rep_level()) {
                (true, 0) | (false, 1) if is_nested(leaf) => {
                    ("values or lists of them", "a structure of columns")
                }
                (true, 0) | (false, 1) => continue,
                (false, 0) if is_text && !is_nested(leaf) => continue,
                (true, _) => ("one value a row", "a list (name it in data.columns.lists)"),
                (false, 0) => ("a list", "one value a row"),
                (false, _) => ("a list", "lists of lists"),
            };
            return Err(bad(path, format!("column `{name}`: expected {expected}, found {found}")));
        }
        Ok(Self { path: path.to_owned(), opened, roles, header })
    }
}

/// What a leaf holds that is neither a number, a truth value nor a word, and what to write in its
/// place. Points in time would be counts of a unit that the writer of the file has chosen, and
/// decimals lose their point: another file of the same values would give other ids.
pub(super) fn refused_type(leaf: &ColumnDescriptor) -> Option<(&'static str, &'static str)> {
    const TIME: &str = "write it as text, or as integers of one unit in all files";
    const NUMBER: &str = "write it as 32- or 64-bit numbers, or as text";
    let (found, help) = match (leaf.logical_type_ref(), leaf.converted_type()) {
        (Some(LogicalType::Timestamp(_)), _)
        | (_, Converted::TIMESTAMP_MILLIS | Converted::TIMESTAMP_MICROS) => ("timestamps", TIME),
        (Some(LogicalType::Time(_)), _) | (_, Converted::TIME_MILLIS | Converted::TIME_MICROS) => {
            ("times of day", TIME)
        }
        (Some(LogicalType::Date), _) | (_, Converted::DATE) => ("dates", TIME),
        (_, Converted::INTERVAL) => ("intervals of time", TIME),
        (Some(LogicalType::Decimal(_)), _) | (_, Converted::DECIMAL) => ("decimals", NUMBER),
        (Some(LogicalType::Float16), _) => ("16-bit numbers", NUMBER),
        _ => match leaf.physical_type() {
            Physical::INT96 => ("timestamps (INT96)", TIME),
            Physical::FIXED_LEN_BYTE_ARRAY => ("bytes of a fixed length", "write it as text"),
            _ => return None,
        },
    };
    Some((found, help))
}

/// Whether a leaf is a field of a structure: then it is not all of its column.
pub(super) fn is_nested(leaf: &ColumnDescriptor) -> bool {
    match (leaf.max_rep_level(), leaf.path().parts()) {
        (0, parts) => parts.len() > 1,
        // A list is a group of a repeated group of elements; older writers leave out one of the
        // two.
        (_, [name, group, _]) => group == "array" || *group == format!("{name}_tuple"),
        (_, parts) => parts.len() > 3,
    }
}

impl Source for ParquetSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        Ok(Box::new(ParquetStream {
            columns: Arc::clone(&self.columns),
            schema: self.about.schema.clone(),
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
    pieces: Parts,
    now: Option<(usize, Range<u64>)>,
    open: Option<OpenGroup>,
}

/// A row group, and the row of it that comes next.
struct OpenGroup {
    part: usize,
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
                let used =
                    file.roles.iter().enumerate().filter(|(_, role)| **role != Role::Ignored);
                let open = |(leaf, role): (usize, &Role)| {
                    Ok((leaf, *role, file.opened.column(group, leaf)?))
                };
                let opened = used.map(open).collect::<std::result::Result<Vec<_>, _>>();
                let mut columns = opened.map_err(failed)?;
                // Weights go to labels that are there.
                columns.sort_by_key(|(_, role, _)| *role == Role::Weight);
                OpenGroup { part, columns, next: 0 }
            }
        };
        let missing = (wanted - open.next) as usize;
        if missing > 0 {
            for (_, _, reader) in &mut open.columns {
                contained(|| skip(reader, missing)).map_err(failed)?;
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
        samples.make_room(&self.schema, count);
        for (leaf, role, reader) in &mut open.columns {
            let leaf_column = &file.opened.leaves()[*leaf];
            let column =
                contained(|| Column::read(reader, leaf_column, count)).map_err(|error| {
                    bad(
                        &file.path,
                        format!("row group {group}, column `{}`: {error}", file.header[*leaf]),
                    )
                })?;
            let put = column.put(*role, &self.columns, samples, count);
            put.map_err(|(row, (expected, found))| {
                let (name, row) = (&file.header[*leaf], first + row as u64);
                bad(
                    &file.path,
                    format!("row {row}, column `{name}`: expected {expected}, found {found}"),
                )
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
                let open = |source| ReaderError::Open { file: file.path.clone(), source };
                let found = std::fs::metadata(&file.path).map_err(open)?.len();
                if found != file.opened.bytes {
                    let expected = file.opened.bytes;
                    let message = format!(
                        "it has changed while it was read: expected {expected} bytes, found {found}"
                    );
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
