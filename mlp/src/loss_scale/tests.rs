use super::*;
use crate::interaction::{cat, dot};
use crate::linear::Activation;
use crate::loss::{self, Loss, LossArgs};
use crate::optim::{self, StepArgs};
use crate::testing::{frozen_on, values};
use headlong_device::cuda::testing::{download, streams, upload};
use headlong_device::cuda::{DeviceMemory, DeviceStep};
use headlong_device::optimizer::{Optimizer, Step};
use headlong_device::testing::uniform;
use headlong_device::{ArenaPlan, DType, bf16};

const INTERVAL: u32 = 3;

fn scale_on(stream: &Stream, scale: f32) -> LossScale {
    let mat = |name, cols| frozen_on(stream, name, 1, cols, &[]);
    let (state, overflow) = (mat("loss_scale", STATE_LEN), mat("overflow", 1));
    let made = LossScale { state, overflow, growth_interval: INTERVAL };
    made.set(&ScaleState::first(scale)).unwrap();
    made
}

fn gradients_on(stream: &Stream, values: &[f32]) -> Arena {
    let mut plan = ArenaPlan::new("gradients");
    plan.matrix("a", DType::F32, 3, values.len() / 3);
    let arena = plan.freeze_on(stream).unwrap();
    arena.mats().next().unwrap().copy_from(values).unwrap();
    arena
}

/// The two steps that a device's optimisers read.
struct Steps(Option<DeviceMemory>);

impl Steps {
    fn on(stream: &Stream) -> Self {
        let words = [DeviceStep::new(&STEP, &Optimizer::Sgd).words(); 2].concat();
        Self(stream.as_cuda().map(|cuda| upload(cuda.device(), &words).unwrap()))
    }

    fn places(&self) -> Option<[DevicePtr; 2]> {
        let memory = self.0.as_ref()?;
        Some([memory.ptr(), memory.ptr().offset(size_of::<DeviceStep>())])
    }

    /// What the optimisers of dense parameters and tables see; none on the CPU.
    fn skips(&self) -> Option<[bool; 2]> {
        let words = download::<u32>(self.0.as_ref()?).unwrap();
        let at = |step: usize| words[step * words.len() / 2 + DeviceStep::SKIP_OFFSET / 4] != 0;
        Some([at(0), at(1)])
    }
}

const STEP: Step = Step { learning_rate: 0.5, number: 1 };

/// The rule, written out.
fn expected(state: &ScaleState, skipped: bool) -> ScaleState {
    let mut next =
        ScaleState { was_skipped: skipped, was_smallest: false, first_bad: None, ..*state };
    if skipped {
        next.num_skipped += 1;
        next.good_steps = 0;
        next.was_smallest = state.scale == SMALLEST;
        // The third of the gradients below.
        next.first_bad = next.was_smallest.then_some(0);
        next.scale = if state.scale == SMALLEST { SMALLEST } else { state.scale / 2.0 };
    } else if state.good_steps + 1 == INTERVAL {
        next.good_steps = 0;
        next.scale = if state.scale == LARGEST { LARGEST } else { state.scale * 2.0 };
    } else {
        next.good_steps += 1;
    }
    next
}

/// Of all elements of an arena.
fn whole<'a>(gradients: &'a Arena, steps: &Steps) -> CheckArgs<'a> {
    let (elements, steps) = (0..gradients.bytes() / size_of::<f32>(), steps.places());
    CheckArgs { gradients, elements, summed: None, steps }
}

