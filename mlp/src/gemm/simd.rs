//! One tile of a product: blocks of k, panels of columns, and the microkernel of this
//! processor.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod fallback;
#[cfg(target_arch = "x86_64")]
mod k_loop;
mod packing;
mod pairs;

pub use packing::{copy_panel, transpose_panel};
pub use pairs::{BAND_ROWS, BAND_WORDS, pair_panel, pair_transposed_panel};

use super::{Epilogue, FactorType, GROUP, Lhs, Numbers, PANEL_COLS, Panels, Product, Rhs};
use crate::simd::Tile;
use half::bf16;
use headlong_device::MatRef;
use headlong_device::simd::{Bf16Products, Isa, bf16_products, isa};
use packing::{add_rows, add_strips, begin_sums, finish_sums, pack_panel, pack_strips};
use pairs::{BAND_STRIDE, Band, numbers_of, pack_band, widen};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of a block of k, of numbers or of words: a panel of that many takes 32 KiB, two thirds
/// of the first-level cache.
const BLOCK_K: usize = 256;

/// Rows of a packed strip of `A`, of which a microtile uses the first few: one cache line.
const STRIP_ROWS: usize = 16;

/// Strips that a block of a tile takes at most: 304 KiB of stack, 266 rows in microtiles of 14.
const MAX_STRIPS: usize = 19;

/// Elements of all strips of a block.
const PACKED_ELEMENTS: usize = MAX_STRIPS * BLOCK_K * STRIP_ROWS;

/// The strips of a block on the stack, in whole cache lines.
#[repr(C, align(64))]
struct PackedStrips([MaybeUninit<f32>; PACKED_ELEMENTS]);

/// What microkernels multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Numbers of f32.
    F32,
    /// Words of two bf16, by instructions of their own.
    Words,
    /// bf16 as numbers of f32, two steps of k at a time, with zeros for numbers below 2⁻¹²⁶.
    Widened,
    /// Words of two bf16, tile by tile.
    Tiles,
    /// bf16 as numbers of f32, added up as those of tiles are.
    WidenedTiles,
}

/// The microkernels of a product, chosen once for all of it, since tests change under way what is
/// allowed.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    isa: Isa,
    /// What they multiply.
    pub variant: Variant,
}

impl Kernels {
    /// The fastest that this processor has.
    pub fn of(dtype: FactorType) -> Self {
        let isa = isa();
        let variant = match dtype {
            FactorType::F32 => Variant::F32,
            FactorType::Bf16 if bf16_products() >= Bf16Products::Pairs => Variant::Words,
            FactorType::Bf16 => Variant::Widened,
            FactorType::Bf16Tiles if bf16_products() == Bf16Products::Tiles => Variant::Tiles,
            FactorType::Bf16Tiles => Variant::WidenedTiles,
        };
        Self { isa, variant }
    }

    /// Rows of the largest microtile.
    fn max_rows(self) -> usize {
        match self.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if self.variant == Variant::Tiles => amx::MAX_ROWS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::MAX_ROWS,
            _ => fallback::MAX_ROWS,
        }
    }

    /// Whether the last microtile of `tile` would read rows that `lhs` does not have: those of AMX
    /// are always whole.
    fn reads_beyond(self, lhs: MatRef<'_, bf16>, tile: &Tile<'_>) -> bool {
        let (rows, most) = (tile.rows, self.max_rows());
        let parts = rows.div_ceil(most);
        let last = tile.first_row + (parts - 1) * rows / parts;
        self.variant == Variant::Tiles && last + most > lhs.rows()
    }

    /// Most rows that a tile may have whose left factor is packed.
    pub fn max_packed_rows(self) -> usize {
        PACKED_ELEMENTS / self.strip_elements(self.variant.block_words()) * self.max_rows()
    }

    /// Elements from one step of k to the next in a packed strip that lies by columns; from one row
    /// to the next in one that does not, and whether it does.
    fn strip_stride(self) -> (usize, bool) {
        match self.variant {
            #[cfg(target_arch = "x86_64")]
            Variant::Tiles => (amx::STRIP_STRIDE, false),
            _ => (STRIP_ROWS, true),
        }
    }

    /// Elements of a packed strip of a block of so many words.
    fn strip_elements(self, words: usize) -> usize {
        match self.variant {
            #[cfg(target_arch = "x86_64")]
            Variant::Tiles => amx::STRIP_ELEMENTS,
            _ => self.variant.rows(words) * STRIP_ROWS,
        }
    }
}

