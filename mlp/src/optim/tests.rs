use super::*;
use crate::linear::{Activation, Compute};
use crate::mlp::{Kind, MlpBackwardArgs, MlpSpec, Plans};
use crate::oracle::OptimizerOracle;
use headlong_device::DType;
use headlong_device::cuda::testing::upload;
use headlong_device::cuda::{CudaStream, DeviceMemory, DeviceStep};
use headlong_device::testing::uniform;

fn plan() -> ArenaPlan {
    let mut plan = ArenaPlan::new("parameters");
    // Two slots with a gap between them, longer than a task.
    plan.matrix("a", DType::F32, 173, 101);
    plan.matrix("b", DType::F32, 1, 7);
    // More than LAMB's kernels take in one launch.
    (0..40).for_each(|i| _ = plan.matrix(&format!("c{i}"), DType::F32, 1, 1 + 3 * i));
    plan
}

/// Runs five steps; returns the weights and the last norm.
fn run(optimizer: &Optimizer, clip: Option<f32>, threads: usize) -> (Vec<f32>, f64) {
    run_on(&Stream::cpu(threads), optimizer, clip)
}

fn run_on(stream: &Stream, optimizer: &Optimizer, clip: Option<f32>) -> (Vec<f32>, f64) {
    let [weights, gradients] = [(); 2].map(|()| plan().freeze_on(stream).unwrap());
    let states = freeze_states_on(stream, optimizer, &plan()).unwrap();
    let len = weights.bytes() / 4;
    weights.copy_from(&uniform(1, len)).unwrap();
    let mut last = 0.0;
    for number in 1..=5 {
        gradients.copy_from(&uniform(1 + number, len)).unwrap();
        last = norm(stream, &gradients);
        let step = &Step { learning_rate: 0.01, number };
        let on_device = stream.as_cuda().map(|stream| on_device(stream, optimizer, step));
        let (first, second) = (states.first(), states.get(1));
        let device_step = on_device.as_ref().map(DeviceMemory::ptr);
        let (weights, gradients) = (&weights, &gradients);
        let args = StepArgs {
            weights,
            gradients,
            first,
            second,
            optimizer,
            step,
            device_step,
            clip,
            stacks: &[],
            loss_scale: None,
            summed: None,
            part: None,
        };
        super::step(stream, &args);
        stream.synchronize().unwrap();
    }
    (weights.to_vec::<f32>().unwrap(), last)
}

fn on_device(stream: &CudaStream, optimizer: &Optimizer, step: &Step) -> DeviceMemory {
    upload(stream.device(), &DeviceStep::new(step, optimizer).words()).unwrap()
}

const LAMB: Optimizer =
    Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };

fn optimizers() -> [Optimizer; 4] {
    [
        Optimizer::Sgd,
        Optimizer::Adagrad { epsilon: 1e-10, initial_accumulator: 0.1 },
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
        LAMB,
    ]
}

#[test]
fn agrees_with_the_oracle_clipped_and_not() {
    check(&Stream::cpu(2));
}

