//! How the bottom MLP's output meets the pooled embedding vectors.

pub mod cat;
pub mod cross;
pub mod dot;
