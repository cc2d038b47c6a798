//! The AVX-512 microkernel: up to 14 × 32 accumulators in registers, one broadcast and two fused multiply-adds an element
//! of `A`.

use super::{Micro, PANEL_COLS};
use std::arch::x86_64::{
    __m512, __mmask16, _CMP_GT_OQ, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_set1_ps,
    _mm512_setzero_ps,
};

/// Rows of the largest microtile: 28 accumulators, two vectors of `B`, one or two broadcasts: all 32 registers.
pub const MAX_ROWS: usize = 14;

type Kernel = unsafe fn(&Micro);

/// Kernels by rows - 1, for one and two vectors of columns.
macro_rules! kernels {
    ($columns:literal: $($rows:literal)*) => {
        [$([kernel::<$rows, 1, $columns> as Kernel, kernel::<$rows, 2, $columns> as Kernel]),*]
    };
}
static BY_ROWS: [[Kernel; 2]; MAX_ROWS] = kernels!(false: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
static BY_COLUMNS: [[Kernel; 2]; MAX_ROWS] = kernels!(true: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);

/// Runs the kernel for the shape of `micro`.
///
/// # Safety
/// The processor has AVX-512 F; `micro`'s pointers cover what its shape says; `1 <= rows <= 14`, `1 <= cols <= 32`.
pub unsafe fn run(micro: &Micro) {
    let kernels = if micro.columns { &BY_COLUMNS } else { &BY_ROWS };
    let kernel = kernels[micro.rows - 1][usize::from(micro.cols > 16)];
    // SAFETY: passed on to the caller.
    unsafe { kernel(micro) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn kernel<const ROWS: usize, const VECTORS: usize, const COLUMNS: bool>(micro: &Micro) {
    // SAFETY: the caller promises the ranges; masks keep loads and stores of `C` to its `cols` columns.
    unsafe {
        let mut sums = start::<ROWS, VECTORS>(micro);
        let (mut a, mut b) = (micro.a, micro.b);
        let (row_step, depth_step) = if COLUMNS { (1, micro.a_stride) } else { (micro.a_stride, 1) };
        for _ in 0..micro.depth {
            let mut right = [_mm512_setzero_ps(); VECTORS];
            for (v, right) in right.iter_mut().enumerate() {
                *right = _mm512_loadu_ps(b.add(16 * v));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let left = _mm512_set1_ps(*a.add(i * row_step));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = _mm512_fmadd_ps(left, right, *sum);
                }
            }
            a = a.add(depth_step);
            b = b.add(PANEL_COLS);
        }
        store(micro, &sums);
    }
}

/// Columns of vector `v` that exist.
#[inline(always)]
fn mask(micro: &Micro, v: usize) -> __mmask16 {
    let count = micro.cols.saturating_sub(16 * v).min(16);
    ((1_u32 << count) - 1) as __mmask16
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn start<const ROWS: usize, const VECTORS: usize>(micro: &Micro) -> [[__m512; VECTORS]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    if micro.continues {
        for (i, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                // SAFETY: inside `C` by the caller's promise and the mask.
                *sum = unsafe {
                    _mm512_maskz_loadu_ps(mask(micro, v), micro.c.add(i * micro.c_stride + 16 * v))
                };
            }
        }
    }
    sums
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn store<const ROWS: usize, const VECTORS: usize>(micro: &Micro, sums: &[[__m512; VECTORS]; ROWS]) {
    let finish = &micro.finish;
    for v in 0..VECTORS {
        let columns = mask(micro, v);
        for (i, sums) in sums.iter().enumerate() {
            let mut value = sums[v];
            // SAFETY: bias, mask and `C` have `cols` columns from here, and the lane mask keeps to them.
            unsafe {
                if !finish.bias.is_null() {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(columns, finish.bias.add(16 * v)));
                }
                if finish.relu {
                    // The second operand wins on NaN, so NaN passes.
                    value = _mm512_max_ps(_mm512_setzero_ps(), value);
                }
                if !finish.mask.is_null() {
                    let by = _mm512_maskz_loadu_ps(columns, finish.mask.add(i * finish.mask_stride + 16 * v));
                    value =
                        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(by, _mm512_setzero_ps()), value);
                }
                _mm512_mask_storeu_ps(micro.c.add(i * micro.c_stride + 16 * v), columns, value);
            }
        }
    }
}
