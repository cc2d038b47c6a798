//! Strips: what travels of the slots that ranks on devices have for each other. How long they must
//! be is known once a batch is routed, on the device; the host hears of it while the batch is still
//! ahead, so that the exchanges of its step send no more.

use headlong_device::cuda::Pinned;

/// Bits of a length that count in its class: classes are at most a sixteenth apart.
const CLASS_BITS: u32 = 5;

/// Lengths of strips: for every pair of ranks the same, on all ranks the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StripSizes {
    /// Of requests, in words of 4 bytes; where nodes merge them, between nodes.
    pub id_words: usize,
    /// Of vectors, and of gradients on their way back, in elements; likewise.
    pub elements: usize,
    /// Both inside nodes, where these merge requests; else 0.
    pub inside: [usize; 2],
}

/// The smallest length of a class that is not below `len`.
fn class_of(len: usize, grain: usize) -> usize {
    let bits = usize::BITS - len.leading_zeros();
    len.next_multiple_of((1_usize << bits.saturating_sub(CLASS_BITS)).max(grain))
}

impl StripSizes {
    /// What a batch with `factor` times as many samples needs at most, more or less: distinct rows
    /// grow no faster than samples, and about as their square root at least.
    pub fn at_most_for(self, factor: f64) -> Self {
        let times = if factor < 1.0 { factor.max(0.0).sqrt() } else { factor };
        let grown = |len: usize| (len as f64 * times).ceil() as usize;
        self.map(|len, _| grown(len))
    }

    /// The smallest lengths of classes that are not below these, nor above `largest`. There are few
    /// classes, so that steps over batches of about the same size send strips of the same lengths.
    pub fn class(self, largest: Self) -> Self {
        self.map(class_of).at_most(largest)
    }

    /// Each length changed, which is a multiple of so many in slots.
    fn map(self, change: impl Fn(usize, usize) -> usize) -> Self {
        let Self { id_words, elements, inside: [words_inside, elements_inside] } = self;
        Self {
            id_words: change(id_words, 4),
            elements: change(elements, 16),
            inside: [change(words_inside, 4), change(elements_inside, 16)],
        }
    }

    /// No length above that of `largest`.
    pub(super) fn at_most(self, largest: Self) -> Self {
        Self {
            id_words: self.id_words.min(largest.id_words),
            elements: self.elements.min(largest.elements),
            inside: [0, 1].map(|i| self.inside[i].min(largest.inside[i])),
        }
    }

    /// Whether requests in strips of these lengths are short of what they need.
    pub fn cuts(self, needed: Self) -> bool {
        needed.id_words > self.id_words || needed.inside[0] > self.inside[0]
    }

    /// Likewise, a little longer: for a batch that is about as large as the one that needed these.
    pub fn class_for_another(self, largest: Self) -> Self {
        self.map(|len, _| len + len.div_ceil(16)).class(largest)
    }
}

/// What a device tells the host of a batch's strips: `Told` in exchange.cu.
#[derive(Debug)]
pub(super) struct Told(pub(super) Pinned);

impl Told {
    pub(super) const BYTES: usize = 20;

    /// Until the device tells again; it has told.
    pub(super) fn forget(&self) {
        self.0.put(0, &[0_u32]);
    }

    /// What the batch of this generation needs, once the device has told.
    pub(super) fn of(&self, generation: u32) -> Option<StripSizes> {
        let word = |index| self.0.load_acquire(index) as usize;
        (self.0.load_acquire(0) == generation).then(|| StripSizes {
            id_words: word(1),
            elements: word(2),
            inside: [word(3), word(4)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_close_few_and_never_too_short() {
        let (id_words, elements) = (1 << 20, 1 << 24);
        let largest = StripSizes { id_words, elements, inside: [1 << 20, 1 << 24] };
        let mut classes = std::collections::BTreeSet::new();
        for len in (1..300_000).step_by(7) {
            let sizes = StripSizes { id_words: len, elements: 32 * len, inside: [len, 32 * len] };
            let class = sizes.class(largest);
            assert!(class.id_words >= len && class.id_words <= len + len / 16 + 4, "{len}");
            assert!(class.elements >= 32 * len && class.elements <= 34 * len + 16, "{len}");
            assert_eq!(class.class(largest), class);
            assert_eq!(class.inside, [class.id_words, class.elements]);
            let more = sizes.class_for_another(largest);
            assert!(more.id_words >= len + len / 16 && more.elements >= class.elements);
            classes.insert(class.id_words);
        }
        assert!(classes.len() < 32 * 19, "{}", classes.len());
        let small = StripSizes { id_words: 100, elements: 1000, inside: [0; 2] };
        assert_eq!(largest.class(small), small, "no strip is longer than its slot");
    }
}
