//! Evaluation during training: the forward passes run in the schedule, at exactly one step's
//! weights; what their scores come to is worked out on another thread while training continues.
//!
//! [`Scores`](crate::metrics::Scores) collect logits and labels, [`Tally`](crate::metrics::Tally)
//! is what they add up to, exactly and in any order; [`Scoring`] is the work between the last
//! forward pass and the metrics. Between processes it takes two exchanges, at steps that are the
//! same on all ranks; on every other the threads work alone.

mod exchange;
mod scoring;

pub(crate) use exchange::add_up;
pub use scoring::Scoring;
pub(crate) use scoring::Worker;
