use super::*;
use crate::optim::{self, freeze_states_on};
use half::bf16;
use headlong_device::Arena;
use headlong_device::cuda::testing::{streams, upload};
use headlong_device::cuda::{DeviceMemory, DeviceStep};
use headlong_device::optimizer::Step;
use headlong_device::testing::uniform;

const STEPS: u64 = 3;

fn plan() -> ArenaPlan {
    let mut plan = ArenaPlan::new("parameters");
    // Chunks of several sizes, gaps, a tensor of one element and one of none.
    for (name, rows, cols) in
        [("a", 173, 201), ("b", 1, 7), ("c", 90, 401), ("d", 1, 1), ("e", 0, 5), ("f", 33, 17)]
    {
        plan.matrix(name, DType::F32, rows, cols);
    }
    plan
}

fn optimizers() -> [(Optimizer, Option<f32>); 7] {
    let adagrad = Optimizer::Adagrad { epsilon: 1e-10, initial_accumulator: 0.1 };
    let adam = Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01 };
    [
        (Optimizer::Sgd, None),
        (Optimizer::Sgd, Some(2.0)),
        (adagrad, None),
        (adagrad, Some(1e9)),
        (adam, None),
        (adam, Some(2.0)),
        (lamb, None),
    ]
}

/// Gradients of a step: zeros in the gaps between tensors, as all that adds them up leaves there.
fn gradients(number: u64) -> Vec<f32> {
    let len = plan().bytes() / 4;
    let values = uniform(1 + number, len);
    let tensors: Vec<_> = plan().elements().collect();
    let is_of_a_tensor = |at: usize| tensors.iter().any(|tensor| tensor.contains(&at));
    let places = values.into_iter().enumerate();
    places.map(|(at, value)| if is_of_a_tensor(at) { value } else { 0.0 }).collect()
}

/// What ranks have added up, in bf16 where it is narrow: then gradients hold zeros.
struct Summed {
    gradients: Arena,
    narrow: Option<Mat>,
}

impl Summed {
    fn new(stream: &Stream, is_narrow: bool) -> Self {
        let gradients = plan().freeze_on(stream).unwrap();
        let mut sums = ArenaPlan::new("sums");
        let slot = sums.matrix("sums", DType::Bf16, 1, gradients.bytes() / 4);
        let narrow = is_narrow.then(|| sums.freeze_on(stream).unwrap().mat(slot));
        Self { gradients, narrow }
    }

    fn fill(&self, number: u64) {
        let values = gradients(number).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
        let wide: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
        match &self.narrow {
            Some(narrow) => {
                self.gradients.copy_from(&vec![0.0; wide.len()]).unwrap();
                narrow.copy_from(&values).unwrap();
            }
            None => self.gradients.copy_from(&wide).unwrap(),
        }
    }
}

fn step_on(stream: &Stream, optimizer: &Optimizer, step: &Step) -> Option<DeviceMemory> {
    let words = DeviceStep::new(step, optimizer).words();
    stream.as_cuda().map(|stream| upload(stream.device(), &words).unwrap())
}

/// Weights and states after some steps of one rank that moves all.
fn whole(
    stream: &Stream,
    optimizer: &Optimizer,
    clip: Option<f32>,
    is_narrow: bool,
) -> Vec<Vec<f32>> {
    let weights = plan().freeze_on(stream).unwrap();
    let summed = Summed::new(stream, is_narrow);
    let states = freeze_states_on(stream, optimizer, &plan()).unwrap();
    weights.copy_from(&uniform(1, weights.bytes() / 4)).unwrap();
    for number in 1..=STEPS {
        summed.fill(number);
        let step = &Step { learning_rate: 0.01, number };
        let on_device = step_on(stream, optimizer, step);
        let args = StepArgs {
            weights: &weights,
            gradients: &summed.gradients,
            first: states.first(),
            second: states.get(1),
            optimizer,
            step,
            device_step: on_device.as_ref().map(DeviceMemory::ptr),
            clip,
            stacks: &[],
            loss_scale: None,
            summed: summed.narrow.as_ref(),
            part: None,
        };
        optim::step(stream, &args);
        stream.synchronize().unwrap();
    }
    std::iter::once(&weights).chain(&states).map(|arena| arena.to_vec().unwrap()).collect()
}

