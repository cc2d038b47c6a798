//! Packing blocks of factors on the stack, and panels of f32.

use super::pairs::{numbers_of, pair_bf16_rows, pair_rows, widen_bf16_rows};
use super::{
    Epilogue, Kernels, MAX_STRIPS, Numbers, PACKED_ELEMENTS, PANEL_COLS, PackedStrips, PanelBlock,
    STRIP_ROWS, Variant, fallback,
};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512};
use crate::simd::Tile;
use half::bf16;
use headlong_device::MatRef;
use headlong_device::bf16::{round, widen};
use headlong_device::simd::{Isa, isa};
use headlong_device::vectorized;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Packs a block of `matrix`, in words, as a panel on the stack, zeros beyond its columns.
pub fn pack_panel(
    variant: Variant,
    matrix: Numbers<'_>,
    words: Range<usize>,
    cols: Range<usize>,
    packed: &mut PanelBlock,
) -> *const f32 {
    assert!(
        words.len() <= variant.block_words() && cols.len() <= PANEL_COLS,
        "a block fits its buffer"
    );
    let start = packed.0.as_mut_ptr().cast::<f32>();
    // SAFETY: rows of the panel lie inside the buffer; each is written in full, so that no element
    // stays unset.
    unsafe { pack_block::<2>(variant, matrix, words, cols, start) };
    start
}

/// Packs a block, in words, of the columns `cols` of `matrix` in the form that is multiplied, as
/// rows of `VECTORS · 16`.
///
/// # Safety
/// `target` has room for all rows; there are at most `VECTORS · 16` columns.
unsafe fn pack_block<const VECTORS: usize>(
    variant: Variant,
    matrix: Numbers<'_>,
    words: Range<usize>,
    cols: Range<usize>,
    target: *mut f32,
) {
    let width = VECTORS * 16;
    let (rows, room) = match variant {
        Variant::F32 => (words.clone(), words.len()),
        _ => (numbers_of(&words, matrix.rows()), variant.rows(words.len())),
    };
    let filled = match variant {
        Variant::Words | Variant::Tiles => rows.len().div_ceil(2),
        _ => rows.len(),
    };
    // SAFETY: passed on to the caller; zeros stand for the number that the last word lacks, and for
    // rows beyond the matrix.
    unsafe {
        target.add(filled * width).write_bytes(0, (room - filled) * width);
        let list = std::slice::from_raw_parts_mut(target.cast(), filled * width);
        match (variant, matrix) {
            (Variant::Words | Variant::Tiles, Numbers::F32(matrix)) => {
                pair_rows::<VECTORS, false>(matrix, words, cols, target)
            }
            (Variant::Words | Variant::Tiles, Numbers::Bf16(matrix)) => {
                pair_bf16_rows(matrix, words, cols, width, list)
            }
            (_, Numbers::F32(matrix)) => copy_rows::<VECTORS>(matrix, rows, cols, target),
            (_, Numbers::Bf16(matrix)) => widen_bf16_rows(matrix, rows, cols, width, list),
        }
    }
}

/// Packs a block, in words, of the columns `rows` of `matrix` as `parts` strips:
/// `strip[k·16 + i] = matrix(k, first row + i)`, zeros beyond the rows of the strip.
pub fn pack_strips(
    kernels: Kernels,
    matrix: Numbers<'_>,
    words: Range<usize>,
    rows: Range<usize>,
    parts: usize,
    packed: &mut PackedStrips,
) -> *const f32 {
    let (variant, room) = (kernels.variant, kernels.strip_elements(words.len()));
    assert!(parts * room <= PACKED_ELEMENTS, "a block fits its buffer");
    assert!(words.len() <= variant.block_words(), "a block fits its buffer");
    let start = packed.0.as_mut_ptr().cast::<f32>();
    for part in 0..parts {
        let len = rows.len();
        let strip = rows.start + part * len / parts..rows.start + (part + 1) * len / parts;
        // SAFETY: strip `part` lies inside the buffer.
        let target = unsafe { start.add(part * room) };
        match (variant, matrix) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has AVX-512; the strip has its rows, of a block's words.
            (Variant::Tiles, Numbers::F32(matrix)) => unsafe {
                amx::pack_strip(matrix, words.clone(), strip, target)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Variant::Tiles, Numbers::Bf16(matrix)) => unsafe {
                amx::pack_strip(matrix, words.clone(), strip, target)
            },
            // SAFETY: each row of the strip is written in full.
            _ => unsafe { pack_block::<1>(variant, matrix, words.clone(), strip, target) },
        }
    }
    start
}

