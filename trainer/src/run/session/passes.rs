//! Training data that stays on the devices (`data.cache = "device"`): the first whole epoch fills
//! their memory, and the batches of later ones come from there, in the order and with the positions
//! that the reader would give them.

use crate::iteration::model::Incoming;
use headlong_reader::order::{Order, batches};
use headlong_reader::{Batch, Position};

/// What is known of the epochs so far.
pub(super) struct KeptPasses {
    order: Order,
    /// Samples of a full batch of all ranks.
    batch_size: u64,
    /// Epochs in all; none: without end.
    epochs: Option<u64>,
    /// Behind the batch that was given last.
    at: Position,
    /// Batches of the epoch at hand that were given.
    given: usize,
    pass: Option<Pass>,
    /// In which order batches that were kept come in the epoch at hand.
    places: Vec<usize>,
}

/// The epoch that is kept, or is being kept.
struct Pass {
    epoch: u64,
    /// Bad lines that were skipped before it.
    skipped: u64,
    /// Behind each of its batches.
    positions: Vec<Position>,
    samples: u64,
    is_whole: bool,
}

/// Where a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Reader,
    /// From the reader, as number `index` of those that stay.
    ReaderToKeep {
        index: usize,
    },
    Kept {
        index: usize,
        position: Position,
    },
}

impl Source {
    /// The batch, where `batch` is what the reader gave.
    pub(super) fn incoming(self, batch: &Batch) -> Incoming<'_> {
        match self {
            Self::Reader => Incoming::Read(batch),
            Self::ReaderToKeep { index } => Incoming::Keep { batch, index },
            Self::Kept { index, position } => Incoming::Kept { index, position },
        }
    }
}

impl KeptPasses {
    /// From `start` on; an epoch has at most `most` batches.
    pub(super) fn new(
        order: Order,
        batch_size: u64,
        epochs: Option<u64>,
        start: Position,
        most: u64,
    ) -> Self {
        let places = Vec::with_capacity(most as usize);
        Self { order, batch_size, epochs, at: start, given: 0, pass: None, places }
    }

    /// Whether all batches are there, so that the reader is not asked.
    pub(super) fn are_kept(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.is_whole)
    }

    /// Whether none has come from there yet.
    pub(super) fn is_first(&self) -> bool {
        let first = self.pass.as_ref().map(|pass| pass.epoch + 1);
        self.given == 0 && first == Some(self.at.epoch)
    }

    /// Hears of a batch of the reader, and where it is to be kept. A run that resumed within an
    /// epoch keeps the next one.
    pub(super) fn hear(&mut self, batch: &Batch) -> Source {
        let before = std::mem::replace(&mut self.at, batch.position);
        if before.sample == 0 && self.pass.is_none() {
            self.pass = Some(Pass {
                epoch: before.epoch,
                skipped: before.skipped,
                positions: Vec::with_capacity(self.places.capacity()),
                samples: 0,
                is_whole: false,
            });
        }
        let Some(pass) = &mut self.pass else { return Source::Reader };
        let index = pass.positions.len();
        pass.positions.push(batch.position);
        pass.samples += batch.share_of.unwrap_or(batch.num_samples) as u64;
        pass.is_whole = batch.position.epoch > pass.epoch;
        Source::ReaderToKeep { index }
    }

    /// The next batch of those that were kept; none behind the last epoch.
    pub(super) fn next(&mut self) -> Option<Source> {
        let pass = self.pass.as_ref().filter(|pass| pass.is_whole)?;
        let epoch = self.at.epoch;
        if self.epochs.is_some_and(|epochs| epoch >= epochs) {
            return None;
        }
        if self.given == 0 {
            pass.places_in(epoch, self.order, self.batch_size, &mut self.places);
        }
        let index = self.places[self.given];
        let position = pass.position(self.given, epoch);
        self.given = if position.epoch > epoch { 0 } else { self.given + 1 };
        self.at = position;
        Some(Source::Kept { index, position })
    }

    /// Which part of the epoch at hand has been given, where its batches were kept.
    pub(super) fn of_epoch(&self) -> Option<f64> {
        let pass = self.pass.as_ref().filter(|pass| pass.is_whole)?;
        (!self.is_first()).then(|| self.given as f64 / pass.positions.len() as f64)
    }
}