/// From both bounds, through every way of a step, against the rule.
#[test]
fn the_scale_falls_at_once_and_grows_after_a_while() {
    for stream in streams() {
        for (first, bad) in [(4.0, 3), (SMALLEST, 2), (LARGEST, 8), (2.0, 1), (8.0, 4)] {
            let (scale, mut state) = (scale_on(&stream, first), ScaleState::first(first));
            for number in 1..20 {
                let skipped = number % bad == 0;
                let value = if skipped { [f32::INFINITY, f32::NAN][number % 2] } else { 1.0 };
                let (gradients, steps) = (
                    gradients_on(&stream, &[0.0, 3e38, value, 1.0, 0.5, -3e38]),
                    Steps::on(&stream),
                );
                scale.check(&stream, &whole(&gradients, &steps));
                stream.synchronize().unwrap();
                assert_eq!(steps.skips().unwrap_or([skipped; 2]), [skipped; 2], "step {number}");
                assert!(stream.as_cuda().is_some() || scale.skips() == skipped, "step {number}");
                scale.adjust(&stream);
                stream.synchronize().unwrap();
                state = expected(&state, skipped);
                assert_eq!(scale.get().unwrap(), state, "from {first}, step {number}");
                let inverse = values(&scale.state)[INVERSE];
                assert_eq!(inverse * state.scale, 1.0, "the inverse is exact");
            }
        }
    }
}

/// Each place that a gradient can have, the first and the last among them.
#[test]
fn what_is_not_finite_is_found_wherever_it_is() {
    for stream in streams() {
        let scale = scale_on(&stream, 4.0);
        for (place, bad) in [(0, f32::NAN), (1500, f32::NEG_INFINITY), (2998, f32::INFINITY)] {
            let mut gradients = uniform(1, 2999 / 3 * 3);
            let place = place.min(gradients.len() - 1);
            gradients[place] = bad;
            let steps = Steps::on(&stream);
            let gradients = gradients_on(&stream, &gradients);
            scale.check(&stream, &whole(&gradients, &steps));
            stream.synchronize().unwrap();
            assert_eq!(steps.skips().unwrap_or([true; 2]), [true; 2], "{bad} at {place}");
            scale.adjust(&stream);
            assert!(scale.get().unwrap().was_skipped, "{bad} at {place}");
        }
        // What another rank has found counts, once.
        for skipped in [true, false] {
            scale.overflow.copy_from(&[if skipped { 2.0_f32 } else { 0.0 }]).unwrap();
            let (gradients, steps) = (gradients_on(&stream, &uniform(1, 300)), Steps::on(&stream));
            scale.check(&stream, &whole(&gradients, &steps));
            scale.adjust(&stream);
            assert_eq!(scale.get().unwrap().was_skipped, skipped);
            assert_eq!(values(&scale.overflow), [0.0]);
        }
    }
}

/// Of sums in bf16, wherever they are not finite; what they were made of does not count.
#[test]
fn sums_of_ranks_count_in_place_of_gradients() {
    let Some(stream) = streams().into_iter().find(|stream| stream.as_cuda().is_some()) else {
        return;
    };
    for (of_rank, place, bad) in
        [(1.0, 0, f32::NAN), (1.0, 701, f32::INFINITY), (f32::INFINITY, 998, 1.0)]
    {
        let scale = scale_on(&stream, 1.0);
        let gradients = gradients_on(&stream, &[of_rank; 999]);
        let mut plan = ArenaPlan::new("sums");
        let len = gradients.bytes() / size_of::<f32>();
        plan.matrix("sums", DType::Bf16, 1, len);
        let arena = plan.freeze_on(&stream).unwrap();
        let sums = arena.mats().next().unwrap();
        let mut values = vec![bf16::round(1.0); len];
        values[place] = bf16::round(bad);
        sums.copy_from(&values).unwrap();
        let steps = Steps::on(&stream);
        scale.check(&stream, &CheckArgs { summed: Some(&sums), ..whole(&gradients, &steps) });
        scale.adjust(&stream);
        let (state, is_bad) = (scale.get().unwrap(), !bad.is_finite());
        assert_eq!(state.was_skipped, is_bad, "{bad} at {place}");
        assert_eq!(state.first_bad, is_bad.then_some(place as u32 / 4));
    }
}

