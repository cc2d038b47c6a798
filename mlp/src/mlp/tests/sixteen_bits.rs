//! Stacks whose products take 16 bits, against the oracle in f64, with a bound that is carried
//! along from layer to layer.

use super::*;
use crate::linear::Compute;
use crate::rounding::Rounding;
use headlong_device::cuda::testing::{device, stream, streams};

/// A number, and how far the computed one may be off.
#[derive(Debug, Clone, Copy, Default)]
struct Approx {
    value: f64,
    error: f64,
}

impl Approx {
    fn exact(value: f64) -> Self {
        Self { value, error: 0.0 }
    }

    /// Rounded to nearest with unit roundoff `unit`; below the normal numbers of f16 it errs by up
    /// to 2^-25.
    fn rounded(self, unit: f64) -> Self {
        let error = self.error + unit * (self.value.abs() + self.error) + 2.0_f64.powi(-25);
        Self { error, ..self }
    }

    fn largest(self) -> f64 {
        self.value.abs() + self.error
    }

    /// A sum of products in f32, in any order: `(n + 1)·2^-24` of the sum of absolute values, and
    /// what the factors are off.
    fn sum_of_products(pairs: impl Iterator<Item = (Approx, Approx)>) -> Self {
        let (mut value, mut error, mut magnitude, mut count) = (0.0, 0.0, 0.0, 1);
        for (x, y) in pairs {
            value += x.value * y.value;
            error += x.largest() * y.error + x.error * y.value.abs();
            magnitude += x.largest() * y.largest();
            count += 1;
        }
        Self { value, error: error + oracle::sum_bound(count) * magnitude }
    }

    fn admits(&self, got: f32) -> bool {
        (f64::from(got) - self.value).abs() <= self.error
    }
}

fn is_bf16(compute: Compute) -> bool {
    [Compute::Bf16, Compute::Rounded(Rounding::Bf16)].contains(&compute)
}

/// Unit roundoff: half a unit in the last place of 8 and of 11 bits.
fn unit(compute: Compute) -> f64 {
    if is_bf16(compute) { 2.0_f64.powi(-8) } else { 2.0_f64.powi(-11) }
}

struct Expected {
    logits: Vec<Approx>,
    /// Of each layer, weights then biases.
    gradients: Vec<(Vec<Approx>, Vec<Approx>)>,
    d_x: Vec<Approx>,
}

struct Matrix {
    cols: usize,
    data: Vec<Approx>,
}

impl Matrix {
    fn at(&self, row: usize, col: usize) -> Approx {
        self.data[row * self.cols + col]
    }

    fn rows(&self) -> usize {
        self.data.len() / self.cols
    }

    fn of(cols: usize, rows: usize, element: impl Fn(usize, usize) -> Approx) -> Self {
        let element = &element;
        Self {
            cols,
            data: (0..rows).flat_map(|row| (0..cols).map(move |col| element(row, col))).collect(),
        }
    }
}

/// What the model computes, from its layers' present weights.
fn expected(model: &Model, compute: Compute) -> Expected {
    let unit = unit(compute);
    let rounded = |data: Vec<f64>| {
        data.into_iter().map(|x| Approx::exact(x).rounded(unit)).collect::<Vec<_>>()
    };
    let layers = model.stack.layers();
    let weights: Vec<Matrix> = layers
        .iter()
        .map(|layer| Matrix {
            cols: layer.weights().inputs(),
            data: rounded(values_f64(&layer.weights().values)),
        })
        .collect();
    let mut inputs = vec![Matrix { cols: weights[0].cols, data: rounded(values_f64(&model.x)) }];
    let mut before = Vec::new();
    for (layer, w) in layers.iter().zip(&weights) {
        let (x, bias) = (&inputs[inputs.len() - 1], rounded(values_f64(layer.bias().unwrap())));
        let one = Approx::exact(1.0);
        let z = Matrix::of(w.rows(), SAMPLES, |s, o| {
            let products = (0..w.cols).map(|i| (x.at(s, i), w.at(o, i)));
            Approx::sum_of_products(products.chain([(bias[o], one)])).rounded(unit)
        });
        let relu = |z: Approx| Approx { value: oracle::activate(layer.activation(), z.value), ..z };
        inputs.push(Matrix { cols: z.cols, data: z.data.iter().map(|&z| relu(z)).collect() });
        before.push(z);
    }
    let logits = inputs.pop().unwrap().data;
    let labels = values_f64(&model.labels);
    // The loss's second derivative is at most 1/4.
    let slope = |(z, y): (&Approx, &f64)| {
        let value = oracle::loss(Loss::BceWithLogits, z.value, *y).1;
        Approx { value, error: z.error / 4.0 + oracle::UNIT }.rounded(unit)
    };
    let mut d_z = Matrix { cols: 1, data: logits.iter().zip(&labels).map(slope).collect() };
    let mut gradients = Vec::new();
    for (index, w) in weights.iter().enumerate().rev() {
        let x = &inputs[index];
        let samples = || 0..SAMPLES;
        let d_w = Matrix::of(x.cols, d_z.cols, |o, i| {
            Approx::sum_of_products(samples().map(|s| (d_z.at(s, o), x.at(s, i))))
        });
        let d_b = Matrix::of(d_z.cols, 1, |_, o| {
            Approx::sum_of_products(samples().map(|s| (d_z.at(s, o), Approx::exact(1.0))))
        });
        gradients.push((d_w.data, d_b.data));
        d_z = Matrix::of(w.cols, SAMPLES, |s, i| {
            let sum = Approx::sum_of_products((0..w.rows()).map(|o| (d_z.at(s, o), w.at(o, i))));
            let Some(below) = index.checked_sub(1).map(|below| before[below].at(s, i)) else {
                return sum;
            };
            let sum = sum.rounded(unit);
            // Where rounding may have turned the sign, the gradient may pass or not.
            match below {
                z if z.value > z.error => sum,
                z if z.value < -z.error => Approx::default(),
                z if z.value > 0.0 => Approx { error: sum.largest(), ..sum },
                _ => Approx { value: 0.0, error: sum.largest() },
            }
        });
    }
    gradients.reverse();
    Expected { logits, gradients, d_x: d_z.data }
}

