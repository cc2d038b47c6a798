//! Data of any format, held in memory: then its samples come in any order, and no disk is read
//! again.

use std::sync::Arc;

use super::{About, Parts, Ranges, SampleStream, Source, cut, starts_of};
use crate::disk::DiskOptions;
use crate::error::Result;
use crate::samples::{DataSchema, Samples};
use crate::skipped::SkipReport;

/// Samples of a block, at least: what comes in smaller portions is joined.
const LEAST_SAMPLES: usize = 4096;

/// Samples in memory.
pub struct MemorySource {
    about: About,
    blocks: Arc<[Samples]>,
    starts: Arc<[u64]>,
    skipped: SkipReport,
}

impl MemorySource {
    /// Reads all of `source`; none where that takes more than `most_bytes`.
    pub fn load(
        source: &dyn Source,
        options: &DiskOptions,
        most_bytes: u64,
    ) -> Result<Option<Self>> {
        let About { schema, stored_bytes, .. } = source.about().clone();
        let mut stream = source.read_all(options)?;
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
        let starts = starts_of(blocks.iter().map(|block| block.num_samples as u64));
        let about = About::random(schema, &starts, stored_bytes);
        let skipped = source.skip_report();
        Ok(Some(Self { about, blocks: blocks.into(), starts, skipped }))
    }
}

impl Source for MemorySource {
    fn about(&self) -> &About {
        &self.about
    }

    fn skip_report(&self) -> SkipReport {
        self.skipped.clone()
    }

    fn read(&self, ranges: Ranges, _: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        let (schema, blocks) = (self.about.schema.clone(), Arc::clone(&self.blocks));
        let pieces = Box::new(cut(ranges, Arc::clone(&self.starts)));
        Ok(Box::new(MemoryStream { schema, blocks, pieces }))
    }
}

struct MemoryStream {
    schema: DataSchema,
    blocks: Arc<[Samples]>,
    pieces: Parts,
}

impl SampleStream for MemoryStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let Some((block, range)) = self.pieces.next() else { return Ok(false) };
        let range = range.start as usize..range.end as usize;
        samples.clear(&self.schema);
        samples.extend_from(&self.blocks[block], range, &self.schema);
        Ok(true)
    }

    fn description(&self) -> String {
        "from memory".to_owned()
    }
}