impl Variant {
    /// Rows that `words` of [`FactorType::words`] take in a packed block.
    const fn rows(self, words: usize) -> usize {
        match self {
            Variant::F32 | Variant::Words | Variant::Tiles => words,
            Variant::Widened | Variant::WidenedTiles => 2 * words,
        }
    }

    /// Whether factors of bf16 are multiplied as words.
    const fn takes_words(self) -> bool {
        matches!(self, Variant::Words | Variant::Tiles)
    }

    const fn block_words(self) -> usize {
        match self {
            // A microtile's rows of `A` lie in the first-level cache, too.
            Variant::Tiles => BLOCK_K / 2,
            _ => BLOCK_K / self.rows(1),
        }
    }
}

/// A block of a panel on the stack, in whole cache lines.
#[repr(C, align(64))]
struct PanelBlock([MaybeUninit<f32>; BLOCK_K * PANEL_COLS]);

impl PanelBlock {
    const fn new() -> Self {
        Self([MaybeUninit::uninit(); BLOCK_K * PANEL_COLS])
    }
}

/// Work for a microkernel: `rows × cols` elements of `C`, at most one panel wide. `k` and strides
/// of `A` are in what its form says: numbers or words.
#[derive(Clone, Copy)]
struct Micro {
    variant: Variant,
    a: *const f32,
    /// Elements from `a(i, k)` to `a(i + 1, k)` for [`Lhs::Rows`], to `a(i, k + 1)` for strips of
    /// [`Lhs::Columns`].
    a_stride: usize,
    /// Whether `A` lies by columns.
    columns: bool,
    /// `k` rows of [`PANEL_COLS`] elements.
    b: *const f32,
    k: usize,
    c: *mut f32,
    c_stride: usize,
    rows: usize,
    /// 1 to [`PANEL_COLS`].
    cols: usize,
    /// Whether chains start from what `C` holds.
    continues: bool,
    epilogue: MicroFinish,
    ahead: Ahead,
}

/// Memory that will be read soon: at each step of k the cache line `stride` elements on is
/// asked for.
#[derive(Clone, Copy)]
struct Ahead {
    start: *const f32,
    stride: usize,
}

/// The tail of [`Epilogue`] that belongs to a microkernel's place; null pointers where a part is
/// absent.
#[derive(Clone, Copy)]
struct MicroFinish {
    bias: *const f32,
    relu: bool,
    mask: *const f32,
    mask_stride: usize,
    round: bool,
}

impl MicroFinish {
    const NONE: Self = Self {
        bias: std::ptr::null(),
        relu: false,
        mask: std::ptr::null(),
        mask_stride: 0,
        round: false,
    };

    /// Whether anything is done to sums.
    #[cfg(target_arch = "x86_64")]
    fn changes(&self) -> bool {
        !self.bias.is_null() || self.relu || !self.mask.is_null() || self.round
    }

    fn at(epilogue: &Epilogue<'_>, row: usize, col: usize) -> Self {
        Self {
            bias: epilogue.bias.map_or(std::ptr::null(), |bias| bias[col..].as_ptr()),
            relu: epilogue.relu,
            mask: epilogue.mask.map_or(std::ptr::null(), |mask| mask.row(row)[col..].as_ptr()),
            mask_stride: epilogue.mask.map_or(0, |mask| mask.stride()),
            round: epilogue.round,
        }
    }
}

/// Computes the elements of `product` that `tile` covers.
pub fn compute(kernels: Kernels, product: &Product<'_>, mut tile: Tile<'_>) {
    #[cfg(target_arch = "x86_64")]
    let _configured = (kernels.variant == Variant::Tiles).then(amx::Configured::new);
    match product.rhs {
        Rhs::Panels(panels) => with_panels(kernels, product, &panels, &mut tile),
        Rhs::Rows(matrix) => with_rows(kernels, product, matrix, &mut tile),
    }
}

/// Panels whose sums of a tile are finished together: pieces of rows that are read and written have
/// so many lines of the cache that the next ones are fetched ahead.
const NEAR_PANELS: usize = 4;

/// As [`NEAR_PANELS`], where rows of the left factor take several stretches: each meets all of the
/// panels.
const MAX_PANELS: usize = 16;

/// Sums of some panels' columns of a tile, in whole cache lines.
#[repr(C, align(64))]
struct Sums([MaybeUninit<f32>; SUMS]);

