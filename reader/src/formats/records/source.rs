//! Files of records, read side by side.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::MOST_RECORD_BYTES;
use super::field::{Field, Target, bad_value};
use crate::disk::{Block, DiskBlocks, DiskFiles, DiskOptions, Segment};
use crate::error::{ReaderError, Result};
use crate::formats::{About, Parts, Ranges, SampleStream, Source, cut, starts_of};
use crate::samples::{DataSchema, DenseKind, Samples};

/// Most samples that come at a time, and most bytes of a file.
const SAMPLES_AT_A_TIME: u64 = 2048;
const BYTES_AT_A_TIME: u64 = 8 << 20;

/// A file, or a part of one, of records of one size.
#[derive(Clone, Debug)]
pub struct FieldFile {
    /// The file.
    pub path: PathBuf,
    /// Bytes before the first record.
    pub first_byte: u64,
    /// Bytes of all records; none: up to the end.
    pub num_bytes: Option<u64>,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// What is in it.
    pub fields: Vec<Field>,
}

impl FieldFile {
    /// Refuses records that cannot hold samples of `schema`, so that no size below is 0, wraps, or
    /// is taken on trust.
    fn check(&self, schema: &DataSchema) -> Result<()> {
        let refuse =
            |message: String| Err(ReaderError::Format { file: self.path.clone(), message });
        if self.record_bytes == 0 || self.record_bytes > MOST_RECORD_BYTES {
            let found = self.record_bytes;
            return refuse(format!(
                "expected records of 1 to {MOST_RECORD_BYTES} bytes, found {found}"
            ));
        }
        for field in &self.fields {
            let (what, expected, integers) = match field.target {
                Target::Label => ("labels".to_owned(), 1, false),
                Target::Dense => (
                    "dense numbers".to_owned(),
                    schema.dense.len(),
                    schema.dense_kind == DenseKind::Integers,
                ),
                Target::Column(column) => match schema.fixed_hotness()?[..].get(column) {
                    Some(&count) => (
                        format!("ids of column {}", schema.sparse[column].name),
                        count as usize,
                        true,
                    ),
                    None => {
                        return refuse(format!(
                            "it has ids of column {}, which is not there",
                            column + 1
                        ));
                    }
                },
                Target::AllColumns => ("ids".to_owned(), schema.sparse.len(), true),
            };
            if field.count != expected {
                return refuse(format!(
                    "{what}: expected {expected} a sample, found {}",
                    field.count
                ));
            }
            if integers && field.element.is_float() {
                return refuse(format!(
                    "{what}: expected whole numbers, found {}: save them as integers \
                     (`astype(\"int32\")`)",
                    field.element.name()
                ));
            }
        }
        Ok(())
    }
}

/// Files that hold the same samples, some columns each.
#[derive(Clone, Debug)]
pub struct Shard {
    /// What messages call it.
    pub name: String,
    /// Its files.
    pub files: Vec<FieldFile>,
    /// Its samples, where something says so; else the files' sizes do.
    pub num_samples: Option<u64>,
}

/// Shards, one after another.
pub struct RecordSource {
    about: About,
    shards: Arc<[Shard]>,
    starts: Arc<[u64]>,
}

impl RecordSource {
    /// Opens shards of one schema, and counts their samples.
    ///
    /// # Errors
    /// Those of opening; [`ReaderError::Format`] where a file ends inside a record or has another
    /// number of records than the first of its shard; [`ReaderError::Invalid`] for a column without
    /// a fixed number of ids.
    pub fn open(schema: DataSchema, shards: Vec<Shard>) -> Result<Self> {
        schema.check()?;
        schema.fixed_hotness()?;
        let (mut counts, mut stored_bytes) = (Vec::new(), 0);
        for shard in &shards {
            let mut samples = shard.num_samples.map(|count| (count, shard.name.clone()));
            for file in &shard.files {
                file.check(&schema)?;
                let (found, bytes) = count_records(file)?;
                stored_bytes += bytes;
                match &samples {
                    Some((expected, name)) if *expected != found => {
                        let message =
                            format!("expected {expected} samples as in {name}, found {found}");
                        return Err(ReaderError::format(&file.path, message));
                    }
                    Some(_) => {}
                    None => samples = Some((found, file.path.display().to_string())),
                }
            }
            counts.push(samples.map_or(0, |(count, _)| count));
        }
        let starts = starts_of(counts.into_iter());
        let about = About::random(schema, &starts, stored_bytes);
        Ok(Self { about, shards: shards.into(), starts })
    }
}

fn count_records(file: &FieldFile) -> Result<(u64, u64)> {
    let files = DiskFiles::open(std::slice::from_ref(&file.path), false)?;
    let bytes = file.num_bytes.unwrap_or_else(|| files.bytes(0).saturating_sub(file.first_byte));
    let size = file.record_bytes;
    let end = file.first_byte.checked_add(bytes);
    if end.is_none_or(|end| end > files.bytes(0)) || !bytes.is_multiple_of(size) {
        let message = format!(
            "truncated, or of another format: expected records of {size} bytes from byte {} on, \
             found {} bytes, which is {} records and {} bytes",
            file.first_byte,
            files.bytes(0),
            bytes / size,
            bytes % size
        );
        return Err(ReaderError::format(&file.path, message));
    }
    Ok((bytes / size, bytes))
}