/// A rank that has the sums of a part looks at no other, and tells of it before sums are added up.
#[test]
fn a_rank_looks_at_its_part() {
    for stream in streams() {
        let scale = scale_on(&stream, 1.0);
        let mut values_of_all = uniform(1, 999);
        values_of_all[701] = f32::INFINITY;
        let gradients = gradients_on(&stream, &values_of_all);
        // Parts begin and end where cache lines do.
        for (part, is_bad) in [(0..688, false), (688..720, true), (720..992, false), (0..992, true)]
        {
            let steps = Steps::on(&stream);
            let args = CheckArgs { elements: part, ..whole(&gradients, &steps) };
            scale.raise(&stream, &args);
            stream.synchronize().unwrap();
            let raised = values(&scale.overflow)[0];
            assert_eq!(raised, f32::from(u8::from(is_bad)), "{:?}", args.elements);
            scale.check(&stream, &args);
            scale.adjust(&stream);
            let state = scale.get().unwrap();
            assert_eq!(state.was_skipped, is_bad);
            assert_eq!(state.first_bad, is_bad.then_some(701 / 4));
        }
    }
}

/// A power of two changes no bit on its way through the loss and out of the optimiser, clipped or
/// not.
#[test]
fn a_scale_changes_no_bit_of_a_step() {
    for stream in streams() {
        for clip in [None, Some(0.25)] {
            let of = |scale: Option<&LossScale>| {
                let mat = |name, data: &[f32]| frozen_on(&stream, name, 64, 1, data);
                let (logits, labels) = (mat("logits", &uniform(1, 64)), mat("labels", &[1.0; 64]));
                let (d_logits, sums) =
                    (mat("d_logits", &[]), frozen_on(&stream, "sums", 1, 2, &[]));
                let args = LossArgs {
                    loss: Loss::BceWithLogits,
                    logits: &logits,
                    labels: &labels,
                    d_logits: &d_logits,
                    sums: &sums,
                    block_len: 64,
                    scale: 1.0 / 64.0,
                    loss_scale: scale,
                };
                loss::forward_backward(&stream, &args);
                let scaled = values(&d_logits);
                let (weights, gradients) =
                    (gradients_on(&stream, &uniform(2, 63)), gradients_on(&stream, &scaled[..63]));
                let steps = Steps::on(&stream);
                let args = StepArgs {
                    weights: &weights,
                    gradients: &gradients,
                    first: None,
                    second: None,
                    optimizer: &Optimizer::Sgd,
                    step: &STEP,
                    device_step: steps.places().map(|places| places[0]),
                    clip,
                    stacks: &[],
                    loss_scale: scale,
                    summed: None,
                    part: None,
                };
                optim::step(&stream, &args);
                stream.synchronize().unwrap();
                (scaled, weights.to_vec::<f32>().unwrap(), values(&sums))
            };
            let (plain, weights, sums) = of(None);
            let (scaled, same, same_sums) = of(Some(&scale_on(&stream, 1024.0)));
            let times: Vec<f32> = plain.iter().map(|gradient| gradient * 1024.0).collect();
            assert_eq!(scaled, times, "gradients are scaled");
            assert_eq!((weights, sums), (same, same_sums), "clip {clip:?}");
        }
    }
}

#[test]
fn a_skipped_step_changes_nothing() {
    let lamb = Optimizer::Lamb { beta1: 0.9, beta2: 0.9, epsilon: 1e-6, weight_decay: 0.1 };
    for (stream, optimizer) in
        streams().into_iter().flat_map(|s| [(s.clone(), Optimizer::Sgd), (s, lamb)])
    {
        let scale = scale_on(&stream, 1024.0);
        let (weights, gradients) =
            (gradients_on(&stream, &uniform(2, 63)), gradients_on(&stream, &[f32::NAN; 63]));
        let states = [(); 2].map(|()| gradients_on(&stream, &[0.5; 63]));
        let states = if optimizer == lamb { &states[..] } else { &[] };
        let before = weights.to_vec::<f32>().unwrap();
        let steps = Steps::on(&stream);
        scale.check(&stream, &whole(&gradients, &steps));
        let args = StepArgs {
            weights: &weights,
            gradients: &gradients,
            first: states.first(),
            second: states.get(1),
            optimizer: &optimizer,
            step: &STEP,
            device_step: steps.places().map(|places| places[0]),
            clip: Some(1.0),
            stacks: &[],
            loss_scale: Some(&scale),
            summed: None,
            part: None,
        };
        optim::step(&stream, &args);
        stream.synchronize().unwrap();
        assert_eq!(weights.to_vec::<f32>().unwrap(), before);
        let moments = states.iter().flat_map(|state| values(&state.mats().next().unwrap()));
        assert!(moments.into_iter().all(|moment| moment == 0.5));
    }
}

