//! The microkernel for AVX2 with FMA: 6 × 16 sums in registers, the chains of [`super::fallback`].

use super::fallback::{self, COLS, GROUPS, PAIRS, STEPS, by_rows, load_row, store_row};
use super::k_loop::{Walk, flushed_256, numbers_256, widened_256};
use super::{GROUP, Micro, PANEL_COLS, Variant};
use crate::simd::avx2::{lanes, transpose};
use crate::simd::unrolled;
use headlong_device::MatRef;
use std::arch::x86_64::{
    __m256, _CMP_LT_OQ, _CMP_UNORD_Q, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps,
    _mm256_and_si256, _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_loadu_ps, _mm256_maskload_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_srli_epi32, _mm256_storeu_ps,
};

/// Multiplies.
///
/// # Safety
/// `micro`'s pointers cover what its shape says; `1 <= rows <= 6`, `1 <= cols <= 32`; the processor
/// has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn run(micro: &Micro) {
    for first in (0..micro.cols).step_by(COLS) {
        // SAFETY: passed on to the caller; `first` is inside the panel.
        unsafe {
            match micro.variant {
                Variant::F32 => by_rows!(micro.rows, kernel, STEPS, micro, first),
                Variant::WidenedTiles => by_rows!(micro.rows, kernel, GROUPS, micro, first),
                _ => by_rows!(micro.rows, kernel, PAIRS, micro, first),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
#[inline(never)] // Together, kernels share one frame, and spill.
unsafe fn kernel<const ROWS: usize, const ORDER: u8>(micro: &Micro, first: usize) {
    let zero = _mm256_setzero_ps();
    let mut sums = [[zero; 2]; ROWS];
    // SAFETY: the caller promises the ranges; panels have all their columns.
    unsafe {
        if micro.continues {
            unrolled!(i < ROWS {
                let row = load_row(micro, i, first);
                sums[i] = [_mm256_loadu_ps(row.as_ptr()), _mm256_loadu_ps(row.as_ptr().add(8))];
            });
        }
        match ORDER {
            STEPS => numbers_256(&Walk::new(micro, first), &mut sums),
            PAIRS => widened_256(&Walk::new(micro, first), &mut sums),
            _ => groups(&Walk::new(micro, first), &mut sums),
        }
        unrolled!(i < ROWS {
            let mut row = [0.0; COLS];
            _mm256_storeu_ps(row.as_mut_ptr(), sums[i][0]);
            _mm256_storeu_ps(row.as_mut_ptr().add(8), sums[i][1]);
            store_row(micro, i, first, row, |row| round_row(row));
        });
    }
}

/// Adds groups of [`GROUP`] steps: the even ones from zero, the odd ones from zero, and their sum
/// to `sums`.
///
/// # Safety
/// As the loops of [`super::k_loop`].
#[target_feature(enable = "avx2,fma")]
#[inline(never)] // Inlined, it leaves the loops of other orders no registers.
unsafe fn groups<const ROWS: usize>(walk: &Walk, sums: &mut [[__m256; 2]; ROWS]) {
    let zero = _mm256_setzero_ps();
    for start in (0..walk.k).step_by(GROUP) {
        let mut parts = [[[zero; 2]; ROWS]; 2];
        for (odd, part) in parts.iter_mut().enumerate() {
            let walk = walk.every_second(start + odd);
            // SAFETY: the steps lie inside the microtile's factors.
            unsafe { flushed_256(&walk, part) };
            if walk.k < GROUP / 2 {
                // Zeros are multiplied after the last step, and their products added.
                part.iter_mut().flatten().for_each(|sum| *sum = _mm256_add_ps(*sum, zero));
            }
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                let part = flushed(_mm256_add_ps(parts[0][i][v], parts[1][i][v]));
                *sum = flushed(_mm256_add_ps(flushed(*sum), part));
            }
        }
    }
}

/// Zeros, of the same sign, for numbers below 2⁻¹²⁶.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn flushed(values: __m256) -> __m256 {
    let sign = _mm256_set1_ps(-0.0);
    let least = _mm256_set1_ps(f32::MIN_POSITIVE);
    let is_small = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_andnot_ps(sign, values), least);
    _mm256_blendv_ps(values, _mm256_and_ps(values, sign), is_small)
}

