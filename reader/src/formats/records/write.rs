//! Files of records, written side by side.

use std::io::Write;
use std::path::PathBuf;

use headlong_device::files::OutputFile;

use super::field::{Field, bad_value};
use crate::error::Result;
use crate::formats::Sink;
use crate::output;
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
    file: OutputFile,
    record_bytes: usize,
    fields: Vec<Field>,
    buffer: Vec<u8>,
}

impl RecordSink {
    /// Starts the files.
    pub fn create(schema: DataSchema, files: Vec<FileLayout>) -> Result<Self> {
        let open = |(path, header, record_bytes, fields): FileLayout| -> Result<Open> {
            let mut file = output::create(&path)?;
            file.write_all(&header).map_err(output::write_error(path))?;
            Ok(Open { file, record_bytes, fields, buffer: Vec::new() })
        };
        Ok(Self {
            schema,
            files: files.into_iter().map(open).collect::<Result<_>>()?,
            num_samples: 0,
        })
    }

    /// Samples so far.
    pub fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// The complete files, which do not have their names yet. `header(file)` gives what goes before
    /// the records now that they are counted; it must be as long as it was.
    pub fn complete(self, header: impl Fn(usize) -> Option<Vec<u8>>) -> Result<Vec<OutputFile>> {
        let mut files = Vec::new();
        for (index, open) in self.files.into_iter().enumerate() {
            if let Some(bytes) = header(index) {
                open.file.write_at(&bytes, 0).map_err(output::write_error(open.file.path()))?;
            }
            files.push(open.file);
        }
        Ok(files)
    }
}

impl Sink for RecordSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        debug_assert_eq!(samples.sparse.len(), self.schema.sparse.len(), "samples of the schema");
        for open in &mut self.files {
            open.buffer.clear();
            open.buffer.resize(samples.num_samples * open.record_bytes, 0);
            for field in &open.fields {
                let encoded =
                    field.encode(&mut open.buffer, open.record_bytes, samples, &self.schema);
                encoded.map_err(|bad| bad_value(open.file.path(), self.num_samples, bad))?;
            }
            open.file.write_all(&open.buffer).map_err(output::write_error(open.file.path()))?;
        }
        self.num_samples += samples.num_samples as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<PathBuf>> {
        output::commit_all(self.complete(|_| None)?, &[])
    }
}
