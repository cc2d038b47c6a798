use super::*;
use crate::oracle;
use crate::testing::{frozen_on, values};
use headlong_device::label;
use headlong_device::testing::uniform;

/// Labels of every kind of weight: none, 0, and others.
fn labels_of(count: usize) -> Vec<f32> {
    let draws = uniform(2, count).into_iter().enumerate();
    let of = |(index, draw): (usize, f32)| {
        let weight = [1.0, 0.0, 2.0, 0.3, 1e-3][index % 5];
        label::weighted(draw > 0.0, weight)
    };
    draws.map(of).collect()
}

/// A sample's loss and gradient from the definition, times its weight where the loss has weights.
fn expected(kind: Loss, logit: f32, label: f32) -> (f64, f64) {
    if kind == Loss::MseOfSigmoid {
        return oracle::loss(kind, f64::from(logit), f64::from(label));
    }
    let (is_positive, weight) = label::parts(label);
    let (loss, gradient) = oracle::loss(kind, f64::from(logit), f64::from(u8::from(is_positive)));
    (loss * f64::from(weight), gradient * f64::from(weight))
}

fn run(
    kind: Loss,
    logits: &[f32],
    labels: &[f32],
    blocks: usize,
    scale: f32,
    threads: usize,
) -> (f64, Vec<f32>) {
    run_on(&Stream::cpu(threads), kind, (logits, labels), blocks, scale)
}

fn run_on(
    stream: &Stream,
    kind: Loss,
    (logits, labels): (&[f32], &[f32]),
    blocks: usize,
    scale: f32,
) -> (f64, Vec<f32>) {
    let n = logits.len();
    let list = |name, data: &[f32]| frozen_on(stream, name, n, 1, data);
    let (logits, labels, d_logits) =
        (list("logits", logits), list("labels", labels), list("d_logits", &[]));
    let sums = frozen_on(stream, "sums", blocks, 2, &[]);
    let (labels, d_logits, sums, block_len) = (&labels, &d_logits, &sums, n.div_ceil(blocks));
    let args = LossArgs {
        loss: kind,
        logits: &logits,
        labels,
        d_logits,
        sums,
        block_len,
        scale,
        loss_scale: None,
    };
    forward_backward(stream, &args);
    stream.check().unwrap();
    (total_of(&values(sums)), values(d_logits))
}

#[test]
fn agrees_with_the_definitions() {
    let logits: Vec<f32> = uniform(1, 600).iter().map(|x| 20.0 * x).collect();
    let labels = labels_of(600);
    for kind in [Loss::BceWithLogits, Loss::MseOfSigmoid] {
        let (sum, gradient) = run(kind, &logits, &labels, 3, 0.25, 2);
        let each: Vec<(f64, f64)> = logits
            .iter()
            .zip(&labels)
            .map(|(&logit, &label)| expected(kind, logit, label))
            .collect();
        let expected: f64 = each.iter().map(|(loss, _)| loss).sum();
        // f64 throughout; the definition itself loses digits in 1 - p, at most e^20 units of f64.
        assert!((sum - expected).abs() < 1e-6, "{kind:?}: got {sum}, expected {expected}");
        for (got, (_, expected)) in gradient.iter().zip(&each) {
            assert!(
                (f64::from(*got) - 0.25 * expected).abs() <= oracle::UNIT * expected.abs() + 1e-9
            );
        }
    }
}

