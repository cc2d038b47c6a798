//! Matrix products with a fixed order of addition, the floor under the dense layers.
//!
//! # What it computes
//! `C = finish(C₀ + A·B)`: every element is one chain `c ← fma(a(i,k), b(k,j), c)` over
//! `k = 0, 1, …`, starting from zero, or from what `C` holds when [`Product::accumulate`] is set.
//! So an element depends only on its row of `A` and its column of `B`: not on the tile it falls
//! in, on its place in the batch, on the number of threads or on the instruction set.
//!
//! Factors in bf16 have two other orders: two steps of k are one, the odd one added first
//! ([`FactorType::Bf16`]), or 32 are ([`FactorType::Bf16Tiles`]).
//!
//! # Shapes
//! `A` is `m × k`, `B` is `k × n`, `C` is `m × n`; f32, or, where factors are bf16, of 16 bits.
//! Either `A` lies by rows and is read where it lies, and `B` comes as [`Panels`], packed
//! beforehand; or `A` lies by columns and `B` by rows, and both are packed block by block on the
//! stack.
//!
//! # Errors
//! None; a shape that does not fit is a bug of the caller and panics.
//!
//! # Source
//! Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3),
//! 2008; why our own kernel: `docs/decisions/001-gemm.md`.

mod pack;
mod simd;
#[cfg(test)]
mod tests;

pub use pack::{PANEL_COLS, pack_columns, pack_transposed, panel_elements};

use crate::simd::{Tile, for_each_tile};
use half::bf16;
use headlong_device::pool::Pool;
use headlong_device::{MatMut, MatRef};
use simd::{Kernels, Variant};

/// Of what type both factors are. Sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FactorType {
    /// f32.
    #[default]
    F32,
    /// bf16, as the upper half of each f32; lower halves are zero in matrices, and rounded away
    /// where weights are packed. The chain is that of `vdpbf16ps`:
    /// `c ← fma(a(i,2k), b(2k,j), fma(a(i,2k+1), b(2k+1,j), c))`, where numbers below 2⁻¹²⁶ are
    /// zero.
    Bf16,
    /// bf16 as there, added up as `tdpbf16ps` does (AMX): of [`GROUP`] steps of k, zeros after the
    /// last, those of even k are one chain from zero and those of odd k another, and
    /// `c ← c + (even + odd)`, where numbers below 2⁻¹²⁶ are zero.
    Bf16Tiles,
}

/// Steps of k that [`FactorType::Bf16Tiles`] adds up before they are added to a sum.
pub const GROUP: usize = 32;

impl FactorType {
    /// 32-bit words of `k` packed numbers: two of bf16 in one, the first in its lower half,
    /// zero after the last; of tiles, whole groups.
    pub const fn words(self, k: usize) -> usize {
        match self {
            FactorType::F32 => k,
            FactorType::Bf16 => k.div_ceil(2),
            FactorType::Bf16Tiles => k.div_ceil(GROUP) * (GROUP / 2),
        }
    }

    /// Whether factors are bf16.
    pub const fn is_bf16(self) -> bool {
        matches!(self, FactorType::Bf16 | FactorType::Bf16Tiles)
    }

    /// Numbers before word `word`.
    const fn before(self, word: usize) -> usize {
        if self.is_bf16() { 2 * word } else { word }
    }

    /// Words that blocks of k are whole multiples of.
    const fn unit(self) -> usize {
        match self {
            FactorType::F32 | FactorType::Bf16 => 1,
            FactorType::Bf16Tiles => GROUP / 2,
        }
    }
}

/// A factor that lies as a matrix.
#[derive(Debug, Clone, Copy)]
pub enum Numbers<'a> {
    /// f32; where products take bf16, with zeros in their lower halves.
    F32(MatRef<'a>),
    /// bf16.
    Bf16(MatRef<'a, bf16>),
}

impl Numbers<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Numbers::F32(matrix) => matrix.rows(),
            Numbers::Bf16(matrix) => matrix.rows(),
        }
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        match self {
            Numbers::F32(matrix) => matrix.cols(),
            Numbers::Bf16(matrix) => matrix.cols(),
        }
    }

    /// The rows `first .. first + count`.
    pub fn rows_range(&self, first: usize, count: usize) -> Self {
        match self {
            Numbers::F32(matrix) => Numbers::F32(matrix.rows_range(first, count)),
            Numbers::Bf16(matrix) => Numbers::Bf16(matrix.rows_range(first, count)),
        }
    }

    /// Whether these are numbers of bf16.
    fn are_bf16(&self) -> bool {
        match self {
            Numbers::F32(matrix) => (0..matrix.rows())
                .all(|row| matrix.row(row).iter().all(|value| value.to_bits() & 0xffff == 0)),
            Numbers::Bf16(_) => true,
        }
    }
}

