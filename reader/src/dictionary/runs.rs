//! Runs: counts on disk, sorted by column and id, so that any number of them is merged in little
//! memory.
//!
//! A run is `HLCOUNT1`, then for each column its entries (id and count, u64 little-endian each, by
//! rising id), then for each column the number of its entries (u64), the number of columns (u64),
//! and the XXH3-64 of all before.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use headlong_device::files::OutputFile;
use headlong_device::pool::Pool;
use xxhash_rust::xxh3::Xxh3Default;

use super::format::Hashed;
use super::{DictionaryColumn, DictionaryRule, MAX_DICTIONARY_ROWS};
use crate::error::{ReaderError, Result, invalid};
use crate::output::write_file;

const MAGIC: &[u8; 8] = b"HLCOUNT1";
pub(crate) const ENTRY_BYTES: u64 = 16;
/// The most runs merged at once: each needs an open file and a buffer.
pub(crate) const MAX_MERGED_RUNS: usize = 64;
const READ_BYTES: usize = 64 << 10;
/// Bytes that an id kept in a dictionary needs: id and count, and at most four slots of its lookup
/// table, as that is at least a quarter full.
const KEPT_BYTES: u64 = 16 + 4 * 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// A 32-bit id, or `MISSING_ID`.
    pub id: u64,
    pub count: u64,
}

/// The order of rows: by falling count, then by rising id.
fn by_rank(a: &Entry, b: &Entry) -> Ordering {
    b.count.cmp(&a.count).then(a.id.cmp(&b.id))
}

#[derive(Clone, Debug)]
pub(crate) struct Run {
    path: PathBuf,
    entries: Vec<u64>,
}

impl Run {
    /// Opens a run and reads it through, to be sure of it.
    ///
    /// # Errors
    /// [`ReaderError::Open`]; [`ReaderError::Format`] if it is not whole.
    pub fn open(path: &Path, num_columns: usize) -> Result<Self> {
        let failed = |source| ReaderError::Open { file: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        Self::check(file, length, path, num_columns)
    }

    /// As [`Run::open`], of the `length` bytes of `file`; `path` is for messages.
    fn check(
        mut file: impl Read + Seek,
        length: u64,
        path: &Path,
        num_columns: usize,
    ) -> Result<Self> {
        let bad = |message: String| ReaderError::Format { file: path.to_owned(), message };
        let failed = |source| ReaderError::Open { file: path.to_owned(), source };
        let footer_bytes = 8 * num_columns as u64 + 16;
        if length < 8 + footer_bytes {
            return Err(bad(format!("not a whole file of counts: {length} bytes")));
        }
        let mut hasher = Xxh3Default::new();
        let mut buffer = vec![0; length.min(1 << 20) as usize];
        let mut rest = length - 8;
        while rest > 0 {
            let part = &mut buffer[..rest.min(1 << 20) as usize];
            file.read_exact(part).map_err(failed)?;
            hasher.update(part);
            rest -= part.len() as u64;
        }
        file.seek(SeekFrom::Start(length - footer_bytes)).map_err(failed)?;
        let mut footer = Vec::new();
        file.read_to_end(&mut footer).map_err(failed)?;
        let words: Vec<u64> =
            footer.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (entries, end) = words.split_at(num_columns);
        if end != [num_columns as u64, hasher.digest()] {
            return Err(bad("damaged counts: the checksum does not fit".to_owned()));
        }
        let all = entries.iter().try_fold(0_u64, |sum, &count| sum.checked_add(count));
        let all = all.and_then(|all| all.checked_mul(ENTRY_BYTES)?.checked_add(8 + footer_bytes));
        if all != Some(length) {
            return Err(bad("damaged counts: the numbers of entries do not fit".to_owned()));
        }
        Ok(Self { path: path.to_owned(), entries: entries.to_vec() })
    }

    /// Entries of each column of a run in memory, once it has been found whole; `path` is for
    /// messages.
    ///
    /// # Errors
    /// Those of [`Run::open`].
    pub fn look_at(path: &Path, bytes: &[u8], num_columns: usize) -> Result<Vec<u64>> {
        let length = bytes.len() as u64;
        Ok(Self::check(io::Cursor::new(bytes), length, path, num_columns)?.entries)
    }

    fn read_column(&self, column: usize) -> Result<RunReader> {
        let before: u64 = self.entries[..column].iter().sum();
        let open = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(8 + before * ENTRY_BYTES))?;
            Ok(BufReader::with_capacity(READ_BYTES, file))
        };
        let input =
            open().map_err(|source| ReaderError::Open { file: self.path.clone(), source })?;
        Ok(RunReader { path: self.path.clone(), input, left: self.entries[column] })
    }
}