/// Packs the columns `cols` of all of `matrix` as one panel; see [`super::pack_columns`].
pub fn copy_panel(matrix: MatRef<'_>, cols: Range<usize>, panel: &mut [f32]) {
    assert_eq!(panel.len(), matrix.rows() * PANEL_COLS, "one panel");
    // SAFETY: the panel has room for all rows, by the line above; callers cut `cols` to a panel.
    unsafe { copy_rows::<2>(matrix, 0..matrix.rows(), cols, panel.as_mut_ptr()) };
}

/// Packs the rows `rows` of `matrix` as the columns of one panel; see [`super::pack_transposed`].
pub fn transpose_panel(matrix: MatRef<'_>, rows: Range<usize>, panel: &mut [f32]) {
    assert_eq!(panel.len(), matrix.cols() * PANEL_COLS, "one panel");
    let rows = matrix.rows_range(rows.start, rows.len());
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX-512; the panel has a row for each column, by the line
        // above.
        Isa::Avx512 => unsafe { avx512::transpose_rows(rows, panel.as_mut_ptr()) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX2.
        Isa::Avx2 => unsafe { avx2::transpose_rows(rows, panel.as_mut_ptr()) },
        _ => fallback::transpose_rows(rows, panel),
    }
}

/// Copies the columns `cols` of the rows `rows` to rows of `VECTORS · 16` elements, zeros beyond
/// them.
///
/// # Safety
/// `target` has room for all rows; there are at most `VECTORS · 16` columns.
unsafe fn copy_rows<const VECTORS: usize>(
    matrix: MatRef<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
    target: *mut f32,
) {
    assert!(cols.len() <= VECTORS * 16, "{} columns in {VECTORS} vectors", cols.len());
    if rows.is_empty() {
        return;
    }
    // The last row is looked at here, so that all rows before it exist as well.
    let _ = &matrix.row(rows.end - 1)[cols.clone()];
    let source = (matrix.row(rows.start)[cols.clone()].as_ptr(), matrix.stride());
    let (rows, cols) = (rows.len(), cols.len());
    // SAFETY: the source's rows exist, by the line above; the rest is the caller's promise.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::copy_rows::<VECTORS>(source, rows, cols, target),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::copy_rows::<VECTORS>(source, rows, cols, target),
            _ => fallback::copy_rows::<VECTORS>(source, rows, cols, target),
        }
    }
}

