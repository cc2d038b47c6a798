//! The fixed shape of sums over samples: blocks in sample order, then one binary tree over blocks.
//!
//! ```text
//! blocks  0   1   2   3   4          a block's sum does not depend on who computed it,
//!          \ /     \ /    |          the tree's shape only on the number of blocks
//!           0       2     4
//!            \     /      |
//!               0         4
//!                \       /
//!                    0
//! ```

use crate::simd::for_each_row_of_two;
use headlong_device::pool::Pool;
use headlong_device::{MatMut, bf16, vectorized};
use std::ops::Range;

/// Samples of one block when `num_samples` are cut into `sum_blocks`. A rank that holds some of the
/// blocks takes the length from the batch of all ranks, so that its last block may be short where
/// another's is not.
pub fn block_len(num_samples: usize, sum_blocks: usize) -> usize {
    num_samples.div_ceil(sum_blocks)
}

/// The samples of block `index` of `num_samples`, `block_len` a block: equal blocks, the last ones
/// shorter or empty.
pub fn block(num_samples: usize, block_len: usize, index: usize) -> Range<usize> {
    (index * block_len).min(num_samples)..((index + 1) * block_len).min(num_samples)
}

/// Calls `add(into, from)` for each pair of the tree over `count` blocks; block 0 ends up with the
/// sum.
pub fn tree(count: usize, mut add: impl FnMut(usize, usize)) {
    let mut distance = 1;
    while distance < count {
        for into in (0..count - distance).step_by(2 * distance) {
            add(into, into + distance);
        }
        distance *= 2;
    }
}

/// Adds up `count` blocks of equally many rows that lie one under the other in `blocks`, whose
/// values it uses up, into `total`; where `narrow`, blocks and sums are rounded to bf16.
pub fn add_blocks(
    pool: &Pool,
    blocks: &mut MatMut<'_>,
    count: usize,
    total: &mut MatMut<'_>,
    (accumulate, narrow): (bool, bool),
) {
    let (rows, cols, stride) = (total.rows(), blocks.cols(), blocks.stride());
    assert_eq!((blocks.rows(), cols), (count * rows, total.cols()), "{count} blocks");
    tree(count, |into, from| {
        let (head, tail) = blocks.data_mut().split_at_mut(from * rows * stride);
        let into = MatMut::with_stride(&mut head[into * rows * stride..], rows, cols, stride);
        let add = if narrow { add_as_bf16 } else { add };
        add_matrix(pool, into, MatMut::with_stride(tail, rows, cols, stride), add);
    });
    let add = if accumulate { add } else { <[f32]>::copy_from_slice };
    add_matrix(pool, total.reborrow(), blocks.rows_range_mut(0, rows), add);
}

fn add_matrix(pool: &Pool, into: MatMut<'_>, from: MatMut<'_>, add: fn(&mut [f32], &[f32])) {
    for_each_row_of_two(pool, (into, from), 16, |_, into, from| add(into, from));
}

vectorized! {
    fn add(into: &mut [f32], from: &[f32]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into += from;
        }
    }

    fn add_as_bf16(into: &mut [f32], from: &[f32]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into = bf16::nearest(bf16::nearest(*into) + bf16::nearest(*from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_samples_in_order() {
        for (samples, blocks) in [(8, 4), (10, 4), (3, 8), (0, 2), (7, 1)] {
            let len = block_len(samples, blocks);
            let all: Vec<usize> =
                (0..blocks).flat_map(|index| block(samples, len, index)).collect();
            assert_eq!(all, (0..samples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_tree_of_the_drawing() {
        let mut pairs = Vec::new();
        tree(5, |into, from| pairs.push((into, from)));
        assert_eq!(pairs, [(0, 1), (2, 3), (0, 2), (0, 4)]);
    }

    #[test]
    fn blocks_add_up_as_the_tree_says() {
        let count = 5;
        let values: Vec<f32> = (0..count * 6).map(|i| (i as f32).sin()).collect();
        let (mut blocks, mut total) = (values.clone(), vec![1.0; 6]);
        let pool = Pool::new(2);
        let bf16 = |value| half::bf16::from_f32(value).to_f32();
        for (accumulate, narrow) in [(false, false), (true, false), (false, true), (true, true)] {
            let round = |value| if narrow { bf16(value) } else { value };
            blocks.copy_from_slice(&values);
            total.fill(1.0);
            add_blocks(
                &pool,
                &mut MatMut::new(&mut blocks, count * 2, 3),
                count,
                &mut MatMut::new(&mut total, 2, 3),
                (accumulate, narrow),
            );
            for i in 0..6 {
                let at = |block: usize| round(values[block * 6 + i]);
                let [left, right] = [(0, 1), (2, 3)].map(|(a, b)| round(at(a) + at(b)));
                let sum = round(round(left + right) + at(4));
                assert_eq!(total[i], if accumulate { 1.0 + sum } else { sum });
            }
        }
    }
}
