use super::*;
use crate::oracle::{self, CrossLayer};
use crate::sum::block_len;
use crate::testing::{frozen_on, values, wide_on};
use headlong_device::DType;
use headlong_device::simd::{Bf16Products, Isa, Limit};
use headlong_device::testing::{small_integers, uniform};

#[derive(Debug, Clone, Copy)]
struct Case {
    samples: usize,
    width: usize,
    rank: usize,
    layers: usize,
    sum_blocks: usize,
}

/// One layer, several; a rank above and below the width; widths that end anywhere and at multiples
/// of 16; blocks that do not divide.
const CASES: [Case; 5] = [
    Case { samples: 5, width: 6, rank: 2, layers: 1, sum_blocks: 1 },
    Case { samples: 21, width: 9, rank: 4, layers: 2, sum_blocks: 4 },
    Case { samples: 33, width: 48, rank: 16, layers: 3, sum_blocks: 1 },
    Case { samples: 4, width: 3, rank: 5, layers: 2, sum_blocks: 2 },
    Case { samples: 70, width: 24, rank: 8, layers: 3, sum_blocks: 3 },
];

/// A network, and the numbers it is given.
struct Network {
    case: Case,
    arenas: Arenas,
    cross: Cross,
    y: Mat,
    d_y: Mat,
}

/// What it makes of them: output, gradient of the input, all parameters' gradients in the order of
/// their names.
#[derive(Debug, PartialEq)]
struct Results {
    y: Vec<f32>,
    d_x0: Vec<f32>,
    gradients: Vec<f32>,
}

type Make = fn(u64, usize) -> Vec<f32>;

fn scaled(seed: u64, len: usize) -> Vec<f32> {
    uniform(seed, len).iter().map(|x| x * 0.5).collect()
}

/// -1, 0 or 1: products of layers grow too fast for larger ones.
fn signs(seed: u64, len: usize) -> Vec<f32> {
    small_integers(seed, len).iter().map(|x| (x / 5.0).trunc()).collect()
}

impl Case {
    fn network(self, stream: &Stream, compute: Compute, make: Make) -> Network {
        let Self { samples, width, rank, layers, sum_blocks } = self;
        let mut plans = Plans::new();
        let spec = CrossSpec {
            width,
            rank,
            layers,
            max_samples: samples + 3,
            sum_blocks,
            narrow: false,
            compute,
        };
        let plan = spec.add_to(&mut plans);
        let arenas = plans.freeze_on(stream).unwrap();
        let cross = plan.build(&arenas);
        for (index, mat) in arenas.parameters.mats().enumerate() {
            mat.copy_from(&make(10 + index as u64, mat.rows() * mat.cols())).unwrap();
        }
        cross.stacks().iter().for_each(|stack| stack.refresh(stream));
        // Rows of what is handed over start anywhere; in 16 bits they are as the model lays them
        // out.
        let wide = |name, data: &[f32]| match compute.stored() {
            DType::F32 => wide_on(stream, name, samples, width, data),
            _ => sixteen_bits(stream, compute, name, (samples, width), data),
        };
        let (y, d_y) = (wide("y", &[]), wide("d_y", &self.d_y(make)));
        Network { case: self, arenas, cross, y, d_y }
    }

    fn x0(self, make: Make) -> Vec<f32> {
        make(1, self.samples * self.width)
    }

    fn d_y(self, make: Make) -> Vec<f32> {
        make(2, self.samples * self.width)
    }

