//! Packing bf16: words of two neighbours in k, the first in the lower half.

use super::{Lhs, PANEL_COLS, PanelBlock, Variant, fallback};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use half::bf16;
use headlong_device::MatRef;
use headlong_device::bf16::expand;
use headlong_device::simd::{Isa, isa};
use headlong_device::vectorized;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most rows of a tile whose rows of `A` are packed.
pub const BAND_ROWS: usize = 256;

/// Most words of a packed row: 128 of them take a quarter of a second-level cache of 1 MiB.
pub const BAND_WORDS: usize = 512;

/// Words from one packed row to the next: not a multiple of 2 KiB, which all rows of a microtile
/// would share their sets by.
pub const BAND_STRIDE: usize = BAND_WORDS + 16;

/// Packed rows on the stack, in whole cache lines.
#[repr(C, align(64))]
pub struct Band([MaybeUninit<f32>; BAND_ROWS * BAND_STRIDE]);

impl Band {
    pub const fn new() -> Self {
        Self([MaybeUninit::uninit(); BAND_ROWS * BAND_STRIDE])
    }
}

/// Packs the words `words` of the rows `rows` of `A`, [`BAND_STRIDE`] apart: f32 as words, bf16 as
/// what is multiplied, words or numbers of f32.
pub fn pack_band(
    variant: Variant,
    lhs: Lhs<'_>,
    rows: Range<usize>,
    words: Range<usize>,
    packed: &mut Band,
) -> *const f32 {
    assert!(rows.len() <= BAND_ROWS && words.len() <= BAND_WORDS, "a band fits its buffer");
    let start = packed.0.as_mut_ptr().cast::<f32>();
    for (at, row) in rows.enumerate() {
        // SAFETY: row `at` lies inside the buffer, with room for all words.
        let target = unsafe { start.add(at * BAND_STRIDE) };
        match lhs {
            Lhs::Rows(matrix) => {
                let numbers = numbers_of(&words, matrix.cols());
                let filled = numbers.len().div_ceil(2);
                // SAFETY: as above.
                unsafe {
                    pair_neighbours::<false>(&matrix.row(row)[numbers], target);
                    target.add(filled).write_bytes(0, words.len() - filled);
                }
            }
            Lhs::Words(matrix) => {
                let numbers = &matrix.row(row)[2 * words.start..2 * words.end];
                let len = variant.rows(words.len());
                assert!(len <= BAND_STRIDE, "a row fits its buffer");
                if variant.takes_words() {
                    // SAFETY: as above; words are two numbers each.
                    unsafe { target.cast::<bf16>().copy_from(numbers.as_ptr(), numbers.len()) };
                    continue;
                }
                // SAFETY: as above; zeros are written before they are a list.
                unsafe {
                    target.write_bytes(0, len);
                    expand(numbers, std::slice::from_raw_parts_mut(target, len));
                }
            }
            Lhs::Columns(_) => unreachable!("columns are packed as strips"),
        }
    }
    start
}

/// The numbers of `words`, of `len` in all.
pub fn numbers_of(words: &Range<usize>, len: usize) -> Range<usize> {
    2 * words.start..len.min(2 * words.end)
}

/// Writes the words of a row.
///
/// # Safety
/// `target` has room for half as many words, rounded up.
unsafe fn pair_neighbours<const ROUND: bool>(values: &[f32], target: *mut f32) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: passed on to the caller.
        Isa::Avx512 => unsafe {
            avx512::pair_neighbours::<ROUND>(values.as_ptr(), values.len(), target)
        },
        _ => {
            // SAFETY: passed on to the caller; words are written before they are read.
            let words = unsafe { std::slice::from_raw_parts_mut(target, values.len().div_ceil(2)) };
            match isa() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the processor has AVX2 and FMA.
                Isa::Avx2 => unsafe { avx2::pair_neighbours::<ROUND>(values, words) },
                _ => fallback::pair_neighbours::<ROUND>(values, words),
            }
        }
    }
}

/// Packs the words `words` of the columns `cols`, two rows of `matrix` each, as rows of
/// `VECTORS · 16` words, zeros beyond.
///
/// # Safety
/// `target` has room for all words; there are at most `VECTORS · 16` columns.
pub unsafe fn pair_rows<const VECTORS: usize, const ROUND: bool>(
    matrix: MatRef<'_>,
    words: Range<usize>,
    cols: Range<usize>,
    target: *mut f32,
) {
    assert!(cols.len() <= VECTORS * 16, "{} columns in {VECTORS} vectors", cols.len());
    let rows = numbers_of(&words, matrix.rows());
    if rows.is_empty() {
        return;
    }
    // The last row is looked at here, so that all rows before it exist as well.
    let _ = &matrix.row(rows.end - 1)[cols.clone()];
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            let source = (matrix.row(rows.start)[cols.clone()].as_ptr(), matrix.stride());
            // SAFETY: the source's rows exist, by the line above; the rest is the caller's promise.
            unsafe { avx512::pair_rows::<VECTORS, ROUND>(source, rows.len(), cols.len(), target) };
        }
        _ => {
            // SAFETY: the target has room, by the caller's promise; words are written before they
            // are read.
            let target =
                unsafe { std::slice::from_raw_parts_mut(target, words.len() * VECTORS * 16) };
            for (low, words) in rows.clone().step_by(2).zip(target.chunks_exact_mut(VECTORS * 16)) {
                let high = (low + 1 < rows.end).then(|| &matrix.row(low + 1)[cols.clone()]);
                let low = &matrix.row(low)[cols.clone()];
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the processor has AVX2 and FMA.
                    Isa::Avx2 => unsafe { avx2::pair_row::<ROUND>(low, high, words) },
                    _ => fallback::pair_row::<ROUND>(low, high, words),
                }
            }
        }
    }
}

