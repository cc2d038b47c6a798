//! Matrices for this crate's tests.

use headlong_device::{ArenaPlan, DType, Mat};

/// A dense matrix of an arena of its own, filled with `data` where there is any.
pub fn frozen(name: &str, rows: usize, cols: usize, data: &[f32]) -> Mat {
    part(name, (rows, cols), cols, data)
}

/// As [`frozen`], with seven elements of NaN between the rows: whoever reads them shows.
pub fn wide(name: &str, rows: usize, cols: usize, data: &[f32]) -> Mat {
    part(name, (rows, cols), cols + 7, data)
}

fn part(name: &str, (rows, cols): (usize, usize), stride: usize, data: &[f32]) -> Mat {
    let mut plan = ArenaPlan::new(name);
    let slot = plan.matrix(name, DType::F32, rows, stride);
    let whole = plan.freeze().unwrap().mat(slot);
    whole.write::<f32>().data_mut().fill(f32::NAN);
    let mat = whole.columns(0, cols);
    for (row, values) in data.chunks(cols.max(1)).enumerate() {
        mat.write::<f32>().row_mut(row).copy_from_slice(values);
    }
    mat
}

/// The elements of a matrix, row after row.
pub fn values(mat: &Mat) -> Vec<f32> {
    let guard = mat.read::<f32>();
    (0..mat.rows()).flat_map(|row| guard.row(row).to_vec()).collect()
}
