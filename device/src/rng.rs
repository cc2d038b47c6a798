//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
//! 1, 2, 3", SC'11).
//!
//! A number depends only on (seed, stream, index). So initial values depend on seed, table and
//! row, never on placement or on the order in which threads ask.

/// What the first and the third word of a counter are multiplied by.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What a round adds to the words of the key.
pub const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
/// How many rounds there are.
pub const ROUNDS: usize = 10;

/// Ten rounds of Philox4x32: four random words from a 128-bit counter and a 64-bit key.
#[inline(always)]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
    }
    counter
}

/// A reproducible source: every index is a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRng {
    key: [u32; 2],
    stream: u64,
}

impl CounterRng {
    /// The numbers of `stream` (say, a table) under `seed`.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], stream }
    }

    /// The seed, for kernels that make the same numbers.
    pub fn seed(&self) -> u64 {
        u64::from(self.key[1]) << 32 | u64::from(self.key[0])
    }

    /// The stream, likewise.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// Four random words at `index`.
    #[inline]
    pub fn bits(&self, index: u64) -> [u32; 4] {
        let counter =
            [index as u32, (index >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        philox4x32(counter, self.key)
    }

    /// A uniform number in [0, 1): 24 random bits.
    #[inline]
    pub fn uniform(&self, index: u64) -> f32 {
        unit(self.bits(index / 4)[(index % 4) as usize])
    }

    /// A normal number of mean 0 and deviation 1 (Box–Muller, in f64).
    pub fn normal(&self, index: u64) -> f32 {
        let [a, b, c, d] = self.bits(index);
        let radius_bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
        let angle_bits = (u64::from(c) << 32 | u64::from(d)) >> 11;
        let scale = 1.0 / (1_u64 << 53) as f64;
        // (0, 1], so that the logarithm is finite.
        let radius = (-2.0 * ((radius_bits + 1) as f64 * scale).ln()).sqrt();
        (radius * (std::f64::consts::TAU * angle_bits as f64 * scale).cos()) as f32
    }

    /// Fills `out` with uniform numbers in [low, high): element `i` is number `first + i` of the
    /// stream.
    pub fn fill_uniform(&self, first: u64, low: f32, high: f32, out: &mut [f32]) {
        let scale = high - low;
        let mut words = [0; 4];
        for (i, value) in out.iter_mut().enumerate() {
            let index = first + i as u64;
            if i == 0 || index.is_multiple_of(4) {
                words = self.bits(index / 4);
            }
            *value = low + scale * unit(words[(index % 4) as usize]);
        }
    }
}

#[inline]
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the reference implementation (Random123, `kat_vectors`).
    #[test]
    fn philox_known_answers() {
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        let ones = u32::MAX;
        assert_eq!(
            philox4x32([ones; 4], [ones; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let digits_of_pi = philox4x32(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
        );
        assert_eq!(digits_of_pi, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn filling_equals_asking_one_by_one() {
        let rng = CounterRng::new(7, 3);
        let mut filled = [0.0; 19];
        rng.fill_uniform(5, -2.0, 2.0, &mut filled);
        for (i, &value) in filled.iter().enumerate() {
            assert_eq!(value, -2.0 + 4.0 * rng.uniform(5 + i as u64));
        }
    }

    #[test]
    fn moments_of_the_normal_numbers() {
        let rng = CounterRng::new(1, 0);
        let n = 100_000;
        let (mut sum, mut squares) = (0.0_f64, 0.0_f64);
        for i in 0..n {
            let x = f64::from(rng.normal(i));
            sum += x;
            squares += x * x;
        }
        // Five standard errors of the mean and of the variance.
        assert!((sum / n as f64).abs() < 5.0 / (n as f64).sqrt());
        assert!((squares / n as f64 - 1.0).abs() < 5.0 * (2.0 / n as f64).sqrt());
    }
}
