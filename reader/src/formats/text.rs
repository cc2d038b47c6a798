//! Criteo's text as samples, for conversion: front to back alone.

use std::path::{Path, PathBuf};

use headlong_device::files::OutputFile;

use super::{About, Ranges, SampleStream, Sink, Source, front_to_back, names_of};
use crate::Position;
use crate::criteo::blocks::{BlockOptions, BlockStream, Event};
use crate::criteo::parse::MISSING_DENSE;
use crate::disk::DiskOptions;
use crate::error::{ReaderError, Result, invalid};
use crate::hashing::MISSING_ID;
use crate::io::DataFile;
use crate::output;
use crate::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples};
use crate::schema::{Column, Schema};
use crate::skipped::{SharedReport, SkipReport};

/// Text files, one after another.
pub struct TextSource {
    files: Vec<DataFile>,
    options: BlockOptions,
    about: About,
    skipped: SharedReport,
}

impl TextSource {
    /// Opens `files` of `options.schema`.
    pub fn open(files: &[DataFile], options: &BlockOptions) -> Result<Self> {
        let Schema { labelled, num_dense, num_sparse } = options.schema;
        let hotness = vec![Hotness::Fixed(1); num_sparse];
        let about = About {
            schema: DataSchema::numbered(labelled, num_dense, DenseKind::Integers, &hotness),
            num_samples: None,
            stored_bytes: files.iter().map(DataFile::stored_bytes).sum::<Result<u64>>()?,
            is_random: false,
            names: names_of(files),
        };
        let (files, options) = (files.to_vec(), options.clone());
        Ok(Self { files, options, about, skipped: SharedReport::default() })
    }
}

impl Source for TextSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn skip_report(&self) -> SkipReport {
        self.skipped.now()
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        front_to_back(ranges)?;
        let stream =
            BlockStream::open(self.files.clone(), &self.options, &Position::default(), Some(1))?;
        Ok(Box::new(TextStream {
            stream,
            schema: self.about.schema.clone(),
            files: self.files.clone(),
            skipped: self.skipped.clone(),
        }))
    }
}

struct TextStream {
    stream: BlockStream,
    schema: DataSchema,
    files: Vec<DataFile>,
    skipped: SharedReport,
}

impl SampleStream for TextStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let block = loop {
            match self.stream.next()? {
                Some(Event::Block(block)) => {
                    let file = &self.files[block.file];
                    self.skipped.add(|report| block.report_bad_rows(file, report));
                    if block.raw.num_samples > 0 {
                        break block;
                    }
                    self.stream.recycle(block);
                }
                Some(Event::EndOfEpoch) => {}
                None => return Ok(false),
            }
        };
        let raw = &block.raw;
        samples.clear(&self.schema);
        samples.num_samples = raw.num_samples;
        samples.labels.extend(raw.labels.iter().map(|&label| f32::from(label)));
        if let DenseValues::Integers(dense) = &mut samples.dense {
            dense.extend_from_slice(&raw.dense);
        }
        let width = self.schema.sparse.len();
        for (column, bags) in samples.sparse.iter_mut().enumerate() {
            let ids = raw.sparse.iter().skip(column).step_by(width.max(1)).zip(&raw.sparse_missing);
            let ids = ids.map(
                |(&id, missing)| {
                    if missing >> column & 1 == 1 { MISSING_ID } else { u64::from(id) }
                },
            );
            bags.ids.extend(ids);
        }
        self.stream.recycle(block);
        Ok(true)
    }

    fn description(&self) -> String {
        "lines of text through the page cache".to_owned()
    }
}

/// Writes Criteo's text.
pub struct TextSink {
    path: PathBuf,
    file: OutputFile,
    schema: DataSchema,
    columns: Schema,
    text: String,
    num_samples: u64,
}

impl TextSink {
    /// Creates the file.
    ///
    /// # Errors
    /// [`ReaderError::Write`]; [`ReaderError::Invalid`] for columns that text cannot hold.
    pub fn create(path: &Path, schema: &DataSchema) -> Result<Self> {
        let refuse = |message: &str| Err(invalid!("criteo: {message}"));
        if schema.dense_kind != DenseKind::Integers && !schema.dense.is_empty() {
            return refuse(
                "it holds the integers themselves, these numbers are transformed already",
            );
        }
        if schema.sparse.iter().any(|column| column.hotness != Hotness::Fixed(1)) {
            return refuse("it has one id a sample in every column");
        }
        let columns = Schema {
            labelled: schema.labelled,
            num_dense: schema.dense.len(),
            num_sparse: schema.sparse.len(),
        };
        columns.check().map_err(ReaderError::invalid)?;
        let file = output::create(path)?;
        let (path, schema) = (path.to_owned(), schema.clone());
        Ok(Self { path, file, schema, columns, text: String::new(), num_samples: 0 })
    }

    fn push_line(&mut self, samples: &Samples, index: usize) -> Result<()> {
        use std::fmt::Write;
        let text = &mut self.text;
        // Writing to a string cannot fail.
        let mut field = |first: &mut bool, value: Option<std::fmt::Arguments>| {
            if !std::mem::take(first) {
                text.push('\t');
            }
            let _ = value.map(|value| text.write_fmt(value));
        };
        let mut first = true;
        if self.schema.labelled {
            field(&mut first, Some(format_args!("{}", samples.labels[index] as u8)));
        }
        if let DenseValues::Integers(dense) = &samples.dense {
            let width = self.schema.dense.len();
            for &value in &dense[index * width..(index + 1) * width] {
                field(&mut first, (value != MISSING_DENSE).then_some(format_args!("{value}")));
            }
        }
        for (column, bags) in samples.sparse.iter().enumerate() {
            let id = bags.ids[index];
            if id != MISSING_ID && id > u64::from(u32::MAX) {
                let column = Column::Sparse(column as u16);
                let message = format!(
                    "sample {}, {column}: expected an id of 32 bits, found {id}: --rows makes rows \
                     of ids, id mod rows",
                    self.num_samples
                );
                return Err(ReaderError::format(&self.path, message));
            }
            field(&mut first, (id != MISSING_ID).then_some(format_args!("{id:08x}")));
        }
        self.text.push('\n');
        self.num_samples += 1;
        Ok(())
    }
}

impl Sink for TextSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        use std::io::Write;
        debug_assert_eq!(samples.sparse.len(), self.columns.num_sparse, "samples of the schema");
        self.text.clear();
        (0..samples.num_samples).try_for_each(|index| self.push_line(samples, index))?;
        self.file.write_all(self.text.as_bytes()).map_err(output::write_error(&self.path))
    }

    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>> {
        output::commit(self.file)?;
        Ok(vec![self.path])
    }
}
