//! Reading data of any format to its end, in small pieces.

use super::{Outcome, refused};
use headlong_reader::convert::{self, Described};
use headlong_reader::criteo::BadRowPolicy;
use headlong_reader::disk::{DiskOptions, IoChoice};
use headlong_reader::formats::{Format, Sink};
use headlong_reader::io::DataFile;
use headlong_reader::samples::{DataSchema, DenseKind, DenseValues, Hotness, Samples};
use headlong_reader::{BlockOptions, DenseTransform, ReaderError, Schema};
use std::path::Path;

/// Columns of the good inputs.
pub const SCHEMA: Schema = Schema { labelled: true, num_dense: 2, num_sparse: 3 };

/// What is said of data that does not say it itself.
pub fn described(skip: bool) -> Described {
    let on_bad_row = if skip { BadRowPolicy::Skip } else { BadRowPolicy::Error };
    Described {
        text: BlockOptions {
            schema: SCHEMA,
            columns: None,
            on_bad_row,
            num_threads: 1,
            block_bytes: 4096,
        },
        raw: (2, DenseKind::Transformed(DenseTransform::LnPlus1), vec![1, 2, 1]),
        ..Described::default()
    }
}

/// Reads all of `file`; its format is read off it where none is given.
pub fn data(file: &Path, format: Option<Format>, described: &Described) -> Outcome {
    let read = || -> Result<(), ReaderError> {
        let file = DataFile::from(file);
        let format = format.map_or_else(|| convert::detect(&file), Ok)?;
        let source = convert::open(format, &[file], described)?;
        let end = source.num_samples().unwrap_or(u64::MAX);
        let disk =
            DiskOptions { block_bytes: 4096, depth: 1, backend: IoChoice::Threads, direct: false };
        let mut stream = source.read(Box::new(std::iter::once(0..end)), &disk)?;
        let mut samples = Samples::default();
        while stream.next(&mut samples)? {}
        Ok(())
    };
    read().map_err(refused)
}

/// Good samples with ids of `hotness`.
pub fn samples(kind: DenseKind, hotness: &[Hotness], count: usize) -> (DataSchema, Samples) {
    let schema = DataSchema::numbered(true, 2, kind, hotness);
    let mut samples = Samples::default();
    samples.clear(&schema);
    samples.num_samples = count;
    samples.labels.extend((0..count).map(|row| (row % 2) as f32));
    match &mut samples.dense {
        DenseValues::Integers(values) => {
            values.extend((0..2 * count as i32).map(|index| index * 7))
        }
        DenseValues::Numbers(values) => {
            values.extend((0..2 * count).map(|index| index as f32 * 0.25))
        }
    }
    for (bags, hotness) in samples.sparse.iter_mut().zip(hotness) {
        for row in 0..count as u64 {
            let ids = match hotness {
                Hotness::Fixed(ids) => u64::from(*ids),
                Hotness::Varying => row % 4,
            };
            bags.ids.extend((0..ids).map(|id| row * 31 % 90 + id));
            if *hotness == Hotness::Varying {
                bags.offsets.push(bags.ids.len() as u32);
            }
        }
    }
    (schema, samples)
}

/// Writes all of `samples`.
pub fn write(mut sink: Box<dyn Sink>, samples: &Samples) -> anyhow::Result<()> {
    sink.write(samples)?;
    sink.finish()?;
    Ok(())
}

/// The files in `folder`, by name, with those of the folders in it; they are removed.
pub fn take_files(folder: &Path) -> anyhow::Result<super::Files> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(of) = folders.pop() {
        for entry in std::fs::read_dir(&of)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            files.push((name, std::fs::read(&path)?));
            std::fs::remove_file(&path)?;
        }
    }
    files.sort();
    Ok(files)
}
