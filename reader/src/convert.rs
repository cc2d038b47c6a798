//! Data of one format to another.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::columns::SharedColumns;
use crate::criteo::BlockOptions;
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, invalid, refuse};
use crate::formats::by_column::IntegersSource;
use crate::formats::delimited::{self, DelimitedSink, DelimitedSource};
use crate::formats::frame::FrameSource;
use crate::formats::headlong::{Header, HeadlongSink, HeadlongSource};
use crate::formats::named::{DenseReading, NamedColumns, Others};
use crate::formats::npy::{self, NpySink};
use crate::formats::parquet::{ParquetSink, ParquetSource, is_parquet};
use crate::formats::records::{DCNV2_HOTNESS, RecordLayout};
use crate::formats::split::{self, FeatureSpec, SplitSink};
use crate::formats::text::{TextSink, TextSource};
use crate::formats::{Format, Sink, Source, names_of, no_samples};
use crate::io::{Compression, DataFile, TextFile};
use crate::multi_hot::MultiHot;
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples, present_id};
use crate::transform::{DenseFunction, DenseTransform};

/// What has to be said of data that does not say it itself.
#[derive(Clone, Debug)]
pub struct Described {
    /// The transform that `npy` and `split` numbers have gone through.
    pub transform: DenseTransform,
    /// Records of `raw`: dense numbers, what they are, and ids a sample in each column.
    pub raw: (usize, DenseKind, Vec<u32>),
    /// Columns, threads and bad rows of Criteo's text.
    pub text: BlockOptions,
    /// Columns of `csv` and `parquet`; where nothing is said, they have the names that we write.
    pub columns: Option<NamedColumns>,
    /// What is said of single dense columns, whose numbers have to be raw then.
    pub dense_columns: SharedColumns,
    /// Where there are none, what becomes of columns with other names.
    pub others: Others,
    /// Of `csv` without such columns, what its dense numbers are.
    pub dense_reading: DenseReading,
    /// Of `csv` without such columns, ids a sample; 1 where nothing is said.
    pub hotness: Vec<Hotness>,
}

impl Default for Described {
    fn default() -> Self {
        Self {
            transform: DenseTransform::LnPlus1,
            raw: (13, DenseKind::Transformed(DenseTransform::LnPlus1), DCNV2_HOTNESS.to_vec()),
            text: BlockOptions::default(),
            columns: None,
            dense_columns: None,
            others: Others::Refused,
            dense_reading: DenseReading::Transformed(DenseTransform::LnPlus1),
            hotness: Vec::new(),
        }
    }
}

impl Described {
    /// The columns of the delimited text in `paths`.
    pub(crate) fn delimited(&self, paths: &[DataFile]) -> Result<NamedColumns> {
        match (&self.columns, paths.first()) {
            (Some(columns), _) => Ok(columns.clone()),
            (None, Some(first)) => {
                let (names, _) = delimited::header(first, None)?;
                let mut columns =
                    NamedColumns::by_convention(&names, self.dense_reading, &self.hotness);
                columns.place_others(self.others, &names, |_| Hotness::Fixed(1));
                columns.dense_columns = self.dense_columns.clone();
                Ok(columns)
            }
            (None, None) => Err(invalid!("no data file was named")),
        }
    }
}

/// Opens `files` as data of `format`.
///
/// # Errors
/// Those of opening; [`ReaderError::Invalid`] for files without a sample; [`ReaderError::Pipe`] for
/// a pipe, unless the format is `csv` or `criteo`.
pub fn open(format: Format, files: &[DataFile], described: &Described) -> Result<Box<dyn Source>> {
    let source = by_column(open_any(format, files, described)?, format, files, described)?;
    match source.num_samples() {
        Some(0) => Err(no_samples(&names_of(files), &source.skip_report())),
        _ => Ok(source),
    }
}

