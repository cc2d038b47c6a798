//! The optimisers' formulas on a device against those of the CPU, bit for bit.

use super::OPTIMIZER_TEST;
use crate::cuda::testing::{download, stream, upload};
use crate::cuda::{DevicePtr, DeviceStep, Launch, OptimizerConstants};
use crate::layout_test;
use crate::optimizer::{Optimizer, StateWidth, Step};
use crate::testing::uniform;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct StepArgs {
    weights: DevicePtr,
    first: DevicePtr,
    second: DevicePtr,
    gradient: DevicePtr,
    step: DevicePtr,
    constants: OptimizerConstants,
    rows: u32,
    dim: u32,
}

const OPTIMIZERS: [Optimizer; 5] = [
    Optimizer::Sgd,
    Optimizer::Adagrad { epsilon: 1e-10, initial_accumulator: 0.1 },
    Optimizer::RowWiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 },
    Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 },
    Optimizer::Ftrl { beta: 1.0, l1: 0.01, l2: 0.1, initial_accumulator: 0.1 },
];

#[test]
fn layouts() {
    let sgd = [OptimizerConstants::define(&Optimizer::Sgd)];
    layout_test!(
        StepArgs, &OPTIMIZER_TEST, &sgd; weights, first, second, gradient, step, constants, rows,
        dim
    );
    layout_test!(DeviceStep, &OPTIMIZER_TEST, &sgd; learning_rate, number, rate, root, skip);
    layout_test!(OptimizerConstants, &OPTIMIZER_TEST, &sgd; epsilon, beta1, beta2, beta, l1, l2);
}

/// Weights and both states of `rows × dim` elements.
struct State {
    weights: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
}

impl State {
    fn new(optimizer: &Optimizer, rows: usize, dim: usize) -> Self {
        let states = optimizer.states();
        let state = |index: usize| {
            states.get(index).map_or(vec![], |spec| {
                let len = if spec.width == StateWidth::PerRow { rows } else { rows * dim };
                vec![spec.initial; len]
            })
        };
        Self { weights: uniform(1, rows * dim), first: state(0), second: state(1) }
    }

    fn step_on_cpu(&mut self, optimizer: &Optimizer, step: &Step, gradient: &[f32], dim: usize) {
        let rows = self.weights.len() / dim;
        for row in 0..rows {
            let range = row * dim..(row + 1) * dim;
            let state = |state: &Vec<f32>| match state.len() {
                0 => 0..0,
                len if len == rows && dim > 1 => row..row + 1,
                _ => range.clone(),
            };
            let (first, second) = (state(&self.first), state(&self.second));
            optimizer.apply(
                step,
                &mut self.weights[range.clone()],
                &mut self.first[first],
                &mut self.second[second],
                &gradient[range.clone()],
            );
        }
    }
}

#[test]
fn optimizers_give_the_bits_of_the_cpu() {
    let Some(stream) = stream() else { return };
    let stream = stream.cuda_body();
    let device = stream.device();
    for (optimizer, dim) in OPTIMIZERS.iter().flat_map(|o| [16, 40, 7].map(|dim| (o, dim))) {
        let rows = 9;
        let mut cpu = State::new(optimizer, rows, dim);
        let memory =
            [&cpu.weights, &cpu.first, &cpu.second].map(|list| upload(device, list).unwrap());
        for number in 1..=4 {
            let step = Step { learning_rate: 0.05 / number as f32, number };
            let gradient = uniform(10 + number, rows * dim);
            cpu.step_on_cpu(optimizer, &step, &gradient, dim);
            let gradient = upload(device, &gradient).unwrap();
            let on_device = upload(device, &DeviceStep::new(&step, optimizer).words()).unwrap();
            let args = StepArgs {
                weights: memory[0].ptr(),
                first: memory[1].ptr(),
                second: memory[2].ptr(),
                gradient: gradient.ptr(),
                step: on_device.ptr(),
                constants: OptimizerConstants::new(optimizer),
                rows: rows as u32,
                dim: dim as u32,
            };
            let defines = [OptimizerConstants::define(optimizer)];
            stream.run(&OPTIMIZER_TEST, &defines, "optimizer_step", Launch::new(2, 64), &args);
            stream.synchronize().unwrap();
            let what = format!("{} step {number}, dim {dim}", optimizer.name());
            assert_eq!(download::<f32>(&memory[0]).unwrap(), cpu.weights, "weights of {what}");
            assert_eq!(download::<f32>(&memory[1]).unwrap(), cpu.first, "first state of {what}");
            assert_eq!(download::<f32>(&memory[2]).unwrap(), cpu.second, "second state of {what}");
        }
    }
}
