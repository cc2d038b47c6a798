use super::*;
use crate::oracle;
use crate::testing::{frozen, frozen_on, values, wide_on};
use headlong_device::ArenaPlan;
use headlong_device::simd::{Isa, Limit, isa};
use headlong_device::testing::{small_integers, uniform};

mod cuda_sixteen_bits;

struct Case {
    samples: usize,
    vectors: usize,
    dim: usize,
}

/// Shapes of the golden run, the fixture, Criteo at 16, 64 and 128, odd ones, and more vectors than
/// fit any register file.
const CASES: [Case; 12] = [
    Case { samples: 2, vectors: 3, dim: 2 },
    Case { samples: 5, vectors: 4, dim: 8 },
    Case { samples: 37, vectors: 26, dim: 16 },
    Case { samples: 3, vectors: 26, dim: 64 },
    Case { samples: 3, vectors: 26, dim: 128 },
    Case { samples: 3, vectors: 1, dim: 37 },
    Case { samples: 2, vectors: 12, dim: 50 },
    Case { samples: 2, vectors: 70, dim: 20 },
    Case { samples: 2, vectors: 20, dim: 150 },
    Case { samples: 2, vectors: 9, dim: 75 },
    Case { samples: 2, vectors: 63, dim: 31 },
    Case { samples: 2, vectors: 0, dim: 5 },
];

struct Results {
    out: Vec<f32>,
    d_bottom: Vec<f32>,
    d_vectors: Vec<f32>,
}

struct Inputs {
    bottom: Vec<f32>,
    vectors: Vec<f32>,
    d_out: Vec<f32>,
}

impl Case {
    fn inputs(&self, make: fn(u64, usize) -> Vec<f32>) -> Inputs {
        Inputs {
            bottom: make(1, self.samples * self.dim),
            vectors: make(2, self.samples * self.vectors * self.dim),
            d_out: make(3, self.samples * output_width(self.vectors, self.dim)),
        }
    }

    fn run(&self, threads: usize, data: &Inputs, bottom_activation: Activation) -> Results {
        self.run_on(&Stream::cpu(threads), data, bottom_activation)
    }

    fn run_on(&self, stream: &Stream, data: &Inputs, bottom_activation: Activation) -> Results {
        self.run_rounding(None, stream, data, bottom_activation)
    }

    fn run_rounding(
        &self,
        rounding: Option<Rounding>,
        stream: &Stream,
        data: &Inputs,
        bottom_activation: Activation,
    ) -> Results {
        let &Case { samples, vectors: count, dim } = self;
        let width = output_width(count, dim);
        let bottom = wide_on(stream, "bottom", samples, dim, &data.bottom);
        let vectors = frozen_on(stream, "vectors", samples, count * dim, &data.vectors);
        let out = wide_on(stream, "out", samples, width, &[]);
        let args = ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out };
        forward(stream, &args, rounding);
        let d_out = frozen_on(stream, "d_out", samples, width, &data.d_out);
        let d_bottom = frozen_on(stream, "d_bottom", samples, dim, &[]);
        let d_vectors = wide_on(stream, "d_vectors", samples, count * dim, &[]);
        backward(
            stream,
            &BackwardArgs {
                bottom: &bottom,
                vectors: &vectors,
                d_out: &d_out,
                d_bottom: &d_bottom,
                d_vectors: &d_vectors,
                bottom_activation,
                loss_scale: None,
            },
            rounding,
        );
        stream.check().unwrap();
        Results { out: values(&out), d_bottom: values(&d_bottom), d_vectors: values(&d_vectors) }
    }

    /// The rows `[bottom; vectors]` of a sample, in f64.
    fn features(&self, data: &Inputs, sample: usize) -> Vec<f64> {
        let bottom = &data.bottom[sample * self.dim..][..self.dim];
        let width = self.vectors * self.dim;
        let vectors = &data.vectors[sample * width..][..width];
        bottom.iter().chain(vectors).map(|&x| f64::from(x)).collect()
    }
}

