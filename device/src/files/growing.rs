//! A file that grows while a run lasts, readable at any time.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::busy;
use super::lock::{MOST_TRIES, is_at};
use super::output::{OutputFile, open_directly};

/// A log, locked for writing by this process.
#[derive(Debug)]
pub struct GrowingFile {
    file: File,
}

impl GrowingFile {
    /// Opens a log for appending (`append`), or empties it first. A symbolic link is not followed.
    ///
    /// # Errors
    /// Another process has it open for writing; it is a symbolic link; the file cannot be made.
    pub fn open(path: &Path, append: bool) -> io::Result<Self> {
        if let Some(file) = open_directly(path)? {
            return Ok(Self { file });
        }
        let mut options = File::options();
        options.append(true).create(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let mut tries = 0..MOST_TRIES;
        let file = loop {
            let file = options.open(path).map_err(|error| match error.raw_os_error() {
                Some(libc::ELOOP) => {
                    io::Error::other("it is a symbolic link: name the file itself")
                }
                _ => error,
            })?;
            lock(&file)?;
            // Another process may have replaced the log after it was opened here.
            if is_at(&file, path) || tries.next().is_none() {
                break file;
            }
        };
        if !append {
            file.set_len(0)?;
        }
        Ok(Self { file })
    }

    /// Replaces the log's content with `text` and keeps it open for appending.
    pub fn replace(path: &Path, text: &str) -> io::Result<Self> {
        // Held until the new file has the name: a second process waits at neither.
        let _former = Self::open(path, true)?;
        let mut output = OutputFile::create(path)?;
        lock(output.file())?;
        output.write_all(text.as_bytes())?;
        Ok(Self { file: output.commit_open()? })
    }
}

/// The lock is on the log itself.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(busy()),
        // Some network file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

impl Write for GrowingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for GrowingFile {
    fn drop(&mut self) {
        // A process that this one has just started may still have the file open.
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_log_has_one_writer_and_is_replaced_or_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = GrowingFile::open(&path, false).unwrap();
        log.write_all(b"one\n").unwrap();
        for append in [false, true] {
            assert_eq!(
                GrowingFile::open(&path, append).unwrap_err().kind(),
                io::ErrorKind::ResourceBusy
            );
        }
        assert!(GrowingFile::replace(&path, "other").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n", "a refused writer changes nothing");
        drop(log);
        GrowingFile::open(&path, true).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        let mut log = GrowingFile::replace(&path, "zero\n").unwrap();
        assert!(GrowingFile::open(&path, true).is_err());
        log.write_all(b"one\n").unwrap();
        drop(log);
        assert_eq!(fs::read_to_string(&path).unwrap(), "zero\none\n");
        GrowingFile::open(&path, false).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "");
        // Devices have as many writers as they like.
        let _one = GrowingFile::open(Path::new("/dev/null"), false).unwrap();
        GrowingFile::open(Path::new("/dev/null"), true).unwrap();
    }
}
