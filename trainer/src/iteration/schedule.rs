//! **The iteration.** One list of stages in program order. Each line says on which lane a stage
//! runs, which batch it works on, what it reads and what it writes. What must wait for what is
//! derived from that ([`Schedule`]), and everything obeys it: the walker on one thread, the one on
//! two, the streams of a device, its captured graph, and the planner's simulation.
//!
//! - **Two batches.** A step trains on the batch of *now* while the batch of *next* is copied and
//!   routed. Each has a slot, and slots swap roles at the border of two steps. Ids may run ahead of
//!   weights; weights never do: no stage of *next* reads one.
//! - **Steps overlap** on a device ([`Steps`]): a stage begins when those of the step before have
//!   ended that it needs. On a processor a step begins when the one before has ended.
//! - **What is captured** on a CUDA device is this walk over a full batch, once for each slot that
//!   can be *now*.
//! - **The loss** is read back by `fetch_losses` on a device, which lets the host enqueue the next
//!   step meanwhile; on a processor the host has the sums when the walk ends.
//! - **A short last batch** runs the same stages with fewer samples, on a device without the graph.
//!
//! Crates never call each other: `embedding` decides which rows, `comm` moves bytes, `mlp`
//! computes, and every line that joins them is here. Rows that many samples want are replicated:
//! each rank has them all, and their gradients are summed with the dense ones, in one all-reduce;
//! on devices of one node in one before it. Every other row has an owner: ranks ask for it, get its
//! vector, and bring its gradient back. A single rank owns every row and exchanges nothing: it
//! leaves out the stages marked [`Runs::AmongRanks`], and those that are marked as some of these.
//!
//! **The order of collectives is the order of these lines**, hence the same on all ranks.

mod at;
mod edges;
mod exchange;
mod stages;
mod tables;
#[cfg(test)]
mod tests;

pub use crate::iteration::model::Call;
pub use at::{Access, At};
pub use edges::{Features, Schedule};
pub use headlong_planner::schedule::{Lane, Repeat, Steps};

use crate::error::Result;
use crate::iteration::model::Model;
use BatchOf::{Next, Now};
use Lane::{Comm, Copy, Dense, Sparse};
use Repeat::{Micro, Once};
use Resource::*;
use Runs::{
    Always, AmongHosts, AmongNodes, AmongPeers, AmongRanks, Crossed, Divided, Measured, OnDevice,
    Scaled, SumsFirst, WithDense,
};
use headlong_device::Stream;
use stages::*;
use tables::*;

/// Which batch a stage works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchOf {
    /// The one that is trained on or evaluated.
    Now,
    Next,
}

/// Where a stage has something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    Always,
    /// Only with several ranks.
    AmongRanks,
    /// Of these, on processors.
    AmongHosts,
    /// Of these, on devices of one node.
    AmongPeers,
    /// Of these, on devices of several nodes.
    AmongNodes,
    /// Of these, where replicated rows move after their sum: on devices, and where the loss is
    /// scaled.
    SumsFirst,
    /// Only on a device with memory of its own: the host and it hand each other numbers.
    OnDevice,
    /// Only where the loss is scaled.
    Scaled,
    /// Only where a cross network follows the features.
    Crossed,
    /// Only where there are dense features.
    WithDense,
    /// Only where each rank moves a part of the dense weights.
    Divided,
    /// Of these, where that takes norms over all parts.
    Measured,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Resource {
    /// Labels, dense features and ids of a batch: one for each slot.
    Inputs,
    /// Where the rows of a batch are, and what ranks ask each other for: one for each slot.
    Route,
    /// The rows that this rank owns, with their optimiser states.
    OwnedRows,
    /// Its replica of the rows that all ranks have.
    ReplicatedRows,
    /// Dense parameters, with their optimiser states.
    DenseWeights,
    /// Sums of norms over dense parameters, where each rank has a part of them.
    NormSums,
    /// What this rank, as an owner, sends to others: vectors. Then the gradients that come back.
    SendRows,
    /// What it receives from owners: vectors. Then their gradients, on the way back.
    RecvRows,
    Vectors,
    VectorGradients,
    /// Outputs of the layers of the bottom network, the last one included.
    Bottom,
    /// The gradient of the last one.
    BottomGradient,
    /// What the cross network is given, where there is one, and outputs of its layers.
    Crossing,
    TopInput,
    TopInputGradient,
    /// Outputs of the layers of the top network.
    Top,
    Logits,
    LogitGradients,
    AllLogits,
    LossSums,
    DenseGradients,
    ReplicatedGradients,
    /// Learning rates and number of the step, on a device.
    LearningRates,
    /// What the loss is multiplied by, and whether the step is skipped.
    LossScale,
    /// Whether a rank has met a gradient that is not finite: added up with the gradients.
    Overflow,
    /// On a device, where the first step stopped being numbers.
    NonFinite,
    /// What the host learns of a step.
    Results,
}

