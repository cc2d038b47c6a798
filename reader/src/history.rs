//! A learning id mapper that remembers how it was a few batches ago.
//!
//! The pipeline maps batches ahead of the training that consumes them, so the mapper's state is
//! ahead too. A checkpoint needs it as it was at the batch being consumed: each batch leaves a log
//! of what it changed, and going back is undoing the logs of the batches after it, on a copy.

use std::collections::VecDeque;
use std::ops::Range;

use crate::admission::Undo;
use crate::batch::{Jagged, Position};
use crate::criteo::parse::RawBlock;
use crate::ids::IdMapper;

pub const DELIVERED_KEPT: usize = 8;

#[derive(Debug)]
pub struct MapperHistory {
    mapper: IdMapper,
    current: Vec<Undo>,
    /// Finished batches, the oldest first: the position after each, and what it changed.
    batches: VecDeque<(Position, Vec<Undo>)>,
    /// The position before the oldest of `batches`.
    base: Position,
    /// How many of `batches` have been delivered.
    delivered: usize,
    /// Emptied logs, to be used again.
    spare: Vec<Vec<Undo>>,
}

impl MapperHistory {
    /// A history that begins at `start`.
    pub fn new(mapper: IdMapper, start: Position) -> Self {
        Self {
            mapper,
            current: Vec::new(),
            batches: VecDeque::new(),
            base: start,
            delivered: 0,
            spare: Vec::new(),
        }
    }

    /// Maps samples of the batch being filled, see [`IdMapper::map_and_learn`].
    pub fn map(
        &mut self,
        block: &RawBlock,
        samples: Range<usize>,
        sparse: &mut [Jagged],
        at: usize,
    ) {
        self.mapper.map_and_learn(block, samples, sparse, at, &mut self.current);
    }

    /// The batch being filled is finished; `position` is after it.
    pub fn finish_batch(&mut self, position: Position) {
        let empty = self.spare.pop().unwrap_or_default();
        self.batches.push_back((position, std::mem::replace(&mut self.current, empty)));
    }

    /// The oldest finished batch that was not delivered yet has been.
    pub fn deliver_batch(&mut self) {
        self.delivered += 1;
        if self.delivered > DELIVERED_KEPT
            && let Some((position, mut log)) = self.batches.pop_front()
        {
            self.delivered -= 1;
            self.base = position;
            log.clear();
            self.spare.push(log);
        }
    }

    /// A copy of the mapper as it was at `position`: after one of the latest batches, or before the
    /// first.
    pub fn mapper_at(&self, position: &Position) -> Option<IdMapper> {
        let batch = self.batches.iter().rposition(|(after, _)| after == position);
        let undone = match batch {
            Some(batch) => batch + 1,
            None if *position == self.base => 0,
            None => return None,
        };
        let mut mapper = self.mapper.clone();
        mapper.undo(&self.current);
        for (_, log) in self.batches.range(undone..).rev() {
            mapper.undo(log);
        }
        Some(mapper)
    }
}
