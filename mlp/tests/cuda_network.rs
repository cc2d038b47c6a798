//! The whole dense part learns the same on every device and in every precision: bottom,
//! interaction, top, loss, optimiser.

use headlong_device::cuda::{DeviceMemory, DeviceStep, testing};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{Arena, ArenaPlan, DType, Mat, Stream};
use headlong_mlp::Result;
use headlong_mlp::interaction::dot;
use headlong_mlp::linear::{Activation, Compute};
use headlong_mlp::loss::{self, Loss, LossArgs};
use headlong_mlp::mlp::{Arenas, Kind, Mlp, MlpBackwardArgs, MlpSpec, Plans};
use headlong_mlp::optim::{self, StepArgs};
use std::slice;

const SAMPLES: usize = 64;
const TABLES: usize = 5;
const DIM: usize = 16;
const STEPS: u64 = 30;

struct Network {
    bottom: Mlp,
    top: Mlp,
    arenas: Arenas,
    states: Vec<Arena>,
    optimizer: Optimizer,
    step: Option<DeviceMemory>,
    dense: Mat,
    vectors: Mat,
    labels: Mat,
    logits: Mat,
    sums: Mat,
    d_logits: Mat,
    d_vectors: Mat,
    /// Output of the bottom and input of the top, then their gradients: of the type that products
    /// take, or f32.
    between: [Mat; 4],
}

impl Network {
    fn new(stream: &Stream, compute: Compute, boundary: DType) -> Result<Self> {
        let mut plans = Plans::new();
        let spec = |name, widths, last| {
            let (max_samples, sum_blocks) = (SAMPLES, 1);
            MlpSpec {
                name,
                kind: Kind::Perceptron,
                widths,
                last,
                max_samples,
                sum_blocks,
                narrow: false,
                compute,
            }
        };
        let width = dot::output_width(TABLES, DIM);
        let bottom = spec("bottom", &[13, 64, DIM], Activation::Relu).add_to(&mut plans);
        let top = spec("top", &[width, 48, 1], Activation::None).add_to(&mut plans);
        let optimizer = Optimizer::Adagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
        let states = optim::freeze_states_on(stream, &optimizer, &plans.parameters)?;
        let mut plan = ArenaPlan::new("between");
        let mut f32s = |name, rows, cols| plan.matrix(name, DType::F32, rows, cols);
        let [dense, labels, logits, d_logits] =
            [("dense", 13), ("labels", 1), ("logits", 1), ("d_logits", 1)]
                .map(|(name, cols)| f32s(name, SAMPLES, cols));
        let [vectors, d_vectors] =
            ["vectors", "d_vectors"].map(|name| f32s(name, SAMPLES, TABLES * DIM));
        let sums = f32s("sums", 1, 2);
        let padded = width.next_multiple_of(16);
        let between =
            [("bottom_out", DIM), ("top_in", padded), ("d_bottom_out", DIM), ("d_top_in", padded)]
                .map(|(name, cols)| plan.matrix(name, boundary, SAMPLES, cols));
        let (arena, arenas) = (plan.freeze_on(stream)?, plans.freeze_on(stream)?);
        let (bottom, top) = (bottom.build(&arenas), top.build(&arenas));
        for stack in [&bottom, &top] {
            stack.initialize(1);
            stack.refresh(stream);
        }
        let mat = |slot, cols| arena.mat(slot).columns(0, cols);
        let [bottom_out, top_in, d_bottom_out, d_top_in] = between;
        let step = stream
            .as_cuda()
            .map(|stream| DeviceMemory::new(stream.device(), "step", size_of::<DeviceStep>()));
        let network = Self {
            bottom,
            top,
            arenas,
            states,
            optimizer,
            step: step.transpose()?,
            dense: arena.mat(dense),
            vectors: arena.mat(vectors),
            labels: arena.mat(labels),
            logits: arena.mat(logits),
            sums: arena.mat(sums),
            d_logits: arena.mat(d_logits),
            d_vectors: arena.mat(d_vectors),
            between: [
                mat(bottom_out, DIM),
                mat(top_in, width),
                mat(d_bottom_out, DIM),
                mat(d_top_in, width),
            ],
        };
        network.dense.copy_from(&uniform(1, SAMPLES * 13))?;
        network.vectors.copy_from(&uniform(2, SAMPLES * TABLES * DIM))?;
        let clicks: Vec<f32> =
            uniform(3, SAMPLES).iter().map(|&x| if x > 0.4 { 1.0 } else { 0.0 }).collect();
        network.labels.copy_from(&clicks)?;
        Ok(network)
    }