/// The left factor `A`, `m × k`.
#[derive(Debug, Clone, Copy)]
pub enum Lhs<'a> {
    /// The matrix as it lies: `a(i, k)` is column `k` of row `i`.
    Rows(MatRef<'a>),
    /// As it lies, of bf16, its rows filled up with zeros to whole words ([`FactorType::words`]).
    Words(MatRef<'a, bf16>),
    /// The transpose of the matrix: `a(i, k)` is column `i` of row `k`.
    Columns(Numbers<'a>),
}

/// The right factor `B`, `k × n`.
#[derive(Debug, Clone, Copy)]
pub enum Rhs<'a> {
    /// Packed beforehand.
    Panels(Panels<'a>),
    /// The matrix as it lies: `b(k, j)` is column `j` of row `k`.
    Rows(Numbers<'a>),
}

/// A right factor packed as panels of [`PANEL_COLS`] columns, zeros beyond the last:
/// `b(i, 32·p + c)` lies at `data[(p·k + i)·32 + c]`; of bf16 the words lie there,
/// [`FactorType::words`] in place of `k`.
#[derive(Debug, Clone, Copy)]
pub struct Panels<'a> {
    /// The panels, one after the other.
    pub data: &'a [f32],
    /// Rows of the factor.
    pub k: usize,
    /// Columns of the factor.
    pub cols: usize,
}

/// What is done to a finished element before it is stored, as a `T`, in this order; only for
/// products with [`Panels`].
#[derive(Debug, Clone, Copy)]
pub struct Epilogue<'a, T = f32> {
    /// Added to each row; `n` elements.
    pub bias: Option<&'a [f32]>,
    /// Negative results become zero (NaN stays NaN).
    pub relu: bool,
    /// Results become zero where this matrix, `m × n`, is not above zero: the ReLU's derivative by
    /// its output.
    pub mask: Option<MatRef<'a, T>>,
    /// Results are rounded to bf16, for the products that take them; stored as such they are so
    /// without being told.
    pub round: bool,
}

impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Self { bias: None, relu: false, mask: None, round: false }
    }
}

impl<T> Epilogue<'_, T> {
    /// Panics where a part does not fit a product of `m × n` elements.
    fn check(&self, (m, n): (usize, usize)) {
        assert!(self.bias.is_none_or(|bias| bias.len() == n), "one bias per column");
        let fits = self.mask.as_ref().is_none_or(|mask| (mask.rows(), mask.cols()) == (m, n));
        assert!(fits, "the mask has the shape of the product");
    }
}

impl Epilogue<'_> {
    fn any(&self) -> bool {
        self.bias.is_some() || self.relu || self.mask.is_some() || self.round
    }
}

/// A product to be computed.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// What `A` and `B` hold.
    pub dtype: FactorType,
    /// `A`.
    pub lhs: Lhs<'a>,
    /// `B`.
    pub rhs: Rhs<'a>,
    /// Applied to finished elements.
    pub epilogue: Epilogue<'a>,
    /// Whether to add to what `C` holds.
    pub accumulate: bool,
}

