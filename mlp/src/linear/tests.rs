use super::*;
use crate::oracle::{self, Sum};
use crate::testing::{frozen, frozen_on, wide_on};
use headlong_device::testing::{small_integers, uniform};

struct Layer {
    samples: usize,
    inputs: usize,
    outputs: usize,
    sum_blocks: usize,
}

struct Results {
    y: Vec<f32>,
    d_x: Vec<f32>,
    d_w: Vec<f32>,
    d_b: Vec<f32>,
}

struct Inputs {
    x: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
    d_z: Vec<f32>,
}

impl Layer {
    fn inputs(&self, make: fn(u64, usize) -> Vec<f32>) -> Inputs {
        Inputs {
            x: make(1, self.samples * self.inputs),
            w: make(2, self.outputs * self.inputs),
            b: make(3, self.outputs),
            d_z: make(4, self.samples * self.outputs),
        }
    }

    fn run(&self, stream: &Stream, data: &Inputs, accumulate_twice: bool) -> Results {
        let &Layer { samples, inputs, outputs, sum_blocks } = self;
        let (mut parameters, mut scratch) =
            (ArenaPlan::new("parameters"), ArenaPlan::new("scratch"));
        let (parameters_plan, shape) = (&mut parameters, (outputs, inputs));
        let plan = WeightsPlan::add_for(Compute::F32, parameters_plan, &mut scratch, "w", shape);
        let freeze = |plan: ArenaPlan| plan.freeze_on(stream).unwrap();
        let w = plan.build(&freeze(parameters), &freeze(scratch));
        w.pack(&data.w);
        w.refresh(stream);
        // Inputs and outputs with gaps between rows.
        let wide = |name, cols, data: &[f32]| wide_on(stream, name, samples, cols, data);
        let frozen = |name, rows, cols, data: &[f32]| frozen_on(stream, name, rows, cols, data);
        let (x, d_z) = (wide("x", inputs, &data.x), wide("d_z", outputs, &data.d_z));
        let (y, d_x) = (wide("y", outputs, &[]), wide("d_x", inputs, &[]));
        let (b, d_b) = (frozen("b", 1, outputs, &data.b), frozen("d_b", 1, outputs, &[]));
        let d_w = frozen("d_w", outputs, inputs, &[]);
        let partials = (sum_blocks > 1).then(|| Partials {
            narrow: false,
            sum_blocks,
            weight: frozen("partial weights", sum_blocks * outputs, inputs, &[]),
            bias: frozen("partial biases", sum_blocks, outputs, &[]),
        });
        forward(
            stream,
            &ForwardArgs { x: &x, w: &w, b: Some(&b), y: &y, activation: Activation::Relu },
        );
        backward_data(
            stream,
            &BackwardDataArgs { d_z: &d_z, w: &w, d_x: &d_x, mask: Some(&x), accumulate: false },
        );
        for accumulate in if accumulate_twice { &[false, true][..] } else { &[false] } {
            let partials = partials.as_ref();
            let args = BackwardWeightsArgs {
                x: &x,
                d_z: &d_z,
                d_w: &d_w,
                d_b: Some(&d_b),
                partials,
                block_len: samples.div_ceil(sum_blocks),
                accumulate: *accumulate,
                compute: Compute::F32,
            };
            backward_weights(stream, &args);
        }
        stream.check().unwrap();
        Results { y: values(&y), d_x: values(&d_x), d_w: values(&d_w), d_b: values(&d_b) }
    }
}

use crate::testing::values;
use headlong_device::ArenaPlan;

fn f64s(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

fn within(got: &[f32], expected: &[Sum], count: usize, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(expected.admits(*got, count), "{what} {i}: got {got}, expected {expected:?}");
    }
}

const LAYERS: [Layer; 5] = [
    Layer { samples: 37, inputs: 13, outputs: 48, sum_blocks: 1 },
    Layer { samples: 64, inputs: 300, outputs: 33, sum_blocks: 1 },
    Layer { samples: 50, inputs: 40, outputs: 1, sum_blocks: 1 },
    Layer { samples: 45, inputs: 17, outputs: 5, sum_blocks: 4 },
    Layer { samples: 1, inputs: 1, outputs: 2, sum_blocks: 2 },
];

#[test]
fn agrees_with_the_oracle() {
    check_bounds(&Stream::cpu(2));
}

