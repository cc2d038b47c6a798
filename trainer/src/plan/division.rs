//! How the data divides into batches.

use crate::config::Config;
use crate::report::count;
use serde::Serialize;

/// Divisors are looked for among so many batch sizes on either side of the configured one, at most.
const MOST_TRIED: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Division {
    pub data_rows: u64,
    /// Steps of one epoch, the last one included.
    pub steps_per_epoch: u64,
    /// Samples of the last step of an epoch; a full step where the batch divides the data.
    pub last_step_samples: u64,
    /// Samples that are never trained on: 0, because the last step takes what is left.
    pub samples_lost: u64,
    /// The batch size nearest to the configured one that divides the data into full steps; none
    /// within a quarter of it.
    pub nearest_dividing_batch_size: Option<u64>,
}

impl Division {
    pub(crate) fn new(config: &Config, data_rows: u64) -> Self {
        let step = config.samples_per_step().get();
        let remainder = data_rows % step;
        let (micro_batches, batch_size) =
            (config.train.accumulate as u64, config.train.batch_size as u64);
        let divides = data_rows > 0 && data_rows.is_multiple_of(micro_batches);
        Self {
            data_rows,
            steps_per_epoch: data_rows.div_ceil(step),
            last_step_samples: if remainder == 0 { step.min(data_rows) } else { remainder },
            samples_lost: 0,
            nearest_dividing_batch_size: Some(data_rows / micro_batches)
                .filter(|_| divides)
                .and_then(|number| nearest_divisor(number, batch_size)),
        }
    }

    pub(super) fn to_text(self) -> String {
        let (rows, steps, last) =
            (count(self.data_rows), count(self.steps_per_epoch), count(self.last_step_samples));
        if self.steps_per_epoch <= 1 {
            return format!("data {rows} rows: one step an epoch, of {last} samples");
        }
        if self.last_step_samples.checked_mul(self.steps_per_epoch) == Some(self.data_rows) {
            return format!("data {rows} rows: {steps} steps an epoch, all of {last} samples");
        }
        let even = self.nearest_dividing_batch_size.map_or(String::new(), |size| {
            format!("; with batch size {} all would be full", count(size))
        });
        format!(
            "data {rows} rows: {steps} steps an epoch, the last of {last} samples, none lost{even}"
        )
    }
}

/// The divisor of `number` nearest to `target` within a quarter of it; the smaller of two equally
/// near ones.
fn nearest_divisor(number: u64, target: u64) -> Option<u64> {
    let divides = |candidate: &u64| number.is_multiple_of(*candidate);
    (0..=(target / 4).min(MOST_TRIED))
        .find_map(|distance| [target - distance, target + distance].into_iter().find(divides))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_divisor_within_a_quarter() {
        assert_eq!(nearest_divisor(1024, 128), Some(128));
        assert_eq!(nearest_divisor(1000, 128), Some(125));
        assert_eq!(nearest_divisor(97, 50), None);
        assert_eq!(nearest_divisor(97, 90), Some(97));
        // Of the numbers from 48 to 80 none divides the Criteo sample's rows: twice 33 is far from
        // 64 already.
        assert_eq!(nearest_divisor(95_997, 64), None);
        assert_eq!(nearest_divisor(24, 7), Some(6));
        assert_eq!(nearest_divisor(u64::MAX, 65_000), Some(65_535));
    }

    #[test]
    fn the_last_step_is_named_where_it_is_short() {
        let text = |batch_size: usize, rows: u64| {
            let mut config = Config::default();
            config.train.batch_size = batch_size;
            Division::new(&config, rows).to_text()
        };
        assert_eq!(text(128, 1280), "data 1,280 rows: 10 steps an epoch, all of 128 samples");
        assert_eq!(
            text(128, 1000),
            "data 1,000 rows: 8 steps an epoch, the last of 104 samples, none lost; with batch \
             size 125 all would be full"
        );
        let sample = text(64, 95_997);
        assert!(
            sample.ends_with("1,500 steps an epoch, the last of 61 samples, none lost"),
            "{sample}"
        );
        assert_eq!(text(64, 30), "data 30 rows: one step an epoch, of 30 samples");
        assert!(text(1 << 30, u64::MAX).contains("17,179,869,184 steps"));
    }
}
