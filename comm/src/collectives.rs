//! The operations of a [`Communicator`](crate::Communicator).

mod all_reduce;
mod all_to_all;
mod broadcast;
pub(crate) mod group;
mod one_step;
mod parts;

use std::ops::Range;

/// The segment of each rank when `len` elements are shared out: equal whole cache lines, the last
/// ones shorter or empty.
fn segment(len: usize, num_ranks: usize, rank: usize) -> Range<usize> {
    let share = len.div_ceil(num_ranks).next_multiple_of(32);
    (rank * share).min(len)..((rank + 1) * share).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_everything_in_order() {
        for len in [0, 1, 31, 32, 33, 1000, 4096] {
            for ranks in 1..9 {
                let all: Vec<usize> =
                    (0..ranks).flat_map(|rank| segment(len, ranks, rank)).collect();
                assert_eq!(all, (0..len).collect::<Vec<_>>());
            }
        }
    }
}