    fn train(&self, stream: &Stream, number: u64) -> Result<f64> {
        let step = &Step { learning_rate: 0.01, number };
        if let Some(memory) = &self.step {
            memory.write(0, testing::bytes_of(&DeviceStep::new(step, &self.optimizer).words()))?;
        }
        let [bottom, top_in, d_bottom, d_top_in] = &self.between;
        self.bottom.forward(stream, &self.dense, bottom);
        let vectors = &self.vectors;
        dot::forward(stream, &dot::ForwardArgs { bottom, vectors, out: top_in }, None);
        self.top.forward(stream, top_in, &self.logits);
        let (logits, labels, d_logits, sums) =
            (&self.logits, &self.labels, &self.d_logits, &self.sums);
        let (loss, block_len, scale) = (Loss::BceWithLogits, SAMPLES, 1.0 / SAMPLES as f32);
        loss::forward_backward(
            stream,
            &LossArgs { loss, logits, labels, d_logits, sums, block_len, scale, loss_scale: None },
        );
        let (accumulate, d_x) = (false, Some(d_top_in));
        self.top.backward(
            stream,
            &MlpBackwardArgs { x: top_in, d_z: d_logits, d_x, accumulate, block_len },
        );
        let (d_out, d_vectors, bottom_activation) = (d_top_in, &self.d_vectors, Activation::Relu);
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
        let args =
            MlpBackwardArgs { x: &self.dense, d_z: d_bottom, d_x: None, accumulate, block_len };
        self.bottom.backward(stream, &args);
        let args = StepArgs {
            weights: &self.arenas.parameters,
            gradients: &self.arenas.gradients,
            first: self.states.first(),
            second: self.states.get(1),
            optimizer: &self.optimizer,
            step,
            device_step: self.step.as_ref().map(DeviceMemory::ptr),
            clip: Some(1.0),
            stacks: &[slice::from_ref(&self.bottom), slice::from_ref(&self.top)],
            loss_scale: None,
            summed: None,
            part: None,
        };
        optim::step(stream, &args);
        stream.synchronize()?;
        Ok(loss::total_of(&sums.to_vec::<f32>()?) / SAMPLES as f64)
    }
}

fn losses(stream: &Stream, compute: Compute, boundary: DType) -> Result<Vec<f64>> {
    let network = Network::new(stream, compute, boundary)?;
    (1..=STEPS).map(|number| network.train(stream, number)).collect()
}

#[test]
fn cuda_learns_as_the_cpu_does_in_every_precision() -> Result<()> {
    let Some(stream) = testing::stream() else { return Ok(()) };
    let expected = losses(&Stream::cpu(2), Compute::F32, DType::F32)?;
    let first = expected[0];
    assert!(expected[STEPS as usize - 1] < 0.6 * expected[0], "it learns: {expected:?}");
    // Shares of the first loss, at each step. Thirty steps of a network that learns carry a
    // rounding on and enlarge it: f32 has room for a hundred times what one step may be off, the
    // others for a few of their units.
    for (compute, boundary, allowed) in [
        (Compute::F32, DType::F32, 1e-4),
        (Compute::Tf32, DType::F32, 0.01),
        (Compute::F16, DType::F16, 0.01),
        (Compute::Bf16, DType::F32, 0.03),
        (Compute::Bf16, DType::Bf16, 0.03),
    ] {
        let got = losses(&stream, compute, boundary)?;
        for (step, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let fits = (got - expected).abs() <= allowed * first;
            assert!(
                fits,
                "{compute:?} between {boundary:?}, step {step}: {got}, on the CPU {expected}"
            );
        }
        println!("{compute:?} between {boundary:?}: last loss {} of {}", got[29], expected[29]);
        assert_eq!(got, losses(&stream, compute, boundary)?, "the same bits each time");
    }
    Ok(())
}
