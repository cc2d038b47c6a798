//! AVX-512 kernels of one sample.

use super::Features;
use std::arch::x86_64::{
    __m512, __mmask16, _MM_HINT_T0, _MM_HINT_T1, _mm_mask_storeu_ps, _mm_prefetch, _mm512_add_ps,
    _mm512_castpd_ps, _mm512_castps_pd, _mm512_extractf32x4_ps, _mm512_fmadd_ps, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_shuffle_f32x4, _mm512_shuffle_ps,
    _mm512_unpackhi_pd, _mm512_unpacklo_pd,
};
use std::mem::MaybeUninit;

/// Most rows of `F` that [`gradients`] takes: their matrix of gradients lies on the stack.
pub const MAX_FEATURES: usize = 64;

/// Runs `body` with `i` = 0, 1, … below `n`, written out, so that accumulators stay in registers.
macro_rules! unrolled {
    ($i:ident < $n:ident $body:block) => { unrolled!($i < $n $body: 0 1 2 3 4 5 6 7 8 9 10 11 12 13) };
    ($i:ident < $n:ident $body:block: $($index:literal)*) => {$(
        if $index < $n {
            let $i = $index;
            $body
        }
    )*};
}

fn lanes(count: usize) -> __mmask16 {
    ((1_u32 << count.min(16)) - 1) as __mmask16
}

/// Start of row `index` of `F`.
#[inline]
fn row(features: &Features<'_>, index: usize) -> *const f32 {
    if index == 0 {
        features.bottom.as_ptr()
    } else {
        features.vectors.as_ptr().wrapping_add((index - 1) * features.bottom.len())
    }
}

/// Products of all pairs: blocks of 4 × 4 pairs, sixteen sums at once, so that each loaded vector serves four of them
/// and sixteen sums of lanes are taken together.
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
    let rows = |first: usize| std::array::from_fn::<_, 4, _>(|r| row(features, (first + r).min(count - 1)));
    for high in (0..count).step_by(4) {
        for low in (0..=high).step_by(4) {
            for line in ahead.next().unwrap_or_default().chunks(16) {
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
            }
            // SAFETY: all rows exist and have `dim` elements.
            let sums = unsafe {
                match low == high {
                    true => block::<true>(&rows(high), &rows(high), dim),
                    false => block::<false>(&rows(high), &rows(low), dim),
                }
            };
            // SAFETY: as the caller promises, row `i` has its `i` products from `i(i-1)/2` on; `store` keeps to them.
            unsafe { store(products.as_mut_ptr(), (high, low), count, sums) };
        }
    }
}

/// The products of four rows with four: element `4r + s` is `high[r] · low[s]`. On the diagonal only `s < r` counts.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn block<const DIAGONAL: bool>(high: &[*const f32; 4], low: &[*const f32; 4], dim: usize) -> __m512 {
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
    _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)))
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

/// `G·F`: for up to fourteen rows and two vectors of columns at a time, one chain over all rows of `F`.
///
/// # Safety
/// The processor has AVX-512; there are at most [`MAX_FEATURES`] rows; the lists are as long as the features ask for.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn gradients(
    features: &Features<'_>,
    gradient: &[f32],
    (d_bottom, d_vectors): (&mut [f32], &mut [f32]),
    ahead: &[f32],
) {
    let (count, dim) = (features.count(), features.bottom.len());
    let mut factors = MaybeUninit::<[f32; MAX_FEATURES * MAX_FEATURES]>::uninit();
    let factors = factors.as_mut_ptr().cast::<f32>();
    // SAFETY: `count` rows and columns of at most MAX_FEATURES are filled.
    unsafe { symmetric(gradient, count, factors) };
    let parts = count.div_ceil(14);
    for part in 0..parts {
        let (first, end) = (part * count / parts, (part + 1) * count / parts);
        let ahead = ahead.as_ptr().wrapping_add(part * ahead.len() / parts);
        let task = Rows {
            ahead,
            features,
            factors,
            count,
            first,
            d_bottom: d_bottom.as_mut_ptr(),
            d_vectors: d_vectors.as_mut_ptr(),
        };
        // SAFETY: the rows exist, and both lists have `dim` elements for each of theirs.
        unsafe {
            match end - first {
                1 => all_columns::<1>(&task, dim),
                2 => all_columns::<2>(&task, dim),
                3 => all_columns::<3>(&task, dim),
                4 => all_columns::<4>(&task, dim),
                5 => all_columns::<5>(&task, dim),
                6 => all_columns::<6>(&task, dim),
                7 => all_columns::<7>(&task, dim),
                8 => all_columns::<8>(&task, dim),
                9 => all_columns::<9>(&task, dim),
                10 => all_columns::<10>(&task, dim),
                11 => all_columns::<11>(&task, dim),
                12 => all_columns::<12>(&task, dim),
                13 => all_columns::<13>(&task, dim),
                _ => all_columns::<14>(&task, dim),
            }
        }
    }
}