vectorized! {
    /// As [`pair_rows`], of bf16, as rows of `width` words.
    pub fn pair_bf16_rows(
        matrix: MatRef<'_, bf16>,
        words: Range<usize>,
        cols: Range<usize>,
        width: usize,
        target: &mut [MaybeUninit<f32>],
    ) {
        let rows = numbers_of(&words, matrix.rows());
        for (low, words) in rows.clone().step_by(2).zip(target.chunks_exact_mut(width)) {
            let (words, rest) = words.split_at_mut(cols.len());
            rest.iter_mut().for_each(|word| _ = word.write(0.0));
            let row = |row: usize| &matrix.row(row)[cols.clone()];
            let upper = |number: bf16| u32::from(number.to_bits()) << 16;
            match low + 1 < rows.end {
                true => {
                    for ((word, low), high) in words.iter_mut().zip(row(low)).zip(row(low + 1)) {
                        word.write(f32::from_bits(upper(*high) | u32::from(low.to_bits())));
                    }
                }
                false => {
                    for (word, low) in words.iter_mut().zip(row(low)) {
                        word.write(f32::from_bits(u32::from(low.to_bits())));
                    }
                }
            }
        }
    }

    /// The rows `rows` of the columns `cols` as numbers of f32, in rows of `width`, zeros beyond.
    pub fn widen_bf16_rows(
        matrix: MatRef<'_, bf16>,
        rows: Range<usize>,
        cols: Range<usize>,
        width: usize,
        target: &mut [MaybeUninit<f32>],
    ) {
        for (row, target) in rows.zip(target.chunks_exact_mut(width)) {
            let (numbers, rest) = target.split_at_mut(cols.len());
            for (to, number) in numbers.iter_mut().zip(&matrix.row(row)[cols.clone()]) {
                to.write(headlong_device::bf16::widen(*number));
            }
            rest.iter_mut().for_each(|to| _ = to.write(0.0));
        }
    }
}

/// Writes the numbers of a block of a panel of words, a row for each step of k.
pub fn widen(words: &[f32], block: &mut PanelBlock) -> *const f32 {
    let numbers = &mut block.0[..2 * words.len()];
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has AVX-512; there is room for two numbers a word, by the line
        // above.
        Isa::Avx512 => unsafe { avx512::widen(words, numbers.as_mut_ptr().cast()) },
        _ => widen_rows(words, numbers),
    }
    block.0.as_ptr().cast()
}

vectorized! {
    fn widen_rows(words: &[f32], numbers: &mut [MaybeUninit<f32>]) {
        for (words, numbers) in
            words.chunks_exact(PANEL_COLS).zip(numbers.chunks_exact_mut(2 * PANEL_COLS))
        {
            let (even, odd) = numbers.split_at_mut(PANEL_COLS);
            for ((word, even), odd) in words.iter().zip(even).zip(odd) {
                even.write(f32::from_bits(word.to_bits() << 16));
                odd.write(f32::from_bits(word.to_bits() & 0xffff_0000));
            }
        }
    }
}

/// Packs the columns `cols` of all of `matrix` as one panel of words; see
/// [`super::super::pack_columns`].
pub fn pair_panel(matrix: MatRef<'_>, cols: Range<usize>, panel: &mut [f32]) {
    let words = matrix.rows().div_ceil(2);
    let (panel, rest) = panel.split_at_mut(words * PANEL_COLS);
    // SAFETY: the panel has room for all words, by the line above; callers cut `cols` to a panel.
    unsafe { pair_rows::<2, true>(matrix, 0..words, cols, panel.as_mut_ptr()) };
    rest.fill(0.0);
}

/// Words of a stretch that is paired on the stack before it is transposed.
const STRETCH: usize = 256;

/// Packs the rows `rows` of `matrix` as the columns of one panel of words; see
/// [`super::super::pack_transposed`].
pub fn pair_transposed_panel(matrix: MatRef<'_>, rows: Range<usize>, panel: &mut [f32]) {
    let (panel, rest) = panel.split_at_mut(matrix.cols().div_ceil(2) * PANEL_COLS);
    rest.fill(0.0);
    let mut paired = [0.0_f32; PANEL_COLS * STRETCH];
    for (at, panel) in panel.chunks_mut(STRETCH * PANEL_COLS).enumerate() {
        let words = at * STRETCH..at * STRETCH + panel.len() / PANEL_COLS;
        for (row, paired) in rows.clone().zip(paired.chunks_exact_mut(STRETCH)) {
            let values = &matrix.row(row)[numbers_of(&words, matrix.cols())];
            // SAFETY: a stretch has room for its words.
            unsafe { pair_neighbours::<true>(values, paired.as_mut_ptr()) };
        }
        let paired = MatRef::with_stride(&paired, PANEL_COLS, words.len(), STRETCH);
        super::transpose_panel(paired, 0..rows.len(), panel);
    }
}
