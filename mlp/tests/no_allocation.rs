//! A step of the dense part allocates nothing, once it runs.

use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::{CountingAllocator, allocations};
use headlong_device::{ArenaPlan, DType, Mat, Stream};
use headlong_mlp::Result;
use headlong_mlp::interaction::dot;
use headlong_mlp::linear::{Activation, Compute};
use headlong_mlp::loss::{self, Loss, LossArgs};
use headlong_mlp::mlp::{Arenas, Kind, Mlp, MlpBackwardArgs, MlpSpec, Plans};
use headlong_mlp::optim::{self, StepArgs};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SAMPLES: usize = 70;
const TABLES: usize = 5;
const DIM: usize = 16;

struct Model {
    bottom: Mlp,
    top: Mlp,
    arenas: Arenas,
    states: Vec<headlong_device::Arena>,
    optimizer: Optimizer,
    /// dense, bottom_out, vectors, top_in, logits, labels, sums, d_logits, d_top_in, d_bottom,
    /// d_vectors
    mats: Vec<Mat>,
}

fn build() -> Result<Model> {
    let mut plans = Plans::new();
    let spec = |name, widths, last| {
        let (sum_blocks, compute) = (2, Compute::F32);
        MlpSpec {
            name,
            kind: Kind::Perceptron,
            widths,
            last,
            max_samples: SAMPLES,
            sum_blocks,
            narrow: false,
            compute,
        }
    };
    let width = dot::output_width(TABLES, DIM);
    let bottom = spec("bottom", &[13, 64, DIM][..], Activation::Relu).add_to(&mut plans);
    let top = spec("top", &[width, 48, 1][..], Activation::None).add_to(&mut plans);
    let optimizer = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let states = optim::freeze_states_on(&Stream::cpu(1), &optimizer, &plans.parameters)?;
    let mut plan = ArenaPlan::new("between");
    let widths = [13, DIM, TABLES * DIM, width, 1, 1, 2, 1, width, DIM, TABLES * DIM];
    let slots: Vec<_> = widths
        .iter()
        .enumerate()
        .map(|(i, &w)| {
            plan.matrix(&format!("slot {i}"), DType::F32, if i == 6 { 2 } else { SAMPLES }, w)
        })
        .collect();
    let between = plan.freeze()?;
    let arenas = plans.freeze()?;
    let (bottom, top) = (bottom.build(&arenas), top.build(&arenas));
    bottom.initialize(1);
    top.initialize(1);
    let mats = slots.into_iter().map(|slot| between.mat(slot)).collect();
    Ok(Model { bottom, top, arenas, states, optimizer, mats })
}

fn step(model: &Model, stream: &Stream, number: u64) {
    let [
        dense,
        bottom_out,
        vectors,
        top_in,
        logits,
        labels,
        sums,
        d_logits,
        d_top_in,
        d_bottom,
        d_vectors,
    ] = &model.mats[..]
    else {
        unreachable!("eleven slots")
    };
    model.bottom.refresh(stream);
    model.top.refresh(stream);
    model.bottom.forward(stream, dense, bottom_out);
    let args = dot::ForwardArgs { bottom: bottom_out, vectors, out: top_in };
    dot::forward(stream, &args, None);
    model.top.forward(stream, top_in, logits);
    let scale = 1.0 / SAMPLES as f32;
    let block_len = headlong_mlp::sum::block_len(SAMPLES, sums.rows());
    let loss = Loss::BceWithLogits;
    loss::forward_backward(
        stream,
        &LossArgs { loss, logits, labels, d_logits, sums, block_len, scale, loss_scale: None },
    );
    let d_x = Some(d_top_in);
    model.top.backward(
        stream,
        &MlpBackwardArgs { x: top_in, d_z: d_logits, d_x, accumulate: false, block_len },
    );
    let bottom_activation = Activation::Relu;
    let bottom = bottom_out;
    let d_out = d_top_in;
    let args = dot::BackwardArgs {
        bottom,
        vectors,
        d_out,
        d_bottom,
        d_vectors,
        bottom_activation,
        loss_scale: None,
    };
    dot::backward(stream, &args, None);
    model.bottom.backward(
        stream,
        &MlpBackwardArgs { x: dense, d_z: d_bottom, d_x: None, accumulate: false, block_len },
    );
    let args = StepArgs {
        weights: &model.arenas.parameters,
        gradients: &model.arenas.gradients,
        first: model.states.first(),
        second: model.states.get(1),
        optimizer: &model.optimizer,
        step: &Step { learning_rate: 0.01, number },
        device_step: None,
        clip: Some(1.0),
        stacks: &[std::slice::from_ref(&model.bottom), std::slice::from_ref(&model.top)],
        loss_scale: None,
        summed: None,
        part: None,
    };
    optim::step(stream, &args);
}

#[test]
fn a_step_allocates_nothing() -> Result<()> {
    let (model, stream) = (build()?, Stream::cpu(2));
    step(&model, &stream, 1);
    let before = allocations();
    for number in 2..6 {
        step(&model, &stream, number);
    }
    assert_eq!(allocations(), before, "allocations in four steps");
    Ok(())
}
