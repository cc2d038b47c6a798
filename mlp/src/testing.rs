//! Matrices for this crate's tests.

use headlong_device::{ArenaPlan, DType, Mat, Stream};

/// A dense matrix of an arena of its own in host memory, filled with `data` where there is any.
pub fn frozen(name: &str, rows: usize, cols: usize, data: &[f32]) -> Mat {
    frozen_on(&Stream::cpu(1), name, rows, cols, data)
}

/// As [`frozen`], in the memory of the stream's device.
pub fn frozen_on(stream: &Stream, name: &str, rows: usize, cols: usize, data: &[f32]) -> Mat {
    part(stream, name, (rows, cols), cols, data)
}

/// The same, with seven elements of NaN between the rows: reading them shows.
pub fn wide_on(stream: &Stream, name: &str, rows: usize, cols: usize, data: &[f32]) -> Mat {
    part(stream, name, (rows, cols), cols + 7, data)
}

fn part(
    stream: &Stream,
    name: &str,
    (rows, cols): (usize, usize),
    stride: usize,
    data: &[f32],
) -> Mat {
    let mut plan = ArenaPlan::new(name);
    let slot = plan.matrix(name, DType::F32, rows, stride);
    let whole = plan.freeze_on(stream).unwrap().mat(slot);
    whole.copy_from(&vec![f32::NAN; rows * stride]).unwrap();
    let mat = whole.columns(0, cols);
    if !data.is_empty() {
        mat.copy_from(data).unwrap();
    }
    mat
}

/// The elements of a matrix, row after row, once all work of its device is done.
pub fn values(mat: &Mat) -> Vec<f32> {
    mat.to_vec::<f32>().unwrap()
}
