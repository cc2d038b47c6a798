//! Data of integers, of whose dense columns something is said one by one.

use std::sync::Arc;

use super::{About, Ranges, SampleStream, Source};
use crate::columns::DenseColumns;
use crate::disk::DiskOptions;
use crate::error::{Result, invalid};
use crate::samples::{DataSchema, DenseKind, DenseValues, Samples};
use crate::skipped::SkipReport;

/// Another source, whose integers have become numbers, and which has tables of bins.
pub struct IntegersSource {
    source: Box<dyn Source>,
    columns: Arc<DenseColumns>,
    about: About,
}

impl IntegersSource {
    /// Wraps `source`, whose dense numbers are integers.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`](crate::ReaderError::Invalid) where it has other dense columns.
    pub fn new(source: Box<dyn Source>, columns: &Arc<DenseColumns>) -> Result<Self> {
        let mut about = source.about().clone();
        let schema = &mut about.schema;
        let checked = columns.check(schema.dense.len());
        checked.map_err(|error| invalid!("{}: {error}", about.names))?;
        schema.dense_kind = DenseKind::Transformed(columns.transform);
        schema.sparse.extend(columns.sparse(&schema.dense));
        Ok(Self { source, columns: Arc::clone(columns), about })
    }
}

impl Source for IntegersSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn skip_report(&self) -> SkipReport {
        self.source.skip_report()
    }

    fn read(&self, ranges: Ranges, options: &DiskOptions) -> Result<Box<dyn SampleStream>> {
        Ok(Box::new(IntegersStream {
            stream: self.source.read(ranges, options)?,
            columns: Arc::clone(&self.columns),
            schema: self.about.schema.clone(),
            integers: Samples::default(),
        }))
    }
}

struct IntegersStream {
    stream: Box<dyn SampleStream>,
    columns: Arc<DenseColumns>,
    schema: DataSchema,
    integers: Samples,
}

impl SampleStream for IntegersStream {
    fn next(&mut self, samples: &mut Samples) -> Result<bool> {
        let from = &mut self.integers;
        if !self.stream.next(from)? {
            return Ok(false);
        }
        samples.clear(&self.schema);
        samples.num_samples = from.num_samples;
        std::mem::swap(&mut samples.labels, &mut from.labels);
        for (to, from) in samples.sparse.iter_mut().zip(&mut from.sparse) {
            std::mem::swap(to, from);
        }
        if let (DenseValues::Integers(raw), DenseValues::Numbers(numbers)) =
            (&from.dense, &mut samples.dense)
        {
            numbers.resize(raw.len(), 0.0);
            self.columns.apply(raw, numbers);
            self.columns.extend_bins(raw, &mut samples.sparse);
        }
        Ok(true)
    }

    fn description(&self) -> String {
        self.stream.description()
    }

    fn bytes_read(&self) -> u64 {
        self.stream.bytes_read()
    }
}
