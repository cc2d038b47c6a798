//! Random numbers of a seed.

/// SplitMix64: every seed is as good as any other.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    seed: u64,
}

impl Random {
    /// The numbers of `seed` for `name`: formats do not share them.
    pub fn new(name: &str, seed: u64) -> Self {
        Self { state: xxhash_rust::xxh3::xxh3_64_with_seed(name.as_bytes(), seed), seed }
    }

    /// The seed that it began with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 where `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.number().checked_rem(end as u64).unwrap_or(0) as usize
    }

    /// True once in `count`.
    pub fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of `items`, of which there is at least one.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
