//! PyTorch's run of a small DLRM as data: the safetensors files of `fixtures/`.

use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;

/// Steps of the run.
pub const STEPS: usize = 10;
/// Samples of a batch.
pub const BATCH: usize = 16;
/// Rows of each table.
pub const ROWS: [u64; 4] = [7, 20, 3, 50];

/// Tensors by name, in f64 whatever they are stored in.
pub type Tensors = BTreeMap<String, Vec<f64>>;

macro_rules! fixtures {
    ($($name:literal)*) => {
        /// The files of the fixtures' folder, which travel inside of the test: to a GPU.
        const FIXTURES: &[(&str, &[u8])] =
            &[$((concat!($name, ".safetensors"),
                include_bytes!(concat!("../fixtures/", $name, ".safetensors")))),*];
    };
}

fixtures! {
    "dcn_adagrad_bounds" "dcn_adagrad_f32" "dcn_adagrad_f64" "dcn_inputs" "dcn_sgd_bounds"
    "dcn_sgd_f32" "dcn_sgd_f64" "dlrm_adagrad_bounds" "dlrm_adagrad_f32" "dlrm_adagrad_f64"
    "dlrm_inputs" "dlrm_sgd_bounds" "dlrm_sgd_f32" "dlrm_sgd_f64"
}

/// Reads a file of the fixtures' folder.
pub fn load(name: &str) -> Tensors {
    let found = FIXTURES.iter().find(|(found, _)| *found == name);
    let (_, bytes) = found.unwrap_or_else(|| panic!("there is no fixture {name}"));
    let file = SafeTensors::deserialize(bytes).unwrap();
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, numbers(view.dtype(), view.data())))
        .collect()
}

fn numbers(dtype: Dtype, data: &[u8]) -> Vec<f64> {
    let wide = |chunk: &[u8]| chunk.try_into().unwrap();
    match dtype {
        Dtype::F32 => data
            .chunks_exact(4)
            .map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap())))
            .collect(),
        Dtype::F64 => data.chunks_exact(8).map(|c| f64::from_le_bytes(wide(c))).collect(),
        Dtype::I64 => data.chunks_exact(8).map(|c| i64::from_le_bytes(wide(c)) as f64).collect(),
        other => panic!("the fixtures hold no {other:?}"),
    }
}

/// Fails with the largest excess when `got` leaves the bound around `expected` anywhere; returns
/// the largest share of the bound that was used.
pub fn within(name: &str, got: &[f32], expected: &[f64], bound: &[f64]) -> f64 {
    assert_eq!(
        (got.len(), bound.len()),
        (expected.len(), expected.len()),
        "{name}: number of elements"
    );
    let mut most = 0.0_f64;
    for (index, ((&got, &expected), &bound)) in got.iter().zip(expected).zip(bound).enumerate() {
        let distance = (f64::from(got) - expected).abs();
        assert!(
            distance <= bound,
            "{name}[{index}]: got {got}, expected {expected}, {distance:.2e} off; the bound is \
             {bound:.2e}"
        );
        most = most.max(if bound > 0.0 { distance / bound } else { 0.0 });
    }
    most
}
