use super::*;
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
        let (d_bottom, d_vectors) =
            (wide_on(stream, "d_bottom", 2, 2, &[]), wide_on(stream, "d_vectors", 2, 3, &[]));
        backward(
            stream,
            &BackwardArgs {
                bottom: &bottom,
                vectors: &vectors,
                d_out: &out,
                d_bottom: &d_bottom,
                d_vectors: &d_vectors,
                bottom_activation,
                loss_scale: None,
            },
        );
        assert_eq!(values(&d_bottom), expected);
        assert_eq!(values(&d_vectors), values(&vectors));
    }
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
    let (d_bottom, d_vectors) =
        (wide_on(&stream, "d_bottom", 2, 2, &[]), wide_on(&stream, "d_vectors", 2, 3, &[]));
    let args = BackwardArgs {
        bottom: &bottom,
        vectors: &vectors,
        d_out: &out,
        d_bottom: &d_bottom,
        d_vectors: &d_vectors,
        bottom_activation: Activation::Relu,
        loss_scale: None,
    };
    backward(&stream, &args);
    assert_eq!(values(&d_bottom), values(&bottom).into_iter().map(nearest).collect::<Vec<_>>());
    assert_eq!(values(&d_vectors), values(&vectors).into_iter().map(nearest).collect::<Vec<_>>());
}

use crate::linear::Activation;

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
