use super::*;
use crate::oracle::OptimizerOracle;
use headlong_device::DType;
use headlong_device::testing::uniform;

fn plan() -> ArenaPlan {
    let mut plan = ArenaPlan::new("parameters");
    // Two slots with a gap between them, longer than a task.
    plan.matrix("a", DType::F32, 173, 101);
    plan.matrix("b", DType::F32, 1, 7);
    plan
}

/// Runs five steps; returns the weights and the last norm.
fn run(optimizer: &Optimizer, clip: Option<f32>, threads: usize) -> (Vec<f32>, f64) {
    let stream = Stream::cpu(threads);
    let (weights, gradients) = (plan().freeze().unwrap(), plan().freeze().unwrap());
    let states = freeze_states(optimizer, &plan()).unwrap();
    let len = weights.read_all::<f32>().len();
    weights.write_all::<f32>().copy_from_slice(&uniform(1, len));
    let mut last = 0.0;
    for number in 1..=5 {
        gradients.write_all::<f32>().copy_from_slice(&uniform(1 + number, len));
        last = norm(&stream, &gradients);
        let step = &Step { learning_rate: 0.01, number };
        let (first, second) = (states.first(), states.get(1));
        let args =
            StepArgs { weights: &weights, gradients: &gradients, first, second, optimizer, step, clip };
        super::step(&stream, &args);
    }
    (weights.read_all::<f32>().to_vec(), last)
}

fn optimizers() -> [Optimizer; 3] {
    [
        Optimizer::Sgd,
        Optimizer::Adagrad { epsilon: 1e-10, initial_accumulator: 0.1 },
        Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    ]
}

#[test]
fn agrees_with_the_oracle_clipped_and_not() {
    for optimizer in &optimizers() {
        for clip in [None, Some(2.0), Some(1e9)] {
            let (got, last) = run(optimizer, clip, 2);
            let f64s = |seed| uniform(seed, got.len()).iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let states = optimizer.states();
            let state = |i: usize| states.get(i).map_or(vec![], |s| vec![f64::from(s.initial); got.len()]);
            let mut oracle = OptimizerOracle { weights: f64s(1), first: state(0), second: state(1) };
            for number in 1..=5 {
                let step = Step { learning_rate: 0.01, number };
                oracle.step(optimizer, &step, &f64s(1 + number), clip.map(f64::from));
            }
            // Five steps of some ten roundings each of numbers up to 1, steps up to 0.01.
            for (got, expected) in got.iter().zip(&oracle.weights) {
                assert!((f64::from(*got) - expected).abs() < 1e-6, "{}: {got}, {expected}", optimizer.name());
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

#[test]
fn optimisers_without_a_dense_form_are_refused() {
    let row_wise = Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 };
    let message = freeze_states(&row_wise, &plan()).unwrap_err().to_string();
    assert_eq!(
        message,
        "optimizer `rowwise_adagrad` is not for dense parameters; expected sgd, adagrad or adam"
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
            clip: Some(1.0),
        },
    );
    assert!(weights.read_all::<f32>()[0].is_nan());
}
