//! How much longer strips are than what is needed: they have one length for all pairs of ranks,
//! that of the fullest, rounded up to a class.

use headlong_embedding::hybrid::StripSizes;

/// What pairs of ranks need of each other in one exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pairs {
    /// Elements, or words, of the mean pair.
    pub mean: f64,
    /// Mean of the pairs of the busiest owner.
    pub busiest: f64,
    pub variance: f64,
    pub number: f64,
}

/// Euler's constant, by which the mean of the largest of many draws lies above where one is
/// expected.
const EULER: f64 = 0.577_215_664_9;

impl Pairs {
    /// What the fullest needs: the mean of the largest of so many normal draws.
    fn fullest(&self) -> f64 {
        let logarithm = self.number.max(2.0).ln();
        let root = (2.0 * logarithm).sqrt();
        let correction = (logarithm.ln() + (4.0 * std::f64::consts::PI).ln()) / 2.0 - EULER;
        let deviations = (root - correction / root).max(0.0);
        self.busiest + deviations * self.variance.sqrt()
    }

    fn share(&self, len: usize) -> f64 {
        if self.mean > 0.0 { len as f64 / self.mean } else { 1.0 }
    }

    /// Sent over needed, of vectors and of gradients: their length is known.
    pub(crate) fn of_vectors(&self) -> f64 {
        let elements = self.fullest().ceil() as usize;
        let sizes = StripSizes { elements, ..StripSizes::default() };
        self.share(sizes.class(LARGEST).elements)
    }

    /// The same of requests, which travel in strips as long as the batch before needed, and a
    /// little longer.
    pub(crate) fn of_requests(&self) -> f64 {
        let id_words = self.fullest().ceil() as usize;
        let sizes = StripSizes { id_words, ..StripSizes::default() };
        self.share(sizes.class_for_another(LARGEST).id_words)
    }
}

const LARGEST: StripSizes =
    StripSizes { id_words: usize::MAX, elements: usize::MAX, inside: [usize::MAX; 2] };

#[cfg(test)]
mod tests {
    use super::*;
    use headlong_device::rng::CounterRng;

    #[test]
    fn the_fullest_of_many_pairs_is_about_the_largest_draw() {
        let (number, draws) = (56_usize, 400_u64);
        // Sums of 64 zeros and ones: mean 32, variance 16.
        let ones = |of: u64| {
            let bits = CounterRng::new(3, 0).bits(of);
            f64::from(bits[0].count_ones() + bits[1].count_ones())
        };
        let largest = |draw: u64| {
            let pairs = (0..number as u64).map(|pair| ones(draw * number as u64 + pair));
            pairs.fold(0.0, f64::max)
        };
        let mean: f64 = (0..draws).map(largest).sum::<f64>() / draws as f64;
        let pairs = Pairs { mean: 32.0, busiest: 32.0, variance: 16.0, number: number as f64 };
        let fullest = pairs.fullest();
        assert!((fullest / mean - 1.0).abs() < 0.02, "{fullest} and {mean}");
    }

    #[test]
    fn strips_are_the_less_longer_the_more_a_pair_needs() {
        let ratio = |mean: f64| {
            let pairs = Pairs { mean, busiest: mean, variance: mean, number: 56.0 };
            (pairs.of_vectors(), pairs.of_requests())
        };
        let (small, large) = (ratio(1e3), ratio(1e6));
        assert!(large.0 >= 1.0 && large.0 < 1.0 + 1.0 / 16.0 + 0.01 && small.0 > large.0);
        assert!(large.1 > large.0, "requests travel in longer strips: {large:?}");
    }
}
