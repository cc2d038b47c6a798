//! A file of data as it was named: a regular file, which may be opened any number of times, or a
//! pipe, which is opened once. Or rows in memory, which have a name and no file.
//!
//! What a pipe has given cannot be read again. Code that needs only the beginning (to detect
//! compression, format or a label column) reads through [`DataFile::look`], which consumes nothing:
//! what is read afterwards are the bytes looked at and the rest.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{ReaderError, Result};
use crate::frame::Frame;

const STANDARD_INPUT: &str = "-";
/// Most bytes of a pipe that are looked at.
const MOST_SEEN_BYTES: usize = 4 << 20;
/// How long a program may take to open a named pipe for writing.
const PATIENCE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(20);

/// A file, folder or pipe by name; `-` is standard input. Clones share what was read of a pipe, and
/// what was found by reading a file.
#[derive(Clone, Default)]
pub struct DataFile {
    path: PathBuf,
    frame: Option<Arc<dyn Frame>>,
    stream: Arc<Mutex<Stream>>,
    found: Arc<Mutex<Option<Found>>>,
}

/// What reading a whole file has found, and the file's size and time then.
type Found = ((u64, Option<SystemTime>), Arc<dyn Any + Send + Sync>);

#[derive(Default)]
enum Stream {
    /// Not at all; also where the name is that of a file.
    #[default]
    Unread,
    /// It could not be opened: it is not waited for again.
    Refused,
    Seen(Vec<u8>, File),
    /// It was given to somebody who reads it to its end.
    Given,
}

impl DataFile {
    /// Rows in memory; `name` is what messages call them.
    pub fn of_frame(name: &str, frame: Arc<dyn Frame>) -> Self {
        Self { frame: Some(frame), ..Self::from(name) }
    }

    /// The rows in memory that it is, where it is no file.
    pub fn frame(&self) -> Option<&Arc<dyn Frame>> {
        self.frame.as_ref()
    }

    /// The path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What messages call it.
    pub fn name(&self) -> PathBuf {
        if self.is_standard_input() { PathBuf::from("standard input") } else { self.path.clone() }
    }

    fn is_standard_input(&self) -> bool {
        self.path == Path::new(STANDARD_INPUT)
    }

    /// The path that the system knows it by.
    pub fn system_path(&self) -> &Path {
        if self.is_standard_input() { Path::new("/dev/stdin") } else { &self.path }
    }

