//! `train.bf16_sums = "auto"`: the order of a checkpoint that a run resumes from, else the fastest
//! on this processor.

use crate::config::{Bf16Sums, Config, DeviceChoice, Precision};
use crate::run::session::{config_of, find_checkpoint};
use crate::state::checkpoint::Checkpoint;
use headlong_device::simd::{Bf16Products, Limit, bf16_products};

/// Decides `train.bf16_sums` where it is `auto` and says something: in `bf16` on a processor.
///
/// What `run.instructions` allows does not count, because it must change no result.
pub fn decide(config: &Config, resumed: Option<&Checkpoint>) -> Config {
    let mut decided = config.clone();
    if !is_open(config) {
        return decided;
    }
    let then = resumed.and_then(|checkpoint| config_of(checkpoint).ok());
    decided.train.bf16_sums = match then.map(|then| then.train.bf16_sums) {
        // Before there was a choice, or on a device.
        Some(Bf16Sums::Auto) => Bf16Sums::Pairs,
        Some(order) => order,
        None if has_tiles() => Bf16Sums::Tiles,
        None => Bf16Sums::Pairs,
    };
    decided
}

fn is_open(config: &Config) -> bool {
    let train = &config.train;
    train.bf16_sums == Bf16Sums::Auto
        && train.precision == Precision::Bf16
        && config.run.device != DeviceChoice::Cuda
}

/// As [`decide`] for a run in `checkpoint.dir`, which may resume from what is there.
pub fn decide_for_run(config: &Config, resumes: bool) -> Config {
    // What is wrong with the folder is said where it is opened.
    let is_asked = resumes && is_open(config);
    let found = is_asked.then(|| find_checkpoint(config, resumes, false).ok()).flatten().flatten();
    decide(config, found.as_ref())
}

fn has_tiles() -> bool {
    Limit::all().run(bf16_products) == Bf16Products::Tiles
}
