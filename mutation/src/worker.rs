//! The process that reads mutants: it may die of any of them, and what it was at lies in a file.

use crate::allocator;
use crate::subjects::{Files, Subject, mutant};
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a process may hold beyond its format's bound: itself, and windows of zstd, which no
/// allocator of ours counts.
const PROCESS_MIB: usize = 256;
/// The file of [`Progress`] in the worker's folder.
pub const PROGRESS: &str = "progress";
const NUMBERS: usize = 7;

/// How far a worker is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The mutant that it reads, or its last one.
    pub seed: u64,
    /// Mutants that were read to their end.
    pub accepted: u64,
    /// Mutants that were refused.
    pub refused: u64,
    /// The most memory that one took, in bytes, and which one.
    pub peak: (u64, u64),
    /// The longest that one took, in microseconds, and which one.
    pub slowest: (u64, u64),
}

impl Progress {
    fn to_bytes(self) -> [u8; NUMBERS * 8] {
        let Self { seed, accepted, refused, peak, slowest } = self;
        let numbers = [seed, accepted, refused, peak.0, peak.1, slowest.0, slowest.1];
        let mut bytes = [0; NUMBERS * 8];
        for (place, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        bytes
    }

    /// That of the worker in `folder`; nothing where it has not begun.
    pub fn read(folder: &Path) -> Option<Self> {
        let bytes = fs::read(folder.join(PROGRESS)).ok()?;
        let numbers: Vec<_> =
            bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let &[seed, accepted, refused, peak, of_peak, slowest, of_slowest] = &numbers[..] else {
            return None;
        };
        Some(Self {
            seed,
            accepted,
            refused,
            peak: (peak, of_peak),
            slowest: (slowest, of_slowest),
        })
    }
}

/// Reads the mutants of `seeds`, as many as it comes to in `share`, and ends the process at the
/// first that is a finding; what is wrong goes to standard error.
///
/// # Errors
/// Files that cannot be written; the bound of memory.
pub fn work(subject: &Subject, seeds: Range<u64>, folder: &Path, share: Duration) -> Result<()> {
    // A panic of any thread ends the process, also where a reader would make an error of it. The
    // Parquet reader makes errors of its library's panics before this hook hears of them.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::abort();
    }));
    let good = good_inputs(subject, folder)?;
    let place = folder.join("input");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let file = File::create(folder.join(PROGRESS))?;
    let mut progress = Progress::default();
    let (bound, begin) = (subject.bound_mib + PROCESS_MIB, Instant::now());
    for seed in seeds.clone() {
        progress.seed = seed;
        file.write_all_at(&progress.to_bytes(), 0)?;
        let files = mutant(subject, &good, seed);
        if subject.on_disk {
            write_files(&files, &place)?;
        }
        let (held, started) = (allocator::watch(), Instant::now());
        match (subject.read)(&place, &files) {
            Ok(()) => progress.accepted += 1,
            Err(_) => progress.refused += 1,
        }
        let taken = allocator::peak() - held;
        let micros = started.elapsed().as_micros() as u64;
        progress.peak = progress.peak.max((taken as u64, seed));
        progress.slowest = progress.slowest.max((micros, seed));
        anyhow::ensure!(
            taken <= subject.bound_mib << 20,
            "it took {taken} bytes of memory, the bound is {} MiB",
            subject.bound_mib
        );
        // The most that was ever held only rises: this is the mutant at which it passed the bound.
        let resident = resident_mib();
        anyhow::ensure!(
            resident <= bound,
            "the process held {resident} MiB of memory after {} mutants, the bound is {bound} MiB",
            seed - seeds.start + 1
        );
        if begin.elapsed() >= share {
            break;
        }
    }
    file.write_all_at(&progress.to_bytes(), 0)?;
    Ok(())
}

/// The good inputs, made in a folder of their own, which is empty again afterwards.
///
/// # Errors
/// Files that cannot be written.
pub fn good_inputs(subject: &Subject, folder: &Path) -> Result<Vec<Files>> {
    let place = folder.join("good");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    (subject.good)(&place)
}

/// Writes the files of a mutant into `folder`.
///
/// # Errors
/// Files that cannot be written.
pub fn write_files(files: &Files, folder: &Path) -> Result<()> {
    for (name, bytes) in files {
        let path = folder.join(name);
        if fs::write(&path, bytes).is_err() {
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// The most memory that this process has held.
fn resident_mib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) >> 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Progress::read(folder.path()), None);
        let progress =
            Progress { seed: 7, accepted: 3, refused: 4, peak: (1 << 40, 5), slowest: (6, 2) };
        fs::write(folder.path().join(PROGRESS), progress.to_bytes()).unwrap();
        assert_eq!(Progress::read(folder.path()), Some(progress));
    }

    #[test]
    fn the_memory_of_a_process_is_known() {
        assert!((1..100_000).contains(&resident_mib()));
    }
}
