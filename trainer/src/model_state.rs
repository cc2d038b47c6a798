//! The model as checkpoints see it: names, shapes, and the doors to its values, wherever its rows lie.
//!
//! A checkpoint knows nothing of ranks: dense parameters are the same on all of them and are taken from the first; a row of a
//! table comes from whoever holds it.

use crate::build::Model;
use crate::checkpoint::{
    Cause, CheckpointSink, CheckpointSource, DenseLayout, DenseState, Layout, ModelFingerprint,
    OptimizerFingerprint, RowState, Section, TableFingerprint, TableLayout, TensorId,
};
use crate::crew::Crew;
use crate::data::failed;
use crate::digest::{chunks, read_error};
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

impl Model {
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
        let tables = self.tables.specs().iter().enumerate().map(|(table, spec)| TableLayout {
            name: spec.name.clone(),
            rows: spec.rows,
            dim: spec.dim as u64,
            states: self.tables.tensors(table)[1..]
                .iter()
                .map(|tensor| RowState { name: tensor.name.clone(), width: tensor.cols as u64 })
                .collect(),
        });
        Layout { dense: dense.collect(), tables: tables.collect() }
    }

    fn read_dense(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) {
        let first = first_row as usize * self.parameters[tensor.index].row_width();
        out.copy_from_slice(&self.dense_tensor(tensor).read::<f32>().data()[first..][..out.len()]);
    }

    fn write_dense(&self, tensor: TensorId, first_row: u64, values: &[f32]) {
        let first = first_row as usize * self.parameters[tensor.index].row_width();
        self.dense_tensor(tensor).write::<f32>().data_mut()[first..][..values.len()].copy_from_slice(values);
    }

    /// Fills those rows that this rank holds.
    fn read_rows(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        let index = tensor.state.map_or(0, |state| state + 1);
        Ok(self.tables.export_rows(tensor.index, index, first_row, out)?)
    }

    /// Takes those rows that this rank holds.
    fn write_rows(&self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        let index = tensor.state.map_or(0, |state| state + 1);
        Ok(self.tables.import_rows(tensor.index, index, first_row, values)?)
    }
}

impl Crew {
    /// What a checkpoint records of the model and of its optimisers.
    pub fn fingerprints(&self) -> (ModelFingerprint, OptimizerFingerprint) {
        let first = self.first();
        (first.model().fingerprint(), first.model().optimizer_fingerprint())
    }

    /// Threads that save a checkpoint: one for each rank of this process. With ranks in other processes every read is an
    /// exchange, so that reads come in one order.
    pub fn num_writers(&self) -> usize {
        if self.has_remote_ranks() { 1 } else { self.len() }
    }

    /// Whether this process has rank 0, which writes what is written once.
    pub fn leads(&self) -> bool {
        self.first().model().communicator.rank().0 == 0
    }

    /// Whether some ranks live in other processes.
    pub fn has_remote_ranks(&self) -> bool {
        self.first().model().communicator.num_ranks() > self.len()
    }
}

impl Crew {
    /// Copies all weights and states to a crew of the same model.
    pub(crate) fn copy_state_to(&self, other: &mut Self) -> crate::error::Result<()> {
        let lost = |error| failed("the rows cannot be moved", error);
        let mut values = Vec::new();
        for tensor in CheckpointSource::layout(self).tensors().map_err(lost)? {
            for (first_row, rows) in chunks(tensor.width, 0, tensor.rows) {
                values.resize((rows * tensor.width) as usize, 0.0);
                self.read(tensor.id, first_row, &mut values)
                    .and_then(|()| other.write(tensor.id, first_row, &values))
                    .map_err(read_error(&tensor.name))
                    .map_err(lost)?;
            }
        }
        Ok(())
    }
}

/// Where ranks live in several processes, all of them read the same rows in the same order: each read is an exchange.
impl CheckpointSource for Crew {
    fn layout(&self) -> Layout {
        self.first().model().layout()
    }

    fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        if tensor.section == Section::Dense {
            self.first().model().read_dense(tensor, first_row, out);
            return Ok(());
        }
        let remote = self.has_remote_ranks();
        if remote {
            out.fill(0.0);
        }
        for rank in 0..self.len() {
            self.engine(rank).model().read_rows(tensor, first_row, out)?;
        }
        if remote {
            gather_rows(self.first().model(), out)?;
        }
        Ok(())
    }
}

/// Puts together the rows that the ranks hold: a row is zero bits where it does not lie, and the same bits where it does.
fn gather_rows(model: &Model, rows: &mut [f32]) -> Result<(), Cause> {
    let communicator = &model.communicator;
    let mine: Vec<u32> = rows.iter().map(|value| value.to_bits()).collect();
    let mut all = vec![0; mine.len() * communicator.num_ranks()];
    communicator.all_gather(&mine, &mut all)?;
    for (index, value) in rows.iter_mut().enumerate() {
        let bits = all.iter().skip(index).step_by(mine.len()).fold(0, |bits, part| bits | part);
        *value = f32::from_bits(bits);
    }
    Ok(())
}

impl CheckpointSink for Crew {
    fn layout(&self) -> Layout {
        CheckpointSource::layout(self)
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        for rank in 0..self.len() {
            let engine = self.engine(rank);
            match tensor.section {
                Section::Dense => engine.model().write_dense(tensor, first_row, values),
                Section::Tables => engine.model().write_rows(tensor, first_row, values)?,
            }
        }
        Ok(())
    }
}
