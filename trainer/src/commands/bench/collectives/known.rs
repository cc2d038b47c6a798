//! Known numbers in the buffers, and how many of those that came are wrong.
//!
//! They are small whole numbers, whose sums are exact in every type. They repeat after 61 elements,
//! which divides no size of a buffer that anybody asks for: a part that lies at the wrong place is
//! seen.

use super::operation::{Case, Operation};
use half::{bf16, f16};
use headlong_comm::Element;

/// After this many elements numbers repeat.
const PERIOD: usize = 61;

/// A type that can be filled with known numbers.
pub trait Known: Element {
    /// The number as this type has it; whole numbers wrap.
    fn of(number: i64) -> Self;
}

macro_rules! known {
    ($($type:ty: |$number:ident| $value:expr),*) => {
        $(impl Known for $type {
            fn of($number: i64) -> Self {
                $value
            }
        })*
    };
}

known!(f32: |n| n as f32, f16: |n| f16::from_f64(n as f64), bf16: |n| bf16::from_f64(n as f64));
known!(u8: |n| n as u8, u32: |n| n as u32, u64: |n| n as u64, i32: |n| n as i32, i64: |n| n);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Rank(usize),
    /// The sum over all ranks.
    Sum,
}

/// A piece of a buffer: numbers of one source, from one of its elements on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    whose: Whose,
    start: usize,
    len: usize,
}

impl Case {
    pub fn fill<T: Known>(&self, buffer: &mut [T]) {
        let numbers = self.numbers(Whose::Rank(self.me));
        buffer.iter_mut().zip(numbers.iter().cycle()).for_each(|(value, number)| *value = *number);
    }

    /// Counts the elements of `found` that are not what this rank should have got.
    pub fn wrong<T: Known>(&self, found: &[T]) -> u64 {
        let mut rest = found;
        let mut wrong = 0;
        for piece in self.expected() {
            let (part, behind) = rest.split_at(piece.len);
            let numbers = self.numbers::<T>(piece.whose);
            let expected = numbers.iter().cycle().skip(piece.start % PERIOD);
            wrong += part.iter().zip(expected).filter(|(found, expected)| found != expected).count()
                as u64;
            rest = behind;
        }
        assert!(rest.is_empty(), "{} elements have come that no one expected", rest.len());
        wrong
    }

    /// What this rank should get, piece after piece.
    fn expected(&self) -> Vec<Piece> {
        let len = self.recv_len();
        let one = |whose, start| vec![Piece { whose, start, len }];
        let part = len / self.ranks;
        let parts = |start| {
            (0..self.ranks)
                .map(|rank| Piece { whose: Whose::Rank(rank), start, len: part })
                .collect()
        };
        match self.operation {
            Operation::AllReduce => one(Whose::Sum, 0),
            Operation::ReduceScatter => one(Whose::Sum, self.me * len),
            Operation::AllGather => parts(0),
            Operation::Broadcast => one(Whose::Rank(self.root.0), 0),
            Operation::AllToAll => parts(self.me * part),
            Operation::AllToAllV => (0..self.ranks).map(|from| self.uneven_piece(from)).collect(),
            Operation::SendReceive => one(Whose::Rank(self.neighbours().1.0), 0),
            Operation::Barrier => Vec::new(),
        }
    }

    fn uneven_piece(&self, from: usize) -> Piece {
        let start = (0..self.me).map(|to| self.uneven(from, to)).sum();
        Piece { whose: Whose::Rank(from), start, len: self.uneven(from, self.me) }
    }

    fn numbers<T: Known>(&self, whose: Whose) -> [T; PERIOD] {
        let of_rank = |rank: usize, i: usize| ((rank * 31 + i * 7) % PERIOD) as i64;
        std::array::from_fn(|i| match whose {
            Whose::Rank(rank) => T::of(of_rank(rank, i)),
            Whose::Sum => T::of((0..self.ranks).map(|rank| of_rank(rank, i)).sum()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_comm::Rank;

    #[test]
    fn wrong_elements_are_counted_one_by_one() {
        let case =
            Case { operation: Operation::AllToAll, count: 300, root: Rank(0), ranks: 3, me: 1 };
        let mut found: Vec<f32> = Vec::new();
        for from in 0..3 {
            let mut sent = vec![0.0; 300];
            Case { me: from, ..case }.fill(&mut sent);
            found.extend(&sent[100..200]);
        }
        assert_eq!(case.wrong(&found), 0);
        found.swap(3, 4);
        assert_eq!(case.wrong(&found), 2);
        found.rotate_left(100);
        assert_eq!(case.wrong(&found), 300, "parts of other ranks");
    }

    #[test]
    fn sums_wrap_and_round_as_the_types_do() {
        let case =
            Case { operation: Operation::AllReduce, count: 61, root: Rank(0), ranks: 12, me: 0 };
        let sums: Vec<i64> = case.numbers::<i64>(Whose::Sum).to_vec();
        assert!(sums.iter().any(|&sum| sum > 256), "some need more than eight bits: {sums:?}");
        assert_eq!(case.wrong(&sums.iter().map(|&sum| sum as u8).collect::<Vec<_>>()), 0);
        let rounded: Vec<bf16> = sums.iter().map(|&sum| bf16::from_f32(sum as f32)).collect();
        assert_eq!(case.wrong(&rounded), 0);
    }
}
