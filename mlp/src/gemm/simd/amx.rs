//! The microkernel of AMX: 32 × 32 sums in four tiles, each the sum of products of a tile of `A`,
//! 16 rows of 32 numbers, and one of `B`, 32 rows of 16.
//!
//! Compiled code uses no tiles, so that what `asm!` blocks leave in them stays.

use super::avx512::{self, copy_rows, finish};
use super::pairs::numbers_of;
use super::{Micro, PANEL_COLS, Variant};
use crate::simd::avx512::{lanes, transpose};
use half::bf16;
use headlong_device::MatRef;
use std::arch::asm;
use std::arch::x86_64::{
    __m512, __mmask16, _mm256_maskz_loadu_epi16, _mm512_castsi512_ps, _mm512_cvtepu16_epi32,
    _mm512_maskz_loadu_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of a microtile: two tiles.
pub const MAX_ROWS: usize = 2 * TILE_ROWS;

/// Words of a block at most.
const BLOCK_WORDS: usize = Variant::Tiles.block_words();

/// Words from one row of a packed strip to the next: rows of a tile do not share their sets of the
/// cache.
pub const STRIP_STRIDE: usize = BLOCK_WORDS + 16;

/// Words of a strip.
pub const STRIP_ELEMENTS: usize = MAX_ROWS * STRIP_STRIDE;

const TILE_ROWS: usize = 16;

/// Bytes of a row of a tile.
const ROW_BYTES: u16 = 64;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles in full, from first to last use.
static SHAPES: Shapes = {
    let (mut row_bytes, mut rows, mut tile) = ([0; 16], [0; 16], 0);
    while tile < 8 {
        row_bytes[tile] = ROW_BYTES;
        rows[tile] = TILE_ROWS as u8;
        tile += 1;
    }
    Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// The tiles of this thread, ready for [`run`] until dropped. Nothing else uses tiles: without
/// them a switch of threads saves less, and a core may sleep more deeply.
pub struct Configured(());

impl Configured {
    /// The processor must have AMX, and this process be allowed to use it: the limit of a thread
    /// says so.
    pub fn new() -> Self {
        // SAFETY: the processor has the instruction, which reads these 64 bytes and changes tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly));
        }
        Self(())
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: it changes only tiles.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Sums of a microtile, where they are not those of `C`.
#[repr(C, align(64))]
struct Sums([MaybeUninit<f32>; MAX_ROWS * PANEL_COLS]);

/// Bytes of a row of [`Sums`], and of a panel.
const PANEL_BYTES: usize = PANEL_COLS * size_of::<f32>();

/// A row of sums from zero.
static ZEROS: Line = Line([0; PANEL_BYTES]);

#[repr(C, align(64))]
struct Line([u8; PANEL_BYTES]);

/// Where sums lie before or after the loop: rows 0 and 16, and bytes from one row to the next.
#[repr(C)]
struct Rows {
    first: *const f32,
    second: *const f32,
    row_bytes: usize,
}

impl Rows {
    fn new(first: *const f32, row_bytes: usize) -> Self {
        Self { first, second: first.wrapping_byte_add(TILE_ROWS * row_bytes), row_bytes }
    }
}

/// Multiplies.
///
/// # Safety
/// Tiles are [`Configured`]; `A` lies by rows of words, of which [`MAX_ROWS`] may be read, whole
/// groups of them; the other pointers of `micro` cover what its shape says; `1 <= rows <= 32`,
/// `1 <= cols <= 32`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn run(micro: &Micro) {
    let mut sums = Sums([MaybeUninit::uninit(); MAX_ROWS * PANEL_COLS]);
    let sums = sums.0.as_mut_ptr().cast::<f32>();
    let (is_whole, c_bytes) =
        (micro.rows == MAX_ROWS && micro.cols == PANEL_COLS, micro.c_stride * size_of::<f32>());
    let is_finished = !micro.epilogue.changes();
    // SAFETY: passed on to the caller.
    unsafe {
        let before = match (micro.continues, is_whole) {
            (false, _) => Rows::new((&raw const ZEROS).cast(), 0),
            (true, true) => Rows::new(micro.c, c_bytes),
            (true, false) => {
                copy_rows::<2>((micro.c, micro.c_stride), micro.rows, micro.cols, sums);
                Rows::new(sums, PANEL_BYTES)
            }
        };
        let after = match is_whole && is_finished {
            true => Rows::new(micro.c, c_bytes),
            false => Rows::new(sums, PANEL_BYTES),
        };
        let places = [before, after];
        match (micro.rows > TILE_ROWS, micro.cols > TILE_ROWS) {
            (true, true) => four(micro, &places),
            (true, false) => two_rows(micro, &places),
            (false, true) => two_columns(micro, &places),
            (false, false) => one(micro, &places),
        }
        if !(is_whole && is_finished) {
            finish(micro, sums);
        }
    }
}

/// Defines the loop over groups of k for the tiles of a microtile: those of its first 16 rows and
/// those of its second, as (register, byte of the row); then loads of factors and products in turn.
macro_rules! define_loop {
    (
        $name:ident, [$(($first:literal $at:literal))*], [$(($second:literal $of:literal))*],
        $($instruction:literal)*
    ) => {
        /// # Safety
        /// As [`run`]; the sums' rows are there.
        #[inline(always)]
        unsafe fn $name(micro: &Micro, places: &[Rows; 2]) {
            // The mask, or `C` where it will be written.
            let met = match micro.epilogue.mask.is_null() {
                true => (micro.c.cast_const(), micro.c_stride),
                false => (micro.epilogue.mask, micro.epilogue.mask_stride),
            };
            // SAFETY: the caller's promise; asking for lines makes no address a fault.
            unsafe {
                asm!(
                    "mov {at}, [{places}]",
                    "mov {row}, [{places} + 16]",
                    $(concat!("tileloadd ", $first, ", [{at} + {row} + ", $at, "]"),)*
                    "mov {at}, [{places} + 8]",
                    $(concat!("tileloadd ", $second, ", [{at} + {row} + ", $of, "]"),)*
                    "test {k}, {k}",
                    "jz 3f",
                    "2:",
                    $($instruction,)*
                    // Four rows that the sums will meet, and of the panel what follows.
                    ".rept 4",
                    "prefetcht0 [{met}]",
                    "prefetcht0 [{met} + 64]",
                    "add {met}, {met_row}",
                    ".endr",
                    ".rept 16",
                    "prefetcht1 [{ahead}]",
                    "add {ahead}, {ahead_step}",
                    ".endr",
                    "add {a}, 64",
                    "add {second}, 64",
                    "add {b}, 2048",
                    "dec {k}",
                    "jnz 2b",
                    "3:",
                    "mov {at}, [{places} + 24]",
                    "mov {row}, [{places} + 40]",
                    $(concat!("tilestored [{at} + {row} + ", $at, "], ", $first),)*
                    "mov {at}, [{places} + 32]",
                    $(concat!("tilestored [{at} + {row} + ", $of, "], ", $second),)*
                    places = in(reg) places.as_ptr(),
                    at = out(reg) _,
                    row = out(reg) _,
                    panel_row = in(reg) PANEL_BYTES,
                    a = inout(reg) micro.a => _,
                    second = inout(reg) micro.a.wrapping_add(TILE_ROWS * micro.a_stride) => _,
                    a_row = in(reg) micro.a_stride * size_of::<f32>(),
                    b = inout(reg) micro.b => _,
                    k = inout(reg) micro.k / TILE_ROWS => _,
                    met = inout(reg) met.0 => _,
                    met_row = in(reg) met.1 * size_of::<f32>(),
                    ahead = inout(reg) micro.ahead.start => _,
                    ahead_step = in(reg) micro.ahead.stride * size_of::<f32>(),
                    options(nostack),
                );
            }
        }
    };
}

define_loop!(
    four, [("tmm0" 0) ("tmm1" 64)], [("tmm2" 0) ("tmm3" 64)],
    "tileloadd tmm4, [{a} + {a_row}]"
    "tileloadd tmm6, [{b} + {panel_row}]"
    "tdpbf16ps tmm0, tmm4, tmm6"
    "tileloadd tmm7, [{b} + {panel_row} + 64]"
    "tdpbf16ps tmm1, tmm4, tmm7"
    "tileloadd tmm5, [{second} + {a_row}]"
    "tdpbf16ps tmm2, tmm5, tmm6"
    "tdpbf16ps tmm3, tmm5, tmm7"
);
define_loop!(
    two_rows, [("tmm0" 0)], [("tmm2" 0)],
    "tileloadd tmm6, [{b} + {panel_row}]"
    "tileloadd tmm4, [{a} + {a_row}]"
    "tdpbf16ps tmm0, tmm4, tmm6"
    "tileloadd tmm5, [{second} + {a_row}]"
    "tdpbf16ps tmm2, tmm5, tmm6"
);
define_loop!(
    two_columns, [("tmm0" 0) ("tmm1" 64)], [],
    "tileloadd tmm4, [{a} + {a_row}]"
    "tileloadd tmm6, [{b} + {panel_row}]"
    "tdpbf16ps tmm0, tmm4, tmm6"
    "tileloadd tmm7, [{b} + {panel_row} + 64]"
    "tdpbf16ps tmm1, tmm4, tmm7"
);
define_loop!(
    one, [("tmm0" 0)], [],
    "tileloadd tmm4, [{a} + {a_row}]"
    "tileloadd tmm6, [{b} + {panel_row}]"
    "tdpbf16ps tmm0, tmm4, tmm6"
);

/// The FLOP of `rounds` rounds of four products in registers, which it does. The processor has AMX.
pub fn multiply_tiles(rounds: u64) -> u64 {
    const FLOP: usize = 4 * 2 * TILE_ROWS * TILE_ROWS * 32;
    let _configured = Configured::new();
    // Words of two ones: what is multiplied matters to how much current is drawn.
    let ones = [0x3f80_3f80_u32; TILE_ROWS * TILE_ROWS];
    // SAFETY: tiles are configured; loads read sixteen rows of `ones`.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tileloadd tmm4, [{ones} + {row}]",
            "tileloadd tmm5, [{ones} + {row}]",
            "tileloadd tmm6, [{ones} + {row}]",
            "tileloadd tmm7, [{ones} + {row}]",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {rounds}",
            "jnz 2b",
            ones = in(reg) ones.as_ptr(),
            row = in(reg) usize::from(ROW_BYTES),
            rounds = inout(reg) rounds.max(1) => _,
            options(nostack, readonly),
        );
    }
    rounds.max(1) * FLOP as u64
}