struct RunReader {
    path: PathBuf,
    input: BufReader<File>,
    left: u64,
}

impl RunReader {
    fn next(&mut self) -> Result<Option<Entry>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut bytes = [0; ENTRY_BYTES as usize];
        self.input
            .read_exact(&mut bytes)
            .map_err(|source| ReaderError::Open { file: self.path.clone(), source })?;
        let word =
            |from: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[from + index]));
        Ok(Some(Entry { id: word(0), count: word(8) }))
    }
}

/// Runs of one column, merged: each id once, by rising id.
struct Merge {
    readers: Vec<RunReader>,
    /// The next entry of each run that has one: (id, count, run).
    heads: BinaryHeap<Reverse<(u64, u64, usize)>>,
}

impl Merge {
    fn open(runs: &[Run], column: usize) -> Result<Self> {
        let readers = runs.iter().map(|run| run.read_column(column)).collect::<Result<_>>()?;
        let mut merge = Self { readers, heads: BinaryHeap::new() };
        for run in 0..runs.len() {
            merge.advance(run)?;
        }
        Ok(merge)
    }

    fn advance(&mut self, run: usize) -> Result<()> {
        if let Some(entry) = self.readers[run].next()? {
            self.heads.push(Reverse((entry.id, entry.count, run)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        let Some(Reverse((id, mut count, run))) = self.heads.pop() else { return Ok(None) };
        self.advance(run)?;
        while let Some(&Reverse((next_id, next_count, run))) = self.heads.peek()
            && next_id == id
        {
            count += next_count;
            self.heads.pop();
            self.advance(run)?;
        }
        Ok(Some(Entry { id, count }))
    }
}

/// Writes a run, column by column, under a temporary name until it is whole.
struct RunWriter<'a> {
    output: Hashed<BufWriter<&'a mut OutputFile>>,
    entries: Vec<u64>,
}

impl<'a> RunWriter<'a> {
    fn new(file: &'a mut OutputFile) -> io::Result<Self> {
        let mut output = Hashed::over(BufWriter::with_capacity(1 << 20, file));
        output.write(MAGIC)?;
        Ok(Self { output, entries: Vec::new() })
    }

    fn begin_column(&mut self) {
        self.entries.push(0);
    }

    fn push(&mut self, entry: Entry) -> io::Result<()> {
        let mut bytes = [0; ENTRY_BYTES as usize];
        bytes[..8].copy_from_slice(&entry.id.to_le_bytes());
        bytes[8..].copy_from_slice(&entry.count.to_le_bytes());
        if let Some(last) = self.entries.last_mut() {
            *last += 1;
        }
        self.output.write(&bytes)
    }

    fn finish(mut self) -> io::Result<()> {
        for count in self.entries.iter().chain([&(self.entries.len() as u64)]) {
            self.output.write(&count.to_le_bytes())?;
        }
        self.output.finish()
    }
}

/// Writes drained counts as a run.
pub(crate) fn write_run(path: &Path, columns: &[Vec<Entry>]) -> Result<()> {
    write_file(path, |file| {
        let mut writer = RunWriter::new(file)?;
        for entries in columns {
            writer.begin_column();
            entries.iter().try_for_each(|&entry| writer.push(entry))?;
        }
        writer.finish()
    })
}

/// Merges runs into one.
pub(crate) fn merge_into_run(runs: &[Run], num_columns: usize, path: &Path) -> Result<Run> {
    // An error of reading is carried past the writer, which knows errors of writing only.
    let mut failure = None;
    let written = write_file(path, |file| {
        let mut writer = RunWriter::new(file)?;
        for column in 0..num_columns {
            writer.begin_column();
            let mut next_of =
                |merge: &mut Merge| merge.next().map_err(|error| failure = Some(error));
            let Ok(mut merge) = Merge::open(runs, column) else {
                return Err(io::Error::other("a part of the counts cannot be read"));
            };
            while let Some(entry) =
                next_of(&mut merge).map_err(|()| io::Error::other("reading failed"))?
            {
                writer.push(entry)?;
            }
        }
        writer.finish()
    });
    match failure {
        Some(error) => Err(error),
        None => written.and_then(|()| Run::open(path, num_columns)),
    }
}

#[derive(Default)]
struct Ranked {
    kept: Vec<Entry>,
    /// Ids that meet `min_count`, also those beyond the memory.
    wanted: u64,
    distinct: u64,
    total: u64,
}

/// Merges runs into the columns of a dictionary, in at most `memory_bytes`, buffers of
/// [`MAX_MERGED_RUNS`] files a thread apart.
pub(crate) fn merge_into_columns(
    runs: &[Run],
    num_columns: usize,
    rule: DictionaryRule,
    memory_bytes: u64,
    pool: &Pool,
) -> Result<Vec<DictionaryColumn>> {
    let kept_bytes = std::sync::atomic::AtomicU64::new(0);
    let mut ranked: Vec<Mutex<Result<Ranked>>> = Vec::new();
    ranked.resize_with(num_columns, || Mutex::new(Ok(Ranked::default())));
    pool.run(num_columns, &|column| {
        let result = rank_column(runs, column, rule, memory_bytes, &kept_bytes);
        *ranked[column].lock().unwrap_or_else(PoisonError::into_inner) = result;
    });
    let ranked: Vec<Ranked> = ranked
        .into_iter()
        .map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect::<Result<_>>()?;
    check_memory(&ranked, memory_bytes)?;
    Ok(ranked.into_iter().map(Ranked::into_column).collect())
}

fn rank_column(
    runs: &[Run],
    column: usize,
    rule: DictionaryRule,
    memory_bytes: u64,
    kept_bytes: &std::sync::atomic::AtomicU64,
) -> Result<Ranked> {
    use std::sync::atomic::Ordering::Relaxed;
    let most =
        rule.max_rows.unwrap_or(MAX_DICTIONARY_ROWS).clamp(1, MAX_DICTIONARY_ROWS) as usize - 1;
    let mut ranked = Ranked::default();
    let mut merge = Merge::open(runs, column)?;
    while let Some(entry) = merge.next()? {
        ranked.distinct += 1;
        ranked.total += entry.count;
        if entry.count < rule.min_count {
            continue;
        }
        ranked.wanted += 1;
        // When the memory is full, the rest is only counted, for the error message.
        if kept_bytes.load(Relaxed) > memory_bytes {
            continue;
        }
        ranked.kept.push(entry);
        kept_bytes.fetch_add(KEPT_BYTES, Relaxed);
        if ranked.kept.len() / 2 > most {
            ranked.cut(most);
            kept_bytes.fetch_sub(KEPT_BYTES * (most as u64 + 2), Relaxed);
        }
    }
    ranked.wanted = ranked.wanted.min(most as u64);
    if ranked.kept.len() > most {
        ranked.cut(most);
    }
    ranked.kept.sort_unstable_by(by_rank);
    Ok(ranked)
}

fn check_memory(ranked: &[Ranked], memory_bytes: u64) -> Result<()> {
    let needed: u64 = ranked.iter().map(|column| column.wanted * KEPT_BYTES).sum();
    let largest = ranked.iter().enumerate().max_by_key(|(_, column)| column.wanted);
    match largest {
        Some((index, column))
            if needed > memory_bytes || column.kept.len() as u64 != column.wanted =>
        {
            let (index, wanted) = (index + 1, column.wanted);
            Err(invalid!(
                "the dictionary needs {needed} bytes, expected at most {memory_bytes}: column \
                 C{index} alone keeps {wanted} ids; raise min_count, limit the rows of a table \
                 with max_rows, or allow more memory"
            ))
        }
        _ => Ok(()),
    }
}

impl Ranked {
    /// Keeps the first `most` entries in the order of rows.
    fn cut(&mut self, most: usize) {
        self.kept.select_nth_unstable_by(most, by_rank);
        self.kept.truncate(most);
    }

    fn into_column(self) -> DictionaryColumn {
        let kept_count: u64 = self.kept.iter().map(|entry| entry.count).sum();
        DictionaryColumn {
            ids: self.kept.iter().map(|entry| entry.id).collect(),
            counts: self.kept.iter().map(|entry| entry.count).collect(),
            distinct: self.distinct,
            shared_count: self.total - kept_count,
        }
    }
}
