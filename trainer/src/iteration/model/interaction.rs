//! How the output of the bottom network and the vectors meet.

use crate::config::Interaction as Choice;
use headlong_device::{DType, Mat, Stream};
use headlong_mlp::interaction::{cat, dot};
use headlong_mlp::linear::Activation;
use headlong_mlp::loss_scale::LossScale;
use headlong_mlp::rounding::Rounding;

pub(crate) struct Interaction {
    choice: Choice,
    /// What the processor rounds vectors to before they meet, as tensor cores do.
    rounding: Option<Rounding>,
}

impl Interaction {
    pub(super) fn new(choice: Choice, rounding: Option<Rounding>) -> Self {
        Self { choice, rounding }
    }

    /// The forward pass; it may round `vectors`.
    pub(crate) fn forward(&self, stream: &Stream, bottom: &Mat, vectors: &Mat, out: &Mat) {
        let args = dot::ForwardArgs { bottom, vectors, out };
        match self.choice {
            Choice::Dot => dot::forward(stream, &args, self.rounding),
            Choice::Cat | Choice::Cross => {
                // Stored in 16 bits, the result is rounded as it is written.
                if out.dtype() == DType::F32 {
                    self.rounding.iter().for_each(|rounding| rounding.round(stream, vectors));
                }
                cat::forward(stream, &args);
            }
        }
    }

    /// The backward pass, to the gradients of both.
    pub(crate) fn backward(
        &self,
        stream: &Stream,
        (bottom, vectors, d_out): (&Mat, &Mat, &Mat),
        (d_bottom, d_vectors): (&Mat, &Mat),
        loss_scale: Option<&LossScale>,
    ) {
        let args = dot::BackwardArgs {
            bottom,
            vectors,
            d_out,
            d_bottom,
            d_vectors,
            bottom_activation: Activation::Relu,
            loss_scale,
        };
        match self.choice {
            Choice::Dot => dot::backward(stream, &args, self.rounding),
            Choice::Cat | Choice::Cross => cat::backward(stream, &args),
        }
    }
}
