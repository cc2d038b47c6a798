//! One tile of a lookup: rows to vectors, in strips of at most 128 columns.

use crate::table::Pooling;
use headlong_device::pool::SharedMut;
use headlong_device::vector::prefetch;
use headlong_device::{MatRef, vectorized};

/// Bytes of rows asked for ahead of use.
const AHEAD_BYTES: usize = 4096;

/// Floats in a cache line.
const LINE: usize = 16;

/// One tile: the samples of `offsets`, which index `values`.
pub(super) struct Gather<'a> {
    pub(super) weights: MatRef<'a>,
    pub(super) values: &'a [u64],
    pub(super) offsets: &'a [u32],
    pub(super) pooling: Pooling,
    pub(super) out: SharedMut<f32>,
    pub(super) out_first: usize,
    pub(super) out_stride: usize,
}

impl Gather<'_> {
    fn bag(&self, sample: usize) -> &[u64] {
        &self.values[self.offsets[sample] as usize..self.offsets[sample + 1] as usize]
    }

    pub(super) fn in_range(&self) -> bool {
        let (first, last) = (self.offsets[0] as usize, self.offsets[self.offsets.len() - 1] as usize);
        let rows = self.weights.rows() as u64;
        self.values[first..last].iter().fold(true, |fine, &row| fine & (row < rows))
    }
}

vectorized! {
    pub(super) fn gather_tile(tile: &Gather<'_>) {
        let dim = tile.weights.cols();
        let mut column = 0;
        while column < dim {
            column += match dim - column {
                128.. => gather_strip::<128>(tile, column, 128),
                64.. => gather_strip::<64>(tile, column, 64),
                32.. => gather_strip::<32>(tile, column, 32),
                16.. => gather_strip::<16>(tile, column, 16),
                len => gather_strip::<16>(tile, column, len),
            };
        }
    }
}

/// The columns `column .. column + len` of all samples of the tile, `len` at most `W`. Returns `len`.
#[inline(always)]
fn gather_strip<const W: usize>(tile: &Gather, column: usize, len: usize) -> usize {
    let ahead = (AHEAD_BYTES / (4 * W)).max(1);
    let (data, stride) = (tile.weights.data(), tile.weights.stride());
    for sample in 0..tile.offsets.len() - 1 {
        let first = tile.offsets[sample] as usize;
        let bag = tile.bag(sample);
        for entry in first..first + bag.len() {
            if let Some(&row) = tile.values.get(entry + ahead) {
                let start = (row as usize).wrapping_mul(stride).wrapping_add(column);
                for line in 0..W / LINE {
                    prefetch(data, start.wrapping_add(line * LINE));
                }
            }
        }
        // SAFETY: `vectors` is `samples × Σ dim`, by the set's checks; this tile alone writes these samples' columns of
        // this table, and each of them once.
        let target = unsafe { tile.out.slice(tile.out_first + sample * tile.out_stride + column, len) };
        match bag {
            [] => target.fill(0.0),
            [row] => copy::<W>(target, &data[*row as usize * stride + column..][..len]),
            rows => {
                let mut sum = load::<W>(&data[rows[0] as usize * stride + column..][..len]);
                for row in &rows[1..] {
                    let values = load::<W>(&data[*row as usize * stride + column..][..len]);
                    for (sum, value) in sum.iter_mut().zip(values) {
                        *sum += value;
                    }
                }
                if tile.pooling == Pooling::Mean {
                    let reciprocal = 1.0 / rows.len() as f32;
                    sum.iter_mut().for_each(|sum| *sum *= reciprocal);
                }
                copy::<W>(target, &sum[..len]);
            }
        }
    }
    len
}

#[inline(always)]
fn copy<const W: usize>(target: &mut [f32], source: &[f32]) {
    if let (Ok(target), Ok(source)) = (<&mut [f32; W]>::try_from(&mut *target), <&[f32; W]>::try_from(source))
    {
        *target = *source;
    } else {
        target.copy_from_slice(source);
    }
}

/// `W` values, zeros where `source` is shorter.
#[inline(always)]
fn load<const W: usize>(source: &[f32]) -> [f32; W] {
    if let Ok(source) = <&[f32; W]>::try_from(source) {
        return *source;
    }
    let mut values = [0.0; W];
    values[..source.len()].copy_from_slice(source);
    values
}
