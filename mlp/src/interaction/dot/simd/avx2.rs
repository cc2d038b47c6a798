//! AVX2 kernels of one sample: those of [`super::avx512`] with up to 6 × 16 sums in registers.

use super::{Features, MAX_DEPTH, MAX_FEATURES, Triangle};
use crate::simd::avx2::{lanes, transpose};
use crate::simd::unrolled;
use std::arch::x86_64::{
    __m128, __m256, __m256i, _mm_maskstore_ps, _mm_unpacklo_ps, _mm256_add_ps, _mm256_broadcast_ss,
    _mm256_castpd_ps, _mm256_castps_pd, _mm256_castps256_ps128, _mm256_castsi256_si128,
    _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_maskload_ps,
    _mm256_maskstore_ps, _mm256_permute2f128_ps, _mm256_setzero_ps, _mm256_shuffle_ps,
    _mm256_storeu_ps, _mm256_unpackhi_pd, _mm256_unpacklo_pd,
};
use std::mem::MaybeUninit;

/// Rows of the largest group: twelve sums, two vectors, a factor, and one register to spare.
const GROUP: usize = 6;

/// Calls `kernel::<ROWS, …>` for a number of rows from 1 to 6.
macro_rules! by_rows {
    ($rows:expr, $kernel:ident $arguments:tt) => {
        by_rows!($rows, $kernel $arguments: 1 2 3 4 5 6)
    };
    ($rows:expr, $kernel:ident $arguments:tt: $($literal:literal)*) => {
        match $rows {
            $($literal => $kernel::<$literal> $arguments,)*
            _ => unreachable!("rows are cut into groups of at most six"),
        }
    };
}

/// Products of all pairs of short rows: `F` times its transpose, a group of rows at a time, as far
/// as columns lie below the diagonal.
///
/// # Safety
/// The processor has AVX2 and FMA; there are at most [`MAX_FEATURES`] rows of at most 64 elements;
/// `products` has one element per pair.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn short_products(features: &Features<'_>, products: &mut [f32]) {
    let count = features.count();
    if count < 2 {
        return;
    }
    let mut columns = MaybeUninit::<[f32; MAX_DEPTH * MAX_FEATURES]>::uninit();
    let columns = columns.as_mut_ptr().cast::<f32>();
    let stride = count.next_multiple_of(16);
    let parts = (count - 1).div_ceil(GROUP);
    // SAFETY: rows and elements are within the buffer; the kernels' rows and columns exist.
    unsafe {
        transpose_features(features, (columns, stride));
        for part in 0..parts {
            let (first, end) =
                (1 + part * (count - 1) / parts, 1 + (part + 1) * (count - 1) / parts);
            let task =
                Triangle { features, columns, stride, products: products.as_mut_ptr(), first };
            by_rows!(end - first, below_diagonal(&task));
        }
    }
}

