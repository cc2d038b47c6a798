//! The Mersenne Twister MT19937, and the draws of numpy's `RandomState` from it.

/// Words of state.
const LEN: usize = 624;
/// Distance between the two words that a new one is made of.
const SHIFT: usize = 397;

/// The generator.
#[derive(Clone, Debug)]
pub struct Mt19937 {
    state: Box<[u32; LEN]>,
    next: usize,
}

impl Mt19937 {
    /// As `numpy.random.seed(seed)`: Knuth's multiplier fills the state.
    pub fn new(seed: u32) -> Self {
        let mut state = Box::new([seed; LEN]);
        for index in 1..LEN {
            let before = state[index - 1];
            state[index] = 1_812_433_253_u32.wrapping_mul(before ^ before >> 30).wrapping_add(index as u32);
        }
        Self { state, next: LEN }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        if self.next == LEN {
            self.twist();
        }
        let mut bits = self.state[self.next];
        self.next += 1;
        bits ^= bits >> 11;
        bits ^= bits << 7 & 0x9d2c_5680;
        bits ^= bits << 15 & 0xefc6_0000;
        bits ^ bits >> 18
    }

    /// Below `end`, as `numpy.random.randint(0, end)`: bits under a mask, drawn again until one fits.
    ///
    /// # Panics
    /// If `end` is 0 or above 2³².
    pub fn below(&mut self, end: u64) -> u32 {
        let last = u32::try_from(end - 1).expect("numpy draws 32 bits for ends up to 2^32");
        if last == 0 {
            // Nothing is drawn for the only number there is.
            return 0;
        }
        let mask = u32::MAX >> last.leading_zeros();
        loop {
            let bits = self.bits() & mask;
            if bits <= last {
                return bits;
            }
        }
    }

    /// In [0, 1), with 53 bits.
    pub fn unit(&mut self) -> f64 {
        let (high, low) = (self.bits() >> 5, self.bits() >> 6);
        (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
    }

    /// As `numpy.random.pareto(shape)`: `exp(e / shape) − 1` of a standard exponential e.
    pub fn pareto(&mut self, shape: f64) -> f64 {
        (-(1.0 - self.unit()).ln() / shape).exp() - 1.0
    }

    fn twist(&mut self) {
        for index in 0..LEN {
            let joined = self.state[index] & 0x8000_0000 | self.state[(index + 1) % LEN] & 0x7fff_ffff;
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + SHIFT) % LEN] ^ joined >> 1 ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 10,000th number of the reference implementation's default seed, as the C++ standard states it.
    #[test]
    fn the_ten_thousandth_number() {
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.bits()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn one_number_needs_no_draw() {
        let (mut a, mut b) = (Mt19937::new(1), Mt19937::new(1));
        assert_eq!(a.below(1), 0);
        assert_eq!(a.bits(), b.bits());
    }
}
