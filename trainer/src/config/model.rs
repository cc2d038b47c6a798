//! `[model]`: the dense network and the width of the embedding vectors.

use serde::{Deserialize, Serialize};

/// The model: DLRM as published (docs/numerics.md names the initialisation and the order of the
/// interaction).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelConfig {
    /// Width of every embedding vector, in elements.
    pub dim: usize,
    /// Widths of the bottom network's layers after its `data.num_dense` inputs; the last equals
    /// `dim`.
    pub bottom: Vec<usize>,
    /// Widths of the top network's layers after the interaction; the last is 1.
    pub top: Vec<usize>,
    /// How the bottom output and the pooled vectors meet.
    pub interaction: Interaction,
    /// `cross`: layers of the cross network.
    pub cross_layers: usize,
    /// `cross`: width between the two factors of each of its matrices.
    pub cross_rank: usize,
    /// The loss.
    pub loss: Loss,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            dim: 16,
            bottom: vec![64, 32, 16],
            top: vec![64, 32, 1],
            interaction: Interaction::Dot,
            cross_layers: 3,
            cross_rank: 64,
            loss: Loss::Bce,
        }
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

/// The loss of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Binary cross entropy from logits, in nats.
    Bce,
    /// Squared error of the sigmoid (the original DLRM's debug run uses it).
    Mse,
}
