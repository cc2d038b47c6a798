use super::*;
use crate::loss::{self, Loss, LossArgs};
use crate::oracle;
use crate::sum::block_len;
use crate::testing::{frozen_on, values};
use headlong_device::testing::uniform;

mod sixteen_bits;

const WIDTHS: [usize; 4] = [7, 40, 19, 1];
const SAMPLES: usize = 33;

struct Model {
    arenas: Arenas,
    stack: Mlp,
    x: Mat,
    y: Mat,
    d_y: Mat,
    d_x: Mat,
    labels: Mat,
    sums: Mat,
}

fn model(sum_blocks: usize) -> Model {
    model_on(&Stream::cpu(1), sum_blocks)
}

fn model_on(stream: &Stream, sum_blocks: usize) -> Model {
    model_of(stream, &WIDTHS, sum_blocks)
}

fn model_of(stream: &Stream, widths: &[usize], sum_blocks: usize) -> Model {
    model_with(stream, widths, sum_blocks, Compute::F32)
}

fn model_with(stream: &Stream, widths: &[usize], sum_blocks: usize, compute: Compute) -> Model {
    let mut plans = Plans::new();
    let last = Activation::None;
    let spec = MlpSpec {
        name: "top",
        kind: Kind::Perceptron,
        widths,
        last,
        max_samples: 64,
        sum_blocks,
        narrow: false,
        compute,
    };
    let plan = spec.add_to(&mut plans);
    let arenas = plans.freeze_on(stream).unwrap();
    let stack = plan.build(&arenas);
    stack.initialize(3);
    let labels: Vec<f32> =
        uniform(8, SAMPLES).iter().map(|&x| if x > 0.2 { 1.0 } else { 0.0 }).collect();
    let frozen = |name, rows, cols, data: &[f32]| frozen_on(stream, name, rows, cols, data);
    Model {
        arenas,
        stack,
        x: frozen("x", SAMPLES, widths[0], &uniform(4, SAMPLES * widths[0])),
        y: frozen("y", 64, 1, &[]),
        d_y: frozen("d_y", SAMPLES, 1, &[]),
        d_x: frozen("d_x", SAMPLES, widths[0], &[]),
        labels: frozen("labels", SAMPLES, 1, &labels),
        sums: frozen("sums", sum_blocks, 2, &[]),
    }
}

impl Model {
    /// The loss of one step, gradients included.
    fn step(&self, stream: &Stream, accumulate: bool) -> f64 {
        self.enqueue(stream, accumulate);
        stream.synchronize().unwrap();
        loss::total_of(&values(&self.sums))
    }

    fn enqueue(&self, stream: &Stream, accumulate: bool) {
        let y = self.y.first_rows(SAMPLES);
        self.stack.refresh(stream);
        self.stack.forward(stream, &self.x, &y);
        let (logits, labels, d_logits, sums) = (&y, &self.labels, &self.d_y, &self.sums);
        let loss = Loss::BceWithLogits;
        let block_len = block_len(SAMPLES, sums.rows());
        loss::forward_backward(
            stream,
            &LossArgs {
                loss,
                logits,
                labels,
                d_logits,
                sums,
                block_len,
                scale: 1.0,
                loss_scale: None,
            },
        );
        let args = MlpBackwardArgs {
            x: &self.x,
            d_z: &self.d_y,
            d_x: Some(&self.d_x),
            accumulate,
            block_len,
        };
        self.stack.backward(stream, &args);
    }

    /// The same loss in f64, from the layers' present weights.
    fn oracle_loss(&self, x: &[f64]) -> f64 {
        let mut input = x.to_vec();
        for layer in self.stack.layers() {
            let w: Vec<f64> = values_f64(&layer.weights().values);
            let z = oracle::linear(
                &input,
                &w,
                &values_f64(layer.bias().unwrap()),
                layer.weights().inputs(),
            );
            input = z.iter().map(|sum| oracle::activate(layer.activation(), sum.value)).collect();
        }
        let labels = values_f64(&self.labels);
        input.iter().zip(labels).map(|(&z, y)| oracle::loss(Loss::BceWithLogits, z, y).0).sum()
    }
}

fn values_f64(mat: &Mat) -> Vec<f64> {
    values(mat).iter().map(|&x| f64::from(x)).collect()
}