/// Writes `columns[k·stride + j]` = element `k` of row `j`, zeros for the rows that fill up a block
/// of sixteen.
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose_features(features: &Features<'_>, (columns, stride): (*mut f32, usize)) {
    let (count, dim) = (features.count(), features.bottom.len());
    for first in (0..dim).step_by(8) {
        let (mask, whole) = (lanes(dim - first), dim - first >= 8);
        for j in (0..stride).step_by(8) {
            let block: [__m256; 8] = std::array::from_fn(|i| match j + i {
                // SAFETY: the row exists, and has eight elements from here on or the mask keeps to
                // it.
                index if index < count => unsafe {
                    let start = features.start(index).add(first);
                    if whole { _mm256_loadu_ps(start) } else { _mm256_maskload_ps(start, mask) }
                },
                _ => _mm256_setzero_ps(),
            });
            for (i, values) in transpose(&block).iter().enumerate() {
                // SAFETY: eight rows of the buffer for each block, MAX_DEPTH being a multiple of
                // eight.
                unsafe { _mm256_storeu_ps(columns.add((first + i) * stride + j), *values) };
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn below_diagonal<const ROWS: usize>(task: &Triangle<'_>) {
    // The last row has a product for each row before it.
    let width = task.first + ROWS - 1;
    for col in (0..width).step_by(16) {
        // SAFETY: `col` is below the number of rows; masks keep to the products that exist.
        unsafe {
            if width - col > 8 {
                pair_products::<ROWS, 2>(task, col);
            } else {
                pair_products::<ROWS, 1>(task, col);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn pair_products<const ROWS: usize, const VECTORS: usize>(task: &Triangle<'_>, col: usize) {
    let zero = _mm256_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    let dim = task.features.bottom.len();
    // SAFETY: row `i` of the triangle has `i` products, and masks keep to them; rows from 1 on lie
    // one after the other.
    unsafe {
        let mut left = task.features.start(task.first);
        let mut right = task.columns.add(col);
        for _ in 0..dim {
            let low = _mm256_loadu_ps(right);
            let high = if VECTORS > 1 { _mm256_loadu_ps(right.add(8)) } else { zero };
            unrolled!(i < ROWS {
                let factor = _mm256_broadcast_ss(&*left.add(i * dim));
                sums[i][0] = _mm256_fmadd_ps(factor, low, sums[i][0]);
                if VECTORS > 1 {
                    sums[i][VECTORS - 1] = _mm256_fmadd_ps(factor, high, sums[i][VECTORS - 1]);
                }
            });
            left = left.add(1);
            right = right.add(task.stride);
        }
        unrolled!(i < ROWS {
            let index = task.first + i;
            let target = task.products.wrapping_add(index * (index - 1) / 2 + col);
            _mm256_maskstore_ps(target, lanes(index.saturating_sub(col)), sums[i][0]);
            if VECTORS > 1 {
                let mask = lanes(index.saturating_sub(col + 8));
                _mm256_maskstore_ps(target.wrapping_add(8), mask, sums[i][VECTORS - 1]);
            }
        });
    }
}

/// Products of all pairs of long rows: blocks of 3 × 4 pairs, first the lower eight of sixteen
/// lanes, then the upper ones.
///
/// # Safety
/// The processor has AVX2 and FMA; `products` has one element per pair.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn long_products(features: &Features<'_>, products: &mut [f32]) {
    let (count, dim) = (features.count(), features.bottom.len());
    // Rows beyond the last stand in for it; their products are not stored.
    let at = |index: usize| features.start(index.min(count - 1));
    for high in (0..count).step_by(3) {
        let last = count.min(high + 3) - 1;
        for low in (0..last).step_by(4) {
            let (x, y) = (
                [at(high), at(high + 1), at(high + 2)],
                [at(low), at(low + 1), at(low + 2), at(low + 3)],
            );
            // SAFETY: all rows exist and have `dim` elements; row `i` has its `i` products from
            // `i(i-1)/2` on.
            unsafe {
                let (lower, upper) = (block(&x, &y, (0, dim)), block(&x, &y, (8, dim)));
                for r in 0..3 {
                    let i = high + r;
                    if i < count && low < i {
                        let lanes_of = |s: usize| _mm256_add_ps(lower[r][s], upper[r][s]);
                        let target = products.as_mut_ptr().add(i * (i - 1) / 2 + low);
                        let sums = sum_lanes(lanes_of(0), lanes_of(1), lanes_of(2), lanes_of(3));
                        store(target, i - low, sums);
                    }
                }
            }
        }
    }
}

/// Products of three rows with four in eight lanes each: of the elements from `first` on, eight of
/// every sixteen.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn block(
    x: &[*const f32; 3],
    y: &[*const f32; 4],
    (first, dim): (usize, usize),
) -> [[__m256; 4]; 3] {
    let mut sums = [[_mm256_setzero_ps(); 4]; 3];
    let mut at = first;
    while at + 8 <= dim {
        // SAFETY: eight elements from `at` on.
        unsafe {
            let left = [
                _mm256_loadu_ps(x[0].add(at)),
                _mm256_loadu_ps(x[1].add(at)),
                _mm256_loadu_ps(x[2].add(at)),
            ];
            for s in 0..4 {
                let right = _mm256_loadu_ps(y[s].add(at));
                for r in 0..3 {
                    sums[r][s] = _mm256_fmadd_ps(left[r], right, sums[r][s]);
                }
            }
        }
        at += 16;
    }
    if at < dim {
        let mask = lanes(dim - at);
        for r in 0..3 {
            for s in 0..4 {
                // SAFETY: the mask keeps to the rows' elements.
                let (left, right) = unsafe {
                    (_mm256_maskload_ps(x[r].add(at), mask), _mm256_maskload_ps(y[s].add(at), mask))
                };
                sums[r][s] = _mm256_fmadd_ps(left, right, sums[r][s]);
            }
        }
    }
    sums
}

/// The sum of the lanes of each of four vectors: lanes l and l + 4, then l and l + 2, then the last
/// two.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn sum_lanes(a: __m256, b: __m256, c: __m256, d: __m256) -> __m128 {
    let fours = |a: __m256, b: __m256| {
        _mm256_add_ps(_mm256_permute2f128_ps::<0x20>(a, b), _mm256_permute2f128_ps::<0x31>(a, b))
    };
    let (ab, cd) = (_mm256_castps_pd(fours(a, b)), _mm256_castps_pd(fours(c, d)));
    let low = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
    let twos = _mm256_add_ps(low, _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    // The sums of a, c, a, c in the lower part, of b, d, b, d in the upper one.
    let ones =
        _mm256_add_ps(_mm256_shuffle_ps::<0x88>(twos, twos), _mm256_shuffle_ps::<0xDD>(twos, twos));
    _mm_unpacklo_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps::<1>(ones))
}

/// Stores the first `count` of four sums.
///
/// # Safety
/// So many elements lie at `target`.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn store(target: *mut f32, count: usize, sums: __m128) {
    let mask = _mm256_castsi256_si128(lanes(count));
    // SAFETY: the mask keeps to what the caller promises.
    unsafe { _mm_maskstore_ps(target, mask, sums) };
}

/// `G·F`: for up to six rows and two vectors of columns at a time, one chain over all rows of `F`.
///
/// # Safety
/// The processor has AVX2 and FMA; there are at most [`MAX_FEATURES`] rows; the lists are as long
/// as the features ask for.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn gradients(
    features: &Features<'_>,
    gradient: &[f32],
    (d_bottom, d_vectors): (&mut [f32], &mut [f32]),
) {
    let (count, dim) = (features.count(), features.bottom.len());
    let mut factors = MaybeUninit::<[f32; MAX_FEATURES * MAX_FEATURES]>::uninit();
    let factors = factors.as_mut_ptr().cast::<f32>();
    // SAFETY: `count` rows and columns of at most MAX_FEATURES are filled.
    unsafe { symmetric(gradient, count, factors) };
    let parts = count.div_ceil(GROUP);
    for part in 0..parts {
        let (first, end) = (part * count / parts, (part + 1) * count / parts);
        let (d_bottom, d_vectors) = (d_bottom.as_mut_ptr(), d_vectors.as_mut_ptr());
        let task = Rows { features, factors, count, first, d_bottom, d_vectors };
        // SAFETY: the rows exist, and both lists have `dim` elements for each of theirs.
        unsafe { by_rows!(end - first, all_columns(&task, dim)) };
    }
}

/// Writes `G` in full: `factors[i·64 + j]` is the gradient of the product of rows i and j, 0 on the
/// diagonal.
#[target_feature(enable = "avx2,fma")]
unsafe fn symmetric(gradient: &[f32], count: usize, factors: *mut f32) {
    let at = |i: usize, j: usize| factors.wrapping_add(i * MAX_FEATURES + j);
    let mut rest = gradient;
    for i in 0..count {
        let (row, tail) = rest.split_at(i);
        // SAFETY: rows and columns below `count`, of MAX_FEATURES each.
        unsafe {
            at(i, 0).copy_from_nonoverlapping(row.as_ptr(), i);
            at(i, i).write(0.0);
            for (j, value) in row.iter().enumerate() {
                at(j, i).write(*value);
            }
        }
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
}

#[target_feature(enable = "avx2,fma")]
unsafe fn all_columns<const ROWS: usize>(task: &Rows<'_>, dim: usize) {
    for col in (0..dim).step_by(16) {
        // SAFETY: `col` is below `dim`; a kernel without masks gets only whole vectors.
        unsafe {
            match dim - col {
                16.. => some_columns::<ROWS, 2, false>(task, dim, col),
                9..16 => some_columns::<ROWS, 2, true>(task, dim, col),
                8 => some_columns::<ROWS, 1, false>(task, dim, col),
                _ => some_columns::<ROWS, 1, true>(task, dim, col),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn some_columns<const ROWS: usize, const VECTORS: usize, const MASKED: bool>(
    task: &Rows<'_>,
    dim: usize,
    col: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
    let masks: [__m256i; VECTORS] = std::array::from_fn(|v| lanes(dim - col - 8 * v));
    // SAFETY: at `start`, vector `v` of a row from column `col` on, as far as `masks` keep to it.
    let load = |start: *const f32, v: usize| unsafe {
        let start = start.add(8 * v);
        if MASKED { _mm256_maskload_ps(start, masks[v]) } else { _mm256_loadu_ps(start) }
    };
    let target = |index: usize| match index {
        0 => task.d_bottom.wrapping_add(col),
        _ => task.d_vectors.wrapping_add((index - 1) * dim + col),
    };
    // SAFETY: rows of `F` and of the gradients have `dim` elements, `masks` keep to them; `factors`
    // has `count` rows.
    unsafe {
        if task.first == 0 {
            unrolled!(v < VECTORS { sums[0][v] = load(target(0), v); });
        }
        let mut factors = task.factors.add(task.first);
        for j in 0..task.count {
            let values = task.features.start(j).add(col);
            let low = load(values, 0);
            let high = load(values, VECTORS - 1);
            unrolled!(i < ROWS {
                let factor = _mm256_broadcast_ss(&*factors.add(i));
                sums[i][0] = _mm256_fmadd_ps(factor, low, sums[i][0]);
                if VECTORS > 1 {
                    sums[i][VECTORS - 1] = _mm256_fmadd_ps(factor, high, sums[i][VECTORS - 1]);
                }
            });
            factors = factors.add(MAX_FEATURES);
        }
        unrolled!(i < ROWS {
            let out = target(task.first + i);
            unrolled!(v < VECTORS {
                if MASKED {
                    _mm256_maskstore_ps(out.add(8 * v), masks[v], sums[i][v])
                } else {
                    _mm256_storeu_ps(out.add(8 * v), sums[i][v])
                }
            });
        });
    }
}
