//! One tile of a product: blocks of depth, panels of columns, and the microkernel of this processor.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod fallback;

use super::{Finish, Left, PANEL_COLS, Product, Right};
use crate::vector::Tile;
use headlong_device::MatRef;
use headlong_device::vector::{Isa, isa};
use std::mem::MaybeUninit;

/// Depth of a block: a panel of this depth takes 32 KiB, two thirds of the first-level cache.
const BLOCK_DEPTH: usize = 256;

/// Work for a microkernel: `rows × cols` elements of `C`, at most one panel wide.
#[derive(Clone, Copy)]
struct Micro {
    a: *const f32,
    /// Elements from `a(i, k)` to `a(i + 1, k)` for [`Left::Rows`], to `a(i, k + 1)` for [`Left::Columns`].
    a_stride: usize,
    /// Whether `A` lies by columns.
    columns: bool,
    /// `depth` rows of [`PANEL_COLS`] elements.
    b: *const f32,
    depth: usize,
    c: *mut f32,
    c_stride: usize,
    rows: usize,
    /// 1 to [`PANEL_COLS`].
    cols: usize,
    /// Whether chains start from what `C` holds.
    continues: bool,
    finish: MicroFinish,
}

/// The tail of [`Finish`] that belongs to a microkernel's place; null pointers where a part is absent.
#[derive(Clone, Copy)]
struct MicroFinish {
    bias: *const f32,
    relu: bool,
    mask: *const f32,
    mask_stride: usize,
}

impl MicroFinish {
    const NONE: Self = Self { bias: std::ptr::null(), relu: false, mask: std::ptr::null(), mask_stride: 0 };

    fn at(finish: &Finish<'_>, row: usize, col: usize) -> Self {
        Self {
            bias: finish.bias.map_or(std::ptr::null(), |bias| bias[col..].as_ptr()),
            relu: finish.relu,
            mask: finish.mask.map_or(std::ptr::null(), |mask| mask.row(row)[col..].as_ptr()),
            mask_stride: finish.mask.map_or(0, |mask| mask.stride()),
        }
    }
}

/// Computes the elements of `product` that `tile` covers.
pub fn compute(product: &Product<'_>, mut tile: Tile<'_>) {
    let depth = product.shape().0.1;
    let blocks = depth.div_ceil(BLOCK_DEPTH).max(1);
    let mut packed = MaybeUninit::<[f32; BLOCK_DEPTH * PANEL_COLS]>::uninit();
    for block in 0..blocks {
        let (k0, k1) = (block * depth / blocks, (block + 1) * depth / blocks);
        for col in (0..tile.cols()).step_by(PANEL_COLS) {
            let b = match product.right {
                Right::Panels(panels) => {
                    let panel = (tile.first_col + col) / PANEL_COLS;
                    panels.data[(panel * depth + k0) * PANEL_COLS..].as_ptr()
                }
                Right::Rows(matrix) => {
                    let cols = PANEL_COLS.min(tile.cols() - col);
                    pack_block(matrix, k0..k1, tile.first_col + col..tile.first_col + col + cols, &mut packed)
                }
            };
            column(product, &mut tile, col, b, k0..k1);
        }
    }
}

/// One panel of columns of a tile over one block of depth: all its rows, microtile by microtile.
fn column(
    product: &Product<'_>,
    tile: &mut Tile<'_>,
    col: usize,
    b: *const f32,
    block: std::ops::Range<usize>,
) {
    let depth = product.shape().0.1;
    let rows = tile.rows();
    let isa = isa();
    let most = match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::MAX_ROWS,
        _ => fallback::MAX_ROWS,
    };
    // Microtiles as even as can be: 64 rows are 13 + 13 + 13 + 13 + 12, not 14 + 14 + 14 + 14 + 8.
    let parts = rows.div_ceil(most);
    for part in 0..parts {
        let (first, end) = (part * rows / parts, (part + 1) * rows / parts);
        let row = tile.first_row + first;
        let (a, a_stride, columns) = match product.left {
            Left::Rows(a) => (a.row(row)[block.start..].as_ptr(), a.stride(), false),
            Left::Columns(a) if block.is_empty() => (a.data().as_ptr(), a.stride(), true),
            Left::Columns(a) => (a.row(block.start)[row..].as_ptr(), a.stride(), true),
        };
        let last = block.end == depth;
        let micro = Micro {
            a,
            a_stride,
            columns,
            b,
            depth: block.len(),
            // SAFETY: `first` and `col` are inside the tile.
            c: unsafe { tile.as_mut_ptr().add(first * tile.stride() + col) },
            c_stride: tile.stride(),
            rows: end - first,
            cols: PANEL_COLS.min(tile.cols() - col),
            continues: product.accumulate || block.start > 0,
            finish: match last {
                true => MicroFinish::at(&product.finish, row, tile.first_col + col),
                false => MicroFinish::NONE,
            },
        };
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has AVX-512; `check` and the loops above keep every pointer's range inside its matrix.
            Isa::Avx512 => unsafe { avx512::run(&micro) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above, for AVX2 and FMA.
            Isa::Avx2 => unsafe { fallback::run_avx2(&micro) },
            // SAFETY: as above; no feature is needed.
            _ => unsafe { fallback::run(&micro) },
        }
    }
}

/// Copies a block of `matrix` into a panel on the stack, zeros beyond its columns.
fn pack_block(
    matrix: MatRef<'_>,
    depth: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
    packed: &mut MaybeUninit<[f32; BLOCK_DEPTH * PANEL_COLS]>,
) -> *const f32 {
    assert!(depth.len() <= BLOCK_DEPTH, "a block fits its buffer");
    let start = packed.as_mut_ptr().cast::<f32>();
    for (i, k) in depth.enumerate() {
        let row = &matrix.row(k)[cols.clone()];
        // SAFETY: row `i` of the panel lies inside the buffer; it is written in full, so that no element stays unset.
        unsafe {
            let target = start.add(i * PANEL_COLS);
            std::ptr::copy_nonoverlapping(row.as_ptr(), target, row.len());
            std::ptr::write_bytes(target.add(row.len()), 0, PANEL_COLS - row.len());
        }
    }
    start
}
