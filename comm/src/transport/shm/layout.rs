//! Where everything lies in the memory of a node.

/// Whole pages on every machine: the largest there are have 64 KiB.
pub const PAGE: usize = 64 << 10;
/// All rings of a node together take about this much, as long as each has [`SMALLEST_RING`].
const BUDGET: usize = 64 << 20;
const SMALLEST_RING: usize = PAGE;
/// Larger rings fall out of the cache between writer and reader.
const LARGEST_RING: usize = 1 << 20;

/// Bytes of the part that says what all must agree on.
const HEAD: usize = 4096;
/// Bytes of a header, and what messages are filled up to.
pub const LINE: usize = 64;
/// Long messages pass in chunks of this many bytes: the reader copies one while the writer writes
/// the next.
pub const CHUNK: usize = 32 << 10;
/// Bytes of a doorbell: it shares no cache line with another, nor a pair of lines that is fetched
/// together.
const DOORBELL: usize = 128;
/// Bytes of a pair's counters: the writer's and the reader's.
pub const COUNTERS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub num_local: usize,
    pub ring_bytes: usize,
}

impl Layout {
    /// For a node of `num_local` ranks: the same on all of them.
    pub fn new(num_local: usize) -> Self {
        let pairs = (num_local * num_local.saturating_sub(1)).max(1);
        let share = BUDGET / pairs;
        let power = if share.is_power_of_two() { share } else { share.next_power_of_two() / 2 };
        Self { num_local, ring_bytes: power.clamp(SMALLEST_RING, LARGEST_RING) }
    }

    /// The longest message that the reader is shown all at once, while the writer continues with
    /// the next.
    pub fn in_place_bytes(&self) -> usize {
        self.ring_bytes / 2 - LINE
    }

    pub fn doorbell(&self, local: usize) -> usize {
        HEAD + local * DOORBELL
    }

    fn pair(&self, from: usize, to: usize) -> usize {
        assert!(
            from != to && from < self.num_local && to < self.num_local,
            "a ring joins two ranks of the node"
        );
        from * (self.num_local - 1) + to - usize::from(to > from)
    }

    pub fn counters(&self, from: usize, to: usize) -> usize {
        self.doorbell(self.num_local) + self.pair(from, to) * COUNTERS
    }

    pub fn control_bytes(&self) -> usize {
        let pairs = self.num_local * (self.num_local - 1);
        (self.doorbell(self.num_local) + pairs * COUNTERS).next_multiple_of(PAGE)
    }

    pub fn ring(&self, from: usize, to: usize) -> usize {
        self.control_bytes() + self.pair(from, to) * self.ring_bytes
    }

    pub fn total_bytes(&self) -> usize {
        self.control_bytes() + self.num_local * (self.num_local - 1) * self.ring_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_everything_is_inside() {
        for ranks in [2, 3, 4, 7, 8, 16, 64] {
            let layout = Layout::new(ranks);
            assert!(
                layout.ring_bytes.is_power_of_two() && layout.ring_bytes.is_multiple_of(PAGE),
                "{layout:?}"
            );
            let pairs = || (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
            let pairs = || pairs().filter(|(from, to)| from != to);
            let doorbells = (0..ranks).map(|rank| (layout.doorbell(rank), DOORBELL));
            let counters = pairs().map(|(from, to)| (layout.counters(from, to), COUNTERS));
            let rings = pairs().map(|(from, to)| (layout.ring(from, to), layout.ring_bytes));
            let mut places: Vec<_> =
                doorbells.chain(counters).chain(rings).chain([(0, HEAD)]).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{ranks} ranks");
            assert_eq!(places.last().map(|(start, len)| start + len), Some(layout.total_bytes()));
            assert!(layout.ring(0, 1).is_multiple_of(PAGE));
        }
        assert_eq!(Layout::new(2).ring_bytes, LARGEST_RING);
        assert_eq!(Layout::new(64).ring_bytes, SMALLEST_RING);
    }
}
