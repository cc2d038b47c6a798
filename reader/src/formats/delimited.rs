//! Delimited text with a header: comma, semicolon or tab between fields, quoted fields, any columns
//! ([`NamedColumns`]).
//!
//! A first pass finds where every 64th record begins: so plain files are read in any order,
//! compressed ones from front to back.

mod carried;
mod excerpt;
mod judge;
mod records;

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headlong_device::files::OutputFile;
use headlong_device::label::parts;

pub(in crate::formats) use self::carried::CarriedText;
pub(crate) use self::excerpt::read_some;
use self::judge::Judge;
use self::records::{MOST_FIELD_BYTES, Place, Records};
use super::named::{Fault, NamedColumns, Role, push_fields};
use super::{About, Parts, Ranges, SampleStream, Sink, Source, cut, front_to_back};
use super::{names_of, starts_of};
use crate::criteo::BadRowPolicy;
use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, refuse};
use crate::hashing::MISSING_ID;
use crate::io::{Compression, DataFile, TextFile};
use crate::output;
use crate::samples::{DataSchema, DenseValues, Hotness, Samples};
use crate::skipped::{BadRow, SharedReport, SkipReport};

const RECORDS_PER_PLACE: u64 = 64;
/// Most samples that come at a time.
const SAMPLES_AT_A_TIME: u64 = 2048;

/// Files of one schema, one after another.
pub struct DelimitedSource {
    about: About,
    columns: Arc<NamedColumns>,
    files: Arc<[OneFile]>,
    /// Samples before each file, and all of them at the end; none where only reading tells, because
    /// one is a pipe.
    starts: Option<Arc<[u64]>>,
    policy: BadRowPolicy,
    skipped: SharedReport,
}

struct OneFile {
    path: DataFile,
    separator: u8,
    roles: Vec<Role>,
    header: Vec<String>,
    stored_bytes: u64,
    is_plain: bool,
    found: Arc<Found>,
}

#[derive(Default)]
struct Found {
    /// Where every 64th record begins; of compressed files only the first. Bad ones that are
    /// skipped do not count.
    places: Vec<Place>,
    num_records: u64,
    /// Where bad ones are skipped: what they were bad as, and which they are.
    skipped: Option<(NamedColumns, SkipReport)>,
}

/// The names of a file's columns (`Unnamed: 0` where the first has none), and what is between its
/// fields: what is `said`, else a tab if one is in the header, else a comma, a semicolon, or `|`.
pub fn header(path: &DataFile, said: Option<u8>) -> Result<(Vec<String>, u8)> {
    let mut file = TextFile::look(path)?;
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    while !text.contains(&b'\n') && text.len() < MOST_FIELD_BYTES {
        match file.read(&mut piece).map_err(|error| file.name_error(error, 0, 0))? {
            0 => break,
            count => text.extend_from_slice(&piece[..count]),
        }
    }
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let told = || b"\t,;|".iter().copied().find(|separator| line.contains(separator));
    let separator = said.or_else(told).unwrap_or(b',');
    let mut records = Records::new(TextFile::look(path)?, separator, Place::START)?;
    records.next()?;
    let name = |(place, field): (usize, &[u8])| match field.trim_ascii() {
        // The index of a DataFrame, as pandas writes it, and what it calls that when it reads it.
        [] => format!("Unnamed: {place}"),
        name => String::from_utf8_lossy(name).into_owned(),
    };
    Ok((records.fields().enumerate().map(name).collect(), separator))
}

