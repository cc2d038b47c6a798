//! The Mersenne Twister MT19937, and the draws of numpy's `RandomState` from it.

const LEN: usize = 624;
/// Distance between the two words that a new one is made of.
const SHIFT: usize = 397;
const BEHIND: usize = LEN - SHIFT;
/// Words that are looked at together: a few vectors.
const PIECE: usize = 104;
/// Words of a [`Mt19937::mark`].
pub const MARK_WORDS: usize = LEN + 1;

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
            state[index] =
                1_812_433_253_u32.wrapping_mul(before ^ before >> 30).wrapping_add(index as u32);
        }
        Self { state, next: LEN }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        if self.next == LEN {
            self.twist();
        }
        let bits = tempered(self.state[self.next]);
        self.next += 1;
        bits
    }

    /// Writes the generator as it is now after what `mark` holds: 624 words of state, and which of
    /// them is next.
    pub fn mark(&self, mark: &mut Vec<u32>) {
        mark.extend_from_slice(&*self.state);
        mark.push(self.next as u32);
    }

    /// The generator as it was at [`Self::mark`].
    ///
    /// # Panics
    /// If the words are no mark.
    pub fn go_to(&mut self, mark: &[u32]) {
        assert!(
            mark.len() == MARK_WORDS && mark[LEN] as usize <= LEN,
            "a state and where it stands"
        );
        self.state.copy_from_slice(&mark[..LEN]);
        self.next = mark[LEN] as usize;
    }

    /// Leaves out `count` numbers of [`Self::below`]: to the same place except for words that the
    /// next of them would be drawn past.
    ///
    /// # Panics
    /// As [`Self::below`].
    pub fn skip_below(&mut self, end: u64, mut count: u64) {
        let Some((last, mask)) = last_and_mask(end) else { return };
        while count > 0 {
            if self.next == LEN {
                self.twist();
            }
            // Whole pieces at once: the compiler makes vectors of the count.
            let rest = &self.state[self.next..];
            let piece = &rest[..rest.len().min(PIECE)];
            let fitting =
                piece.iter().filter(|&&word| tempered(word) & mask <= last).count() as u64;
            if fitting > count {
                (0..count).for_each(|_| _ = self.below(end));
                return;
            }
            self.next += piece.len();
            count -= fitting;
        }
    }

    /// Leaves out `count` words of 32 bits.
    pub fn skip_bits(&mut self, mut count: u64) {
        while count > (LEN - self.next) as u64 {
            count -= (LEN - self.next) as u64;
            self.twist();
        }
        self.next += count as usize;
    }

    /// Below `end`, as `numpy.random.randint(0, end)`: bits under a mask, drawn again until one
    /// fits.
    ///
    /// # Panics
    /// If `end` is 0 or above 2³².
    pub fn below(&mut self, end: u64) -> u32 {
        // Nothing is drawn for the only number there is.
        let Some((last, mask)) = last_and_mask(end) else { return 0 };
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

    /// The next 624 words. Each is made of one that stands 397 after it, or 227 before: three runs
    /// whose words do not depend on each other, of which the compiler makes vectors.
    fn twist(&mut self) {
        let state = &mut *self.state;
        let (low, high) = state.split_at_mut(BEHIND);
        let far = &high[SHIFT - BEHIND..][..BEHIND];
        for index in 0..BEHIND - 1 {
            low[index] = twisted(low[index], low[index + 1], far[index]);
        }
        low[BEHIND - 1] = twisted(low[BEHIND - 1], high[0], far[BEHIND - 1]);
        for first in (BEHIND..LEN - 1).step_by(BEHIND) {
            let (before, here) = state.split_at_mut(first);
            let far = &before[first - BEHIND..];
            for index in 0..BEHIND.min(LEN - 1 - first) {
                here[index] = twisted(here[index], here[index + 1], far[index]);
            }
        }
        state[LEN - 1] = twisted(state[LEN - 1], state[0], state[SHIFT - 1]);
        self.next = 0;
    }
}

/// What a word of the state comes to as a number.
#[inline(always)]
fn tempered(mut bits: u32) -> u32 {
    bits ^= bits >> 11;
    bits ^= bits << 7 & 0x9d2c_5680;
    bits ^= bits << 15 & 0xefc6_0000;
    bits ^ bits >> 18
}

#[inline(always)]
fn twisted(word: u32, next: u32, far: u32) -> u32 {
    let joined = word & 0x8000_0000 | next & 0x7fff_ffff;
    far ^ joined >> 1 ^ (joined & 1).wrapping_neg() & 0x9908_b0df
}

/// The last number below `end`, and the bits that it may have; none where there is only one number.
fn last_and_mask(end: u64) -> Option<(u32, u32)> {
    let last = u32::try_from(end - 1).expect("numpy draws 32 bits for ends up to 2^32");
    (last > 0).then(|| (last, u32::MAX >> last.leading_zeros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 10,000th number of the reference implementation's default seed, as the C++ standard
    /// states it.
    #[test]
    fn the_ten_thousandth_number() {
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.bits()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    /// Left out or drawn: the same numbers follow. 624 words are no multiple of any count here.
    #[test]
    fn numbers_may_be_left_out() {
        for (end, count) in
            [(1, 5), (2, 1000), (7, 624), (40_000_000, 3), (65_536, 10_000), (33_000_000, 777)]
        {
            let (mut drawn, mut skipped) = (Mt19937::new(3), Mt19937::new(3));
            (0..count).for_each(|_| _ = drawn.below(end));
            skipped.skip_below(end, count);
            let [drawn, skipped] =
                [drawn, skipped].map(|mut it| (0..100).map(|_| it.below(end)).collect::<Vec<_>>());
            assert_eq!(drawn, skipped, "{count} below {end}");
        }
        for count in [0, 1, 623, 624, 625, 10_000] {
            let (mut drawn, mut skipped) = (Mt19937::new(3), Mt19937::new(3));
            (0..count).for_each(|_| _ = drawn.bits());
            skipped.skip_bits(count);
            assert_eq!(drawn.bits(), skipped.bits(), "{count} words");
        }
    }

    #[test]
    fn a_mark_leads_back() {
        let mut random = Mt19937::new(5);
        random.skip_bits(1000);
        let mut mark = Vec::new();
        random.mark(&mut mark);
        assert_eq!(mark.len(), MARK_WORDS);
        let expected: Vec<u32> = (0..2000).map(|_| random.bits()).collect();
        random.go_to(&mark);
        assert_eq!((0..2000).map(|_| random.bits()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_number_needs_no_draw() {
        let (mut a, mut b) = (Mt19937::new(1), Mt19937::new(1));
        assert_eq!(a.below(1), 0);
        assert_eq!(a.bits(), b.bits());
    }
}
