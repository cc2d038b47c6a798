//! The microkernel for processors without AVX2: the same chains, vectorised by the compiler where it can.

use super::{Micro, Numbers, PANEL_COLS};
use crate::rounding::to_nearest_bf16;
use headlong_device::MatRef;

/// Rows of the largest microtile.
pub const MAX_ROWS: usize = 6;

/// Columns of a microtile: two 256-bit vectors.
pub const COLS: usize = 16;

/// The baseline of the architecture.
///
/// # Safety
/// `micro`'s pointers cover what its shape says; `1 <= rows <= 6`, `1 <= cols <= 32`.
pub unsafe fn run(micro: &Micro) {
    for first in (0..micro.cols).step_by(COLS) {
        // SAFETY: passed on to the caller; `first` is inside the panel.
        unsafe {
            match micro.numbers {
                Numbers::F32 => strip::<false>(micro, first),
                Numbers::Bf16 => strip::<true>(micro, first),
            }
        }
    }
}

#[inline(always)]
unsafe fn strip<const PAIRS: bool>(micro: &Micro, first: usize) {
    // SAFETY: passed on to the caller.
    unsafe {
        match micro.rows {
            1 => kernel::<1, PAIRS>(micro, first),
            2 => kernel::<2, PAIRS>(micro, first),
            3 => kernel::<3, PAIRS>(micro, first),
            4 => kernel::<4, PAIRS>(micro, first),
            5 => kernel::<5, PAIRS>(micro, first),
            _ => kernel::<6, PAIRS>(micro, first),
        }
    }
}

/// Zero, of the same sign, for numbers below 2⁻¹²⁶.
#[inline(always)]
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
}

/// The two numbers of a word: what lies in its lower, and in its upper half.
#[inline(always)]
fn halves(word: f32) -> (f32, f32) {
    let bits = word.to_bits();
    (f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000))
}

/// `sum` and the products of one step of depth, or of two.
#[inline(always)]
fn step<const PAIRS: bool>(left: f32, right: f32, sum: f32) -> f32 {
    if !PAIRS {
        return left.mul_add(right, sum);
    }
    let ((left, odd_left), (right, odd_right)) = (halves(left), halves(right));
    let sum = flushed(flushed(odd_left).mul_add(flushed(odd_right), flushed(sum)));
    flushed(flushed(left).mul_add(flushed(right), sum))
}

#[inline(always)]
unsafe fn kernel<const ROWS: usize, const PAIRS: bool>(micro: &Micro, first: usize) {
    let mut sums = [[0.0_f32; COLS]; ROWS];
    // SAFETY: the caller promises the ranges.
    unsafe {
        if micro.continues {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = load_row(micro, i, first);
            }
        }
        let (row_step, depth_step) = if micro.columns { (1, micro.a_stride) } else { (micro.a_stride, 1) };
        for k in 0..micro.depth {
            let right = &*micro.b.add(k * PANEL_COLS + first).cast::<[f32; COLS]>();
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = *micro.a.add(i * row_step + k * depth_step);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = step::<PAIRS>(left, *right, *sum);
                }
            }
        }
        for (i, &sums) in sums.iter().enumerate() {
            store_row(micro, i, first, sums);
        }
    }
}

/// Row `row` of what `C` holds from column `first` on, zeros beyond its columns.
///
/// # Safety
/// The row is inside the microtile, whose pointers cover what its shape says.
#[inline(always)]
pub unsafe fn load_row(micro: &Micro, row: usize, first: usize) -> [f32; COLS] {
    let mut sums = [0.0; COLS];
    let count = COLS.min(micro.cols - first);
    // SAFETY: `count` keeps to the columns of `C`.
    unsafe { micro.c.add(row * micro.c_stride + first).copy_to_nonoverlapping(sums.as_mut_ptr(), count) };
    sums
}

