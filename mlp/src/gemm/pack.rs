//! Packing a right factor into panels.

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
    let count = PANEL_COLS.min(matrix.cols() - first);
    assert_eq!(panel_data.len(), matrix.rows() * PANEL_COLS, "one panel");
    for (k, packed) in panel_data.chunks_exact_mut(PANEL_COLS).enumerate() {
        let (values, padding) = packed.split_at_mut(count);
        values.copy_from_slice(&matrix.row(k)[first..first + count]);
        padding.fill(0.0);
    }
}

/// Packs panel `panel` of `B = matrixᵀ`: `panel_data[k·32 + c] = matrix(32·panel + c, k)`, zeros beyond the last row.
pub fn pack_transposed(matrix: MatRef<'_>, panel: usize, panel_data: &mut [f32]) {
    let first = panel * PANEL_COLS;
    let count = PANEL_COLS.min(matrix.rows() - first);
    assert_eq!(panel_data.len(), matrix.cols() * PANEL_COLS, "one panel");
    if count < PANEL_COLS {
        panel_data.fill(0.0);
    }
    // Sixteen columns of the matrix at a time: one cache line of each row, and of the panel what fits the first level.
    let depth = matrix.cols();
    for k0 in (0..depth).step_by(16) {
        let k1 = depth.min(k0 + 16);
        for c in 0..count {
            let row = &matrix.row(first + c)[k0..k1];
            for (k, &value) in row.iter().enumerate() {
                panel_data[(k0 + k) * PANEL_COLS + c] = value;
            }
        }
    }
}
