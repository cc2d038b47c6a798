//! TorchRec's arrays: for each shard `…_labels.npy` (`i32` [N, 1]), `…_dense.npy` (`f32` [N, D],
//! the logarithm taken already) and either `…_sparse.npy` (`i32` [N, T], one id each) or
//! `…_sparse_multi_hot.npz`, whose members `0`, `1`, … are `i32` [N, H].
//!
//! Other element types are read too. Members of an `npz` must be stored, not compressed, as
//! `numpy.savez` does. Which logarithm the dense numbers went through is not in the files: it has
//! to be said ([`DenseTransform`]).

use std::ffi::OsStr;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use headlong_device::files::OutputFile;

use super::records::{
    Element, Field, FieldFile, MOST_RECORD_BYTES, RecordSink, RecordSource, Shard, Target,
};
use super::{Samples, Sink};
use crate::error::{ReaderError, Result, refuse};
use crate::io::open_regular;
use crate::output;
use crate::samples::{DataSchema, DenseKind, Hotness, MOST_COLUMNS};
use crate::transform::DenseTransform;

const HEADER_BYTES: usize = 128;
const MOST_HEADER_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Array {
    element: Element,
    rows: u64,
    width: u64,
    row_bytes: u64,
    data_bytes: u64,
    /// Bytes before the data.
    first_byte: u64,
}

/// Opens shards: each path is one of a shard's files, or what their names begin with (`day_0`).
///
/// # Errors
/// Those of opening; [`ReaderError::Format`] for arrays of another shape.
pub fn open(paths: &[PathBuf], transform: DenseTransform) -> Result<RecordSource> {
    let mut stems: Vec<PathBuf> = Vec::new();
    for stem in paths.iter().map(|path| stem_of(path)) {
        if stems.last() != Some(&stem) {
            stems.push(stem);
        }
    }
    let mut opened =
        stems.iter().map(|stem| open_shard(stem, transform)).collect::<Result<Vec<_>>>()?;
    let Some(schema) = opened.first().map(|(schema, _)| schema.clone()) else {
        refuse!("no data file was named");
    };
    for ((other, _), stem) in opened.iter().zip(&stems) {
        schema.check_like(other, &stem.display().to_string())?;
    }
    RecordSource::open(schema, opened.drain(..).map(|(_, shard)| shard).collect())
}

const MULTI_HOT: &str = "_sparse_multi_hot.npz";
const SUFFIXES: [&str; 4] = ["_labels.npy", "_dense.npy", "_sparse.npy", MULTI_HOT];

fn stem_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let stem =
        SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix.as_bytes())).unwrap_or(name);
    path.with_file_name(OsStr::from_bytes(stem))
}

/// Whether files of arrays begin with `path`.
pub fn is_stem(path: &Path) -> bool {
    SUFFIXES.iter().any(|suffix| part(path, suffix).exists())
}

/// The names that the files of the shard of `path` have, whether they are there or not.
pub fn names_of_shard(path: &Path) -> Vec<PathBuf> {
    let stem = stem_of(path);
    SUFFIXES.iter().map(|suffix| part(&stem, suffix)).collect()
}

fn part(stem: &Path, suffix: &str) -> PathBuf {
    let mut name = stem.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    stem.with_file_name(name)
}