#[test]
fn loss_and_gradients_agree_with_finite_differences_of_the_oracle() {
    let model = model(1);
    let loss = model.step(&Stream::cpu(2), false);
    let x = values_f64(&model.x);
    assert!((loss - model.oracle_loss(&x)).abs() < 1e-4);
    let step = 2.0_f64.powi(-12);
    let slope = |change: &dyn Fn(f64) -> f64| (change(step) - change(-step)) / (2.0 * step);
    for layer in model.stack.layers() {
        for (parameter, gradient) in [
            (&layer.weights().values, layer.d_weight()),
            (layer.bias().unwrap(), layer.d_bias().unwrap()),
        ] {
            let gradient = values(gradient);
            for index in [0, gradient.len() / 2, gradient.len() - 1] {
                let change = |by: f64| {
                    let mut guard = parameter.write::<f32>();
                    let before = guard.data_mut()[index];
                    guard.data_mut()[index] = (f64::from(before) + by) as f32;
                    drop(guard);
                    let loss = model.oracle_loss(&x);
                    parameter.write::<f32>().data_mut()[index] = before;
                    loss
                };
                // Rounding the moved weight to f32 turns a step of 2^-12 by up to 2^-13, a kink of
                // a ReLU by more.
                let expected = slope(&change);
                let got = f64::from(gradient[index]);
                assert!(
                    (got - expected).abs() < 2e-3 * (1.0 + expected.abs()),
                    "{} {index}: got {got}, expected {expected}",
                    parameter.name()
                );
            }
        }
    }
    let d_x = values(&model.d_x);
    for index in [0, 100, d_x.len() - 1] {
        let expected = slope(&|by| {
            let mut x = x.clone();
            x[index] += by;
            model.oracle_loss(&x)
        });
        assert!((f64::from(d_x[index]) - expected).abs() < 1e-3 * (1.0 + expected.abs()));
    }
}

fn gradients(model: &Model) -> Vec<f32> {
    model.arenas.gradients.to_vec::<f32>().unwrap()
}

#[test]
fn threads_change_no_bit() {
    for sum_blocks in [1, 4] {
        let run = |threads| {
            let model = model(sum_blocks);
            let loss = model.step(&Stream::cpu(threads), false);
            (loss, gradients(&model))
        };
        assert_eq!(run(1), run(2));
        assert_eq!(run(1), run(5));
    }
}

#[test]
fn accumulating_adds() {
    let model = model(1);
    let stream = Stream::cpu(1);
    model.step(&stream, false);
    let once = gradients(&model);
    model.step(&stream, true);
    let twice = gradients(&model);
    for (once, twice) in once.iter().zip(twice) {
        assert!((twice - 2.0 * once).abs() <= 1e-4 * (1.0 + once.abs()));
    }
}

#[test]
fn parameters_are_named_and_initial_values_depend_on_name_and_seed() {
    let stack = model(1).stack;
    let names: Vec<&str> = stack
        .layers()
        .iter()
        .flat_map(|l| [l.weights().name(), l.bias().unwrap().name()])
        .collect();
    let expected =
        ["top.0.weight", "top.0.bias", "top.1.weight", "top.1.bias", "top.2.weight", "top.2.bias"];
    assert_eq!(names, expected);
    let weight = |seed| {
        stack.initialize(seed);
        values(&stack.layers()[0].weights().values)
    };
    assert_eq!(weight(1), weight(1));
    assert_ne!(weight(1), weight(2));
}

mod cuda_tests {
    use super::*;
    use headlong_device::cuda::testing::{ProductFaults, device, set_product_faults, stream};

