//! A file at the speed of its disk: large aligned reads, several in flight, past the page cache, in
//! order.
//!
//! ```text
//! disk ─ backend: `depth` reads in flight ─ put in order ─ bounded queue ─ blocks ─ next()
//!        io_uring, else threads                           buffers come back when a block is dropped
//! ```
//!
//! What is read is a list of segments, ranges of bytes of some files, in the order they are wanted:
//! a file from front to back, or batches in shuffled order, or one rank's slice of each. Blocks are
//! of a size that suits the disk and have nothing to do with batches: the code that cuts records
//! out of them carries the remainder over. Memory is `depth + QUEUED` buffers and no more. A file
//! that has another size at the end than it had at the beginning is an error: somebody writes to
//! it.

mod buffer;
mod threads;
mod uring;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

pub use buffer::{ALIGNMENT, AlignedBuffer};

use crate::error::{ReaderError, Result, invalid};
use crate::io::{open_regular, open_regular_with};
use crate::prefetch::OwnedThreads;

/// Finished blocks that may wait for the consumer, with the ones it holds.
const QUEUED: usize = 4;

/// A block of one of many files that are read side by side has at least so many bytes.
const LEAST_SHARE_BYTES: usize = 16 << 10;

/// Who asks the kernel for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoChoice {
    /// io_uring where it is allowed, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Threads.
    Threads,
}

impl std::str::FromStr for IoChoice {
    type Err = ReaderError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(IoChoice::Auto),
            "io_uring" => Ok(IoChoice::IoUring),
            "threads" => Ok(IoChoice::Threads),
            _ => Err(invalid!("backend: expected auto, io_uring or threads, found \"{text}\"")),
        }
    }
}

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Bytes of a block, a multiple of [`ALIGNMENT`].
    pub block_bytes: usize,
    /// Reads in flight.
    pub depth: usize,
    /// Who reads.
    pub backend: IoChoice,
    /// Past the page cache (`O_DIRECT`), where the file system can.
    pub direct: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { block_bytes: 1 << 20, depth: 16, backend: IoChoice::Auto, direct: true }
    }
}

impl DiskOptions {
    /// Bytes that a stream of blocks holds at most.
    pub fn most_bytes(&self) -> u64 {
        ((self.depth + QUEUED) * self.block_bytes) as u64
    }

    /// Those of each of `files` that are read side by side: together they hold what one would.
    pub(crate) fn shared_by(self, files: usize) -> Self {
        let depth = (self.depth / files).max(2);
        let share = self.most_bytes() as usize / files / (depth + QUEUED);
        let block_bytes = share.next_multiple_of(ALIGNMENT).max(LEAST_SHARE_BYTES);
        Self { depth, block_bytes: block_bytes.min(self.block_bytes), ..self }
    }

    fn check(&self) -> Result<()> {
        let sound =
            self.depth > 0 && self.block_bytes > 0 && self.block_bytes.is_multiple_of(ALIGNMENT);
        if sound && self.block_bytes <= 1 << 30 {
            return Ok(());
        }
        Err(invalid!(
            "expected at least 1 read in flight of up to 1 GiB, a multiple of {ALIGNMENT} bytes; \
             found {} of {} bytes",
            self.depth,
            self.block_bytes
        ))
    }
}

/// Bytes of one of the files, to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the file.
    pub file: usize,
    /// Bytes from its beginning.
    pub bytes: Range<u64>,
}

#[derive(Clone, Debug)]
struct Opened {
    path: PathBuf,
    file: Arc<File>,
    bytes: u64,
}

/// A read of one block: `buffer[from..to]` is to be filled from `offset + from` on.
struct Read {
    /// Number of the block, from 0, in the order of delivery.
    number: u64,
    index: usize,
    file: Arc<File>,
    /// Where the buffer's first byte is in the file.
    offset: u64,
    from: usize,
    to: usize,
    wanted: Range<usize>,
    buffer: AlignedBuffer,
}

struct Done {
    read: Read,
    result: io::Result<usize>,
}

trait IoBackend: Send {
    /// Begins a read; there is room for it.
    fn begin(&mut self, read: Read) -> io::Result<()>;

    fn wait(&mut self) -> io::Result<Done>;
}