impl Product<'_> {
    /// `(m, k)` of the left and `(k, n)` of the right factor.
    fn shape(&self) -> ((usize, usize), (usize, usize)) {
        let rhs = match self.rhs {
            Rhs::Panels(b) => (b.k, b.cols),
            Rhs::Rows(b) => (b.rows(), b.cols()),
        };
        let lhs = match self.lhs {
            Lhs::Rows(a) => (a.rows(), a.cols()),
            Lhs::Words(a) if a.cols() == 2 * self.dtype.words(rhs.0) => (a.rows(), rhs.0),
            Lhs::Words(a) => (a.rows(), a.cols()),
            Lhs::Columns(a) => (a.cols(), a.rows()),
        };
        (lhs, rhs)
    }

    /// Whether the factors that lie as matrices are bf16, with zeros where rows are filled up.
    fn holds_bf16(&self) -> bool {
        let is_lhs = match self.lhs {
            Lhs::Rows(lhs) => Numbers::F32(lhs).are_bf16(),
            Lhs::Words(lhs) => (0..lhs.rows()).all(|row| {
                lhs.row(row)[self.shape().0.1..].iter().all(|number| number.to_bits() == 0)
            }),
            Lhs::Columns(lhs) => lhs.are_bf16(),
        };
        is_lhs
            && match self.rhs {
                Rhs::Rows(rhs) => rhs.are_bf16(),
                Rhs::Panels(_) => true,
            }
    }

    fn check(&self, c: (usize, usize)) {
        let ((m, k), (right_k, n)) = self.shape();
        assert_eq!(k, right_k, "columns of the left factor and rows of the right one");
        assert_eq!(c, (m, n), "shape of the product of {m} × {k} and {k} × {n}");
        let panels = matches!(self.rhs, Rhs::Panels(_));
        assert_eq!(
            panels,
            !matches!(self.lhs, Lhs::Columns(_)),
            "rows go with panels, columns with plain rows"
        );
        if let Rhs::Panels(b) = self.rhs {
            assert_eq!(
                b.data.len(),
                panel_elements(self.dtype, b.k, b.cols),
                "panels of a {} × {} factor",
                b.k,
                n
            );
        }
        assert!(panels || !self.epilogue.any(), "only products with panels are finished");
        let in_16_bits = match (self.lhs, self.rhs) {
            (Lhs::Words(_) | Lhs::Columns(Numbers::Bf16(_)), _) => true,
            (_, Rhs::Rows(rhs)) => matches!(rhs, Numbers::Bf16(_)),
            _ => false,
        };
        assert!(self.dtype.is_bf16() || !in_16_bits, "factors of 16 bits are multiplied as bf16");
        if let Lhs::Words(a) = self.lhs {
            assert!(a.stride().is_multiple_of(2), "rows start with a word");
        }
        debug_assert!(!self.dtype.is_bf16() || self.holds_bf16(), "factors are bf16");
        self.epilogue.check(c);
    }
}

/// Computes `product` into `c`, tile by tile over the pool. Blocks until done; allocates nothing.
pub fn run(pool: &Pool, product: &Product<'_>, c: MatMut<'_>) {
    run_tiles(pool, product, c, None);
}

/// As [`run`], without an epilogue of the product's own, into bf16, finished by `epilogue` and
/// rounded: sums are f32. Meant for [`Lhs::Words`] that are read where they lie: what has to be
/// packed, tiles of AMX that would end beyond the matrix among it, is packed again for each few
/// panels.
pub fn run_into_bf16(
    pool: &Pool,
    product: &Product<'_>,
    epilogue: &Epilogue<'_, bf16>,
    c: MatMut<'_, bf16>,
) {
    let shape = (c.rows(), c.cols());
    product.check(shape);
    epilogue.check(shape);
    let is_bare = !product.epilogue.any();
    assert!(is_bare && matches!(product.rhs, Rhs::Panels(_)), "sums of rows and panels");
    let kernels = Kernels::of(product.dtype);
    let tile = tile_shape(pool.threads(), kernels, product, shape);
    let compute = |tile: Tile<'_, bf16>| simd::compute_bf16(kernels, product, epilogue, tile);
    for_each_tile(pool, c, None, tile, &compute);
}

/// As [`run`] for a left factor by columns, and in the same pass its row sums, one chain of
/// additions each: `sums[i]` is `Σ a(i, k)` over `k = 0, 1, …`, added to what it holds where the
/// product accumulates.
pub fn run_with_row_sums(pool: &Pool, product: &Product<'_>, c: MatMut<'_>, sums: &mut [f32]) {
    assert!(matches!(product.lhs, Lhs::Columns(_)), "row sums are taken while columns are packed");
    if !product.accumulate {
        sums.fill(0.0);
    }
    run_tiles(pool, product, c, Some(sums));
}

fn run_tiles(pool: &Pool, product: &Product<'_>, c: MatMut<'_>, sums: Option<&mut [f32]>) {
    product.check((c.rows(), c.cols()));
    let kernels = Kernels::of(product.dtype);
    let tile = tile_shape(pool.threads(), kernels, product, (c.rows(), c.cols()));
    for_each_tile(pool, c, sums, tile, &|tile| simd::compute(kernels, product, tile));
}

