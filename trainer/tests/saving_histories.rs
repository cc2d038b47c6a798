//! Processes that save and load together over a simulated network, with a simulated disk: one seed
//! is one history.
//!
//! A history is a job that trains a few steps and saves each. Processes die, are stopped or lose
//! their connections, disks are slow, full or fail, several of it at a time; then the disk loses
//! what a power cut may lose, and the job starts again, until one attempt that nothing disturbs
//! ends it. What was saved is never lost, what is there is whole, and each process loads the rows
//! that it had. Where machines have a folder each, one of them may be lost between two attempts.

#![cfg(test)]

mod job;
mod machines;
mod model;

use crate::checkpoint_support::faulty::{Fault as DiskFault, Loss};
use headlong_comm_simulated::system::{At, Fault, Model, Options, What};
use headlong_comm_simulated::testing::sim::Random;
use job::Attempt;
use machines::Machines;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

const MS: u64 = 1_000_000;

/// Steps that a job saves.
const STEPS: u64 = 4;

/// Attempts that something befalls, at most.
const MOST_DISTURBED: u64 = 3;

/// The disk of a process.
#[derive(Debug, Clone, Copy)]
struct Disk {
    /// What happens, and at which operation.
    fault: Option<(DiskFault, usize)>,
    loss: Loss,
    /// The longest that an operation takes.
    slowness: u64,
}

/// What a seed says of an attempt.
fn attempt(random: &mut Random, num_ranks: usize, is_disturbed: bool) -> Attempt {
    let below = |random: &mut Random, end: usize| random.below(end as u64) as usize;
    let network = Model {
        delay: [(MS / 50, MS / 20), (MS / 20, 2 * MS), (MS, 20 * MS)][below(random, 3)],
        spike_percent: [0, 0, 3][below(random, 3)],
        part_percent: [0, 20, 80][below(random, 3)],
        room: [8 << 10, 64 << 10, 1 << 20][below(random, 3)],
    };
    let mut disks = Vec::new();
    for _ in 0..num_ranks {
        let slowness = [MS / 100, MS, 300 * MS][below(random, 3)];
        disks.push(Disk { fault: None, loss: Loss::Nothing, slowness });
    }
    let mut faults = Vec::new();
    let count = if is_disturbed { [1, 1, 2, 3][below(random, 4)] } else { 0 };
    for _ in 0..count {
        let rank = below(random, num_ranks);
        let other = (rank + 1 + below(random, num_ranks - 1)) % num_ranks;
        let what = match random.below(8) {
            0 | 1 => What::Death { rank, silent: random.chance(50) },
            2 => What::Pause { rank, time: random.between(100 * MS, 20_000 * MS) },
            3 => What::Reset { ranks: [rank, other] },
            _ => {
                let kinds = [DiskFault::Crash, DiskFault::Crash, DiskFault::Once];
                let kinds = [&kinds[..], &[DiskFault::DiskFull]].concat();
                let kind = kinds[below(random, 4)];
                disks[rank].fault = Some((kind, below(random, 60)));
                let losses = [Loss::Nothing, Loss::Unflushed, Loss::UnflushedButRenames];
                disks[rank].loss = losses[below(random, 3)];
                continue;
            }
        };
        let at = match random.chance(50) {
            true => At::Time(random.below(1500 * MS)),
            false => At::Call { rank, number: random.between(1, 1500) },
        };
        faults.push(Fault { at, what });
    }
    let options = Options {
        seed: random.next_u64(),
        num_ranks,
        preempt_percent: [0, 3, 15][below(random, 3)],
        network,
        faults,
        mistake: None,
        limit: 120_000 * MS,
        keep_lines: false,
    };
    Attempt { options, disks, machines: None }
}

/// Whose folders jobs save in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Folders {
    /// One that all processes see.
    One,
    /// One of each machine, which may be lost.
    OfMachines,
}

/// What histories were.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    attempts: u64,
    /// Attempts that an error ended.
    failed: u64,
    /// Attempts in which more than one thing happened.
    several: u64,
    /// Attempts that began from a checkpoint.
    resumed: u64,
    /// Machines that were lost with all that they had.
    lost: u64,
    /// Of the traces of all attempts.
    hash: u64,
}

