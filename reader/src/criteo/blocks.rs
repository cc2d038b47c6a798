//! Files to parsed blocks, in order: one thread decompresses and cuts into lines, others parse.
//!
//! Block `k` goes to parser `k mod n` and is taken from it in turn, so the order of the files is
//! kept without sorting, every queue is bounded, and the number of threads changes nothing but
//! speed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::batch::Position;
use crate::columns::SharedColumns;
use crate::criteo::parse::{BadRowPolicy, LineParser, RawBlock};
use crate::error::{ReaderError, Result, refuse};
use crate::io::{DataFile, LineBlocks, TextBlock, TextFile};
use crate::prefetch::{OwnedThreads, Returns, Spares, recycle};
use crate::schema::Schema;
use crate::skipped::{BadRow, SkipReport};

/// Blocks that may wait before and after each parser.
const QUEUED_BLOCKS: usize = 1;

/// How files become parsed blocks.
#[derive(Clone, Debug)]
pub struct BlockOptions {
    /// The columns of the lines.
    pub schema: Schema,
    /// What is said of single dense columns: tables of bins come behind the categories.
    pub columns: SharedColumns,
    /// What to do with lines that are not rows.
    pub on_bad_row: BadRowPolicy,
    /// Threads that parse; one more decompresses.
    pub num_threads: usize,
    /// Bytes of text handed over at a time.
    pub block_bytes: usize,
}

impl Default for BlockOptions {
    fn default() -> Self {
        let schema = Schema::criteo();
        let on_bad_row = BadRowPolicy::Error;
        Self { schema, columns: None, on_bad_row, num_threads: 1, block_bytes: 1 << 20 }
    }
}

impl BlockOptions {
    /// The columns of the samples: those of the lines, and tables of bins behind them.
    pub fn sample_schema(&self) -> Schema {
        let bins = self.columns.as_ref().map_or(0, |columns| columns.bins.len());
        Schema { num_sparse: self.schema.num_sparse + bins, ..self.schema }
    }
}

/// Parsed lines and where they stand.
#[derive(Debug, Default)]
pub struct ParsedBlock {
    /// The samples.
    pub raw: RawBlock,
    /// The file, as an index into the list of files.
    pub file: usize,
    /// Lines of the file before the block.
    pub first_line: u64,
    /// Bytes of the file's text before the block.
    pub first_byte: u64,
    /// Bytes of the file read so far, as stored.
    pub stored_bytes_read: u64,
}

impl ParsedBlock {
    /// Its bad lines, as far as it is known what is wrong with them; it is a block of `file`.
    pub fn bad_rows(&self, file: &DataFile) -> impl Iterator<Item = BadRow> {
        self.raw.bad_lines.iter().zip(&self.raw.faults).map(move |(bad, fault)| {
            let line = self.first_line + u64::from(bad.line) + 1;
            BadRow { file: file.name(), line, fault: fault.to_string() }
        })
    }

    /// Counts its bad lines in `report`, and keeps those that are among the first.
    pub fn report_bad_rows(&self, file: &DataFile, report: &mut SkipReport) {
        report.add(self.raw.bad_lines.len() as u64, self.bad_rows(file));
    }
}

/// What comes next in a stream of blocks.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one is moved for a mebibyte of text")]
pub enum Event {
    /// Lines of a file.
    Block(ParsedBlock),
    /// The last file of the list has ended.
    EndOfEpoch,
}

/// Tells how long a stream took to skip to its starting position.
#[derive(Clone, Debug, Default)]
pub struct SkipClock {
    nanoseconds: Arc<AtomicU64>,
}

