//! Samples to blocks with checksums.

use std::io::Write;
use std::path::{Path, PathBuf};

use headlong_device::files::OutputFile;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{BLOCKS_FROM, END, Header, MAGIC, MOST_BLOCK_BYTES};
use crate::error::{ReaderError, Result, invalid};
use crate::formats::Sink;
use crate::output;
use crate::samples::{DenseValues, Hotness, Samples};

/// Writes one file.
pub struct HeadlongSink {
    path: PathBuf,
    file: OutputFile,
    header: Header,
    /// Samples that do not fill a block yet.
    pending: Samples,
    block: Vec<u8>,
    at: u64,
    ends: Vec<u64>,
    num_samples: u64,
}

impl HeadlongSink {
    /// Creates the file and writes its header.
    pub fn create(path: &Path, header: Header) -> Result<Self> {
        let refuse = |error: ReaderError| invalid!("{}: {error}", path.display());
        header.schema.check().map_err(refuse)?;
        let json =
            serde_json::to_vec(&header).map_err(|error| invalid!("{}: {error}", path.display()))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&json);
        bytes.resize((bytes.len() + 8).next_multiple_of(BLOCKS_FROM as usize) - 8, 0);
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        let mut file = output::create(path)?;
        file.write_all(&bytes).map_err(output::write_error(path))?;
        let mut pending = Samples::default();
        pending.clear(&header.schema);
        let at = bytes.len() as u64;
        let (path, block, ends) = (path.to_owned(), Vec::new(), Vec::new());
        Ok(Self { path, file, header, pending, block, at, ends, num_samples: 0 })
    }

    fn write_block(&mut self) -> Result<()> {
        if let Some(fault) = self.pending.first_fault(&self.header.schema) {
            return Err(fault.in_file(&self.path, self.num_samples, &self.header.schema));
        }
        encode(&self.pending, &self.header, &mut self.block);
        let checksum = xxh3_64(&self.block);
        self.block.extend_from_slice(&checksum.to_le_bytes());
        if self.block.len() as u64 > MOST_BLOCK_BYTES {
            let message = format!(
                "{} samples take {} bytes, expected at most {MOST_BLOCK_BYTES}: too many ids a \
                 sample",
                self.pending.num_samples,
                self.block.len()
            );
            return Err(ReaderError::format(&self.path, message));
        }
        self.file.write_all(&self.block).map_err(output::write_error(&self.path))?;
        self.at += self.block.len() as u64;
        self.ends.push(self.at);
        self.num_samples += self.pending.num_samples as u64;
        self.pending.clear(&self.header.schema);
        Ok(())
    }
}

impl Sink for HeadlongSink {
    fn write(&mut self, samples: &Samples) -> Result<()> {
        let most = self.header.samples_per_block as usize;
        let mut from = 0;
        while from < samples.num_samples {
            let to = samples.num_samples.min(from + most - self.pending.num_samples);
            self.pending.extend_from(samples, from..to, &self.header.schema);
            from = to;
            if self.pending.num_samples == most {
                self.write_block()?;
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<PathBuf>> {
        if self.pending.num_samples > 0 {
            self.write_block()?;
        }
        let mut index = Vec::new();
        let numbers = [self.num_samples, self.ends.len() as u64, self.at];
        for number in self.ends.iter().chain(&numbers) {
            index.extend_from_slice(&number.to_le_bytes());
        }
        let mut checksum = Xxh3::new();
        checksum.update(&index);
        index.extend_from_slice(&checksum.digest().to_le_bytes());
        index.extend_from_slice(END);
        self.file.write_all(&index).map_err(output::write_error(&self.path))?;
        output::commit(self.file)?;
        Ok(vec![self.path])
    }
}

fn encode(samples: &Samples, header: &Header, block: &mut Vec<u8>) {
    block.clear();
    if header.schema.weight.is_some() {
        samples.labels.iter().for_each(|label| block.extend_from_slice(&label.to_le_bytes()));
    } else if header.schema.labelled {
        block.extend(samples.labels.iter().map(|&label| label as u8));
    }
    match &samples.dense {
        DenseValues::Integers(values) => {
            values.iter().for_each(|value| block.extend_from_slice(&value.to_le_bytes()))
        }
        DenseValues::Numbers(values) => {
            values.iter().for_each(|value| block.extend_from_slice(&value.to_le_bytes()))
        }
    }
    for (bags, column) in samples.sparse.iter().zip(&header.schema.sparse) {
        let wide = bags.ids.iter().any(|&id| id > u64::from(u32::MAX));
        block.push(if wide { 8 } else { 4 });
        if column.hotness == Hotness::Varying {
            bags.offsets.iter().for_each(|offset| block.extend_from_slice(&offset.to_le_bytes()));
        }
        if wide {
            bags.ids.iter().for_each(|id| block.extend_from_slice(&id.to_le_bytes()));
        } else {
            bags.ids.iter().for_each(|&id| block.extend_from_slice(&(id as u32).to_le_bytes()));
        }
    }
}
