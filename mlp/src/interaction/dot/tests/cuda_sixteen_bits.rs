//! Results in 16 bits, on tensor cores and without, against the oracle.

use super::super::args::{DotBackwardArgs, DotForwardArgs, MAX_WARPS, Types};
use super::super::tensor::{SOURCE, Tensor};
use super::*;
use crate::cuda::blocks;
use half::{bf16, f16};
use headlong_device::cuda::testing::{layout_test, stream};
use headlong_device::cuda::{Launch, Source};
use headlong_device::{ArenaPlan, DType};

/// Criteo at 16 and 128, three tiles of rows, no vectors, a dim and a number of rows that tensor
/// cores do not take.
const SHAPES: [Case; 6] = [
    Case { samples: 37, vectors: 26, dim: 16 },
    Case { samples: 5, vectors: 26, dim: 128 },
    Case { samples: 2, vectors: 40, dim: 32 },
    Case { samples: 2, vectors: 0, dim: 16 },
    Case { samples: 3, vectors: 3, dim: 37 },
    Case { samples: 2, vectors: 70, dim: 16 },
];

/// A result of bf16 from vectors of f32, as devices have them without 16-bit vectors.
const PLAIN: Types = Types::new(DType::Bf16, DType::F32, DType::F32);

/// All matrices in 16 bits.
const fn narrow(dtype: DType) -> Types {
    Types::new(dtype, dtype, dtype)
}

/// The nearest number of a type.
fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        DType::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Unit roundoff.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2.0_f64.powi(-8),
        DType::F16 => 2.0_f64.powi(-11),
        _ => 0.0,
    }
}

/// A matrix whose rows are `stride` elements apart, NaN in the gaps.
fn typed(
    stream: &Stream,
    (dtype, name): (DType, &str),
    shape: (usize, usize),
    stride: usize,
    data: &[f32],
) -> Mat {
    let mut plan = ArenaPlan::new(name);
    let slot = plan.matrix(name, dtype, shape.0, stride);
    let whole = plan.freeze_on(stream).unwrap().mat(slot);
    let mat = whole.columns(0, shape.1);
    match dtype {
        DType::Bf16 => {
            whole.copy_from(&vec![bf16::NAN; shape.0 * stride]).unwrap();
            let data: Vec<bf16> = data.iter().map(|&x| bf16::from_f32(x)).collect();
            (!data.is_empty()).then(|| mat.copy_from(&data).unwrap());
        }
        DType::F16 => {
            whole.copy_from(&vec![f16::NAN; shape.0 * stride]).unwrap();
            let data: Vec<f16> = data.iter().map(|&x| f16::from_f32(x)).collect();
            (!data.is_empty()).then(|| mat.copy_from(&data).unwrap());
        }
        _ => {
            whole.copy_from(&vec![f32::NAN; shape.0 * stride]).unwrap();
            (!data.is_empty()).then(|| mat.copy_from(data).unwrap());
        }
    }
    mat
}

fn as_f32(mat: &Mat) -> Vec<f32> {
    match mat.dtype() {
        DType::Bf16 => mat.to_vec::<bf16>().unwrap().iter().map(|x| x.to_f32()).collect(),
        DType::F16 => mat.to_vec::<f16>().unwrap().iter().map(|x| x.to_f32()).collect(),
        _ => values(mat),
    }
}

/// Runs both ops; rows of all matrices have `gap` elements between them beyond what fills them up
/// to 16 bytes.
fn run(stream: &Stream, case: &Case, types: Types, data: &Inputs, gap: usize) -> Results {
    let Types { result, vectors: pooled, d_vectors } = types;
    let &Case { samples, vectors: count, dim } = case;
    let width = output_width(count, dim);
    let mat = |dtype, name, cols: usize, data: &[f32]| {
        typed(stream, (dtype, name), (samples, cols), cols.next_multiple_of(8) + gap, data)
    };
    let bottom = mat(result, "bottom", dim, &data.bottom);
    let vectors = mat(pooled, "vectors", count * dim, &data.vectors);
    let out = mat(result, "out", width, &[]);
    let args = ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out };
    forward(stream, &args, None);
    let d_out = mat(result, "d_out", width, &data.d_out);
    let d_bottom = mat(result, "d_bottom", dim, &[]);
    let d_vectors = mat(d_vectors, "d_vectors", count * dim, &[]);
    let args = BackwardArgs {
        bottom: &bottom,
        vectors: &vectors,
        d_out: &d_out,
        d_bottom: &d_bottom,
        d_vectors: &d_vectors,
        bottom_activation: Activation::Relu,
        loss_scale: None,
    };
    backward(stream, &args, None);
    stream.check().unwrap();
    Results { out: as_f32(&out), d_bottom: as_f32(&d_bottom), d_vectors: as_f32(&d_vectors) }
}

/// `exact` asks for the sum, which f32 holds, rounded once; else for twice the bound of a sum of
/// `count` fused steps, since tensor cores cut digits off where others round, and the rounding of
/// the result.
fn admits(got: f32, sum: &oracle::Sum, dtype: DType, count: usize, exact: bool) -> bool {
    if exact {
        return got == rounded(dtype, sum.value as f32);
    }
    let bound = 2.0 * oracle::sum_bound(count) * sum.magnitude;
    (f64::from(got) - sum.value).abs()
        <= bound + unit(dtype) * (sum.value.abs() + bound) + 2.0_f64.powi(-25)
}