impl SkipClock {
    /// The time taken; 0 until it is known, or where there was nothing to skip.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    fn set(&self, time: Duration) {
        self.nanoseconds.store(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// A parsed block, and the bad line after its last good sample where that ends the stream.
type Parsed = (ParsedBlock, Option<ReaderError>);

enum Item<B> {
    Block(B),
    EndOfEpoch,
    Failed(ReaderError),
    Finished,
}

/// A stream of parsed blocks. Dropping it stops and joins its threads.
pub struct BlockStream {
    parsed: Vec<Receiver<Item<Parsed>>>,
    used: Vec<Returns<RawBlock>>,
    turn: usize,
    /// The bad line after the last good sample of the block just delivered.
    failure: Option<ReaderError>,
    finished: bool,
    skip_clock: SkipClock,
    _threads: OwnedThreads,
}

impl BlockStream {
    /// Opens `files` and begins to read at `start`; stops after `epochs` epochs in all, counted
    /// from 0, or never.
    ///
    /// # Errors
    /// [`ReaderError::Open`], [`ReaderError::Directory`], [`ReaderError::Empty`] for any of the
    /// files, [`ReaderError::Invalid`] for senseless options, [`ReaderError::BadPosition`] if there
    /// is no such file.
    pub fn open(
        files: Vec<DataFile>,
        options: &BlockOptions,
        start: &Position,
        epochs: Option<u64>,
    ) -> Result<Self> {
        options.sample_schema().check().map_err(ReaderError::invalid)?;
        if let Some(columns) = &options.columns {
            columns.check(options.schema.num_dense)?;
        }
        check_files(&files, start)?;
        let num_threads = options.num_threads.max(1);
        let files: Arc<[DataFile]> = files.into();
        let skip_clock = SkipClock::default();
        let mut threads = OwnedThreads::default();
        let (used_text, spare_text) = recycle(num_threads * (QUEUED_BLOCKS + 2));
        let (mut to_parse, mut parsed, mut used) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..num_threads {
            let (text_sender, text_receiver) = sync_channel(QUEUED_BLOCKS);
            let (parsed_sender, parsed_receiver) = sync_channel(QUEUED_BLOCKS);
            let (used_raw, spare_raw) = recycle(QUEUED_BLOCKS + 4);
            let parse = ParseThread {
                parser: LineParser::new(options.schema, options.on_bad_row),
                columns: options.columns.clone(),
                num_sparse: options.schema.num_sparse,
                buffer: Vec::new(),
                files: Arc::clone(&files),
                input: text_receiver,
                output: parsed_sender,
                used_text: used_text.clone(),
                spare_raw,
            };
            threads.spawn(format!("reader-parse-{index}"), move || parse.run())?;
            to_parse.push(text_sender);
            parsed.push(parsed_receiver);
            used.push(used_raw);
        }
        let source = SourceThread {
            files,
            block_bytes: options.block_bytes,
            start: *start,
            epochs,
            output: to_parse,
            turn: 0,
            spare_text,
            skip_clock: skip_clock.clone(),
        };
        threads.spawn("reader-source".to_owned(), move || source.run())?;
        let (failure, finished, turn) = (None, false, 0);
        Ok(Self { parsed, used, turn, failure, finished, skip_clock, _threads: threads })
    }

    /// The next block or the end of an epoch; `None` after the last epoch. Waits for it.
    ///
    /// # Errors
    /// Whatever went wrong at this place of the stream, after everything before it has been
    /// delivered; from then on the stream has ended.
    #[expect(clippy::should_implement_trait, reason = "it fails and waits, as `Reader::next` does")]
    pub fn next(&mut self) -> Result<Option<Event>> {
        if let Some(failure) = self.failure.take() {
            self.finished = true;
            return Err(failure);
        }
        if self.finished {
            return Ok(None);
        }
        // Only a panic ends a thread without a word.
        let stopped = Item::Failed(ReaderError::Stopped { thread: "parsing" });
        let item = self.parsed[self.turn].recv().unwrap_or(stopped);
        self.turn = (self.turn + 1) % self.parsed.len();
        match item {
            Item::Block((block, failure)) => {
                self.failure = failure;
                Ok(Some(Event::Block(block)))
            }
            Item::EndOfEpoch => Ok(Some(Event::EndOfEpoch)),
            Item::Finished => {
                self.finished = true;
                Ok(None)
            }
            Item::Failed(error) => {
                self.finished = true;
                Err(error)
            }
        }
    }

    /// Gives the buffers of a block back.
    pub fn recycle(&self, block: ParsedBlock) {
        // Blocks come from the parsers in turn, so giving back in turn serves them all alike.
        let previous = (self.turn + self.used.len() - 1) % self.used.len();
        self.used[previous].give(block.raw);
    }

    /// A clock that tells how long it took to skip to the starting position; 0 until that has been
    /// done.
    pub fn skip_clock(&self) -> SkipClock {
        self.skip_clock.clone()
    }
}

/// Sees at once whether all files are there, rather than when their turn comes.
fn check_files(files: &[DataFile], start: &Position) -> Result<()> {
    if files.is_empty() {
        refuse!("no data file was named");
    }
    for file in files {
        // A pipe may take its time: its turn comes.
        if !file.is_stream() {
            TextFile::look(file)?;
        }
    }
    if start.file >= files.len() as u64 {
        let (file, line, byte) = (PathBuf::from("the list of files"), start.line, start.byte);
        let reason =
            format!("it has {} files, the position is in file {}", files.len(), start.file + 1);
        return Err(ReaderError::BadPosition { file, line, byte, reason });
    }
    Ok(())
}

struct SourceBlock {
    file: usize,
    text: TextBlock,
}

/// The receiver is gone: the stream was dropped, so the thread ends quietly.
struct Dropped;

struct SourceThread {
    files: Arc<[DataFile]>,
    block_bytes: usize,
    start: Position,
    epochs: Option<u64>,
    output: Vec<SyncSender<Item<SourceBlock>>>,
    turn: usize,
    spare_text: Spares<TextBlock>,
    skip_clock: SkipClock,
}

impl SourceThread {
    fn run(mut self) {
        // An error means that no one listens any more.
        let _ = self.read_epochs();
    }

    fn read_epochs(&mut self) -> Result<(), Dropped> {
        let mut epoch = self.start.epoch;
        let mut first_file = self.start.file as usize;
        while self.epochs.is_none_or(|epochs| epoch < epochs) {
            for file in first_file..self.files.len() {
                if let Err(error) = self.read_file(file)? {
                    return self.send(Item::Failed(error));
                }
            }
            self.send(Item::EndOfEpoch)?;
            (epoch, first_file) = (epoch + 1, 0);
        }
        self.send(Item::Finished)
    }

    /// Sends all blocks of a file, in the first epoch from the starting position on.
    fn read_file(&mut self, file: usize) -> Result<Result<()>, Dropped> {
        let mut blocks = match self.open(file) {
            Ok(blocks) => blocks,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            let mut text = self.spare_text.take();
            match blocks.next(&mut text) {
                Ok(true) => self.send(Item::Block(SourceBlock { file, text }))?,
                Ok(false) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    fn open(&mut self, file: usize) -> Result<LineBlocks> {
        let mut blocks = LineBlocks::open(&self.files[file], self.block_bytes)?;
        let Position { line, byte, .. } = std::mem::take(&mut self.start);
        let begin = Instant::now();
        blocks.skip_to(line, byte)?;
        if byte > 0 {
            self.skip_clock.set(begin.elapsed());
        }
        Ok(blocks)
    }

    fn send(&mut self, item: Item<SourceBlock>) -> Result<(), Dropped> {
        let turn = self.turn;
        self.turn = (turn + 1) % self.output.len();
        self.output[turn].send(item).map_err(|_| Dropped)
    }
}

struct ParseThread {
    parser: LineParser,
    columns: SharedColumns,
    num_sparse: usize,
    /// For bins to come behind the categories.
    buffer: Vec<u32>,
    files: Arc<[DataFile]>,
    input: Receiver<Item<SourceBlock>>,
    output: SyncSender<Item<Parsed>>,
    used_text: Returns<TextBlock>,
    spare_raw: Spares<RawBlock>,
}

impl ParseThread {
    fn run(mut self) {
        while let Ok(item) = self.input.recv() {
            let parsed = match item {
                Item::Block(block) => Item::Block(self.parse(block)),
                Item::EndOfEpoch => Item::EndOfEpoch,
                Item::Failed(error) => Item::Failed(error),
                Item::Finished => Item::Finished,
            };
            if self.output.send(parsed).is_err() {
                return;
            }
        }
    }

    fn parse(&mut self, block: SourceBlock) -> Parsed {
        let mut raw = self.spare_raw.take();
        self.parser.parse(block.text.text(), &mut raw);
        if let Some(columns) = &self.columns {
            columns.widen(&mut raw, self.num_sparse, &mut self.buffer);
        }
        let SourceBlock { file, text } = block;
        let mut parsed = ParsedBlock {
            raw,
            file,
            first_line: text.first_line,
            first_byte: text.first_byte,
            stored_bytes_read: text.stored_bytes_read,
        };
        self.used_text.give(text);
        let failure = match self.parser.policy() {
            BadRowPolicy::Error => {
                let failure = bad_line_error(&self.files[file], &parsed);
                // It ends the stream where it is reached: no one has skipped it.
                parsed.raw.bad_lines.clear();
                parsed.raw.faults.clear();
                failure
            }
            BadRowPolicy::Skip => None,
        };
        (parsed, failure)
    }
}

fn bad_line_error(file: &DataFile, block: &ParsedBlock) -> Option<ReaderError> {
    let BadRow { file, line, fault } = block.bad_rows(file).next()?;
    Some(ReaderError::BadLine { file, line, fault })
}
