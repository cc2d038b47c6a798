//! What memory gives at most, measured without any of our ops: the denominators of shares in
//! `headlong-benches`, and what `headlong bench machine` prints.

use super::data::zipf_rows;
use headlong_device::simd::prefetch;
use headlong_device::{ArenaPlan, DType, Mat, MatRef, Stream, vectorized};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
use std::hint::black_box;
use std::time::Instant;

/// Bytes of an array that is read or copied in order, unless a bench asks for fewer.
pub const ARRAY_BYTES: usize = 256 << 20;
/// Width of a row that is gathered or updated: 512 bytes.
pub const ROW_DIM: usize = 128;
/// Bytes of such a row.
pub const ROW_BYTES: usize = ROW_DIM * 4;
/// Rows of the table that they lie in, unless a bench asks for fewer.
pub const ROWS: usize = 5_000_000;

/// f32 that a task reads or copies.
const CHUNK: usize = 1 << 16;
/// Rows ahead of the one in hand that are asked for.
const PREFETCH_ROWS: usize = 16;
/// f32 in a cache line.
const LINE: usize = 16;
/// Rows that a call gathers or updates on all threads; fewer of a small table.
const ROWS_A_CALL: usize = 1 << 19;
const FEWER_ROWS_A_CALL: usize = 1 << 15;
const SMALL_TABLE_ROWS: usize = 100_000;

vectorized! {
    /// The sum of the bits: of whole numbers, which may be added in any order, so that the compiler
    /// uses vectors and several chains of them, and loads are what is waited for.
    fn sum(values: &[f32]) -> u32 {
        values.iter().fold(0, |sum: u32, value| sum.wrapping_add(value.to_bits()))
    }

    /// Copies the rows named into `out`, over and over the same few lines of it.
    fn gather(table: MatRef<'_, f32>, rows: &[u64], out: &mut [[f32; ROW_DIM]; 64]) {
        for (i, &row) in rows.iter().enumerate() {
            prefetch_ahead(table.data(), rows, i);
            out[i % 64].copy_from_slice(table.row(row as usize));
        }
    }

    /// Adds the same few lines to the rows named.
    fn update(table: &mut [f32], rows: &[u64], gradients: &[[f32; ROW_DIM]; 64]) {
        for (i, &row) in rows.iter().enumerate() {
            prefetch_ahead(table, rows, i);
            let row = &mut table[row as usize * ROW_DIM..][..ROW_DIM];
            for (weight, gradient) in row.iter_mut().zip(&gradients[i % 64]) {
                *weight += gradient;
            }
        }
    }
}

#[inline(always)]
fn prefetch_ahead(table: &[f32], rows: &[u64], i: usize) {
    if let Some(&ahead) = rows.get(i + PREFETCH_ROWS) {
        for line in 0..ROW_DIM / LINE {
            prefetch(table, ahead as usize * ROW_DIM + line * LINE);
        }
    }
}

/// Seconds of the fastest of some runs; the first, which touches the memory, is one more.
fn best_of(blocks: usize, mut run: impl FnMut()) -> f64 {
    let seconds = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..=blocks).map(seconds).fold(f64::INFINITY, f64::min)
}

/// Memory for `rows` rows of `cols` f32, written by the threads of `stream`; none where the system
/// refuses it.
fn written(stream: &Stream, rows: usize, cols: usize) -> Option<Mat> {
    let mut plan = ArenaPlan::new("roofline");
    let slot = plan.matrix("array", DType::F32, rows, cols);
    let mat = plan.freeze().ok()?.mat(slot);
    stream.pool().chunks_mut(mat.write::<f32>().data_mut(), CHUNK, |_, chunk| chunk.fill(1.0));
    Some(mat)
}

/// GB a second that all threads of `stream` read in order from an array of `bytes`; not a number
/// where there is no memory for it.
pub fn read_gb_per_s(stream: &Stream, bytes: usize, blocks: usize) -> f64 {
    let len = bytes / 4;
    let Some(array) = written(stream, 1, len) else { return f64::NAN };
    let view = array.read::<f32>();
    let seconds = best_of(blocks, || {
        stream.pool().run(len.div_ceil(CHUNK), &|task| {
            let end = len.min((task + 1) * CHUNK);
            black_box(sum(&view.data()[task * CHUNK..end]));
        });
    });
    bytes as f64 / seconds * 1e-9
}

/// GB a second that all threads of `stream` read and write when they copy an array of `bytes`.
pub fn copy_gb_per_s(stream: &Stream, bytes: usize, blocks: usize) -> f64 {
    let (from, mut to) = (vec![1.0_f32; bytes / 4], vec![0.0_f32; bytes / 4]);
    let seconds = best_of(blocks, || {
        stream.pool().chunks_mut(&mut to, CHUNK, |task, to| {
            to.copy_from_slice(&from[task * CHUNK..][..to.len()]);
        });
    });
    2e-9 * bytes as f64 / seconds
}

