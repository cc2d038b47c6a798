//! One run of a stage, and the memory that the stage has declared. All memory of a step is reached
//! through here: what a stage touches without having declared it ends the run, in every build.

use super::Resource::{self, *};
use super::{BatchOf, Call, Repeat, Stage};
use crate::iteration::model::{BatchSlot, Devices, Divided, Exchange, Model};
use headlong_device::{Arena, Mat, Stream};
use headlong_embedding::hybrid::{HybridRoute, NodeProxy};
use headlong_mlp::interaction::cross::Cross;
use headlong_mlp::loss_scale::LossScale;
use headlong_mlp::mlp::Mlp;
use headlong_mlp::optim::divided::Part;
use headlong_reader::Batch;
use std::ops::Range;
use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

#[derive(Clone, Copy)]
pub struct At<'a> {
    pub call: &'a Call<'a>,
    /// Where it enqueues its work.
    pub stream: &'a Stream,
    model: &'a Model,
    stage: &'a Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// It is written; it may be read, too.
    Write,
}
use Access::{Read, Write};

impl<'a> At<'a> {
    /// A run of `stage`.
    pub fn new(stage: &'a Stage, model: &'a Model, stream: &'a Stream, call: &'a Call<'a>) -> Self {
        Self { call, stream, model, stage }
    }

