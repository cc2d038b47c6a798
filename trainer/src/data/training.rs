//! The training data of a run, batch by batch.

use headlong_device::label::parts;
use headlong_reader::format_reader::FormatReader;
use headlong_reader::{
    Batch, CriteoTextReader, IdMapper, Position, Progress, Reader, ReaderState, Result, SkipReport,
};
use std::time::Duration;

/// Batches of the training files, and whether their labels differ at all.
pub struct TrainingReader {
    source: Source,
    labels: Labels,
}

enum Source {
    Text(Box<CriteoTextReader>),
    /// Any other format, or any data in another order or from memory; and ids to rows, which learn
    /// nothing on the way.
    Format(Box<FormatReader>, Box<IdMapper>),
}

/// The labels of the samples so far.
#[derive(Clone, Copy, Debug, Default)]
struct Labels {
    samples: u64,
    /// The label of all of them; none where they differ.
    only: Option<f32>,
}

impl Labels {
    fn add(&mut self, labels: &[f32]) {
        let classes = labels.iter().map(|&label| f32::from(u8::from(parts(label).0)));
        if self.samples == 0 {
            self.only = classes.clone().next();
        }
        self.samples += labels.len() as u64;
        self.only = self.only.filter(|only| classes.clone().all(|class| class == *only));
    }
}

impl TrainingReader {
    pub(super) fn of_text(reader: CriteoTextReader) -> Self {
        Self { source: Source::Text(Box::new(reader)), labels: Labels::default() }
    }

    pub(super) fn of_format(reader: FormatReader, ids: IdMapper) -> Self {
        Self { source: Source::Format(Box::new(reader), Box::new(ids)), labels: Labels::default() }
    }

    fn reader(&self) -> &dyn Reader {
        match &self.source {
            Source::Text(reader) => &**reader,
            Source::Format(reader, _) => &**reader,
        }
    }

    /// The ids as they were at `position`, the end of a recent batch.
    pub fn mapper_at(&self, position: &Position) -> Result<IdMapper> {
        match &self.source {
            Source::Text(reader) => reader.mapper_at(position),
            Source::Format(_, ids) => Ok(ids.as_ref().clone()),
        }
    }

    /// How long it took to skip to the starting position; known once the first batch has come.
    pub fn skip_time(&self) -> Duration {
        match &self.source {
            Source::Text(reader) => reader.skip_time(),
            Source::Format(..) => Duration::ZERO,
        }
    }

    /// Samples given out so far, and their label, where all have the same one.
    pub fn only_label(&self) -> Option<(u64, f32)> {
        self.labels.only.map(|label| (self.labels.samples, label))
    }
}

impl Reader for TrainingReader {
    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let more = match &mut self.source {
            Source::Text(reader) => reader.next(batch),
            Source::Format(reader, _) => reader.next(batch),
        }?;
        if more {
            self.labels.add(&batch.labels);
        }
        Ok(more)
    }

    fn state(&self) -> &ReaderState {
        self.reader().state()
    }

    fn progress(&self) -> Progress {
        self.reader().progress()
    }

    fn skip_report(&self) -> SkipReport {
        self.reader().skip_report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_one_class_are_noticed_until_another_comes() {
        let mut labels = Labels::default();
        for (batch, expected) in [
            (&[][..], (0, None)),
            (&[1.0, 1.0], (2, Some(1.0))),
            (&[1.0], (3, Some(1.0))),
            (&[1.0, 0.0], (5, None)),
            (&[1.0], (6, None)),
        ] {
            labels.add(batch);
            assert_eq!((labels.samples, labels.only), expected);
        }
    }
}