/// Sees to it that what is said of single dense columns is done.
fn by_column(
    source: Box<dyn Source>,
    format: Format,
    files: &[DataFile],
    described: &Described,
) -> Result<Box<dyn Source>> {
    let Some(columns) = &described.dense_columns else { return Ok(source) };
    match (source.schema().dense_kind, format) {
        (DenseKind::Integers, _) => Ok(Box::new(IntegersSource::new(source, columns)?)),
        // It has been read by them.
        (_, Format::Csv | Format::Parquet) => Ok(source),
        (DenseKind::Transformed(done), _) => Err(too_late(done, &names_of(files))),
    }
}

/// The error of numbers that nothing can be done by column with any more.
pub(crate) fn too_late(done: DenseTransform, names: &str) -> ReaderError {
    invalid!(
        "{names}: the dense numbers have gone through {done}, and [[column]] needs them as they \
         were: name the files that these were made of"
    )
}

fn open_any(format: Format, files: &[DataFile], described: &Described) -> Result<Box<dyn Source>> {
    match format {
        _ if files.iter().any(|file| file.frame().is_some()) => {
            return Ok(Box::new(FrameSource::open(files, described)?));
        }
        Format::Csv => {
            return Ok(Box::new(DelimitedSource::open(
                files,
                &described.delimited(files)?,
                described.text.on_bad_row,
            )?));
        }
        Format::Criteo => {
            return Ok(Box::new(TextSource::open(
                files,
                &BlockOptions { columns: None, ..described.text.clone() },
            )?));
        }
        _ => DataFile::refuse_pipes(
            files,
            &format!("{format} is read in any order, not from front to back"),
        )?,
    }
    let paths: Vec<PathBuf> = files.iter().map(|file| file.system_path().to_owned()).collect();
    let paths = &paths[..];
    Ok(match format {
        Format::Headlong => Box::new(HeadlongSource::open(paths)?),
        Format::Mlperf => Box::new(RecordLayout::mlperf().open(paths)?),
        Format::Raw => {
            let (num_dense, kind, hotness) = &described.raw;
            Box::new(RecordLayout::raw(false, *num_dense, *kind, hotness)?.open(paths)?)
        }
        Format::Npy => Box::new(npy::open(paths, described.transform)?),
        Format::Split => Box::new(split::open(paths, described.transform)?),
        Format::Parquet => Box::new(ParquetSource::open(paths, described)?),
        Format::Csv | Format::Criteo => unreachable!("they have been opened above"),
    })
}

/// How data is converted.
#[derive(Clone, Debug)]
pub struct ConvertOptions {
    /// Integers become numbers in this way; none: they stay integers.
    pub transform: Option<DenseTransform>,
    /// Integers may stay integers in a format whose reader has to be told: `raw`.
    pub keep_integers: bool,
    /// Rows of each table, where ids are to become rows (`id mod rows`), and where the format has
    /// to know them.
    pub rows: Option<Vec<u64>>,
    /// So many ids a sample are made of one, which has become a row.
    pub sizes: Option<Vec<u32>>,
    /// How the disk is read.
    pub disk: DiskOptions,
}

/// What a conversion has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Files.
    pub files: Vec<PathBuf>,
    /// Samples in them.
    pub num_samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A conversion whose options fit the data, and whose output has been begun.
pub struct Conversion<'a> {
    source: &'a dyn Source,
    options: &'a ConvertOptions,
    function: Option<DenseFunction>,
    sink: Box<dyn Sink>,
}

impl<'a> Conversion<'a> {
    /// Begins to write `source` to `output` in `format`.
    ///
    /// # Errors
    /// Those of writing; [`ReaderError::Invalid`] where the format cannot hold the columns.
    pub fn begin(
        source: &'a dyn Source,
        format: Format,
        output: &Path,
        options: &'a ConvertOptions,
    ) -> Result<Self> {
        let schema = converted_schema(source.schema(), options)?;
        let schema = match &options.sizes {
            Some(sizes) => MultiHot::expanded(sizes, &schema)?,
            None => schema,
        };
        let function = match (source.schema().dense_kind, options.transform) {
            (DenseKind::Integers, Some(transform)) => {
                Some(transform.function().ok_or_else(|| {
                    invalid!("{transform} needs the minimum of each file: choose another transform")
                })?)
            }
            _ => None,
        };
        Ok(Self { source, options, function, sink: create(format, output, &schema, options)? })
    }

