//! A job of collectives, each checked against what it must give, to the bit.

use std::sync::Arc;

use headlong_comm::testing::sim::Random;
use headlong_comm::transport::Transport;
use headlong_comm::{AllReduce, AllToAll, CommError, CommOptions, Communicator, Rank};

use super::{Case, Failure, Job};

/// Ten operations of nine kinds.
pub const JOB: Job = Job { name: "collectives", exchanges: 30, body };

const OPERATIONS: u64 = 10;

/// The collectives of one case, on one rank.
struct Script<'a> {
    case: &'a Case,
    communicator: Communicator,
    me: usize,
    ranks: usize,
    operation: u64,
}

fn body(case: &Case, end: Arc<dyn Transport>) -> Result<(), Failure> {
    let communicator = Communicator::new(end, options(case.seed));
    let (me, ranks) = (communicator.rank().0, communicator.num_ranks());
    let mut script = Script { case, communicator, me, ranks, operation: 0 };
    for operation in 0..OPERATIONS {
        script.operation = operation;
        if case.own_failure.is_some_and(|own| own.rank == me && own.operation == operation) {
            let error = CommError::Aborted { culprit: Rank(me), reason: "its disk is full".into() };
            script.communicator.abort(error);
            script.communicator.check()?;
            return Err(Failure::Wrong("an abort has left no trace".into()));
        }
        script.run_one()?;
    }
    script.communicator.close()?;
    Ok(())
}

/// Every way of doing things, at sizes that are quick.
fn options(seed: u64) -> CommOptions {
    let mut random = Random::new(seed ^ 0x0b7);
    CommOptions {
        all_to_all: [AllToAll::Flat, AllToAll::Hierarchical, AllToAll::Auto]
            [random.below(3) as usize],
        all_reduce: [AllReduce::Flat, AllReduce::Auto][random.below(2) as usize],
        one_step_bytes: [None, Some(0), Some(64)][random.below(3) as usize],
        chunk_bytes: [64, 1 << 20][random.below(2) as usize],
        ..CommOptions::default()
    }
}