/// Writes `G` in full: `factors[i·64 + j]` is the gradient of the product of rows i and j, 0 on the diagonal.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn symmetric(gradient: &[f32], count: usize, factors: *mut f32) {
    let mut rest = gradient;
    for i in 0..count {
        let (values, tail) = rest.split_at(i);
        for (j, &value) in values.iter().enumerate() {
            // SAFETY: `i` and `j` are below `count`, at most MAX_FEATURES.
            unsafe {
                *factors.add(i * MAX_FEATURES + j) = value;
                *factors.add(j * MAX_FEATURES + i) = value;
            }
        }
        // SAFETY: as above.
        unsafe { *factors.add(i * MAX_FEATURES + i) = 0.0 };
        rest = tail;
    }
}

/// Rows `first ..` of the product `G·F`.
struct Rows<'a> {
    features: &'a Features<'a>,
    factors: *const f32,
    count: usize,
    first: usize,
    d_bottom: *mut f32,
    d_vectors: *mut f32,
    /// Read by the next sample: one cache line is asked for with each row and pair of vectors, and one of what it writes.
    ahead: *const f32,
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn all_columns<const ROWS: usize>(task: &Rows<'_>, dim: usize) {
    let mut col = 0;
    while col < dim {
        // SAFETY: `col` is below `dim`; masks keep to it.
        unsafe {
            if dim - col > 16 {
                some_columns::<ROWS, 2>(task, dim, col);
            } else {
                some_columns::<ROWS, 1>(task, dim, col);
            }
        }
        col += 32;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn some_columns<const ROWS: usize, const VECTORS: usize>(task: &Rows<'_>, dim: usize, col: usize) {
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(dim - col - 16 * v));
    let target = |index: usize| match index {
        0 => task.d_bottom.wrapping_add(col),
        _ => task.d_vectors.wrapping_add((index - 1) * dim + col),
    };
    // SAFETY: rows of `F` and of the gradients have `dim` elements, `masks` keep to them; `factors` has `count` rows.
    unsafe {
        if task.first == 0 {
            sums[0][0] = _mm512_maskz_loadu_ps(masks[0], target(0));
            if VECTORS > 1 {
                sums[0][VECTORS - 1] = _mm512_maskz_loadu_ps(masks[VECTORS - 1], target(0).add(16));
            }
        }
        let mut factors = task.factors.add(task.first);
        let mut ahead = task.ahead.wrapping_add(col / 32 * task.count * 16);
        for j in 0..task.count {
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            ahead = ahead.wrapping_add(16);
            let values = row(task.features, j).add(col);
            let low = _mm512_maskz_loadu_ps(masks[0], values);
            let high =
                if VECTORS > 1 { _mm512_maskz_loadu_ps(masks[VECTORS - 1], values.add(16)) } else { zero };
            unrolled!(i < ROWS {
                let factor = _mm512_set1_ps(*factors.add(i));
                sums[i][0] = _mm512_fmadd_ps(factor, low, sums[i][0]);
                if VECTORS > 1 {
                    sums[i][VECTORS - 1] = _mm512_fmadd_ps(factor, high, sums[i][VECTORS - 1]);
                }
            });
            factors = factors.add(MAX_FEATURES);
        }
        unrolled!(i < ROWS {
            let out = target(task.first + i);
            _mm512_mask_storeu_ps(out, masks[0], sums[i][0]);
            if VECTORS > 1 {
                _mm512_mask_storeu_ps(out.add(16), masks[VECTORS - 1], sums[i][VECTORS - 1]);
            }
        });
    }
}