/// Consecutive bytes of a segment. Dropping it gives its memory back to the reader.
#[derive(Debug)]
pub struct Block {
    /// Index of the file.
    pub file: usize,
    /// Where its first byte is in the file.
    pub offset: u64,
    range: Range<usize>,
    buffer: Option<AlignedBuffer>,
    home: Sender<AlignedBuffer>,
}

impl Block {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer.bytes()[self.range.clone()])
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // No one takes it any more where the reader is gone.
        self.buffer.take().map(|buffer| self.home.send(buffer));
    }
}

/// Segments of files as blocks, in order. Dropping it stops and joins its threads.
pub struct DiskBlocks {
    description: String,
    blocks: Receiver<Result<Block>>,
    bytes_read: u64,
    finished: bool,
    stop: Arc<AtomicBool>,
    _threads: OwnedThreads,
}

impl Drop for DiskBlocks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl DiskBlocks {
    /// Begins to read the bytes of `path` from `start` to its end.
    ///
    /// # Errors
    /// As [`DiskFiles::open`]; [`ReaderError::Invalid`] for options that make no sense.
    pub fn open(path: &Path, start: u64, options: &DiskOptions) -> Result<Self> {
        let files = DiskFiles::open(&[path.to_owned()], options.direct)?;
        let end = files.bytes(0);
        files.read(std::iter::once(Segment { file: 0, bytes: start..end }), options)
    }

    /// The next block, or nothing after the last. Waits for it.
    ///
    /// # Errors
    /// [`ReaderError::Disk`] with the place, [`ReaderError::Changed`] where a file has another size
    /// than it had; the stream has ended then.
    #[expect(clippy::should_implement_trait, reason = "it fails and waits, as `Reader::next` does")]
    pub fn next(&mut self) -> Result<Option<Block>> {
        if self.finished {
            return Ok(None);
        }
        // The thread ends without a word after the last block, and says so before any other end.
        let block = self.blocks.recv().ok().transpose();
        self.finished = !matches!(block, Ok(Some(_)));
        if let Ok(Some(block)) = &block {
            self.bytes_read += block.range.end.next_multiple_of(ALIGNMENT) as u64;
        }
        block
    }

    /// Bytes of the blocks so far, and of the pages around them that were read with them.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// How it is read, and why not better: for the user.
    pub fn description(&self) -> &str {
        &self.description
    }
}

/// Files that are open for reading at the disk's speed; any number of streams may read them.
#[derive(Clone, Debug)]
pub struct DiskFiles {
    files: Arc<[Opened]>,
    cache: &'static str,
}

impl DiskFiles {
    /// Opens `paths`, for direct reads where `direct` asks for them and the file system can.
    ///
    /// # Errors
    /// [`ReaderError::Open`], [`ReaderError::Directory`], [`ReaderError::Empty`].
    pub fn open(paths: &[PathBuf], direct: bool) -> Result<Self> {
        let opened =
            paths.iter().map(|path| open_file(path, direct)).collect::<Result<Vec<_>>>()?;
        let cache = match (opened.iter().all(|(_, direct)| *direct), direct) {
            (true, _) => "past the page cache",
            (false, true) => "through the page cache (this file system has no O_DIRECT)",
            (false, false) => "through the page cache",
        };
        Ok(Self { files: opened.into_iter().map(|(file, _)| file).collect(), cache })
    }

    /// A file that is open already, of which `bytes` bytes are to be read; messages call it `path`.
    pub fn over(file: File, path: &Path, bytes: u64) -> Self {
        let opened = Opened { path: path.to_owned(), file: Arc::new(file), bytes };
        Self { files: Arc::new([opened]), cache: "through the page cache" }
    }

