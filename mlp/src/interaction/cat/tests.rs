use super::*;
use crate::testing::{frozen, values, wide};

#[test]
fn side_by_side_and_apart_again() {
    let stream = Stream::cpu(2);
    let bottom = frozen("bottom", 2, 2, &[1.0, -1.0, 0.0, 3.0]);
    let vectors = frozen("vectors", 2, 3, &[4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
    let out = wide("out", 2, 5, &[]);
    forward(&stream, &ForwardArgs { bottom: &bottom, vectors: &vectors, out: &out });
    assert_eq!(values(&out), [1.0, -1.0, 4.0, 5.0, 6.0, 0.0, 3.0, 7.0, 8.0, 9.0]);
    for (bottom_activation, expected) in
        [(Activation::None, [1.0, -1.0, 0.0, 3.0]), (Activation::Relu, [1.0, 0.0, 0.0, 3.0])]
    {
        let (d_bottom, d_vectors) = (wide("d_bottom", 2, 2, &[]), wide("d_vectors", 2, 3, &[]));
        backward(
            &stream,
            &BackwardArgs {
                bottom: &bottom,
                vectors: &vectors,
                d_out: &out,
                d_bottom: &d_bottom,
                d_vectors: &d_vectors,
                bottom_activation,
            },
        );
        assert_eq!(values(&d_bottom), expected);
        assert_eq!(values(&d_vectors), values(&vectors));
    }
}

use crate::linear::Activation;
