//! The AVX-512 microkernel: up to 14 × 32 accumulators in registers, one broadcast and two fused
//! multiply-adds an element of `A`.

use super::k_loop::{Walk, flushed_512, numbers_512, widened_512, words_512};
use super::{GROUP, Micro, MicroFinish, PANEL_COLS, Variant};
use crate::simd::avx512::{lanes, transpose};
use crate::simd::unrolled;
use headlong_device::MatRef;
use std::arch::x86_64::{
    __m512, __m512i, __mmask16, _CMP_GT_OQ, _CMP_LT_OQ, _CMP_UNORD_Q, _MM_HINT_T0, _mm_prefetch,
    _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_and_ps, _mm512_mask_mov_epi32, _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps,
    _mm512_maskz_mov_ps, _mm512_max_ps, _mm512_or_si512, _mm512_permutex2var_epi16,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_srli_epi32,
    _mm512_storeu_ps,
};

/// Rows of the largest microtile: 28 accumulators, two vectors of `B`, one or two broadcasts: all
/// 32 registers.
pub const MAX_ROWS: usize = 14;

type Kernel = unsafe fn(&Micro);

/// Kernels by rows - 1, for one and two vectors of columns.
macro_rules! kernels {
    ($kernel:ident, $columns:literal) => {
        kernels!($kernel, $columns: 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    };
    ($kernel:ident, $columns:literal: $($rows:literal)*) => {
        [$([$kernel::<$rows, 1, $columns> as Kernel, $kernel::<$rows, 2, $columns> as Kernel]),*]
    };
}
static BY_ROWS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel, false);
static BY_COLUMNS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel, true);
static WORDS_BY_ROWS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel_words, false);
static WORDS_BY_COLUMNS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel_words, true);
static WIDENED_BY_ROWS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel_widened, false);
static WIDENED_BY_COLUMNS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel_widened, true);
static GROUPS_BY_ROWS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel_groups, false);
static GROUPS_BY_COLUMNS: [[Kernel; 2]; MAX_ROWS] = kernels!(kernel_groups, true);

/// Runs the kernel for the form and the shape of `micro`.
///
/// # Safety
/// The processor has AVX-512 F, and AVX-512 BF16 for words; `micro`'s pointers cover what its shape
/// says; `1 <= rows <= 14`, `1 <= cols <= 32`.
pub unsafe fn run(micro: &Micro) {
    let kernels = match (micro.variant, micro.columns) {
        (Variant::F32, false) => &BY_ROWS,
        (Variant::F32, true) => &BY_COLUMNS,
        (Variant::Words, false) => &WORDS_BY_ROWS,
        (Variant::Words, true) => &WORDS_BY_COLUMNS,
        (Variant::Widened, false) => &WIDENED_BY_ROWS,
        (Variant::Widened, true) => &WIDENED_BY_COLUMNS,
        (Variant::WidenedTiles, false) => &GROUPS_BY_ROWS,
        (Variant::WidenedTiles, true) => &GROUPS_BY_COLUMNS,
        (Variant::Tiles, _) => unreachable!("tiles have a kernel of their own"),
    };
    let kernel = kernels[micro.rows - 1][usize::from(micro.cols > 16)];
    // SAFETY: passed on to the caller.
    unsafe { kernel(micro) }
}

/// Defines a microkernel around the loop `$over_k`.
macro_rules! define_kernel {
    ($name:ident, $features:literal, $over_k:ident) => {
#[target_feature(enable = $features)]
unsafe fn $name<const ROWS: usize, const VECTORS: usize, const COLUMNS: bool>(micro: &Micro) {
    let zero = _mm512_setzero_ps();
    let mut sums = [[zero; VECTORS]; ROWS];
    let masks: [__mmask16; VECTORS] =
        std::array::from_fn(|v| lanes(micro.cols.saturating_sub(16 * v)));
    // SAFETY: the caller promises the ranges; masks keep loads and stores of `C` to its `cols`
    // columns.
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
        unrolled!(i < ROWS {
            let c = micro.c.wrapping_add(i * micro.c_stride);
            _mm_prefetch::<_MM_HINT_T0>(c.cast());
            if VECTORS > 1 {
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(16).cast());
            }
            if !COLUMNS && !micro.epilogue.mask.is_null() {
                let mask = micro.epilogue.mask.wrapping_add(i * micro.epilogue.mask_stride);
                _mm_prefetch::<_MM_HINT_T0>(mask.cast());
                if VECTORS > 1 {
                    _mm_prefetch::<_MM_HINT_T0>(mask.wrapping_add(16).cast());
                }
            }
        });
        $over_k(&Walk::new(micro, 0), &mut sums);
        if !COLUMNS {
            // A copy of its own: what `epilogue` is given lies in memory, and the loop's sums must
            // not.
                let mut finished = [[zero; VECTORS]; ROWS];
                unrolled!(i < ROWS {
                    finished[i][0] = sums[i][0];
                    finished[i][VECTORS - 1] = sums[i][VECTORS - 1];
                });
                epilogue(&micro.epilogue, 0, &masks, &mut finished);
                unrolled!(i < ROWS {
                    sums[i][0] = finished[i][0];
                    sums[i][VECTORS - 1] = finished[i][VECTORS - 1];
                });
        }
        unrolled!(i < ROWS {
            let c = micro.c.add(i * micro.c_stride);
            _mm512_mask_storeu_ps(c, masks[0], sums[i][0]);
            if VECTORS > 1 {
                _mm512_mask_storeu_ps(c.add(16), masks[VECTORS - 1], sums[i][VECTORS - 1]);
            }
        });
    }
}
    };
}

