//! The model as checkpoints see it: names, shapes, and the doors to its values, wherever its rows
//! lie.
//!
//! A checkpoint knows nothing of ranks: dense parameters are the same on all of them and are taken
//! from the first; a row of a table comes from the rank that holds it, and so does a state of the
//! dense optimiser where that is divided.

use crate::config::{Interaction, ModelConfig};
use crate::error::Error;
use crate::iteration::model::{Model, ScaleState, is_scale};
use crate::iteration::ranks::RankGroup;
use crate::iteration::table_state::{Group, find_groups};
use crate::state::checkpoint::{
    Cause, CheckpointSink, CheckpointSource, DenseLayout, DenseState, Layout, LossScaleState,
    ModelFingerprint, OptimizerFingerprint, Processes, Section, TableFingerprint, TensorId,
};
use crate::state::digest::{chunks, read_error};
use headlong_device::Mat;
use headlong_device::pool::Pool;
use headlong_embedding::TableSpec;
use headlong_embedding::hybrid::copy_weights;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

impl Model {
    /// What a checkpoint records to know whether its weights belong to this model.
    pub fn fingerprint(&self) -> ModelFingerprint {
        let widths = |widths: &[usize]| widths.iter().map(|&width| width as u64).collect();
        ModelFingerprint {
            family: "dlrm".to_owned(),
            num_dense: self.config.data.num_dense as u64,
            bottom: widths(&self.config.model.bottom),
            top: widths(&self.config.model.top),
            interaction: interaction(&self.config.model),
            tables: self
                .tables
                .specs()
                .iter()
                .map(|spec| TableFingerprint {
                    name: spec.name.clone(),
                    kind: kind_with_options(spec),
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

/// `dot`, `cat`, `cross(layers=3, rank=512)`.
fn interaction(model: &ModelConfig) -> String {
    match model.interaction {
        Interaction::Dot => "dot".to_owned(),
        Interaction::Cat => "cat".to_owned(),
        Interaction::Cross => {
            format!("cross(layers={}, rank={})", model.cross_layers, model.cross_rank)
        }
    }
}

impl Model {
    fn dense_layout(&self) -> Vec<DenseLayout> {
        let states = self.dense_optimizer.states();
        let dense = self.parameters.iter().map(|parameter| DenseLayout {
            name: parameter.name.clone(),
            shape: parameter.shape.clone(),
            states: states
                .iter()
                .map(|state| DenseState {
                    name: state.name.to_owned(),
                    shape: parameter.shape.clone(),
                })
                .collect(),
        });
        dense.collect()
    }

    /// The part of a dense tensor that `len` elements from row `first_row` on are.
    fn dense_rows(&self, tensor: TensorId, first_row: u64, len: usize) -> Mat {
        let (mat, first) = (self.dense_tensor(tensor), first_row as usize);
        // A vector lies in one row; each of its elements is a row of the checkpoint.
        match self.parameters[tensor.index].shape.len() {
            1 => mat.columns(first, len),
            _ => mat.rows_range(first, len / mat.cols()),
        }
    }

    /// Whether each rank has a part of a dense tensor: the states of what it moves.
    pub(crate) fn has_part_of(&self, tensor: TensorId) -> bool {
        self.divided.is_some() && tensor.state.is_some()
    }

    /// The part of `len` elements from row `first_row` on that this rank has, where each rank has a
    /// part: which of them, and where they lie.
    fn own_states(
        &self,
        tensor: TensorId,
        first_row: u64,
        len: usize,
    ) -> Option<(Range<usize>, Mat)> {
        let shape = &self.parameters[tensor.index].shape;
        let width = shape[1..].iter().product::<u64>();
        let (own, place) = self.states_of(tensor.index, (first_row * width) as usize, len);
        let states = self.dense_states[tensor.state?].mats().next()?;
        (!own.is_empty()).then(|| (own, states.columns(place.start, place.len())))
    }

    /// Reads a dense tensor; of one of which each rank has a part, what this rank has.
    fn read_dense(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        if !self.has_part_of(tensor) {
            out.copy_from_slice(&self.dense_rows(tensor, first_row, out.len()).to_vec::<f32>()?);
        } else if let Some((own, states)) = self.own_states(tensor, first_row, out.len()) {
            out[own].copy_from_slice(&states.to_vec::<f32>()?);
        }
        Ok(())
    }

    fn write_dense(&self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        if !self.has_part_of(tensor) {
            self.dense_rows(tensor, first_row, values.len()).copy_from(values)?;
        } else if let Some((own, states)) = self.own_states(tensor, first_row, values.len()) {
            states.copy_from(&values[own])?;
        }
        Ok(())
    }
}

/// The kind, with the options that it was given: `hashed(min_count=2)`.
fn kind_with_options(spec: &TableSpec) -> String {
    let options: Vec<String> =
        spec.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if options.is_empty() {
        spec.kind.clone()
    } else {
        format!("{}({})", spec.kind, options.join(","))
    }
}

impl RankGroup {
    fn find_groups(&self) -> Vec<Group> {
        // Asked before the workers are held: it looks at the first of them itself.
        let remote = self.has_remote_ranks();
        let workers: Vec<_> = (0..self.len()).map(|rank| self.worker(rank)).collect();
        let models: Vec<&Model> = workers.iter().map(|worker| worker.model()).collect();
        find_groups(&models, remote)
    }

    fn set_groups(&self, groups: Vec<Group>) {
        self.set_groups_shared(Arc::new(groups));
    }

    fn set_groups_shared(&self, groups: Arc<Vec<Group>>) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = groups;
    }

    /// The tables as the last look at the layout found them.
    pub(crate) fn groups(&self) -> Arc<Vec<Group>> {
        Arc::clone(&self.groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a checkpoint records of the model and of its optimisers.
    pub fn fingerprints(&self) -> (ModelFingerprint, OptimizerFingerprint) {
        let first = self.first();
        (first.model().fingerprint(), first.model().optimizer_fingerprint())
    }

    /// Where the loss scale stands, as a checkpoint keeps it: the same on all ranks.
    pub fn saved_loss_scale(&self) -> crate::error::Result<Option<LossScaleState>> {
        let state = self.first().loss_scale()?;
        Ok(state.map(|state| LossScaleState {
            scale: f64::from(state.scale),
            good_steps: state.good_steps,
            skipped_steps: state.num_skipped,
        }))
    }

    /// Puts the loss scale where a checkpoint has kept it; where it has kept none, it starts again.
    pub fn restore_loss_scale(&self, saved: &LossScaleState) -> crate::error::Result<()> {
        if !is_scale(saved.scale) {
            let found = format!("it is {}, not a power of two from 1 to 16777216", saved.scale);
            let context = "the loss scale in the checkpoint is damaged".to_owned();
            return Err(Error::Failed { context, source: found.into() });
        }
        let mut state = ScaleState::first(saved.scale as f32);
        (state.good_steps, state.num_skipped) = (saved.good_steps, saved.skipped_steps);
        (0..self.len()).try_for_each(|rank| self.worker(rank).set_loss_scale(Some(state)))
    }

    /// Threads that save a checkpoint: one for each rank of this process.
    pub fn num_writers(&self) -> usize {
        self.len()
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

/// What [`RankGroup::read_weights`] hands over.
pub(crate) enum Piece<'a> {
    /// First: the number of rows of each tensor.
    Rows(&'a mut [u64]),
    /// Values, tensor by tensor and row by row.
    Values(&'a mut [f32]),
}

impl RankGroup {
    /// Copies all weights and states to a group of the same model.
    pub(crate) fn copy_state_to(&self, other: &mut Self) -> crate::error::Result<()> {
        self.copy_tensors_to(Some(other), &|_, _| true)
    }

    /// Copies all weights, and no states, to a group of the same model, whose tables may lie
    /// otherwise, by the threads of `pool`. Where ranks live in other processes, all of them call
    /// it, and those that have no such group only give their rows.
    pub(crate) fn copy_weights_to(
        &self,
        other: Option<&mut Self>,
        pool: &Pool,
    ) -> crate::error::Result<()> {
        let (dense, tables) = match &other {
            Some(other) if !self.has_remote_ranks() => {
                (self.copy_dense_to(other, pool), self.copy_plain_tables_to(other, pool))
            }
            _ => (false, Vec::new()),
        };
        self.copy_tensors_to(other, &|group, tensor| {
            let is_there = group.map_or(dense, |group| tables.get(group.table()) == Some(&true));
            tensor.state.is_none() && !is_there
        })
    }

    /// Copies all dense parameters as the one list that they are in memory. Says whether it has:
    /// not to or from a device.
    fn copy_dense_to(&self, other: &Self, pool: &Pool) -> bool {
        /// Elements that a thread copies at a time: half of the second-level cache of a core.
        const TILE_ELEMENTS: usize = 64 << 10;
        let first = self.first();
        let ranks: Vec<_> = (0..other.len()).map(|rank| other.worker(rank)).collect();
        if first.model().on_device() || ranks.iter().any(|rank| rank.model().on_device()) {
            return false;
        }
        let from = first.model().weights.read_all::<f32>();
        for rank in &ranks {
            let mut to = rank.model().weights.write_all::<f32>();
            assert_eq!(from.len(), to.len(), "ranks of the same model");
            pool.chunks_mut(&mut to, TILE_ELEMENTS, |tile, to| {
                to.copy_from_slice(&from[tile * TILE_ELEMENTS..][..to.len()]);
            });
        }
        true
    }

    fn copy_plain_tables_to(&self, other: &Self, pool: &Pool) -> Vec<bool> {
        let [from, to] = [self, other]
            .map(|group| (0..group.len()).map(|rank| group.worker(rank)).collect::<Vec<_>>());
        let [from, to] = [&from, &to]
            .map(|ranks| ranks.iter().map(|rank| &rank.model().tables).collect::<Vec<_>>());
        copy_weights(pool, &from, &to)
    }

    /// Reads all weights, and no states, and hands them to `take`, a piece at a time. Where ranks
    /// live in other processes, all of them call it.
    pub(crate) fn read_weights(&self, take: &mut dyn FnMut(Piece<'_>)) -> crate::error::Result<()> {
        let lost = |error| Error::failed("the weights cannot be read")(error);
        let tensors = CheckpointSource::layout(self).weights_only().tensors().map_err(lost)?;
        take(Piece::Rows(&mut tensors.iter().map(|tensor| tensor.rows).collect::<Vec<_>>()));
        let mut values = Vec::new();
        for tensor in &tensors {
            for (first_row, rows) in chunks(tensor.width, 0, tensor.rows) {
                values.resize((rows * tensor.width) as usize, 0.0);
                self.read(tensor.id, first_row, &mut values)
                    .map_err(read_error(&tensor.name))
                    .map_err(lost)?;
                take(Piece::Values(&mut values));
            }
        }
        Ok(())
    }

    /// Writes all weights, as [`RankGroup::read_weights`] of a group of the same model reads them:
    /// tensors of `rows` rows, of which `next` fills a piece at a time.
    pub(crate) fn write_weights(
        &mut self,
        rows: &[u64],
        next: &mut dyn FnMut(&mut [f32]) -> crate::error::Result<()>,
    ) -> crate::error::Result<()> {
        let lost = |error| Error::failed("the weights cannot be taken")(error);
        let tensors = CheckpointSink::layout(self).weights_only().tensors().map_err(lost)?;
        assert_eq!(tensors.len(), rows.len(), "tensors of the same model");
        let mut values = Vec::new();
        for (tensor, &rows) in tensors.iter().zip(rows) {
            for (first_row, rows) in chunks(tensor.width, 0, rows) {
                values.resize((rows * tensor.width) as usize, 0.0);
                next(&mut values)?;
                self.write(tensor.id, first_row, &values)
                    .map_err(read_error(&tensor.name))
                    .map_err(lost)?;
            }
        }
        self.weights_changed();
        Ok(())
    }

    fn copy_tensors_to(
        &self,
        mut other: Option<&mut Self>,
        is_wanted: &dyn Fn(Option<&Group>, TensorId) -> bool,
    ) -> crate::error::Result<()> {
        let lost = |error| Error::failed("the rows cannot be moved")(error);
        // The other looks at its own tables first: writing goes by what it found.
        if let Some(other) = other.as_deref_mut() {
            CheckpointSource::layout(other);
        }
        let mut values = Vec::new();
        let tensors = CheckpointSource::layout(self).tensors().map_err(lost)?;
        let groups = self.groups();
        let group = |id: TensorId| (id.section != Section::Dense).then(|| &groups[id.index]);
        for tensor in tensors.iter().filter(|tensor| is_wanted(group(tensor.id), tensor.id)) {
            for (first_row, rows) in chunks(tensor.width, 0, tensor.rows) {
                values.resize((rows * tensor.width) as usize, 0.0);
                self.read(tensor.id, first_row, &mut values)
                    .and_then(|()| match other.as_deref_mut() {
                        Some(other) => other.write(tensor.id, first_row, &values),
                        None => Ok(()),
                    })
                    .map_err(read_error(&tensor.name))
                    .map_err(lost)?;
            }
        }
        Ok(())
    }
}

impl RankGroup {
    /// Reads what of some rows lies with the ranks of this process; the rest of `out` stays.
    pub(crate) fn read_here(
        &self,
        tensor: TensorId,
        first_row: u64,
        out: &mut [f32],
    ) -> Result<(), Cause> {
        let is_dense = tensor.section == Section::Dense;
        if is_dense && self.is_with_all(tensor) {
            return self.first().model().read_dense(tensor, first_row, out);
        }
        let groups = self.groups();
        for rank in 0..self.len() {
            let worker = self.worker(rank);
            match is_dense {
                true => worker.model().read_dense(tensor, first_row, out)?,
                false => groups[tensor.index].read(worker.model(), tensor.state, first_row, out)?,
            }
        }
        Ok(())
    }

    /// Whether every rank has all rows of a tensor.
    pub(crate) fn is_with_all(&self, tensor: TensorId) -> bool {
        let first = self.first();
        match tensor.section {
            Section::Dense => !first.model().has_part_of(tensor),
            Section::Tables => self.groups()[tensor.index].is_with_all(first.model()),
        }
    }
}

/// Where ranks live in several processes, all of them read the same rows in the same order: each
/// read is an exchange, and so is a look at the layout where tables hold raw ids or rows that share
/// storage.
impl CheckpointSource for RankGroup {
    fn layout(&self) -> Layout {
        let groups = self.find_groups();
        let tables = groups.iter().map(|group| group.layout.clone()).collect();
        self.set_groups(groups);
        Layout { dense: self.first().model().dense_layout(), tables }
    }

    fn read(&self, tensor: TensorId, first_row: u64, out: &mut [f32]) -> Result<(), Cause> {
        let remote = self.has_remote_ranks() && !self.is_with_all(tensor);
        if remote {
            out.fill(0.0);
        }
        self.read_here(tensor, first_row, out)?;
        if remote {
            // A row is zero bits where it does not lie, and the same bits where it does.
            self.first().model().communicator.put_together(out)?;
        }
        Ok(())
    }

    fn processes(&self) -> Option<&dyn Processes> {
        self.has_remote_ranks().then_some(self)
    }
}

impl CheckpointSink for RankGroup {
    fn layout(&self) -> Layout {
        CheckpointSource::layout(self)
    }

    fn write(&mut self, tensor: TensorId, first_row: u64, values: &[f32]) -> Result<(), Cause> {
        if tensor.section == Section::Dense {
            for rank in 0..self.len() {
                self.worker(rank).model().write_dense(tensor, first_row, values)?;
            }
            return Ok(());
        }
        // Taken out, so that the ids in it are not copied.
        let mut groups =
            std::mem::take(self.groups.get_mut().unwrap_or_else(PoisonError::into_inner));
        let group = &mut Arc::make_mut(&mut groups)[tensor.index];
        group.take_ids(tensor.state, first_row, values);
        for rank in 0..self.len() {
            group.write(self.worker(rank).model(), tensor.state, first_row, values)?;
        }
        self.set_groups_shared(groups);
        Ok(())
    }

    fn processes(&self) -> Option<&dyn Processes> {
        CheckpointSource::processes(self)
    }
}