/// Multiplies tiles of AMX `rounds` times, four pairs of 16 × 32 and 32 × 16 numbers a round,
/// without reading memory. Returns the FLOP done; 0 where this thread may not use tiles.
pub fn multiply_tiles(rounds: u64) -> u64 {
    simd::multiply_tiles(rounds)
}

/// Rows and columns of a tile. They change speed only: every element is the same chain wherever it
/// is computed.
fn tile_shape(
    threads: usize,
    kernels: Kernels,
    product: &Product<'_>,
    (rows, cols): (usize, usize),
) -> (usize, usize) {
    // Large tiles read the factors less often; some tiles for each thread keep all of them busy to
    // the end.
    let least = if threads == 1 { 1 } else { 4 * threads };
    let choose = |sides: &[usize], tiles: &dyn Fn(usize) -> usize| {
        let smallest = sides[sides.len() - 1];
        sides.iter().copied().find(|&side| tiles(side) >= least).unwrap_or(smallest)
    };
    match product.rhs {
        // A band of rows stays in the second-level cache while all panels pass by.
        Rhs::Panels(panels) => {
            let sides: &[usize] = match (kernels.variant, product.lhs) {
                // Rows that are not packed come from there for each panel, a stretch of them.
                (Variant::Words | Variant::Tiles, Lhs::Words(_)) => {
                    // Two bands at once only where they fill the matrix: no row is packed then.
                    let is_short = product.dtype.words(panels.k) <= simd::BAND_WORDS / 2;
                    match is_short && rows.is_multiple_of(2 * simd::BAND_ROWS) {
                        true => &[2 * simd::BAND_ROWS, simd::BAND_ROWS, 128, 64],
                        false => &[simd::BAND_ROWS, 128, 64],
                    }
                }
                (Variant::Words | Variant::Tiles, _) => &[simd::BAND_ROWS, 64],
                (Variant::F32 | Variant::Widened | Variant::WidenedTiles, _) => &[256, 128, 64],
            };
            (even(rows, choose(sides, &|side| rows.div_ceil(side))), cols.max(1))
        }
        Rhs::Rows(_) if kernels.variant == Variant::Tiles => {
            // Rows that are 4 KiB apart share sets of the caches.
            let most = if cols.is_multiple_of(1024) { 256 } else { kernels.max_packed_rows() };
            even_tiles(threads, (rows, cols), most)
        }
        Rhs::Rows(_) => {
            let side =
                choose(&[256, 192, 128, 64], &|side| rows.div_ceil(side) * cols.div_ceil(side));
            let tile_rows = even(rows, side.min(kernels.max_packed_rows()));
            (tile_rows, even(cols, side).next_multiple_of(PANEL_COLS))
        }
    }
}

/// Tiles of AMX whose factors are packed: those that take the busiest thread least time. Packing a
/// number takes as long as so many products.
fn even_tiles(threads: usize, (rows, cols): (usize, usize), most_rows: usize) -> (usize, usize) {
    const PACKING: usize = 150;
    // Whole microtiles: sums of others do not lie as tiles are loaded.
    let whole = |len: usize| len.next_multiple_of(PANEL_COLS);
    let tile = |height, width| {
        let height = even(rows, most_rows.min(height));
        let height = if whole(height) <= most_rows { whole(height) } else { height };
        (height.min(rows), whole(even(cols, width)))
    };
    let time = |&(height, width): &(usize, usize)| {
        let tiles = rows.div_ceil(height) * cols.div_ceil(width);
        tiles.div_ceil(threads) * (height * width + PACKING * (height + width))
    };
    const SIDES: [usize; 6] = [1024, 512, 256, 192, 128, 64];
    let tiles = SIDES.iter().flat_map(|&height| SIDES.iter().map(move |&width| (height, width)));
    let tiles = tiles.map(|(height, width)| tile(height, width));
    // A tile of sums, 1 MiB of f32, lies in the second-level cache.
    tiles.filter(|(height, width)| height * width <= 1 << 18).min_by_key(time).expect("small sides")
}

/// The length of the longest of as few equal parts of `total` as are none longer than `most`.
fn even(total: usize, most: usize) -> usize {
    total.div_ceil(total.div_ceil(most).max(1)).max(1)
}
