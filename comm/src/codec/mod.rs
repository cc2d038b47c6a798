//! Numbers in fewer bytes.

pub mod bf16;