/// Each number within its bound. Bounds take every rounding for the worst one, and so say little of
/// the gradients at the bottom; hence besides, the root mean square of what numbers are off is a
/// share of their size.
fn check(got: &[f32], expected: &[Approx], typical: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let (mut off, mut size) = (0.0, 0.0);
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(expected.admits(*got), "{what} {i}: got {got}, expected {expected:?}");
        off += (f64::from(*got) - expected.value).powi(2);
        size += expected.value.powi(2);
    }
    let (off, size) = (off.sqrt(), size.sqrt());
    assert!(off < typical * size, "{what}: off by {off} of {size}");
}

/// A stack whose input has rows that must be filled up, and whose output is one logit.
fn model_in(stream: &Stream, compute: Compute, sum_blocks: usize) -> Model {
    model_with(stream, &[13, 40, 24, 1], sum_blocks, compute)
}

#[test]
fn agrees_with_the_oracle_within_the_bounds_of_sixteen_bits() {
    let cases = [(Compute::Bf16, 1), (Compute::Bf16, 4), (Compute::F16, 1)];
    for (stream, (compute, sum_blocks)) in
        streams().iter().flat_map(|stream| cases.map(|case| (stream, case)))
    {
        let compute = compute.on(&stream.device());
        let model = model_in(stream, compute, sum_blocks);
        let unit = unit(compute);
        model.step(stream, false);
        let expected = expected(&model, compute);
        check(&values(&model.y.first_rows(SAMPLES)), &expected.logits, 4.0 * unit, "logit");
        // Roundings are independent of each other: some units together. In bf16 a few ReLUs of
        // these turn, too.
        let typical = if is_bf16(compute) { 0.15 } else { 4.0 * unit };
        for (layer, (d_w, d_b)) in model.stack.layers().iter().zip(&expected.gradients) {
            check(&values(layer.d_weight()), d_w, typical, layer.d_weight().name());
            let bias = layer.d_bias().unwrap();
            check(&values(bias), d_b, typical, bias.name());
        }
        check(&values(&model.d_x), &expected.d_x, typical, "gradient of the input");
        let once = gradients(&model);
        model.step(stream, true);
        for (once, twice) in once.iter().zip(gradients(&model)) {
            assert!((twice - 2.0 * once).abs() <= 1e-5 * (1.0 + once.abs()));
        }
    }
}

#[test]
fn a_side_stream_and_a_capture_change_no_bit() {
    let Some(main) = stream() else { return };
    let Some(device) = device() else { return };
    let model = model_in(&main, Compute::Bf16, 1);
    let loss = model.step(&main, false);
    let expected = gradients(&model);
    let pool = std::sync::Arc::new(headlong_device::pool::Pool::new(1));
    let [stream, side] =
        [(); 2].map(|()| Stream::cuda(&device, std::sync::Arc::clone(&pool)).unwrap());
    let stream = stream.with_side_stream(side);
    assert_eq!(model.step(&stream, false), loss);
    assert_eq!(gradients(&model), expected);
    let graph = stream.cuda_body().capture(|| {
        model.enqueue(&stream, false);
        Ok(())
    });
    let graph = graph.unwrap();
    model.arenas.gradients.copy_from(&vec![0.0; expected.len()]).unwrap();
    graph.launch(stream.cuda_body());
    stream.synchronize().unwrap();
    assert_eq!(gradients(&model), expected);
}

#[test]
fn tf32_is_between_the_two() {
    let Some(stream) = stream() else { return };
    let logits = |compute| {
        let model = model_in(&stream, compute, 1);
        model.step(&stream, false);
        values(&model.y.first_rows(SAMPLES))
    };
    let exact = logits(Compute::F32);
    let error = |compute| {
        logits(compute)
            .iter()
            .zip(&exact)
            .map(|(x, y)| f64::from(x - y).powi(2))
            .sum::<f64>()
            .sqrt()
    };
    // Ten bits of fraction against seven; the factor of eight is the expected one, two leaves room
    // for chance.
    assert!(error(Compute::Tf32) > 0.0 && 2.0 * error(Compute::Tf32) < error(Compute::Bf16));
}