vectorized! {
    /// Adds up rows of `matrix`, from column `first` on, in their order.
    pub fn add_rows(matrix: Numbers<'_>, rows: Range<usize>, first: usize, sums: &mut [f32]) {
        match matrix {
            Numbers::F32(matrix) => add_each(matrix, rows, first, sums, |value| value),
            Numbers::Bf16(matrix) => add_each(matrix, rows, first, sums, widen),
        }
    }

    /// Sums of panels, a dense matrix, that start from what a tile of bf16 holds, the columns from
    /// `first` on; zeros beyond them.
    pub fn begin_sums(sums: &mut [MaybeUninit<f32>], tile: &mut Tile<'_, bf16>, first: usize) {
        let width = sums.len() / tile.rows;
        for (row, sums) in sums.chunks_exact_mut(width).enumerate() {
            let held = tile.row_mut(row, first, width.min(tile.cols - first));
            let (sums, rest) = sums.split_at_mut(held.len());
            sums.iter_mut().zip(held).for_each(|(sum, held)| _ = sum.write(widen(*held)));
            rest.iter_mut().for_each(|sum| _ = sum.write(0.0));
        }
    }

    /// Finishes sums of panels, a dense matrix: the columns from `first` on of a tile of bf16.
    pub fn finish_sums(
        sums: &[f32],
        epilogue: &Epilogue<'_, bf16>,
        tile: &mut Tile<'_, bf16>,
        first: usize,
    ) {
        let width = sums.len() / tile.rows;
        let floor = if epilogue.relu { 0.0 } else { f32::NEG_INFINITY };
        for (row, sums) in sums.chunks_exact(width).enumerate() {
            let (sums, _) = sums.as_chunks::<PANEL_COLS>();
            for (panel, sums) in sums.iter().enumerate() {
                let first = first + panel * PANEL_COLS;
                let cols = PANEL_COLS.min(tile.cols - first);
                let col = tile.first_col + first;
                // What changes nothing stands for a part that is absent.
                let bias = match epilogue.bias {
                    Some(bias) => &bias[col..col + cols],
                    None => &[-0.0; PANEL_COLS][..cols],
                };
                let mask = match &epilogue.mask {
                    Some(mask) => &mask.row(tile.first_row + row)[col..col + cols],
                    None => &[bf16::ONE; PANEL_COLS][..cols],
                };
                let target = tile.row_mut(row, first, cols);
                match (mask.first_chunk::<PANEL_COLS>(), bias.first_chunk::<PANEL_COLS>()) {
                    (Some(mask), Some(bias)) => {
                        finish_row(sums, bias, floor, mask, &mut target[..PANEL_COLS]);
                    }
                    _ => finish_row(sums, bias, floor, mask, target),
                }
            }
        }
    }
}

/// What is not a number passes `floor`. Of fixed length where it is inlined with arrays.
#[inline(always)]
fn finish_row(
    sums: &[f32; PANEL_COLS],
    bias: &[f32],
    floor: f32,
    mask: &[bf16],
    target: &mut [bf16],
) {
    for ((sum, bias), (mask, target)) in sums.iter().zip(bias).zip(mask.iter().zip(target)) {
        let value = sum + bias;
        let value = if floor > value { floor } else { value };
        *target = round(if widen(*mask) > 0.0 { value } else { 0.0 });
    }
}

#[inline(always)]
fn add_each<T: Copy>(
    matrix: MatRef<'_, T>,
    rows: Range<usize>,
    first: usize,
    sums: &mut [f32],
    widened: impl Fn(T) -> f32,
) {
    // As many columns at a time as stay in registers.
    for (at, sums) in sums.chunks_mut(64).enumerate() {
        let first = first + 64 * at;
        for row in rows.clone() {
            let values = &matrix.row(row)[first..first + sums.len()];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += widened(*value));
        }
    }
}

/// Adds up the rows of packed strips, in the order of k, to one sum for each row of `A`.
///
/// # Safety
/// `parts` strips of `len` rows lie at `strips`.
pub unsafe fn add_strips(
    kernels: Kernels,
    strips: *const f32,
    (parts, len): (usize, usize),
    sums: &mut [f32],
) {
    let rows = sums.len();
    let strip = |part: usize| part * rows / parts..(part + 1) * rows / parts;
    let mut lanes = [[0.0_f32; STRIP_ROWS]; MAX_STRIPS];
    for (part, lanes) in lanes.iter_mut().enumerate().take(parts) {
        lanes[..strip(part).len()].copy_from_slice(&sums[strip(part)]);
    }
    // SAFETY: passed on to the caller; there are MAX_STRIPS rows of lanes.
    unsafe {
        match kernels.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                avx512::add_strips(kernels.variant, strips, (parts, len), lanes.as_mut_ptr().cast())
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::add_strips(strips, (parts, len), lanes.as_mut_ptr().cast()),
            _ => fallback::add_strips(strips, (parts, len), lanes.as_mut_ptr().cast()),
        }
    }
    for (part, lanes) in lanes.iter().enumerate().take(parts) {
        sums[strip(part)].copy_from_slice(&lanes[..strip(part).len()]);
    }
}