fn check_bounds(stream: &Stream) {
    for layer in &LAYERS {
        let data = layer.inputs(uniform);
        let got = layer.run(stream, &data, false);
        let (x, w, b, d_z) = (f64s(&data.x), f64s(&data.w), f64s(&data.b), f64s(&data.d_z));
        let z = oracle::linear(&x, &w, &b, layer.inputs);
        for (y, z) in got.y.iter().zip(&z) {
            // ReLU never enlarges an error; one operation more for the bias.
            let bound = oracle::sum_bound(layer.inputs + 1) * z.magnitude;
            assert!((f64::from(*y) - z.value.max(0.0)).abs() <= bound, "got {y}, expected {z:?}");
        }
        let masked: Vec<Sum> = oracle::linear_backward_data(&d_z, &w, layer.outputs)
            .into_iter()
            .zip(&x)
            .map(|(sum, &x)| if x > 0.0 { sum } else { Sum::default() })
            .collect();
        within(&got.d_x, &masked, layer.outputs, "d_x");
        let (d_w, d_b) = oracle::linear_backward_weights(&x, &d_z, layer.inputs, layer.outputs);
        within(&got.d_w, &d_w, layer.samples, "d_w");
        within(&got.d_b, &d_b, layer.samples, "d_b");
    }
}

#[test]
fn small_integers_are_exact_and_accumulate_exactly() {
    check_exact(&Stream::cpu(1));
}

fn check_exact(stream: &Stream) {
    for layer in &LAYERS {
        let data = layer.inputs(small_integers);
        let got = layer.run(stream, &data, true);
        let (x, w, b, d_z) = (f64s(&data.x), f64s(&data.w), f64s(&data.b), f64s(&data.d_z));
        let z = oracle::linear(&x, &w, &b, layer.inputs);
        assert!(got.y.iter().zip(&z).all(|(y, z)| f64::from(*y) == z.value.max(0.0)));
        let (d_w, d_b) = oracle::linear_backward_weights(&x, &d_z, layer.inputs, layer.outputs);
        assert!(got.d_w.iter().zip(&d_w).all(|(got, sum)| f64::from(*got) == 2.0 * sum.value));
        assert!(got.d_b.iter().zip(&d_b).all(|(got, sum)| f64::from(*got) == 2.0 * sum.value));
    }
}