/// Writes row `row` from column `first` on, with bias, ReLU, mask and rounding as in the contract.
///
/// # Safety
/// As [`load_row`].
#[inline(always)]
pub unsafe fn store_row(micro: &Micro, row: usize, first: usize, mut sums: [f32; COLS]) {
    let finish = &micro.finish;
    let count = COLS.min(micro.cols - first);
    // SAFETY: bias, mask and `C` cover the microtile, by the caller's promise; `count` keeps to its columns.
    unsafe {
        if !finish.bias.is_null() {
            let bias = std::slice::from_raw_parts(finish.bias.add(first), count);
            sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        }
        if finish.relu {
            sums.iter_mut().for_each(|sum| *sum = if *sum < 0.0 { 0.0 } else { *sum });
        }
        if !finish.mask.is_null() {
            let mask = std::slice::from_raw_parts(finish.mask.add(row * finish.mask_stride + first), count);
            sums.iter_mut().zip(mask).for_each(|(sum, mask)| *sum = if *mask > 0.0 { *sum } else { 0.0 });
        }
        if finish.round {
            sums.iter_mut().for_each(|sum| *sum = to_nearest_bf16(*sum));
        }
        micro.c.add(row * micro.c_stride + first).copy_from_nonoverlapping(sums.as_ptr(), count);
    }
}

/// Copies `rows` rows of `cols` elements, `source.1` elements apart, to rows of `VECTORS · 16` elements, zeros beyond.
///
/// # Safety
/// Source and target cover what the counts say; `cols <= VECTORS · 16`.
pub unsafe fn copy_rows<const VECTORS: usize>(
    (source, stride): (*const f32, usize),
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            let to = target.add(row * VECTORS * 16);
            std::ptr::copy_nonoverlapping(source.add(row * stride), to, cols);
            std::ptr::write_bytes(to.add(cols), 0, VECTORS * 16 - cols);
        }
    }
}

/// Adds the rows of strips of `len` rows to `sums`, 16 lanes a strip.
///
/// # Safety
/// Strips and sums are as long as the counts say.
pub unsafe fn add_strips(numbers: Numbers, strips: *const f32, (count, len): (usize, usize), sums: *mut f32) {
    for strip in 0..count {
        // SAFETY: the caller's promise; strips and sums are sixteen lanes wide.
        let (sums, rows) = unsafe {
            let rows = strips.add(strip * len * 16).cast::<[f32; 16]>();
            (&mut *sums.add(strip * 16).cast::<[f32; 16]>(), std::slice::from_raw_parts(rows, len))
        };
        for row in rows {
            for (sum, &word) in sums.iter_mut().zip(row) {
                *sum = match numbers {
                    Numbers::F32 => *sum + word,
                    Numbers::Bf16 => *sum + halves(word).0 + halves(word).1,
                };
            }
        }
    }
}

/// `panel[k·32 + c] = matrix(c, k)` for up to 32 rows, zeros beyond them.
pub fn transpose_rows(matrix: MatRef<'_>, panel: &mut [f32]) {
    panel.fill(0.0);
    // Sixteen columns of the matrix at a time: one cache line of each row, and of the panel what fits the first level.
    let depth = matrix.cols();
    for first in (0..depth).step_by(16) {
        let end = depth.min(first + 16);
        for c in 0..matrix.rows() {
            for (k, &value) in matrix.row(c)[first..end].iter().enumerate() {
                panel[(first + k) * PANEL_COLS + c] = value;
            }
        }
    }
}

/// Two rows as one of words: `word[c] = (low[c], high[c])`, zeros beyond both.
pub fn pair_row<const ROUND: bool>(low: &[f32], high: Option<&[f32]>, words: &mut [f32]) {
    words.fill(0.0);
    for (c, (word, &low)) in words.iter_mut().zip(low).enumerate() {
        *word = pair::<ROUND>(low, high.map_or(0.0, |high| high[c]));
    }
}

/// Neighbours of a row as words: `word[i] = (values[2i], values[2i + 1])`, zero behind the last.
pub fn pair_neighbours<const ROUND: bool>(values: &[f32], words: &mut [f32]) {
    for (word, pair_of) in words.iter_mut().zip(values.chunks(2)) {
        *word = pair::<ROUND>(pair_of[0], pair_of.get(1).copied().unwrap_or(0.0));
    }
}

/// The upper halves of two numbers in one word, the first in its lower half.
fn pair<const ROUND: bool>(low: f32, high: f32) -> f32 {
    let upper = |value: f32| (if ROUND { to_nearest_bf16(value) } else { value }).to_bits() >> 16;
    f32::from_bits(upper(high) << 16 | upper(low))
}