/// The same by several ranks, one after the other; what they exchange is added up and copied here.
fn divided(
    stream: &Stream,
    optimizer: &Optimizer,
    clip: Option<f32>,
    is_narrow: bool,
    ranks: usize,
) -> Vec<Vec<f32>> {
    let norms = Norms::needed(optimizer, clip.is_some()).unwrap();
    let bounds = bounds(&plan(), norms, ranks);
    let sums_of = sum_bounds(&plan(), norms, &bounds);
    let weights = plan().freeze_on(stream).unwrap();
    let summed = Summed::new(stream, is_narrow);
    weights.copy_from(&uniform(1, weights.bytes() / 4)).unwrap();
    let parts: Vec<_> = (0..ranks)
        .map(|rank| {
            let mut sums = ArenaPlan::new("sums");
            let slot = sums.matrix("sums", DType::U64, 1, num_sums(&plan(), norms));
            let elements = bounds[rank]..bounds[rank + 1];
            let part = Part { elements, sums: sums.freeze_on(stream).unwrap().mat(slot) };
            let states = freeze_states_on(stream, optimizer, &state_plan(part.len())).unwrap();
            assert!(states.iter().all(|state| state.bytes() == state_bytes(part.len())));
            (part, states)
        })
        .collect();
    for number in 1..=STEPS {
        summed.fill(number);
        let step = &Step { learning_rate: 0.01, number };
        let on_device = step_on(stream, optimizer, step);
        let with = |work: &dyn Fn(&StepArgs<'_>, &Part)| {
            for (part, states) in &parts {
                let args = StepArgs {
                    weights: &weights,
                    gradients: &summed.gradients,
                    first: states.first(),
                    second: states.get(1),
                    optimizer,
                    step,
                    device_step: on_device.as_ref().map(DeviceMemory::ptr),
                    clip,
                    stacks: &[],
                    loss_scale: None,
                    summed: summed.narrow.as_ref(),
                    part: Some(part),
                };
                work(&args, part);
            }
        };
        with(&|args, part| optim::measure(stream, args, part));
        let mut all = vec![0_u64; num_sums(&plan(), norms)];
        for (rank, (part, _)) in parts.iter().enumerate() {
            let sums = part.sums.to_vec::<u64>().unwrap();
            let own = sums_of[rank]..sums_of[rank + 1];
            match on_device {
                Some(_) => all[own.clone()].copy_from_slice(&sums[own]),
                None => all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum),
            }
        }
        parts.iter().for_each(|(part, _)| part.sums.copy_from(&all).unwrap());
        with(&|args, _| optim::step(stream, args));
        stream.synchronize().unwrap();
    }
    let state = |index: usize| -> Vec<f32> {
        let parts = parts.iter().map(|(part, states)| {
            let values = states[index].to_vec::<f32>().unwrap();
            values[..part.len()].to_vec()
        });
        parts.flatten().collect()
    };
    let states = (0..optimizer.states().len()).map(state);
    std::iter::once(weights.to_vec().unwrap()).chain(states).collect()
}

#[test]
fn parts_move_as_the_whole() {
    let bits = |lists: &[Vec<f32>]| -> Vec<Vec<u32>> {
        lists.iter().map(|list| list.iter().map(|value| value.to_bits()).collect()).collect()
    };
    for stream in &streams() {
        let is_device = stream.as_cuda().is_some();
        for is_narrow in [false, true].into_iter().filter(|is_narrow| is_device || !is_narrow) {
            for (optimizer, clip) in optimizers() {
                let expected = bits(&whole(stream, &optimizer, clip, is_narrow));
                for ranks in [1, 2, 3, 4, 7, 100] {
                    let found = bits(&divided(stream, &optimizer, clip, is_narrow, ranks));
                    let name = optimizer.name();
                    assert!(found == expected, "{name}, {clip:?}, {ranks} ranks, {is_narrow}");
                }
            }
        }
    }
}

#[test]
fn parts_cover_all_and_begin_where_chunks_do() {
    let (plan, len) = (plan(), plan().bytes() / 4);
    let chunk_starts: Vec<usize> = plan
        .elements()
        .filter(|tensor| !tensor.is_empty())
        .flat_map(|tensor| tensor.clone().step_by(lamb_chunk_len(tensor.len())))
        .chain([len])
        .collect();
    for ranks in [1, 2, 3, 8, 1000] {
        for norms in [Norms::None, Norms::OfGradients, Norms::OfTensors] {
            let bounds = bounds(&plan, norms, ranks);
            assert_eq!((bounds.len(), bounds[0], bounds[ranks]), (ranks + 1, 0, len));
            assert!(bounds.is_sorted(), "{bounds:?}");
            let fits = |&at: &usize| match norms {
                Norms::None => at.is_multiple_of(PART_ALIGN),
                Norms::OfGradients => at.is_multiple_of(norm_chunk_len(len)),
                Norms::OfTensors => chunk_starts.contains(&at),
            };
            assert!(bounds[..ranks].iter().all(|at| fits(at) || *at == len), "{bounds:?}");
        }
    }
    // Nearly equal, where there are few ranks.
    let longest = |norms| {
        let bounds = bounds(&plan, norms, 4);
        bounds.windows(2).map(|part| part[1] - part[0]).max().unwrap()
    };
    for norms in [Norms::None, Norms::OfGradients, Norms::OfTensors] {
        assert!(longest(norms) < len / 4 + len / 32, "{norms:?}");
    }
}

#[test]
fn what_no_memory_holds_is_divided_without_a_panic() {
    let mut plan = ArenaPlan::new("parameters");
    plan.matrix("a", DType::F32, usize::MAX / 2, usize::MAX / 2);
    for norms in [Norms::None, Norms::OfGradients, Norms::OfTensors] {
        assert_eq!(bounds(&plan, norms, 3).len(), 4);
    }
}
