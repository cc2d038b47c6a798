//! The AVX-512 kernel for the products of long vectors: sixteen lanes a sum.

use super::Features;
use crate::simd::avx512::lanes;
use headlong_device::simd::prefetch;
use std::arch::x86_64::{
    __m512, _mm_mask_storeu_ps, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd,
    _mm512_extractf32x4_ps, _mm512_fmadd_ps, _mm512_maskz_loadu_ps, _mm512_setzero_ps,
    _mm512_shuffle_f32x4, _mm512_shuffle_ps, _mm512_unpackhi_pd, _mm512_unpacklo_pd,
};

/// Products of all pairs: blocks of 4 × 4 pairs, sixteen sums at once, so that each loaded vector
/// serves four of them and sixteen sums of lanes are taken together.
///
/// # Safety
/// The processor has AVX-512; `products` has one element per pair.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn products(features: &Features<'_>, products: &mut [f32], ahead: &[f32]) {
    let (count, dim) = (features.count(), features.bottom.len());
    let blocks = count.div_ceil(4) * (count.div_ceil(4) + 1) / 2;
    // A few cache lines of the next sample with each block.
    let mut ahead = ahead.chunks(ahead.len().div_ceil(blocks).max(1));
    // Rows beyond the last stand in for it; their products are not stored.
    let rows = |first: usize| {
        std::array::from_fn::<_, 4, _>(|r| features.start((first + r).min(count - 1)))
    };
    for high in (0..count).step_by(4) {
        for low in (0..=high).step_by(4) {
            for line in ahead.next().unwrap_or_default().chunks(16) {
                prefetch(line, 0);
            }
            // SAFETY: all rows exist and have `dim` elements.
            let sums = unsafe {
                if low == high {
                    block::<true>(&rows(high), &rows(high), dim)
                } else {
                    block::<false>(&rows(high), &rows(low), dim)
                }
            };
            // SAFETY: as the caller promises, row `i` has its `i` products from `i(i-1)/2` on;
            // `store` keeps to them.
            unsafe { store(products.as_mut_ptr(), (high, low), count, sums) };
        }
    }
}

/// The products of four rows with four: element `4r + s` is `high[r] · low[s]`. On the diagonal
/// only `s < r` counts.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn block<const DIAGONAL: bool>(
    high: &[*const f32; 4],
    low: &[*const f32; 4],
    dim: usize,
) -> __m512 {
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; 4]; 4];
    let mut first = 0;
    while first < dim {
        let mask = lanes(dim - first);
        let (mut x, mut y) = ([zero; 4], [zero; 4]);
        // SAFETY: the mask keeps to the rows' elements.
        unsafe {
            for i in 0..4 {
                x[i] = _mm512_maskz_loadu_ps(mask, high[i].add(first));
                y[i] = if DIAGONAL { x[i] } else { _mm512_maskz_loadu_ps(mask, low[i].add(first)) };
            }
        }
        for r in 0..4 {
            for s in 0..4 {
                if !DIAGONAL || s < r {
                    sums[r][s] = _mm512_fmadd_ps(x[r], y[s], sums[r][s]);
                }
            }
        }
        first += 16;
    }
    let column = |s: usize| quarter(halve(sums[0][s], sums[1][s]), halve(sums[2][s], sums[3][s]));
    let (p, q, r, s) = (column(0), column(1), column(2), column(3));
    let (even, odd) = (pairs(p, q), pairs(r, s));
    _mm512_add_ps(_mm512_shuffle_ps::<0x88>(even, odd), _mm512_shuffle_ps::<0xDD>(even, odd))
}

/// Lanes l + (l + 8) of two vectors, side by side.
#[target_feature(enable = "avx512f")]
#[inline]
fn halve(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b))
}

/// Lanes l + (l + 4) of four vectors, side by side.
#[target_feature(enable = "avx512f")]
#[inline]
fn quarter(ab: __m512, cd: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd))
}

/// Lanes l + (l + 2) of each 128-bit part of two vectors, side by side.
#[target_feature(enable = "avx512f")]
#[inline]
fn pairs(p: __m512, q: __m512) -> __m512 {
    let (p, q) = (_mm512_castps_pd(p), _mm512_castps_pd(q));
    _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(p, q)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)),
    )
}

/// Stores the part of a block that lies below the diagonal.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn store(products: *mut f32, (high, low): (usize, usize), count: usize, sums: __m512) {
    macro_rules! store_row {
        ($($r:literal)*) => {$(
            let i = high + $r;
            if i < count && low < i {
                // SAFETY: columns `low .. min(low + 4, i)` of row `i`, by the mask.
                unsafe {
                    let target = products.add(i * (i - 1) / 2 + low);
                    let mask = (lanes(i - low) & 0xF) as u8;
                    _mm_mask_storeu_ps(target, mask, _mm512_extractf32x4_ps::<$r>(sums));
                }
            }
        )*};
    }
    store_row!(0 1 2 3);
}