/// Interactions divide the gradients of vectors, leave those of the bottom scaled, and raise the
/// overflow only for the former.
#[test]
fn interactions_unscale_and_report() {
    const SAMPLES: usize = 37;
    for stream in streams() {
        // Products in shared memory, and rows that do not fit into it; then vectors side by side.
        for (vectors, dim, is_dot) in [(4, 8, true), (70, 150, true), (3, 5, false)] {
            let width = if is_dot { dot::output_width(vectors, dim) } else { (vectors + 1) * dim };
            let of = |scale: Option<&LossScale>, d_out: &[f32]| {
                let mat =
                    |name, cols: usize, data: &[f32]| frozen_on(&stream, name, SAMPLES, cols, data);
                let bottom = mat("bottom", dim, &uniform(1, SAMPLES * dim));
                let rows = mat("vectors", vectors * dim, &uniform(2, SAMPLES * vectors * dim));
                let (d_out, d_bottom) = (mat("d_out", width, d_out), mat("d_bottom", dim, &[]));
                let d_vectors = mat("d_vectors", vectors * dim, &[]);
                let args = dot::BackwardArgs {
                    bottom: &bottom,
                    vectors: &rows,
                    d_out: &d_out,
                    d_bottom: &d_bottom,
                    d_vectors: &d_vectors,
                    bottom_activation: Activation::Relu,
                    loss_scale: scale,
                };
                if is_dot {
                    dot::backward(&stream, &args, None)
                } else {
                    cat::backward(&stream, &args)
                }
                stream.check().unwrap();
                (values(&d_bottom), values(&d_vectors))
            };
            let d_out = uniform(3, SAMPLES * width);
            let scale = scale_on(&stream, 256.0);
            let (d_bottom, d_vectors) = of(None, &d_out);
            let (same, divided) = of(Some(&scale), &d_out);
            let expected: Vec<f32> = d_vectors.iter().map(|gradient| gradient / 256.0).collect();
            assert_eq!((same, divided), (d_bottom, expected), "{vectors} of {dim}");
            assert_eq!(values(&scale.overflow), [0.0], "{vectors} of {dim}");
            let mut bad = d_out;
            *bad.last_mut().unwrap() = f32::INFINITY;
            of(Some(&scale), &bad);
            assert_eq!(values(&scale.overflow), [1.0], "{vectors} of {dim}");
        }
    }
}

#[test]
fn scales_are_powers_of_two_within_bounds() {
    let good = [1.0, 2.0, 65536.0, 16_777_216.0];
    assert!(good.into_iter().all(is_scale));
    let bad = [0.0, 0.5, 1.5, 3.0, -2.0, 65537.0, 33_554_432.0, f64::NAN, f64::INFINITY];
    assert!(!bad.into_iter().any(is_scale));
}

mod cuda_tests {
    use super::super::cuda::{AdjustArgs, CheckLaunch, SOURCE};
    use super::*;
    use headlong_device::cuda::Source;
    use headlong_device::cuda::testing::layout_test;

    static UNSCALE: Source = Source { name: "mlp/unscale", text: include_str!("unscale.cuh") };

    #[test]
    fn layouts() {
        layout_test!(CheckLaunch, &SOURCE, &[]);
        layout_test!(AdjustArgs, &SOURCE, &[]);
        layout_test!(UnscaleArgs, &UNSCALE, &[]);
    }
}
