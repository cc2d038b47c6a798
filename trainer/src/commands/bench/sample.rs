//! Timed blocks that know how much of the machine others took meanwhile.

use crate::error::Result;
use std::time::Instant;

/// Blocks in which others used less than this many cores count as clean.
const CLEAN_CORES: f64 = 0.10;

#[derive(Debug, Clone, Copy)]
pub struct Block {
    start: Instant,
    machine_cpu_s: Option<f64>,
    own_cpu_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Work per second, in whatever unit the caller counts.
    pub rate: f64,
    /// Wall time in seconds.
    pub wall_s: f64,
    /// CPU time of this process in seconds.
    pub cpu_s: f64,
    /// CPU that other processes took meanwhile, in cores; 0 where the system does not say.
    pub foreign: f64,
}

/// What a run of blocks amounts to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Median rate of the clean blocks, or of the least disturbed third where fewer than three are
    /// clean.
    pub median: f64,
    pub best: f64,
    /// Median of the blocks' foreign load, in cores.
    pub foreign: f64,
    pub num_blocks: usize,
}

impl Block {
    pub fn start() -> Self {
        Self { machine_cpu_s: machine_cpu_s(), own_cpu_s: own_cpu_s(), start: Instant::now() }
    }

    /// Stops them; `work` units were done since the start.
    pub fn stop(self, work: f64) -> Sample {
        let wall_s = self.start.elapsed().as_secs_f64();
        let cpu_s = own_cpu_s() - self.own_cpu_s;
        let foreign = match (self.machine_cpu_s, machine_cpu_s()) {
            (Some(before), Some(after)) => ((after - before - cpu_s) / wall_s).max(0.0),
            _ => 0.0,
        };
        Sample { rate: work / wall_s, wall_s, cpu_s, foreign }
    }
}

/// Blocks of some `block_s` seconds each for `seconds`, `fewest` at least; a single call for 0.
/// `calls` makes so many calls and gives the units of work that they did.
pub fn timed_blocks(
    (seconds, block_s, fewest): (f64, f64, usize),
    mut calls: impl FnMut(usize) -> Result<f64>,
) -> Result<Vec<Sample>> {
    let first = Block::start();
    calls(1)?;
    let each = ((block_s / first.stop(1.0).wall_s) as usize).max(1);
    let (each, fewest) = if seconds > 0.0 { (each, fewest) } else { (1, 1) };
    let (mut samples, mut spent) = (Vec::new(), 0.0);
    while spent < seconds || samples.len() < fewest {
        let block = Block::start();
        let sample = block.stop(calls(each)?);
        spent += sample.wall_s;
        samples.push(sample);
    }
    Ok(samples)
}

/// Sums up blocks; `None` when there are none.
pub fn summarize(samples: &[Sample]) -> Option<Summary> {
    let mut by_disturbance = samples.to_vec();
    by_disturbance.sort_by(|a, b| a.foreign.total_cmp(&b.foreign));
    let clean = by_disturbance.partition_point(|sample| sample.foreign < CLEAN_CORES);
    let kept = if clean >= 3 { clean } else { samples.len().div_ceil(3).max(3).min(samples.len()) };
    Some(Summary {
        median: median(by_disturbance[..kept].iter().map(|sample| sample.rate))?,
        best: samples.iter().map(|sample| sample.rate).fold(f64::NEG_INFINITY, f64::max),
        foreign: median(samples.iter().map(|sample| sample.foreign))?,
        num_blocks: samples.len(),
    })
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// CPU seconds of the whole machine since it started, all but idle and waiting for disks, stolen
/// time included; `None` where the system does not say.
fn machine_cpu_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<f64> =
        text.lines().next()?.split_whitespace().skip(1).map_while(|t| t.parse().ok()).collect();
    if ticks.len() < 8 {
        return None;
    }
    // user nice system idle iowait irq softirq steal; ticks are hundredths of a second on every
    // Linux.
    Some((ticks[..8].iter().sum::<f64>() - ticks[3] - ticks[4]) / 100.0)
}

/// CPU seconds of this process so far, of all its threads, those that ended included; 0 where the
/// system does not say.
fn own_cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in brackets and may hold spaces; user and system time
    // are 14 and 15.
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok()).sum();
    ticks / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rate: f64, foreign: f64) -> Sample {
        Sample { rate, wall_s: 1.0, cpu_s: 1.0, foreign }
    }

    #[test]
    fn disturbed_blocks_are_left_out() {
        let samples = [
            sample(10.0, 0.0),
            sample(1.0, 1.5),
            sample(12.0, 0.05),
            sample(11.0, 0.01),
            sample(2.0, 0.9),
        ];
        let summary = summarize(&samples).unwrap();
        assert_eq!((summary.median, summary.best, summary.num_blocks), (11.0, 12.0, 5));
        assert_eq!(summary.foreign, 0.05);
    }

    #[test]
    fn the_least_disturbed_third_stands_in_for_clean_blocks() {
        let samples: Vec<Sample> =
            (0..12).map(|i| sample(f64::from(i), 0.2 + f64::from(i))).collect();
        assert_eq!(summarize(&samples).unwrap().median, 1.5);
        assert_eq!(summarize(&samples[..2]).unwrap().median, 0.5);
        assert!(summarize(&[]).is_none());
    }

    #[test]
    fn a_block_counts_its_own_time() {
        let block = Block::start();
        let mut x = 1.0_f64;
        while block.start.elapsed().as_millis() < 60 {
            x = (x + 1.0).sqrt();
        }
        let sample = block.stop(std::hint::black_box(x));
        assert!(sample.wall_s >= 0.06);
        if cfg!(target_os = "linux") {
            assert!(
                sample.cpu_s >= 0.0 && sample.cpu_s <= sample.wall_s * 8.0 + 0.02,
                "{sample:?}"
            );
        }
    }
}