fn open_shard(stem: &Path, transform: DenseTransform) -> Result<(DataSchema, Shard)> {
    let [labels, dense, one_hot, multi_hot] = SUFFIXES.map(|suffix| part(stem, suffix));
    let mut files = vec![field_file(&labels, Target::Label)?];
    // Counted before columns are named.
    let columns_of = |file: &FieldFile| match file.fields[0].count {
        count if count <= MOST_COLUMNS => Ok(count),
        count => Err(ReaderError::format(
            &file.path,
            format!("expected at most {MOST_COLUMNS} columns, found {count}"),
        )),
    };
    let mut num_dense = 0;
    if dense.exists() {
        let file = field_file(&dense, Target::Dense)?;
        num_dense = columns_of(&file)?;
        files.push(file);
    }
    let hotness = if multi_hot.exists() {
        let members = open_members(&multi_hot)?;
        let hotness = members.iter().map(|file| file.fields[0].count as u32).collect();
        files.extend(members);
        hotness
    } else {
        let file = field_file(&one_hot, Target::AllColumns)?;
        let hotness = vec![1; columns_of(&file)?];
        files.push(file);
        hotness
    };
    let hotness: Vec<_> = hotness.into_iter().map(Hotness::Fixed).collect();
    let schema = DataSchema::numbered(true, num_dense, DenseKind::Transformed(transform), &hotness);
    Ok((schema, Shard { name: stem.display().to_string(), files, num_samples: None }))
}

fn field_file(path: &Path, target: Target) -> Result<FieldFile> {
    let (mut file, _) = open_regular(path)?;
    Ok(read_header(&mut file, path, "")?.field_file(path, target, 0))
}

/// The members `0`, `1`, … of an `npz`.
fn open_members(path: &Path) -> Result<Vec<FieldFile>> {
    let (file, _) = open_regular(path)?;
    members_of(file, path)
}

fn members_of(archive: impl Read + Seek, path: &Path) -> Result<Vec<FieldFile>> {
    let bad = |message: String| ReaderError::Format { file: path.into(), message };
    let mut archive =
        zip::ZipArchive::new(archive).map_err(|error| bad(format!("not an npz: {error}")))?;
    let num_columns = archive.len();
    if !(1..=MOST_COLUMNS).contains(&num_columns) {
        return Err(bad(format!(
            "expected 1 to {MOST_COLUMNS} members, one for each column, found {num_columns}"
        )));
    }
    let mut members = Vec::new();
    for column in 0..num_columns {
        let name = format!("{column}.npy");
        let missing =
            || bad(format!("expected members 0.npy to {}.npy, found no {name}", num_columns - 1));
        let index = archive.index_for_name(&name).ok_or_else(missing)?;
        // As it is stored: whether it can be decompressed is no matter.
        let member =
            archive.by_index_raw(index).map_err(|error| bad(format!("{name}: {error}")))?;
        if member.compression() != zip::CompressionMethod::Stored {
            return Err(bad(format!(
                "{name} is compressed, which cannot be read at random: save the arrays with \
                 numpy.savez, not savez_compressed"
            )));
        }
        let start = member.data_start().ok_or_else(|| bad(format!("{name} has no data")))?;
        let (size, mut header) = (member.size(), member.take(MOST_HEADER_BYTES + 12));
        let array = read_header(&mut header, path, &name)?;
        if array.first_byte.checked_add(array.data_bytes) != Some(size) {
            let found = array.first_byte.saturating_add(array.data_bytes);
            return Err(bad(format!("{name}: its shape needs {found} bytes, found {size}")));
        }
        members.push(array.field_file(path, Target::Column(column), start));
    }
    Ok(members)
}

/// Reads the header of an array in memory; `path` is for messages.
///
/// # Errors
/// Those of [`open`].
pub fn look_at_array(path: &Path, bytes: &[u8]) -> Result<FieldFile> {
    let mut rest = bytes;
    Ok(read_header(&mut rest, path, "")?.field_file(path, Target::Dense, 0))
}

/// Reads the directory of an `npz` in memory, and the headers of its arrays; `path` is for
/// messages.
///
/// # Errors
/// Those of [`open`].
pub fn look_at_archive(path: &Path, bytes: &[u8]) -> Result<Vec<FieldFile>> {
    members_of(std::io::Cursor::new(bytes), path)
}

impl Array {
    fn field_file(self, path: &Path, target: Target, start: u64) -> FieldFile {
        FieldFile {
            path: path.to_owned(),
            first_byte: start.saturating_add(self.first_byte),
            num_bytes: Some(self.data_bytes),
            record_bytes: self.row_bytes,
            fields: vec![Field {
                at: 0,
                element: self.element,
                count: self.width as usize,
                target,
            }],
        }
    }
}