impl Script<'_> {
    fn run_one(&self) -> Result<(), Failure> {
        match self.random(0).below(8) {
            0 => self.communicator.barrier()?,
            1 => self.broadcast()?,
            2 => self.all_gather()?,
            3 => self.all_reduce()?,
            4 => self.reduce_scatter()?,
            5 => self.all_to_all()?,
            6 => self.send_receive()?,
            _ => self.all_to_all_v()?,
        }
        Ok(())
    }

    /// Numbers of this operation alone.
    fn random(&self, salt: u64) -> Random {
        Random::new(self.case.seed.wrapping_mul(0x9e37_79b9) ^ self.operation << 48 ^ salt)
    }

    fn length(&self) -> usize {
        self.random(1).below(40) as usize
    }

    /// What a rank brings: its sums depend on the order of addition.
    fn floats(&self, rank: usize, len: usize) -> Vec<f32> {
        let mut random = self.random(2 + rank as u64);
        (0..len)
            .map(|_| (random.below(2000) as f32 - 1000.0) * 1.1_f32.powi(random.below(60) as i32))
            .collect()
    }

    /// What one rank has for another.
    fn words(&self, from: usize, to: usize, len: usize) -> Vec<u64> {
        let mut random = self.random((1000 + from * 64 + to) as u64);
        (0..len).map(|_| random.next_u64()).collect()
    }

    fn expect<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        found: &[T],
        expected: &[T],
    ) -> Result<(), Failure> {
        if found == expected {
            return Ok(());
        }
        let operation = self.operation;
        Err(Failure::Wrong(format!(
            "{what} (operation {operation}): {found:?} instead of {expected:?}"
        )))
    }

    fn broadcast(&self) -> Result<(), Failure> {
        let len = if self.random(9).chance(50) { self.length() } else { 2000 };
        let root = self.random(7).below(self.ranks as u64) as usize;
        let expected = self.floats(root, len);
        let mut data = if self.me == root { expected.clone() } else { vec![0.0; len] };
        self.communicator.broadcast(Rank(root), &mut data)?;
        self.expect("broadcast", &data, &expected)
    }

    fn all_gather(&self) -> Result<(), Failure> {
        let len = self.length();
        let expected: Vec<f32> = (0..self.ranks).flat_map(|rank| self.floats(rank, len)).collect();
        let mut all = vec![0.0; expected.len()];
        self.communicator.all_gather(&self.floats(self.me, len), &mut all)?;
        self.expect("all_gather", &all, &expected)
    }

    fn all_reduce(&self) -> Result<(), Failure> {
        let len = self.length();
        let mut data = self.floats(self.me, len);
        let mut told = 0;
        self.communicator.all_reduce_chunks(&mut data, 7, &mut |part, all| {
            assert_eq!((part.start, all.len()), (told, len), "parts become final in rising order");
            told = part.end;
        })?;
        self.expect("all_reduce", &data, &self.sum(len))
    }

    fn reduce_scatter(&self) -> Result<(), Failure> {
        let len = self.length();
        let mut mine = vec![0.0; len];
        self.communicator.reduce_scatter(&self.floats(self.me, len * self.ranks), &mut mine)?;
        self.expect("reduce_scatter", &mine, &self.sum(len * self.ranks)[self.me * len..][..len])?;
        let bounds: Vec<usize> = (0..=self.ranks).map(|rank| rank * len / self.ranks).collect();
        let mut data = self.floats(self.me, len);
        self.communicator.reduce_to_parts(&mut data, &bounds)?;
        self.communicator.gather_parts(&mut data, &bounds)?;
        self.expect("divided sums", &data, &self.sum(len))
    }

    fn all_to_all(&self) -> Result<(), Failure> {
        let len = self.length() / 4;
        let send: Vec<u64> = (0..self.ranks).flat_map(|to| self.words(self.me, to, len)).collect();
        let expected: Vec<u64> =
            (0..self.ranks).flat_map(|from| self.words(from, self.me, len)).collect();
        let mut received = vec![0; expected.len()];
        self.communicator.all_to_all(&send, &mut received)?;
        self.expect("all_to_all", &received, &expected)
    }

    fn all_to_all_v(&self) -> Result<(), Failure> {
        let mut random = self.random(8);
        // Many parts of one size, so that a mixed-up part fits; many of none.
        let sizes = [0, 3, random.below(20) as usize];
        let counts: Vec<usize> =
            (0..self.ranks * self.ranks).map(|_| sizes[random.below(3) as usize]).collect();
        let count = |from: usize, to: usize| counts[from * self.ranks + to];
        let sent: Vec<usize> = (0..self.ranks).map(|to| count(self.me, to)).collect();
        let taken: Vec<usize> = (0..self.ranks).map(|from| count(from, self.me)).collect();
        let send: Vec<u64> =
            (0..self.ranks).flat_map(|to| self.words(self.me, to, sent[to])).collect();
        let expected: Vec<u64> =
            (0..self.ranks).flat_map(|from| self.words(from, self.me, taken[from])).collect();
        let mut received = vec![0; expected.len()];
        self.communicator.all_to_all_v(&send, &sent, &mut received, &taken)?;
        self.expect("all_to_all_v", &received, &expected)
    }

    /// Around the ring, in one direction or the other; some send nothing.
    fn send_receive(&self) -> Result<(), Failure> {
        let shift = 1 + self.random(7).below(self.ranks as u64 - 1) as usize;
        let (next, previous) =
            ((self.me + shift) % self.ranks, (self.me + self.ranks - shift) % self.ranks);
        let sends = |rank: usize| self.random(50 + rank as u64).chance(70);
        let len = self.length();
        let (mine, expected) = (self.words(self.me, next, len), self.words(previous, self.me, len));
        let mut received = vec![0; len];
        let send = sends(self.me).then_some((Rank(next), mine.as_slice()));
        let receive = sends(previous).then_some((Rank(previous), received.as_mut_slice()));
        self.communicator.send_receive(send, receive)?;
        if sends(previous) { self.expect("send_receive", &received, &expected) } else { Ok(()) }
    }

    /// The ordered sum of all ranks: neighbours first, one without a neighbour waits.
    fn sum(&self, len: usize) -> Vec<f32> {
        let mut parts: Vec<Vec<f32>> = (0..self.ranks).map(|rank| self.floats(rank, len)).collect();
        while parts.len() > 1 {
            let add = |pair: &[Vec<f32>]| match pair {
                [one, other] => one.iter().zip(other).map(|(a, b)| a + b).collect(),
                rest => rest[0].clone(),
            };
            parts = parts.chunks(2).map(add).collect();
        }
        parts.remove(0)
    }
}
