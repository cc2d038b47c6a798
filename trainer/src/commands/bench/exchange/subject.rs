//! The messages of the steps of an exchange, and buffers for them.

use crate::commands::bench::collectives::dtype::Dtype;
use crate::commands::bench::collectives::job::Measured;
use crate::commands::bench::collectives::known::Known;
use crate::commands::bench::collectives::operation::{Operation, Place};
use crate::commands::bench::collectives::subject::Subject;
use headlong_comm::{Communicator, Result};
use serde::{Deserialize, Serialize};

/// Numbers for each owner of rows (outer) and each rank that asks it (inner).
pub type ByPair = Vec<Vec<usize>>;

/// Everything that ranks send in some batches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    pub ranks: usize,
    /// Rows asked for, of each batch.
    pub rows: Vec<ByPair>,
    /// f32 of their vectors, of each batch.
    pub elements: Vec<ByPair>,
    /// f32 of the one all-reduce.
    pub reduced: usize,
    /// Ids travel; else all ranks know them.
    pub ids_travel: bool,
    /// Inside the node, then across.
    pub hierarchical: bool,
}

/// What a rank sends in a step of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// To owners: which rows.
    Ids,
    Vectors,
    Gradients,
    /// Frequent rows and dense gradients.
    AllReduce,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Step::Ids => "ids",
            Step::Vectors => "vectors",
            Step::Gradients => "gradients",
            Step::AllReduce => "all_reduce",
        }
    }
}

impl Messages {
    pub fn steps(&self) -> Vec<Step> {
        let ids = self.ids_travel.then_some(Step::Ids);
        let reduced = (self.reduced > 0).then_some(Step::AllReduce);
        ids.into_iter().chain([Step::Vectors, Step::Gradients]).chain(reduced).collect()
    }

    /// Elements from one rank to another in a batch.
    pub fn sent(&self, step: Step, batch: usize, from: usize, to: usize) -> usize {
        match step {
            Step::Ids => self.rows[batch][to][from],
            Step::Vectors => self.elements[batch][from][to],
            Step::Gradients => self.elements[batch][to][from],
            Step::AllReduce => 0,
        }
    }

    /// Bytes of an element.
    pub fn element_bytes(step: Step) -> usize {
        if step == Step::Ids { 8 } else { 4 }
    }

    /// Bytes that leave all ranks together in a step, mean over batches: what a rank has for itself
    /// stays. The all-reduce counts as two steps do, `2(N−1)/N` of its buffer from each rank.
    pub fn bytes(&self, step: Step) -> f64 {
        if step == Step::AllReduce {
            return 2.0 * (self.ranks - 1) as f64 * self.reduced as f64 * 4.0;
        }
        let pairs = || {
            let all = (0..self.ranks).flat_map(|from| (0..self.ranks).map(move |to| (from, to)));
            all.filter(|(from, to)| from != to)
        };
        let of_batch =
            |batch| pairs().map(|(from, to)| self.sent(step, batch, from, to)).sum::<usize>();
        let sum: usize = (0..self.rows.len()).map(of_batch).sum();
        (sum * Self::element_bytes(step)) as f64 / self.rows.len().max(1) as f64
    }

    /// Bytes of the largest message between two ranks in any batch; none of the all-reduce, whose
    /// algorithm decides that.
    pub fn largest(&self, step: Step) -> Option<usize> {
        if step == Step::AllReduce {
            return None;
        }
        let pairs = (0..self.ranks).flat_map(|from| (0..self.ranks).map(move |to| (from, to)));
        let sizes = pairs.filter(|(from, to)| from != to).flat_map(|(from, to)| {
            (0..self.rows.len()).map(move |batch| self.sent(step, batch, from, to))
        });
        Some(sizes.max().unwrap_or(0) * Self::element_bytes(step))
    }

    pub fn describe(&self, step: Step) -> Measured {
        let (operation, dtype) = match step {
            Step::Ids => (Operation::AllToAllV, Dtype::Int64),
            Step::AllReduce => (Operation::AllReduce, Dtype::Float),
            _ => (Operation::AllToAllV, Dtype::Float),
        };
        let bytes = match step {
            Step::AllReduce => self.reduced * 4,
            _ => (self.bytes(step) / self.ranks as f64) as usize,
        };
        Measured {
            operation,
            dtype,
            bytes,
            count: bytes / Self::element_bytes(step),
            places: Vec::new(),
        }
    }

