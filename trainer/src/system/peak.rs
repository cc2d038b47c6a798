//! The most this processor can multiply and add: what every rate of an iteration is compared with.

mod simd;

use headlong_device::Stream;
use simd::{multiply_adds, multiply_adds_bf16, multiply_adds_tiles};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What is multiplied; sums are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factors {
    /// f32.
    F32,
    /// bf16; where the processor does not multiply it, its peak is that of f32.
    Bf16,
    /// bf16 in tiles, likewise.
    Bf16Tiles,
}

/// Measures the multiply-add peak of all threads of `stream` together, in GFLOP/s: the best of
/// `blocks` blocks of about `block_ms` milliseconds.
pub fn multiply_add_gflops(stream: &Stream, factors: Factors, blocks: usize, block_ms: u64) -> f64 {
    let mut rounds = 1 << 12;
    // A short block says how many rounds fill the time asked for; it also warms the clock up.
    while time(stream, factors, rounds).0 < 1e-3 {
        rounds *= 2;
    }
    rounds =
        (rounds as f64 * block_ms as f64 * 1e-3 / time(stream, factors, rounds).0).max(1.0) as u64;
    let rate = |_| {
        let (seconds, flop) = time(stream, factors, rounds);
        flop / seconds * 1e-9
    };
    (0..blocks.max(1)).map(rate).fold(0.0, f64::max)
}

/// Seconds and FLOP of `rounds` rounds on every thread.
fn time(stream: &Stream, factors: Factors, rounds: u64) -> (f64, f64) {
    let flop = AtomicU64::new(0);
    let start = Instant::now();
    stream.pool().run(stream.pool().threads(), &|_| {
        let rounds = black_box(rounds);
        let done = match factors {
            Factors::F32 => None,
            Factors::Bf16 => multiply_adds_bf16(rounds),
            Factors::Bf16Tiles => multiply_adds_tiles(rounds),
        };
        let done = black_box(
            done.unwrap_or_else(|| multiply_adds(rounds, black_box(0.999), black_box(1e-6))),
        );
        flop.fetch_add(done.0, Ordering::Relaxed);
    });
    (start.elapsed().as_secs_f64(), flop.into_inner() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_positive() {
        for factors in [Factors::F32, Factors::Bf16, Factors::Bf16Tiles] {
            assert!(multiply_add_gflops(&Stream::cpu(1), factors, 1, 1) > 0.01, "{factors:?}");
        }
    }
}