impl Source for RecordSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let most = self.shards.iter().map(|shard| shard.files.len()).max().unwrap_or(1);
        let options = options.shared_by(most);
        let ranges: Vec<Range<u64>> = ranges.collect();
        let ranges: Arc<[Range<u64>]> = ranges.into();
        let pieces = self.pieces(&ranges);
        let lanes =
            (0..most).map(|lane| self.lane(lane, &ranges, &options)).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(RecordStream {
            schema: self.about.schema.clone(),
            shards: Arc::clone(&self.shards),
            pieces: Box::new(pieces),
            now: None,
            lanes,
        }))
    }
}

impl RecordSource {
    fn pieces(&self, ranges: &Arc<[Range<u64>]>) -> impl Iterator<Item = Piece> + Send + use<> {
        let ranges = Arc::clone(ranges);
        cut((0..ranges.len()).map(move |index| ranges[index].clone()), Arc::clone(&self.starts))
    }

    /// Begins to read file `lane` of every shard.
    fn lane(&self, lane: usize, ranges: &Arc<[Range<u64>]>, options: &DiskOptions) -> Result<Lane> {
        let here: Vec<usize> =
            (0..self.shards.len()).filter(|&shard| lane < self.shards[shard].files.len()).collect();
        let paths: Vec<_> =
            here.iter().map(|&shard| self.shards[shard].files[lane].path.clone()).collect();
        let files = DiskFiles::open(&paths, options.direct)?;
        let shards = Arc::clone(&self.shards);
        let segments = self.pieces(ranges).filter_map(move |(shard, records)| {
            let file = shards[shard].files.get(lane)?;
            let index = here.iter().position(|&other| other == shard)?;
            let size = file.record_bytes;
            let bytes =
                file.first_byte + records.start * size..file.first_byte + records.end * size;
            Some(Segment { file: index, bytes })
        });
        let blocks = files.read(segments, options)?;
        Ok(Lane { blocks, block: None, used: 0, carried: Vec::new() })
    }
}

type Piece = (usize, Range<u64>);

struct Lane {
    blocks: DiskBlocks,
    block: Option<Block>,
    used: usize,
    /// A record that lies across two blocks, with what was taken with it.
    carried: Vec<u8>,
}

impl Lane {
    /// The next `count` bytes.
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let left = self.block.as_ref().map_or(0, |block| block.bytes().len() - self.used);
        if left == 0 {
            self.advance()?;
        } else if left < count {
            return self.carry(count);
        }
        let left = self.block.as_ref().map_or(0, |block| block.bytes().len());
        if self.used == 0 && left < count {
            return self.carry(count);
        }
        self.used += count;
        Ok(self.block.as_ref().map_or(&[], |block| &block.bytes()[self.used - count..self.used]))
    }

    fn carry(&mut self, count: usize) -> Result<&[u8]> {
        self.carried.clear();
        loop {
            if let Some(block) = &self.block {
                let bytes = &block.bytes()[self.used..];
                let taken = bytes.len().min(count - self.carried.len());
                self.carried.extend_from_slice(&bytes[..taken]);
                self.used += taken;
            }
            if self.carried.len() == count {
                return Ok(&self.carried);
            }
            self.advance()?;
        }
    }

    fn advance(&mut self) -> Result<()> {
        // The old block's memory is wanted for the next read.
        (self.block, self.used) = (None, 0);
        self.block = self.blocks.next()?;
        match self.block {
            Some(_) => Ok(()),
            None => Err(ReaderError::Stopped { thread: "disk" }),
        }
    }
}

struct RecordStream {
    schema: DataSchema,
    shards: Arc<[Shard]>,
    pieces: Parts,
    now: Option<Piece>,
    lanes: Vec<Lane>,
}

impl SampleStream for RecordStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let Some((shard, records)) = self.now.take().or_else(|| self.pieces.next()) else {
            // The end of each file is where changes of its size are noticed.
            for lane in &mut self.lanes {
                lane.block = None;
                while lane.blocks.next()?.is_some() {}
            }
            return Ok(false);
        };
        let files = &self.shards[shard].files;
        let widest = files.iter().map(|file| file.record_bytes).max().unwrap_or(1);
        let most = (BYTES_AT_A_TIME / widest).clamp(1, SAMPLES_AT_A_TIME);
        let end = records.end.min(records.start + most);
        if end < records.end {
            self.now = Some((shard, end..records.end));
        }
        let count = (end - records.start) as usize;
        samples.clear(&self.schema);
        samples.num_samples = count;
        for (lane, file) in self.lanes.iter_mut().zip(files) {
            let record_bytes = file.record_bytes as usize;
            let bytes = lane.take(count * record_bytes)?;
            for field in &file.fields {
                let decoded = field.decode(bytes, record_bytes, samples);
                decoded.map_err(|bad| bad_value(&file.path, records.start, bad))?;
            }
            let is_dense = file.fields.iter().any(|field| field.target == Target::Dense);
            // Raw records carry no types: integers read as floats are subnormal.
            let has_no_types = file.fields.len() > 1;
            let fault = is_dense.then(|| {
                let bits =
                    || samples.first_bits_of_an_integer(&self.schema).filter(|_| has_no_types);
                samples.first_fault(&self.schema).or_else(bits)
            });
            if let Some(fault) = fault.flatten() {
                return Err(fault.in_file(&file.path, records.start, &self.schema));
            }
        }
        Ok(true)
    }

    fn description(&self) -> String {
        self.lanes.first().map_or_else(String::new, |lane| lane.blocks.description().to_owned())
    }

    fn bytes_read(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.blocks.bytes_read()).sum()
    }
}