    /// Writes all samples, as `bags` where the options say sizes; `progress` hears how many there
    /// are so far.
    ///
    /// # Errors
    /// Those of reading and writing.
    pub fn run(
        mut self,
        bags: Option<&MultiHot>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Converted> {
        let mut stream = self.source.read_all(&self.options.disk)?;
        let (mut samples, mut num_samples, mut buffer) = (Samples::default(), 0, Vec::new());
        while stream.next(&mut samples)? {
            change(&mut samples, self.function.as_ref(), self.options.rows.as_deref());
            if let Some(bags) = bags {
                bags.expand_samples(&mut samples.sparse, &mut buffer)?;
            }
            self.sink.write(&samples)?;
            num_samples += samples.num_samples as u64;
            progress(num_samples);
        }
        if num_samples == 0 {
            return Err(no_samples(&self.source.about().names, &self.source.skip_report()));
        }
        let files = self.sink.finish()?;
        let sizes = files.iter().map(|file| std::fs::metadata(file).map_or(0, |data| data.len()));
        let bytes = sizes.sum();
        Ok(Converted { files, num_samples, bytes })
    }
}

fn converted_schema(schema: &DataSchema, options: &ConvertOptions) -> Result<DataSchema> {
    if options
        .rows
        .as_ref()
        .is_some_and(|rows| rows.len() != schema.sparse.len() || rows.contains(&0))
    {
        refuse!("rows: expected {} counts of at least 1, one for each column", schema.sparse.len());
    }
    match (schema.dense_kind, options.transform) {
        (DenseKind::Integers, Some(transform)) => {
            Ok(DataSchema { dense_kind: DenseKind::Transformed(transform), ..schema.clone() })
        }
        (DenseKind::Transformed(done), Some(wanted)) if done != wanted => Err(invalid!(
            "the dense numbers have gone through {done}, which {wanted} cannot be made of"
        )),
        _ => Ok(schema.clone()),
    }
}

fn create(
    format: Format,
    output: &Path,
    schema: &DataSchema,
    options: &ConvertOptions,
) -> Result<Box<dyn Sink>> {
    let fitting = |layout: RecordLayout| -> Result<Box<dyn Sink>> {
        layout.schema.check_like(schema, &format!("{format} cannot hold these columns"))?;
        Ok(Box::new(layout.create(output)?))
    };
    let holds_weights = matches!(format, Format::Headlong | Format::Parquet | Format::Csv);
    if let Some(weight) = schema.weight.as_ref().filter(|_| !holds_weights) {
        refuse!(
            "{format} cannot hold the weights of samples (column `{weight}`): headlong, parquet \
             and csv can; or leave data.columns.weight out"
        );
    }
    match format {
        Format::Headlong => {
            let ids = if options.rows.is_some() { "rows (modulo)" } else { "raw" };
            let header = Header::new(schema.clone(), ids);
            Ok(Box::new(HeadlongSink::create(output, header)?))
        }
        Format::Mlperf => fitting(RecordLayout::mlperf()),
        Format::Raw => {
            if schema.dense_kind == DenseKind::Integers
                && !schema.dense.is_empty()
                && !options.keep_integers
            {
                refuse!(
                    "raw holds transformed numbers: say how integers become numbers \
                     (--dense-transform \"ln(x+1)\"), or that another program reads integers \
                     (--integers)"
                );
            }
            let hotness = schema.fixed_hotness()?;
            fitting(RecordLayout::raw(false, schema.dense.len(), schema.dense_kind, &hotness)?)
        }
        Format::Npy => Ok(Box::new(NpySink::create(output, schema)?)),
        Format::Split => match &options.rows {
            Some(rows) => Ok(Box::new(SplitSink::create(output, schema, rows)?)),
            None => {
                let rows = "split: the rows of every column's table have to be given (--rows N, or \
                            N,N,… one for each column)";
                let how = match schema.dense_kind {
                    DenseKind::Integers => {
                        ", and how integers become numbers (--dense-transform \"ln(x+1)\")"
                    }
                    DenseKind::Transformed(_) => "",
                };
                Err(invalid!("{rows}{how}"))
            }
        },
        Format::Parquet => Ok(Box::new(ParquetSink::create(output, schema)?)),
        Format::Csv => Ok(Box::new(DelimitedSink::create(output, schema)?)),
        Format::Criteo => Ok(Box::new(TextSink::create(output, schema)?)),
    }
}

fn change(samples: &mut Samples, function: Option<&DenseFunction>, rows: Option<&[u64]>) {
    if let (Some(function), DenseValues::Integers(integers)) = (function, &samples.dense) {
        let mut numbers = vec![0.0; integers.len()];
        function.apply(integers, &mut numbers);
        samples.dense = DenseValues::Numbers(numbers);
    }
    for (bags, rows) in samples.sparse.iter_mut().zip(rows.unwrap_or_default()) {
        bags.ids.iter_mut().for_each(|id| *id = present_id(*id) % rows);
    }
}

/// The rows that a split folder's specification says, for reading it with the tables it was made
/// for.
pub fn split_rows(folder: &Path) -> Result<Vec<u64>> {
    let root =
        folder.parent().filter(|root| !root.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(FeatureSpec::load(root)?.cardinalities())
}

/// The files of data: for a folder of split files those in it, for a shard of arrays all of them,
/// else `paths`.
pub fn files_of(format: Format, paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in paths {
        match format {
            Format::Split => {
                let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
                let mut inside: Vec<_> =
                    entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
                inside.sort();
                files.append(&mut inside);
            }
            Format::Npy => {
                let names = npy::names_of_shard(path).into_iter();
                // One shard may be named by several of its files.
                files.extend(
                    names.filter(|name| name.exists() && !files.contains(name)).collect::<Vec<_>>(),
                );
            }
            _ => files.push(path.clone()),
        }
    }
    files
}

/// Whether `path` is a folder of split files, or what the names of arrays begin with.
pub fn is_folder_or_stem(path: &Path) -> bool {
    path.is_dir() && split::has_specification(path) || !path.exists() && npy::is_stem(path)
}

/// Tells the format of a file or folder from its name and first bytes, which a pipe keeps for its
/// reader.
///
/// # Errors
/// Those of opening and reading; [`ReaderError::Format`] for records, which say nothing of
/// themselves, and for text that is neither ASCII nor UTF-8.
pub fn detect(file: &DataFile) -> Result<Format> {
    if file.frame().is_some() {
        return Ok(Format::Parquet);
    }
    let path = file.path();
    if path.is_dir() {
        return Ok(Format::Split);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_there = file.system_path().exists();
    if name.ends_with(".npy") || name.ends_with(".npz") || !is_there && npy::is_stem(path) {
        return Ok(Format::Npy);
    }
    let mut text = TextFile::look(file)?;
    let mut first = Vec::new();
    let read = text.by_ref().take(512).read_to_end(&mut first);
    let lines = first.iter().filter(|byte| **byte == b'\n').count() as u64;
    read.map_err(|error| text.name_error(error, lines, first.len() as u64))?;
    if text.compression() == Compression::Plain {
        if crate::formats::headlong::is_headlong(&first) {
            return Ok(Format::Headlong);
        }
        if is_parquet(&first) {
            return Ok(Format::Parquet);
        }
    }
    let refuse =
        |message: &str| Err(ReaderError::Format { file: file.name(), message: message.to_owned() });
    if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
        return refuse("it is UTF-16: make it UTF-8 first (`iconv -f UTF-16 -t UTF-8`)");
    }
    if first.contains(&0) {
        return refuse(
            "it has NUL bytes: binary data without a header (say which format it is, mlperf or \
             raw: --data-format, --from, data.format), or text that is not UTF-8",
        );
    }
    let stem = name.trim_end_matches(".gz").trim_end_matches(".zst");
    if stem.ends_with(".csv") || stem.ends_with(".tsv") {
        // Criteo's text has labels where others have names.
        let (names, _) = delimited::header(file, None)?;
        return Ok(match names.first().map(String::as_str) {
            Some("0" | "1") => Format::Criteo,
            _ => Format::Csv,
        });
    }
    Ok(Format::Criteo)
}

#[cfg(test)]
mod tests;