/// Reads numpy's header (format 1.0 to 3.0): magic, version, length, a Python dictionary.
fn read_header(from: &mut impl Read, path: &Path, member: &str) -> Result<Array> {
    let place = if member.is_empty() { String::new() } else { format!("{member}: ") };
    let bad =
        |what: &str| ReaderError::Format { file: path.into(), message: format!("{place}{what}") };
    let mut start = [0; 8];
    from.read_exact(&mut start)
        .map_err(|_| bad("expected a numpy array, found fewer than 8 bytes"))?;
    if start[..6] != *b"\x93NUMPY" {
        return Err(bad("expected a numpy array (\\x93NUMPY), found something else"));
    }
    let length_bytes = if start[6] == 1 { 2 } else { 4 };
    let mut length = [0; 4];
    from.read_exact(&mut length[..length_bytes]).map_err(|_| bad("the numpy header ends early"))?;
    let length = u64::from(u32::from_le_bytes(length));
    if length > MOST_HEADER_BYTES {
        return Err(bad("the numpy header is longer than 64 KiB"));
    }
    let mut text = vec![0; length as usize];
    from.read_exact(&mut text).map_err(|_| bad("the numpy header ends early"))?;
    let text = String::from_utf8_lossy(&text);
    let (element, shape) = parse_header(&text).map_err(|what| bad(&what))?;
    let (rows, width) = match shape[..] {
        [rows] => (rows, 1),
        [rows, width] => (rows, width),
        _ => {
            return Err(bad(&format!(
                "expected an array of one or two dimensions, found {shape:?}"
            )));
        }
    };
    let row_bytes = width.saturating_mul(element.bytes() as u64);
    if row_bytes == 0 || row_bytes > MOST_RECORD_BYTES {
        return Err(bad(&format!(
            "expected rows of 1 to {MOST_RECORD_BYTES} bytes, found the shape ({rows}, {width})"
        )));
    }
    let Some(data_bytes) = rows.checked_mul(row_bytes) else {
        return Err(bad(&format!("the shape ({rows}, {width}) needs more than 2^64 bytes")));
    };
    let first_byte = 8 + length_bytes as u64 + length;
    Ok(Array { element, rows, width, row_bytes, data_bytes, first_byte })
}

/// Type and shape of `{'descr': '<i4', 'fortran_order': False, 'shape': (8, 26), }`.
fn parse_header(text: &str) -> Result<(Element, Vec<u64>), String> {
    let after =
        |key: &str| text.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    let missing = |key: &str| format!("the numpy header has no '{key}': {text}");
    let descr = after("descr").ok_or_else(|| missing("descr"))?;
    let descr = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next()).unwrap_or(descr);
    let element = Element::described(descr).ok_or_else(|| {
        format!("expected little-endian numbers of 1 to 8 bytes, found \"{descr}\"")
    })?;
    let order = after("fortran_order").ok_or_else(|| missing("fortran_order"))?;
    if !order.starts_with("False") {
        return Err("expected rows after each other, found Fortran order: save it with \
                    numpy.ascontiguousarray"
            .into());
    }
    let shape = after("shape").ok_or_else(|| missing("shape"))?;
    let inside = shape
        .strip_prefix('(')
        .and_then(|rest| rest.split(')').next())
        .ok_or_else(|| missing("shape"))?;
    let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
    let sizes =
        sizes.map(|size| size.parse::<u64>().map_err(|_| format!("shape: found \"{size}\"")));
    Ok((element, sizes.collect::<Result<_, _>>()?))
}

/// A header of [`HEADER_BYTES`] bytes.
fn header(descr: &str, rows: u64, width: usize) -> Vec<u8> {
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let length = HEADER_BYTES - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(length as u16).to_le_bytes());
    bytes.extend_from_slice(format!("{dictionary:<width$}\n", width = length - 1).as_bytes());
    bytes
}

