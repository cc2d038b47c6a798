//! Batches that lie ready in memory: Zipf-distributed ids, log-normal-like dense features, labels
//! that follow them.

use super::shapes::{NUM_DENSE, Shape};
use headlong_device::rng::CounterRng;
use headlong_reader::{Batch, Jagged, Offsets};

pub const ZIPF_EXPONENT: f64 = 1.05;

/// Batches kept for a batch size: enough that tables do not stay in the caches; fewer where samples
/// have many ids.
pub fn default_batches(shape: &Shape, batch_size: usize) -> usize {
    let ids: usize = shape.hotness.iter().map(|&count| count as usize).sum();
    let samples = 262_144 * shape.hotness.len() / ids.max(1);
    (samples / batch_size.max(1)).clamp(8, 256)
}

/// Draws ranks 1..=n with probability proportional to rank^-s, by rejection-inversion (Hörmann and
/// Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
/// 1996): no table of n numbers.
#[derive(Debug, Clone, Copy)]
pub struct Zipf {
    exponent: f64,
    num_ranks: f64,
    low: f64,
    high: f64,
    accept: f64,
}

impl Zipf {
    /// The distribution over `num_ranks` ranks; `exponent` is 0 (all alike) or more.
    pub fn new(num_ranks: u64, exponent: f64) -> Self {
        let num_ranks = num_ranks.max(1) as f64;
        // The integral of 1/x has another form than all others; this difference is below what a
        // bench shows.
        let exponent = if (exponent - 1.0).abs() < 1e-6 { 1.0 + 1e-6 } else { exponent };
        let mut zipf = Self { exponent, num_ranks, low: 0.0, high: 0.0, accept: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(num_ranks + 0.5);
        zipf.accept = 2.0 - zipf.inverse(zipf.integral(2.5) - 2.0_f64.powf(-exponent));
        zipf
    }

    /// A rank from uniform numbers in [0, 1) that `next` supplies.
    pub fn draw(&self, mut next: impl FnMut() -> f64) -> u64 {
        loop {
            let u = self.high + next() * (self.low - self.high);
            let x = self.inverse(u);
            let rank = x.round().clamp(1.0, self.num_ranks);
            let sure = rank - x <= self.accept;
            if sure || u >= self.integral(rank + 0.5) - rank.powf(-self.exponent) {
                return rank as u64;
            }
        }
    }

    fn integral(&self, x: f64) -> f64 {
        x.powf(1.0 - self.exponent) / (1.0 - self.exponent)
    }

    fn inverse(&self, y: f64) -> f64 {
        (y * (1.0 - self.exponent)).powf(1.0 / (1.0 - self.exponent))
    }
}

/// Uniform f64 numbers in a row.
struct Uniforms {
    rng: CounterRng,
    index: u64,
}

impl Uniforms {
    fn new(seed: u64, stream: u64) -> Self {
        Self { rng: CounterRng::new(seed, stream), index: 0 }
    }

    fn next(&mut self) -> f64 {
        let [a, b, ..] = self.rng.bits(self.index);
        self.index += 1;
        ((u64::from(a) << 21) ^ u64::from(b >> 11)) as f64 / (1_u64 << 53) as f64
    }
}

/// Scatters ranks over a table of `rows` rows by a fixed affine map, so that frequent rows do not
/// lie side by side.
#[derive(Debug, Clone, Copy)]
pub struct Scatter {
    rows: u64,
    factor: u64,
}

impl Scatter {
    pub fn new(rows: u64) -> Self {
        let mut factor = 2_654_435_761;
        while greatest_common_divisor(factor, rows) != 1 {
            factor += 2;
        }
        Self { rows, factor }
    }

