//! The seed's numbers.

/// A small generator of even quality (SplitMix64, Steele, Lea and Flood 2014): one addition and a
/// mix per number.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed. Neighbouring seeds have unrelated sequences.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x6a09_e667_f3bc_c908))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number from 0 to below `end`; 0 where `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Spreads every bit over all bits.
pub(super) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_range_and_follow_the_seed() {
        let (mut one, mut same, mut other) = (Random::new(1), Random::new(1), Random::new(2));
        let mut differ = 0;
        for end in 1..1000 {
            let number = one.below(end);
            assert!(number < end);
            assert_eq!(number, same.below(end));
            differ += usize::from(number != other.below(end));
            assert!((3..=5).contains(&one.between(3, 5)) && (3..=5).contains(&same.between(3, 5)));
            other.next_u64();
        }
        assert!(differ > 900);
        assert_eq!(one.below(0), 0);
    }
}
