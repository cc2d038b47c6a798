//! The formats: good inputs of each, how they are damaged, and who reads them.

mod arrays;
mod checksummed;
mod columns;
mod packed;
mod peers;
mod planted;
mod read;
mod rows;
mod settings;
mod shards;
mod state;

use crate::mutate;
use crate::random::Random;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// Files of an input, by name; what is read from memory has one.
pub type Files = Vec<(String, Vec<u8>)>;

/// Whether a mutant was read to its end; else why it was refused.
pub type Outcome = Result<(), String>;

/// A format.
#[derive(Clone, Copy)]
pub struct Subject {
    /// Its name on the command line and in findings.
    pub name: &'static str,
    /// The memory that reading a mutant may take, in MiB, counted by the allocator.
    pub bound_mib: usize,
    /// Good inputs, made in an empty folder.
    pub good: fn(&Path) -> anyhow::Result<Vec<Files>>,
    /// A damaged one: of one of the good inputs, in a way that the numbers decide.
    pub damage: fn(&[Files], &mut Random) -> Files,
    /// Corrects checksums and lengths of the first file, whatever its bytes: libFuzzer damages
    /// without knowing the format.
    pub seal: fn(&mut [u8]),
    /// Whether the reader wants files in its folder.
    pub on_disk: bool,
    /// Reads the files, which lie in the folder where the reader wants it.
    pub read: fn(&Path, &Files) -> Outcome,
}

/// Every format. Small inputs need little: a bound is far above what good ones take, far below what
/// harms.
pub const SUBJECTS: &[Subject] = &[
    rows::CRITEO,
    rows::GZIP,
    rows::ZSTD,
    rows::CSV,
    rows::LINES,
    arrays::NPY,
    arrays::NPZ,
    arrays::ARRAY,
    arrays::ARCHIVE,
    arrays::RECORDS,
    checksummed::HEADLONG,
    checksummed::DICTIONARY,
    checksummed::MANIFEST,
    shards::CHECKPOINT,
    columns::PARQUET,
    state::STATISTICS,
    state::ADMISSION,
    state::COUNTS,
    state::HISTORY,
    state::TRIALS,
    settings::SPECIFICATION,
    settings::FEATURES,
    settings::CONFIGURATION,
    settings::SETTINGS,
    settings::SPACE,
    settings::CLUSTER,
    settings::TUNING,
    peers::FRAMES,
    peers::CONTROL,
    peers::HEADS,
    peers::LAUNCHER,
];

/// What the tests of the watcher plant: each goes wrong at seed 3.
pub const PLANTED: &[Subject] = &[
    planted::PANIC,
    planted::THREAD,
    planted::ABORT,
    planted::HANG,
    planted::MEMORY,
    planted::CEILING,
    planted::SOUND,
    planted::GOOD,
];

/// The format of this name.
pub fn find(name: &str) -> Option<&'static Subject> {
    SUBJECTS.iter().chain(PLANTED).find(|subject| subject.name == name)
}

/// The mutant of `seed`.
pub fn mutant(subject: &Subject, good: &[Files], seed: u64) -> Files {
    (subject.damage)(good, &mut Random::new(subject.name, seed))
}

/// One of the good inputs, to be damaged.
fn one(good: &[Files], random: &mut Random) -> Files {
    random.pick(good).clone()
}

/// One of the good inputs, whose first file is damaged as text.
fn damage_text(good: &[Files], random: &mut Random) -> Files {
    let mut files = one(good, random);
    mutate::text(&mut files[0].1, &texts(good), random);
    files
}

/// The first file of each of `good`, as text to take lines from.
fn texts(good: &[Files]) -> Vec<&[u8]> {
    good.iter().flat_map(|files| files.first()).map(|(_, bytes)| &bytes[..]).collect()
}

/// For formats without checksums.
fn as_it_is(_: &mut [u8]) {}

/// Makes the last eight bytes the checksum of what is before them.
fn seal_end(bytes: &mut [u8]) {
    if let Some((content, checksum)) = bytes.split_last_chunk_mut::<8>() {
        *checksum = xxh3_64(content).to_le_bytes();
    }
}

/// Sees that an error names `file`.
fn named<T, E: std::fmt::Display>(read: Result<T, E>, file: &str) -> Result<T, E> {
    if let Err(error) = &read {
        let text = error.to_string();
        assert!(text.contains(file), "it does not name {file}: {text}");
    }
    read
}

/// What is wrong, as text.
fn refused(error: impl std::fmt::Display) -> String {
    error.to_string()
}
