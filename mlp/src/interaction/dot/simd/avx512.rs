//! AVX-512 kernels of one sample: small products with up to 14 × 32 sums in registers, as in
//! [`crate::gemm`].

use super::{Features, MAX_DEPTH, MAX_FEATURES, Triangle};
use crate::simd::avx512::{lanes, transpose};
use crate::simd::unrolled;
use headlong_device::simd::prefetch;
use std::arch::x86_64::{
    __m512, __mmask16, _MM_HINT_T1, _mm_prefetch, _mm_sfence, _mm512_add_ps, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_storeu_ps, _mm512_stream_ps,
};
use std::mem::MaybeUninit;

/// Calls `kernel::<ROWS, …>` for a number of rows from 1 to 14.
macro_rules! by_rows {
    ($rows:expr, $kernel:ident $arguments:tt) => {
        by_rows!($rows, $kernel $arguments: 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    };
    ($rows:expr, $kernel:ident $arguments:tt: $($literal:literal)*) => {
        match $rows {
            $($literal => $kernel::<$literal> $arguments,)*
            _ => unreachable!("rows are cut into groups of at most fourteen"),
        }
    };
}

/// Products of all pairs of short rows: `F` times its transpose, a group of rows at a time, as far
/// as columns lie below the diagonal.
///
/// # Safety
/// The processor has AVX-512; there are at most [`MAX_FEATURES`] rows of at most 64 elements;
/// `products` has one element per pair.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn short_products(features: &Features<'_>, products: &mut [f32], ahead: &[f32]) {
    let count = features.count();
    if count < 2 {
        return;
    }
    let mut columns = MaybeUninit::<[f32; MAX_DEPTH * MAX_FEATURES]>::uninit();
    let columns = columns.as_mut_ptr().cast::<f32>();
    // Rows of the buffer no longer than need be: it shares the first-level cache with the sample.
    let stride = count.next_multiple_of(32);
    let products = products.as_mut_ptr();
    let parts = (count - 1).div_ceil(14);
    // SAFETY: rows and elements are within the buffer; the kernels' rows and columns exist.
    unsafe {
        transpose_features(features, (columns, stride), ahead);
        for part in 0..parts {
            let (first, end) =
                (1 + part * (count - 1) / parts, 1 + (part + 1) * (count - 1) / parts);
            let task = Triangle { features, columns, stride, products, first };
            by_rows!(end - first, below_diagonal(&task));
        }
    }
}

