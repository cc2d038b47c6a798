//! Packing a right factor into panels.

use super::vector::{copy_panel, transpose_panel};
use headlong_device::MatRef;

/// Columns of a panel: two 512-bit vectors.
pub const PANEL_COLS: usize = 32;

/// Elements that the panels of a `depth × cols` factor take.
pub const fn panel_elements(depth: usize, cols: usize) -> usize {
    depth * cols.div_ceil(PANEL_COLS) * PANEL_COLS
}

/// Packs panel `panel` of `B = matrix`: `panel_data[k·32 + c] = matrix(k, 32·panel + c)`, zeros beyond the last column.
pub fn pack_columns(matrix: MatRef<'_>, panel: usize, panel_data: &mut [f32]) {
    let first = panel * PANEL_COLS;
    copy_panel(matrix, first..matrix.cols().min(first + PANEL_COLS), panel_data);
}

/// Packs panel `panel` of `B = matrixᵀ`: `panel_data[k·32 + c] = matrix(32·panel + c, k)`, zeros beyond the last row.
pub fn pack_transposed(matrix: MatRef<'_>, panel: usize, panel_data: &mut [f32]) {
    let first = panel * PANEL_COLS;
    transpose_panel(matrix, first..matrix.rows().min(first + PANEL_COLS), panel_data);
}