fn check(stream: &Stream) {
    for optimizer in &optimizers() {
        for clip in [None, Some(2.0), Some(1e9)] {
            let (got, last) = run_on(stream, optimizer, clip);
            let f64s =
                |seed| uniform(seed, got.len()).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let states = optimizer.states();
            let state =
                |i: usize| states.get(i).map_or(vec![], |s| vec![f64::from(s.initial); got.len()]);
            let tensors = tensors(&plan().freeze().unwrap()).collect();
            let mut oracle =
                OptimizerOracle { weights: f64s(1), first: state(0), second: state(1), tensors };
            for number in 1..=5 {
                let step = Step { learning_rate: 0.01, number };
                oracle.step(optimizer, &step, &f64s(1 + number), clip.map(f64::from));
            }
            // Five steps of some ten roundings each of numbers up to 1, steps up to 0.01. LAMB
            // leaves the gaps, which hold numbers here, to the pass after it.
            let in_a_tensor = |i: &usize| oracle.tensors.iter().any(|range| range.contains(i));
            for i in (0..got.len()).filter(in_a_tensor) {
                let (got, expected) = (&got[i], &oracle.weights[i]);
                assert!(
                    (f64::from(*got) - expected).abs() < 1e-6,
                    "{}: {got}, {expected}",
                    optimizer.name()
                );
            }
            let exact = f64s(6).iter().map(|g| g * g).sum::<f64>().sqrt();
            assert!((last - exact).abs() < 1e-12 * exact);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for optimizer in &optimizers() {
        assert_eq!(run(optimizer, Some(1.0), 1), run(optimizer, Some(1.0), 4));
    }
}

/// Where the weights or the directions of a tensor are all zero, its ratio is 1: not 0, not NaN.
#[test]
fn lamb_takes_norms_of_zero_for_no_ratio() {
    ratios_of_zeros(&Stream::cpu(2));
}

fn ratios_of_zeros(stream: &Stream) {
    let optimizer = &Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.0 };
    let mut plan = ArenaPlan::new("parameters");
    let slots = ["zeros", "still", "both"].map(|name| plan.matrix(name, DType::F32, 2, 3));
    let [weights, gradients] = [(); 2].map(|()| plan.clone().freeze_on(stream).unwrap());
    let states = freeze_states_on(stream, optimizer, &plan).unwrap();
    gradients.mat(slots[0]).copy_from(&[0.5_f32; 6]).unwrap();
    weights.mat(slots[1]).copy_from(&[0.25_f32; 6]).unwrap();
    let step = &Step { learning_rate: 0.125, number: 1 };
    let on_device = stream.as_cuda().map(|stream| on_device(stream, optimizer, step));
    let args = StepArgs {
        weights: &weights,
        gradients: &gradients,
        first: states.first(),
        second: states.get(1),
        optimizer,
        step,
        device_step: on_device.as_ref().map(DeviceMemory::ptr),
        clip: None,
        stacks: &[],
        loss_scale: None,
        summed: None,
        part: None,
    };
    super::step(stream, &args);
    stream.synchronize().unwrap();
    let [zeros, still, both] = slots.map(|slot| weights.mat(slot).to_vec::<f32>().unwrap());
    // Adam's first direction is the gradient's sign, except for epsilon.
    assert!(zeros.iter().all(|w| (w + 0.125).abs() < 1e-6), "{zeros:?}");
    assert_eq!((still, both), (vec![0.25; 6], vec![0.0; 6]));
}

#[test]
fn optimisers_without_a_dense_form_are_refused() {
    let row_wise = Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
    let message = freeze_states_on(&Stream::cpu(1), &row_wise, &plan()).unwrap_err().to_string();
    assert_eq!(
        message,
        "optimizer `rowwise_adagrad` is not for dense parameters; expected sgd, adagrad, adam or \
         lamb"
    );
}

#[test]
fn a_nan_gradient_is_not_clipped_away() {
    let (weights, gradients) = (plan().freeze().unwrap(), plan().freeze().unwrap());
    gradients.write_all::<f32>()[3] = f32::NAN;
    let step = Step { learning_rate: 0.1, number: 1 };
    super::step(
        &Stream::cpu(1),
        &StepArgs {
            weights: &weights,
            gradients: &gradients,
            first: None,
            second: None,
            optimizer: &Optimizer::Sgd,
            step: &step,
            device_step: None,
            clip: Some(1.0),
            stacks: &[],
            loss_scale: None,
            summed: None,
            part: None,
        },
    );
    assert!(weights.read_all::<f32>()[0].is_nan());
}

mod cuda_tests {
    use super::super::cuda::{Copied, LambArgs, NormArgs, OptimArgs, SOURCE, Tensor};
    use super::*;
    use crate::linear::{Activation, Compute};
    use crate::mlp::{Kind, MlpSpec, Plans};
    use headlong_device::Mat;
    use headlong_device::cuda::testing::{layout_test, stream};

    #[test]
    fn agrees_with_the_oracle_clipped_and_not() {
        if let Some(stream) = stream() {
            check(&stream);
        }
    }

    #[test]
    fn lamb_takes_norms_of_zero_for_no_ratio() {
        if let Some(stream) = stream() {
            ratios_of_zeros(&stream);
        }
    }

    /// The formulas are the CPU's bit for bit, and so are LAMB's norms; the norm for clipping is
    /// summed in another order.
    #[test]
    fn the_bits_of_the_cpu_and_the_same_each_time() {
        let Some(stream) = stream() else { return };
        for optimizer in &optimizers() {
            assert_eq!(run_on(&stream, optimizer, None).0, run(optimizer, None, 1).0);
            assert_eq!(
                run_on(&stream, optimizer, Some(1.0)),
                run_on(&stream, optimizer, Some(1.0))
            );
        }
    }

    #[test]
    fn a_nan_gradient_is_not_clipped_away() {
        let Some(stream) = stream() else { return };
        let [weights, gradients] = [(); 2].map(|()| plan().freeze_on(&stream).unwrap());
        let mut values = gradients.to_vec::<f32>().unwrap();
        values[3] = f32::NAN;
        gradients.copy_from(&values).unwrap();
        let step = &Step { learning_rate: 0.1, number: 1 };
        let memory = on_device(stream.cuda_body(), &Optimizer::Sgd, step);
        let (first, second, device_step) = (None, None, Some(memory.ptr()));
        let (weights, gradients, optimizer) = (&weights, &gradients, &Optimizer::Sgd);
        let clip = Some(1.0);
        super::super::step(
            &stream,
            &StepArgs {
                weights,
                gradients,
                first,
                second,
                optimizer,
                step,
                device_step,
                clip,
                stacks: &[],
                loss_scale: None,
                summed: None,
                part: None,
            },
        );
        assert!(weights.to_vec::<f32>().unwrap()[0].is_nan());
    }

    /// Two steps from gradients in f32, or from the same numbers as sums in bf16: what is left.
    fn steps_from(
        stream: &Stream,
        optimizer: &Optimizer,
        clip: Option<f32>,
        narrow: bool,
    ) -> [Vec<f32>; 2] {
        let [weights, gradients] = [(); 2].map(|()| plan().freeze_on(stream).unwrap());
        let states = freeze_states_on(stream, optimizer, &plan()).unwrap();
        let len = weights.bytes() / 4;
        let mut sums = ArenaPlan::new("sums");
        let slot = sums.matrix("sums", DType::Bf16, 1, len);
        let sums = sums.freeze_on(stream).unwrap().mat(slot);
        weights.copy_from(&uniform(1, len)).unwrap();
        for number in 1..=2 {
            let values: Vec<half::bf16> =
                uniform(1 + number, len).into_iter().map(half::bf16::from_f32).collect();
            let wide: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
            // What does not count holds zeros.
            gradients.copy_from(&if narrow { vec![0.0; len] } else { wide }).unwrap();
            sums.copy_from(&values).unwrap();
            let step = &Step { learning_rate: 0.01, number };
            let memory = on_device(stream.cuda_body(), optimizer, step);
            let args = StepArgs {
                weights: &weights,
                gradients: &gradients,
                first: states.first(),
                second: states.get(1),
                optimizer,
                step,
                device_step: Some(memory.ptr()),
                clip,
                stacks: &[],
                loss_scale: None,
                summed: narrow.then_some(&sums),
                part: None,
            };
            super::super::step(stream, &args);
            stream.synchronize().unwrap();
        }
        // LAMB leaves the gaps between slots alone where gradients have none.
        let all = |arena: &Arena| arena.mats().flat_map(|mat| mat.to_vec().unwrap()).collect();
        [all(&weights), states.last().map_or(Vec::new(), all)]
    }

    #[test]
    fn sums_in_bf16_count_as_the_same_gradients() {
        let Some(stream) = stream() else { return };
        for optimizer in &optimizers() {
            for clip in [None, Some(1.0)] {
                let [wide, narrow] =
                    [false, true].map(|narrow| steps_from(&stream, optimizer, clip, narrow));
                assert_eq!(wide, narrow, "{}, {clip:?}", optimizer.name());
            }
        }
    }

    /// The pass over the parameters leaves the copies that a refresh makes, bit for bit and with
    /// the same filling; of deep stacks, too.
    #[test]
    fn copies_are_written_with_the_weights() {
        let Some(stream) = stream() else { return };
        let deep: Vec<usize> = (0..20).map(|layer| 3 + layer % 7).collect();
        for compute in [Compute::Bf16, Compute::F16, Compute::F32] {
            for widths in [&[13, 40, 24, 1][..], &[8, 16, 5], &deep] {
                let mut plans = Plans::new();
                let spec = |name, widths| {
                    let last = Activation::None;
                    MlpSpec {
                        name,
                        kind: Kind::Perceptron,
                        widths,
                        last,
                        max_samples: 1,
                        sum_blocks: 1,
                        narrow: false,
                        compute,
                    }
                };
                let stacks = [("bottom", &[5, 3][..]), ("top", widths)];
                let stacks = stacks.map(|(name, widths)| spec(name, widths).add_to(&mut plans));
                let arenas = plans.freeze_on(&stream).unwrap();
                let stacks = stacks.map(|plan| plan.build(&arenas));
                for stack in &stacks {
                    stack.initialize(3);
                    stack.refresh(&stream);
                }
                let (weights, gradients) = (&arenas.parameters, &arenas.gradients);
                gradients.copy_from(&uniform(1, gradients.bytes() / 4)).unwrap();
                let (optimizer, step) = (&Optimizer::Sgd, &Step { learning_rate: 0.1, number: 1 });
                let memory = on_device(stream.cuda_body(), optimizer, step);
                let args = StepArgs {
                    weights,
                    gradients,
                    first: None,
                    second: None,
                    optimizer,
                    step,
                    device_step: Some(memory.ptr()),
                    clip: None,
                    stacks: &[&stacks],
                    loss_scale: None,
                    summed: None,
                    part: None,
                };
                let before = copies(&stacks);
                super::super::step(&stream, &args);
                let written = copies(&stacks);
                stacks.iter().for_each(|stack| stack.refresh(&stream));
                assert_eq!(written, copies(&stacks), "{compute:?}, {widths:?}");
                assert_eq!(
                    written == before,
                    compute == Compute::F32,
                    "{compute:?}: the weights have moved"
                );
            }
        }
    }

    /// The bits of all copies.
    fn copies(stacks: &[Mlp]) -> Vec<u16> {
        let of = |mat: &Mat| match mat.dtype() {
            DType::Bf16 => {
                mat.to_vec::<half::bf16>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            }
            _ => mat.to_vec::<half::f16>().unwrap().iter().map(|x| x.to_bits()).collect(),
        };
        stacks.iter().flat_map(Mlp::copies).flat_map(|(_, copy)| of(copy)).collect()
    }

    #[test]
    fn layouts() {
        layout_test!(OptimArgs, &SOURCE, &[]);
        layout_test!(Copied, &SOURCE, &[]);
        layout_test!(NormArgs, &SOURCE, &[]);
        layout_test!(LambArgs, &SOURCE, &[]);
        layout_test!(Tensor, &SOURCE, &[]);
    }
}

/// Weights after some steps, and what products with them give: forward, and as the gradient of the
/// input.
fn trained(
    optimizer: &Optimizer,
    compute: Compute,
    threads: usize,
    in_one_pass: bool,
) -> [Vec<f32>; 3] {
    const SAMPLES: usize = 5;
    let (stream, mut plans) = (Stream::cpu(threads), Plans::new());
    // Widths of no, one and several bands of 32, odd ones among them.
    let stack = |name, widths: &[usize], plans: &mut Plans| {
        let (kind, last) = (Kind::Perceptron, Activation::None);
        MlpSpec {
            name,
            kind,
            widths,
            last,
            max_samples: SAMPLES,
            sum_blocks: 1,
            narrow: false,
            compute,
        }
        .add_to(plans)
    };
    let both =
        [stack("bottom", &[13, 71, 64], &mut plans), stack("top", &[64, 33, 7, 1], &mut plans)];
    let matrices = [("x", 13), ("between", 64), ("y", 1), ("d_between", 64), ("d_x", 13)];
    let slots =
        matrices.map(|(name, cols)| plans.activations.matrix(name, DType::F32, SAMPLES, cols));
    let parameters = plans.parameters.clone();
    let arenas = plans.freeze().unwrap();
    let states = freeze_states_on(&Stream::cpu(1), optimizer, &parameters).unwrap();
    let stacks = both.map(|plan| plan.build(&arenas));
    let [x, between, y, d_between, d_x] = slots.map(|slot| arenas.activations.mat(slot));
    stacks.iter().for_each(|stack| stack.initialize(3));
    stacks.iter().for_each(|stack| stack.refresh(&stream));
    for number in 1..=3 {
        arenas.gradients.copy_from(&uniform(number, arenas.gradients.bytes() / 4)).unwrap();
        let step = &Step { learning_rate: 0.01, number };
        let all = [&stacks[..]];
        let args = StepArgs {
            weights: &arenas.parameters,
            gradients: &arenas.gradients,
            first: states.first(),
            second: states.get(1),
            optimizer,
            step,
            device_step: None,
            clip: None,
            stacks: if in_one_pass { &all } else { &[] },
            loss_scale: None,
            summed: None,
            part: None,
        };
        super::step(&stream, &args);
        if !in_one_pass {
            stacks.iter().for_each(|stack| stack.refresh(&stream));
        }
    }
    x.copy_from(&uniform(9, SAMPLES * 13)).unwrap();
    stacks[0].forward(&stream, &x, &between);
    stacks[1].forward(&stream, &between, &y);
    let weights = arenas.parameters.to_vec().unwrap();
    for (stack, x, d_z, d_x) in [(1, &between, &y, &d_between), (0, &x, &d_between, &d_x)] {
        let args =
            MlpBackwardArgs { x, d_z, d_x: Some(d_x), accumulate: false, block_len: SAMPLES };
        stacks[stack].backward(&stream, &args);
    }
    [weights, y.to_vec().unwrap(), d_x.to_vec().unwrap()]
}

#[test]
fn changing_and_packing_in_one_pass_gives_the_same_bits() {
    for optimizer in optimizers() {
        for compute in
            [Compute::F32, Compute::Bf16, Compute::F16].map(|compute| compute.on(&Device::Cpu))
        {
            let apart = trained(&optimizer, compute, 1, false);
            assert!(apart.iter().flatten().all(|value| value.is_finite()));
            for threads in [1, 3] {
                let together = trained(&optimizer, compute, threads, true);
                assert!(together == apart, "{}, {compute:?}, {threads} threads", optimizer.name());
            }
        }
    }
}