impl DelimitedSource {
    /// Opens `paths`, reads their headers and finds their records; bad ones among them are no
    /// records where `policy` skips them.
    ///
    /// # Errors
    /// Those of opening; [`ReaderError::Format`] for a file whose header does not fit `columns`, or
    /// whose records are not as long as the header.
    pub fn open(paths: &[DataFile], columns: &NamedColumns, policy: BadRowPolicy) -> Result<Self> {
        let counted = !paths.iter().any(DataFile::is_stream);
        let open = |path| OneFile::open(path, columns, counted, policy);
        let files = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
        let Some(first) = files.first() else {
            refuse!("no data file was named");
        };
        let labelled = first.is_labelled();
        if let Some(other) = files.iter().find(|file| file.is_labelled() != labelled) {
            let message = format!("labels: expected as in {}: {labelled}", first.path);
            return Err(ReaderError::format(other.path.name(), message));
        }
        let starts = starts_of(files.iter().map(|file| file.found.num_records));
        let about = About {
            schema: columns.schema(labelled),
            num_samples: counted.then(|| starts.last().copied()).flatten(),
            stored_bytes: files.iter().map(|file| file.stored_bytes).sum(),
            is_random: counted && files.iter().all(|file| file.is_plain),
            names: names_of(paths),
        };
        let skipped = SharedReport::default();
        for (_, of_file) in files.iter().filter_map(|file| file.found.skipped.as_ref()) {
            skipped.add(|report| report.add(of_file.total, of_file.first.iter().cloned()));
        }
        let (columns, starts) = (Arc::new(columns.clone()), counted.then_some(starts));
        Ok(Self { about, columns, files: files.into(), starts, policy, skipped })
    }
}

impl OneFile {
    /// Opens it and, where they are to be `counted`, finds its records.
    fn open(
        path: &DataFile,
        columns: &NamedColumns,
        counted: bool,
        policy: BadRowPolicy,
    ) -> Result<Self> {
        let (header, separator) = header(path, columns.separator)?;
        let roles = columns.roles(&header, &path.name())?;
        let file = TextFile::look(path)?;
        let (stored_bytes, is_plain) =
            (file.stored_bytes(), counted && file.compression() == Compression::Plain);
        let mut one = Self {
            path: path.clone(),
            separator,
            roles,
            header,
            stored_bytes,
            is_plain,
            found: Arc::default(),
        };
        if counted {
            let find = |file| {
                let records = Records::new(file, separator, Place::START)?;
                one.find_records(records, columns, policy)
            };
            let known = path.find_once(|| find(file))?;
            let judged_by = known.skipped.as_ref().map(|(columns, _)| columns);
            let is_judged_so = judged_by == (policy == BadRowPolicy::Skip).then_some(columns);
            one.found = if is_judged_so { known } else { Arc::new(find(TextFile::look(path)?)?) };
        }
        Ok(one)
    }

    fn find_records(
        &self,
        mut records: Records,
        columns: &NamedColumns,
        policy: BadRowPolicy,
    ) -> Result<Found> {
        let mut judge = Judge::new(policy, columns, self.is_labelled());
        let (mut found, mut skipped) = (Found::default(), SkipReport::default());
        records.next()?;
        while self.next_sample(&mut records, &mut judge, &mut |bad| {
            skipped.add(1, std::iter::once(bad));
        })? {
            let is_first = found.num_records == 0;
            if is_first || self.is_plain && found.num_records.is_multiple_of(RECORDS_PER_PLACE) {
                found.places.push(records.place());
            }
            found.num_records += 1;
        }
        found.skipped = judge.map(|_| (columns.clone(), skipped));
        Ok(found)
    }