/// Each of a row's numbers to the nearest bf16, ties to even, as an f32.
///
/// Note: left to itself the compiler rounds one by one.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn round_row(row: &mut [f32; COLS]) {
    for half in row.as_chunks_mut::<8>().0 {
        // SAFETY: eight numbers are read and written.
        unsafe {
            let values = _mm256_loadu_ps(half.as_ptr());
            let bits = _mm256_castps_si256(values);
            let is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), is_odd);
            let upper = _mm256_and_si256(up, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
            let rounded =
                _mm256_blendv_ps(_mm256_castsi256_ps(upper), _mm256_set1_ps(f32::NAN), is_nan);
            _mm256_storeu_ps(half.as_mut_ptr(), rounded);
        }
    }
}

/// Copies `rows` rows of `cols` elements, `source.1` elements apart, to rows of `VECTORS · 16`
/// elements, zeros beyond.
///
/// # Safety
/// The processor has AVX2; source and target cover what the counts say; `cols <= VECTORS · 16`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn copy_rows<const VECTORS: usize>(
    (source, stride): (*const f32, usize),
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    for first in (0..VECTORS * 16).step_by(8) {
        let mask = lanes(cols.saturating_sub(first));
        for row in 0..rows {
            // SAFETY: the mask keeps to the row's columns, the caller to the rows.
            unsafe {
                let from = source.add(row * stride).wrapping_add(first);
                let values = if first + 8 <= cols {
                    _mm256_loadu_ps(from)
                } else {
                    _mm256_maskload_ps(from, mask)
                };
                _mm256_storeu_ps(target.add(row * VECTORS * 16 + first), values);
            }
        }
    }
}

/// `panel[k·32 + c] = matrix(c, k)` for up to 32 rows, zeros beyond them.
///
/// # Safety
/// The processor has AVX2; the panel has 32 elements for each column of the matrix.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn transpose_rows(matrix: MatRef<'_>, panel: *mut f32) {
    let cols = matrix.cols();
    for first in (0..cols).step_by(8) {
        let mask = lanes(cols - first);
        for c in (0..PANEL_COLS).step_by(8) {
            let block: [__m256; 8] = std::array::from_fn(|i| match c + i {
                // SAFETY: the row exists, and the mask keeps to its columns.
                row if row < matrix.rows() => unsafe {
                    _mm256_maskload_ps(matrix.row(row)[first..].as_ptr(), mask)
                },
                _ => _mm256_setzero_ps(),
            });
            for (k, values) in transpose(&block).iter().enumerate().take(cols - first) {
                // SAFETY: row `first + k` of the panel exists.
                unsafe { _mm256_storeu_ps(panel.add((first + k) * PANEL_COLS + c), *values) };
            }
        }
    }
}

/// [`fallback::add_strips`], compiled for AVX2.
///
/// # Safety
/// As there, and the processor has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn add_strips(strips: *const f32, (count, len): (usize, usize), sums: *mut f32) {
    // SAFETY: passed on to the caller.
    unsafe { fallback::add_strips(strips, (count, len), sums) };
}

/// [`fallback::pair_row`], compiled for AVX2.
#[target_feature(enable = "avx2,fma")]
pub fn pair_row<const ROUND: bool>(low: &[f32], high: Option<&[f32]>, words: &mut [f32]) {
    fallback::pair_row::<ROUND>(low, high, words);
}

/// [`fallback::pair_neighbours`], compiled for AVX2.
#[target_feature(enable = "avx2,fma")]
pub fn pair_neighbours<const ROUND: bool>(values: &[f32], words: &mut [f32]) {
    fallback::pair_neighbours::<ROUND>(values, words);
}