const SUMS: usize = BAND_ROWS * MAX_PANELS * PANEL_COLS;

/// As [`compute`], into bf16: some panels after the others, whose sums stay near until they are
/// finished.
pub fn compute_bf16(
    kernels: Kernels,
    product: &Product<'_>,
    epilogue: &Epilogue<'_, bf16>,
    mut tile: Tile<'_, bf16>,
) {
    #[cfg(target_arch = "x86_64")]
    let _configured = (kernels.variant == Variant::Tiles).then(amx::Configured::new);
    let Rhs::Panels(panels) = product.rhs else {
        unreachable!("only panels are multiplied into bf16");
    };
    let is_long = product.dtype.words(panels.k) > BAND_WORDS;
    let most = if is_long { MAX_PANELS } else { NEAR_PANELS };
    let mut sums = Sums([MaybeUninit::uninit(); SUMS]);
    for first in (0..tile.cols).step_by(most * PANEL_COLS) {
        let count = most.min((tile.cols - first).div_ceil(PANEL_COLS));
        let sums = &mut sums.0[..tile.rows * count * PANEL_COLS];
        if product.accumulate {
            begin_sums(sums, &mut tile, first);
        }
        // Panels are filled up with zeros: all columns of the sums are written.
        let mut near = tile.columns_in(first, sums);
        with_panels(kernels, product, &panels, &mut near);
        // SAFETY: every sum was written, by the lines above.
        let sums = unsafe { std::slice::from_raw_parts(sums.as_ptr().cast::<f32>(), sums.len()) };
        finish_sums(sums, epilogue, &mut tile, first);
    }
}

/// See [`super::multiply_tiles`].
pub fn multiply_tiles(rounds: u64) -> u64 {
    match bf16_products() {
        #[cfg(target_arch = "x86_64")]
        Bf16Products::Tiles => amx::multiply_tiles(rounds),
        _ => 0,
    }
}

/// Blocks of k of at most `most` words, of whole `unit`s, as even as can be; one empty block where
/// k is 0.
fn blocks(words: Range<usize>, most: usize, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, units) = (words.start, words.len() / unit);
    let count = words.len().div_ceil(most).max(1);
    let at = move |block: usize| start + block * units / count * unit;
    (0..count).map(move |block| at(block)..at(block + 1))
}

/// Where microtiles read `A`.
#[derive(Clone, Copy)]
enum Source {
    /// In the matrix itself, by rows.
    Matrix,
    /// In packed rows, [`BAND_STRIDE`] apart, one for each row of the tile, from word `first` on.
    Band { start: *const f32, first: usize },
    /// In packed strips of the block.
    Strips(*const f32),
}

/// Stretch after stretch of k, of which the tile's rows of `A` stay in the second-level cache,
/// panel after panel: rows of `C` under a panel stay in the first, and the panels stream by, asked
/// for one block ahead.
fn with_panels(kernels: Kernels, product: &Product<'_>, panels: &Panels<'_>, tile: &mut Tile<'_>) {
    let words = 0..product.dtype.words(panels.k);
    let is_read_in_place = match product.lhs {
        Lhs::Words(lhs) => kernels.variant.takes_words() && !kernels.reads_beyond(lhs, tile),
        _ => !kernels.variant.takes_words(),
    };
    if !is_read_in_place {
        return with_band(kernels, product, panels, tile, words);
    }
    for stretch in blocks(words, BAND_WORDS, product.dtype.unit()) {
        over_panels(kernels, product, panels, tile, (stretch, Source::Matrix));
    }
}

/// As [`with_panels`], where rows of `A` do not lie in the form that is multiplied: those of a
/// stretch are packed once, as words or as numbers of f32, with room for whole microtiles.
fn with_band(
    kernels: Kernels,
    product: &Product<'_>,
    panels: &Panels<'_>,
    tile: &mut Tile<'_>,
    words: Range<usize>,
) {
    let mut packed = Band::new();
    for stretch in blocks(words, BAND_WORDS / kernels.variant.rows(1), product.dtype.unit()) {
        let rows = tile.first_row..tile.first_row + tile.rows;
        let start = pack_band(kernels.variant, product.lhs, rows, stretch.clone(), &mut packed);
        let source = Source::Band { start, first: stretch.start };
        over_panels(kernels, product, panels, tile, (stretch, source));
    }
}

