//! The dense transforms by name, and what each does to a number.

use serde::{Deserialize, Serialize};

use crate::error::named;

/// How an integer column becomes a number. A missing value counts as 0 in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DenseTransform {
    /// The integer itself.
    #[serde(rename = "none")]
    Identity,
    /// `ln(max(x, 0) + 1)`: facebookresearch/dlrm, MLPerf v1, HugeCTR.
    #[default]
    #[serde(rename = "ln(x+1)")]
    LnPlus1,
    /// `ln(max(x, -2) + 3)`: NVIDIA DeepLearningExamples, NVTabular.
    #[serde(rename = "ln(x+3)")]
    LnPlus3,
    /// `ln(x - (m - 2))` with `m` the minimum over all integer columns of the file: TorchRec.
    #[serde(rename = "file-minimum")]
    FileMinimum,
}

impl DenseTransform {
    /// Any number by it; not by the minimum of a file, which is refused before.
    pub(crate) fn of(self, number: f64) -> f64 {
        match self {
            DenseTransform::LnPlus1 => (number.max(0.0) + 1.0).ln(),
            DenseTransform::LnPlus3 => (number.max(-2.0) + 3.0).ln(),
            DenseTransform::Identity | DenseTransform::FileMinimum => number,
        }
    }
}

named!(DenseTransform, "dense transform": LnPlus1 "ln(x+1)", LnPlus3 "ln(x+3)",
    FileMinimum "file-minimum", Identity "none");