/// Writes `columns[k·stride + j]` = element `k` of row `j`, zeros for the rows that fill up a block
/// of sixteen, and asks for the lines of `ahead` meanwhile.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn transpose_features(
    features: &Features<'_>,
    (columns, stride): (*mut f32, usize),
    ahead: &[f32],
) {
    let (count, dim) = (features.count(), features.bottom.len());
    let blocks = dim.div_ceil(16) * count.div_ceil(16);
    let mut lines = ahead.chunks(16);
    let lines_each = ahead.len().div_ceil(16).div_ceil(blocks);
    for first in (0..dim).step_by(16) {
        let mask = lanes(dim - first);
        for j in (0..count).step_by(16) {
            for line in lines.by_ref().take(lines_each) {
                prefetch(line, 0);
            }
            let block: [__m512; 16] = std::array::from_fn(|i| match j + i {
                // SAFETY: the row exists, and the mask keeps to its elements.
                index if index < count => unsafe {
                    _mm512_maskz_loadu_ps(mask, features.start(index).add(first))
                },
                _ => _mm512_setzero_ps(),
            });
            for (i, values) in transpose(&block).iter().enumerate() {
                // SAFETY: sixteen rows of the buffer for each block, MAX_DEPTH being a multiple of
                // sixteen.
                unsafe { _mm512_storeu_ps(columns.add((first + i) * stride + j), *values) };
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn below_diagonal<const ROWS: usize>(task: &Triangle<'_>) {
    // The last row has a product for each row before it.
    let width = task.first + ROWS - 1;
    let mut col = 0;
    while col < width {
        // SAFETY: `col` is below the number of rows; masks keep to the products that exist.
        unsafe {
            if width - col > 16 {
                pair_products::<ROWS, 2>(task, col);
            } else {
                pair_products::<ROWS, 1>(task, col);
            }
        }
        col += 32;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn pair_products<const ROWS: usize, const VECTORS: usize>(task: &Triangle<'_>, col: usize) {
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    let dim = task.features.bottom.len();
    let target =
        |i: usize| task.products.wrapping_add((task.first + i) * (task.first + i - 1) / 2 + col);
    let mask = |i: usize, v: usize| lanes((task.first + i).saturating_sub(col + 16 * v));
    // SAFETY: row `i` of the triangle has `i` products, and masks keep to them; rows from 1 on lie
    // one after the other.
    unsafe {
        let mut left = task.features.start(task.first);
        let mut right = task.columns.add(col);
        for _ in 0..dim {
            let low = _mm512_loadu_ps(right);
            let high = if VECTORS > 1 { _mm512_loadu_ps(right.add(16)) } else { zero };
            unrolled!(i < ROWS {
                let factor = _mm512_set1_ps(*left.add(i * dim));
                sums[i][0] = _mm512_fmadd_ps(factor, low, sums[i][0]);
                if VECTORS > 1 {
                    sums[i][VECTORS - 1] = _mm512_fmadd_ps(factor, high, sums[i][VECTORS - 1]);
                }
            });
            left = left.add(1);
            right = right.add(task.stride);
        }
        unrolled!(i < ROWS {
            _mm512_mask_storeu_ps(target(i), mask(i, 0), sums[i][0]);
            if VECTORS > 1 {
                _mm512_mask_storeu_ps(target(i).wrapping_add(16), mask(i, 1), sums[i][VECTORS - 1]);
            }
        });
    }
}

/// `G·F`: for up to fourteen rows and two vectors of columns at a time, one chain over all rows of
/// `F`. Where the vectors' gradients pass the caches by, lines are written without being read.
///
/// # Safety
/// The processor has AVX-512; there are at most [`MAX_FEATURES`] rows; the lists are as long as the
/// features ask for.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn gradients(
    features: &Features<'_>,
    gradient: &[f32],
    (d_bottom, d_vectors): (&mut [f32], &mut [f32]),
    ahead: &[f32],
    passes_caches: bool,
) {
    let (count, dim) = (features.count(), features.bottom.len());
    let mut factors = MaybeUninit::<[f32; MAX_FEATURES * MAX_FEATURES]>::uninit();
    let factors = factors.as_mut_ptr().cast::<f32>();
    // SAFETY: `count` rows and columns of at most MAX_FEATURES are filled.
    unsafe { symmetric(gradient, count, factors) };
    let is_in_lines = dim.is_multiple_of(16) && d_vectors.as_ptr().cast::<__m512>().is_aligned();
    let streams = passes_caches && is_in_lines;
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
            streams,
        };
        // SAFETY: the rows exist, and both lists have `dim` elements for each of theirs.
        unsafe { by_rows!(end - first, all_columns(&task, dim)) };
    }
    if streams {
        // Before anyone reads what was written.
        _mm_sfence();
    }
}

/// Writes `G` in full: `factors[i·64 + j]` is the gradient of the product of rows i and j, 0 on the
/// diagonal.
///
/// Block by block of 16 × 16: what lies below the diagonal is loaded row by row, what lies above is
/// its transpose.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn symmetric(gradient: &[f32], count: usize, factors: *mut f32) {
    let at = |i: usize, j: usize| factors.wrapping_add(i * MAX_FEATURES + j);
    for high in (0..count).step_by(16) {
        for low in (0..=high).step_by(16) {
            let block: [__m512; 16] = std::array::from_fn(|r| match high + r {
                // SAFETY: row `i` has `i` gradients, and the mask keeps to them.
                i if i < count && i > low => unsafe {
                    _mm512_maskz_loadu_ps(
                        lanes(i - low),
                        gradient.as_ptr().add(i * (i - 1) / 2 + low),
                    )
                },
                _ => _mm512_setzero_ps(),
            });
            let mut across = transpose(&block);
            for r in 0..16 {
                if high == low {
                    across[r] = _mm512_add_ps(block[r], across[r]);
                } else {
                    // SAFETY: all rows and columns of a block lie inside the buffer, MAX_FEATURES
                    // being a multiple of 16.
                    unsafe { _mm512_storeu_ps(at(high + r, low), block[r]) };
                }
                // SAFETY: as above.
                unsafe { _mm512_storeu_ps(at(low + r, high), across[r]) };
            }
        }
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
    /// Whether rows of `d_vectors`, which are whole lines, are written past the caches.
    streams: bool,
    /// Read by the next sample: one cache line is asked for with each row and pair of vectors, and
    /// one of what it writes.
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
unsafe fn some_columns<const ROWS: usize, const VECTORS: usize>(
    task: &Rows<'_>,
    dim: usize,
    col: usize,
) {
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(dim - col - 16 * v));
    let target = |index: usize| match index {
        0 => task.d_bottom.wrapping_add(col),
        _ => task.d_vectors.wrapping_add((index - 1) * dim + col),
    };
    // SAFETY: rows of `F` and of the gradients have `dim` elements, `masks` keep to them, and are
    // full where lines are streamed; `factors` has `count` rows.
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
            let values = task.features.start(j).add(col);
            let low = _mm512_maskz_loadu_ps(masks[0], values);
            let high = if VECTORS > 1 {
                _mm512_maskz_loadu_ps(masks[VECTORS - 1], values.add(16))
            } else {
                zero
            };
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
            if task.streams && task.first + i > 0 {
                _mm512_stream_ps(out, sums[i][0]);
                if VECTORS > 1 {
                    _mm512_stream_ps(out.add(16), sums[i][VECTORS - 1]);
                }
            } else {
                _mm512_mask_storeu_ps(out, masks[0], sums[i][0]);
                if VECTORS > 1 {
                    _mm512_mask_storeu_ps(out.add(16), masks[VECTORS - 1], sums[i][VECTORS - 1]);
                }
            }
        });
    }
}