/// All panels of a tile, over the words `words` of `A` where `source` says.
fn over_panels(
    kernels: Kernels,
    product: &Product<'_>,
    panels: &Panels<'_>,
    tile: &mut Tile<'_>,
    (words, source): (Range<usize>, Source),
) {
    let whole = product.dtype.words(panels.k);
    let mut widened = PanelBlock::new();
    for col in (0..tile.cols).step_by(PANEL_COLS) {
        let panel = (tile.first_col + col) / PANEL_COLS;
        let most = kernels.variant.block_words();
        for block in blocks(words.clone(), most, product.dtype.unit()) {
            let (start, end) = (panel * whole + block.start, panel * whole + block.end);
            let packed = &panels.data[start * PANEL_COLS..end * PANEL_COLS];
            let b = match kernels.variant {
                Variant::F32 | Variant::Words | Variant::Tiles => packed.as_ptr(),
                Variant::Widened | Variant::WidenedTiles => widen(packed, &mut widened),
            };
            // Of this panel, or of the next.
            let next = if block.end == words.end { (panel + 1) * whole + words.start } else { end };
            let following = panels.data.get(next * PANEL_COLS..).map_or(b, <[f32]>::as_ptr);
            let len = block.len();
            column(kernels, product, tile, col, (source, b), block, &|call| match call {
                // Two lines a step of k: the first two microtiles ask for all of them.
                0 | 1 => Ahead { start: following.wrapping_add(call * len * 16), stride: 16 },
                _ => Ahead { start: b, stride: 0 },
            });
        }
    }
}

/// Block after block of k: the block's part of `A` is packed once, then panel after panel of
/// `B`, all on the stack; the rows of the next block are asked for meanwhile.
fn with_rows(kernels: Kernels, product: &Product<'_>, matrix: Numbers<'_>, tile: &mut Tile<'_>) {
    let mut packed_a = PackedStrips([MaybeUninit::uninit(); PACKED_ELEMENTS]);
    let mut packed_b = PanelBlock::new();
    let Lhs::Columns(lhs) = product.lhs else {
        unreachable!("`check` lets plain rows go only with columns");
    };
    let (dtype, variant) = (product.dtype, kernels.variant);
    let parts = tile.rows.div_ceil(kernels.max_rows());
    let (row, col) = (tile.first_row, tile.first_col);
    // A microtile asks for one line of as many rows as a block has words; of bf16 twice as many
    // rows come.
    let halves = dtype.before(1);
    let lines_of = |count: usize, numbers: Numbers<'_>| halves * count.div_ceil(per_line(numbers));
    let lines = (lines_of(tile.cols, matrix), lines_of(tile.rows, lhs));
    let spacing = (tile.cols.div_ceil(PANEL_COLS) * parts / (lines.0 + lines.1)).max(1);
    for block in blocks(0..dtype.words(matrix.rows()), variant.block_words(), dtype.unit()) {
        let next = dtype.before(block.end);
        let rows = row..row + tile.rows;
        let a = pack_strips(kernels, lhs, block.clone(), rows, parts, &mut packed_a);
        if let Some(sums) = &mut tile.row_values {
            let samples = numbers_of(&block, matrix.rows());
            match variant {
                Variant::Tiles => add_rows(lhs, samples, row, sums),
                // SAFETY: the strips were just packed, with zeros where they have no row.
                _ => unsafe { add_strips(kernels, a, (parts, variant.rows(block.len())), sums) },
            }
        }
        for panel in 0..tile.cols.div_ceil(PANEL_COLS) {
            let first = panel * PANEL_COLS;
            let cols = col + first..col + (first + PANEL_COLS).min(tile.cols);
            let b = pack_panel(variant, matrix, block.clone(), cols, &mut packed_b);
            column(kernels, product, tile, first, (Source::Strips(a), b), block.clone(), &|part| {
                let call = panel * parts + part;
                // Spread over the block, so that they do not queue up.
                let line = if call.is_multiple_of(spacing) { call / spacing } else { usize::MAX };
                let k = next.saturating_add(line % halves * block.len());
                // Tiles pass by so fast that it would push out what they read.
                if variant == Variant::Tiles || k >= matrix.rows() || line >= lines.0 + lines.1 {
                    Ahead { start: b, stride: 0 }
                } else if line < lines.0 {
                    line_of(matrix, k, col + per_line(matrix) * (line / halves))
                } else {
                    line_of(lhs, k, row + per_line(lhs) * ((line - lines.0) / halves))
                }
            });
        }
    }
}