    /// Goes to the next record that is a sample; false after the last. With a judge, bad ones are
    /// `skipped`; without one, a record of another length than the header is an error.
    fn next_sample(
        &self,
        records: &mut Records,
        judge: &mut Option<Judge>,
        skipped: &mut dyn FnMut(BadRow),
    ) -> Result<bool> {
        while records.next()? {
            let bad = match judge {
                Some(judge) => judge.fault_of(self, records),
                None => match self.wrong_length(records) {
                    Some(message) => return Err(records.bad(records.place().line, message)),
                    None => None,
                },
            };
            match bad {
                Some(bad) => skipped(bad),
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn wrong_length(&self, records: &Records) -> Option<String> {
        let (expected, found) = (self.header.len(), records.len());
        let message = || format!("expected {expected} fields as in the header, found {found}");
        (expected != found).then(message)
    }

    fn in_words(&self, (column, (expected, found)): (usize, Fault)) -> String {
        format!(
            "column `{}` ({}): expected {expected}, found \"{found}\"",
            self.header[column],
            match self.roles[column] {
                Role::Label => "label",
                Role::Weight => "weight",
                Role::Dense(_) => "dense",
                Role::Time(_) => "time",
                _ => "categorical",
            }
        )
    }

    /// Goes to the first record, or to the one at `place`.
    fn records(&self, place: Option<Place>) -> Result<Records> {
        let mut records = Records::new(
            TextFile::open(&self.path)?,
            self.separator,
            place.unwrap_or(Place::START),
        )?;
        if place.is_none() {
            records.next()?;
        }
        Ok(records)
    }

    fn is_labelled(&self) -> bool {
        self.roles.contains(&Role::Label)
    }
}

impl Source for DelimitedSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn skip_report(&self) -> SkipReport {
        self.skipped.now()
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let pieces: Parts = match &self.starts {
            Some(starts) => Box::new(cut(ranges, Arc::clone(starts))),
            None => {
                front_to_back(ranges)?;
                Box::new((0..self.files.len()).map(|file| (file, 0..u64::MAX)))
            }
        };
        Ok(Box::new(DelimitedStream {
            columns: Arc::clone(&self.columns),
            schema: self.about.schema.clone(),
            files: Arc::clone(&self.files),
            pieces,
            is_counted: self.starts.is_some(),
            judge: Judge::new(self.policy, &self.columns, self.about.schema.labelled),
            skipped: self.skipped.clone(),
            now: None,
            open: None,
        }))
    }
}

struct DelimitedStream {
    columns: Arc<NamedColumns>,
    schema: DataSchema,
    files: Arc<[OneFile]>,
    pieces: Parts,
    is_counted: bool,
    judge: Option<Judge>,
    skipped: SharedReport,
    now: Option<(usize, Range<u64>)>,
    open: Option<OpenFile>,
}

struct OpenFile {
    index: usize,
    records: Records,
    next: u64,
}

impl DelimitedStream {
    /// Goes to record `wanted` of file `index`.
    fn go_to(&mut self, index: usize, wanted: u64) -> Result<()> {
        let files = Arc::clone(&self.files);
        let file = &files[index];
        let near = |open: &OpenFile| {
            open.index == index
                && open.next <= wanted
                && (!file.is_plain || wanted - open.next < RECORDS_PER_PLACE)
        };
        let mut open = match self.open.take().filter(near) {
            Some(open) => open,
            None if file.is_plain => {
                let place = (wanted / RECORDS_PER_PLACE) as usize;
                let next = place as u64 * RECORDS_PER_PLACE;
                OpenFile { index, records: file.records(Some(file.found.places[place]))?, next }
            }
            None => OpenFile { index, records: file.records(None)?, next: 0 },
        };
        while open.next < wanted {
            self.read_record(&mut open)?;
        }
        self.open = Some(open);
        Ok(())
    }

    /// Goes to the next record; false at the end of a file whose records were not counted.
    fn read_record(&mut self, open: &mut OpenFile) -> Result<bool> {
        let file = &self.files[open.index];
        let (is_counted, report) = (self.is_counted, &self.skipped);
        let skip = &mut |bad| {
            // Counted ones were found when the file was opened.
            if !is_counted {
                report.add(|report| report.add(1, std::iter::once(bad)));
            }
        };
        if file.next_sample(&mut open.records, &mut self.judge, skip)? {
            open.next += 1;
            return Ok(true);
        }
        if !self.is_counted {
            return Ok(false);
        }
        let message = format!(
            "it has changed while it was read: expected {} records, found {}",
            file.found.num_records, open.next
        );
        Err(ReaderError::format(file.path.name(), message))
    }

    fn check_sizes(&self) -> Result<()> {
        for file in self.files.iter() {
            let found = file.path.stored_bytes()?;
            if found != file.stored_bytes {
                let message = format!(
                    "it has changed while it was read: expected {} bytes, found {found}",
                    file.stored_bytes
                );
                return Err(ReaderError::format(file.path.name(), message));
            }
        }
        Ok(())
    }
}

impl SampleStream for DelimitedStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        samples.clear(&self.schema);
        while samples.num_samples == 0 {
            let Some((index, records)) = self.now.take().or_else(|| self.pieces.next()) else {
                return self.check_sizes().map(|()| false);
            };
            self.go_to(index, records.start)?;
            let Some(mut open) = self.open.take() else { return Ok(false) };
            let end = records.end.min(records.start + SAMPLES_AT_A_TIME);
            let is_whole = self.push_records(&mut open, end, samples)?;
            if is_whole && end < records.end {
                self.now = Some((index, end..records.end));
            }
            self.open = Some(open);
        }
        Ok(true)
    }

    fn description(&self) -> String {
        "records of text through the page cache".to_owned()
    }
}

