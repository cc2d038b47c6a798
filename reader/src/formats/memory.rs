//! Data of any format, held in memory: then its samples come in any order, and no disk is read
//! again.

use std::ops::Range;
use std::sync::Arc;

use super::{Ranges, SampleStream, Source, cut};
use crate::disk::DiskOptions;
use crate::error::Result;
use crate::samples::{DataSchema, Samples};

/// Samples of a block, at least: what comes in smaller portions is joined.
const LEAST_SAMPLES: usize = 4096;

/// Samples in memory.
pub struct MemorySource {
    schema: DataSchema,
    blocks: Arc<[Samples]>,
    /// Samples before each block, and all of them at the end.
    starts: Arc<[u64]>,
    stored_bytes: u64,
}

impl MemorySource {
    /// Reads all of `source`; none where that takes more than `most_bytes`.
    ///
    /// # Errors
    /// Those of reading.
    pub fn load(
        source: &dyn Source,
        options: &DiskOptions,
        most_bytes: u64,
    ) -> Result<Option<Self>> {
        let schema = source.schema().clone();
        let end = source.num_samples().unwrap_or(u64::MAX);
        let mut stream = source.read(Box::new(std::iter::once(0..end)), options)?;
        let (mut blocks, mut bytes) = (Vec::<Samples>::new(), 0);
        let mut samples = Samples::default();
        while stream.next(&mut samples)? {
            bytes += samples.bytes() as u64;
            if bytes > most_bytes {
                return Ok(None);
            }
            match blocks.last_mut() {
                Some(last) if last.num_samples < LEAST_SAMPLES => {
                    last.extend_from(&samples, 0..samples.num_samples, &schema);
                }
                _ => blocks.push(samples.clone()),
            }
        }
        let mut starts = vec![0];
        blocks
            .iter()
            .for_each(|block| starts.push(starts[starts.len() - 1] + block.num_samples as u64));
        let stored_bytes = source.stored_bytes();
        Ok(Some(Self { schema, blocks: blocks.into(), starts: starts.into(), stored_bytes }))
    }
}

impl Source for MemorySource {
    fn schema(&self) -> &DataSchema {
        &self.schema
    }

    fn num_samples(&self) -> Option<u64> {
        self.starts.last().copied()
    }

    fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let (schema, blocks) = (self.schema.clone(), Arc::clone(&self.blocks));
        Ok(Box::new(MemoryStream {
            schema,
            blocks,
            pieces: Box::new(cut(ranges, Arc::clone(&self.starts))),
        }))
    }
}

struct MemoryStream {
    schema: DataSchema,
    blocks: Arc<[Samples]>,
    pieces: Box<dyn Iterator<Item = (usize, Range<u64>)> + Send>,
}

impl SampleStream for MemoryStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let Some((block, range)) = self.pieces.next() else { return Ok(false) };
        samples.clear(&self.schema);
        samples.extend_from(
            &self.blocks[block],
            range.start as usize..range.end as usize,
            &self.schema,
        );
        Ok(true)
    }

    fn description(&self) -> String {
        "from memory".to_owned()
    }
}