#[test]
fn gradients_are_finite_differences_of_the_loss() {
    let weighted = [label::weighted(true, 0.3), label::weighted(false, 2.5)];
    let (labels, step) = ([1.0, 0.0, weighted[0], weighted[1]], 2.0_f32.powi(-8));
    for kind in [Loss::BceWithLogits, Loss::MseOfSigmoid] {
        for z in [-3.0_f32, -0.5, 0.0, 2.0] {
            let (_, gradient) = run(kind, &[z; 4], &labels, 1, 1.0, 1);
            for (label, gradient) in labels.iter().zip(gradient) {
                let at = |z: f32| run(kind, &[z], &[*label], 1, 1.0, 1).0;
                let slope = (at(z + step) - at(z - step)) / f64::from(2.0 * step);
                // The third derivative of either loss is below 1 times the weight or label, so the
                // difference errs by less than that times step²/6.
                assert!(
                    (slope - f64::from(gradient)).abs() < 1e-5,
                    "{kind:?} at {z}: {slope} and {gradient}"
                );
            }
        }
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let (sum, gradient) =
        run(Loss::BceWithLogits, &[1e4, -1e4, 1e4, -1e4], &[1.0, 0.0, 0.0, 1.0], 1, 1.0, 1);
    assert_eq!(sum, 2e4);
    assert_eq!(gradient, [0.0, 0.0, 1.0, -1.0]);
}

#[test]
fn nan_and_infinity_show_as_nan() {
    assert!(run(Loss::BceWithLogits, &[0.0, f32::NAN], &[1.0, 0.0], 2, 1.0, 1).0.is_nan());
    assert!(run(Loss::BceWithLogits, &[f32::INFINITY], &[0.0], 1, 1.0, 1).0.is_nan());
}

#[test]
fn a_weight_of_two_is_the_sample_twice_and_of_none_no_sample() {
    let logits = uniform(3, 40);
    let labels: Vec<f32> = (0..40).map(|index| f32::from(u8::from(index % 3 == 0))).collect();
    let weighted: Vec<f32> = labels
        .iter()
        .enumerate()
        .map(|(index, &plain)| label::weighted(plain > 0.5, (index % 3) as f32))
        .collect();
    let often = |values: &[f32]| -> Vec<f32> {
        let of = |(index, &value): (usize, &f32)| std::iter::repeat_n(value, index % 3);
        values.iter().enumerate().flat_map(of).collect()
    };
    let loss = Loss::BceWithLogits;
    let (sum, gradient) = run(loss, &logits, &weighted, 1, 0.5, 1);
    let (twice, gradients) = run(loss, &often(&logits), &often(&labels), 1, 0.5, 1);
    // 40 additions in f64, in another order.
    assert!((sum - twice).abs() <= 1e-14 * twice, "{sum}, {twice}");
    let mut rest = gradients.as_slice();
    for (index, gradient) in gradient.iter().enumerate() {
        let (here, others) = rest.split_at(index % 3);
        assert_eq!(*gradient, here.iter().sum::<f32>());
        rest = others;
    }
}

#[test]
fn a_sample_of_no_weight_counts_nothing_whatever_its_logit() {
    let nothing = label::weighted(true, 0.0);
    let (sum, gradient) =
        run(Loss::BceWithLogits, &[f32::NAN, f32::INFINITY, 0.0], &[nothing; 3], 1, 1.0, 1);
    assert_eq!((sum, gradient), (0.0, vec![0.0; 3]));
}

#[test]
fn threads_change_no_bit_and_blocks_add_up_in_the_tree() {
    let (logits, labels) = (uniform(5, 1001), vec![1.0; 1001]);
    let one = run(Loss::BceWithLogits, &logits, &labels, 8, 1.0, 1);
    assert_eq!(one, run(Loss::BceWithLogits, &logits, &labels, 8, 1.0, 3));
    let whole = run(Loss::BceWithLogits, &logits, &labels, 1, 1.0, 1);
    assert!((one.0 - whole.0).abs() < 1e-9 * whole.0);
}

mod cuda_tests {
    use super::super::cuda::{LossKernelArgs, SOURCE};
    use super::*;
    use headlong_device::cuda::testing::{layout_test, stream};

    /// One part and many, one block and many, the last one short or empty.
    #[test]
    fn agrees_with_the_cpu() {
        let Some(stream) = stream() else { return };
        for (n, blocks) in [(1, 1), (600, 3), (5000, 1), (5000, 2), (2049, 4), (10, 7)] {
            let logits: Vec<f32> = uniform(1, n).iter().map(|x| 20.0 * x).collect();
            let labels = labels_of(n);
            for kind in [Loss::BceWithLogits, Loss::MseOfSigmoid] {
                let (sum, gradient) = run_on(&stream, kind, (&logits, &labels), blocks, 0.25);
                let (expected, gradients) = run(kind, &logits, &labels, blocks, 0.25, 1);
                // f64 on both, in another order, and kept in two f32 with 48 bits: about 2^-47 of
                // each block's sum.
                assert!(
                    (sum - expected).abs() <= 1e-13 * expected,
                    "{n} in {blocks}: {sum}, {expected}"
                );
                for (got, expected) in gradient.iter().zip(&gradients) {
                    // Both round the same number in f64, of which exponentials may differ in the
                    // last bits.
                    assert!(
                        (got - expected).abs() <= 1.2e-7 * expected.abs() + 1e-16,
                        "{got}, {expected}"
                    );
                }
                assert_eq!(run_on(&stream, kind, (&logits, &labels), blocks, 0.25).0, sum);
            }
        }
    }

    #[test]
    fn extremes_are_those_of_the_cpu() {
        let Some(stream) = stream() else { return };
        let run = |logits: &[f32], labels: &[f32]| {
            run_on(&stream, Loss::BceWithLogits, (logits, labels), 1, 1.0)
        };
        let (sum, gradient) = run(&[1e4, -1e4, 1e4, -1e4], &[1.0, 0.0, 0.0, 1.0]);
        assert_eq!((sum, gradient), (2e4, vec![0.0, 0.0, 1.0, -1.0]));
        assert!(run(&[0.0, f32::NAN], &[1.0, 0.0]).0.is_nan());
        assert!(run(&[f32::INFINITY], &[0.0]).0.is_nan());
        assert_eq!(run(&[f32::NAN], &[label::weighted(true, 0.0)]), (0.0, vec![0.0]));
    }

    #[test]
    fn layouts() {
        layout_test!(LossKernelArgs, &SOURCE, &[]);
    }
}
