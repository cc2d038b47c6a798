//! The most this processor can multiply and add: what every rate of an iteration is set beside.

use super::vector::multiply_adds;
use headlong_device::Stream;
use std::hint::black_box;
use std::time::Instant;

/// Measures the multiply-add peak of all threads of `stream` together, in GFLOP/s (f32): the best of `blocks` blocks
/// of about `block_ms` milliseconds.
pub fn multiply_add_gflops(stream: &Stream, blocks: usize, block_ms: u64) -> f64 {
    let tasks = stream.pool().threads();
    let mut rounds = 1 << 12;
    // A short block says how many rounds fill the time asked for; it also warms the clock up.
    while time(stream, tasks, rounds).0 < 1e-3 {
        rounds *= 2;
    }
    rounds = (rounds as f64 * block_ms as f64 * 1e-3 / time(stream, tasks, rounds).0).max(1.0) as u64;
    let rate = |_| {
        let (seconds, flop) = time(stream, tasks, rounds);
        flop / seconds * 1e-9
    };
    (0..blocks.max(1)).map(rate).fold(0.0, f64::max)
}

/// Seconds and FLOP of `rounds` rounds on every thread.
fn time(stream: &Stream, tasks: usize, rounds: u64) -> (f64, f64) {
    let start = Instant::now();
    stream.pool().run(tasks, &|_| {
        black_box(multiply_adds(black_box(rounds), black_box(0.999), black_box(1e-6)));
    });
    let seconds = start.elapsed().as_secs_f64();
    (seconds, tasks as f64 * multiply_adds(1, 0.0, 0.0).0 as f64 * rounds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_positive() {
        assert!(multiply_add_gflops(&Stream::cpu(1), 1, 1) > 0.01);
    }
}
