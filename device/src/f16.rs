//! f32 as f16: eleven bits up to 65504, above which is infinity; below 2⁻¹⁴ multiples of 2⁻²⁴. To
//! nearest, ties to even.

use crate::vectorized;

/// Bits of an f32 that a normal f16 has not.
const DROPPED: u32 = 13;
/// 2⁻¹⁴, the smallest normal number of f16, and the first that it rounds to infinity.
const NORMAL: f32 = 6.103_515_6e-5;
const BEYOND: f32 = 65520.0;

/// The nearest f16, ties to even, as f32.
#[inline(always)]
pub fn nearest(value: f32) -> f32 {
    let magnitude = value.abs();
    let bits = magnitude.to_bits();
    // Half a unit in the last of the places that stay, less one where that place is even: added,
    // and the rest cut off. A carry into the exponent is right, too.
    let half = (1 << (DROPPED - 1)) - 1 + (bits >> DROPPED & 1);
    let cut = bits.wrapping_add(half) >> DROPPED << DROPPED;
    // Between ½ and 1 the last place is 2⁻²⁴: the sum is rounded to it.
    let small = (magnitude + 0.5) - 0.5;
    let finite = if magnitude < NORMAL { small } else { f32::from_bits(cut) };
    let rounded = if magnitude >= BEYOND { f32::INFINITY } else { finite };
    if value.is_nan() { f32::NAN } else { rounded.copysign(value) }
}

vectorized! {
    /// Rounds `values` where they are.
    pub fn round_in_place(values: &mut [f32]) {
        for value in values {
            *value = nearest(*value);
        }
    }
}