/// Plays the history of a seed.
fn play(seed: u64, folders: Folders) -> Result<Counts, String> {
    let mut random = Random::new(seed ^ 0x5a_7e);
    let num_ranks = [2, 3, 3, 4][random.below(4) as usize];
    let disturbed = random.below(MOST_DISTURBED + 1);
    let folder = job::folder_in_memory();
    let mut counts = Counts::default();
    // The step that is there, and the one that is there whichever machine is lost.
    let (mut kept, mut secure) = (0, 0);
    for number in 0..=disturbed {
        let mut attempt = attempt(&mut random, num_ranks, number < disturbed);
        if folders == Folders::OfMachines {
            let ranks_of_one = if num_ranks == 4 && seed.is_multiple_of(2) { 2 } else { 1 };
            let count = num_ranks / ranks_of_one;
            let first = random.below(count as u64) as usize;
            attempt.machines = Some(Machines { ranks_of_one, count, first });
        }
        let is_calm = number == disturbed;
        let ended = attempt.run(folder.path(), kept);
        let of_attempt = |wrong: String| {
            format!("attempt {number} of {num_ranks} processes: {wrong}\n{attempt:#?}\n{ended:#?}")
        };
        counts.attempts += 1;
        counts.failed += u64::from(ended.has_failed());
        counts.several += u64::from(attempt.happenings(&ended) > 1);
        counts.resumed += u64::from(kept > 0);
        counts.hash = counts.hash.rotate_left(7) ^ ended.report.trace_hash;
        let machines = attempt.machines.as_ref();
        let judge = |least, is_calm| {
            ended.judge(folder.path(), machines, (least, is_calm)).map_err(of_attempt)
        };
        let saved = ended.saved();
        if saved > kept {
            secure = saved;
        }
        kept = judge(saved.max(kept), is_calm)?;
        if let Some(machines) = machines.filter(|_| random.chance(50)) {
            let machine = random.below(machines.count as u64) as usize;
            // It may have had nothing.
            let _ = fs::remove_dir_all(machines.folder(folder.path(), machine));
            counts.lost += 1;
            let lost = |wrong| format!("without machine {machine}: {wrong}");
            kept = judge(secure, false).map_err(lost)?;
            secure = 0;
        } else if kept > saved {
            // Whole, but perhaps not in two places: the next attempt begins from it all the same.
            secure = 0;
        }
    }
    Ok(counts)
}

fn play_all(seeds: std::ops::Range<u64>, folders: Folders) -> Counts {
    let mut all = Counts::default();
    for seed in seeds {
        let counts = play(seed, folders).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        all.attempts += counts.attempts;
        all.failed += counts.failed;
        all.several += counts.several;
        all.resumed += counts.resumed;
        all.lost += counts.lost;
    }
    all
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..30 {
        for folders in [Folders::One, Folders::OfMachines] {
            assert_eq!(play(seed, folders), play(seed, folders), "seed {seed}, {folders:?}");
        }
    }
}

#[test]
fn histories_of_fixed_seeds() {
    let counts = play_all(0..400, Folders::One);
    println!("{counts:?}");
    assert!(counts.failed > 200, "{counts:?}: most of what happens is an error");
    assert!(counts.several > 100, "{counts:?}: often it is not alone");
    assert!(counts.resumed > 200, "{counts:?}: most jobs continue from a checkpoint");
}

#[test]
fn histories_of_machines_of_fixed_seeds() {
    let counts = play_all(0..150, Folders::OfMachines);
    println!("{counts:?}");
    assert!(counts.failed > 100, "{counts:?}: most of what happens is an error");
    assert!(counts.resumed > 100, "{counts:?}: most jobs continue from what there is");
    assert!(counts.lost > 100, "{counts:?}: many machines are lost");
}

/// Seeds that no one has tried: of the second in which this runs.
#[test]
fn histories_of_new_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
    let seeds = |count| now * 1000..now * 1000 + count;
    println!("seeds from {} on: {:?}", now * 1000, play_all(seeds(100), Folders::One));
    println!("of machines: {:?}", play_all(seeds(25), Folders::OfMachines));
}

#[test]
#[ignore = "minutes: `cargo xtask soak --only saving_histories`"]
fn soak_saving_histories() {
    println!("20000 histories: {:?}", play_all(1_000_000..1_020_000, Folders::One));
    println!("10000 of machines: {:?}", play_all(2_000_000..2_010_000, Folders::OfMachines));
}
