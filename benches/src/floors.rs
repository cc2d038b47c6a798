//! What this machine can do at most, measured without any of our ops: the denominators of every
//! share.

use headlong::commands::bench::memory::{ARRAY_BYTES, ROWS, RowTable, read_gb_per_s};
use headlong::system::peak::{Factors, multiply_add_gflops};
use headlong_device::Stream;
use serde::Serialize;

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Floors {
    /// f32 multiply-adds from registers, GFLOP/s.
    pub arithmetic_gflops: f64,
    pub read_gbps: f64,
    /// Reading 512-byte rows, Zipf(1.05), from huge pages with prefetch, GB/s.
    pub gather_gbps: f64,
}

impl Floors {
    /// Measures all three: about two seconds, or a few milliseconds on tiny arrays in smoke mode.
    pub fn measure(stream: &Stream, smoke: bool) -> Self {
        let (blocks, block_ms) = if smoke { (1, 2) } else { (5, 50) };
        let (bytes, rows) = if smoke { (1 << 20, 1 << 10) } else { (ARRAY_BYTES, ROWS) };
        let gather_gbps = RowTable::new(stream, rows)
            .map_or(f64::NAN, |rows| rows.gather_gb_per_s(stream, blocks));
        Self {
            arithmetic_gflops: multiply_add_gflops(stream, Factors::F32, blocks, block_ms),
            read_gbps: read_gb_per_s(stream, bytes, blocks),
            gather_gbps,
        }
    }
}
