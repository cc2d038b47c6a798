//! `[model]`: the dense network and the width of the embedding vectors.

pub use headlong_mlp::loss::Loss;
use serde::{Deserialize, Serialize};

settings! {
    /// The model: DLRM as published (docs/numerics.md names the initialisation and the order of the
    /// interaction).
    pub struct ModelConfig ["model"] {
        /// Width of every embedding vector, in elements.
        pub dim: usize = 16,
        /// Widths of the bottom network after its data.num_dense inputs; the last equals model.dim.
        pub bottom: Vec<usize> = vec![64, 32, 16],
        /// Widths of the top network after the interaction; the last is 1.
        pub top: Vec<usize> = vec![64, 32, 1],
        /// How the bottom output and the pooled vectors meet: "dot", "cat" or "cross" (DCN v2).
        pub interaction: Interaction = Interaction::Dot,
        /// `cross`: layers of the cross network.
        pub cross_layers: usize = 3,
        /// `cross`: width between the two factors of each of its matrices.
        pub cross_rank: usize = 64,
        /// The loss of a sample: "bce" (from logits) or "mse".
        pub loss: Loss = Loss::BceWithLogits,
    }
}

/// How the bottom output and the pooled vectors meet before the top network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interaction {
    /// `[bottom output, strict lower triangle of F·Fᵀ]`, F the stack of the bottom output and the
    /// pooled vectors.
    Dot,
    /// All vectors one after another.
    Cat,
    /// The same, through a low-rank cross network (DCN v2) of `cross_layers` layers and rank
    /// `cross_rank`.
    Cross,
}