    /// Whether it can be read once only: a pipe or a device, or what another program has left of a
    /// file on standard input. What is not there is none.
    pub fn is_stream(&self) -> bool {
        if self.frame.is_some() {
            return false;
        }
        let metadata = std::fs::metadata(self.system_path());
        metadata.is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) || self.is_rest()
    }

    /// Opened by its name, a file on standard input would be read from its beginning.
    fn is_rest(&self) -> bool {
        self.is_input() && rustix::fs::tell(io::stdin()).is_ok_and(|position| position > 0)
    }

    fn is_input(&self) -> bool {
        self.system_path() == Path::new("/dev/stdin")
    }

    /// Its size in bytes, as stored; 0 of a pipe.
    pub fn stored_bytes(&self) -> Result<u64> {
        if let Some(frame) = &self.frame {
            return Ok(frame.bytes());
        }
        let metadata =
            std::fs::metadata(self.system_path()).map_err(|source| self.open_error(source))?;
        Ok(if metadata.is_file() && !self.is_rest() { metadata.len() } else { 0 })
    }

    /// What `find` finds by reading the whole file: read once for all clones, as long as size and
    /// time stay the same.
    pub(crate) fn find_once<T: Any + Send + Sync>(
        &self,
        find: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let metadata =
            std::fs::metadata(self.system_path()).map_err(|source| self.open_error(source))?;
        let stamp = (metadata.len(), metadata.modified().ok());
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let known = found.clone().filter(|(then, _)| *then == stamp);
        if let Some(known) = known.and_then(|(_, known)| known.downcast().ok()) {
            return Ok(known);
        }
        let new = Arc::new(find()?);
        *found = Some((stamp, Arc::clone(&new) as _));
        Ok(new)
    }

    /// Refuses pipes, for a reason that says what cannot be done with one.
    ///
    /// # Errors
    /// [`ReaderError::Pipe`] naming the first one.
    pub fn refuse_pipes(files: &[Self], reason: &str) -> Result<()> {
        match files.iter().find(|file| file.is_stream()) {
            Some(file) => Err(ReaderError::Pipe { file: file.name(), reason: reason.to_owned() }),
            None => Ok(()),
        }
    }

    pub(super) fn open(&self) -> Result<Bytes> {
        if !self.is_stream() {
            return Ok(Bytes::All { seen: Cursor::default(), file: self.open_file()? });
        }
        let mut stream = self.lock();
        let (seen, file) = match std::mem::replace(&mut *stream, Stream::Given) {
            Stream::Seen(seen, file) => (seen, file),
            Stream::Given => {
                let reason = "it has been read already, and its data is wanted again".to_owned();
                return Err(ReaderError::Pipe { file: self.name(), reason });
            }
            unread => self.begin(&unread, &mut stream)?,
        };
        Ok(Bytes::All { seen: Cursor::new(seen), file })
    }

    /// Opens it to look at its beginning, which stays where it is.
    pub(super) fn look(&self) -> Result<Bytes> {
        if !self.is_stream() {
            return self.open();
        }
        let mut stream = self.lock();
        match std::mem::take(&mut *stream) {
            unread @ (Stream::Unread | Stream::Refused) => {
                let (seen, file) = self.begin(&unread, &mut stream)?;
                *stream = Stream::Seen(seen, file);
            }
            seen @ Stream::Seen(..) => *stream = seen,
            Stream::Given => {
                *stream = Stream::Given;
                drop(stream);
                return self.open();
            }
        }
        Ok(Bytes::Look { of: self.clone(), at: 0 })
    }

    /// Opens what was not opened until `now`.
    fn begin(&self, now: &Stream, stream: &mut Stream) -> Result<(Vec<u8>, File)> {
        let patience = if matches!(now, Stream::Refused) { Duration::ZERO } else { PATIENCE };
        self.open_stream(patience).inspect_err(|_| *stream = Stream::Refused)
    }

    fn lock(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_error(&self, source: io::Error) -> ReaderError {
        ReaderError::Open { file: self.name(), source }
    }

    fn open_file(&self) -> Result<File> {
        let file = File::open(self.system_path()).map_err(|source| self.open_error(source))?;
        match file.metadata().map_err(|source| self.open_error(source))?.is_dir() {
            true => Err(ReaderError::Directory { file: self.name() }),
            false => Ok(file),
        }
    }

    /// Opens a pipe or a device, a named pipe after somebody has opened it for writing within
    /// `patience`; with the bytes that were read to find that out.
    fn open_stream(&self, patience: Duration) -> Result<(Vec<u8>, File)> {
        let failed = |source| self.open_error(source);
        if self.is_input() {
            // What the process was given, which may not be opened by its name.
            let input = io::stdin().as_fd().try_clone_to_owned();
            return input.map(|input| (Vec::new(), File::from(input))).map_err(failed);
        }
        if !std::fs::metadata(&self.path).map_err(failed)?.file_type().is_fifo() {
            return Ok((Vec::new(), self.open_file()?));
        }
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path);
        let file = opened.map_err(failed)?;
        // A pipe without a name (`<(…)`) has had its writer, and may be at its end already.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let is_named = link.is_ok_and(|link| link.exists());
        let seen =
            if is_named { wait_for_writer(&file, patience).map_err(failed)? } else { Vec::new() };
        let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from).map_err(failed)?;
        let blocking = flags.difference(rustix::fs::OFlags::NONBLOCK);
        rustix::fs::fcntl_setfl(&file, blocking).map_err(io::Error::from).map_err(failed)?;
        Ok((seen, file))
    }
}

/// Waits until somebody has opened a named pipe for writing, `patience` at most; the first bytes,
/// where there are some already.
fn wait_for_writer(mut file: &File, patience: Duration) -> io::Result<Vec<u8>> {
    let (started, mut seen) = (Instant::now(), vec![0; 4096]);
    loop {
        // Without a writer this is the end of the file; with one there is nothing yet.
        match file.read(&mut seen) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(0) if started.elapsed() >= patience => {
                let message = "no program has opened this named pipe for writing: start that first";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Ok(0) => sleep(PAUSE),
            Ok(read) => {
                seen.truncate(read);
                return Ok(seen);
            }
        }
    }
}

