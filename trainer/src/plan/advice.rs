//! Judging a plan: what does not fit is refused, with the key that would help most and a value for
//! it.

use super::{Count, Facts, Plan};
use crate::config::Config;
use crate::data::DeviceRows;
use crate::error::Result;

/// With less memory than this, multi-hot ids would be made again at every turn.
const LEAST_DRAWS_MIB: u64 = 256;

/// What a plan is changed in to find out what would fit.
type Changed<'a> = (&'a mut Config, &'a mut Vec<u64>);

/// A setting that takes memory: the lower, the less.
#[derive(Clone, Copy)]
pub struct Knob {
    /// What the user sets: a key of the configuration, or a flag.
    name: &'static str,
    keeps_results: bool,
    /// The value in force; none where the setting has no part in this plan.
    value: fn(&Config, &Facts<'_>) -> Option<u64>,
    least: fn(&Config) -> u64,
    set: fn(Changed<'_>, u64),
}

/// A setting that is a number of the configuration.
macro_rules! knob {
    ($section:ident.$key:ident, $keeps_results:literal, $least:expr) => {
        Knob {
            name: concat!(stringify!($section), ".", stringify!($key)),
            keeps_results: $keeps_results,
            value: |config, _| Some(config.$section.$key as u64),
            least: $least,
            set: |(config, _), value| config.$section.$key = value as _,
        }
    };
}

const fn threads(name: &'static str) -> Knob {
    Knob {
        name,
        keeps_results: true,
        value: |config, facts| Some(config.run.threads.unwrap_or(facts.machine.cores) as u64),
        least: |_| 1,
        set: |(config, _), threads| config.run.threads = Some(threads as usize),
    }
}

const fn most_rows(name: &'static str) -> Knob {
    Knob {
        name,
        keeps_results: false,
        value: |_, facts| facts.table_rows.iter().copied().max(),
        least: |_| 2,
        set: |(_, rows), most| rows.iter_mut().for_each(|rows| *rows = (*rows).min(most)),
    }
}

/// The settings that decide what training needs.
pub const TRAINING: &[Knob] = &[
    Knob {
        name: "multi_hot.memory_mib",
        keeps_results: true,
        value: |config, facts| Some(config.multi_hot_bytes(facts.table_rows) >> 20),
        least: |_| LEAST_DRAWS_MIB,
        set: |(config, _), mib| config.multi_hot.memory_mib = mib,
    },
    threads("run.threads"),
    knob!(data.prefetch_batches, true, |_| 1),
    knob!(eval.batch_size, true, |config| config.run.ranks as u64),
    most_rows("tables.max_rows"),
    knob!(train.batch_size, false, |config| config.sum_blocks() as u64),
    knob!(train.accumulate, false, |_| 1),
    knob!(tables.max_ids_per_sample, false, |_| 1),
    knob!(data.order_window, false, |_| 1),
    knob!(model.cross_layers, false, |_| 1),
    knob!(model.cross_rank, false, |_| 1),
];

/// Those of a command that applies a model, or runs one of a given shape: by its flags.
pub const APPLYING: &[Knob] = &[
    Knob {
        name: "--batch-size",
        keeps_results: true,
        value: |config, _| Some(config.eval.batch_size as u64),
        least: |config| config.sum_blocks() as u64,
        set: |(config, _), samples| {
            (config.train.batch_size, config.eval.batch_size) =
                (samples as usize, samples as usize);
        },
    },
    threads("--threads"),
];

/// Those of a bench of whole steps.
pub const BENCH: &[Knob] = &[most_rows("--row-cap"), APPLYING[0], APPLYING[1]];

impl Plan {
    /// Refuses training that does not fit, naming the key that would help most and a value for it.
    pub fn check(&self, config: &Config, facts: &Facts<'_>) -> Result<()> {
        self.check_with(config, facts, TRAINING)
    }

    /// The same for a command that has `knobs`.
    pub fn check_with(&self, config: &Config, facts: &Facts<'_>, knobs: &[Knob]) -> Result<()> {
        let uncached = Facts { cached_bytes: 0, device_rows: DeviceRows::NONE, ..*facts };
        let is_cached = facts.cached_bytes > 0 || !facts.device_rows.is_none();
        let mut training = config.clone();
        (training.run.eval_ranks, training.run.eval_processes) = (None, None);
        let advise = || {
            if let Some(evaluating) = config.run.evaluating()
                && Plan::without_division(&training, facts).fits
            {
                let flag = evaluating.flag();
                return format!("ranks that evaluate hold the model once more: drop {flag}");
            }
            if is_cached && Plan::without_division(config, &uncached).fits {
                return "`data.cache` = \"off\" would fit (--cache-data off): data is read from \
                        its files"
                    .to_owned();
            }
            help(config, facts, knobs)
        };
        if let Some(device) = &self.on_device {
            self.bytes_on_device().must_fit(device.free_bytes, advise)?;
        }
        Ok(self.bytes_here().must_fit(self.available_bytes, advise)?)
    }

    /// What one rank takes on its device and on the host together, with all that evaluate.
    fn needed(&self) -> Count {
        self.on_device
            .as_ref()
            .map_or(self.bytes_per_rank, |device| device.needed_bytes + self.bytes_per_rank)
            + self.eval_ranks.as_ref().map_or(Count::ZERO, |others| others.bytes)
    }
}

/// The plan with one setting changed; rows are divided evenly, because another split would be made.
fn changed(config: &Config, facts: &Facts<'_>, knob: &Knob, value: u64) -> Plan {
    let (mut config, mut rows) = (config.clone(), facts.table_rows.to_vec());
    (knob.set)((&mut config, &mut rows), value);
    Plan::without_division(&config, &Facts { table_rows: &rows, split: None, ..*facts })
}

/// The setting that frees most and is enough, one that changes no result before others; else those
/// that free most.
fn help(config: &Config, facts: &Facts<'_>, knobs: &[Knob]) -> String {
    let lowest = |knob: &'_ Knob| {
        let (value, least) = ((knob.value)(config, facts)?, (knob.least)(config));
        (value > least).then(|| (value, least, changed(config, facts, knob, least)))
    };
    let mut lowered: Vec<_> = knobs.iter().filter_map(|knob| Some((knob, lowest(knob)?))).collect();
    lowered.sort_by_key(|(knob, (_, _, plan))| (!plan.fits, !knob.keeps_results, plan.needed()));
    if let Some((knob, (value, least, _))) = lowered.first().filter(|(_, (_, _, plan))| plan.fits) {
        let fits = |value| changed(config, facts, knob, value).fits;
        // Two figures are enough, and leave room.
        let value = round_down(largest_that(*least, *value, fits)).max(*least);
        let name = knob.name;
        return match name.starts_with("--") {
            true => format!("`{name} {value}` would fit"),
            false => format!("`{name}` = {value} would fit (--set {name}={value})"),
        };
    }
    // A setting that has no part in this plan would change nothing.
    let needed = Plan::without_division(config, &Facts { split: None, ..*facts }).needed();
    lowered.retain(|(_, (_, _, plan))| plan.needed() < needed || !needed.fits(u64::MAX));
    lowered.sort_by_key(|(_, (_, _, plan))| plan.needed());
    let names: Vec<_> =
        lowered.iter().take(2).map(|(knob, _)| format!("`{}`", knob.name)).collect();
    match names.is_empty() {
        true => "no setting of this command makes it smaller: take a smaller model".to_owned(),
        false => format!(
            "no single setting is enough: lower {}, or the model's widths",
            names.join(" and ")
        ),
    }
}

/// The largest number from `low`, which holds, to `high` for which `holds`, where smaller ones hold
/// too.
fn largest_that(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Keeps the first two figures.
fn round_down(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    number / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_figures() {
        assert_eq!([1, 99, 101, 123_456, 999].map(round_down), [1, 99, 100, 120_000, 990]);
    }

    #[test]
    fn the_largest_that_holds() {
        assert_eq!(largest_that(1, u64::MAX, |number| number <= 12_345), 12_345);
        assert_eq!(largest_that(7, 7, |_| true), 7);
    }
}
