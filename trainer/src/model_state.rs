//! The model as checkpoints see it: names, shapes, and the doors to its values.

use crate::build::Model;
use crate::checkpoint::{
    Cause, CheckpointSink, CheckpointSource, DenseLayout, DenseState, Layout, ModelFingerprint,
    OptimizerFingerprint, RowState, Section, TableFingerprint, TableLayout, TensorId,
};
use headlong_device::Mat;

impl Model {
    /// What a checkpoint records to know whether its weights belong to this model.
    pub fn fingerprint(&self) -> ModelFingerprint {
        let widths = |widths: &[usize]| widths.iter().map(|&width| width as u64).collect();
        ModelFingerprint {
            family: "dlrm".to_owned(),
            num_dense: self.config.data.num_dense as u64,
            bottom: widths(&self.config.model.bottom),
            top: widths(&self.config.model.top),
            interaction: match self.config.model.interaction {
                crate::config::Interaction::Dot => "dot".to_owned(),
                crate::config::Interaction::Cat => "cat".to_owned(),
            },
            tables: self
                .tables
                .specs()
                .iter()
                .map(|spec| TableFingerprint {
                    name: spec.name.clone(),
                    kind: spec.kind.clone(),
                    rows: spec.rows,
                    dim: spec.dim as u64,
                    pooling: format!("{:?}", spec.pooling).to_lowercase(),
                })
                .collect(),
        }
    }

    /// What a checkpoint records to know whether its optimiser states belong to this run.
    pub fn optimizer_fingerprint(&self) -> OptimizerFingerprint {
        OptimizerFingerprint {
            dense: format!("{:?}", self.dense_optimizer),
            sparse: format!("{:?}", self.tables.optimizer()),
        }
    }

    /// The matrix of a dense tensor: a parameter, or one of its optimiser states.
    fn dense_tensor(&self, tensor: TensorId) -> Mat {
        let arena = tensor.state.map_or(&self.weights, |state| &self.dense_states[state]);
        arena.mats().nth(tensor.index).expect("a tensor of this model's layout has a slot")
    }
}

impl CheckpointSource for Model {
    fn layout(&self) -> Layout {
        let states = self.dense_optimizer.states();
        let dense = self.parameters.iter().map(|parameter| DenseLayout {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            states: states
                .iter()
                .map(|state| DenseState { name: state.name.to_owned(), shape: parameter.shape.clone() })
                .collect(),
        });
        let tables = self.tables.tables().map(|(spec, tensors)| TableLayout {
            name: spec.name.clone(),
            rows: spec.rows,
            dim: spec.dim as u64,
            states: tensors[1..]
                .iter()
                .map(|tensor| RowState { name: tensor.name.clone(), width: tensor.cols as u64 })
                .collect(),
        });
        Layout { dense: dense.collect(), tables: tables.collect() }
    }

    fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        match tensor.section {
            Section::Dense => {
                let values = self.dense_tensor(tensor);
                let first = first_row as usize * self.parameters[tensor.index].row_width();
                out.copy_from_slice(&values.read::<f32>().data()[first..][..out.len()]);
                Ok(())
            }
            Section::Tables => {
                let index = tensor.state.map_or(0, |state| state + 1);
                Ok(self.tables.read_rows(tensor.index, index, first_row, out)?)
            }
        }
    }
}

impl CheckpointSink for Model {
    fn layout(&self) -> Layout {
        CheckpointSource::layout(self)
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        match tensor.section {
            Section::Dense => {
                let mat = self.dense_tensor(tensor);
                let first = first_row as usize * self.parameters[tensor.index].row_width();
                mat.write::<f32>().data_mut()[first..][..values.len()].copy_from_slice(values);
                Ok(())
            }
            Section::Tables => {
                let index = tensor.state.map_or(0, |state| state + 1);
                Ok(self.tables.write_rows(tensor.index, index, first_row, values)?)
            }
        }
    }
}
