//! A small model to save and load, and a file system that fails on request.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod faulty;

use headlong::metrics::EvalMetrics;
use headlong::state::checkpoint::{
    Cause, CheckpointSink, CheckpointSource, DataFingerprint, DenseLayout, DenseState,
    DirectoryOptions, Layout, ModelFingerprint, OptimizerFingerprint, RandomState, RowState,
    SavedState, Snapshot, TableFingerprint, TableLayout, TensorId,
};
use serde_json::json;
use std::collections::BTreeMap;

/// Two dense parameters and three tables, with states of both widths.
#[derive(Clone, Debug, PartialEq)]
pub struct Toy {
    pub layout: Layout,
    pub values: BTreeMap<TensorId, Vec<f32>>,
}

impl Toy {
    /// Values that differ with the seed, and include both zeros, a subnormal number and the
    /// largest.
    pub fn new(seed: u32) -> Self {
        let mut next = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
        let mut values = BTreeMap::new();
        let layout = toy_layout();
        for tensor in layout.tensors().unwrap() {
            let draw = |index: u64| {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match index {
                    0 => -0.0,
                    1 => f32::from_bits(1),
                    2 => f32::MAX,
                    _ => (next >> 8) as f32 / 8_388_608.0 - 1.0,
                }
            };
            values.insert(tensor.id, (0..tensor.rows * tensor.width).map(draw).collect());
        }
        Self { layout, values }
    }

    /// The same shapes, filled with a value that nothing else has.
    pub fn blank() -> Self {
        let mut toy = Self::new(0);
        toy.values.values_mut().for_each(|values| values.fill(-12345.0));
        toy
    }

    pub fn bits(&self) -> Vec<u32> {
        self.values.values().flatten().map(|value| value.to_bits()).collect()
    }

    fn width(&self, tensor: TensorId) -> usize {
        let tensors = self.layout.tensors().unwrap();
        tensors.iter().find(|found| found.id == tensor).unwrap().width as usize
    }
}

impl CheckpointSource for Toy {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        let start = first_row as usize * self.width(tensor);
        out.copy_from_slice(&self.values[&tensor][start..start + out.len()]);
        Ok(())
    }
}

impl CheckpointSink for Toy {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        let start = first_row as usize * self.width(tensor);
        self.values.get_mut(&tensor).unwrap()[start..start + values.len()].copy_from_slice(values);
        Ok(())
    }
}

fn toy_layout() -> Layout {
    let dense = |name: &str, shape: Vec<u64>, state: Vec<u64>| DenseLayout {
        name: name.into(),
        shape,
        states: vec![DenseState { name: "accumulator".into(), shape: state }],
    };
    let table = |name: &str, rows, width| TableLayout {
        name: name.into(),
        rows,
        dim: 4,
        states: vec![RowState { name: "accumulator".into(), width }],
        by_id: false,
    };
    Layout {
        dense: vec![
            dense("bottom.0.weight", vec![4, 3], vec![4, 3]),
            dense("bottom.0.bias", vec![4], vec![1]),
        ],
        tables: vec![table("C1", 23, 4), table("C2", 7, 1), table("C3", 1, 1)],
    }
}

/// Where a run stands after `step` steps.
pub fn state(step: u64, auc: Option<f64>) -> SavedState {
    let table = |name: &str, rows| TableFingerprint {
        name: name.into(),
        kind: "dense".into(),
        rows,
        dim: 4,
        pooling: "sum".into(),
    };
    SavedState {
        step,
        samples: step * 128,
        finished: None,
        model: ModelFingerprint {
            family: "dlrm".into(),
            num_dense: 3,
            bottom: vec![4],
            top: vec![8, 1],
            interaction: "dot".into(),
            tables: vec![table("C1", 23), table("C2", 7), table("C3", 1)],
        },
        optimizers: OptimizerFingerprint {
            dense: "sgd()".into(),
            sparse: "adagrad(epsilon=1e-8)".into(),
        },
        data: DataFingerprint {
            dense_transform: "ln(x+1)".into(),
            id_policy: "hash".into(),
            hash: "xxh3".into(),
            dictionary: None,
            columns: Vec::new(),
        },
        train_files: Vec::new(),
        reader: json!({ "epoch": 0, "sample": step * 128, "file": 2, "byte": u64::MAX }),
        random: RandomState { seed: 7, step },
        loss_scale: None,
        metrics: Some(EvalMetrics {
            auc,
            logloss: Some(0.5),
            ne: None,
            accuracy: 0.75,
            base_rate: 0.25,
            mean_prediction: Some(0.2),
            calibration: Some(0.8),
            calibration_error: Some(0.05),
            eval_samples: 100,
        }),
        session: json!({ "best_auc": 0.75 }),
    }
}

/// A snapshot without further files.
pub fn snapshot(toy: &Toy, step: u64) -> Snapshot<'_> {
    Snapshot { source: toy, state: state(step, None), blobs: Vec::new() }
}

/// Files cut at `shard_bytes`, the last `keep_last` kept.
pub fn options(shard_bytes: u64, keep_last: usize) -> DirectoryOptions {
    DirectoryOptions { shard_bytes, keep_last, ..DirectoryOptions::default() }
}