fn check(case: &Case, data: &Inputs, got: &Results, exact: bool) {
    let width = output_width(case.vectors, case.dim);
    for sample in 0..case.samples {
        let features = case.features(data, sample);
        for (i, sum) in oracle::dot(&features, case.dim).iter().enumerate() {
            let got = got.out[sample * width + i];
            let fits =
                if exact { f64::from(got) == sum.value } else { sum.admits(got, case.dim + 4) };
            assert!(fits, "sample {sample}, output {i}: got {got}, expected {sum:?}");
        }
        let d_out: Vec<f64> =
            data.d_out[sample * width..][..width].iter().map(|&x| f64::from(x)).collect();
        let d_features = oracle::dot_backward(&features, case.dim, &d_out);
        let d_bottom = &got.d_bottom[sample * case.dim..][..case.dim];
        let d_vectors =
            &got.d_vectors[sample * case.vectors * case.dim..][..case.vectors * case.dim];
        for (i, (got, sum)) in d_bottom.iter().chain(d_vectors).zip(&d_features).enumerate() {
            let fits = if exact {
                f64::from(*got) == sum.value
            } else {
                sum.admits(*got, case.vectors + 1)
            };
            assert!(fits, "sample {sample}, gradient {i}: got {got}, expected {sum:?}");
        }
    }
}

#[test]
fn agrees_with_the_oracle() {
    for case in &CASES {
        let data = case.inputs(uniform);
        check(case, &data, &case.run(2, &data, Activation::None), false);
        let data = case.inputs(small_integers);
        check(case, &data, &case.run(1, &data, Activation::None), true);
    }
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for case in &CASES {
        let data = case.inputs(uniform);
        let plain = Limit::at_most(Isa::Portable).run(|| case.run(1, &data, Activation::Relu));
        for allowed in [Isa::Avx2, Isa::Avx512] {
            let limit = Limit::at_most(allowed);
            if limit.run(isa) != allowed {
                println!("skipped, because this processor has no {}", allowed.name());
                continue;
            }
            let what = format!("{} at dim {}", allowed.name(), case.dim);
            let got = limit.run(|| case.run(3, &data, Activation::Relu));
            assert_eq!(plain.out, got.out, "{what}");
            assert_eq!(plain.d_bottom, got.d_bottom, "{what}");
            assert_eq!(plain.d_vectors, got.d_vectors, "{what}");
        }
    }
}

/// Gradients that are written past the caches, whose rows are cache lines or are not.
#[test]
fn large_gradients_have_the_bits_of_small_ones() {
    for (samples, vectors, dim) in [(700, 26, 128), (2700, 26, 32), (900, 23, 112), (5000, 9, 50)] {
        let case = Case { samples, vectors, dim };
        let data = case.inputs(uniform);
        let (width, last) = (vectors * dim, samples - 3);
        let [stream, one] = [2, 1].map(Stream::cpu);
        let mut plan = ArenaPlan::new("lines");
        let slot = plan.matrix("d_vectors", DType::F32, samples, width);
        let d_vectors = plan.freeze().unwrap().mat(slot);
        let mat = |name, cols, data| frozen(name, samples, cols, data);
        let (bottom, vectors) = (mat("bottom", dim, &data.bottom), mat("v", width, &data.vectors));
        let d_out = mat("d_out", output_width(case.vectors, dim), &data.d_out);
        let d_bottom = mat("d_bottom", dim, &[]);
        let run = |stream: &Stream, first: usize, count: usize| {
            let part = |mat: &Mat| mat.rows_range(first, count);
            let args = BackwardArgs {
                bottom: &part(&bottom),
                vectors: &part(&vectors),
                d_out: &part(&d_out),
                d_bottom: &part(&d_bottom),
                d_vectors: &part(&d_vectors),
                bottom_activation: Activation::Relu,
                loss_scale: None,
            };
            backward(stream, &args, None);
            [values(&part(&d_bottom)), values(&part(&d_vectors))]
        };
        let [d_bottom_all, d_vectors_all] = run(&stream, 0, samples);
        for first in [0, samples / 2, last] {
            let [d_bottom, d_vectors] = run(&one, first, 3);
            assert_eq!(d_bottom, d_bottom_all[first * dim..][..3 * dim], "dim {dim}");
            assert_eq!(d_vectors, d_vectors_all[first * width..][..3 * width], "dim {dim}");
        }
    }
}

#[test]
fn the_bottom_gradient_is_masked_by_its_relu() {
    let case = &CASES[2];
    let data = case.inputs(uniform);
    let (plain, masked) =
        (case.run(1, &data, Activation::None), case.run(1, &data, Activation::Relu));
    for (i, output) in data.bottom.iter().enumerate() {
        assert_eq!(masked.d_bottom[i], if *output > 0.0 { plain.d_bottom[i] } else { 0.0 });
    }
    assert_eq!(plain.d_vectors, masked.d_vectors);
}

