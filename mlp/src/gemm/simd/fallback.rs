//! The microkernel for processors without AVX2: the same chains, vectorised by the compiler where
//! it can.

use super::{GROUP, Micro, PANEL_COLS, Variant};
use headlong_device::{MatRef, bf16};

/// Rows of the largest microtile.
pub const MAX_ROWS: usize = 6;

/// Columns of a microtile: two 256-bit vectors.
pub const COLS: usize = 16;

/// What the loop over k adds to what, as a constant of kernels: one step after the other, two at a
/// time, or groups of [`GROUP`].
pub const STEPS: u8 = 0;
pub const PAIRS: u8 = 1;
pub const GROUPS: u8 = 2;

/// Calls `$kernel::<ROWS, $order>` for 1 to 6 rows.
macro_rules! by_rows {
    ($rows:expr, $kernel:ident, $order:ident, $($argument:expr),*) => {
        match $rows {
            1 => $kernel::<1, $order>($($argument),*),
            2 => $kernel::<2, $order>($($argument),*),
            3 => $kernel::<3, $order>($($argument),*),
            4 => $kernel::<4, $order>($($argument),*),
            5 => $kernel::<5, $order>($($argument),*),
            _ => $kernel::<6, $order>($($argument),*),
        }
    };
}
pub(super) use by_rows;

/// The baseline of the architecture.
///
/// # Safety
/// `micro`'s pointers cover what its shape says; `1 <= rows <= 6`, `1 <= cols <= 32`.
pub unsafe fn run(micro: &Micro) {
    for first in (0..micro.cols).step_by(COLS) {
        // SAFETY: passed on to the caller; `first` is inside the panel.
        unsafe {
            match micro.variant {
                Variant::Widened => by_rows!(micro.rows, kernel, PAIRS, micro, first),
                Variant::WidenedTiles => by_rows!(micro.rows, kernel, GROUPS, micro, first),
                _ => by_rows!(micro.rows, kernel, STEPS, micro, first),
            }
        }
    }
}

/// Zero, of the same sign, for numbers below 2⁻¹²⁶.
#[inline(always)]
fn flushed(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(value) } else { value }
}

/// `sum + left · right` of bf16, with zeros for numbers below 2⁻¹²⁶, as processors decide what is
/// below: by the result rounded to 24 bits with any exponent, not to what f32 has down there.
#[inline(always)]
fn flushed_step(lhs: f32, rhs: f32, sum: f32) -> f32 {
    /// Halfway between the last number of 24 bits below 2⁻¹²⁶ and 2⁻¹²⁶.
    const TINY: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1 << 25) as f64);
    let (lhs, rhs, sum) = (flushed(lhs), flushed(rhs), flushed(sum));
    let result = lhs.mul_add(rhs, sum);
    // Near the bound, f64 holds the result in full: products have 16 bits.
    let is_tiny = || (f64::from(lhs) * f64::from(rhs) + f64::from(sum)).abs() < TINY;
    if result.abs() == f32::MIN_POSITIVE && is_tiny() {
        0.0_f32.copysign(result)
    } else {
        flushed(result)
    }
}

#[inline(never)] // Together, kernels share one frame, and spill.
unsafe fn kernel<const ROWS: usize, const ORDER: u8>(micro: &Micro, first: usize) {
    let mut sums = [[0.0_f32; COLS]; ROWS];
    // SAFETY: the caller promises the ranges.
    unsafe {
        if micro.continues {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = load_row(micro, i, first);
            }
        }
        match ORDER {
            STEPS => (0..micro.k).for_each(|k| step(micro, first, k, &mut sums, f32::mul_add)),
            PAIRS => {
                // The odd one of two steps first.
                (0..micro.k.next_multiple_of(2))
                    .for_each(|at| step(micro, first, at ^ 1, &mut sums, flushed_step));
            }
            _ => {
                for start in (0..micro.k).step_by(GROUP) {
                    let mut parts = [[[0.0_f32; COLS]; ROWS]; 2];
                    for k in start..start + GROUP {
                        step(micro, first, k, &mut parts[k % 2], flushed_step);
                    }
                    let [even, odd] = &parts;
                    let parts = even.iter().zip(odd);
                    for (sums, (even, odd)) in sums.iter_mut().zip(parts) {
                        for (sum, (even, odd)) in sums.iter_mut().zip(even.iter().zip(odd)) {
                            *sum = flushed(flushed(*sum) + flushed(even + odd));
                        }
                    }
                }
            }
        }
        for (i, &sums) in sums.iter().enumerate() {
            store_row(micro, i, first, sums, |sums| *sums = sums.map(bf16::nearest));
        }
    }
}

