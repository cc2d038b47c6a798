//! Files of records, written side by side.

use std::io::Write;
use std::path::PathBuf;

use super::field::{Field, bad_value};
use crate::aside::Aside;
use crate::error::Result;
use crate::formats::Sink;
use crate::samples::{DataSchema, Samples};

/// What is written: path, bytes before the records, bytes of a record, its fields.
pub type FileLayout = (PathBuf, Vec<u8>, usize, Vec<Field>);

/// Writes records; what is before them can be corrected at the end, when their number is known.
pub struct RecordSink {
    schema: DataSchema,
    files: Vec<Open>,
    num_samples: u64,
}

struct Open {
    path: PathBuf,
    file: Aside,
    record_bytes: usize,
    fields: Vec<Field>,
    buffer: Vec<u8>,
}

impl RecordSink {
    /// Creates the files aside.
    ///
    /// # Errors
    /// [`crate::ReaderError::Write`].
    pub fn create(schema: DataSchema, files: Vec<FileLayout>) -> Result<Self> {
        let open = |(path, header, record_bytes, fields): FileLayout| -> Result<Open> {
            let mut file = Aside::create(&path)?;
            file.write_all(&header).map_err(|error| file.error(error))?;
            Ok(Open { path, file, record_bytes, fields, buffer: Vec::new() })
        };
        Ok(Self { schema, files: files.into_iter().map(open).collect::<Result<_>>()?, num_samples: 0 })
    }

    /// Samples so far.
    pub fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Completes the files, after `header(file)` has given what goes before the records now that they are counted; it must be as
    /// long as it was.
    ///
    /// # Errors
    /// [`crate::ReaderError::Write`].
    pub fn finish_with(self, header: impl Fn(usize) -> Option<Vec<u8>>) -> Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (index, mut open) in self.files.into_iter().enumerate() {
            if let Some(bytes) = header(index) {
                open.file.write_at_start(&bytes)?;
            }
            open.file.finish()?;
            paths.push(open.path);
        }
        Ok(paths)
    }
}

impl Sink for RecordSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        debug_assert_eq!(samples.sparse.len(), self.schema.sparse.len(), "samples of the schema");
        for open in &mut self.files {
            open.buffer.clear();
            open.buffer.resize(samples.num_samples * open.record_bytes, 0);
            for field in &open.fields {
                let encoded = field.encode(&mut open.buffer, open.record_bytes, samples);
                encoded.map_err(|bad| bad_value(&open.path, self.num_samples, bad))?;
            }
            open.file.write_all(&open.buffer).map_err(|error| open.file.error(error))?;
        }
        self.num_samples += samples.num_samples as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>> {
        self.finish_with(|_| None)
    }
}