    /// Sums of at most 40 terms of size 1, three layers up and three down: some 6 · 40 · 2^-24 of
    /// the largest.
    fn close(got: &[f32], expected: &[f32], what: &str) {
        assert_eq!(got.len(), expected.len(), "{what}");
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            assert!(
                (got - expected).abs() <= 2e-5 * (1.0 + expected.abs()),
                "{what} {i}: {got}, {expected}"
            );
        }
    }

    /// With rows that start anywhere, and at multiples of 16 bytes: then ReLU masks are kept.
    const STACKS: [[usize; 4]; 2] = [WIDTHS, [8, 40, 24, 1]];

    #[test]
    fn losses_and_gradients_are_those_of_the_cpu() {
        let Some(stream) = stream() else { return };
        let cpu = Stream::cpu(1);
        for (widths, sum_blocks) in STACKS.iter().flat_map(|widths| [(widths, 1), (widths, 4)]) {
            let (here, there) =
                (model_of(&cpu, widths, sum_blocks), model_of(&stream, widths, sum_blocks));
            let loss = here.step(&cpu, false);
            for (here, there) in here.stack.layers().iter().zip(there.stack.layers()) {
                assert_eq!(values(&there.weights().values), values(&here.weights().values));
                assert_eq!(values(there.bias().unwrap()), values(here.bias().unwrap()));
            }
            assert!((there.step(&stream, false) - loss).abs() < 1e-4);
            close(&gradients(&there), &gradients(&here), "gradient");
            close(&values(&there.d_x), &values(&here.d_x), "gradient of the input");
            there.step(&stream, true);
            here.step(&cpu, true);
            close(&gradients(&there), &gradients(&here), "accumulated gradient");
        }
    }

    #[test]
    fn aligned_stacks_keep_masks() {
        let Some(stream) = stream() else { return };
        let keeps = |widths: &[usize; 4]| {
            let model = model_of(&stream, widths, 1);
            let layer = &model.stack.layers()[0];
            let y = layer.output().unwrap().first_rows(SAMPLES);
            linear::keeps_mask(&stream, &layer.forward_args(&model.x, &y))
        };
        assert!(keeps(&STACKS[1]));
        // What a GPU's library does with the other one is its own business.
        let software = stream.cuda_body().device().is_software();
        assert!(!software || !keeps(&STACKS[0]));
    }

    /// Epilogues that the library proposes algorithms for, and then refuses, by their numbers
    /// there: ReLU with bias, with and without a mask.
    #[test]
    fn what_the_library_refuses_is_left_to_kernels() {
        let Some(stream) = stream() else { return };
        // Refused plans stay so: no other test has these widths.
        for (refused_epilogue, hidden) in [(134, 40), (6, 48)] {
            let widths = [8, hidden, 16, 1];
            let (cpu, faults) =
                (Stream::cpu(1), ProductFaults { refused_epilogue, ..ProductFaults::default() });
            let (here, there) = (model_of(&cpu, &widths, 1), model_of(&stream, &widths, 1));
            here.step(&cpu, false);
            if !set_product_faults(faults) {
                return;
            }
            for accumulate in [false, true] {
                here.step(&cpu, accumulate);
                there.step(&stream, accumulate);
                let what = format!("gradient, {refused_epilogue} refused");
                close(&gradients(&there), &gradients(&here), &what);
            }
            set_product_faults(ProductFaults::default());
        }
    }

    #[test]
    fn a_side_stream_and_a_capture_change_no_bit() {
        let Some(main) = stream() else { return };
        let Some(device) = device() else { return };
        for (widths, sum_blocks) in [(&STACKS[0], 4), (&STACKS[1], 1)] {
            let model = model_of(&main, widths, sum_blocks);
            let loss = model.step(&main, false);
            let expected = gradients(&model);
            let clear =
                || model.arenas.gradients.copy_from(&vec![f32::NAN; expected.len()]).unwrap();
            let pool = std::sync::Arc::new(headlong_device::pool::Pool::new(1));
            let two =
                [(); 2].map(|()| Stream::cuda(&device, std::sync::Arc::clone(&pool)).unwrap());
            let [stream, side] = two;
            let stream = stream.with_side_stream(side);
            clear();
            assert_eq!(model.step(&stream, false), loss);
            assert_same(&gradients(&model), &expected);
            let graph = stream.cuda_body().capture(|| {
                model.enqueue(&stream, false);
                Ok(())
            });
            let graph = graph.unwrap();
            for _ in 0..3 {
                clear();
                graph.launch(stream.cuda_body());
                stream.synchronize().unwrap();
                assert_same(&gradients(&model), &expected);
            }
        }
    }

    /// Gaps between slots must not be touched.
    fn assert_same(got: &[f32], expected: &[f32]) {
        let wrong =
            got.iter().zip(expected).filter(|(got, expected)| got != expected && **expected != 0.0);
        assert_eq!(wrong.count(), 0);
    }

    #[test]
    fn a_stack_fails_by_name_where_the_library_fails() {
        let Some(stream) = stream() else { return };
        let model = model_on(&stream, 1);
        stream.cuda_body().fail(headlong_device::DeviceError::Misuse {
            what: "a test".to_owned(),
            reason: "it wants to".to_owned(),
        });
        model.enqueue(&stream, false);
        assert!(stream.check().unwrap_err().to_string().contains("a test"));
    }
}
