//! **The iteration.** One list of stages in program order, each with its lane and what it waits for: read it from top to
//! bottom and you know what one training step does, and what may run beside what.
//!
//! The step takes the batch of *now*, which is trained on, and the batch of *next*, which is copied and routed ahead.
//! Ids may run ahead of weights; weights never do: no stage of *next* reads a weight.
//!
//! Rooms never call each other. `embedding` decides which rows, `mlp` computes, and every line that joins them stands here.
//! With more ranks the exchanges stand between these lines (ARCHITECTURE.md, "One readable iteration"); one rank
//! owns every row, so it has nothing to exchange.

use crate::build::{BatchIds, BatchSlot, Model, is_dot};
use crate::data::failed;
use crate::error::Result;
use crate::lanes::Lane::{Copy, Dense, Sparse};
use crate::lanes::Repeat::{MicroBatch, Step as Once};
use crate::lanes::Stage;
use headlong_device::Stream;
use headlong_device::optimizer::Step;
use headlong_mlp::interaction::{cat, dot};
use headlong_mlp::linear::Activation;
use headlong_mlp::loss::LossArgs;
use headlong_mlp::mlp::MlpBackwardArgs;
use headlong_mlp::optim::{self, StepArgs};

/// One training step.
pub const TRAINING: &[Stage] = &[
    // The batch of next: no weight is read here.
    Stage {
        name: "copy_batch",
        lane: Copy,
        repeat: Once,
        waits: &["previous:dense_optimizer"],
        run: |model, _, call| call.next.map_or(Ok(()), |next| model.copy_batch(next)),
    },
    Stage {
        name: "route",
        lane: Sparse,
        repeat: Once,
        waits: &["copy_batch"],
        run: |model, stream, call| call.next.map_or(Ok(()), |next| route(model, stream, next)),
    },
    // The batch of now.
    Stage {
        name: "lookup",
        lane: Sparse,
        repeat: Once,
        waits: &["previous:route", "previous:update_tables"],
        run: lookup,
    },
    Stage {
        name: "bottom_forward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["previous:copy_batch", "previous:dense_optimizer"],
        run: bottom_forward,
    },
    Stage {
        name: "interaction_forward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["lookup", "bottom_forward"],
        run: interaction_forward,
    },
    Stage {
        name: "top_forward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["interaction_forward"],
        run: top_forward,
    },
    Stage { name: "loss", lane: Dense, repeat: MicroBatch, waits: &["top_forward"], run: loss },
    Stage { name: "top_backward", lane: Dense, repeat: MicroBatch, waits: &["loss"], run: top_backward },
    Stage {
        name: "interaction_backward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["top_backward"],
        run: interaction_backward,
    },
    Stage {
        name: "bottom_backward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["interaction_backward"],
        run: bottom_backward,
    },
    // All gradients of the step are there: the weights move.
    Stage {
        name: "update_tables",
        lane: Sparse,
        repeat: Once,
        waits: &["interaction_backward", "previous:route"],
        run: update_tables,
    },
    Stage {
        name: "dense_optimizer",
        lane: Dense,
        repeat: Once,
        waits: &["bottom_backward"],
        run: dense_optimizer,
    },
];

/// What must have run for the first batch before the first step: its own copy and route.
pub fn prologue() -> &'static [Stage] {
    &TRAINING[..2]
}

/// Predictions for the batch of now. It changes nothing but activations.
pub const EVALUATION: &[Stage] = &[
    Stage {
        name: "eval_copy_batch",
        lane: Copy,
        repeat: Once,
        waits: &[],
        run: |model, _, call| model.copy_batch(call.now),
    },
    Stage { name: "eval_lookup", lane: Sparse, repeat: Once, waits: &["eval_copy_batch"], run: lookup },
    Stage {
        name: "eval_bottom_forward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["eval_copy_batch"],
        run: bottom_forward,
    },
    Stage {
        name: "eval_interaction_forward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["eval_lookup", "eval_bottom_forward"],
        run: interaction_forward,
    },
    Stage {
        name: "eval_top_forward",
        lane: Dense,
        repeat: MicroBatch,
        waits: &["eval_interaction_forward"],
        run: top_forward,
    },
];

/// Sorts the ids of a batch into the rows it touches.
fn route(model: &Model, stream: &Stream, slot: &BatchSlot) -> Result<()> {
    let routed = model.tables.route(stream, &BatchIds(&slot.batch()), &mut slot.route());
    routed.map_err(|error| failed("the ids of a batch cannot be routed", error))
}

/// Gathers and pools the rows of the whole batch.
fn lookup(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let vectors = model.vectors.first_rows(call.num_samples);
    let found = model.tables.lookup(stream, &BatchIds(&call.now.batch()), &vectors);
    found.map_err(|error| failed("the vectors of a batch cannot be looked up", error))
}

fn bottom_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    model.bottom.forward(
        stream,
        &call.now.dense.rows_range(first, count),
        &model.bottom_out.first_rows(count),
    );
    Ok(())
}

fn interaction_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let args = dot::ForwardArgs {
        bottom: &model.bottom_out.first_rows(count),
        vectors: &model.vectors.rows_range(first, count),
        out: &model.top_in.first_rows(count),
    };
    if is_dot(&model.config) {
        dot::forward(stream, &args)
    } else {
        cat::forward(stream, &args)
    }
    Ok(())
}