define_kernel!(kernel, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", numbers_512);
define_kernel!(kernel_words, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma", words_512);
define_kernel!(kernel_widened, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", widened_512);
define_kernel!(kernel_groups, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma", groups);

/// Adds groups of [`GROUP`] steps: the even ones from zero, the odd ones from zero, and their sum
/// to `sums`.
///
/// # Safety
/// As the loops of [`super::k_loop`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn groups<const ROWS: usize, const VECTORS: usize>(
    walk: &Walk,
    sums: &mut [[__m512; VECTORS]; ROWS],
) {
    let zero = _mm512_setzero_ps();
    for start in (0..walk.k).step_by(GROUP) {
        let mut parts = [[[zero; VECTORS]; ROWS]; 2];
        for (odd, part) in parts.iter_mut().enumerate() {
            let walk = walk.every_second(start + odd);
            // SAFETY: the steps lie inside the microtile's factors.
            unsafe { flushed_512(&walk, part) };
            if walk.k < GROUP / 2 {
                // Zeros are multiplied after the last step, and their products added.
                part.iter_mut().flatten().for_each(|sum| *sum = _mm512_add_ps(*sum, zero));
            }
        }
        for (i, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                let part = flushed(_mm512_add_ps(parts[0][i][v], parts[1][i][v]));
                *sum = flushed(_mm512_add_ps(flushed(*sum), part));
            }
        }
    }
}

/// Zeros, of the same sign, for numbers below 2⁻¹²⁶.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn flushed(values: __m512) -> __m512 {
    let least = _mm512_set1_ps(f32::MIN_POSITIVE);
    let is_small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(_mm512_abs_ps(values), least);
    _mm512_mask_and_ps(values, is_small, values, _mm512_set1_ps(-0.0))
}

/// Bias, ReLU, mask and rounding of rows `first` … of a microtile. Only left factors by rows come
/// with any of them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn epilogue<const ROWS: usize, const VECTORS: usize>(
    epilogue: &MicroFinish,
    first: usize,
    masks: &[__mmask16; VECTORS],
    sums: &mut [[__m512; VECTORS]; ROWS],
) {
    let zero = _mm512_setzero_ps();
    unrolled!(v < VECTORS {
        if !epilogue.bias.is_null() {
            let bias = epilogue.bias.wrapping_add(16 * v);
            // SAFETY: the bias has `cols` elements from here, and the lane mask keeps to them.
            let bias = unsafe { _mm512_maskz_loadu_ps(masks[v], bias) };
            unrolled!(i < ROWS { sums[i][v] = _mm512_add_ps(sums[i][v], bias); });
        }
        if epilogue.relu {
            // The second operand wins on NaN, so NaN passes.
            unrolled!(i < ROWS { sums[i][v] = _mm512_max_ps(zero, sums[i][v]); });
        }
        if !epilogue.mask.is_null() {
            unrolled!(i < ROWS {
                // SAFETY: as above; the mask has a row for each of the microtile.
                let by = unsafe {
                    let row =
                        epilogue.mask.wrapping_add((first + i) * epilogue.mask_stride + 16 * v);
                    _mm512_maskz_loadu_ps(masks[v], row)
                };
                let is_positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(by, zero);
                sums[i][v] = _mm512_maskz_mov_ps(is_positive, sums[i][v]);
            });
        }
        if epilogue.round {
            unrolled!(i < ROWS { sums[i][v] = round(sums[i][v]); });
        }
    });
}

/// Writes the sums of a microtile, rows of [`PANEL_COLS`], to `C`, finished.
///
/// # Safety
/// The processor has AVX-512; `micro`'s pointers cover what its shape says, and `sums` its rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn finish(micro: &Micro, sums: *const f32) {
    const ROWS: usize = 8;
    let whole = micro.rows - micro.rows % ROWS;
    // SAFETY: passed on to the caller.
    unsafe {
        for first in (0..whole).step_by(ROWS) {
            finish_rows::<ROWS>(micro, first, sums);
        }
        for row in whole..micro.rows {
            finish_rows::<1>(micro, row, sums);
        }
    }
}

