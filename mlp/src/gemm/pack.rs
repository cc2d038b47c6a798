//! Packing a right factor into panels.

use super::FactorType;
use super::simd::{copy_panel, pair_panel, pair_transposed_panel, transpose_panel};
use headlong_device::MatRef;

/// Columns of a panel: two 512-bit vectors.
pub const PANEL_COLS: usize = 32;

/// Elements, or words of two, that the panels of a `k × cols` factor take.
pub const fn panel_elements(dtype: FactorType, k: usize, cols: usize) -> usize {
    dtype.words(k) * cols.div_ceil(PANEL_COLS) * PANEL_COLS
}

/// Packs panel `panel` of `B = matrix`: `panel_data[k·32 + c] = matrix(k, 32·panel + c)`, zeros
/// beyond the last column. Of bf16, word `k` holds the rows `2k` and `2k + 1`, rounded; zeros fill
/// words beyond the last row.
pub fn pack_columns(dtype: FactorType, matrix: MatRef<'_>, panel: usize, panel_data: &mut [f32]) {
    let first = panel * PANEL_COLS;
    let cols = first..matrix.cols().min(first + PANEL_COLS);
    match dtype {
        FactorType::F32 => copy_panel(matrix, cols, panel_data),
        FactorType::Bf16 | FactorType::Bf16Tiles => pair_panel(matrix, cols, panel_data),
    }
}

/// Packs panel `panel` of `B = matrixᵀ`: `panel_data[k·32 + c] = matrix(32·panel + c, k)`, zeros
/// beyond the last row. Of bf16, word `k` holds the columns `2k` and `2k + 1`, rounded.
pub fn pack_transposed(
    dtype: FactorType,
    matrix: MatRef<'_>,
    panel: usize,
    panel_data: &mut [f32],
) {
    let first = panel * PANEL_COLS;
    let rows = first..matrix.rows().min(first + PANEL_COLS);
    match dtype {
        FactorType::F32 => transpose_panel(matrix, rows, panel_data),
        FactorType::Bf16 | FactorType::Bf16Tiles => pair_transposed_panel(matrix, rows, panel_data),
    }
}