/// Vectors that are rounded on the way give the bits of rounded vectors, also where they are too
/// many for the stack.
#[test]
fn vectors_are_rounded_before_they_meet() {
    let long = Case { samples: 2, vectors: 40, dim: 300 };
    for case in CASES.iter().chain([&long]) {
        for rounding in [Rounding::Bf16, Rounding::F16] {
            let run = |data: &Inputs, rounding: Option<Rounding>| {
                case.run_rounding(rounding, &Stream::cpu(2), data, Activation::Relu)
            };
            let mut data = case.inputs(uniform);
            let got = run(&data, Some(rounding));
            rounding.round_all(&mut data.vectors);
            let expected = run(&data, None);
            let what = format!("{rounding:?} at {} of {}", case.vectors, case.dim);
            assert_eq!(got.out, expected.out, "{what}");
            assert_eq!(got.d_bottom, expected.d_bottom, "{what}");
            assert_eq!(got.d_vectors, expected.d_vectors, "{what}");
        }
    }
}

/// The order of facebookresearch/dlrm: (1,0), (2,0), (2,1), (3,0), ….
#[test]
fn order_of_the_original() {
    let bottom = frozen("bottom", 1, 1, &[2.0]);
    let vectors = frozen("vectors", 1, 3, &[3.0, 5.0, 7.0]);
    let out = frozen("out", 1, 7, &[]);
    let args = ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out };
    forward(&Stream::cpu(1), &args, None);
    assert_eq!(values(&out), [2.0, 6.0, 10.0, 15.0, 14.0, 21.0, 35.0]);
}

mod cuda_tests {
    use super::super::args::{DotBackwardArgs, DotForwardArgs};
    use super::super::cuda::SOURCE;
    use super::*;
    use headlong_device::cuda::testing::{layout_test, stream};

    /// Criteo at 16 and 128, odd dims, no vectors, more gradient tiles than lanes, and rows that do
    /// not fit into shared memory.
    const SHAPES: [Case; 6] = [
        Case { samples: 37, vectors: 26, dim: 16 },
        Case { samples: 5, vectors: 26, dim: 128 },
        Case { samples: 3, vectors: 1, dim: 37 },
        Case { samples: 2, vectors: 70, dim: 20 },
        Case { samples: 2, vectors: 0, dim: 5 },
        Case { samples: 2, vectors: 40, dim: 500 },
    ];

    #[test]
    fn agrees_with_the_oracle_and_with_the_cpu() {
        let Some(stream) = stream() else { return };
        for case in &SHAPES {
            let data = case.inputs(uniform);
            let got = case.run_on(&stream, &data, Activation::None);
            check(case, &data, &got, false);
            // A gradient is the same chain on every device.
            let expected = case.run(1, &data, Activation::None);
            assert_eq!(got.d_bottom, expected.d_bottom, "dim {}", case.dim);
            assert_eq!(got.d_vectors, expected.d_vectors, "dim {}", case.dim);
            let data = case.inputs(small_integers);
            let (got, expected) = (
                case.run_on(&stream, &data, Activation::Relu),
                case.run(1, &data, Activation::Relu),
            );
            assert_eq!(got.out, expected.out, "dim {}", case.dim);
            assert_eq!(got.d_bottom, expected.d_bottom, "dim {}", case.dim);
            assert_eq!(got.d_vectors, expected.d_vectors, "dim {}", case.dim);
        }
    }

    #[test]
    fn aligned_and_unaligned_rows_give_the_same() {
        let Some(stream) = stream() else { return };
        let case = &SHAPES[0];
        let data = case.inputs(uniform);
        let aligned =
            |name, cols: usize, data: &[f32]| frozen_on(&stream, name, case.samples, cols, data);
        let (bottom, vectors) =
            (aligned("bottom", 16, &data.bottom), aligned("vectors", 26 * 16, &data.vectors));
        let out = aligned("out", output_width(26, 16), &[]);
        let args = ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out };
        forward(&stream, &args, None);
        let d_out = aligned("d_out", output_width(26, 16), &data.d_out);
        let (d_bottom, d_vectors) =
            (aligned("d_bottom", 16, &[]), aligned("d_vectors", 26 * 16, &[]));
        let args = BackwardArgs {
            bottom: &bottom,
            vectors: &vectors,
            d_out: &d_out,
            d_bottom: &d_bottom,
            d_vectors: &d_vectors,
            bottom_activation: Activation::Relu,
            loss_scale: None,
        };
        backward(&stream, &args, None);
        let unaligned = case.run_on(&stream, &data, Activation::Relu);
        assert_eq!(values(&out), unaligned.out);
        assert_eq!(values(&d_bottom), unaligned.d_bottom);
        assert_eq!(values(&d_vectors), unaligned.d_vectors);
    }

    #[test]
    fn layouts() {
        layout_test!(DotForwardArgs, &SOURCE, &[]);
        layout_test!(DotBackwardArgs, &SOURCE, &[]);
    }
}
