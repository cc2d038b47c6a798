//! `headlong bench`: how fast this machine trains, compared with the most it could.

pub mod collectives;
pub mod data;
pub mod embedding;
pub mod exchange;
pub mod forecast;
pub mod iteration;
pub mod machine;
pub mod memory;
pub mod p2p;
pub mod reader;
pub mod sample;
pub mod shapes;
pub mod tune;