    /// The model, for what no stage changes: sizes, settings, other ranks.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// The model, for the memory of `resource`.
    ///
    /// # Panics
    /// When the stage has not declared it.
    pub fn declared(&self, resource: Resource, access: Access) -> &'a Model {
        let Stage { name, reads, writes, .. } = self.stage;
        let is_declared = writes.contains(&resource) || access == Read && reads.contains(&resource);
        assert!(is_declared, "`{name}` touches {resource:?} and has not declared it");
        self.model
    }

    /// The slot of its batch, whose inputs it writes.
    pub fn slot_to_fill(&self) -> &'a BatchSlot {
        self.declared(Inputs, Write);
        self.call.slot
    }

    /// The samples of its batch, with ids.
    pub fn batch(&self) -> RwLockReadGuard<'a, Batch> {
        self.declared(Inputs, Read);
        self.call.slot.batch()
    }

    pub fn shares(&self) -> RwLockReadGuard<'a, Vec<Batch>> {
        self.declared(Inputs, Read);
        self.call.slot.shares()
    }

    /// Labels of the micro-batch.
    pub fn labels(&self) -> Mat {
        self.declared(Inputs, Read);
        self.of_micro_batch(&self.call.slot.labels)
    }

    /// Dense features of the micro-batch.
    pub fn dense(&self) -> Mat {
        self.declared(Inputs, Read);
        self.of_micro_batch(&self.call.slot.dense)
    }

    /// Where the rows of its batch are.
    pub fn route(&self) -> RwLockReadGuard<'a, HybridRoute> {
        self.declared(Route, Read);
        self.call.slot.route()
    }

    pub fn route_mut(&self) -> RwLockWriteGuard<'a, HybridRoute> {
        self.declared(Route, Write);
        self.call.slot.route_mut()
    }

    /// What this rank does for its node with its batch.
    ///
    /// # Panics
    /// Where equal rows are not merged in the node.
    pub fn proxy(&self) -> MutexGuard<'a, NodeProxy> {
        self.declared(Route, Read);
        self.call.slot.proxy().expect("rows are merged in the node")
    }

    /// What this rank sends as an owner, or gets back.
    pub fn send_rows(&self, access: Access) -> &'a Mat {
        &self.declared(SendRows, access).send_rows
    }

    /// What it receives from owners, or sends back.
    pub fn recv_rows(&self, access: Access) -> &'a Mat {
        &self.declared(RecvRows, access).recv_rows
    }

    pub fn vectors(&self, access: Access) -> Mat {
        self.declared(Vectors, access).vectors.first_rows(self.call.num_samples)
    }

    /// Those of the micro-batch.
    pub fn micro_vectors(&self, access: Access) -> Mat {
        self.of_micro_batch(&self.declared(Vectors, access).vectors)
    }

    /// Gradients of the vectors of the batch.
    pub fn d_vectors(&self) -> Mat {
        self.declared(VectorGradients, Read).d_vectors.first_rows(self.call.num_samples)
    }

    /// Those of the micro-batch, to be written.
    pub fn micro_d_vectors(&self) -> Mat {
        self.of_micro_batch(&self.declared(VectorGradients, Write).d_vectors)
    }

    pub fn bottom(&self, access: Access) -> (&'a Mlp, Mat) {
        let model = self.declared(Bottom, access);
        (&model.bottom, self.first(&model.bottom_out))
    }

    pub fn d_bottom(&self, access: Access) -> Mat {
        self.first(&self.declared(BottomGradient, access).d_bottom_out)
    }

    /// The cross network, where there is one.
    pub fn cross(&self, access: Access) -> Option<&'a Cross> {
        self.declared(Crossing, access).cross.as_ref()
    }

    /// Where a cross network takes the features.
    pub fn cross_input(&self) -> Option<Mat> {
        Some(self.first(self.cross(Write)?.input()))
    }

    /// Where it leaves their gradient.
    pub fn d_cross_input(&self) -> Option<Mat> {
        Some(self.first(self.cross(Read)?.d_input()))
    }

    pub fn top_in(&self, access: Access) -> Mat {
        self.first(&self.declared(TopInput, access).top_in)
    }

    pub fn d_top_in(&self, access: Access) -> Mat {
        self.first(&self.declared(TopInputGradient, access).d_top_in)
    }

    pub fn top(&self, access: Access) -> &'a Mlp {
        &self.declared(Top, access).top
    }

    /// Logits of the micro-batch.
    pub fn logits(&self, access: Access) -> Mat {
        self.of_micro_batch(&self.declared(Logits, access).logits)
    }

    /// Logits of the batch, with room for the largest share, and of all ranks.
    pub fn all_logits(&self) -> (&'a Mat, &'a Mat) {
        let model = self.declared(AllLogits, Write);
        (&self.declared(Logits, Read).logits, &model.all_logits)
    }

    /// Gradients of the logits of the micro-batch.
    pub fn d_logits(&self, access: Access) -> Mat {
        self.of_micro_batch(&self.declared(LogitGradients, access).d_logits)
    }

    /// Loss sums of the blocks of all ranks, of all micro-batches.
    pub fn loss_sums(&self, access: Access) -> &'a Mat {
        &self.declared(LossSums, access).loss_sums
    }

    /// What the loss is multiplied by, where it is.
    pub fn loss_scale(&self, access: Access) -> Option<&'a LossScale> {
        self.declared(LossScale, access).loss_scale.as_ref()
    }

    pub fn replicated_gradients(&self, access: Access) -> &'a Mat {
        &self.declared(ReplicatedGradients, access).replicated_gradients
    }

    pub fn dense_gradients(&self, access: Access) -> &'a Arena {
        &self.declared(DenseGradients, access).gradients
    }

    /// The dense gradients in bf16, where they travel as such between devices.
    pub fn dense_sums(&self, access: Access) -> Option<&'a Mat> {
        self.declared(DenseGradients, access).dense_sums.as_ref()
    }

    /// How the ranks have divided the dense parameters.
    ///
    /// # Panics
    /// Where they have not.
    pub(crate) fn divided(&self) -> &'a Divided {
        self.model.divided.as_ref().expect("only a divided optimiser has such a stage")
    }

    /// This rank's part of the dense parameters, where ranks have parts.
    pub fn part(&self, access: Access) -> Option<&'a Part> {
        self.declared(NormSums, access).divided.as_ref().map(|divided| &divided.part)
    }

    /// How ranks on devices exchange.
    ///
    /// # Panics
    /// Where they are not on devices.
    pub(crate) fn devices(&self) -> &'a Devices {
        match &self.model.exchange {
            Exchange::Device(devices) => devices,
            _ => unreachable!("only ranks on devices that have met have such a stage"),
        }
    }

    /// All that ranks add up, in one memory.
    pub fn reduced(&self) -> &'a Arena {
        for part in [ReplicatedGradients, LossSums, DenseGradients, Overflow] {
            self.declared(part, Write);
        }
        &self.model.reduced
    }

    /// Of these, the elements that ranks add up as f32, whatever the gradients travel as: loss sums
    /// and flags.
    pub fn exact_sums(&self) -> Range<usize> {
        let Model { reduced, loss_sums, control_flags, .. } = self.model;
        reduced.elements_of(loss_sums).start..reduced.elements_of(control_flags).end
    }

    fn of_micro_batch(&self, mat: &Mat) -> Mat {
        let (first, count) = self.call.samples();
        mat.rows_range(first, count)
    }

    /// Of a matrix of one micro-batch, the rows that count.
    fn first(&self, mat: &Mat) -> Mat {
        mat.first_rows(self.call.samples().1)
    }
}

impl Call<'_> {
    /// The call of one run of a stage; none where there is no batch for it.
    pub fn of(&self, stage: &Stage, micro_batch: usize) -> Option<Self> {
        let slot = match stage.batch {
            BatchOf::Now => self.now,
            BatchOf::Next => self.next?,
        };
        Some(Self { slot, micro_batch, ..*self })
    }

    pub fn times(&self, stage: &Stage) -> usize {
        match stage.repeat {
            Repeat::Once => 1,
            Repeat::Micro => self.num_micro_batches,
        }
    }
}