impl DelimitedStream {
    /// Adds the records of an open file up to `end`; false where it has fewer.
    fn push_records(
        &mut self,
        open: &mut OpenFile,
        end: u64,
        samples: &mut Samples,
    ) -> Result<bool> {
        let files = Arc::clone(&self.files);
        let file = &files[open.index];
        while open.next < end {
            if !self.read_record(open)? {
                return Ok(false);
            }
            let records = &open.records;
            let pushed = push_fields(records.fields(), &file.roles, &self.columns, samples);
            pushed.map_err(|fault| {
                let line = records.place().line;
                let message = format!("line {line}, {}", file.in_words(fault));
                ReaderError::Format { file: file.path.name(), message }
            })?;
        }
        Ok(true)
    }
}

/// Writes one file, with commas or, where its name ends in `.tsv`, tabs.
pub struct DelimitedSink {
    path: PathBuf,
    writer: csv::Writer<OutputFile>,
    schema: DataSchema,
    num_samples: u64,
}

const LIST_SEPARATOR: &str = "|";

impl DelimitedSink {
    /// Creates the file and writes its header.
    pub fn create(path: &Path, schema: &DataSchema) -> Result<Self> {
        let separator = if path.extension().is_some_and(|end| end == "tsv") { b'\t' } else { b',' };
        let file = output::create(path)?;
        let writer = csv::WriterBuilder::new().delimiter(separator).from_writer(file);
        let mut sink =
            Self { path: path.to_owned(), writer, schema: schema.clone(), num_samples: 0 };
        let names = schema.labelled.then(|| schema.label_name()).into_iter();
        let names = names.chain(schema.weight.as_deref());
        let names = names.chain(schema.dense.iter().map(String::as_str));
        let names: Vec<_> = names.chain(schema.sparse.iter().map(|column| &*column.name)).collect();
        sink.writer.write_record(names).map_err(|error| sink.error(error))?;
        Ok(sink)
    }

    fn error(&self, error: csv::Error) -> ReaderError {
        // What kind of error the system gave is asked: whether a reader has gone.
        let source = match error.into_kind() {
            csv::ErrorKind::Io(source) => source,
            other => std::io::Error::other(format!("{other:?}")),
        };
        ReaderError::Write { file: self.path.clone(), source }
    }

    fn fields(&self, samples: &Samples, index: usize, fields: &mut Vec<String>) -> Result<()> {
        fields.clear();
        if self.schema.labelled {
            let (is_positive, weight) = parts(samples.labels[index]);
            fields.push(u8::from(is_positive).to_string());
            fields.extend(self.schema.weight.is_some().then(|| weight.to_string()));
        }
        let width = self.schema.dense.len();
        let dense = index * width..(index + 1) * width;
        match &samples.dense {
            DenseValues::Integers(values) => {
                fields.extend(values[dense].iter().map(|&value| match value {
                    MISSING_DENSE => String::new(),
                    value => value.to_string(),
                }))
            }
            // The shortest text that reads back to the same bits.
            DenseValues::Numbers(values) => fields.extend(values[dense].iter().map(f32::to_string)),
        }
        for (bags, column) in samples.sparse.iter().zip(&self.schema.sparse) {
            let ids = bags.of(index, column.hotness);
            if column.hotness == Hotness::Varying && ids == [MISSING_ID] {
                let message = format!(
                    "sample {}, column {}: a list of one missing id would be an empty list",
                    self.num_samples, column.name
                );
                return Err(ReaderError::format(&self.path, message));
            }
            let texts: Vec<_> = ids
                .iter()
                .map(|&id| if id == MISSING_ID { String::new() } else { id.to_string() })
                .collect();
            fields.push(texts.join(LIST_SEPARATOR));
        }
        Ok(())
    }
}

impl Sink for DelimitedSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        let mut fields = Vec::new();
        for index in 0..samples.num_samples {
            self.fields(samples, index, &mut fields)?;
            self.writer.write_record(&fields).map_err(|error| self.error(error))?;
            self.num_samples += 1;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>> {
        let path = self.path;
        let file = self.writer.into_inner();
        let file = file.map_err(|error| output::write_error(&path)(error.into_error()))?;
        output::commit(file)?;
        Ok(vec![path])
    }
}

#[cfg(test)]
mod tests;