    pub fn subject<'m>(
        &'m self,
        communicator: &'m Communicator,
        step: Step,
    ) -> Box<dyn Subject + 'm> {
        match step {
            Step::Ids => Box::new(Buffers::<i64>::new(communicator, self, step)),
            _ => Box::new(Buffers::<f32>::new(communicator, self, step)),
        }
    }
}

/// Buffers of one step: call after call goes through the batches.
struct Buffers<'m, T> {
    communicator: &'m Communicator,
    step: Step,
    reduced: usize,
    /// Of each batch, what goes to and comes from each rank.
    counts: Vec<(Vec<usize>, Vec<usize>)>,
    next: usize,
    send: Vec<T>,
    recv: Vec<T>,
}

impl<'m, T: Known> Buffers<'m, T> {
    fn new(communicator: &'m Communicator, messages: &Messages, step: Step) -> Self {
        let (me, ranks) = (communicator.rank().0, messages.ranks);
        let of_batch = |batch| {
            let send = (0..ranks).map(|to| messages.sent(step, batch, me, to)).collect();
            let recv = (0..ranks).map(|from| messages.sent(step, batch, from, me)).collect();
            (send, recv)
        };
        let counts: Vec<(Vec<usize>, Vec<usize>)> =
            (0..messages.rows.len()).map(of_batch).collect();
        let least = if step == Step::AllReduce { messages.reduced } else { 0 };
        let sum = |counts: &Vec<usize>| counts.iter().sum::<usize>();
        let longest_send = counts.iter().map(|(send, _)| sum(send)).fold(least, usize::max);
        let longest_recv = counts.iter().map(|(_, recv)| sum(recv)).fold(least, usize::max);
        let (send, recv) = (vec![T::of(1); longest_send], vec![T::of(1); longest_recv]);
        Self { communicator, step, reduced: messages.reduced, counts, next: 0, send, recv }
    }

    /// What a part holds while data is checked.
    fn number(&self, from: usize, to: usize) -> T {
        T::of(((from * self.communicator.num_ranks() + to) % 251 + 1) as i64)
    }
}

impl<T: Known> Subject for Buffers<'_, T> {
    fn fill(&mut self, _place: Place) -> Result<()> {
        let me = self.communicator.rank().0;
        self.recv.fill(T::default());
        if self.step == Step::AllReduce {
            self.send.fill(T::of(me as i64 + 1));
            return Ok(());
        }
        let counts = self.counts[self.next].0.clone();
        let mut rest = &mut self.send[..];
        for (to, count) in counts.into_iter().enumerate() {
            let number = T::of(((me * self.communicator.num_ranks() + to) % 251 + 1) as i64);
            let (part, behind) = rest.split_at_mut(count);
            part.fill(number);
            rest = behind;
        }
        Ok(())
    }

    fn prepare(&mut self, _place: Place) -> Result<()> {
        self.send.fill(T::default());
        Ok(())
    }

    fn call(&mut self, _place: Place) -> Result<()> {
        let Self { communicator, step, reduced, counts, next, send, recv } = self;
        if *step == Step::AllReduce {
            return communicator.all_reduce(&mut send[..*reduced]);
        }
        let (to, from) = &counts[*next];
        *next = (*next + 1) % counts.len();
        let (sent, received) = (to.iter().sum(), from.iter().sum());
        communicator.all_to_all_v(&send[..sent], to, &mut recv[..received], from)
    }

    fn wrong(&mut self, _place: Place) -> Result<u64> {
        let (me, ranks) = (self.communicator.rank().0, self.communicator.num_ranks());
        if self.step == Step::AllReduce {
            let sum = T::of((ranks * (ranks + 1) / 2) as i64);
            return Ok(
                self.send[..self.reduced].iter().filter(|found| **found != sum).count() as u64
            );
        }
        let last = (self.next + self.counts.len() - 1) % self.counts.len();
        let mut rest = &self.recv[..];
        let mut wrong = 0;
        for (from, &count) in self.counts[last].1.iter().enumerate() {
            let (part, behind) = rest.split_at(count);
            let number = self.number(from, me);
            wrong += part.iter().filter(|found| **found != number).count() as u64;
            rest = behind;
        }
        Ok(wrong)
    }
}