    /// The row of a rank counted from 0.
    pub fn row(&self, rank: u64) -> u64 {
        ((u128::from(rank) * u128::from(self.factor) + 12_345) % u128::from(self.rows)) as u64
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// `count` row indices of a table of `rows` rows.
pub fn zipf_rows(seed: u64, table: u64, rows: u64, count: usize) -> Vec<u64> {
    power_law_rows(seed, table, rows, count, ZIPF_EXPONENT)
}

/// `count` row indices of a table of `rows` rows, the k-th most frequent in proportion to
/// k^-`exponent`.
pub fn power_law_rows(seed: u64, table: u64, rows: u64, count: usize, exponent: f64) -> Vec<u64> {
    let (zipf, scatter) = (Zipf::new(rows, exponent), Scatter::new(rows));
    let mut uniforms = Uniforms::new(seed, table);
    (0..count).map(|_| scatter.row(zipf.draw(|| uniforms.next()) - 1)).collect()
}

/// `num_batches` batches of `batch_size` samples for a shape, the same for the same seed.
pub fn make_batches(shape: &Shape, batch_size: usize, num_batches: usize, seed: u64) -> Vec<Batch> {
    let truth_source = CounterRng::new(seed, 1 << 32);
    let truth: Vec<f32> = (0..NUM_DENSE as u64).map(|i| truth_source.normal(i)).collect();
    let mut uniforms = Uniforms::new(seed, (1 << 32) + 1);
    let tables = (0..).zip(shape.rows.iter().zip(&shape.hotness));
    let ids: Vec<(usize, Vec<u64>)> = tables
        .map(|(table, (&rows, &hotness))| {
            let hotness = hotness as usize;
            (hotness, zipf_rows(seed, table, rows, num_batches * batch_size * hotness))
        })
        .collect();
    let one_batch = |index: usize| {
        let dense: Vec<f32> = (0..batch_size * NUM_DENSE)
            .map(|_| (-3.0 * (1.0 - uniforms.next()).ln()).ln_1p() as f32)
            .collect();
        let labels = dense.chunks_exact(NUM_DENSE).map(|row| {
            let score: f32 = row.iter().zip(&truth).map(|(x, w)| (x - 1.2) * w).sum();
            let click = 1.0 / (1.0 + (1.5 - f64::from(score)).exp());
            f32::from(uniforms.next() < click)
        });
        let labels = labels.collect();
        let one_hot: Offsets = (0..=batch_size as u32).collect();
        let bags = |(hotness, values): &(usize, Vec<u64>)| Jagged {
            values: values[index * batch_size * hotness..][..batch_size * hotness].to_vec(),
            offsets: match hotness {
                1 => one_hot.clone(),
                _ => (0..=batch_size).map(|sample| (sample * hotness) as u32).collect(),
            },
        };
        let sparse = ids.iter().map(bags).collect();
        Batch { num_samples: batch_size, labels, dense, sparse, ..Batch::default() }
    };
    (0..num_batches).map(one_batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_distribution() {
        [0.0, 0.7, 1.0, ZIPF_EXPONENT, 2.0].into_iter().for_each(check_distribution);
    }

    fn check_distribution(exponent: f64) {
        let (num_ranks, count) = (50_u64, 200_000);
        let zipf = Zipf::new(num_ranks, exponent);
        let mut uniforms = Uniforms::new(3, 0);
        let mut seen = vec![0_u32; num_ranks as usize + 1];
        for _ in 0..count {
            seen[zipf.draw(|| uniforms.next()) as usize] += 1;
        }
        let total: f64 = (1..=num_ranks).map(|k| (k as f64).powf(-exponent)).sum();
        for rank in 1..=num_ranks {
            let expected = f64::from(count) * (rank as f64).powf(-exponent) / total;
            let off = f64::from(seen[rank as usize]) - expected;
            // Five standard deviations of a binomial count.
            assert!(
                off.abs() < 5.0 * expected.sqrt(),
                "exponent {exponent}, rank {rank}: {off} off {expected}"
            );
        }
    }

    #[test]
    fn scattering_is_a_permutation() {
        for rows in [1, 2, 3, 1000, 2_654_435] {
            let scatter = Scatter::new(rows);
            let mut seen = vec![false; rows.min(2000) as usize];
            (0..rows).map(|rank| scatter.row(rank)).filter(|&row| row < 2000).for_each(|row| {
                assert!(
                    !std::mem::replace(&mut seen[row as usize], true),
                    "row {row} of {rows} twice"
                );
            });
            assert!(seen.iter().all(|&s| s));
        }
    }

    #[test]
    fn batches_have_the_shape_and_repeat() {
        ["C1", "C3"].into_iter().for_each(check_batches);
    }

    fn check_batches(name: &str) {
        let shape = Shape::from_name(name, Some(500)).unwrap();
        let batches = make_batches(&shape, 64, 3, 1);
        assert_eq!(batches, make_batches(&shape, 64, 3, 1));
        for batch in &batches {
            assert_eq!((batch.labels.len(), batch.dense.len()), (64, 64 * NUM_DENSE));
            for (bags, (&rows, &hotness)) in
                batch.sparse.iter().zip(shape.rows.iter().zip(&shape.hotness))
            {
                assert_eq!(
                    (bags.values.len(), bags.offsets[64]),
                    (64 * hotness as usize, 64 * hotness)
                );
                assert!(bags.values.iter().all(|&row| row < rows));
            }
        }
        assert!(batches[0].labels.contains(&1.0) && batches[0].labels.contains(&0.0));
        assert_ne!(batches[0].sparse[0], batches[1].sparse[0]);
    }
}
