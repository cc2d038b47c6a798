//! f32 as bf16: the upper half of its bits, rounded to nearest, ties to even. Numbers above the
//! largest bf16 become infinite; what is not a number stays so.

use crate::vectorized;
use half::bf16;

/// To nearest, ties to even.
#[inline(always)]
pub fn round(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // A carry out of the mantissa of something that is not a number could make it infinite.
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16)
}

/// The same number as f32.
#[inline(always)]
pub fn widen(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// The nearest bf16, ties to even, as f32.
#[inline(always)]
pub fn nearest(value: f32) -> f32 {
    widen(round(value))
}

vectorized! {
    /// Rounds `from` into `into`, which is as long.
    pub fn compress(from: &[f32], into: &mut [bf16]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into = round(*from);
        }
    }

    /// Widens `from` into `into`, which is as long.
    pub fn expand(from: &[bf16], into: &mut [f32]) {
        for (into, from) in into.iter_mut().zip(from) {
            *into = widen(*from);
        }
    }

    /// Rounds `values` where they are.
    pub fn round_in_place(values: &mut [f32]) {
        for value in values {
            *value = nearest(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All upper halves with the lower halves around the ties, and the oracle of `half`.
    #[test]
    fn rounds_as_half_does() {
        for upper in 0..=0xffffu32 {
            let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
            let values = lower.map(|lower| f32::from_bits(upper << 16 | lower));
            let mut rounded = [bf16::ZERO; 6];
            compress(&values, &mut rounded);
            for (value, rounded) in values.iter().zip(rounded) {
                assert_eq!(
                    rounded.to_bits(),
                    bf16::from_f32(*value).to_bits(),
                    "{:#x}",
                    value.to_bits()
                );
            }
            let mut widened = [0.0; 6];
            expand(&rounded, &mut widened);
            let mut in_place = values;
            round_in_place(&mut in_place);
            assert_eq!(widened.map(f32::to_bits), in_place.map(f32::to_bits));
            assert_eq!(widened.map(f32::to_bits), rounded.map(|value| value.to_f32().to_bits()));
        }
    }
}
