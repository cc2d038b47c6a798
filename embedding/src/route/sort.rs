//! A stable radix sort of words by some of their bits (Knuth, TAOCP 3, 5.2.5).

/// Widest digit of the sort: its counts stay in the first-level cache.
const MAX_DIGIT_BITS: u32 = 11;

/// Sorts words by the `high_bits` bits above the lowest `low_bits`, as many digits as those need.
#[derive(Debug)]
pub(crate) struct RadixSort {
    digits: Vec<Digit>,
    counts: Vec<u32>,
}

/// One pass of the sort: `key >> shift & mask`, counted from `first_count` on.
#[derive(Debug, Clone, Copy)]
struct Digit {
    shift: u32,
    mask: u64,
    first_count: usize,
}

impl Digit {
    #[inline(always)]
    fn of(self, key: u64) -> usize {
        (key >> self.shift & self.mask) as usize
    }
}

impl RadixSort {
    pub(crate) fn new(high_bits: u32, low_bits: u32) -> Self {
        let passes = high_bits.div_ceil(MAX_DIGIT_BITS);
        let width = high_bits.div_ceil(passes.max(1));
        let digits: Vec<_> = (0..passes)
            .map(|pass| Digit {
                shift: low_bits + pass * width,
                mask: (1 << width) - 1,
                first_count: (pass as usize) << width,
            })
            .collect();
        Self { counts: vec![0; digits.len() << width], digits }
    }

    /// Sorts the first `len` keys; equal digits keep their order. `spare` is as long as `keys`, the
    /// two may change places.
    pub(crate) fn sort(&mut self, keys: &mut Vec<u64>, spare: &mut Vec<u64>, len: usize) {
        self.counts.fill(0);
        for digit in &self.digits {
            let counts = &mut self.counts[digit.first_count..][..=digit.mask as usize];
            for &key in &keys[..len] {
                counts[digit.of(key)] += 1;
            }
            let mut before = 0;
            for count in counts.iter_mut() {
                before += std::mem::replace(count, before);
            }
        }
        for digit in &self.digits {
            let counts = &mut self.counts[digit.first_count..][..=digit.mask as usize];
            let sorted = &mut spare[..len];
            for &key in &keys[..len] {
                let place = &mut counts[digit.of(key)];
                sorted[*place as usize] = key;
                *place += 1;
            }
            std::mem::swap(keys, spare);
        }
    }
}