/// Numbers of a cache line.
fn per_line(matrix: Numbers<'_>) -> usize {
    match matrix {
        Numbers::F32(_) => 16,
        Numbers::Bf16(_) => 32,
    }
}

/// The cache line that has column `col` of row `row`, and those below it.
fn line_of(matrix: Numbers<'_>, row: usize, col: usize) -> Ahead {
    match matrix {
        Numbers::F32(matrix) => {
            Ahead { start: matrix.row(row)[col..].as_ptr(), stride: matrix.stride() }
        }
        Numbers::Bf16(matrix) => {
            Ahead { start: matrix.row(row)[col..].as_ptr().cast(), stride: matrix.stride() / 2 }
        }
    }
}

/// One panel of columns of a tile over one block of k: all its rows, microtile by microtile.
///
/// `block` is in words; `ahead(n)` says what microtile `n` asks for.
fn column(
    kernels: Kernels,
    product: &Product<'_>,
    tile: &mut Tile<'_>,
    col: usize,
    (source, b): (Source, *const f32),
    block: Range<usize>,
    ahead: &dyn Fn(usize) -> Ahead,
) {
    let (dtype, variant) = (product.dtype, kernels.variant);
    let k = product.shape().0.1;
    let last = block.end == dtype.words(k);
    if let (Source::Matrix, Lhs::Words(lhs)) = (source, product.lhs) {
        assert!(!kernels.reads_beyond(lhs, tile), "microtiles stay inside the matrix");
    }
    // Microtiles as even as can be: 64 rows are 13 + 13 + 13 + 13 + 12, not 14 + 14 + 14 + 14 + 8.
    let (rows, parts) = (tile.rows, tile.rows.div_ceil(kernels.max_rows()));
    for part in 0..parts {
        let (first, end) = (part * rows / parts, (part + 1) * rows / parts);
        let row = tile.first_row + first;
        let (a, a_stride, columns) = match (source, product.lhs) {
            (Source::Matrix, Lhs::Rows(a)) => {
                (a.row(row)[dtype.before(block.start)..].as_ptr(), a.stride(), false)
            }
            (Source::Matrix, Lhs::Words(a)) => {
                (a.row(row)[dtype.before(block.start)..].as_ptr().cast(), a.stride() / 2, false)
            }
            (Source::Band { start, first: before }, _) => {
                let at = first * BAND_STRIDE + variant.rows(block.start - before);
                // SAFETY: row `first` of the tile was packed before, from word `before` on.
                (unsafe { start.add(at) }, BAND_STRIDE, false)
            }
            (Source::Matrix, Lhs::Columns(_)) => unreachable!("columns are packed as strips"),
            (Source::Strips(strips), _) => {
                let (stride, by_columns) = kernels.strip_stride();
                // SAFETY: strip `part` of the block was packed before.
                let strip = unsafe { strips.add(part * kernels.strip_elements(block.len())) };
                (strip, stride, by_columns)
            }
        };
        let micro = Micro {
            variant,
            a,
            a_stride,
            columns,
            b,
            k: match (variant, columns) {
                // Rows of the matrix end where they end.
                (Variant::Widened | Variant::WidenedTiles, false) => {
                    k.min(2 * block.end) - 2 * block.start
                }
                _ => variant.rows(block.len()),
            },
            // SAFETY: `first` and `col` are inside the tile.
            c: unsafe { tile.start.add(first * tile.stride + col) },
            c_stride: tile.stride,
            rows: end - first,
            cols: PANEL_COLS.min(tile.cols - col),
            continues: product.accumulate || block.start > 0,
            epilogue: if last {
                MicroFinish::at(&product.epilogue, row, tile.first_col + col)
            } else {
                MicroFinish::NONE
            },
            ahead: ahead(part),
        };
        // SAFETY: `check` and the loops above keep every pointer's range inside its matrix.
        unsafe { run(kernels.isa, &micro) };
    }
}

/// Runs the microkernel of `isa`.
///
/// # Safety
/// The processor has `isa`, and bf16's instructions for words. The pointers of `micro` cover what
/// its shape says, which one microtile can hold.
unsafe fn run(isa: Isa, micro: &Micro) {
    // SAFETY: passed on to the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if micro.variant == Variant::Tiles => amx::run(micro),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::run(micro),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run(micro),
            _ => fallback::run(micro),
        }
    }
}