impl Pass {
    /// Behind batch number `given` of epoch `epoch`.
    fn position(&self, given: usize, epoch: u64) -> Position {
        let (here, end) = (self.positions[given], self.positions[self.positions.len() - 1]);
        let later = epoch - self.epoch;
        Position {
            epoch: here.epoch + later,
            skipped: here.skipped + later * (end.skipped - self.skipped),
            ..here
        }
    }

    /// Which of the kept batches come in an epoch, in their order.
    fn places_in(&self, epoch: u64, order: Order, batch_size: u64, places: &mut Vec<usize>) {
        places.clear();
        if order == Order::Sequential {
            return places.extend(0..self.positions.len());
        }
        let of_epoch = |epoch| batches(order, epoch, self.samples, batch_size, 0).into_iter();
        let number = |samples: std::ops::Range<u64>| (samples.start / batch_size) as usize;
        let mut kept_at = vec![0; self.positions.len()];
        for (place, samples) in of_epoch(self.epoch).enumerate() {
            kept_at[number(samples)] = place;
        }
        places.extend(of_epoch(epoch).map(|samples| kept_at[number(samples)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader gives: batches by the number of their first sample, with their positions.
    fn read(order: Order, start: Position, epochs: u64) -> Vec<(u64, Batch)> {
        let (samples, size) = (23, 5);
        let mut all = Vec::new();
        for epoch in start.epoch..epochs {
            let first = if epoch == start.epoch { start.sample } else { 0 };
            let ranges = batches(order, epoch, samples, size, first);
            let mut given = first;
            for range in ranges {
                given += range.end - range.start;
                // Three bad lines an epoch, one of them behind the last sample.
                let position = match given == samples {
                    true => {
                        Position { epoch: epoch + 1, skipped: 3 * epoch + 3, ..Position::default() }
                    }
                    false => Position {
                        epoch,
                        sample: given,
                        skipped: 3 * epoch + given / 8,
                        ..Position::default()
                    },
                };
                let num_samples = (range.end - range.start) as usize;
                all.push((range.start, Batch { num_samples, position, ..Batch::default() }));
            }
        }
        all
    }

    #[test]
    fn later_epochs_come_in_the_order_and_with_the_positions_of_the_reader() {
        for order in [Order::Sequential, Order::Batches { seed: 4 }] {
            for (epoch, sample) in [(0, 0), (0, 10), (2, 20), (3, 0)] {
                let skipped = 3 * epoch + sample / 8;
                let start = Position { epoch, sample, skipped, ..Position::default() };
                let expected = read(order, start, 7);
                let mut passes = KeptPasses::new(order, 5, Some(7), start, 5);
                let (mut kept, mut came) = (Vec::new(), 0);
                for (first, batch) in &expected {
                    if !passes.are_kept() {
                        match passes.hear(batch) {
                            Source::ReaderToKeep { index } => {
                                assert_eq!(index, kept.len());
                                kept.push(*first);
                            }
                            other => assert_eq!(other, Source::Reader),
                        }
                        continue;
                    }
                    assert_eq!(passes.is_first(), came == 0);
                    match passes.next() {
                        Some(Source::Kept { index, position }) => {
                            assert_eq!((kept[index], position), (*first, batch.position));
                        }
                        other => panic!("{other:?}"),
                    }
                    came += 1;
                }
                assert_eq!(passes.next(), None);
                let partial = usize::from(sample > 0);
                assert_eq!(came, 5 * (7 - epoch as usize - 1 - partial), "{order:?} {start:?}");
            }
        }
    }
}