fn top_forward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    model.top.forward(stream, &model.top_in.first_rows(count), &model.logits.rows_range(first, count));
    Ok(())
}

/// The loss of a micro-batch and its gradient; the mean is taken over the whole batch.
fn loss(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let args = LossArgs {
        loss: model.loss(),
        logits: &model.logits.rows_range(first, count),
        labels: &call.now.labels.rows_range(first, count),
        d_logits: &model.d_logits.rows_range(first, count),
        sums: &model.loss_sums.rows_range(call.micro_batch * model.sum_blocks, model.sum_blocks),
        block_len: count.div_ceil(model.sum_blocks),
        scale: 1.0 / call.num_samples as f32,
    };
    headlong_mlp::loss::forward_backward(stream, &args);
    Ok(())
}

fn top_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let args = MlpBackwardArgs {
        x: &model.top_in.first_rows(count),
        d_z: &model.d_logits.rows_range(first, count),
        d_x: Some(&model.d_top_in.first_rows(count)),
        accumulate: call.micro_batch > 0,
        block_len: count.div_ceil(model.sum_blocks),
    };
    model.top.backward(stream, &args);
    Ok(())
}

fn interaction_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let args = dot::BackwardArgs {
        bottom: &model.bottom_out.first_rows(count),
        vectors: &model.vectors.rows_range(first, count),
        d_out: &model.d_top_in.first_rows(count),
        d_bottom: &model.d_bottom_out.first_rows(count),
        d_vectors: &model.d_vectors.rows_range(first, count),
        bottom_activation: Activation::Relu,
    };
    if is_dot(&model.config) {
        dot::backward(stream, &args)
    } else {
        cat::backward(stream, &args)
    }
    Ok(())
}

fn bottom_backward(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let (first, count) = call.samples();
    let args = MlpBackwardArgs {
        x: &call.now.dense.rows_range(first, count),
        d_z: &model.d_bottom_out.first_rows(count),
        d_x: None,
        accumulate: call.micro_batch > 0,
        block_len: count.div_ceil(model.sum_blocks),
    };
    model.bottom.backward(stream, &args);
    Ok(())
}

/// Sums the gradients of each row over its samples and moves the row, once.
fn update_tables(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let d_vectors = model.d_vectors.first_rows(call.num_samples);
    let updated = model.tables.update(stream, &call.now.route(), &d_vectors, &call.sparse_step);
    updated.map_err(|error| failed("the tables cannot be updated", error))
}

/// Moves all dense parameters in one pass, and packs them for the next step's products.
fn dense_optimizer(model: &Model, stream: &Stream, call: &Call<'_>) -> Result<()> {
    let args = StepArgs {
        weights: &model.weights,
        gradients: &model.gradients,
        first: model.dense_states.first(),
        second: model.dense_states.get(1),
        optimizer: &model.dense_optimizer,
        step: &call.dense_step,
        clip: model.config.train.clip_norm.map(|norm| norm as f32),
    };
    optim::step(stream, &args);
    model.refresh(stream);
    Ok(())
}

/// What one walk through the list works on.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The batch that is trained on or evaluated.
    pub now: &'a BatchSlot,
    /// The batch that is prepared ahead; none at the end of the data.
    pub next: Option<&'a BatchSlot>,
    /// Samples in the batch of now.
    pub num_samples: usize,
    /// Samples of one micro-batch; the last one may be smaller.
    pub micro_batch_size: usize,
    /// Which micro-batch this is, from 0.
    pub micro_batch: usize,
    /// Learning rate and number of the step, for the dense parameters.
    pub dense_step: Step,
    /// The same for the tables.
    pub sparse_step: Step,
}

impl Call<'_> {
    /// Micro-batches of the batch of now.
    pub fn num_micro_batches(&self) -> usize {
        self.num_samples.div_ceil(self.micro_batch_size)
    }

    /// The same call for another micro-batch.
    pub fn micro_batch(&self, micro_batch: usize) -> Self {
        Self { micro_batch, ..*self }
    }

    /// First sample of the micro-batch, and how many it has.
    pub fn samples(&self) -> (usize, usize) {
        let first = self.micro_batch * self.micro_batch_size;
        (first, self.micro_batch_size.min(self.num_samples - first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait must name a stage that has run: an earlier line of this list, or any line of the step before.
    #[test]
    fn every_wait_names_a_stage_that_comes_before() {
        for list in [TRAINING, EVALUATION] {
            for (position, stage) in list.iter().enumerate() {
                for wait in stage.waits {
                    let (name, candidates) = match wait.strip_prefix("previous:") {
                        Some(name) => (name, list),
                        None => (*wait, &list[..position]),
                    };
                    assert!(
                        candidates.iter().any(|other| other.name == name),
                        "{} waits for {wait}",
                        stage.name
                    );
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_next_reads_no_weights() {
        let mut names: Vec<_> = TRAINING.iter().chain(EVALUATION).map(|stage| stage.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TRAINING.len() + EVALUATION.len());
        assert!(prologue().iter().all(|stage| ["copy_batch", "route"].contains(&stage.name)));
    }
}