    /// The same in f64, sample after sample.
    fn expected(self, make: Make) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let [x0, d_y] = [self.x0(make), self.d_y(make)].map(|values| wide(&values));
        let layers = self.layers(make);
        let (mut y, mut d_x0, mut total) = (Vec::new(), Vec::new(), Vec::<f64>::new());
        for (x0, d_y) in x0.chunks(self.width).zip(d_y.chunks(self.width)) {
            y.extend(oracle::cross(x0, &layers));
            let (d_x, gradients) = oracle::cross_backward(x0, &layers, d_y);
            d_x0.extend(d_x);
            let gradients =
                gradients.into_iter().flat_map(|layer| [layer.v, layer.w, layer.b].concat());
            let gradients: Vec<f64> = gradients.collect();
            total.resize(gradients.len(), 0.0);
            total.iter_mut().zip(gradients).for_each(|(total, gradient)| *total += gradient);
        }
        (y, d_x0, total)
    }

    fn layers(self, make: Make) -> Vec<CrossLayer> {
        let layer = |layer: usize| {
            let [v, w, b] = [self.rank * self.width, self.rank * self.width, self.width];
            let first = 10 + 3 * layer as u64;
            let [v, w, b] =
                [(0, v), (1, w), (2, b)].map(|(part, len)| wide(&make(first + part, len)));
            CrossLayer { v, w, b }
        };
        (0..self.layers).map(layer).collect()
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// A matrix of the type that products take, filled with rounded values.
fn sixteen_bits(
    stream: &Stream,
    compute: Compute,
    name: &str,
    (rows, cols): (usize, usize),
    data: &[f32],
) -> Mat {
    let mut plan = headlong_device::ArenaPlan::new(name);
    let slot = plan.matrix(name, compute.stored(), rows, cols.next_multiple_of(16));
    let mat = plan.freeze_on(stream).unwrap().mat(slot).columns(0, cols);
    if !data.is_empty() {
        fill(stream, &mat, data);
    }
    mat
}

/// Rounds `data` into a matrix of 16 bits.
fn fill(stream: &Stream, mat: &Mat, data: &[f32]) {
    let from = frozen_on(stream, "values", mat.rows(), mat.cols(), data);
    match stream.device() {
        Device::Cpu => Rounding::Bf16.copy(stream, &from, mat),
        Device::Cuda(_) => {
            crate::linear::copy_rounded(stream.cuda_body(), std::iter::once((&from, mat)));
            stream.synchronize().unwrap();
        }
    }
}

fn numbers(mat: &Mat) -> Vec<f32> {
    match mat.dtype() {
        DType::Bf16 => mat.to_vec::<half::bf16>().unwrap().iter().map(|x| x.to_f32()).collect(),
        DType::F16 => mat.to_vec::<half::f16>().unwrap().iter().map(|x| x.to_f32()).collect(),
        _ => values(mat),
    }
}

impl Network {
    fn fill(&self, stream: &Stream, make: Make) {
        let (x0, case) = (self.cross.input().first_rows(self.case.samples), self.case);
        let write = |mat: &Mat, data: &[f32]| match mat.dtype() {
            DType::F32 => {
                let mut data = data.to_vec();
                self.cross
                    .compute
                    .rounding()
                    .iter()
                    .for_each(|rounding| rounding.round_all(&mut data));
                mat.copy_from(&data).unwrap();
            }
            _ => fill(stream, mat, data),
        };
        write(&x0, &case.x0(make));
        write(&self.d_y, &case.d_y(make));
    }

    fn enqueue(&self, stream: &Stream, accumulate: bool) {
        self.cross.forward(stream, &self.y);
        let block_len = block_len(self.case.samples, self.case.sum_blocks);
        self.cross.backward(stream, &CrossBackwardArgs { d_y: &self.d_y, accumulate, block_len });
    }

    fn run(&self, stream: &Stream, make: Make, accumulate: bool) -> Results {
        self.fill(stream, make);
        self.enqueue(stream, accumulate);
        stream.synchronize().unwrap();
        Results {
            y: numbers(&self.y),
            d_x0: numbers(&self.cross.d_input().first_rows(self.case.samples)),
            gradients: self.arenas.gradients.mats().flat_map(|mat| values(&mat)).collect(),
        }
    }
}

/// Whole numbers: every sum is exact, in any order.
fn check_exact(stream: &Stream) {
    for case in CASES.into_iter().take(2) {
        let network = case.network(stream, Compute::F32, signs);
        let once = network.run(stream, signs, false);
        let (y, d_x0, gradients) = case.expected(signs);
        assert!(
            y.iter().chain(&gradients).all(|x| x.abs() < (1 << 24) as f64),
            "{case:?} is exact in f32"
        );
        assert_eq!(wide(&once.y), y, "{case:?}: output");
        assert_eq!(wide(&once.d_x0), d_x0, "{case:?}: gradient of the input");
        assert_eq!(wide(&once.gradients), gradients, "{case:?}: gradients");
        let twice = network.run(stream, signs, true);
        assert_eq!(twice.y, once.y);
        let doubled: Vec<f64> = gradients.iter().map(|x| 2.0 * x).collect();
        assert_eq!(wide(&twice.gradients), doubled, "{case:?}: accumulated gradients");
    }
}

/// ‖got − expected‖ in shares of ‖expected‖.
fn distance(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
    let off =
        square(&mut got.iter().zip(expected).map(|(&got, expected)| f64::from(got) - expected));
    (off / square(&mut expected.iter().copied())).sqrt()
}

/// Every value passes, up and down, some ten roundings of `unit` a layer; sums of up to 70 terms in
/// f32 are finer than that.
fn check_bounds(stream: &Stream, compute: Compute, unit: f64) {
    for case in CASES {
        let got = case.network(stream, compute, scaled).run(stream, scaled, false);
        let (y, d_x0, gradients) = case.expected(scaled);
        let bound = 10.0 * case.layers as f64 * unit;
        for (what, got, expected) in [
            ("output", &got.y, &y),
            ("gradient of the input", &got.d_x0, &d_x0),
            ("gradients", &got.gradients, &gradients),
        ] {
            let distance = distance(got, expected);
            assert!(distance < bound, "{compute:?}, {case:?}, {what}: {distance:e} of {bound:e}");
        }
    }
}

#[test]
fn agrees_with_the_oracle() {
    let stream = Stream::cpu(2);
    check_exact(&stream);
    check_bounds(&stream, Compute::F32, oracle::UNIT * 8.0);
    check_bounds(&stream, Compute::Rounded(Rounding::Bf16), 2.0_f64.powi(-8));
    check_bounds(&stream, Compute::RoundedTiles, 2.0_f64.powi(-8));
    check_bounds(&stream, Compute::Rounded(Rounding::F16), 2.0_f64.powi(-11));
}

/// The oracle's gradients are the slopes of its output: polynomials in each number, so that a
/// central difference is as good as its step allows.
#[test]
fn the_oracle_agrees_with_finite_differences() {
    let case = CASES[1];
    let (layers, x0, d_y) = (case.layers(scaled), wide(&case.x0(scaled)), wide(&case.d_y(scaled)));
    let (x0, d_y) = (&x0[..case.width], &d_y[..case.width]);
    let value = |x0: &[f64], layers: &[CrossLayer]| -> f64 {
        oracle::cross(x0, layers).iter().zip(d_y).map(|(y, d_y)| y * d_y).sum()
    };
    let (d_x0, gradients) = oracle::cross_backward(x0, &layers, d_y);
    let step = 1e-5;
    let slope = |change: &dyn Fn(f64) -> f64| (change(step) - change(-step)) / (2.0 * step);
    let close = |got: f64, expected: f64, what: &str| {
        assert!(
            (got - expected).abs() < 1e-8 * (1.0 + expected.abs()),
            "{what}: {got}, {expected}"
        );
    };
    for (index, gradient) in d_x0.iter().enumerate() {
        let change = |by: f64| {
            let mut x0 = x0.to_vec();
            x0[index] += by;
            value(&x0, &layers)
        };
        close(*gradient, slope(&change), "input");
    }
    for (layer, gradient) in gradients.iter().enumerate() {
        type Part = fn(&mut CrossLayer) -> &mut Vec<f64>;
        let parts: [(&[f64], Part); 3] = [
            (&gradient.v, |layer| &mut layer.v),
            (&gradient.w, |layer| &mut layer.w),
            (&gradient.b, |layer| &mut layer.b),
        ];
        for (gradient, part) in parts {
            for (index, gradient) in gradient.iter().enumerate() {
                let change = |by: f64| {
                    let mut layers = layers.clone();
                    part(&mut layers[layer])[index] += by;
                    value(x0, &layers)
                };
                close(*gradient, slope(&change), "parameter");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for (case, compute) in
        CASES.into_iter().flat_map(|case| [(case, Compute::F32), (case, Compute::RoundedTiles)])
    {
        let run = |threads| {
            let stream = Stream::cpu(threads);
            case.network(&stream, compute, scaled).run(&stream, scaled, false)
        };
        assert_eq!(run(1), run(3), "{case:?}, {compute:?}");
    }
}

/// Nor do instruction sets, with which the type changes that bf16 is stored in.
#[test]
fn what_is_stored_in_16_bits_has_the_bits_of_what_is_rounded() {
    let sets = [
        (Isa::Portable, Bf16Products::None),
        (Isa::Avx512, Bf16Products::None),
        (Isa::Avx512, Bf16Products::Pairs),
        (Isa::Avx512, Bf16Products::Tiles),
    ];
    for compute in [Compute::Rounded(Rounding::Bf16), Compute::RoundedTiles] {
        for case in CASES {
            let results = sets.map(|(isa, bf16)| {
                Limit::new(isa, bf16).run(|| {
                    let stream = Stream::cpu(2);
                    let network = case.network(&stream, compute, scaled);
                    [false, true].map(|accumulate| network.run(&stream, scaled, accumulate))
                })
            });
            for (got, set) in results.iter().zip(&sets) {
                assert_eq!(*got, results[0], "{case:?}, {compute:?}, {set:?}");
            }
        }
    }
}

#[test]
fn parameters_are_named_and_begin_as_published() {
    let case = CASES[2];
    let stream = Stream::cpu(1);
    let network = case.network(&stream, Compute::F32, scaled);
    network.cross.stacks().iter().for_each(|stack| stack.initialize(3));
    let names: Vec<String> =
        network.arenas.parameters.mats().map(|mat| mat.name().to_owned()).collect();
    assert_eq!(
        names[..4],
        ["cross.0.v.weight", "cross.0.w.weight", "cross.0.w.bias", "cross.1.v.weight"]
    );
    for mat in network.arenas.parameters.mats() {
        let values = values(&mat);
        let square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
        let expected =
            if mat.name().ends_with("bias") { 0.0 } else { 2.0 / (case.width + case.rank) as f32 };
        // Five standard errors of a variance of 768 values.
        assert!(
            (square - expected).abs() <= 5.0 * expected * (2.0 / 768.0_f32).sqrt(),
            "{}",
            mat.name()
        );
    }
}

mod cuda_tests {
    use super::super::cuda::{CrossBackwardArgs, CrossForwardArgs, SOURCE};
    use super::*;
    use headlong_device::cuda::testing::{device, layout_test, stream};

    #[test]
    fn agrees_with_the_oracle() {
        let Some(stream) = stream() else { return };
        check_exact(&stream);
        check_bounds(&stream, Compute::F32, oracle::UNIT * 8.0);
    }

    #[test]
    fn agrees_with_the_oracle_in_sixteen_bits() {
        let Some(stream) = stream() else { return };
        check_bounds(&stream, Compute::Bf16, 2.0_f64.powi(-8));
        check_bounds(&stream, Compute::F16, 2.0_f64.powi(-11));
    }

    #[test]
    fn a_side_stream_and_a_capture_change_no_bit() {
        let Some(main) = stream() else { return };
        let Some(device) = device() else { return };
        for case in [CASES[1], CASES[2]] {
            let expected = case.network(&main, Compute::F32, scaled).run(&main, scaled, false);
            let pool = std::sync::Arc::new(headlong_device::pool::Pool::new(1));
            let two =
                [(); 2].map(|()| Stream::cuda(&device, std::sync::Arc::clone(&pool)).unwrap());
            let [stream, side] = two;
            let stream = stream.with_side_stream(side);
            let network = case.network(&stream, Compute::F32, scaled);
            assert_eq!(
                network.run(&stream, scaled, false),
                expected,
                "{case:?} with a side stream"
            );
            let graph = stream.cuda_body().capture(|| {
                network.enqueue(&stream, false);
                Ok(())
            });
            let graph = graph.unwrap();
            for _ in 0..2 {
                network.fill(&stream, scaled);
                graph.launch(stream.cuda_body());
                stream.synchronize().unwrap();
                let gradients: Vec<f32> =
                    network.arenas.gradients.mats().flat_map(|mat| values(&mat)).collect();
                assert_eq!(gradients, expected.gradients, "{case:?} captured");
            }
        }
    }

    #[test]
    fn layouts() {
        layout_test!(CrossForwardArgs, &SOURCE, &[]);
        layout_test!(CrossBackwardArgs, &SOURCE, &[]);
    }
}