/// What a vector of f32 is loaded from.
pub trait Load: Copy {
    /// The numbers of the lanes that `mask` names, zeros in the others.
    ///
    /// # Safety
    /// The processor has AVX-512; those numbers lie at `from`.
    unsafe fn load(mask: __mmask16, from: *const Self) -> __m512;
}

impl Load for f32 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    #[inline]
    unsafe fn load(mask: __mmask16, from: *const Self) -> __m512 {
        // SAFETY: passed on to the caller.
        unsafe { _mm512_maskz_loadu_ps(mask, from) }
    }
}

impl Load for bf16 {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    #[inline]
    unsafe fn load(mask: __mmask16, from: *const Self) -> __m512 {
        // SAFETY: passed on to the caller.
        let bits = unsafe { _mm256_maskz_loadu_epi16(mask, from.cast()) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)))
    }
}

/// Packs the columns `strip` of a block of `matrix`, in words, as rows of words,
/// [`STRIP_STRIDE`] apart: `target[i·stride + w] = (matrix(2w, i), matrix(2w + 1, i))`, zeros
/// beyond the strip and the matrix.
///
/// # Safety
/// The processor has AVX-512; the target has [`MAX_ROWS`] rows; the block is whole groups and not
/// longer than a row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub unsafe fn pack_strip<T: Load>(
    matrix: MatRef<'_, T>,
    words: Range<usize>,
    strip: Range<usize>,
    target: *mut f32,
) {
    assert!(words.len() <= BLOCK_WORDS && strip.len() <= MAX_ROWS, "a block fits its strip");
    let numbers = numbers_of(&words, matrix.rows());
    if numbers.is_empty() {
        return;
    }
    // The last row is looked at here, so that all rows before it exist as well.
    let _ = &matrix.row(numbers.end - 1)[strip.clone()];
    for first in (0..strip.len().next_multiple_of(TILE_ROWS)).step_by(TILE_ROWS) {
        let from = matrix.row(numbers.start)[strip.start + first..].as_ptr();
        let mask = lanes(strip.len() - first);
        for at in (0..words.len()).step_by(TILE_ROWS) {
            let left = numbers.len().saturating_sub(2 * at);
            // SAFETY: the mask keeps to the strip, `left` to the matrix, by the lines above; the
            // target has the rows, by the caller's promise.
            unsafe {
                let from = from.wrapping_add(2 * at * matrix.stride());
                let block = transpose(&words_of(from, matrix.stride(), left, mask));
                for (row, values) in block.iter().enumerate() {
                    _mm512_storeu_ps(target.add((first + row) * STRIP_STRIDE + at), *values);
                }
            }
        }
    }
}

/// Sixteen words of up to sixteen columns: of up to 32 rows of numbers.
///
/// # Safety
/// The processor has AVX-512; `left` rows of the columns that `mask` names lie at `from`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[inline]
unsafe fn words_of<T: Load>(
    from: *const T,
    stride: usize,
    left: usize,
    mask: __mmask16,
) -> [__m512; TILE_ROWS] {
    let mut words = [_mm512_setzero_ps(); TILE_ROWS];
    for (word, words) in words.iter_mut().enumerate() {
        let mask_of = |row: usize| if row < left { mask } else { 0 };
        let low = from.wrapping_add(2 * word * stride);
        // SAFETY: the caller's promise; a mask of no lane reads nothing.
        *words = unsafe {
            avx512::word(
                T::load(mask_of(2 * word), low),
                T::load(mask_of(2 * word + 1), low.wrapping_add(stride)),
            )
        };
    }
    words
}