/// Writes one shard of arrays. A former shard of the name goes, also those of its arrays that this
/// one does not have.
pub struct NpySink {
    sink: RecordSink,
    shapes: Vec<(&'static str, usize)>,
    /// How many of the last files become members of an `npz`.
    num_members: usize,
    stem: PathBuf,
}

impl NpySink {
    /// Creates the files of the shard `stem`.
    ///
    /// # Errors
    /// [`ReaderError::Write`]; [`ReaderError::Invalid`] for columns that arrays cannot hold: of
    /// varying hotness, or integers that are still to be transformed.
    pub fn create(stem: &Path, schema: &DataSchema) -> Result<Self> {
        let stem = stem_of(stem);
        if schema.dense_kind == DenseKind::Integers && !schema.dense.is_empty() {
            refuse!(
                "npy holds transformed numbers: say how integers become numbers (--dense-transform \
                 \"ln(x+1)\")"
            );
        }
        let hotness: Vec<_> =
            schema.fixed_hotness()?.into_iter().map(|count| count as usize).collect();
        let [labels, dense, one_hot, _] = SUFFIXES.map(|suffix| part(&stem, suffix));
        let mut parts = vec![];
        if schema.labelled {
            parts.push((labels, Element::I32, "<i4", 1, Target::Label));
        }
        if !schema.dense.is_empty() {
            parts.push((dense, Element::F32, "<f4", schema.dense.len(), Target::Dense));
        }
        let mut num_members = 0;
        if hotness.iter().all(|&count| count == 1) {
            parts.push((one_hot, Element::I32, "<i4", hotness.len(), Target::AllColumns));
        } else {
            for (column, &count) in hotness.iter().enumerate() {
                let path = part(&stem, &format!("_sparse_multi_hot.{column}.npy"));
                num_members += 1;
                parts.push((path, Element::I32, "<i4", count, Target::Column(column)));
            }
        }
        let shapes = parts.iter().map(|&(_, _, descr, width, _)| (descr, width)).collect();
        let files = parts.into_iter().map(|(path, element, descr, count, target)| {
            let field = Field { at: 0, element, count, target };
            (path, header(descr, 0, count), count * element.bytes(), vec![field])
        });
        let sink = RecordSink::create(schema.clone(), files.collect())?;
        Ok(Self { sink, shapes, num_members, stem })
    }
}

impl Sink for NpySink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        self.sink.write(samples)
    }

    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>> {
        let Self { sink, shapes, num_members, stem } = *self;
        let rows = sink.num_samples();
        let mut files = sink.complete(|file| {
            let (descr, width) = shapes[file];
            Some(header(descr, rows, width))
        })?;
        let members = files.split_off(files.len() - num_members);
        if !members.is_empty() {
            files.push(bundle(&members, &part(&stem, MULTI_HOT))?);
        }
        // An array that this shard does not have would be read with those that it has.
        let is_stale = |path: &PathBuf| files.iter().all(|file| file.path() != path);
        let stale: Vec<_> = names_of_shard(&stem).into_iter().filter(is_stale).collect();
        output::commit_all(files, &stale)
    }
}

/// Puts arrays into an `npz` as its members `0`, `1`, ….
fn bundle(members: &[OutputFile], archive: &Path) -> Result<OutputFile> {
    let file = output::create(archive)?;
    let write = || -> std::io::Result<()> {
        let mut writer = zip::ZipWriter::new(file.file());
        for (column, member) in members.iter().enumerate() {
            let mut array = member.file();
            let size = array.seek(SeekFrom::End(0))?;
            array.seek(SeekFrom::Start(0))?;
            let options = zip::write::SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored)
                .large_file(size >= 1 << 31);
            writer.start_file(format!("{column}.npy"), options)?;
            std::io::copy(&mut array, &mut writer)?;
        }
        writer.finish()?;
        Ok(())
    };
    write().map_err(output::write_error(archive))?;
    Ok(file)
}
