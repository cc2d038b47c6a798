//! The model shapes that programs are compared at; the same as in `benches/peers/common.py`.

use crate::config::preset::{KAGGLE_CARDINALITIES, TERABYTE_40M_CARDINALITIES};
use headlong_reader::formats::records::DCNV2_HOTNESS;

/// Largest table of the Terabyte shape unless asked otherwise: 5.0 M rows in all, 2.4 GiB.
pub const ROW_CAP: u64 = 648_000;

pub const NUM_DENSE: usize = 13;

#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// `C1`, `C2` or `C3`.
    pub name: &'static str,
    pub dim: usize,
    /// Widths of the bottom MLP after its input.
    pub bottom: Vec<usize>,
    /// Widths of the top MLP after its input.
    pub top: Vec<usize>,
    pub rows: Vec<u64>,
    pub hotness: Vec<u32>,
    /// Layers and rank of a cross network in place of dot products.
    pub cross: Option<(usize, usize)>,
    /// Optimiser where none is asked for.
    pub optimizer: &'static str,
    pub learning_rate: f64,
}

impl Shape {
    /// The shape of a name, with tables of at most `row_cap` rows where given, else as published
    /// for the comparison.
    ///
    /// # Errors
    /// A message that names the shapes there are.
    pub fn from_name(name: &str, row_cap: Option<u64>) -> Result<Self, String> {
        let (shape, default_cap) = match name {
            "C1" => (Self::mlperf_v1(), ROW_CAP),
            "C2" => (Self::kaggle(), u64::MAX),
            "C3" => (Self::mlperf_v2(), ROW_CAP),
            other => return Err(format!("there is no shape `{other}`: use C1, C2 or C3")),
        };
        let cap = row_cap.unwrap_or(default_cap).max(1);
        Ok(Self { rows: shape.rows.iter().map(|&rows| rows.min(cap)).collect(), ..shape })
    }

    fn mlperf_v1() -> Self {
        let (bottom, top) = (vec![512, 256, 128], vec![1024, 1024, 512, 256, 1]);
        Self {
            name: "C1",
            dim: 128,
            bottom,
            top,
            rows: TERABYTE_40M_CARDINALITIES.to_vec(),
            hotness: vec![1; 26],
            cross: None,
            optimizer: "sgd",
            learning_rate: 0.1,
        }
    }

    fn mlperf_v2() -> Self {
        let (hotness, cross) = (DCNV2_HOTNESS.to_vec(), Some((3, 512)));
        Self {
            name: "C3",
            hotness,
            cross,
            optimizer: "adagrad",
            learning_rate: 0.005,
            ..Self::mlperf_v1()
        }
    }

    fn kaggle() -> Self {
        let (bottom, top) = (vec![512, 256, 64, 16], vec![512, 256, 1]);
        Self {
            name: "C2",
            dim: 16,
            bottom,
            top,
            rows: KAGGLE_CARDINALITIES.to_vec(),
            ..Self::mlperf_v1()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_and_unknown_names() {
        assert_eq!(Shape::from_name("C1", None).unwrap().rows.iter().max(), Some(&ROW_CAP));
        assert_eq!(Shape::from_name("C2", Some(100)).unwrap().rows.iter().max(), Some(&100));
        assert!(Shape::from_name("C9", None).is_err());
    }
}
