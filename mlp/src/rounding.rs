//! Rounding to 16 bits: how the processor computes what a device computes with 16-bit matrices.
//! What is stored has the values of bf16 or f16 and the type f32, except what networks keep
//! between their layers in bf16; sums are f32 on both.

use crate::simd::for_each_row;
use headlong_device::{DType, Mat, Stream, bf16, f16};

/// What values are rounded to, to nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// bf16: eight bits, the range of f32.
    Bf16,
    /// f16: eleven bits up to 65504, above which is infinity; below 2⁻¹⁴ multiples of 2⁻²⁴.
    F16,
}

/// Rows of one task.
const TILE_ROWS: usize = 64;

impl Rounding {
    /// Rounds a matrix; one that is stored in 16 bits is rounded already. The CPU's: it blocks
    /// until done and allocates nothing.
    pub fn round(self, stream: &Stream, mat: &Mat) {
        if mat.dtype() != DType::F32 {
            return;
        }
        let mut mat = mat.write::<f32>();
        for_each_row(stream.pool(), mat.view(), TILE_ROWS, |_, row| self.round_all(row));
    }

    /// Writes a rounded copy of `from` to `to`, which has its shape, and its type or that of the
    /// rounded values.
    pub fn copy(self, stream: &Stream, from: &Mat, to: &Mat) {
        let from = from.read::<f32>();
        if to.dtype() == DType::Bf16 {
            let mut to = to.write();
            return for_each_row(stream.pool(), to.view(), TILE_ROWS, |index, row| {
                bf16::compress(from.row(index), row);
            });
        }
        let mut to = to.write::<f32>();
        for_each_row(stream.pool(), to.view(), TILE_ROWS, |index, row| {
            row.copy_from_slice(from.row(index));
            self.round_all(row);
        });
    }

    /// Rounds each of `values`.
    pub fn round_all(self, values: &mut [f32]) {
        match self {
            Rounding::Bf16 => bf16::round_in_place(values),
            Rounding::F16 => f16::round_in_place(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{frozen, values};
    use half::{bf16, f16};

    /// Every upper half of an f32, with lower halves on both sides of ties and on them.
    fn inputs() -> impl Iterator<Item = f32> {
        let lower =
            [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
        (0..=u32::from(u16::MAX))
            .flat_map(move |upper| lower.map(|lower| f32::from_bits(upper << 16 | lower)))
    }

    fn same(got: f32, expected: f32) -> bool {
        got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan())
    }

    #[test]
    fn every_kind_of_number_is_rounded_as_the_formats_say() {
        for input in inputs() {
            let of = |rounding: Rounding| {
                let mut value = [input];
                rounding.round_all(&mut value);
                value[0]
            };
            let (bf, f) = (bf16::from_f32(input).to_f32(), f16::from_f32(input).to_f32());
            assert!(
                same(of(Rounding::Bf16), bf),
                "{input:e} to bf16: {:e}, not {bf:e}",
                of(Rounding::Bf16)
            );
            assert!(
                same(of(Rounding::F16), f),
                "{input:e} to f16: {:e}, not {f:e}",
                of(Rounding::F16)
            );
        }
    }

    #[test]
    fn matrices_are_rounded_where_they_lie_and_as_copies() {
        let data: Vec<f32> = inputs().filter(|value| value.is_finite()).take(130 * 9).collect();
        let (mat, copy) = (frozen("x", 130, 9, &data), frozen("copy", 130, 9, &[]));
        let stream = Stream::cpu(3);
        for rounding in [Rounding::Bf16, Rounding::F16] {
            mat.copy_from(&data).unwrap();
            rounding.copy(&stream, &mat, &copy);
            assert_eq!(values(&mat), data, "the source stays");
            rounding.round(&stream, &mat);
            assert_eq!(values(&mat), values(&copy));
            assert_ne!(values(&mat), data);
        }
    }
}