    /// The path of a file.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn path(&self, file: usize) -> &Path {
        &self.files[file].path
    }

    /// The bytes of a file when it was opened.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn bytes(&self, file: usize) -> u64 {
        self.files[file].bytes
    }

    /// Begins to read `segments`, which lie within the files.
    ///
    /// # Errors
    /// [`ReaderError::Invalid`] for options that make no sense; what the kernel says where it was
    /// told to use io_uring and refuses.
    pub fn read(
        &self,
        segments: impl Iterator<Item = Segment> + Send + 'static,
        options: &DiskOptions,
    ) -> Result<DiskBlocks> {
        options.check()?;
        let (backend, name) = start_backend(self.path(0), options)?;
        let description = format!(
            "{name}, {} reads of {} KiB in flight, {}",
            options.depth,
            options.block_bytes >> 10,
            self.cache
        );
        let (output, blocks) = sync_channel(QUEUED + options.depth);
        let (home, returned) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let pump = Pump {
            files: Arc::clone(&self.files),
            pieces: Pieces {
                segments: Box::new(segments),
                block_bytes: options.block_bytes as u64,
                rest: None,
            },
            options: *options,
            backend,
            output,
            home,
            returned,
            stop: Arc::clone(&stop),
        };
        let mut threads = OwnedThreads::default();
        threads.spawn("reader-disk".to_owned(), move || pump.run())?;
        Ok(DiskBlocks {
            description,
            blocks,
            bytes_read: 0,
            finished: false,
            stop,
            _threads: threads,
        })
    }
}

/// Opens one file; says whether its reads are direct.
fn open_file(path: &Path, direct: bool) -> Result<(Opened, bool)> {
    let for_direct = direct.then(|| open_regular_with(path, libc::O_DIRECT).ok()).flatten();
    let (is_direct, (file, bytes)) = match for_direct {
        Some(opened) => (true, opened),
        None => (false, open_regular(path)?),
    };
    Ok((Opened { path: path.to_owned(), file: Arc::new(file), bytes }, is_direct))
}

struct Pieces {
    segments: Box<dyn Iterator<Item = Segment> + Send>,
    block_bytes: u64,
    rest: Option<Segment>,
}

impl Iterator for Pieces {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let Segment { file, bytes } = match self.rest.take() {
            Some(rest) => rest,
            None => self.segments.by_ref().find(|segment| !segment.bytes.is_empty())?,
        };
        let first = bytes.start - bytes.start % ALIGNMENT as u64;
        let end = bytes.end.min(first + self.block_bytes);
        if end < bytes.end {
            self.rest = Some(Segment { file, bytes: end..bytes.end });
        }
        Some(Segment { file, bytes: bytes.start..end })
    }
}

fn start_backend(path: &Path, options: &DiskOptions) -> Result<(Box<dyn IoBackend>, String)> {
    let threads = |name: String| -> Result<(Box<dyn IoBackend>, String)> {
        let backend = threads::Threads::start(options.depth)
            .map_err(|source| ReaderError::Thread { source })?;
        Ok((Box::new(backend), name))
    };
    if options.backend == IoChoice::Threads {
        return threads("threads".to_owned());
    }
    match uring::Uring::start(options.depth) {
        Ok(backend) => Ok((Box::new(backend), "io_uring".to_owned())),
        Err(source) if options.backend == IoChoice::IoUring => {
            Err(ReaderError::Disk { file: path.into(), offset: 0, source })
        }
        Err(error) => threads(format!("threads (io_uring is refused here: {error})")),
    }
}

/// The receiver is gone: the stream was dropped.
struct Dropped;

/// The thread that keeps reads in flight and puts them in order.
struct Pump {
    files: Arc<[Opened]>,
    pieces: Pieces,
    options: DiskOptions,
    backend: Box<dyn IoBackend>,
    output: SyncSender<Result<Block>>,
    home: Sender<AlignedBuffer>,
    returned: Receiver<AlignedBuffer>,
    stop: Arc<AtomicBool>,
}

/// Where the pump stands.
#[derive(Default)]
struct Window {
    /// Number of the next block to ask for, and of the next to deliver.
    asked: u64,
    delivered: u64,
    in_flight: usize,
    buffers_made: usize,
    all_asked: bool,
    /// Done, but after one that is not.
    waiting: Vec<Read>,
}

impl Pump {
    fn run(mut self) {
        if let Err(error) = self.pump() {
            // No one may be there to hear it.
            let _ = self.output.send(Err(error));
        }
    }