pub(super) enum Bytes {
    All { seen: Cursor<Vec<u8>>, file: File },
    Look { of: DataFile, at: usize },
}

impl Bytes {
    /// Skips up to `count` bytes, by seeking where the file can seek (pipes cannot), else by
    /// reading; says how many there were.
    pub fn skip(&mut self, count: u64) -> io::Result<u64> {
        let Self::All { seen, file } = self else {
            return io::copy(&mut self.take(count), &mut io::sink());
        };
        let from_seen = io::copy(&mut seen.by_ref().take(count), &mut io::sink())?;
        let rest = count - from_seen;
        let (here, length) = match (file.stream_position(), file.metadata()) {
            (Ok(here), Ok(metadata)) if metadata.is_file() => (here, metadata.len()),
            _ => return Ok(from_seen + io::copy(&mut file.take(rest), &mut io::sink())?),
        };
        let target = here.saturating_add(rest).min(length.max(here));
        file.seek(SeekFrom::Start(target))?;
        Ok(from_seen + target - here)
    }
}

impl Read for Bytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::All { seen, file } => match seen.read(buffer)? {
                0 => file.read(buffer),
                read => Ok(read),
            },
            Self::Look { of, at } => {
                let mut stream = of.lock();
                let Stream::Seen(seen, file) = &mut *stream else {
                    return Err(io::Error::other(
                        "it was given to another reader while it was looked at",
                    ));
                };
                if *at == seen.len() {
                    if seen.len() >= MOST_SEEN_BYTES {
                        return Err(io::Error::other("its beginning holds no line"));
                    }
                    let read = file.read(buffer)?;
                    seen.extend_from_slice(&buffer[..read]);
                }
                let read = (&seen[*at..]).read(buffer)?;
                *at += read;
                Ok(read)
            }
        }
    }
}

impl<P: Into<OsString>> From<P> for DataFile {
    fn from(path: P) -> Self {
        Self { path: PathBuf::from(path.into()), ..Self::default() }
    }
}

impl AsRef<Path> for DataFile {
    fn as_ref(&self) -> &Path {
        self.system_path()
    }
}

impl PartialEq for DataFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for DataFile {}

impl fmt::Display for DataFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().display().fmt(formatter)
    }
}

impl fmt::Debug for DataFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(formatter)
    }
}

/// As text; bytes that are not UTF-8 are replaced, since no text can hold them.
impl Serialize for DataFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.path.to_string_lossy())
    }
}

impl<'de> Deserialize<'de> for DataFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        PathBuf::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_pipe_without_a_writer_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let file = DataFile::from(&path);
        let message = file.begin(&Stream::Refused, &mut file.lock()).err().unwrap().to_string();
        assert!(
            message.contains(
                "pipe: no program has opened this named pipe for writing: start that first"
            ),
            "{message}"
        );
        let writer = std::thread::spawn(move || std::fs::write(path, "abc"));
        let (mut seen, mut rest) = file.open_stream(PATIENCE).unwrap();
        rest.read_to_end(&mut seen).unwrap();
        assert_eq!(seen, b"abc");
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn what_reading_finds_is_found_again_after_a_change_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        std::fs::write(&path, "one").unwrap();
        let file = DataFile::from(&path);
        let mut passes = 0;
        let mut bytes = |file: &DataFile| {
            let find = || {
                passes += 1;
                Ok(std::fs::read(&path).unwrap().len())
            };
            let bytes = *file.find_once(find).unwrap();
            (bytes, passes)
        };
        assert_eq!([bytes(&file), bytes(&file.clone())], [(3, 1), (3, 1)]);
        std::fs::write(&path, "three").unwrap();
        assert_eq!([bytes(&file), bytes(&file)], [(5, 2), (5, 2)]);
        assert!(file.find_once(|| Err::<u8, _>(ReaderError::Empty { file: file.name() })).is_err());
    }

    #[test]
    fn standard_input_has_a_name_of_its_own() {
        let file = DataFile::from("-");
        assert_eq!((file.to_string(), file.path()), ("standard input".to_owned(), Path::new("-")));
        let json = serde_json::to_string(&[file, "a b".into()]).unwrap();
        assert_eq!(json, r#"["-","a b"]"#);
        assert_eq!(serde_json::from_str::<Vec<DataFile>>(&json).unwrap()[1], DataFile::from("a b"));
    }
}
