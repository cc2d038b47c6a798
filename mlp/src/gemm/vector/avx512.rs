//! The AVX-512 microkernel: up to 14 × 32 accumulators in registers, one broadcast and two fused multiply-adds an element
//! of `A`.

use super::{Micro, PANEL_COLS};
use std::arch::x86_64::{
    __mmask16, _CMP_GT_OQ, _MM_HINT_T1, _mm_prefetch, _mm512_add_ps, _mm512_cmp_ps_mask, _mm512_fmadd_ps,
    _mm512_loadu_ps, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_ps,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
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

/// Runs `body` with `i` = 0, 1, … below `n`, written out: the accumulators stay in registers only where every index is a constant.
macro_rules! unrolled {
    ($i:ident < $n:ident $body:block) => { unrolled!($i < $n $body: 0 1 2 3 4 5 6 7 8 9 10 11 12 13) };
    ($i:ident < $n:ident $body:block: $($index:literal)*) => {$(
        if $index < $n {
            let $i = $index;
            $body
        }
    )*};
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn kernel<const ROWS: usize, const VECTORS: usize, const COLUMNS: bool>(micro: &Micro) {
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(micro.cols, v));
    let (mut a, mut b) = (micro.a, micro.b);
    let (row_step, depth_step) = if COLUMNS { (1, micro.a_stride) } else { (micro.a_stride, 1) };
    // SAFETY: the caller promises the ranges; masks keep loads and stores of `C` to its `cols` columns.
    unsafe {
        if micro.continues {
            unrolled!(i < ROWS {
                let c = micro.c.add(i * micro.c_stride);
                sums[i][0] = _mm512_maskz_loadu_ps(masks[0], c);
                if VECTORS > 1 {
                    sums[i][VECTORS - 1] = _mm512_maskz_loadu_ps(masks[VECTORS - 1], c.add(16));
                }
            });
        }
        let mut ahead = micro.ahead.start;
        for _ in 0..micro.depth {
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
            ahead = ahead.wrapping_add(micro.ahead.stride);
            let left_vector = _mm512_loadu_ps(b);
            let right_vector = if VECTORS > 1 { _mm512_loadu_ps(b.add(16)) } else { zero };
            unrolled!(i < ROWS {
                let left = _mm512_set1_ps(*a.add(i * row_step));
                sums[i][0] = _mm512_fmadd_ps(left, left_vector, sums[i][0]);
                if VECTORS > 1 {
                    sums[i][VECTORS - 1] = _mm512_fmadd_ps(left, right_vector, sums[i][VECTORS - 1]);
                }
            });
            a = a.add(depth_step);
            b = b.add(PANEL_COLS);
        }
        unrolled!(i < ROWS {
            let c = micro.c.add(i * micro.c_stride);
            _mm512_mask_storeu_ps(c, masks[0], sums[i][0]);
            if VECTORS > 1 {
                _mm512_mask_storeu_ps(c.add(16), masks[VECTORS - 1], sums[i][VECTORS - 1]);
            }
        });
        if micro.finish.any() {
            finish(micro);
        }
    }
}

/// Which lanes of vector `v` hold one of `cols` columns.
#[inline]
fn lanes(cols: usize, v: usize) -> __mmask16 {
    let count = cols.saturating_sub(16 * v).min(16);
    ((1_u32 << count) - 1) as __mmask16
}

/// Bias, ReLU and mask for a microtile that was just stored, while it is in the first-level cache.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn finish(micro: &Micro) {
    let finish = &micro.finish;
    let zero = _mm512_setzero_ps();
    for v in 0..micro.cols.div_ceil(16) {
        let columns = lanes(micro.cols, v);
        for i in 0..micro.rows {
            // SAFETY: bias, mask and `C` have `cols` columns from here, and the lane mask keeps to them.
            unsafe {
                let c = micro.c.add(i * micro.c_stride + 16 * v);
                let mut value = _mm512_maskz_loadu_ps(columns, c);
                if !finish.bias.is_null() {
                    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(columns, finish.bias.add(16 * v)));
                }
                if finish.relu {
                    // The second operand wins on NaN, so NaN passes.
                    value = _mm512_max_ps(zero, value);
                }
                if !finish.mask.is_null() {
                    let by = _mm512_maskz_loadu_ps(columns, finish.mask.add(i * finish.mask_stride + 16 * v));
                    value = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(by, zero), value);
                }
                _mm512_mask_storeu_ps(c, columns, value);
            }
        }
    }
}

/// Copies `rows` rows of `cols` elements, `source.1` elements apart, to rows of `VECTORS · 16` elements, zeros beyond.
///
/// # Safety
/// The processor has AVX-512 F; source and target cover what the counts say; `cols <= VECTORS · 16`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn copy_rows<const VECTORS: usize>(
    (source, stride): (*const f32, usize),
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(cols, v));
    for row in 0..rows {
        for (v, &mask) in masks.iter().enumerate() {
            // SAFETY: the mask keeps to the row's columns, the caller to the rows.
            unsafe {
                let values = _mm512_maskz_loadu_ps(mask, source.add(row * stride).wrapping_add(16 * v));
                _mm512_storeu_ps(target.add((row * VECTORS + v) * 16), values);
            }
        }
    }
}