impl Resource {
    /// Whether it decides predictions: what the batch of next must not read.
    pub const fn is_weight(self) -> bool {
        matches!(self, OwnedRows | ReplicatedRows | DenseWeights)
    }

    /// Whether each batch slot has its own.
    const fn is_of_a_slot(self) -> bool {
        matches!(self, Inputs | Route)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Stage {
    /// Its name in traces and in the table of `--time`.
    pub name: &'static str,
    /// The same in an evaluation, and for the first batch of a run.
    names_elsewhere: [&'static str; 2],
    pub lane: Lane,
    /// How often it runs in a step.
    pub repeat: Repeat,
    /// Where it has something to do.
    pub runs: Runs,
    pub batch: BatchOf,
    pub reads: &'static [Resource],
    /// What it writes; it may read that, too.
    pub writes: &'static [Resource],
    /// What it does: enqueues its work on the stream, with no look at the host.
    run: fn(&At<'_>) -> Result<()>,
}

impl Stage {
    pub fn run(&self, model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
        (self.run)(&At::new(self, model, stream, call))
    }
}

macro_rules! stages {
    ($(#[$doc:meta])* $list:ident:
        $($name:ident: $lane:ident $repeat:ident $runs:ident $batch:ident,
            [$($reads:ident)*] => [$($writes:ident)*];)*) => {
        $(#[$doc])*
        pub static $list: &[Stage] = &[$(Stage {
            name: stringify!($name),
            names_elsewhere: [
                concat!("eval_", stringify!($name)),
                concat!("first_", stringify!($name)),
            ],
            lane: $lane,
            repeat: $repeat,
            runs: $runs,
            batch: $batch,
            reads: &[$($reads),*],
            writes: &[$($writes),*],
            run: $name,
        }),*];
    };
}

stages! {
    STEP:
    // The batch of now: its rows, from wherever they lie.
    owner_lookup:         Sparse Once  AmongRanks Now,  [OwnedRows Route] => [SendRows];
    exchange_vectors:     Comm   Once  AmongRanks Now,  [SendRows Route] => [RecvRows];
    lookup_replicated:    Sparse Once  AmongRanks Now,  [ReplicatedRows Route Inputs] => [Vectors];
    pool:                 Sparse Once  Always     Now,
        [RecvRows OwnedRows Route Inputs] => [Vectors];
    // What the host has for this step besides its batch.
    copy_learning_rates:  Copy   Once  OnDevice   Now,  [] => [LearningRates];
    // The batch of next: no weight is read here.
    copy_batch:           Copy   Once  Always     Next, [] => [Inputs Route];
    route:                Sparse Once  Always     Next, [Inputs] => [Route];
    exchange_ids:         Comm   Once  AmongRanks Next, [] => [Route];
    receive_requests:     Sparse Once  AmongRanks Next, [Inputs] => [Route];
    // The dense network, forward and backward.
    bottom_forward:       Dense  Micro WithDense  Now,  [Inputs DenseWeights] => [Bottom];
    interaction_forward:  Dense  Micro Always     Now,  [Bottom] => [Vectors Crossing TopInput];
    cross_forward:        Dense  Micro Crossed    Now,  [DenseWeights] => [Crossing TopInput];
    top_forward:          Dense  Micro Always     Now,  [TopInput DenseWeights] => [Top Logits];
    loss:                 Dense  Micro Always     Now,
        [Logits Inputs LossScale] => [LogitGradients LossSums];
    top_backward:         Dense  Micro Always     Now,
        [LogitGradients TopInput Top DenseWeights] => [TopInputGradient DenseGradients];
    cross_backward:       Dense  Micro Crossed    Now,
        [DenseWeights] => [TopInputGradient Crossing DenseGradients];
    interaction_backward: Dense  Micro Always     Now,
        [TopInputGradient Crossing Bottom Vectors LossScale]
            => [BottomGradient VectorGradients Overflow];
    bottom_backward:      Dense  Micro WithDense  Now,
        [BottomGradient Bottom Inputs DenseWeights] => [DenseGradients];
    // Gradients of rows go to their owners, then all others are summed over the ranks.
    reduce_rows:          Sparse Once  AmongRanks Now,
        [VectorGradients Route] => [RecvRows ReplicatedGradients];
    exchange_gradients:   Comm   Once  AmongRanks Now,  [RecvRows Route] => [SendRows];
    // Hosts move replicated rows as pieces of the one sum are final, unless the loss is scaled.
    all_reduce_and_update_replicated: Comm Once AmongHosts Now,
        [LossScale LearningRates]
            => [ReplicatedGradients LossSums DenseGradients Overflow ReplicatedRows];
    // Devices of one node first sum all that replicated rows wait for, and move these under the
    // second sum. Between nodes one more all-reduce would take longer than that saves.
    all_reduce_replicated: Comm  Once  AmongPeers Now,
        [] => [ReplicatedGradients LossSums Overflow];
    all_reduce_dense:     Comm   Once  AmongPeers Now,
        [LossScale] => [LossSums Overflow DenseGradients];
    all_reduce:           Comm   Once  AmongNodes Now,
        [LossScale] => [ReplicatedGradients LossSums Overflow DenseGradients];
    // In f16: one gradient that is not finite, of whatever rank, and nothing moves.
    check_gradients:      Dense  Once  Scaled     Now,
        [DenseGradients Overflow LearningRates] => [LossScale];
    update_replicated:    Dense  Once  SumsFirst  Now,
        [ReplicatedGradients LearningRates LossScale] => [ReplicatedRows];
    // All gradients of the step are there: the weights move, all of them or each rank's part.
    measure_part:         Dense  Once  Measured   Now,
        [LearningRates LossScale] => [DenseGradients DenseWeights NormSums];
    add_up_norms:         Comm   Once  Measured   Now,  [] => [NormSums];
    dense_optimizer:      Dense  Once  Always     Now,
        [LearningRates LossScale NormSums] => [DenseGradients DenseWeights];
    gather_dense_weights: Comm   Once  Divided    Now,  [] => [DenseWeights];
    pack_dense_weights:   Dense  Once  Divided    Now,  [] => [DenseWeights];
    update_owned:         Sparse Once  Always     Now,
        [SendRows VectorGradients Route LearningRates LossScale] => [OwnedRows];
    adjust_loss_scale:    Dense  Once  Scaled     Now,  [] => [LossScale Overflow];
    // What made the loss non-finite, as long as it is there; and what the host learns.
    find_non_finite:      Copy   Once  OnDevice   Now,
        [Inputs Bottom Vectors Crossing TopInput Top Logits LossSums LearningRates] => [NonFinite];
    fetch_losses:         Copy   Once  OnDevice   Now,  [LossSums NonFinite LossScale] => [Results];
}

stages! {
    /// After an evaluation, where predictions are wanted in the order of the samples: metrics need
    /// no rank to have them all.
    GATHER:
    gather:               Comm   Once  AmongRanks Now,  [Logits] => [AllLogits];
}