/// A table of rows of 512 bytes, of which rows are drawn by Zipf(1.05).
#[derive(Debug)]
pub struct RowTable {
    table: Mat,
    num_rows: usize,
}

impl RowTable {
    /// A table that the threads of `stream` have written; none where there is no memory for it.
    pub fn new(stream: &Stream, num_rows: usize) -> Option<Self> {
        Some(Self { table: written(stream, num_rows, ROW_DIM)?, num_rows })
    }

    fn rows_a_call(&self) -> usize {
        if self.num_rows < SMALL_TABLE_ROWS { FEWER_ROWS_A_CALL } else { ROWS_A_CALL }
    }

    /// GB a second that all threads of `stream` read, row by row, with prefetch.
    pub fn gather_gb_per_s(&self, stream: &Stream, blocks: usize) -> f64 {
        let view = self.table.read::<f32>();
        let (per_task, count) = (1 << 14, self.rows_a_call());
        let rows = zipf_rows(7, 0, self.num_rows as u64, count);
        let seconds = best_of(blocks, || {
            stream.pool().run(count / per_task, &|task| {
                let mut out = [[0.0; ROW_DIM]; 64];
                gather(view.view(), &rows[task * per_task..][..per_task], &mut out);
                black_box(&out);
            });
        });
        (count * ROW_BYTES) as f64 / seconds * 1e-9
    }

    /// GB a second that all threads of `stream` read and write when they add to rows, each thread
    /// to those of a part of the table.
    pub fn update_gb_per_s(&self, stream: &Stream, blocks: usize) -> f64 {
        let mut table = self.table.write::<f32>();
        let threads = stream.pool().threads();
        let part = self.num_rows.div_ceil(threads);
        let per_part = self.rows_a_call() / threads;
        let parts = self.num_rows.div_ceil(part);
        let rows_of = |index: usize| {
            let rows = part.min(self.num_rows - index * part);
            zipf_rows(7, index as u64, rows as u64, per_part)
        };
        let rows: Vec<_> = (0..parts).map(rows_of).collect();
        let gradients = [[1e-6; ROW_DIM]; 64];
        let seconds = best_of(blocks, || {
            stream.pool().chunks_mut(table.data_mut(), part * ROW_DIM, |index, table| {
                update(table, &rows[index], &gradients);
            });
        });
        (2 * parts * per_part * ROW_BYTES) as f64 / seconds * 1e-9
    }
}

/// As long as it lives, memory that this process touches first is on pages of the smallest size,
/// also where it asks for huge ones.
#[derive(Debug)]
pub struct SmallPages {
    were_asked_for: bool,
}

impl SmallPages {
    /// None where the system cannot be asked for them.
    pub fn ask() -> Option<Self> {
        let were_asked_for = transparent_huge_pages_are_disabled().ok()?;
        disable_transparent_huge_pages(true).ok()?;
        Some(Self { were_asked_for })
    }
}

impl Drop for SmallPages {
    fn drop(&mut self) {
        // What was set can be set back.
        let _ = disable_transparent_huge_pages(self.were_asked_for);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_measured() {
        for threads in [1, 3] {
            let stream = Stream::cpu(threads);
            let table = RowTable::new(&stream, 1000).unwrap();
            for rate in [
                read_gb_per_s(&stream, 1 << 20, 1),
                copy_gb_per_s(&stream, 1 << 20, 1),
                table.gather_gb_per_s(&stream, 1),
                table.update_gb_per_s(&stream, 1),
            ] {
                assert!(rate > 0.0 && rate.is_finite(), "{rate}");
            }
        }
    }

    #[test]
    fn an_update_adds_and_a_gather_copies() {
        let stream = Stream::cpu(1);
        let table = RowTable::new(&stream, 4).unwrap();
        update(table.table.write::<f32>().data_mut(), &[2, 0, 2], &[[0.5; ROW_DIM]; 64]);
        let mut out = [[0.0; ROW_DIM]; 64];
        gather(table.table.read::<f32>().view(), &[0, 1, 2], &mut out);
        assert_eq!(out.map(|row| row[7])[..4], [1.5, 1.0, 2.0, 0.0]);
        assert_eq!(sum(&[0.5; 128]), 0.5_f32.to_bits().wrapping_mul(128));
    }

    #[test]
    fn small_pages_end_with_their_value() {
        let before = transparent_huge_pages_are_disabled().unwrap();
        let small = SmallPages::ask().unwrap();
        assert!(transparent_huge_pages_are_disabled().unwrap());
        drop(small);
        assert_eq!(transparent_huge_pages_are_disabled().unwrap(), before);
    }
}
