//! What this machine can do at most, measured without any of our ops: the denominators of every
//! share.

use headlong::commands::bench::data::zipf_rows;
use headlong::system::peak::{Factors, multiply_add_gflops};
use headlong_device::simd::prefetch;
use headlong_device::{ArenaPlan, DType, MatRef, Stream, vectorized};
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Rows ahead of the one being read that are asked for.
const PREFETCH_ROWS: usize = 16;
/// Width of a row of the gather: 512 bytes.
const DIM: usize = 128;
/// f32 in a cache line.
const LINE: usize = 16;

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
        Self {
            arithmetic_gflops: multiply_add_gflops(stream, Factors::F32, blocks, block_ms),
            read_gbps: read_gbps(stream, if smoke { 1 << 18 } else { 1 << 26 }, blocks),
            gather_gbps: gather_gbps(stream, if smoke { 1 << 10 } else { 5_000_000 }, blocks),
        }
    }
}

vectorized! {
    /// The sum in sixteen lanes and four chains, so that loads and not additions are what is waited
    /// for.
    fn sum(values: &[f32]) -> f32 {
        let mut lanes = [[0.0_f32; LINE]; 4];
        for chunk in values.chunks_exact(4 * LINE) {
            for (lanes, part) in lanes.iter_mut().zip(chunk.chunks_exact(LINE)) {
                for (lane, value) in lanes.iter_mut().zip(part) {
                    *lane += value;
                }
            }
        }
        lanes.iter().flatten().sum()
    }

    /// Copies the rows named into `out`, over and over the same few lines of it.
    fn gather(table: MatRef<'_, f32>, rows: &[u64], out: &mut [[f32; DIM]; 64]) {
        for (i, &row) in rows.iter().enumerate() {
            if let Some(&ahead) = rows.get(i + PREFETCH_ROWS) {
                for line in 0..DIM / LINE {
                    prefetch(table.data(), ahead as usize * DIM + line * LINE);
                }
            }
            out[i % 64].copy_from_slice(table.row(row as usize));
        }
    }
}

fn best_of(blocks: usize, mut seconds: impl FnMut() -> f64) -> f64 {
    (0..=blocks).map(|_| seconds()).fold(f64::INFINITY, f64::min)
}

fn read_gbps(stream: &Stream, len: usize, blocks: usize) -> f64 {
    let mut plan = ArenaPlan::new("read floor");
    let slot = plan.matrix("array", DType::F32, 1, len);
    let Ok(arena) = plan.freeze() else { return f64::NAN };
    let array = arena.mat(slot);
    stream.pool().chunks_mut(array.write::<f32>().data_mut(), 1 << 16, |_, chunk| chunk.fill(1.0));
    let view = array.read::<f32>();
    let chunk = 1 << 16;
    let seconds = best_of(blocks, || {
        let start = Instant::now();
        stream.pool().run(len.div_ceil(chunk), &|task| {
            let end = len.min((task + 1) * chunk);
            black_box(sum(&view.data()[task * chunk..end]));
        });
        start.elapsed().as_secs_f64()
    });
    len as f64 * 4.0 / seconds * 1e-9
}

fn gather_gbps(stream: &Stream, num_rows: usize, blocks: usize) -> f64 {
    let mut plan = ArenaPlan::new("gather floor");
    let slot = plan.matrix("table", DType::F32, num_rows, DIM);
    let Ok(arena) = plan.freeze() else { return f64::NAN };
    let table = arena.mat(slot);
    stream.pool().chunks_mut(table.write::<f32>().data_mut(), 1 << 16, |_, chunk| chunk.fill(1.0));
    let view = table.read::<f32>();
    let (per_task, tasks) = (1 << 14, if num_rows < 100_000 { 2 } else { 32 });
    let rows = zipf_rows(7, 0, num_rows as u64, per_task * tasks);
    let seconds = best_of(blocks, || {
        let start = Instant::now();
        stream.pool().run(tasks, &|task| {
            let mut out = [[0.0; DIM]; 64];
            gather(view.view(), &rows[task * per_task..][..per_task], &mut out);
            black_box(&out);
        });
        start.elapsed().as_secs_f64()
    });
    (per_task * tasks * DIM * 4) as f64 / seconds * 1e-9
}