    fn pump(&mut self) -> Result<()> {
        let mut window = Window::default();
        loop {
            self.ask(&mut window)?;
            if window.in_flight == 0 {
                break;
            }
            let done = self.backend.wait().map_err(|source| self.error(0, 0, source))?;
            if let Some(read) = self.finish(done)? {
                window.in_flight -= 1;
                window.waiting.push(read);
            }
            if self.deliver(&mut window).is_err() {
                return Ok(());
            }
        }
        if self.stop.load(Ordering::Relaxed) { Ok(()) } else { self.check_sizes() }
    }

    /// Asks for as much as may be in flight.
    fn ask(&mut self, window: &mut Window) -> Result<()> {
        while !window.all_asked && window.in_flight < self.options.depth {
            let Some(buffer) = self.buffer(window) else { break };
            let Some(Segment { file: index, bytes }) = self.pieces.next() else {
                window.all_asked = true;
                break;
            };
            let offset = bytes.start - bytes.start % ALIGNMENT as u64;
            let wanted = (bytes.start - offset) as usize..(bytes.end - offset) as usize;
            // The last read asks for whole pages beyond the end, as direct reads must.
            let to = wanted.end.next_multiple_of(ALIGNMENT);
            let file = Arc::clone(&self.files[index].file);
            let read =
                Read { number: window.asked, index, file, offset, from: 0, to, wanted, buffer };
            self.backend.begin(read).map_err(|source| self.error(index, offset, source))?;
            window.asked += 1;
            window.in_flight += 1;
        }
        Ok(())
    }

    /// A buffer; none where all are in use and a read in flight will finish sooner than the
    /// consumer, or no one consumes.
    fn buffer(&self, window: &mut Window) -> Option<AlignedBuffer> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        if window.buffers_made < self.options.depth + QUEUED {
            window.buffers_made += 1;
            return Some(AlignedBuffer::new(self.options.block_bytes));
        }
        // Blocks may outlive their stream, so it is no use to wait for them for ever.
        while window.in_flight == 0 && !self.stop.load(Ordering::Relaxed) {
            if let Ok(buffer) = self.returned.recv_timeout(Duration::from_millis(20)) {
                return Some(buffer);
            }
        }
        None
    }

    /// A whole block, or nothing where its rest had to be asked for.
    fn finish(&mut self, done: Done) -> Result<Option<Read>> {
        let Done { mut read, result } = done;
        let (index, at) = (read.index, read.offset + read.from as u64);
        let count = match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(source) => return Err(self.error(index, at, source)),
            Ok(0) => return Err(self.changed(index, at)),
            Ok(count) => count,
        };
        read.from += count;
        if read.from >= read.wanted.end {
            return Ok(Some(read));
        }
        if count % ALIGNMENT != 0 {
            // A read may only end inside a page where the file does.
            return Err(self.changed(index, at + count as u64));
        }
        self.backend.begin(read).map_err(|source| self.error(index, at, source))?;
        Ok(None)
    }

    fn deliver(&self, window: &mut Window) -> Result<(), Dropped> {
        while let Some(index) =
            window.waiting.iter().position(|read| read.number == window.delivered)
        {
            let read = window.waiting.swap_remove(index);
            let block = Block {
                file: read.index,
                offset: read.offset + read.wanted.start as u64,
                range: read.wanted,
                buffer: Some(read.buffer),
                home: self.home.clone(),
            };
            self.output.send(Ok(block)).map_err(|_| Dropped)?;
            window.delivered += 1;
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<()> {
        for (index, Opened { file, bytes, .. }) in self.files.iter().enumerate() {
            let metadata = file.metadata().map_err(|source| self.error(index, *bytes, source))?;
            if metadata.is_file() && metadata.len() != *bytes {
                return Err(self.changed(index, metadata.len()));
            }
        }
        Ok(())
    }

    fn changed(&self, index: usize, found: u64) -> ReaderError {
        let Opened { path, file, bytes } = &self.files[index];
        let found = file.metadata().map_or(found, |metadata| metadata.len());
        ReaderError::Changed { file: path.clone(), expected: *bytes, found }
    }

    fn error(&self, index: usize, offset: u64, source: io::Error) -> ReaderError {
        ReaderError::Disk { file: self.files[index].path.clone(), offset, source }
    }
}

#[cfg(test)]
mod tests;