fn check_types(stream: &Stream, case: &Case, types: Types, exact: bool) {
    let mut data = case.inputs(if exact { small_integers } else { uniform });
    for values in [&mut data.bottom, &mut data.vectors, &mut data.d_out] {
        values.iter_mut().for_each(|value| *value = rounded(types.result, *value));
    }
    let got = run(stream, case, types, &data, 0);
    let width = output_width(case.vectors, case.dim);
    for sample in 0..case.samples {
        let features = case.features(&data, sample);
        for (i, sum) in oracle::dot(&features, case.dim).iter().enumerate() {
            let got = got.out[sample * width + i];
            let fits = admits(got, sum, types.result, case.dim, exact);
            assert!(
                fits,
                "{types:?}, dim {}, sample {sample}, output {i}: {got}, {sum:?}",
                case.dim
            );
        }
        let d_out: Vec<f64> =
            data.d_out[sample * width..][..width].iter().map(|&x| f64::from(x)).collect();
        for (i, sum) in oracle::dot_backward(&features, case.dim, &d_out).iter().enumerate() {
            let (got, dtype) = match i.checked_sub(case.dim) {
                Some(i) => (got.d_vectors[sample * case.vectors * case.dim + i], types.d_vectors),
                None => (got.d_bottom[sample * case.dim + i], types.result),
            };
            let masked = i < case.dim && features[i] <= 0.0;
            let fits =
                if masked { got == 0.0 } else { admits(got, sum, dtype, case.vectors + 2, exact) };
            assert!(
                fits,
                "{types:?}, dim {}, sample {sample}, gradient {i}: {got}, {sum:?}",
                case.dim
            );
        }
    }
    let unaligned = run(stream, case, types, &data, 3);
    assert!(
        got.out == unaligned.out
            && got.d_bottom == unaligned.d_bottom
            && got.d_vectors == unaligned.d_vectors
    );
}

#[test]
fn agrees_with_the_oracle() {
    let Some(stream) = stream() else { return };
    for case in &SHAPES {
        for exact in [false, true] {
            check_types(&stream, case, PLAIN, exact);
        }
    }
}

#[test]
fn vectors_in_sixteen_bits_agree_with_the_oracle() {
    let Some(stream) = stream() else { return };
    let training = [DType::Bf16, DType::F16].map(|dtype| Types::of_training(dtype, dtype));
    let f32_gradients = Types { d_vectors: DType::F32, ..narrow(DType::Bf16) };
    for types in training.into_iter().chain([f32_gradients, narrow(DType::F16)]) {
        check_types(&stream, &SHAPES[1], types, false);
        check_types(&stream, &SHAPES[1], types, true);
    }
}

/// More samples than warps: each copies its next ones while it multiplies.
#[test]
fn samples_that_follow_each_other_in_a_warp_agree_with_the_oracle() {
    let Some(stream) = stream() else { return };
    let warps = blocks(stream.cuda_body(), usize::MAX) as usize * MAX_WARPS;
    let case = Case { samples: 3 * warps + 5, vectors: 8, dim: 16 };
    check_types(&stream, &case, narrow(DType::Bf16), true);
}

/// The software device brings a copy at the wait for it: so a wait that leaves one group more open
/// makes results of the forward pass that are wrong.
#[test]
fn a_wait_that_leaves_the_sample_open_is_seen() {
    let Some(stream) = stream() else { return };
    if !stream.cuda_body().device().is_software() {
        println!("skipped, because only the software device brings no copy early");
        return;
    }
    let (wait, too_little) = ("copy_async_wait<BUFFERS - 1>()", "copy_async_wait<BUFFERS>()");
    assert_eq!(SOURCE.text.matches(wait).count(), 1);
    let text = SOURCE.text.replace(wait, too_little).leak();
    let wrong: &'static Source = Box::leak(Box::new(Source { name: "mlp/dot-no-wait", text }));
    let case = Case { samples: 3, vectors: 8, dim: 16 };
    let data = case.inputs(small_integers);
    let width = output_width(case.vectors, case.dim);
    let typed = |name, cols: usize, data: &[f32]| {
        let stride = cols.next_multiple_of(8);
        typed(&stream, (DType::Bf16, name), (case.samples, cols), stride, data)
    };
    let bottom = typed("bottom", case.dim, &data.bottom);
    let vectors = typed("vectors", case.vectors * case.dim, &data.vectors);
    let out = typed("out", width, &[]);
    let args = ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out };
    let launched = DotForwardArgs::new(&args, 8, width.next_multiple_of(8));
    let defines =
        Tensor::of(case.vectors, case.dim, Types::of_forward(&args)).unwrap().build().defines;
    let results = [&SOURCE, wrong].map(|source| {
        let shape = Launch::new(1, 32 * MAX_WARPS as u32).with_shared(16 << 10);
        stream.cuda_body().run(source, &defines, "tensor_forward", shape, &launched);
        stream.check().unwrap();
        as_f32(&out)
    });
    assert!(results[0].iter().all(|x| x.is_finite()));
    assert!(results[1].iter().all(|x| x.is_nan()));
}

#[test]
fn tensor_cores_take_what_they_can() {
    let taken = |case: &Case| Tensor::of(case.vectors, case.dim, PLAIN).is_some();
    assert_eq!(SHAPES.each_ref().map(taken), [true, true, true, true, false, false]);
    assert!(Tensor::of(26, 128, Types::of_training(DType::F32, DType::F32)).is_none());
}

#[test]
fn layouts() {
    layout_test!(DotForwardArgs, &SOURCE, &[]);
    layout_test!(DotBackwardArgs, &SOURCE, &[]);
}
