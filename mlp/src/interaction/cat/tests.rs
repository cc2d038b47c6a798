use super::*;
use crate::linear::Activation;
use crate::testing::{frozen_on, values, wide_on};
use headlong_device::Stream;

#[test]
fn side_by_side_and_apart_again() {
    check(&Stream::cpu(2));
}

fn check(stream: &Stream) {
    let bottom = frozen_on(stream, "bottom", 2, 2, &[1.0, -1.0, 0.0, 3.0]);
    let vectors = frozen_on(stream, "vectors", 2, 3, &[4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let out = wide_on(stream, "out", 2, 5, &[]);
    forward(stream, &ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out });
    assert_eq!(values(&out), [1.0, -1.0, 4.0, 5.0, 6.0, 0.0, 3.0, 7.0, 8.0, 9.0]);
    for (bottom_activation, expected) in
        [(Activation::None, [1.0, -1.0, 0.0, 3.0]), (Activation::Relu, [1.0, 0.0, 0.0, 3.0])]
    {
        let [d_bottom, d_vectors] = apart(stream, [&bottom, &vectors, &out], bottom_activation);
        assert_eq!(d_bottom, expected);
        assert_eq!(d_vectors, values(&vectors));
    }
}

/// The gradients of both where that of the result is `d_out`.
fn apart(
    stream: &Stream,
    [bottom, vectors, d_out]: [&Mat; 3],
    bottom_activation: Activation,
) -> [Vec<f32>; 2] {
    let gradient = |name, of: &Mat| wide_on(stream, name, of.rows(), of.cols(), &[]);
    let (d_bottom, d_vectors) = (gradient("d_bottom", bottom), gradient("d_vectors", vectors));
    let (d_bottom, d_vectors) = (&d_bottom, &d_vectors);
    let loss_scale = None;
    backward(
        stream,
        &BackwardArgs {
            bottom,
            vectors,
            d_out,
            d_bottom,
            d_vectors,
            bottom_activation,
            loss_scale,
        },
    );
    [values(d_bottom), values(d_vectors)]
}

/// The result and its gradient in 16 bits: rounded on the way there, widened on the way back.
#[test]
fn side_by_side_in_16_bits() {
    use headlong_device::{ArenaPlan, bf16::nearest};
    let stream = Stream::cpu(2);
    let bottom = frozen_on(&stream, "bottom", 2, 2, &[1.003, 0.0, 0.5, 3.0]);
    let vectors = frozen_on(&stream, "vectors", 2, 3, &[4.0, 5.01, 6.0, 7.0, 8.0, -9.03]);
    let mut plan = ArenaPlan::new("out");
    let slot = plan.matrix("out", DType::Bf16, 2, 32);
    let out = plan.freeze().unwrap().mat(slot).columns(0, 5);
    forward(&stream, &ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out });
    let rounded = |mat: &Mat| values(mat).into_iter().map(nearest).collect::<Vec<_>>();
    let gradients = apart(&stream, [&bottom, &vectors, &out], Activation::Relu);
    assert_eq!(gradients, [rounded(&bottom), rounded(&vectors)]);
}

mod cuda_tests {
    use super::super::cuda::{CatBackwardArgs, CatForwardArgs, SOURCE};
    use headlong_device::cuda::testing::{layout_test, stream};

    #[test]
    fn side_by_side_and_apart_again() {
        if let Some(stream) = stream() {
            super::check(&stream);
        }
    }

    #[test]
    fn layouts() {
        layout_test!(CatForwardArgs, &SOURCE, &[]);
        layout_test!(CatBackwardArgs, &SOURCE, &[]);
    }
}
