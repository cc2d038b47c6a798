//! The microkernel for AVX2 with FMA: 6 × 16 sums in registers, the chains of [`super::fallback`].

use super::fallback::{COLS, load_row, store_row};
use super::{Micro, Numbers, PANEL_COLS};
use crate::vector::unrolled;
use std::arch::x86_64::{
    __m256, _CMP_NLT_UQ, _mm256_and_ps, _mm256_andnot_ps, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_cmp_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_or_ps, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

/// Multiplies.
///
/// # Safety
/// `micro`'s pointers cover what its shape says; `1 <= rows <= 6`, `1 <= cols <= 32`; the processor has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn run(micro: &Micro) {
    for first in (0..micro.cols).step_by(COLS) {
        // SAFETY: passed on to the caller; `first` is inside the panel.
        unsafe {
            match (micro.numbers, micro.rows) {
                (Numbers::F32, 1) => kernel::<1, false>(micro, first),
                (Numbers::F32, 2) => kernel::<2, false>(micro, first),
                (Numbers::F32, 3) => kernel::<3, false>(micro, first),
                (Numbers::F32, 4) => kernel::<4, false>(micro, first),
                (Numbers::F32, 5) => kernel::<5, false>(micro, first),
                (Numbers::F32, _) => kernel::<6, false>(micro, first),
                (Numbers::Bf16, 1) => kernel::<1, true>(micro, first),
                (Numbers::Bf16, 2) => kernel::<2, true>(micro, first),
                (Numbers::Bf16, 3) => kernel::<3, true>(micro, first),
                (Numbers::Bf16, 4) => kernel::<4, true>(micro, first),
                (Numbers::Bf16, 5) => kernel::<5, true>(micro, first),
                (Numbers::Bf16, _) => kernel::<6, true>(micro, first),
            }
        }
    }
}

/// Zeros, of the same sign, in place of numbers below 2⁻¹²⁶.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn flushed(values: __m256) -> __m256 {
    let sign = _mm256_set1_ps(-0.0);
    let magnitude = _mm256_andnot_ps(sign, values);
    let kept = _mm256_cmp_ps::<_CMP_NLT_UQ>(magnitude, _mm256_set1_ps(f32::MIN_POSITIVE));
    _mm256_and_ps(values, _mm256_or_ps(sign, kept))
}

/// The two numbers of each word, flushed: what lies in its lower, and in its upper half.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn halves(words: __m256) -> (__m256, __m256) {
    let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(words)));
    let upper = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32));
    (flushed(even), flushed(_mm256_and_ps(words, upper)))
}

/// Two steps of depth, the odd one first; `sum` is flushed.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn pair(left: (__m256, __m256), right: (__m256, __m256), sum: __m256) -> __m256 {
    let sum = flushed(_mm256_fmadd_ps(left.1, right.1, sum));
    flushed(_mm256_fmadd_ps(left.0, right.0, sum))
}

#[target_feature(enable = "avx2,fma")]
unsafe fn kernel<const ROWS: usize, const PAIRS: bool>(micro: &Micro, first: usize) {
    let zero = _mm256_setzero_ps();
    let mut sums = [[zero; 2]; ROWS];
    let (row_step, depth_step) = if micro.columns { (1, micro.a_stride) } else { (micro.a_stride, 1) };
    // SAFETY: the caller promises the ranges; panels have all their columns.
    unsafe {
        if micro.continues {
            unrolled!(i < ROWS {
                let row = load_row(micro, i, first);
                sums[i] = [_mm256_loadu_ps(row.as_ptr()), _mm256_loadu_ps(row.as_ptr().add(8))];
                if PAIRS && micro.depth > 0 {
                    sums[i] = [flushed(sums[i][0]), flushed(sums[i][1])];
                }
            });
        }
        let (mut a, mut b) = (micro.a, micro.b.add(first));
        for _ in 0..micro.depth {
            let right = [_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))];
            if PAIRS {
                let right = [halves(right[0]), halves(right[1])];
                unrolled!(i < ROWS {
                    let left = halves(_mm256_set1_ps(*a.add(i * row_step)));
                    sums[i] = [pair(left, right[0], sums[i][0]), pair(left, right[1], sums[i][1])];
                });
            } else {
                unrolled!(i < ROWS {
                    let left = _mm256_set1_ps(*a.add(i * row_step));
                    sums[i][0] = _mm256_fmadd_ps(left, right[0], sums[i][0]);
                    sums[i][1] = _mm256_fmadd_ps(left, right[1], sums[i][1]);
                });
            }
            a = a.wrapping_add(depth_step);
            b = b.wrapping_add(PANEL_COLS);
        }
        unrolled!(i < ROWS {
            let mut row = [0.0; COLS];
            _mm256_storeu_ps(row.as_mut_ptr(), sums[i][0]);
            _mm256_storeu_ps(row.as_mut_ptr().add(8), sums[i][1]);
            store_row(micro, i, first, row);
        });
    }
}