/// Rows `first` … of [`finish`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn finish_rows<const ROWS: usize>(micro: &Micro, first: usize, sums: *const f32) {
    let masks: [__mmask16; 2] = std::array::from_fn(|v| lanes(micro.cols.saturating_sub(16 * v)));
    // SAFETY: the caller's promise.
    unsafe {
        let mut values = [[_mm512_setzero_ps(); 2]; ROWS];
        let sums = sums.add(first * PANEL_COLS);
        unrolled!(i < ROWS {
            values[i][0] = _mm512_loadu_ps(sums.add(i * PANEL_COLS));
            values[i][1] = _mm512_loadu_ps(sums.add(i * PANEL_COLS + 16));
        });
        epilogue(&micro.epilogue, first, &masks, &mut values);
        unrolled!(i < ROWS {
            let c = micro.c.add((first + i) * micro.c_stride);
            _mm512_mask_storeu_ps(c, masks[0], values[i][0]);
            _mm512_mask_storeu_ps(c.wrapping_add(16), masks[1], values[i][1]);
        });
    }
}

/// Adds the rows of up to [`super::MAX_STRIPS`] strips of `len` rows to `sums`, 16 lanes a strip.
///
/// # Safety
/// The processor has AVX-512 F; strips and sums are as long as the counts say.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn add_strips(
    variant: Variant,
    strips: *const f32,
    (count, len): (usize, usize),
    sums: *mut f32,
) {
    // Four strips at a time hide the latency of an addition.
    let mut first = 0;
    while first < count {
        let last = count - 1;
        let at = |i: usize| (first + i).min(last);
        // SAFETY: strips beyond the last stand for it and give the same sum again; all reads and
        // writes are inside.
        unsafe {
            let mut lanes: [__m512; 4] =
                std::array::from_fn(|i| _mm512_loadu_ps(sums.add(at(i) * 16)));
            for k in 0..len {
                for (i, lanes) in lanes.iter_mut().enumerate() {
                    let word = _mm512_loadu_ps(strips.add((at(i) * len + k) * 16));
                    *lanes = match variant {
                        Variant::F32 | Variant::Widened | Variant::WidenedTiles => {
                            _mm512_add_ps(*lanes, word)
                        }
                        Variant::Words | Variant::Tiles => {
                            let (low, high) = halves(word);
                            _mm512_add_ps(_mm512_add_ps(*lanes, low), high)
                        }
                    };
                }
            }
            for (i, lanes) in lanes.iter().enumerate() {
                _mm512_storeu_ps(sums.add(at(i) * 16), *lanes);
            }
        }
        first += 4;
    }
}

/// Copies `rows` rows of `cols` elements, `source.1` elements apart, to rows of `VECTORS · 16`
/// elements, zeros beyond.
///
/// # Safety
/// The processor has AVX-512 F; source and target cover what the counts say;
/// `cols <= VECTORS · 16`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn copy_rows<const VECTORS: usize>(
    (source, stride): (*const f32, usize),
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(cols.saturating_sub(16 * v)));
    for row in 0..rows {
        for (v, &mask) in masks.iter().enumerate() {
            // SAFETY: the mask keeps to the row's columns, the caller to the rows.
            unsafe {
                let values =
                    _mm512_maskz_loadu_ps(mask, source.add(row * stride).wrapping_add(16 * v));
                _mm512_storeu_ps(target.add((row * VECTORS + v) * 16), values);
            }
        }
    }
}

/// `panel[k·32 + c] = matrix(c, k)` for up to 32 rows, zeros beyond them.
///
/// # Safety
/// The processor has AVX-512 F; the panel has 32 elements for each column of the matrix.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn transpose_rows(matrix: MatRef<'_>, panel: *mut f32) {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut first = 0;
    while first < cols {
        let mask = lanes(cols - first);
        for half in 0..2 {
            let block: [__m512; 16] = std::array::from_fn(|i| match half * 16 + i {
                // SAFETY: the row exists, and the mask keeps to its columns.
                row if row < rows => unsafe {
                    _mm512_maskz_loadu_ps(mask, matrix.row(row)[first..].as_ptr())
                },
                _ => _mm512_setzero_ps(),
            });
            let block = transpose(&block);
            for (k, values) in block.iter().enumerate().take(cols - first) {
                // SAFETY: row `first + k` of the panel exists.
                unsafe {
                    _mm512_storeu_ps(panel.add((first + k) * PANEL_COLS + half * 16), *values)
                };
            }
        }
        first += 16;
    }
}