/// One step of k of all rows, where `multiply_add(lhs, rhs, sum)` is the new sum; after the last,
/// zeros are multiplied.
///
/// # Safety
/// The step is inside the panel, whose other sizes `micro` says.
#[inline(always)]
unsafe fn step<const ROWS: usize>(
    micro: &Micro,
    first: usize,
    k: usize,
    sums: &mut [[f32; COLS]; ROWS],
    multiply_add: impl Fn(f32, f32, f32) -> f32,
) {
    let (row_step, k_step) = if micro.columns { (1, micro.a_stride) } else { (micro.a_stride, 1) };
    // SAFETY: the caller's promise.
    unsafe {
        let rhs = &*micro.b.add(k * PANEL_COLS + first).cast::<[f32; COLS]>();
        for (i, sums) in sums.iter_mut().enumerate() {
            let lhs = if k < micro.k { *micro.a.add(i * row_step + k * k_step) } else { 0.0 };
            for (sum, rhs) in sums.iter_mut().zip(rhs) {
                *sum = multiply_add(lhs, *rhs, *sum);
            }
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
    unsafe {
        micro.c.add(row * micro.c_stride + first).copy_to_nonoverlapping(sums.as_mut_ptr(), count)
    };
    sums
}

/// Writes row `row` from column `first` on, with bias, ReLU, mask and rounding, by `round`, as in
/// the contract.
///
/// # Safety
/// As [`load_row`].
#[inline(always)]
pub unsafe fn store_row(
    micro: &Micro,
    row: usize,
    first: usize,
    mut sums: [f32; COLS],
    round: impl Fn(&mut [f32; COLS]),
) {
    let epilogue = &micro.epilogue;
    let count = COLS.min(micro.cols - first);
    // SAFETY: bias, mask and `C` cover the microtile, by the caller's promise; `count` keeps to its
    // columns.
    unsafe {
        if !epilogue.bias.is_null() {
            let bias = std::slice::from_raw_parts(epilogue.bias.add(first), count);
            sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
        }
        if epilogue.relu {
            sums.iter_mut().for_each(|sum| *sum = if *sum < 0.0 { 0.0 } else { *sum });
        }
        if !epilogue.mask.is_null() {
            let mask = std::slice::from_raw_parts(
                epilogue.mask.add(row * epilogue.mask_stride + first),
                count,
            );
            sums.iter_mut()
                .zip(mask)
                .for_each(|(sum, mask)| *sum = if *mask > 0.0 { *sum } else { 0.0 });
        }
        if epilogue.round {
            round(&mut sums);
        }
        micro.c.add(row * micro.c_stride + first).copy_from_nonoverlapping(sums.as_ptr(), count);
    }
}

/// Copies `rows` rows of `cols` elements, `source.1` elements apart, to rows of `VECTORS · 16`
/// elements, zeros beyond.
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
#[inline(always)]
pub unsafe fn add_strips(strips: *const f32, (count, len): (usize, usize), sums: *mut f32) {
    for strip in 0..count {
        // SAFETY: the caller's promise; strips and sums are sixteen lanes wide.
        let (sums, rows) = unsafe {
            let rows = strips.add(strip * len * 16).cast::<[f32; 16]>();
            (&mut *sums.add(strip * 16).cast::<[f32; 16]>(), std::slice::from_raw_parts(rows, len))
        };
        for row in rows {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}

/// `panel[k·32 + c] = matrix(c, k)` for up to 32 rows, zeros beyond them.
pub fn transpose_rows(matrix: MatRef<'_>, panel: &mut [f32]) {
    panel.fill(0.0);
    // Sixteen columns of the matrix at a time: one cache line of each row, and of the panel what
    // fits the first level.
    let cols = matrix.cols();
    for first in (0..cols).step_by(16) {
        let end = cols.min(first + 16);
        for c in 0..matrix.rows() {
            for (k, &value) in matrix.row(c)[first..end].iter().enumerate() {
                panel[(first + k) * PANEL_COLS + c] = value;
            }
        }
    }
}

/// Two rows as one of words: `word[c] = (low[c], high[c])`, zeros beyond both.
#[inline(always)]
pub fn pair_row<const ROUND: bool>(low: &[f32], high: Option<&[f32]>, words: &mut [f32]) {
    let (words, rest) = words.split_at_mut(low.len());
    match high {
        Some(high) => {
            for ((word, low), high) in words.iter_mut().zip(low).zip(high) {
                *word = pair::<ROUND>(*low, *high);
            }
        }
        None => words.iter_mut().zip(low).for_each(|(word, low)| *word = pair::<ROUND>(*low, 0.0)),
    }
    rest.fill(0.0);
}

/// Neighbours of a row as words: `word[i] = (values[2i], values[2i + 1])`, zero after the last.
#[inline(always)]
pub fn pair_neighbours<const ROUND: bool>(values: &[f32], words: &mut [f32]) {
    let (pairs, last) = values.as_chunks::<2>();
    for (word, [low, high]) in words.iter_mut().zip(pairs) {
        *word = pair::<ROUND>(*low, *high);
    }
    if let [low] = last {
        words[pairs.len()] = pair::<ROUND>(*low, 0.0);
    }
}

/// The upper halves of two numbers in one word, the first in its lower half.
#[inline(always)]
fn pair<const ROUND: bool>(low: f32, high: f32) -> f32 {
    let upper = |value: f32| (if ROUND { bf16::nearest(value) } else { value }).to_bits() >> 16;
    f32::from_bits(upper(high) << 16 | upper(low))
}