#[test]
fn threads_change_no_bit() {
    for layer in &LAYERS {
        let data = layer.inputs(uniform);
        let one = layer.run(&Stream::cpu(1), &data, false);
        for threads in [2, 5] {
            let many = layer.run(&Stream::cpu(threads), &data, false);
            assert!(
                one.y == many.y
                    && one.d_x == many.d_x
                    && one.d_w == many.d_w
                    && one.d_b == many.d_b
            );
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_place_in_the_batch() {
    let layer = Layer { samples: 150, inputs: 70, outputs: 40, sum_blocks: 1 };
    let data = layer.inputs(uniform);
    let whole = layer.run(&Stream::cpu(1), &data, false);
    let single = Layer { samples: 1, ..layer };
    for sample in [0, 77, 149] {
        let x = data.x[sample * 70..][..70].to_vec();
        let d_z = data.d_z[sample * 40..][..40].to_vec();
        let (w, b) = (data.w.clone(), data.b.clone());
        let got = single.run(&Stream::cpu(1), &Inputs { x, w, b, d_z }, false);
        assert_eq!(got.y, whole.y[sample * 40..][..40]);
        assert_eq!(got.d_x, whole.d_x[sample * 70..][..70]);
    }
}

#[test]
fn block_sums_are_the_sums_of_smaller_batches() {
    let layer = Layer { samples: 40, inputs: 17, outputs: 5, sum_blocks: 4 };
    let data = layer.inputs(uniform);
    let got = layer.run(&Stream::cpu(2), &data, false);
    let quarter = Layer { samples: 10, sum_blocks: 1, ..layer };
    let parts: Vec<Vec<f32>> = (0..4)
        .map(|part| {
            let x = data.x[part * 170..][..170].to_vec();
            let d_z = data.d_z[part * 50..][..50].to_vec();
            let (w, b) = (data.w.clone(), data.b.clone());
            quarter.run(&Stream::cpu(1), &Inputs { x, w, b, d_z }, false).d_w
        })
        .collect();
    for (i, got) in got.d_w.iter().enumerate() {
        assert_eq!(*got, (parts[0][i] + parts[1][i]) + (parts[2][i] + parts[3][i]));
    }
}

#[test]
#[should_panic(expected = "gradient of the weights, slot `d_w`")]
fn wrong_shapes_are_refused_by_name() {
    let mat = |name, rows, cols| frozen(name, rows, cols, &[]);
    let (x, d_z, d_w, d_b) = (mat("x", 4, 3), mat("d_z", 4, 2), mat("d_w", 3, 2), mat("d_b", 1, 2));
    let (partials, block_len, accumulate) = (None, 4, false);
    let args = BackwardWeightsArgs {
        x: &x,
        d_z: &d_z,
        d_w: &d_w,
        d_b: Some(&d_b),
        partials,
        block_len,
        accumulate,
        compute: Compute::F32,
    };
    backward_weights(&Stream::cpu(1), &args);
}

mod cuda_tests {
    use super::super::helpers::{
        BiasArgs, ColumnSums, CopiesArgs, CopyArgs, MaskAndSumArgs, Passed, SOURCE, SumPartsArgs,
        TreeArgs, mask_and_sum,
    };
    use super::*;
    use headlong_device::cuda::testing::{layout_test, stream};
    use headlong_device::{ArenaPlan, DType, Mat};

    #[test]
    fn agrees_with_the_oracle() {
        if let Some(stream) = stream() {
            check_bounds(&stream);
            check_exact(&stream);
            let y = frozen_on(&stream, "y", 2, 3, &[1.0, 0.0, -0.0, 2.0, 0.0, 3.0]);
            let d_y = frozen_on(&stream, "d_y", 2, 3, &[5.0; 6]);
            mask_and_sum(stream.cuda_body(), &d_y, Some(Passed::Output(y)), None);
            assert_eq!(values(&d_y), [5.0, 0.0, 0.0, 5.0, 0.0, 5.0]);
        }
    }

    /// Columns that fill rows of 16 bits up belong to the gradient: a product has written them,
    /// with what zero times infinity is, and the next one takes them in.
    #[test]
    fn what_fills_rows_up_becomes_zero() {
        let Some(stream) = stream() else { return };
        let filled_with = |name: &str, number: f32| {
            let mut plan = ArenaPlan::new(name);
            let slot = plan.matrix(name, DType::F16, 2, 24);
            let mat = plan.freeze_on(&stream).unwrap().mat(slot);
            mat.copy_from(&[half::f16::from_f32(number); 48]).unwrap();
            mat
        };
        let whole = filled_with("gradient", f32::NAN);
        let outputs = filled_with("output", -1.0);
        let output = Some(Passed::Output(outputs.columns(0, 17)));
        mask_and_sum(stream.cuda_body(), &whole.columns(0, 17), output, None);
        assert_eq!(whole.to_vec::<half::f16>().unwrap(), [half::f16::ZERO; 48]);
    }

    /// More blocks than the scratch memory has room for: each has the sums that it has alone.
    #[test]
    fn blocks_add_up_as_each_does_alone() {
        const LEN: usize = 2048;
        const COLS: usize = 1024;
        const BLOCKS: usize = 17;
        let Some(stream) = stream() else { return };
        let rows = LEN * (BLOCKS - 1) + 300;
        let of =
            |name: &str, seed| frozen_on(&stream, name, rows, COLS, &uniform(seed, rows * COLS));
        let (gradient, output) = (of("gradient", 7), of("output", 8));
        let numbers = values(&gradient);
        let sums_of = |first: usize, len: usize, blocks: usize| {
            let part = |mat: &Mat| mat.rows_range(first, len);
            let sums = frozen_on(&stream, &format!("sums from {first}"), blocks, COLS, &[]);
            let to = ColumnSums { sums: &sums, block_len: LEN, accumulate: false };
            let passed = Some(Passed::Output(part(&output)));
            mask_and_sum(stream.cuda_body(), &part(&gradient), passed, Some(&to));
            values(&sums)
        };
        let all = sums_of(0, rows, BLOCKS);
        let masked = values(&gradient);
        for (at, output) in values(&output).into_iter().enumerate() {
            assert_eq!(masked[at], if output > 0.0 { numbers[at] } else { 0.0 }, "element {at}");
        }
        for block in [0, 9, BLOCKS - 1] {
            let samples = crate::sum::block(rows, LEN, block);
            let alone = sums_of(samples.start, samples.len(), 1);
            assert!(all[block * COLS..][..COLS] == alone, "block {block}");
        }
    }

    #[test]
    fn layouts() {
        layout_test!(CopyArgs, &SOURCE, &[]);
        layout_test!(CopiesArgs, &SOURCE, &[]);
        layout_test!(MaskAndSumArgs, &SOURCE, &[]);
        layout_test!(SumPartsArgs, &SOURCE, &[]);
        layout_test!(BiasArgs, &SOURCE, &[]);
        layout_test!(TreeArgs, &SOURCE, &[]);
    }
}