/// Each lane to the nearest bf16, ties to even, as an f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn round(values: __m512) -> __m512 {
    let bits = _mm512_castps_si512(values);
    let is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), is_odd);
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    let nan = _mm512_set1_epi32(f32::NAN.to_bits() as i32);
    _mm512_castsi512_ps(_mm512_mask_mov_epi32(upper(up), is_nan, nan))
}

/// The upper half of each lane, zero below it.
#[target_feature(enable = "avx512f")]
#[inline]
fn upper(bits: __m512i) -> __m512i {
    _mm512_and_si512(bits, _mm512_set1_epi32(0xffff_0000_u32 as i32))
}

/// Words of the upper halves of two vectors' lanes.
#[target_feature(enable = "avx512f")]
#[inline]
pub fn word(low: __m512, high: __m512) -> __m512 {
    let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
    _mm512_castsi512_ps(_mm512_or_si512(upper(_mm512_castps_si512(high)), low))
}

/// The numbers in the lower and in the upper halves of words.
#[target_feature(enable = "avx512f")]
#[inline]
fn halves(words: __m512) -> (__m512, __m512) {
    let bits = _mm512_castps_si512(words);
    (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)), _mm512_castsi512_ps(upper(bits)))
}

/// Writes the numbers of each row of 32 words as two rows, the lower halves first.
///
/// Note: left to itself the compiler takes words of sixteen rows at once, one by one.
///
/// # Safety
/// The processor has AVX-512 F; there are whole rows of words, and `dtype` has room for twice as
/// many.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn widen(words: &[f32], dtype: *mut f32) {
    for first in (0..words.len()).step_by(PANEL_COLS) {
        // SAFETY: the caller's promise.
        unsafe {
            let (words, even) = (words.as_ptr().add(first), dtype.add(2 * first));
            for v in [0, 16] {
                let (low, high) = halves(_mm512_loadu_ps(words.add(v)));
                _mm512_storeu_ps(even.add(v), low);
                _mm512_storeu_ps(even.add(PANEL_COLS + v), high);
            }
        }
    }
}

/// `rows` rows of `cols` numbers, `source.1` numbers apart, two and two as rows of `VECTORS · 16`
/// words: `word[c] = (low[c], high[c])`, zeros beyond both.
///
/// # Safety
/// The processor has AVX-512 F; source and target cover what the counts say.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn pair_rows<const VECTORS: usize, const ROUND: bool>(
    (source, stride): (*const f32, usize),
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    let masks: [__mmask16; VECTORS] = std::array::from_fn(|v| lanes(cols.saturating_sub(16 * v)));
    for word in 0..rows.div_ceil(2) {
        let low = source.wrapping_add(2 * word * stride);
        let has_high = 2 * word + 1 < rows;
        for (v, &mask) in masks.iter().enumerate() {
            let high_mask = if has_high { mask } else { 0 };
            // SAFETY: masks keep to the rows there are and to their columns; the target has room.
            unsafe {
                let high = _mm512_maskz_loadu_ps(high_mask, low.wrapping_add(stride + 16 * v));
                let low = _mm512_maskz_loadu_ps(mask, low.wrapping_add(16 * v));
                let (low, high) = if ROUND { (round(low), round(high)) } else { (low, high) };
                _mm512_storeu_ps(target.add((word * VECTORS + v) * 16), self::word(low, high));
            }
        }
    }
}

/// Which 16 bits of two vectors make words of neighbours: the upper half of each lane.
static UPPER_HALVES: [u16; 32] = {
    let mut indices = [0; 32];
    let mut i = 0;
    while i < 32 {
        indices[i] = 2 * i as u16 + 1;
        i += 1;
    }
    indices
};

/// Neighbours of a row of `len` numbers as words: `word[i] = (values[2i], values[2i + 1])`, zero
/// after the last.
///
/// # Safety
/// The processor has AVX-512 F and BW; row and target cover what `len` says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn pair_neighbours<const ROUND: bool>(values: *const f32, len: usize, target: *mut f32) {
    // SAFETY: the table has 64 bytes.
    let indices = unsafe { _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast()) };
    for first in (0..len).step_by(32) {
        let lhs = len - first;
        // SAFETY: masks keep to the row, and to its words.
        unsafe {
            let values = values.add(first);
            let low = _mm512_maskz_loadu_ps(lanes(lhs), values);
            let high =
                _mm512_maskz_loadu_ps(lanes(lhs.saturating_sub(16)), values.wrapping_add(16));
            let (low, high) = if ROUND { (round(low), round(high)) } else { (low, high) };
            let words = _mm512_permutex2var_epi16(
                _mm512_castps_si512(low),
                indices,
                _mm512_castps_si512(high),
            );
            let mask = lanes(lhs.div_ceil(2));
            _mm512_mask_storeu_ps(target.add(first / 2), mask, _mm512_castsi512_ps(words));
        }
    }
}
